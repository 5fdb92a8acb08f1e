// Messages: looked at without consuming them, by sequence, time, text and header.

import { get, query } from "../api.js";
import {
  Button, Choice, Empty, Facts, Field, Notice, Panel, Table, Tag, Time, bytes, count, tell, time,
} from "../parts.js";
import { html, useEffect, useRef, useState } from "../vendor/ui.js";

const LIMIT = 50;
const EMPTY_PAGES_MAX = 20; // of a filter, before the page asks whether to go on

/** The bytes of a message, whatever the broker sent them as. */
export function bodyOf(message) {
  if (message.encoding !== "base64") return new TextEncoder().encode(message.body ?? "");
  return Uint8Array.from(atob(message.body), (letter) => letter.charCodeAt(0));
}

export function preview(message) {
  if (message.unreadable) return "(cannot be read)";
  if (message.encoding === "base64") return `(${bytes(message.body_bytes)} that are not text)`;
  return (message.body ?? "").slice(0, 300);
}

function hex(data) {
  const lines = [];
  for (let start = 0; start < data.length; start += 16) {
    const part = [...data.subarray(start, start + 16)];
    const codes = part.map((byte) => byte.toString(16).padStart(2, "0"));
    const letters = part.map((byte) => (byte > 31 && byte < 127 ? String.fromCharCode(byte) : "."));
    const left = codes.slice(0, 8).join(" ").padEnd(23);
    const right = codes.slice(8).join(" ").padEnd(23);
    lines.push(`${start.toString(16).padStart(8, "0")}  ${left}  ${right}  ${letters.join("")}`);
  }
  return lines.join("\n");
}

function parsed(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return null;
  }
}

function save(data, name) {
  const url = URL.createObjectURL(new Blob([data]));
  const anchor = document.createElement("a");
  anchor.href = url;
  anchor.download = name;
  anchor.click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    tell("Copied.");
  } catch {
    tell("The browser does not let this page copy: it allows that on HTTPS and localhost.", "warn");
  }
}

/** One message with its headers, as JSON, text or bytes. */
export function Message({ message, name, actions, onClose }) {
  const [wish, choose] = useState(null);
  const data = bodyOf(message);
  const text = new TextDecoder().decode(data);
  const json = message.encoding === "base64" ? null : parsed(text);
  const view = wish ?? (json !== null ? "json" : message.encoding === "base64" ? "hex" : "text");
  const shown = view === "hex" ? hex(data) : view === "json" ? (json ?? text) : text;
  const headers = Object.entries(message.headers ?? {});
  return html`
    <${Panel} title=${message.seq === undefined ? "Message" : `Message ${count(message.seq)}`}
      actions=${html`${actions}
        <${Button} kind="small" onClick=${() => copy(view === "hex" ? shown : text)}>Copy<//>
        <${Button} kind="small" onClick=${() => save(data, name)}>Download<//>
        ${onClose && html`<${Button} kind="small" onClick=${onClose}>Close<//>`}`}>
      <div class="stack">
        <${Facts} rows=${[
          message.subject && ["Subject", message.subject],
          message.timestamp && ["Time", html`<${Time} at=${message.timestamp} fractions />`],
          ["Size", bytes(message.body_bytes)],
          message.state && ["State", message.state.replaceAll("_", " ")],
          message.attempts !== undefined && ["Attempts", count(message.attempts)],
          message.client && ["With",
            [message.client.client_id, message.client.remote_address].filter(Boolean).join(" ")],
          message.timeout_at && ["Times out", html`<${Time} at=${message.timeout_at} />`],
          message.deferred_until &&
            ["Deferred until", html`<${Time} at=${message.deferred_until} />`],
          ...headers.map(([key, values]) => [
            html`<span class="mono">${key}</span>`,
            html`<span class="mono">${values.join(", ")}</span>`,
          ]),
        ]} />
        <${Choice} label="View" value=${view} onChange=${choose}
          options=${[...(json !== null ? [["json", "JSON"]] : []), ["text", "Text"], ["hex", "Hex"]]} />
        ${message.truncated &&
        html`<${Notice} kind="warn" title="This is the beginning of the message.">
          The rest is too large to show.<//>`}
        ${data.length
          ? html`<pre class=${`dump ${view}`} tabindex="0" aria-label="Body">${shown}</pre>`
          : html`<p class="muted">The body is empty.</p>`}
      </div>
    <//>`;
}

const STATES = [["all", "All"], ["waiting", "Waiting"], ["deferred", "Deferred"],
  ["in_flight", "In flight"]];
const STATE_KINDS = { in_flight: "accent", deferred: "warn", waiting: "" };

