//! One pass of an ordinary Rust client: publish, consume, key-value, then go on after the server was restarted.

use std::time::Duration;

use async_nats::jetstream::{self, consumer::pull, kv, stream};
use async_nats::{ConnectOptions, Event};
use futures::StreamExt;

type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

#[tokio::main]
async fn main() -> Outcome<()> {
    let url = std::env::args().nth(1).ok_or("an address is needed")?;
    let (sender, mut events) = tokio::sync::mpsc::unbounded_channel();
    let client = ConnectOptions::new()
        .event_callback(move |event| {
            let sender = sender.clone();
            async move {
                if matches!(event, Event::Connected) {
                    let _ = sender.send(());
                }
            }
        })
        .connect(url)
        .await?;
    events.recv().await;
    let js = jetstream::new(client);
    let config = stream::Config { name: "RUST".into(), subjects: vec!["rust.>".into()], ..Default::default() };
    let stream = js.create_stream(config).await?;
    for n in 1..=100 {
        js.publish("rust.a", n.to_string().into()).await?.await?;
    }
    let consumer: pull::Config = pull::Config { durable_name: Some("C".into()), ..Default::default() };
    let mut consumer = stream.create_consumer(consumer).await?;
    let mut got = 0;
    while got < 100 {
        let mut batch = consumer.fetch().max_messages(30).messages().await?;
        while let Some(message) = batch.next().await {
            let message = message?;
            got += 1;
            assert_eq!(&message.payload[..], got.to_string().as_bytes());
            message.double_ack().await?;
        }
    }
    let bucket = js.create_key_value(kv::Config { bucket: "RUSTKV".into(), history: 3, ..Default::default() }).await?;
    let revision = bucket.create("colour", "blue".into()).await?;
    bucket.update("colour", "green".into(), revision).await?;
    assert!(bucket.update("colour", "red".into(), revision).await.is_err());
    assert_eq!(bucket.get("colour").await?.as_deref(), Some(&b"green"[..]));
    let keys = bucket.keys().await?.count().await;
    println!("ready {keys}");
    events.recv().await;
    let mut sequence = 0;
    for _ in 0..20 {
        match js.publish("rust.a", "after".into()).await?.await {
            Ok(ack) => {
                sequence = ack.sequence;
                break;
            }
            Err(_) => tokio::time::sleep(Duration::from_millis(200)).await,
        }
    }
    let mut batch = consumer.fetch().max_messages(1).messages().await?;
    let message = batch.next().await.ok_or("nothing came")??;
    message.double_ack().await?;
    let floor = consumer.info().await?.ack_floor.stream_sequence;
    println!("done {sequence} {} {floor}", String::from_utf8_lossy(&message.payload));
    Ok(())
}
