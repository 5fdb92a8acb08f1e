// A topic or one of its channels: rates, settings, consumers, messages, and what can be done to it.

import {
  at, link, may, post, put, query, remove, replace, useHistory, useLive,
} from "../api.js";
import {
  Button, Chart, Choice, Count, Empty, Facts, Field, Head, Loaded, Pages, Panel, Search, Table, Tag,
  Tile, Time, bytes, compact, confirm, count, rate,
} from "../parts.js";
import { html } from "../vendor/ui.js";
import { Messages } from "./messages.js";

const LIMIT = 50;
const number = (id, title, more = {}) => ({
  id, title, num: true, sort: true, cell: (row) => html`<${Count} value=${row[id]} />`, ...more,
});

// --- what can be done ----------------------------------------------------------------------------

const what = (topic, channel) =>
  channel === undefined ? `the topic ${topic}` : `the channel ${channel} of ${topic}`;

function pause(path, thing, paused) {
  const verb = paused ? "Resume" : "Pause";
  confirm({
    title: `${verb} ${thing}?`,
    text: paused
      ? "Its messages are delivered again."
      : "Messages are accepted and stored, but not delivered until it is resumed.",
    verb,
    act: async () => {
      await post(`${path}/${paused ? "unpause" : "pause"}`);
      return `${verb}d: ${thing}.`;
    },
  });
}

const empty = (path, thing, name) =>
  confirm({
    title: `Empty ${thing}?`,
    text: "All messages that wait are dropped. This cannot be undone.",
    verb: "Empty",
    danger: true,
    typed: name,
    act: async () => {
      await post(`${path}/empty${query({ confirm: name })}`);
      return `Emptied: ${thing}.`;
    },
  });

const erase = (path, thing, name, after) =>
  confirm({
    title: `Delete ${thing}?`,
    text: "Its messages are deleted, and its consumers are disconnected. This cannot be undone.",
    verb: "Delete",
    danger: true,
    typed: name,
    act: async () => {
      await remove(`${path}${query({ confirm: name })}`);
      location.hash = after;
      return `Deleted: ${thing}.`;
    },
  });

const PLACES = [["oldest", "Oldest message"], ["now", "Now"], ["time", "A time"], ["seq", "A sequence"]];

const seek = (path, thing, name) =>
  confirm({
    title: `Move ${thing}`,
    text: "Back, its messages are delivered again; forward, they are skipped.",
    verb: "Move",
    danger: true,
    typed: name,
    initial: { to: "oldest", time: "", seq: "" },
    fields: (values, change) => html`
      <${Choice} label="Where to" value=${values.to} options=${PLACES}
        onChange=${(value) => change("to", value)} />
      ${values.to === "time" && html`<${Field} label="Time">
        <input type="datetime-local" step="1" required value=${values.time}
          onInput=${(event) => change("time", event.target.value)} /><//>`}
      ${values.to === "seq" && html`<${Field} label="Sequence">
        <input type="number" min="1" required value=${values.seq}
          onInput=${(event) => change("seq", event.target.value)} /><//>`}`,
    act: async ({ to, time: moment, seq }) => {
      const wanted =
        to === "seq" ? { seq: Number(seq) }
        : { to: to === "time" ? new Date(moment).toISOString() : to };
      const done = await post(`${path}/seek${query({ confirm: name })}`, wanted);
      return `Moved to sequence ${count(done.seq)}: ${count(done.depth)} messages wait.`;
    },
  });

const createChannel = (topic) =>
  confirm({
    title: `Create a channel of ${topic}`,
    text: "It receives what is published from now on.",
    verb: "Create",
    initial: { name: "" },
    fields: (values, change) => html`<${Field} label="Name">
      <input type="text" required autofocus value=${values.name} autocomplete="off"
        onInput=${(event) => change("name", event.target.value)} /><//>`,
    act: async ({ name }) => {
      await post(at("topics", topic, "channels"), { name });
      return `The channel ${name} was created.`;
    },
  });

