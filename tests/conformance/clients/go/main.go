// One pass of an ordinary Go client: publish, consume, key-value, then go on after the server was restarted.
package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

func must(err error) {
	if err != nil {
		fmt.Println("failed:", err)
		os.Exit(1)
	}
}

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	again := make(chan bool, 1)
	nc, err := nats.Connect(os.Args[1], nats.MaxReconnects(-1), nats.ReconnectWait(100*time.Millisecond),
		nats.ReconnectHandler(func(*nats.Conn) { again <- true }))
	must(err)
	js, err := jetstream.New(nc)
	must(err)
	stream, err := js.CreateStream(ctx, jetstream.StreamConfig{Name: "GO", Subjects: []string{"go.>"}})
	must(err)
	for n := 1; n <= 100; n++ {
		_, err := js.PublishAsync("go.a", []byte(fmt.Sprint(n)))
		must(err)
	}
	<-js.PublishAsyncComplete()
	consumer, err := stream.CreateOrUpdateConsumer(ctx, jetstream.ConsumerConfig{Durable: "C", AckPolicy: jetstream.AckExplicitPolicy})
	must(err)
	got := 0
	for got < 100 {
		batch, err := consumer.Fetch(30, jetstream.FetchMaxWait(2*time.Second))
		must(err)
		for message := range batch.Messages() {
			got++
			if string(message.Data()) != fmt.Sprint(got) {
				must(fmt.Errorf("message %d is %s", got, message.Data()))
			}
			must(message.DoubleAck(ctx))
		}
		must(batch.Error())
	}
	ordered, err := js.OrderedConsumer(ctx, "GO", jetstream.OrderedConsumerConfig{})
	must(err)
	iterator, err := ordered.Messages()
	must(err)
	for n := 1; n <= 100; n++ {
		message, err := iterator.Next()
		must(err)
		if string(message.Data()) != fmt.Sprint(n) {
			must(fmt.Errorf("ordered: message %d is %s", n, message.Data()))
		}
	}
	bucket, err := js.CreateKeyValue(ctx, jetstream.KeyValueConfig{Bucket: "GOKV", History: 3})
	must(err)
	revision, err := bucket.Create(ctx, "colour", []byte("blue"))
	must(err)
	_, err = bucket.Update(ctx, "colour", []byte("green"), revision)
	must(err)
	if _, err = bucket.Update(ctx, "colour", []byte("red"), revision); err == nil {
		must(fmt.Errorf("an update of an old revision was taken"))
	}
	entry, err := bucket.Get(ctx, "colour")
	must(err)
	if string(entry.Value()) != "green" {
		must(fmt.Errorf("the key is %s", entry.Value()))
	}
	keys, err := bucket.Keys(ctx)
	must(err)
	fmt.Println("ready", len(keys))
	<-again
	ack, err := js.Publish(ctx, "go.a", []byte("after"), jetstream.WithRetryAttempts(20))
	must(err)
	message, err := consumer.Next(jetstream.FetchMaxWait(5 * time.Second))
	must(err)
	must(message.DoubleAck(ctx))
	info, err := consumer.Info(ctx)
	must(err)
	// The ordered consumer was in the server's memory: the client makes it anew and goes on behind what it had.
	following, err := iterator.Next()
	must(err)
	if metadata, err := following.Metadata(); err != nil || metadata.Sequence.Stream != ack.Sequence {
		must(fmt.Errorf("ordered, after the restart: %s at %v (%v)", following.Data(), metadata, err))
	}
	iterator.Stop()
	fmt.Println("done", ack.Sequence, string(message.Data()), info.AckFloor.Stream)
}
