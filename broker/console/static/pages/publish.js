// Publish a message, and watch those that arrive, filtered.

import { follow, may, post, query } from "../api.js";
import {
  Button, Choice, Empty, Field, Head, Notice, Panel, Table, Time, bytes, count,
} from "../parts.js";
import { html, useEffect, useRef, useState } from "../vendor/ui.js";
import { Message, preview } from "./messages.js";

const KEPT_MAX = 200; // messages of a tail that stay on the page
const TARGETS = [["topic", "Topic"], ["subject", "NATS subject"]];

function headersOf(text) {
  const found = {};
  for (const line of text.split("\n").filter((one) => one.trim())) {
    const [, name, value] = /^([^:]+):\s*(.*)$/.exec(line) ?? [];
    if (name === undefined) throw new Error(`A header is “Name: value”, not “${line}”.`);
    (found[name.trim()] ??= []).push(value);
  }
  return found;
}

function Publish({ kind, name }) {
  const [form, setForm] = useState({ headers: "", body: "", encoding: "text", delay: "", reply: "" });
  const [state, setState] = useState({});
  const field = (key) => ({
    value: form[key],
    onInput: (event) => setForm({ ...form, [key]: event.target.value }),
  });
  const send = async (event) => {
    event.preventDefault();
    setState({ busy: true });
    try {
      const wanted = { [kind]: name, body: form.body, encoding: form.encoding };
      const headers = headersOf(form.headers);
      if (Object.keys(headers).length) wanted.headers = headers;
      if (form.delay && kind === "topic") wanted.delay_ms = Math.round(form.delay * 1000);
      if (form.reply && kind === "subject") wanted.reply = form.reply;
      setState({ done: await post("/v1/publish", wanted) });
    } catch (error) {
      setState({ error });
    }
  };
  if (!may("operator"))
    return html`<${Panel} title="Publish"><p class="muted">
      Publishing needs the role operator on a console that is not read only.</p><//>`;
  return html`
    <${Panel} title="Publish">
      <form class="form" onSubmit=${send}>
        <div class="wide"><${Field} label="Body"><textarea ...${field("body")} spellcheck=${false} /><//></div>
        <${Field} label="Body is">
          <select value=${form.encoding}
            onChange=${(event) => setForm({ ...form, encoding: event.target.value })}>
            <option value="text">text</option><option value="base64">base64</option>
          </select><//>
        ${kind === "topic"
          ? html`<${Field} label="Delay in seconds">
              <input type="number" min="0" step="any" ...${field("delay")} /><//>`
          : html`<${Field} label="Reply subject"><input type="text" ...${field("reply")} /><//>`}
        <div class="wide"><${Field} label="Headers, one a line" hint="Name: value">
          <textarea rows="2" class="short" ...${field("headers")} spellcheck=${false} /><//></div>
        <div class="wide actions">
          <button class="button main" disabled=${state.busy || !name}>Publish</button>
          ${!name && html`<span class="muted small">Choose where to above.</span>`}
          <span role="status">${state.done && html`<span class="small">
            Published${state.done.subscribers === undefined ? "" : ` to ${count(state.done.subscribers)} subscribers`}.
          </span>`}</span>
        </div>
        ${state.error && html`<div class="wide"><${Notice} kind="bad" title="Not published.">
          ${state.error.message}<//></div>`}
      </form>
    <//>`;
}

let tailed = 0;
const tailColumns = (kind, choose) => [
  { id: "time", title: "Time", kind: "tight", less: true,
    cell: (row) => html`<span class="num"><${Time} at=${row.timestamp ?? row.arrived} fractions
      clock /></span>` },
  { id: "from", title: kind === "subject" ? "Subject" : "Sequence", kind: "tight", head: true,
    cell: (row) => html`<button class="link" onClick=${() => choose(row)}>
      ${(kind === "subject" ? row.subject : row.seq) ?? "message"}</button>` },
  { id: "size", title: "Size", num: true, kind: "tight", less: true,
    cell: (row) => bytes(row.body_bytes) },
  { id: "body", title: "Body", kind: "text", cell: preview },
];