const changeSettings = (topic, settings) =>
  confirm({
    title: `Settings of ${topic}`,
    text: "Only what differs from the configuration; an empty field stays as configured.",
    verb: "Save",
    initial: Object.fromEntries(
      settings.map(({ key, value, origin }) => [key, origin === "topic" ? String(value) : ""]),
    ),
    fields: (values, change) => html`<div class="form">
      ${settings.map(({ key, value, origin }) => html`
        <${Field} key=${key} label=${key}>
          <input type="text" value=${values[key]} autocomplete="off"
            placeholder=${origin === "topic" ? "" : String(value)}
            onInput=${(event) => change(key, event.target.value)} /><//>`)}
    </div>`,
    act: async (values) => {
      const numbers = new Set(settings.filter((one) => typeof one.value === "number").map((one) => one.key));
      const kept = Object.entries(values)
        .filter(([, value]) => value !== "")
        .map(([key, value]) => [key, numbers.has(key) && /^\d+$/.test(value) ? Number(value) : value]);
      await put(`${at("topics", topic)}/settings`, Object.fromEntries(kept));
      return `Saved the settings of ${topic}.`;
    },
  });

const changePolicy = (path, name, policy) =>
  confirm({
    title: `Dead letters of ${name}`,
    text: "After so many attempts, a message is moved to the dead letter topic.",
    verb: "Save",
    initial: {
      attempts: String(policy?.max_attempts ?? 5), topic: policy?.dead_letter_topic ?? "",
    },
    fields: (values, change) => html`<div class="form">
      <${Field} label="Attempts"><input type="number" min="1" required value=${values.attempts}
        onInput=${(event) => change("attempts", event.target.value)} /><//>
      <${Field} label="Dead letter topic"><input type="text" value=${values.topic}
        placeholder="as configured" onInput=${(event) => change("topic", event.target.value)} /><//>
    </div>`,
    act: async ({ attempts, topic }) => {
      const wanted = { max_attempts: Number(attempts) };
      if (topic) wanted.dead_letter_topic = topic;
      await put(`${path}/dead-letters`, wanted);
      return `Saved the dead letter policy of ${name}.`;
    },
  });

// --- parts of both pages -------------------------------------------------------------------------

const tags = (data) => html`
  ${data.kind && html`<${Tag}>${{ nsq: "NSQ", stan: "STAN" }[data.kind] ?? data.kind}<//>`}
  ${data.paused && html` <${Tag} kind="warn">paused<//>`}
  ${data.ephemeral && html` <${Tag}>ephemeral<//>`}
  ${data.problem && html` <${Tag} kind="bad">${data.problem}<//>`}`;

function Charts({ id, data, flows }) {
  const values = { of: data, depth: data.depth, in_flight: data.in_flight };
  for (const [key] of flows) values[key] = data[key];
  const { times, columns } = useHistory(id, values);
  return html`
    <div class="grid">
      <${Panel} title="Messages per second" note="since this page was opened">
        <${Chart} label="Messages per second" times=${times} as=${rate}
          series=${flows.map(([key, label]) => ({
            label, color: key === "in_rate" ? "in" : "out", values: columns[key] ?? [],
          }))} />
      <//>
      <${Panel} title="Depth and in flight" note="since this page was opened">
        <${Chart} label="Depth and in flight" times=${times} as=${compact}
          series=${[
            { label: "Depth", color: "accent", values: columns.depth ?? [] },
            { label: "In flight", color: "out", values: columns.in_flight ?? [] },
          ]} />
      <//>
    </div>`;
}

// --- the topic -----------------------------------------------------------------------------------

const channelColumns = (topic) => [
  { id: "name", title: "Channel", head: true, sort: true, kind: "name",
    cell: (row) => html`<a href=${link("channel", { topic, channel: row.name })}>${row.name}</a>
      ${row.paused && html` <${Tag} kind="warn">paused<//>`}
      ${row.ephemeral && html` <${Tag}>ephemeral<//>`}` },
  number("depth", "Depth"),
  number("in_flight", "In flight"),
  number("deferred", "Deferred"),
  number("consumers", "Consumers"),
  number("out_rate", "Out /s", {
    cell: (row) => html`<${Count} value=${row.out_rate} as=${rate} />`,
  }),
  number("messages", "Messages", { less: true }),
  number("requeued", "Requeued", { less: true, sort: false }),
  number("timed_out", "Timed out", { less: true, sort: false }),
  number("dead_letters", "Dead letters", { less: true, sort: false }),
];

function Channels({ topic, nsq, sort = "name", offset = "0", filter = "" }) {
  const path = at("topics", topic, "channels");
  const { data, error, retry } = useLive(
    `${path}${query({ sort, offset, filter, limit: LIMIT })}`,
  );
  return html`
    <${Panel} bare title=${nsq ? "Channels" : "Subscriptions"} actions=${html`
      ${data && (data.total > 10 || filter) && html`<${Search} label="Filter channels" value=${filter}
        onChange=${(text) => replace({ filter: text, offset: "" })} />`}
      ${nsq && may("operator") && html`<${Button} kind="small" onClick=${() => createChannel(topic)}>
        Create a channel<//>`}`}>
      <${Loaded} data=${data} error=${error} retry=${retry} what="the channels">
        ${data && html`
          <${Table} label="Channels" rows=${data.channels} columns=${channelColumns(topic)}
            keyOf=${(row) => row.name} sort=${sort}
            onSort=${(order) => replace({ sort: order, offset: "" })}
            onRow=${(row) => { location.hash = link("channel", { topic, channel: row.name }); }}
            empty=${filter
              ? html`<${Empty} title="No channel matches." />`
              : html`<${Empty} title="Nobody reads this topic.">
                  A channel appears when a consumer subscribes. Until then messages are kept.<//>`} />
          ${data.matched > LIMIT && html`<${Pages} offset=${data.offset} limit=${LIMIT}
            total=${data.matched} what="channel"
            onOffset=${(value) => replace({ offset: value || "" })} />`}`}
      <//>
    <//>`;
}

const ORIGINS = { topic: "accent", configuration: "", default: "" };
const SETTINGS = [
  { id: "key", title: "Setting", head: true, cell: (row) => html`<span class="mono">${row.key}</span>` },
  { id: "value", title: "Value",
    cell: (row) => html`<span class="mono">${String(row.value)}</span>` },
  { id: "origin", title: "From",
    cell: (row) => html`<${Tag} kind=${ORIGINS[row.origin] ?? ""}>${row.origin}<//>` },
];

function Topic({ topic, view = "channels", ...shown }) {
  const path = at("topics", topic);
  const { data, error, retry } = useLive(path);
  const thing = what(topic);
  const nsq = data?.kind === "nsq";
  const head = html`
    <${Head} title=${topic} tags=${data && tags(data)}
      crumbs=${html`<a href=${link("topics")}>Topics</a>`}>
      ${data && may("operator") && html`
        <a class="button" href=${link("publish", { topic })}>Publish or tail</a>
        ${nsq && html`<${Button} onClick=${() => pause(path, thing, data.paused)}>
            ${data.paused ? "Resume" : "Pause"}<//>
          <${Button} kind="danger" onClick=${() => empty(path, thing, topic)}>Empty<//>`}`}
      ${data && may("admin") && nsq && html`<${Button} kind="danger"
        onClick=${() => erase(path, thing, topic, link("topics"))}>Delete<//>`}
    <//>`;
  if (!data || error)
    return html`<div class="stack">${head}
      <${Loaded} data=${data} error=${error} retry=${retry} what="the topic" /></div>`;
  const views = [["channels", nsq ? "Channels" : "Subscriptions"], ["messages", "Messages"],
    ["settings", "Settings"]];
  return html`
    <div class="stack">
      ${head}
      <dl class="tiles">
        <${Tile} title="In" mark="in" value=${rate(data.in_rate)} unit="msg/s" />
        <${Tile} title="Out" mark="out" value=${rate(data.out_rate)} unit="msg/s" />
        <${Tile} title="Depth" value=${compact(data.depth)} />
        <${Tile} title="In flight" value=${compact(data.in_flight)} />
        <${Tile} title="Deferred" value=${compact(data.deferred)} />
        <${Tile} title="Messages" value=${compact(data.messages)} more="received" />
        <${Tile} title="Size" value=${bytes(data.bytes)} />
      </dl>
      <${Charts} id=${topic} data=${data} flows=${[["in_rate", "In"], ["out_rate", "Out"]]} />
      <${Choice} label="Show" value=${view} options=${views}
        onChange=${(value) => replace({ view: value, sort: "", offset: "", filter: "" })} />
      ${view === "channels" && html`<${Channels} topic=${topic} nsq=${nsq} ...${shown} />`}
      ${view === "messages" && html`<${Messages} path=${path} name=${topic} />`}
      ${view === "settings" && html`
        <div class="grid">
          <${Panel} bare title="Settings" actions=${may("admin") && nsq && html`
            <${Button} kind="small" onClick=${() => changeSettings(topic, data.settings)}>
              Change<//>`}>
            <${Table} label="Settings" columns=${SETTINGS} rows=${data.settings}
              keyOf=${(row) => row.key}
              empty=${html`<${Empty} title="This topic has no settings of its own." />`} />
          <//>
          <${Panel} title="Log">
            <${Facts} rows=${[
              ["Created", html`<${Time} at=${data.created} />`],
              ["Oldest sequence", count(data.first_seq)],
              ["Next sequence", count(data.next_seq)],
              data.held_from !== null && ["Held by a reader from", count(data.held_from)],
              data.subjects && ["Subjects", html`<span class="mono">${data.subjects.join(" ")}</span>`],
              ["Incarnation", html`<span class="mono">${data.incarnation}</span>`],
            ]} />
          <//>
        </div>`}
    </div>`;
}

// --- the channel ---------------------------------------------------------------------------------

const CLIENTS = [
  { id: "client", title: "Consumer", head: true, kind: "name",
    cell: (row) => html`${row.client_id || row.hostname || row.address}
      <span class="muted small"> ${row.hostname}</span>` },
  { id: "address", title: "Address", less: true,
    cell: (row) => html`<span class="mono">${row.address}</span>` },
  { id: "agent", title: "Client", less: true, cell: (row) => row.user_agent },
  number("ready", "Ready", { sort: false }),
  number("in_flight", "In flight", { sort: false }),
  number("messages", "Messages", { sort: false }),
  number("finished", "Finished", { sort: false, less: true }),
  number("requeued", "Requeued", { sort: false, less: true }),
  { id: "connected", title: "Connected", kind: "tight", less: true,
    cell: (row) => html`<${Time} at=${row.connected} />` },
];

function Policy({ path, channel, policy }) {
  const change = may("admin") && html`
    <${Button} kind="small" onClick=${() => changePolicy(path, channel, policy)}>Change<//>
    ${policy?.set_for_channel && html`<${Button} kind="small"
      onClick=${() => confirm({
        title: `Use the configured policy for ${channel}?`, verb: "Use it",
        act: async () => {
          await remove(`${path}/dead-letters`);
          return "The configured policy applies.";
        },
      })}>Reset<//>`}`;
  return html`<${Panel} title="Dead letters" actions=${change}>
    ${policy && policy.max_attempts
      ? html`<${Facts} rows=${[
          ["After", `${count(policy.max_attempts)} attempts`],
          ["Moved to", html`<a href=${link("dead-letters", { topic: policy.dead_letter_topic })}>
            ${policy.dead_letter_topic}</a>`],
          ["Moved so far", count(policy.dead_letters)],
          ["Set", policy.set_for_channel ? "for this channel" : "by the configuration"],
          policy.failing && ["State", html`<${Tag} kind="bad">cannot be moved<//>`],
        ]} />`
      : html`<p class="muted">Messages are attempted until a consumer finishes them.</p>`}
  <//>`;
}

function Channel({ topic, channel, view = "consumers" }) {
  const path = at("topics", topic, "channels", channel);
  const { data, error, retry } = useLive(path);
  const thing = what(topic, channel);
  const nsq = (data?.kind ?? "nsq") === "nsq";
  const head = html`
    <${Head} title=${channel} tags=${data && tags(data)}
      crumbs=${html`<a href=${link("topics")}>Topics</a> / <a
        href=${link("topic", { topic })}>${topic}</a>`}>
      ${data && nsq && may("operator") && html`
        <${Button} onClick=${() => pause(path, thing, data.paused)}>
          ${data.paused ? "Resume" : "Pause"}<//>
        <${Button} onClick=${() => seek(path, thing, channel)}>Rewind or skip<//>
        <${Button} kind="danger" onClick=${() => empty(path, thing, channel)}>Empty<//>`}
      ${data && nsq && may("admin") && html`<${Button} kind="danger"
        onClick=${() => erase(path, thing, channel, link("topic", { topic }))}>Delete<//>`}
    <//>`;
  if (!data || error)
    return html`<div class="stack">${head}
      <${Loaded} data=${data} error=${error} retry=${retry} what="the channel" /></div>`;
  return html`
    <div class="stack">
      ${head}
      <dl class="tiles">
        <${Tile} title="Out" mark="out" value=${rate(data.out_rate)} unit="msg/s" />
        <${Tile} title="Depth" value=${compact(data.depth)} />
        <${Tile} title="In flight" value=${compact(data.in_flight)} />
        <${Tile} title="Deferred" value=${compact(data.deferred)} />
        <${Tile} title="Consumers" value=${count(data.consumers)} />
        <${Tile} title="Requeued" value=${compact(data.requeued)} />
        <${Tile} title="Timed out" value=${compact(data.timed_out)} />
      </dl>
      <${Charts} id=${`${topic} ${channel}`} data=${data} flows=${[["out_rate", "Out"]]} />
      <${Choice} label="Show" value=${view} onChange=${(value) => replace({ view: value })}
        options=${[["consumers", "Consumers"], ["messages", "Messages"], ["letters", "Dead letters"]]} />
      ${view === "consumers" && html`<${Panel} bare title="Consumers">
        <${Table} label="Consumers" columns=${CLIENTS} rows=${data.clients}
          keyOf=${(row) => `${row.address} ${row.client_id}`}
          empty=${html`<${Empty} title="No consumer is connected.">
            ${data.depth ? `${count(data.depth)} messages wait for one.` : "Nothing waits."}<//>`} />
      <//>`}
      ${view === "messages" && html`<${Messages} path=${path} name=${`${topic}-${channel}`} states />`}
      ${view === "letters" && html`<${Policy} path=${path} channel=${channel}
        policy=${data.dead_letter_policy} />`}
    </div>`;
}

export const Page = (parameters) =>
  parameters.topic === undefined
    ? html`<${Empty} title="Which topic?"><a href=${link("topics")}>Choose one.</a><//>`
    : parameters.path === "channel"
      ? html`<${Channel} key=${`${parameters.topic} ${parameters.channel}`} ...${parameters} />`
      : html`<${Topic} key=${parameters.topic} ...${parameters} />`;
