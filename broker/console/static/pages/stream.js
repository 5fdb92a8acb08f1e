// A stream, a bucket or an object store: what it holds, its consumers, and what can be done to it.

import {
  at, get, link, may, patch, post, put, query, remove, replace, useHistory, useLive,
} from "../api.js";
import {
  Button, Chart, Choice, Count, Empty, Facts, Field, Head, Loaded, Notice, Pages, Panel, Search,
  Table, Tag, Tile, Time, bytes, compact, confirm, count, duration, plural, rate,
} from "../parts.js";
import { html, useEffect, useRef, useState } from "../vendor/ui.js";
import { KINDS, shortName } from "./jetstream.js";
import { Message, preview } from "./messages.js";

const LIMIT = 50;
const EMPTY_PAGES_MAX = 20; // of a filter, before the page asks whether to go on
const NAMES = { stream: "the stream", kv: "the bucket", object: "the object store" };
const number = (id, title, more = {}) => ({
  id, title, num: true, cell: (row) => html`<${Count} value=${row[id]} />`, ...more,
});
const mono = (text) => html`<span class="mono">${text}</span>`;

// --- what can be done ----------------------------------------------------------------------------

const erase = (path, data) =>
  confirm({
    title: `Delete ${NAMES[data.kind]} ${shortName(data)}?`,
    text: "Its messages and consumers are deleted. This cannot be undone.",
    verb: "Delete",
    danger: true,
    typed: data.name,
    act: async () => {
      await remove(`${path}${query({ confirm: data.name })}`);
      location.hash = link("jetstream");
      return `Deleted: ${data.name}.`;
    },
  });

const purge = (path, data) =>
  confirm({
    title: `Delete messages of ${shortName(data)}?`,
    text: "All of them, or those that fit everything below. This cannot be undone.",
    verb: "Delete messages",
    danger: true,
    typed: data.name,
    initial: { subject: "", before: "", keep: "" },
    fields: (values, change) => html`<div class="form">
      <${Field} label="Of this subject" hint="Wildcards are allowed">
        <input type="text" value=${values.subject} placeholder="all" spellcheck=${false}
          onInput=${(event) => change("subject", event.target.value)} /><//>
      <${Field} label="Before sequence"><input type="number" min="1" value=${values.before}
        disabled=${values.keep !== ""}
        onInput=${(event) => change("before", event.target.value)} /><//>
      <${Field} label="All but the newest"><input type="number" min="1" value=${values.keep}
        disabled=${values.before !== ""}
        onInput=${(event) => change("keep", event.target.value)} /><//>
    </div>`,
    act: async ({ subject, before, keep }) => {
      const wanted = {};
      if (subject) wanted.subject = subject;
      if (before) wanted.before = Number(before);
      if (keep) wanted.keep = Number(keep);
      const { purged } = await post(`${path}/purge${query({ confirm: data.name })}`, wanted);
      return `Deleted: ${plural(purged, "message")}.`;
    },
  });

const change = (path, data) =>
  confirm({
    title: `Settings of ${shortName(data)}`,
    text: "Fields of the configuration as JSON; those that are not named stay as they are.",
    verb: "Save",
    initial: { text: "{\n  \"description\": \"\"\n}" },
    fields: (values, set) => html`<${Field} label="Changes" wide>
      <textarea value=${values.text} autofocus spellcheck=${false}
        onInput=${(event) => set("text", event.target.value)} /><//>`,
    act: async ({ text }) => {
      await patch(path, JSON.parse(text));
      return `Saved the settings of ${data.name}.`;
    },
  });

const pause = (path, row) =>
  confirm({
    title: row.paused ? `Resume ${row.name}?` : `Pause ${row.name}?`,
    text: row.paused
      ? "Messages are delivered again."
      : "Nothing is delivered until the time below, or until it is resumed.",
    verb: row.paused ? "Resume" : "Pause",
    initial: { until: "" },
    fields: (values, set) => !row.paused && html`<${Field} label="Until">
      <input type="datetime-local" step="1" required value=${values.until}
        onInput=${(event) => set("until", event.target.value)} /><//>`,
    act: async ({ until }) => {
      const consumer = `${path}/consumers/${encodeURIComponent(row.name)}`;
      if (row.paused) await post(`${consumer}/unpause`);
      else await post(`${consumer}/pause`, { until: new Date(until).toISOString() });
      return row.paused ? `Resumed: ${row.name}.` : `Paused: ${row.name}.`;
    },
  });

