// One pass of an ordinary JavaScript client: publish, consume, key-value, then go on after the server was restarted.
import { connect } from "@nats-io/transport-node";
import { AckPolicy, jetstream, jetstreamManager } from "@nats-io/jetstream";
import { Kvm } from "@nats-io/kv";

const nc = await connect({ servers: process.argv[2], maxReconnectAttempts: -1, reconnectTimeWait: 100 });
const again = (async () => {
  for await (const status of nc.status()) {
    if (status.type === "reconnect") return;
  }
})();
const manager = await jetstreamManager(nc);
await manager.streams.add({ name: "JS", subjects: ["js.>"] });
const js = jetstream(nc);
for (let n = 1; n <= 100; n++) await js.publish("js.a", String(n));
await manager.consumers.add("JS", { durable_name: "C", ack_policy: AckPolicy.Explicit });
const consumer = await js.consumers.get("JS", "C");
let got = 0;
while (got < 100) {
  const batch = await consumer.fetch({ max_messages: 30, expires: 2000 });
  for await (const message of batch) {
    got++;
    if (message.string() !== String(got)) throw new Error(`message ${got} is ${message.string()}`);
    if (!(await message.ackAck())) throw new Error("not confirmed");
  }
}
const bucket = await new Kvm(nc).create("JSKV", { history: 3 });
const revision = await bucket.create("colour", "blue");
await bucket.update("colour", "green", revision);
let refused = false;
try {
  await bucket.update("colour", "red", revision);
} catch {
  refused = true;
}
if (!refused) throw new Error("an update of an old revision was taken");
const entry = await bucket.get("colour");
if (entry.string() !== "green") throw new Error(`the key is ${entry.string()}`);
let keys = 0;
for await (const _ of await bucket.keys()) keys++;
console.log("ready", keys);
await again;
let ack;
for (let turn = 0; turn < 20 && !ack; turn++) {
  try {
    ack = await js.publish("js.a", "after");
  } catch {
    await new Promise((done) => setTimeout(done, 200));
  }
}
const message = await consumer.next({ expires: 5000 });
await message.ackAck();
const info = await consumer.info();
console.log("done", ack.seq, message.string(), info.ack_floor.stream_seq);
await nc.close();
