// Dead letters: grouped by reason, with a sample; sent back one by one, some, or all at a rate.

import { at, get, link, may, post, query, remove, useGet, useLive } from "../api.js";
import {
  Bar, Button, Count, Empty, Field, Head, Loaded, Notice, Panel, Table, Tag, Time, confirm,
  count, plural,
} from "../parts.js";
import { html, useEffect, useState } from "../vendor/ui.js";
import { Message, preview } from "./messages.js";

const EACH_LIMIT = 50; // messages of a group shown at once
const EACH_STEP = 200; // messages of the topic asked for at once
const POLL_MS = 1000; // while messages are being sent back
const REASONS = {
  requeue: "Requeued by the consumer",
  timeout: "Not answered in time",
  close: "Connection closed before an answer",
  returned: "Returned without an answer",
  unreadable: "Cannot be read",
  unknown: "Unknown reason",
};

function sendBack(topic, { seqs, total, done }) {
  const some = seqs ? plural(seqs.length, "message") : `all ${plural(total, "message")}`;
  confirm({
    title: `Send back ${some}?`,
    text: `They return from ${topic} to where they came from.`,
    verb: "Send back",
    initial: { rate: "", to: "channel" },
    fields: (values, change) => html`
      <div class="form">
        <${Field} label="Messages per second" hint="Empty: as fast as possible">
          <input type="number" min="1" value=${values.rate} autofocus
            onInput=${(event) => change("rate", event.target.value)} /><//>
        <${Field} label="Back to">
          <select value=${values.to} onChange=${(event) => change("to", event.target.value)}>
            <option value="channel">the channel that gave up</option>
            <option value="topic">the topic, for all its channels</option>
          </select><//>
      </div>`,
    act: async ({ rate, to }) => {
      const wanted = { to };
      if (seqs) wanted.seqs = seqs;
      if (rate) wanted.rate = Number(rate);
      await post(`${at("dead-letters", topic)}/requeue`, wanted);
      done();
      return undefined;
    },
  });
}

