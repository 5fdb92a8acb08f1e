// NATS: connections, subscriptions, accounts and leaf nodes.

import { query, replace, useLive } from "../api.js";
import {
  Choice, Count, Empty, Head, Loaded, Pages, Panel, Search, Table, Tag, Tile, bytes, compact,
  count, duration,
} from "../parts.js";
import { html } from "../vendor/ui.js";

const LIMIT = 50;
const GLOBAL = "$G"; // the account of connections for which the server names none
const number = (id, title, more = {}) => ({
  id, title, num: true, cell: (row) => html`<${Count} value=${row[id]} />`, ...more,
});
const size = (id, title) =>
  number(id, title, { less: true, cell: (row) => html`<${Count} value=${row[id]} as=${bytes} />` });
const mono = (text) => html`<span class="mono">${text}</span>`;

const VIEWS = {
  connections: {
    title: "Connections",
    path: (p) => `/v1/nats/connections${query({ offset: p.offset, limit: LIMIT, sort: p.by, state: p.state })}`,
    empty: ["No client is connected.", "Connect one to the address of the NATS listener."],
    keyOf: (row) => row.cid,
    columns: [
      { id: "cid", title: "CID", num: true, kind: "tight", head: true, cell: (row) => row.cid },
      { id: "name", title: "Name", kind: "name", cell: (row) => row.name || html`<span class="muted">no name</span>` },
      { id: "address", title: "Address", kind: "tight", cell: (row) => mono(`${row.ip}:${row.port}`) },
      { id: "account", title: "Account", less: true, cell: (row) => row.account || GLOBAL },
      { id: "lang", title: "Client", kind: "tight least", less: true,
        cell: (row) => [row.lang, row.version].filter(Boolean).join(" ") },
      number("subscriptions", "Subscriptions", { kind: "least" }),
      size("pending_bytes", "Pending"),
      number("in_msgs", "In"),
      number("out_msgs", "Out"),
      { id: "rtt", title: "RTT", num: true, less: true, cell: (row) => row.rtt ?? "–" },
      { id: "uptime", title: "Up", num: true, less: true, cell: (row) => row.uptime ?? "–" },
      { id: "reason", title: "State", kind: "tight", less: true, cell: (row) =>
        row.stop ? html`<${Tag} kind="warn">${row.reason || "closed"}<//>` : "open" },
    ],
  },
  subscriptions: {
    title: "Subscriptions",
    path: (p) => `/v1/nats/subscriptions${query({ offset: p.offset, limit: LIMIT, filter: p.filter })}`,
    empty: ["No subscriptions.", "Clients that subscribe appear here."],
    keyOf: (row) => `${row.account} ${row.cid} ${row.sid} ${row.subject}`,
    columns: [
      { id: "subject", title: "Subject", head: true, kind: "name", cell: (row) => mono(row.subject) },
      { id: "queue", title: "Queue group", cell: (row) => row.queue },
      { id: "account", title: "Account", cell: (row) => row.account },
      { id: "cid", title: "Connection", num: true,
        cell: (row) => row.cid || html`<span class="muted">the broker</span>` },
      number("messages", "Messages"),
    ],
  },
  accounts: {
    title: "Accounts",
    path: () => "/v1/nats/accounts",
    empty: ["No accounts.", "NATS is not in use."],
    keyOf: (row) => row.name,
    columns: [
      { id: "name", title: "Account", head: true, kind: "name", cell: (row) =>
        html`${row.name}${row.system && html` <${Tag}>system<//>`}` },
      number("connections", "Connections"),
      number("leafs", "Leaf nodes"),
      number("subscriptions", "Subscriptions"),
      number("in_msgs", "In"),
      number("out_msgs", "Out"),
      size("in_bytes", "Bytes in"),
      size("out_bytes", "Bytes out"),
      number("slow_consumers", "Slow consumers", { less: true }),
    ],
  },
  leafs: {
    title: "Leaf nodes",
    path: () => "/v1/nats/leafs",
    empty: ["No leaf nodes.", "They join this server to another; see nats.leafnodes in the documentation."],
    keyOf: (row) => row.cid,
    columns: [
      { id: "name", title: "Server", head: true, kind: "name", cell: (row) => row.name },
      { id: "address", title: "Address", kind: "tight", cell: (row) => mono(row.address) },
      { id: "account", title: "Account", cell: (row) => row.account },
      { id: "way", title: "Opened by", cell: (row) => (row.spoke ? "this server" : "the other") },
      { id: "rtt", title: "RTT", num: true,
        cell: (row) => (row.rtt_ms === null ? "–" : `${row.rtt_ms.toFixed(1)} ms`) },
      number("subscriptions", "Subscriptions"),
      number("in_msgs", "In"),
      number("out_msgs", "Out"),
    ],
  },
};
const ORDERS = [["cid", "Oldest first"], ["pending", "Pending"], ["msgs_to", "Messages sent"],
  ["msgs_from", "Messages received"], ["subs", "Subscriptions"], ["idle", "Idle"]];
const STATES = [["open", "Open"], ["closed", "Closed"], ["any", "Any"]];

function View({ view, parameters }) {
  const about = VIEWS[view];
  const { offset = "0", by = "cid", state = "open", filter = "" } = parameters;
  const { data, error, retry } = useLive(about.path({ offset, by, state, filter }));
  const rows = data?.[view];
  return html`
    <${Panel} bare title=${about.title}
      note=${rows && plural(data.total ?? rows.length)}
      actions=${view === "connections"
        ? html`<${Choice} label="State" value=${state} options=${STATES}
            onChange=${(value) => replace({ state: value, offset: "" })} />
          <select aria-label="Order" value=${by}
            onChange=${(event) => replace({ by: event.target.value, offset: "" })}>
            ${ORDERS.map(([key, text]) => html`<option key=${key} value=${key}>${text}</option>`)}
          </select>`
        : view === "subscriptions" && html`<${Search} label="Filter by subject" value=${filter}
            onChange=${(text) => replace({ filter: text, offset: "" })} />`}>
      <${Loaded} data=${rows} error=${error} retry=${retry} what=${about.title.toLowerCase()}>
        ${rows && html`
          <${Table} label=${about.title} columns=${about.columns} rows=${rows} keyOf=${about.keyOf}
            empty=${html`<${Empty} title=${about.empty[0]}>${about.empty[1]}<//>`} />
          ${data.total > LIMIT && html`<${Pages} offset=${data.offset} limit=${LIMIT}
            total=${data.total} onOffset=${(value) => replace({ offset: value || "" })} />`}`}
      <//>
    <//>`;
}

const plural = (number) => (number ? count(number) : undefined);

export function Page({ view = "connections", ...parameters }) {
  const { data, error, retry } = useLive("/v1/nats");
  const shown = VIEWS[view] ? view : "connections";
  return html`
    <div class="stack">
      <${Head} title="NATS" lead=${data?.enabled &&
        `${data.server_name || "Server"}, up for ${duration(data.uptime_s)}`} />
      <${Loaded} data=${data} error=${error} retry=${retry} what="NATS">
        ${data && !data.enabled && html`<div class="panel"><${Empty} title="NATS is off.">
          Set nats.listen in the configuration.<//></div>`}
        ${data?.enabled && html`
          <dl class="tiles">
            <${Tile} title="Connections" value=${compact(data.connections)}
              more=${`${compact(data.total_connections)} since the start`} />
            <${Tile} title="Subscriptions" value=${compact(data.subscriptions)} />
            <${Tile} title="Accounts" value=${compact(data.accounts)} />
            <${Tile} title="Leaf nodes" value=${compact(data.leafs)} />
            <${Tile} title="Received" value=${compact(data.in_msgs)} more=${bytes(data.in_bytes)} />
            <${Tile} title="Sent" value=${compact(data.out_msgs)} more=${bytes(data.out_bytes)} />
            <${Tile} title="Slow consumers" value=${compact(data.slow_consumers)} />
          </dl>
          <${Choice} label="Show" value=${shown}
            options=${Object.entries(VIEWS).map(([key, one]) => [key, one.title])}
            onChange=${(value) => replace({ view: value, offset: "", filter: "" })} />
          <${View} key=${shown} view=${shown} parameters=${parameters} />`}
      <//>
    </div>`;
}