const eraseConsumer = (path, name) =>
  confirm({
    title: `Delete the consumer ${name}?`,
    text: "Its positions are deleted. This cannot be undone.",
    verb: "Delete",
    danger: true,
    typed: name,
    act: async () => {
      await remove(`${path}/consumers/${encodeURIComponent(name)}${query({ confirm: name })}`);
      return `Deleted: ${name}.`;
    },
  });

const store = (path, known, done) =>
  confirm({
    title: known ? `Value of ${known.key}` : "Store a key",
    verb: "Store",
    initial: { key: known?.key ?? "", body: known?.body ?? "" },
    fields: (values, set) => html`
      ${!known && html`<${Field} label="Key"><input type="text" required autofocus
        value=${values.key} autocomplete="off" spellcheck=${false}
        onInput=${(event) => set("key", event.target.value)} /><//>`}
      <${Field} label="Value" wide><textarea value=${values.body} spellcheck=${false}
        onInput=${(event) => set("body", event.target.value)} /><//>`,
    act: async ({ key, body }) => {
      const { revision } = await put(`${path}/keys/${encodeURIComponent(key)}`, { body });
      done();
      return `Stored: ${key}, revision ${count(revision)}.`;
    },
  });

const eraseKey = (path, key, done) =>
  confirm({
    title: `Delete the key ${key}?`,
    text: "Clients no longer find it.",
    verb: "Delete",
    danger: true,
    typed: key,
    initial: { purge: false },
    fields: (values, set) => html`<label class="check"><input type="checkbox" checked=${values.purge}
      onChange=${(event) => set("purge", event.target.checked)} />Delete its history too</label>`,
    act: async ({ purge: all }) => {
      await remove(`${path}/keys/${encodeURIComponent(key)}${query({ confirm: key, purge: all })}`);
      done();
      return `Deleted: ${key}.`;
    },
  });

const eraseMessage = (path, seq, done) =>
  confirm({
    title: `Delete message ${count(seq)}?`,
    text: "Its bytes are overwritten. This cannot be undone.",
    verb: "Delete",
    danger: true,
    act: async () => {
      await remove(`${path}/messages/${seq}${query({ confirm: String(seq) })}`);
      done();
      return `Deleted: message ${count(seq)}.`;
    },
  });

// --- messages, keys, objects ---------------------------------------------------------------------

/** Messages below `path`, asked for page by page: { found, look(wanted), more(), again() }. */
function useMessages(path, first) {
  const [found, setFound] = useState({ messages: [] });
  const stop = useRef(null);
  const asked = useRef(first);
  const ask = async (wanted, from, kept) => {
    stop.current?.abort();
    const mine = (stop.current = new AbortController());
    asked.current = wanted;
    setFound((old) => ({ ...old, busy: true, error: null }));
    let messages = kept;
    let answer;
    let next = from;
    try {
      for (let page = 0; page < EMPTY_PAGES_MAX; page++) {
        const started = next !== undefined;
        answer = await get(`${path}/messages${query({
          ...wanted, limit: LIMIT,
          from: started ? next : wanted.from, time: started ? undefined : wanted.time,
        })}`, mine.signal);
        messages = [...messages, ...answer.messages];
        next = answer.next ?? undefined;
        if (messages.length - kept.length >= LIMIT || next === undefined) break;
      }
      setFound({ messages, next, first: answer.first_seq, last: answer.last_seq });
    } catch (error) {
      if (error.name !== "AbortError") setFound({ messages, error });
    }
  };
  useEffect(() => {
    ask(first, undefined, []);
    return () => stop.current?.abort();
  }, [path]);
  return {
    found,
    look: (wanted) => ask(wanted, undefined, []),
    more: () => ask(asked.current, found.next, found.messages),
    again: () => ask(asked.current, undefined, []),
  };
}