function Job({ job, topic, done }) {
  const [now, setNow] = useState(job);
  useEffect(() => setNow(job), [job]);
  useEffect(() => {
    if (!now.running) return undefined;
    const timer = setTimeout(async () => {
      const answer = await get(`${at("dead-letters", topic)}?scan=1`).catch(() => null);
      const next = answer?.requeue ?? now;
      setNow({ ...next });
      if (!next.running) done();
    }, POLL_MS);
    return () => clearTimeout(timer);
  }, [now]);
  const moved = `${count(now.moved)} of ${count(now.total)} sent back`;
  const stop = async () => setNow(await remove(`${at("dead-letters", topic)}/requeue`));
  return html`
    <${Notice} kind=${now.failed ? "bad" : now.running ? "" : "good"}
      title=${now.running ? "Sending back." : now.failed ? "Stopped." : "Sent back."}>
      ${moved}${now.kept ? `, ${count(now.kept)} kept: nowhere to send them` : ""}
      ${now.failed && ` ${now.failed}`}
      ${now.running && html` <${Button} kind="small" onClick=${stop}>Stop<//>`}
    <//>
    ${now.running && html`<${Bar} part=${now.total ? now.moved / now.total : 0} label=${moved} />`}`;
}

// Without its first message: a list that is open stays so when some of it are sent back.
const nameOf = (group) => `${group.reason} ${group.origin_topic} ${group.origin_channel}`;

/** The messages with these sequences, asked for in as few requests as they need. */
async function messagesOf(topic, seqs, signal) {
  const found = new Map();
  for (let place = 0; place < seqs.length;) {
    const { messages, next } = await get(
      `${at("topics", topic)}/messages${query({ from: seqs[place], limit: EACH_STEP })}`, signal);
    for (const message of messages) found.set(message.seq, message);
    const seen = next ?? Infinity;
    const before = place;
    while (place < seqs.length && seqs[place] < seen) place++;
    if (place === before) break;
  }
  return seqs.map((seq) => found.get(seq)).filter(Boolean);
}

/** The messages of a group one by one: each can be looked at, chosen, sent back. */
function Each({ topic, group, chosen, choose, act, done }) {
  const [many, show] = useState(EACH_LIMIT);
  const [found, setFound] = useState({ messages: [] });
  const [opened, open] = useState(null);
  const wanted = group.seqs.slice(0, many);
  useEffect(() => {
    const stop = new AbortController();
    messagesOf(topic, wanted, stop.signal).then(
      (messages) => setFound({ messages }),
      (error) => error.name !== "AbortError" && setFound((old) => ({ ...old, error })),
    );
    return () => stop.abort();
  }, [topic, wanted.join()]);
  const isOpen = (row) => row.seq === opened;
  const turn = (row) => open(isOpen(row) ? null : row.seq);
  const columns = [
    act && { id: "chosen", title: "", kind: "tight", cell: (row) => html`<input type="checkbox"
      aria-label=${`Select message ${row.seq}`} checked=${chosen.has(row.seq)}
      onChange=${(event) => choose([row.seq], event.target.checked)} />` },
    { id: "seq", title: "Sequence", num: true, head: true, kind: "tight",
      cell: (row) => html`<button class="link" aria-expanded=${String(isOpen(row))}
        onClick=${() => turn(row)}>${row.seq}</button>` },
    { id: "time", title: "Time", kind: "tight", less: true,
      cell: (row) => html`<span class="num"><${Time} at=${row.timestamp} /></span>` },
    { id: "body", title: "Body", kind: "text", cell: preview },
  ].filter(Boolean);
  return html`
    ${found.error && html`<${Notice} kind="bad" title="Cannot read the messages.">
      ${found.error.message}<//>`}
    <${Table} label="Messages" rows=${found.messages} columns=${columns} keyOf=${(row) => row.seq}
      onRow=${turn} selected=${isOpen}
      detail=${(row) => html`<${Message} message=${row} name=${`${topic}-${row.seq}.bin`}
        onClose=${() => open(null)} actions=${act && html`<${Button} kind="small"
          onClick=${() => sendBack(topic, { seqs: [row.seq], done })}>Send back this one<//>`} />`} />
    ${group.seqs.length > many && html`<div><${Button} kind="small"
      onClick=${() => show(many + EACH_LIMIT)}>Show more<//></div>`}`;
}

function Group({ topic, group, chosen, choose, act, done }) {
  const [open, show] = useState(false);
  const [each, list] = useState(false);
  const all = group.seqs.every((seq) => chosen.has(seq));
  const one = group.sample.seq;
  return html`
    <${Panel} wide=${each} title=${REASONS[group.reason] ?? (group.reason || "Without a reason")}
      note=${plural(group.count, "message")}
      actions=${act && html`
        <label class="check"><input type="checkbox" checked=${all}
          onChange=${() => choose(group.seqs, !all)} />Select</label>
        <${Button} kind="small"
          onClick=${() => sendBack(topic, { seqs: group.seqs, done })}>Send back<//>`}>
      <div class="stack">
        <p class="small">
          ${group.origin_topic
            ? html`From <a href=${link("channel", {
                topic: group.origin_topic, channel: group.origin_channel })}>
                ${group.origin_topic} / ${group.origin_channel}</a>`
            : "Of unknown origin"}
          <span class="muted">, <${Time} at=${group.first} /> to <${Time} at=${group.last} /></span>
        </p>
        ${each
          ? html`<div><button class="link" onClick=${() => list(false)}>Hide the messages</button></div>
              <${Each} topic=${topic} group=${group} act=${act} chosen=${chosen} choose=${choose}
                done=${done} />`
          : open
          ? html`<${Message} message=${group.sample} name=${`${topic}-${one}.bin`}
              onClose=${() => show(false)}
              actions=${act && html`<${Button} kind="small"
                onClick=${() => sendBack(topic, { seqs: [one], done })}>Send back this one<//>`} />`
          : html`<pre class="dump" tabindex="0" aria-label="Sample">${preview(group.sample)}</pre>
              <div class="actions">
                <button class="link" onClick=${() => show(true)}>Open the sample</button>
                <button class="link" onClick=${() => list(true)}>List the messages</button>
              </div>`}
      </div>
    <//>`;
}

function Letters({ topic }) {
  const { data, error, refresh } = useGet(`${at("dead-letters", topic)}${query({ scan: 1000 })}`);
  const [chosen, setChosen] = useState(new Set());
  const act = may("operator");
  const choose = (seqs, on) => {
    const next = new Set(chosen);
    for (const seq of seqs) on ? next.add(seq) : next.delete(seq);
    setChosen(next);
  };
  const done = () => {
    setChosen(new Set());
    refresh();
  };
  return html`
    <div class="stack">
      <${Head} title=${topic} crumbs=${html`<a href=${link("dead-letters")}>Dead letters</a>`}
        tags=${data && html`<span class="muted">${count(data.waiting)} waiting</span>`}>
        <${Button} onClick=${refresh}>Look again<//>
        <a class="button" href=${link("topic", { topic, view: "messages" })}>All messages</a>
        ${act && data?.waiting > 0 && html`
          <${Button} disabled=${!chosen.size}
            onClick=${() => sendBack(topic, { seqs: [...chosen], done })}>
            Send back selected${chosen.size ? ` (${count(chosen.size)})` : ""}<//>
          <${Button} kind="main"
            onClick=${() => sendBack(topic, { total: data.waiting, done })}>Send back all<//>`}
      <//>
      ${data?.requeue && html`<${Job} job=${data.requeue} topic=${topic} done=${done} />`}
      <${Loaded} data=${data} error=${error} retry=${refresh} what="the dead letters">
        ${data && html`
          ${!data.complete && html`<${Notice} kind="warn" title="These are not all.">
            ${count(data.scanned)} messages were looked at.<//>`}
          ${data.groups.length
            ? html`<div class="grid">${data.groups.map((group) => html`
                <${Group} key=${nameOf(group)} topic=${topic} group=${group} act=${act}
                  chosen=${chosen} choose=${choose} done=${done} />`)}</div>`
            : html`<div class="panel"><${Empty} title="No dead letters wait here.">
                Messages that a channel gave up on appear here.<//></div>`}`}
      <//>
    </div>`;
}

const TOPICS = [
  { id: "topic", title: "Topic", head: true, kind: "name",
    cell: (row) => html`<a href=${link("dead-letters", { topic: row.topic })}>${row.topic}</a>` },
  { id: "messages", title: "Messages", num: true,
    cell: (row) => html`<${Count} value=${row.messages} />` },
];
const POLICIES = [
  { id: "channel", title: "Channel", head: true, kind: "name",
    cell: (row) => html`<a href=${link("channel", {
      topic: row.topic, channel: row.channel, view: "letters" })}>${row.topic} / ${row.channel}</a>` },
  { id: "attempts", title: "Attempts", num: true, cell: (row) => count(row.max_attempts) },
  { id: "to", title: "Moved to", kind: "name", cell: (row) => html`
    <a href=${link("dead-letters", { topic: row.dead_letter_topic })}>${row.dead_letter_topic}</a>` },
  { id: "count", title: "Moved", num: true,
    cell: (row) => html`<${Count} value=${row.dead_letters} />` },
  { id: "state", title: "State", cell: (row) => row.failing
    ? html`<${Tag} kind="bad">cannot be moved<//>` : html`<span class="muted">fine</span>` },
];

function Topics() {
  const { data, error, retry } = useLive("/v1/dead-letters");
  return html`
    <div class="stack">
      <${Head} title="Dead letters"
        lead="Messages that a channel gave up on, after as many attempts as its policy allows." />
      <${Loaded} data=${data} error=${error} retry=${retry} what="the dead letters">
        ${data && html`
          ${!data.complete && html`<${Notice} kind="warn" title="This list is not complete.">
            The broker still reads its topics.<//>`}
          <div class="grid">
            <${Panel} bare title="Topics">
              <${Table} label="Dead letter topics" columns=${TOPICS} rows=${data.topics}
                keyOf=${(row) => row.topic}
                onRow=${(row) => { location.hash = link("dead-letters", { topic: row.topic }); }}
                empty=${html`<${Empty} title="There are no dead letters.">
                  Set a policy on the page of a channel, or max_attempts of a topic in the configuration.
                <//>`} />
            <//>
            <${Panel} bare title="Policies">
              <${Table} label="Policies" columns=${POLICIES} rows=${data.policies}
                keyOf=${(row) => `${row.topic} ${row.channel}`}
                empty=${html`<${Empty} title="No channel gives up.">
                  Messages are attempted until a consumer finishes them.<//>`} />
            <//>
          </div>`}
      <//>
    </div>`;
}

export const Page = ({ topic }) =>
  topic === undefined ? html`<${Topics} />` : html`<${Letters} key=${topic} topic=${topic} />`;