const columnsOf = (choose, isOpen, states) => [
  { id: "seq", title: "Sequence", num: true, head: true, kind: "tight",
    cell: (row) => html`<button class="link" aria-expanded=${String(isOpen(row))}
      onClick=${() => choose(row)}>${row.seq}</button>` },
  { id: "time", title: "Time", kind: "tight", less: true,
    cell: (row) => html`<span class="num"><${Time} at=${row.timestamp} fractions /></span>` },
  ...(states
    ? [{ id: "state", title: "State", kind: "tight",
        cell: (row) => html`<${Tag} kind=${STATE_KINDS[row.state] ?? ""}>
          ${(row.state ?? "–").replaceAll("_", " ")}<//>` },
      { id: "attempts", title: "Attempts", num: true, kind: "tight", less: true,
        cell: (row) => count(row.attempts) }]
    : []),
  { id: "size", title: "Size", num: true, kind: "tight", less: true,
    cell: (row) => bytes(row.body_bytes) },
  { id: "body", title: "Body", kind: "text", cell: preview },
];

/** The messages below the address `path`; `states`: whether they have states, as in a channel. */
export function Messages({ path, name, states }) {
  const [wanted, want] = useState({ from: "", time: "", contains: "", header: "", state: "all" });
  const [found, setFound] = useState({ messages: [] });
  const [chosen, setChosen] = useState(null);
  const isOpen = (row) => row.seq === chosen?.seq;
  const choose = (row) => setChosen(row && !isOpen(row) ? row : null);
  const stop = useRef(null);
  const ask = async (values, from, kept) => {
    stop.current?.abort();
    const mine = (stop.current = new AbortController());
    setFound((old) => ({ ...old, busy: true, error: null }));
    let messages = kept;
    let answer;
    let scanned = 0;
    try {
      let next = from;
      for (let page = 0; page < EMPTY_PAGES_MAX; page++) {
        const moment = next === undefined && values.time && new Date(values.time).toISOString();
        answer = await get(`${path}/messages${query({
          from: next ?? values.from, time: moment, limit: LIMIT,
          contains: values.contains, header: values.header,
          state: states && values.state !== "all" ? values.state : undefined,
        })}`, mine.signal);
        messages = [...messages, ...answer.messages];
        scanned += answer.scanned ?? 0;
        next = answer.next;
        if (messages.length - kept.length >= LIMIT || next === null || next === undefined) break;
        if (messages.length > kept.length && !values.contains && !values.header) break;
      }
      setFound({ messages, next: answer.next, oldest: answer.oldest_seq, end: answer.end_seq, scanned });
    } catch (error) {
      if (error.name !== "AbortError") setFound({ messages, error });
    }
  };
  useEffect(() => {
    ask(wanted, undefined, []);
    return () => stop.current?.abort();
  }, [path]);
  const go = (event) => {
    event?.preventDefault();
    choose(null);
    ask(wanted, undefined, []);
  };
  const field = (key) => ({
    value: wanted[key],
    onInput: (event) => want({ ...wanted, [key]: event.target.value }),
  });
  const note = found.end !== undefined && (found.end > found.oldest
    ? `Sequences ${count(found.oldest)} to ${count(found.end - 1)}; looking does not consume`
    : "Nothing is stored");
  return html`
    <div class="stack">
      <${Panel} bare title="Messages" note=${note}>
        <form class="body form" onSubmit=${go}>
          <${Field} label="From sequence">
            <input type="number" min="0" ...${field("from")} placeholder="oldest" /><//>
          <${Field} label="From time"><input type="datetime-local" step="1" ...${field("time")} /><//>
          <${Field} label="Body contains">
            <input type="search" data-filter ...${field("contains")} spellcheck=${false} /><//>
          <${Field} label="Header">
            <input type="text" ...${field("header")} placeholder="Name or Name: value"
              spellcheck=${false} /><//>
          <div class="actions wide">
            ${states && html`<${Choice} label="State" options=${STATES} value=${wanted.state}
              onChange=${(state) => {
                want({ ...wanted, state });
                choose(null);
                ask({ ...wanted, state }, undefined, []);
              }} />`}
            <button class="button" disabled=${found.busy}>${found.busy ? "Looking …" : "Look"}</button>
          </div>
        </form>
        ${found.error && html`<${Notice} kind="bad" title="Cannot read the messages." onRetry=${go}>
          ${found.error.message}<//>`}
        ${found.messages.length > 0 && html`<${Table} label="Messages" rows=${found.messages}
          columns=${columnsOf(choose, isOpen, states)} keyOf=${(row) => row.seq} onRow=${choose}
          selected=${isOpen} detail=${(row) => html`<${Message} key=${row.seq} message=${row}
            name=${`${name}-${row.seq}.bin`} onClose=${() => choose(null)} />`} />`}
        ${!found.busy && !found.error && !found.messages.length &&
        html`<${Empty} title="No messages here.">
          ${wanted.contains || wanted.header || wanted.from || wanted.time || wanted.state !== "all"
            ? "Change what you look for, or look from an older sequence."
            : "Nothing waits. Publish a message and look again."}<//>`}
        ${(found.next || found.messages.length > 0) && html`<div class="foot">
          <span>${count(found.messages.length)} shown</span>
          ${found.next && html`<div class="actions"><${Button} kind="small" disabled=${found.busy}
            onClick=${() => ask(wanted, found.next, found.messages)}>
            Continue from ${count(found.next)}<//></div>`}
        </div>`}
      <//>
    </div>`;
}