function Tail({ kind, name }) {
  const [contains, setContains] = useState("");
  const [running, run] = useState(null); // the address that is followed
  const [seen, setSeen] = useState({ rows: [], count: 0, dropped: 0 });
  const [problem, setProblem] = useState(null);
  const [chosen, choose] = useState(null);
  const waiting = useRef([]);
  useEffect(() => run(null), [kind, name]);
  useEffect(() => {
    if (running === null) return undefined;
    setSeen({ rows: [], count: 0, dropped: 0 });
    setProblem(null);
    // Drawn once a frame, however many messages arrive.
    let frame = 0;
    const draw = () => {
      frame = 0;
      const rows = waiting.current.splice(0);
      setSeen((old) => ({ ...old, count: old.count + rows.length,
        rows: [...rows.reverse(), ...old.rows].slice(0, KEPT_MAX) }));
    };
    const end = follow(running, {
      message: (message) => {
        waiting.current.push({ ...message, id: ++tailed, arrived: new Date().toISOString() });
        if (waiting.current.length > KEPT_MAX) waiting.current.shift();
        frame ||= requestAnimationFrame(draw);
      },
      dropped: ({ count: many }) => setSeen((old) => ({ ...old, dropped: old.dropped + many })),
      problem: setProblem,
    });
    return () => {
      end();
      cancelAnimationFrame(frame);
      waiting.current = [];
    };
  }, [running]);
  const toggle = (event) => {
    event.preventDefault();
    run(running === null ? `/v1/tail${query({ [kind]: name, contains })}` : null);
  };
  const note = running !== null || seen.count
    ? `${count(seen.count)} seen${seen.dropped ? `, ${count(seen.dropped)} not shown` : ""}` : undefined;
  return html`
    <div class="stack">
      <${Panel} bare title="Tail" note=${note}>
        <form class="body filters" onSubmit=${toggle}>
          <input type="search" data-filter aria-label="Body contains" placeholder="Body contains"
            value=${contains} disabled=${running !== null} spellcheck=${false}
            onInput=${(event) => setContains(event.target.value)} />
          <button class=${running === null ? "button main" : "button"} disabled=${!name}>
            ${running === null ? "Start" : "Stop"}</button>
          <${Button} disabled=${!seen.rows.length}
            onClick=${() => setSeen({ rows: [], count: 0, dropped: 0 })}>Clear<//>
        </form>
        ${problem && html`<${Notice} kind="bad" title="Cannot follow it.">${problem.message}<//>`}
        ${chosen && html`<div class="chosen"><${Message} key=${chosen.id} message=${chosen}
          name=${`message-${chosen.seq ?? chosen.id}.bin`} onClose=${() => choose(null)} /></div>`}
        ${seen.rows.length
          ? html`<div class="log"><${Table} label="Messages that arrived" rows=${seen.rows}
              columns=${tailColumns(kind, choose)} keyOf=${(row) => row.id} onRow=${choose} /></div>`
          : html`<${Empty} title=${running === null ? "Nothing is followed." : "Waiting for messages."}>
              ${running === null
                ? "Choose a topic or a subject and start. Following does not consume messages."
                : "New messages appear here, the newest first."}<//>`}
      <//>
    </div>`;
}

export function Page({ topic = "", subject = "" }) {
  const [kind, setKind] = useState(subject ? "subject" : "topic");
  const [name, setName] = useState(subject || topic);
  return html`
    <div class="stack">
      <${Head} title="Publish and tail" />
      <section class="filters" aria-label="Where">
        <${Choice} label="Kind" value=${kind} options=${TARGETS} onChange=${setKind} />
        <input type="text" class="target" aria-label=${kind === "topic" ? "Topic" : "Subject"}
          placeholder=${kind === "topic" ? "Topic" : "Subject, to tail also with * and >"}
          value=${name} autocomplete="off" spellcheck=${false}
          onInput=${(event) => setName(event.target.value)} />
      </section>
      <div class="grid tailing">
        <${Publish} kind=${kind} name=${name} />
        <${Tail} kind=${kind} name=${name} />
      </div>
    </div>`;
}