/** The table of what was found, with a row that opens. */
function Found({ label, what, found, more, retry, columns, detail, empty }) {
  const [chosen, choose] = useState(null);
  const isOpen = (row) => row.seq === chosen;
  const turn = (row) => choose(isOpen(row) ? null : row.seq);
  return html`
    ${found.error && html`<${Notice} kind="bad" title="Cannot read the messages." onRetry=${retry}>
      ${found.error.message}<//>`}
    ${found.messages.length > 0 && html`<${Table} label=${label} rows=${found.messages}
      columns=${columns(turn, isOpen)} keyOf=${(row) => row.seq} onRow=${turn} selected=${isOpen}
      detail=${(row) => detail(row, () => choose(null))} />`}
    ${!found.busy && !found.error && !found.messages.length && empty}
    ${(found.next !== undefined || found.messages.length > 0) && html`<div class="foot">
      <span>${plural(found.messages.length, what)} shown</span>
      ${found.next !== undefined && html`<div class="actions">
        <${Button} kind="small" disabled=${found.busy} onClick=${more}>Show more<//></div>`}
    </div>`}`;
}

const opener = (title, text) => (turn, isOpen) => ({
  id: "open", title, head: true, kind: "name",
  cell: (row) => html`<button class="link" aria-expanded=${String(isOpen(row))}
    onClick=${() => turn(row)}>${text(row)}</button>`,
});
const TIME = { id: "time", title: "Time", kind: "tight", less: true,
  cell: (row) => html`<span class="num"><${Time} at=${row.timestamp} fractions /></span>` };
const SIZE = { id: "size", title: "Size", num: true, kind: "tight", less: true,
  cell: (row) => bytes(row.body_bytes) };
const BODY = { id: "body", title: "Body", kind: "text", cell: preview };
const SEQ = { id: "seq", title: "Sequence", num: true, kind: "tight", cell: (row) => count(row.seq) };

const seqOpener = opener("Sequence", (row) => row.seq);
const messageColumns = (turn, isOpen) => [
  { ...seqOpener(turn, isOpen), num: true, kind: "tight" },
  { id: "subject", title: "Subject", kind: "name", cell: (row) => mono(row.subject) },
  TIME, SIZE, BODY,
];

function Messages({ path, data }) {
  const [wanted, want] = useState({
    newest_first: true, from: "", time: "", subject: "", contains: "", header: "",
  });
  const asked = (values) => ({
    ...values, time: values.time && new Date(values.time).toISOString(),
  });
  const { found, look, more, again } = useMessages(path, asked(wanted));
  const field = (key) => ({
    value: wanted[key],
    onInput: (event) => want({ ...wanted, [key]: event.target.value }),
  });
  const go = (event) => {
    event?.preventDefault();
    look(asked(wanted));
  };
  const order = (value) => {
    const next = { ...wanted, newest_first: value === "newest" };
    want(next);
    look(asked(next));
  };
  const mayDelete = may("operator") && !data.sealed && !data.config.deny_delete;
  const note = found.last > 0
    ? `Sequences ${count(found.first)} to ${count(found.last)}; looking does not consume`
    : undefined;
  return html`
    <${Panel} bare title="Messages" note=${note}>
      <form class="body form" onSubmit=${go}>
        <${Field} label="Subject"><input type="search" data-filter ...${field("subject")}
          placeholder="all; wildcards are allowed" spellcheck=${false} /><//>
        <${Field} label="Body contains"><input type="search" ...${field("contains")}
          spellcheck=${false} /><//>
        <${Field} label="Header"><input type="text" ...${field("header")}
          placeholder="Name or Name: value" spellcheck=${false} /><//>
        <${Field} label="From sequence"><input type="number" min="1" ...${field("from")}
          placeholder=${wanted.newest_first ? "newest" : "oldest"} /><//>
        <${Field} label="From time"><input type="datetime-local" step="1" ...${field("time")} /><//>
        <div class="actions wide">
          <${Choice} label="Order" value=${wanted.newest_first ? "newest" : "oldest"} onChange=${order}
            options=${[["newest", "Newest first"], ["oldest", "Oldest first"]]} />
          <button class="button" disabled=${found.busy}>${found.busy ? "Looking …" : "Look"}</button>
        </div>
      </form>
      <${Found} label="Messages" what="message" found=${found} more=${more} retry=${go}
        columns=${messageColumns}
        detail=${(row, close) => html`<${Message} key=${row.seq} message=${row} onClose=${close}
          name=${`${data.name}-${row.seq}.bin`} actions=${mayDelete && html`<${Button}
            kind="small danger" onClick=${() => eraseMessage(path, row.seq, again)}>Delete<//>`} />`}
        empty=${html`<${Empty} title="No messages here.">
          Publish to one of its subjects, or change what you look for.<//>`} />
    <//>`;
}

const OPERATIONS = { DEL: "deleted", PURGE: "purged" };
const operation = (row) =>
  OPERATIONS[row.headers["KV-Operation"]?.[0]] ??
  (row.headers["Nats-Marker-Reason"] ? "expired" : undefined);

function History({ path, subject }) {
  const { found, more, again } = useMessages(path, { subject, newest_first: true });
  const columns = () => [
    { ...SEQ, title: "Revision", head: true }, TIME,
    { id: "operation", title: "Operation", kind: "tight",
      cell: (row) => (operation(row) ? html`<${Tag} kind="warn">${operation(row)}<//>` : "stored") },
    SIZE, { ...BODY, title: "Value" },
  ];
  return html`<${Found} label="History" what="value" found=${found} more=${more} retry=${again}
    columns=${columns} detail=${(row, close) => html`<${Message} message=${row} onClose=${close}
      name=${`revision-${row.seq}.bin`} />`} />`;
}

function Key({ path, bucket, row, prefix, close, done }) {
  const [history, show] = useState(false);
  const key = row.subject.slice(prefix.length);
  const writes = may("operator") && !bucket.sealed && bucket.mirror === null;
  const actions = html`
    ${bucket.config.max_msgs_per_subject !== 1 && html`<${Button} kind="small"
      onClick=${() => show(!history)}>${history ? "Value" : "History"}<//>`}
    ${writes && row.encoding === "text" && !row.truncated && html`<${Button} kind="small"
      onClick=${() => store(path, { key, body: row.body }, done)}>Change<//>`}
    ${writes && html`<${Button} kind="small danger"
      onClick=${() => eraseKey(path, key, done)}>Delete<//>`}`;
  return history
    ? html`<${Panel} bare title=${`History of ${key}`} actions=${html`${actions}
        <${Button} kind="small" onClick=${close}>Close<//>`}>
        <${History} path=${path} subject=${row.subject} /><//>`
    : html`<${Message} message=${row} name=${key} onClose=${close} actions=${actions} />`;
}

function Keys({ path, data }) {
  const prefix = `$KV.${shortName(data)}.`;
  const wanted = { latest: true, newest_first: true };
  const [text, setText] = useState("");
  const { found, look, more, again } = useMessages(path, wanted);
  const named = opener("Key", (row) => row.subject.slice(prefix.length));
  const columns = (turn, isOpen) => [
    named(turn, isOpen),
    { id: "state", title: "State", kind: "tight",
      cell: (row) => (operation(row) ? html`<${Tag} kind="warn">${operation(row)}<//>` : "") },
    { ...SEQ, title: "Revision" }, { ...TIME, title: "Changed" }, SIZE, { ...BODY, title: "Value" },
  ];
  return html`
    <${Panel} bare title="Keys" note="the newest change first; looking does not consume"
      actions=${html`
        <${Search} label="Filter by key" value=${text} onChange=${(value) => {
          setText(value);
          look({ ...wanted, name: value && value });
        }} />
        <${Button} kind="small" onClick=${again}>Refresh<//>
        ${may("operator") && data.mirror === null && html`<${Button} kind="small"
          onClick=${() => store(path, null, again)}>Store a key<//>`}`}>
      <${Found} label="Keys" what="key" found=${found} more=${more} retry=${again}
        columns=${columns}
        detail=${(row, close) => html`<${Key} key=${row.seq} path=${path} bucket=${data} row=${row}
          prefix=${prefix} close=${close} done=${again} />`}
        empty=${html`<${Empty} title=${text ? "No key matches." : "The bucket is empty."}>
          ${text ? "Change the filter." : html`Store a key here, or with <code>nats kv put</code>.`}<//>`} />
    <//>`;
}

// Any client may have written this message, so each part of it may be anything.
const kept = (value, kind) => (typeof value === kind ? value : undefined);
const asText = (value) => (typeof value === "string" ? value : JSON.stringify(value));
const pairs = (value) => (value && typeof value === "object" ? Object.entries(value) : [])
  .map(([key, inner]) => [key, [inner].flat().map(asText).join(", ")]);

function parsed(row) {
  let about = null;
  try {
    about = JSON.parse(row.body);
  } catch {
    // it describes no object
  }
  const link = about?.options?.link;
  return {
    name: kept(about?.name, "string") ?? row.subject,
    size: kept(about?.size, "number"),
    chunks: kept(about?.chunks, "number"),
    digest: kept(about?.digest, "string"),
    description: kept(about?.description, "string"),
    deleted: about?.deleted === true,
    target: link ? [link.bucket, link.name].filter(Boolean).map(asText).join(" / ") : "",
    more: [...pairs(about?.headers), ...pairs(about?.metadata)],
  };
}

function Objects({ path, data }) {
  const bucket = shortName(data);
  const { found, more, again } = useMessages(path, {
    latest: true, newest_first: true, subject: `$O.${bucket}.M.>`,
  });
  const content = (about) => `${path}/objects/${encodeURIComponent(about.name)}`;
  const named = opener("Object", (row) => parsed(row).name);
  const columns = (turn, isOpen) => [
    named(turn, isOpen),
    { id: "state", title: "State", kind: "tight", cell: (row) => {
      const about = parsed(row);
      return about.deleted ? html`<${Tag} kind="warn">deleted<//>`
        : about.target ? html`<${Tag}>link<//>` : "";
    } },
    { id: "size", title: "Size", num: true, kind: "tight", cell: (row) => bytes(parsed(row).size) },
    { id: "chunks", title: "Chunks", num: true, less: true,
      cell: (row) => count(parsed(row).chunks) },
    { ...TIME, title: "Stored" },
    { id: "description", title: "Description", kind: "value", less: true,
      cell: (row) => parsed(row).description ?? "" },
  ];
  const detail = (row, close) => {
    const about = parsed(row);
    return html`<${Panel} title=${about.name} actions=${html`
        ${!about.deleted && !about.target && html`<a class="button small" href=${content(about)}
          download>Download</a>`}
        <${Button} kind="small" onClick=${close}>Close<//>`}>
      <${Facts} rows=${[
        ["Size", bytes(about.size)],
        ["Chunks", count(about.chunks)],
        about.digest && ["Digest", mono(about.digest)],
        about.target && ["Link to", mono(about.target)],
        about.description && ["Description", about.description],
        ...about.more.map(([key, value]) => [mono(key), mono(value)]),
      ]} />
    <//>`;
  };
  return html`
    <${Panel} bare title="Objects" note="looking does not consume"
      actions=${html`<${Button} kind="small" onClick=${again}>Refresh<//>`}>
      <${Found} label="Objects" what="object" found=${found} more=${more} retry=${again}
        columns=${columns} detail=${detail}
        empty=${html`<${Empty} title="There are no objects.">
          Store one with <code>nats object put</code>.<//>`} />
    <//>`;
}

// --- consumers -----------------------------------------------------------------------------------

const consumerColumns = (path) => [
  { id: "name", title: "Consumer", head: true, kind: "name",
    cell: (row) => html`${row.name} ${!row.durable && html`<${Tag}>ephemeral<//>`}
      ${row.paused && html` <${Tag} kind="warn">paused<//>`}` },
  { id: "way", title: "Delivery", kind: "tight", less: true, cell: (row) => (row.push ? "push" : "pull") },
  { id: "filters", title: "Subjects", kind: "name", less: true,
    cell: (row) => mono(row.filters.join(" ") || "all") },
  { id: "ack", title: "Acks", kind: "tight least", less: true, cell: (row) => row.ack_policy },
  number("pending", "Not delivered"),
  number("ack_pending", "Not acked"),
  number("redelivered", "Redelivered", { less: true, kind: "least" }),
  number("waiting", "Requests", { less: true, kind: "least" }),
  { id: "out_rate", title: "Out /s", num: true,
    cell: (row) => html`<${Count} value=${row.out_rate} as=${rate} />` },
  number("ack_floor", "Acked up to", { less: true }),
  { id: "actions", title: "", kind: "tight end", cell: (row) => html`
    ${may("operator") && html`<${Button} kind="small" onClick=${() => pause(path, row)}>
      ${row.paused ? "Resume" : "Pause"}<//> `}
    ${may("admin") && html`<${Button} kind="small danger"
      onClick=${() => eraseConsumer(path, row.name)}>Delete<//>`}` },
];

function Consumers({ path, filter = "", offset = "0" }) {
  const start = Number(offset) || 0;
  const { data, error, retry } = useLive(
    `${path}/consumers${query({ filter, offset: start, limit: LIMIT })}`);
  return html`
    <${Panel} bare title="Consumers" actions=${html`<${Search} label="Filter by name"
      value=${filter} onChange=${(text) => replace({ filter: text, offset: "" })} />`}>
      <${Loaded} data=${data} error=${error} retry=${retry} what="the consumers">
        ${data && html`
          <${Table} label="Consumers" columns=${consumerColumns(path)} rows=${data.consumers}
            keyOf=${(row) => row.name}
            empty=${html`<${Empty} title=${filter ? "No consumer matches." : "There are no consumers."}>
              Clients create them when they begin to read.<//>`} />
          ${data.matched > LIMIT && html`<${Pages} offset=${data.offset} limit=${LIMIT}
            total=${data.matched} what="consumer"
            onOffset=${(value) => replace({ offset: value || "" })} />`}`}
      <//>
    <//>`;
}

// --- the page ------------------------------------------------------------------------------------

const NANOSECONDS = new Set(["max_age", "duplicate_window", "subject_delete_marker_ttl"]);
const flat = (config) =>
  Object.entries(config).map(([key, value]) => ({
    key, value: typeof value === "string" ? value : JSON.stringify(value),
    more: NANOSECONDS.has(key) && value > 0 ? duration(value / 1e9) : "",
  }));
const SETTINGS = [
  { id: "key", title: "Setting", head: true, cell: (row) => mono(row.key) },
  { id: "value", title: "Value", kind: "text", cell: (row) => html`
    ${mono(row.value)}${row.more && html` <span class="muted">${row.more}</span>`}` },
];

const origin = (one) => [
  one.name,
  `${count(one.lag)} behind${one.active >= 0 ? "" : ", never connected"}`,
];

function Settings({ path, data }) {
  return html`
    <div class="grid">
      <${Panel} bare title="Settings" actions=${may("admin") && html`
        <${Button} kind="small" onClick=${() => change(path, data)}>Change<//>`}>
        <${Table} label="Settings" columns=${SETTINGS} rows=${flat(data.config)}
          keyOf=${(row) => row.key} />
      <//>
      <${Panel} title="State">
        <${Facts} rows=${[
          ["Account", data.account],
          ["Created", html`<${Time} at=${data.created} />`],
          ["First sequence", count(data.first_seq)],
          ["Last sequence", count(data.last_seq)],
          ["Oldest message", html`<${Time} at=${data.first} />`],
          ["Deleted between", count(data.deleted)],
          data.lost > 0 && ["Unreadable", html`<${Tag} kind="bad">${count(data.lost)}<//>`],
          data.mirror && ["Mirror of", origin(data.mirror).join(", ")],
          ...data.sources.map((one) => ["Source", origin(one).join(", ")]),
        ]} />
      <//>
    </div>`;
}

const VIEWS = {
  stream: [["messages", "Messages"], ["consumers", "Consumers"], ["settings", "Settings"]],
  kv: [["keys", "Keys"], ["messages", "Messages"], ["consumers", "Watchers"], ["settings", "Settings"]],
  object: [["objects", "Objects"], ["messages", "Messages"], ["consumers", "Watchers"],
    ["settings", "Settings"]],
};

function Stream({ account, stream, view, filter, offset }) {
  const path = at("jetstream", "accounts", account, "streams", stream);
  const { data, error, retry } = useLive(path);
  const crumbs = html`<a href=${link("jetstream")}>JetStream</a>`;
  const history = useHistory(`${account} ${stream}`,
    data && { of: data, in_rate: data.in_rate, messages: data.messages });
  if (!data || error)
    return html`<div class="stack"><${Head} title=${stream} crumbs=${crumbs} />
      <${Loaded} data=${data} error=${error} retry=${retry} what="the stream" /></div>`;
  const views = VIEWS[data.kind];
  const shown = views.some(([key]) => key === view) ? view : views[0][0];
  const subject = data.config.subjects?.[0];
  return html`
    <div class="stack">
      <${Head} title=${shortName(data)} crumbs=${crumbs} lead=${data.description}
        tags=${html`<${Tag}>${KINDS[data.kind]}<//> <${Tag}>${data.storage}<//>
          ${data.sealed && html` <${Tag}>sealed<//>`}`}>
        ${may("operator") && data.kind === "stream" && subject && html`
          <a class="button" href=${link("publish", { subject })}>Publish or tail</a>`}
        ${may("operator") && !data.sealed && !data.config.deny_purge && html`
          <${Button} kind="danger" onClick=${() => purge(path, data)}>Delete messages<//>`}
        ${may("admin") && html`
          <${Button} kind="danger" onClick=${() => erase(path, data)}>Delete<//>`}
      <//>
      <dl class="tiles">
        <${Tile} title="In" mark="in" value=${rate(data.in_rate)} unit="msg/s" />
        <${Tile} title="Messages" value=${compact(data.messages)} />
        <${Tile} title="Size" value=${bytes(data.bytes)} />
        <${Tile} title=${data.kind === "kv" ? "Keys" : "Distinct subjects"}
          value=${compact(data.num_subjects)} more=${data.kind === "kv" ? "with deleted ones" : undefined} />
        <${Tile} title=${data.kind === "stream" ? "Consumers" : "Watchers"}
          value=${compact(data.consumers)} />
      </dl>
      <div class="grid">
        <${Panel} title="Messages per second">
          <${Chart} label="Messages per second" times=${history.times} as=${rate}
            series=${[{ label: "In", color: "in", values: history.columns.in_rate ?? [] }]} />
        <//>
        <${Panel} title="Messages">
          <${Chart} label="Messages that are stored" times=${history.times} as=${compact}
            series=${[{ label: "Stored", color: "accent", values: history.columns.messages ?? [] }]} />
        <//>
      </div>
      <${Choice} label="Show" value=${shown} options=${views}
        onChange=${(value) => replace({ view: value, offset: "", filter: "" })} />
      ${shown === "keys" && html`<${Keys} path=${path} data=${data} />`}
      ${shown === "objects" && html`<${Objects} path=${path} data=${data} />`}
      ${shown === "messages" && html`<${Messages} path=${path} data=${data} />`}
      ${shown === "consumers" && html`<${Consumers} path=${path} filter=${filter} offset=${offset} />`}
      ${shown === "settings" && html`<${Settings} path=${path} data=${data} />`}
    </div>`;
}

export const Page = (parameters) =>
  parameters.stream === undefined || parameters.account === undefined
    ? html`<${Empty} title="Which stream?"><a href=${link("jetstream")}>Choose one.</a><//>`
    : html`<${Stream} key=${`${parameters.account} ${parameters.stream}`} ...${parameters} />`;
