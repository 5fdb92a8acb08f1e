// A session of nats.ws, the same in Node and in a browser: what it saw, or its first problem.
import { connect, headers, StringCodec } from "./nats.js";

function need(fine, what) {
  if (!fine) throw new Error(what);
}

export async function session(servers, packed) {
  const text = StringCodec();
  const nc = await connect({ servers, reconnectTimeWait: 50, maxReconnectAttempts: 50 });
  const seen = [];
  const all = nc.subscribe("session.>", {
    callback: (problem, message) => seen.push(text.decode(message.data)),
  });
  nc.subscribe("echo", {
    callback: (problem, message) => message.respond(message.data, { headers: message.headers }),
  });
  await nc.flush();

  nc.publish("session.one", text.encode("first"));
  const marked = headers();
  marked.set("mark", "yes");
  const answer = await nc.request("echo", text.encode("again?"), { timeout: 5000, headers: marked });
  need(text.decode(answer.data) === "again?", "answer");
  need(answer.headers.get("mark") === "yes", "headers");

  const large = new Uint8Array(700_000).map((_, i) => (packed ? i % 251 : Math.random() * 256));
  const back = await nc.request("echo", large, { timeout: 20000 });
  need(back.data.length === large.length, "length");
  need(back.data.every((byte, i) => byte === large[i]), "bytes");

  const states = nc.status()[Symbol.asyncIterator]();
  const again = (async () => {
    for (;;) {
      const { value } = await states.next();
      if (value.type === "reconnect") return;
    }
  })();
  nc.publish("cut", text.encode(String(nc.info.client_id)));
  await again;
  nc.publish("session.two", text.encode("second"));
  await nc.flush();
  need(all.getProcessed() === 2, "messages after the cut");
  await nc.drain();
  return seen.join();
}
