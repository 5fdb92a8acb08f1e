// JetStream with nats.js, as its users use it every day; "ok" at the end if all was right.
import { connect } from "@nats-io/transport-node";
import { AckPolicy, DeliverPolicy, jetstream, jetstreamManager } from "@nats-io/jetstream";
import { startFastIngest } from "@nats-io/jetstream/internal";
import { Kvm } from "@nats-io/kv";
import { Objm } from "@nats-io/obj";

const url = process.argv[2];
const text = new TextDecoder();

function check(good, ...what) {
  if (!good) {
    console.error("wrong:", ...what);
    process.exit(1);
  }
}

async function refused(promise, word) {
  try {
    await promise;
  } catch (problem) {
    check(`${problem}`.includes(word), `${problem}`, "is without", word);
    return;
  }
  check(false, "not refused:", word);
}

async function filled(jsm, js, name, count) {
  await jsm.streams.add({ name, subjects: [`${name}.>`] });
  for (let i = 0; i < count; i++) {
    await js.publish(`${name}.${i % 2}`, `${i}`);
  }
}

async function pulled(jsm, js) {
  await filled(jsm, js, "PULLED", 20);
  await jsm.consumers.add("PULLED", { durable_name: "d", ack_policy: AckPolicy.Explicit });
  const consumer = await js.consumers.get("PULLED", "d");
  let next = 0;
  for await (const m of await consumer.fetch({ max_messages: 8, expires: 5000 })) {
    check(m.string() === `${next}`, "fetch", next, m.string());
    check(await m.ackAck(), "ackAck");
    next++;
  }
  check(next === 8, "fetched", next);
  for await (const m of await consumer.consume({ max_messages: 5, expires: 5000 })) {
    if (next === 10 && m.info.deliveryCount === 1) {
      m.nak();
      continue;
    }
    m.ack();
    next++;
    if (next === 20) {
      break;
    }
  }
  check((await consumer.next({ expires: 1000 })) === null, "nothing is left");
  await js.publish("PULLED.x", "last");
  const last = await consumer.next({ expires: 5000 });
  check(last.string() === "last", "next");
  check(await last.ackAck(), "ackAck");
  const info = await consumer.info();
  check(info.num_ack_pending === 0 && info.num_pending === 0, "left", info);
}

async function ordered(jsm, js) {
  await filled(jsm, js, "ORDERED", 200);
  const consumer = await js.consumers.get("ORDERED", { filter_subjects: "ORDERED.1" });
  let next = 1;
  for await (const m of await consumer.consume()) {
    check(m.string() === `${next}`, "ordered", next, m.string());
    next += 2;
    if (m.info.pending === 0) {
      break;
    }
  }
  check(next === 201, "ordered to", next);
}

async function managed(jsm, js) {
  await filled(jsm, js, "MANAGED", 4);
  await jsm.consumers.add("MANAGED", { durable_name: "one", ack_policy: AckPolicy.Explicit });
  await jsm.consumers.add("MANAGED", { durable_name: "two", deliver_policy: DeliverPolicy.New });
  const found = await jsm.consumers.list("MANAGED").next();
  check(found.map((c) => c.name).join() === "one,two", "list", found);
  const updated = await jsm.consumers.update("MANAGED", "one", { max_ack_pending: 5 });
  check(updated.config.max_ack_pending === 5, "update", updated);
  await jsm.consumers.pause("MANAGED", "one", new Date(Date.now() + 60_000));
  check((await jsm.consumers.info("MANAGED", "one")).paused, "paused");
  await jsm.consumers.resume("MANAGED", "one");
  check(await jsm.consumers.delete("MANAGED", "one"), "delete");
  await refused(jsm.consumers.info("MANAGED", "one"), "consumer not found");
  await jsm.streams.purge("MANAGED", { filter: "MANAGED.1" });
  check((await jsm.streams.info("MANAGED")).state.messages === 2, "purge");
}

async function keys(nc) {
  const kv = await new Kvm(nc).create("B", { history: 5 });
  for (const value of ["1", "2", "3"]) {
    await kv.put("a", value);
  }
  check((await kv.get("a")).string() === "3", "get");
  await refused(kv.create("a", "x"), "wrong last sequence");
  check((await kv.update("a", "4", 3)) === 4, "update");
  await refused(kv.update("a", "5", 3), "wrong last sequence");
  let count = 0;
  for await (const _ of await kv.history({ key: "a" })) {
    count++;
  }
  check(count === 4, "history", count);
  const watcher = await kv.watch();
  const seen = [];
  for await (const entry of watcher) {
    seen.push(`${entry.key} ${entry.operation}`);
    if (seen.length === 1) {
      await kv.delete("a");
      await kv.put("b", "x");
    }
    if (seen.length === 3) {
      break;
    }
  }
  check(seen.join() === "a PUT,a DEL,b PUT", "watch", seen);
  await kv.purge("b");
  const left = [];
  for await (const key of await kv.keys()) {
    left.push(key);
  }
  check(left.length === 0, "keys", left);
  check((await kv.status()).history === 5, "status");
  await kv.destroy();
}

async function objects(nc) {
  const store = await new Objm(nc).create("O");
  const data = new Uint8Array(3_000_000).map((_, i) => i % 251);
  await store.putBlob({ name: "one" }, data);
  const got = await store.getBlob("one");
  check(Buffer.compare(Buffer.from(got), Buffer.from(data)) === 0, "object");
  await store.link("link", await store.info("one"));
  check((await store.getBlob("link")).length === data.length, "link");
  await store.delete("one");
  check((await store.list()).filter((i) => !i.deleted).length === 1, "list");
  await store.seal();
  await refused(store.putBlob({ name: "two" }, data), "");
  await store.destroy();
}

async function fast(nc, jsm) {
  await jsm.streams.add({ name: "FAST", subjects: ["fast.>"], allow_batched: true });
  for (const allowGaps of [false, true]) {
    const batch = await startFastIngest(nc, "fast.0", "0", { ackInterval: 50, allowGaps });
    for (let i = 1; i < 2000; i++) {
      await batch.add(`fast.${i % 5}`, `${i}`);
      if (i === 1000) {
        const { ackSeq } = await batch.ping();
        check(ackSeq > 800, "ping", ackSeq);
      }
    }
    const ack = allowGaps ? await batch.end() : await batch.last("fast.end", "end");
    check(ack.count === (allowGaps ? 2000 : 2001), "count", ack);
    check((await jsm.streams.info("FAST")).state.last_seq === ack.seq, "seq", ack);
  }
  check((await jsm.streams.getMessage("FAST", { seq: 1500 })).string() === "1499", "stored");
}

const nc = await connect({ servers: url });
const jsm = await jetstreamManager(nc);
const js = jetstream(nc);
await pulled(jsm, js);
await ordered(jsm, js);
await managed(jsm, js);
await keys(nc);
await objects(nc);
await fast(nc, jsm);
await nc.close();
console.log("ok");
