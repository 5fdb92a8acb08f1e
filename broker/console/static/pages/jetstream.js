// JetStream: streams, key-value buckets and object stores of all accounts in one list.

import { at, link, may, post, query, replace, useLive } from "../api.js";
import {
  Button, Choice, Count, Empty, Field, Head, Loaded, Notice, Pages, Search, Table, Tag, Tile, Time,
  bytes, compact, confirm, count, rate,
} from "../parts.js";
import { html } from "../vendor/ui.js";

const LIMIT = 50;
export const KINDS = { stream: "Stream", kv: "Bucket", object: "Object store" };
const WAYS = [["stream", "A stream"], ["kv", "A bucket"], ["object", "An object store"]];
const number = (id, title, more = {}) => ({
  id, title, num: true, sort: true, cell: (row) => html`<${Count} value=${row[id]} />`, ...more,
});

/** The name that its users know: of a bucket or object store without the prefix. */
export const shortName = ({ kind, name }) =>
  kind === "kv" ? name.slice(3) : kind === "object" ? name.slice(4) : name;

export const place = (row) => link("stream", { account: row.account, stream: row.name });

const COLUMNS = [
  { id: "name", title: "Name", sort: true, head: true, kind: "name",
    cell: (row) => html`<a href=${place(row)}>${shortName(row)}</a>
      ${row.sealed && html` <${Tag}>sealed<//>`}
      ${row.lost > 0 && html` <${Tag} kind="bad">${count(row.lost)} unreadable<//>`}` },
  { id: "kind", title: "Kind", kind: "tight",
    cell: (row) => html`<${Tag}>${KINDS[row.kind]}<//>` },
  { id: "account", title: "Account", less: true, cell: (row) => row.account },
  { id: "subjects", title: "Subjects", kind: "text", less: true,
    cell: (row) => html`<span class="mono">${row.subjects.join(" ")}</span>` },
  number("messages", "Messages"),
  number("bytes", "Size", { cell: (row) => html`<${Count} value=${row.bytes} as=${bytes} />` }),
  number("consumers", "Consumers"),
  number("in_rate", "In /s", {
    sort: false, cell: (row) => html`<${Count} value=${row.in_rate} as=${rate} />`,
  }),
  { id: "last", title: "Last message", sort: true, num: true, kind: "tight", less: true,
    cell: (row) => html`<${Time} at=${row.last} />` },
];

/** The configuration that client libraries give a stream, a bucket or an object store. */
function configOf({ way, name, subjects, storage, history }) {
  if (way === "stream")
    return { name, storage, subjects: subjects.split(/[\s,]+/).filter(Boolean) };
  const common = { storage, discard: "new", allow_direct: true, allow_rollup_hdrs: true };
  return way === "kv"
    ? { ...common, name: `KV_${name}`, subjects: [`$KV.${name}.>`], deny_delete: true,
        max_msgs_per_subject: Number(history) }
    : { ...common, name: `OBJ_${name}`, subjects: [`$O.${name}.C.>`, `$O.${name}.M.>`] };
}

const create = (account) =>
  confirm({
    title: "Create",
    verb: "Create",
    initial: { way: "stream", name: "", subjects: "", storage: "file", history: "1", account },
    fields: (values, change) => {
      const text = (key, more = {}) => html`<input type="text" required value=${values[key]}
        autocomplete="off" spellcheck=${false} ...${more}
        onInput=${(event) => change(key, event.target.value)} />`;
      return html`
        <${Choice} label="What" value=${values.way} options=${WAYS}
          onChange=${(value) => change("way", value)} />
        <div class="form">
          <${Field} label="Name">${text("name", { autofocus: true })}<//>
          <${Field} label="Account">${text("account")}<//>
          ${values.way === "stream" && html`<${Field} label="Subjects" hint="orders.> or several">
            ${text("subjects")}<//>`}
          ${values.way === "kv" && html`<${Field} label="Values kept of a key">
            <input type="number" min="1" max="64" required value=${values.history}
              onInput=${(event) => change("history", event.target.value)} /><//>`}
          <${Field} label="Storage">
            <select value=${values.storage} onChange=${(event) => change("storage", event.target.value)}>
              <option value="file">file</option><option value="memory">memory</option>
            </select><//>
        </div>`;
    },
    act: async (values) => {
      const config = configOf(values);
      await post(at("jetstream", "accounts", values.account, "streams"), config);
      location.hash = link("stream", { account: values.account, stream: config.name });
      return `Created: ${values.name}.`;
    },
  });

function Service({ data }) {
  const most = (limit) => (limit > 0 ? `of ${bytes(limit)}` : undefined);
  return html`
    <dl class="tiles">
      <${Tile} title="Streams" value=${compact(data.streams)}
        more=${`in ${count(data.accounts)} ${data.accounts === 1 ? "account" : "accounts"}`} />
      <${Tile} title="Consumers" value=${compact(data.consumers)} />
      <${Tile} title="Messages" value=${compact(data.messages)} />
      <${Tile} title="In files" value=${bytes(data.storage)} more=${most(data.max_storage)} />
      <${Tile} title="In memory" value=${bytes(data.memory)} more=${most(data.max_memory)} />
      <${Tile} title="API requests" value=${compact(data.api_total)}
        more=${`${count(data.api_errors)} refused`} />
    </dl>
    ${data.offline.map((one) => html`<${Notice} key=${`${one.account} ${one.name}`} kind="bad"
      title=${`${one.name} of ${one.account} is offline.`}>${one.reason}<//>`)}`;
}

function List({ filter = "", sort = "name", offset = "0", kind = "" }) {
  const start = Number(offset) || 0;
  const path = `/v1/jetstream/streams${query({ filter, sort, kind, offset: start, limit: LIMIT })}`;
  const { data, error, retry } = useLive(path);
  const empty = filter || kind
    ? html`<${Empty} title="Nothing matches.">
        <button class="link" onClick=${() => replace({ filter: "", kind: "", offset: "" })}>
          Show all</button><//>`
    : html`<${Empty} title="There are no streams yet.">
        A client creates them, or you do here: <code>nats stream add</code> works too.<//>`;
  return html`
    <section class="filters" aria-label="Filter">
      <${Search} label="Filter by name" value=${filter}
        onChange=${(text) => replace({ filter: text, offset: "" })} />
      <${Choice} label="Kind" value=${kind}
        options=${[["", "All"], ["stream", "Streams"], ["kv", "Buckets"], ["object", "Object stores"]]}
        onChange=${(value) => replace({ kind: value, offset: "" })} />
    </section>
    <${Loaded} data=${data} error=${error} retry=${retry} what="the streams">
      ${data && html`<div class="panel" data-sort=${data.sort}>
        <${Table} label="Streams" columns=${COLUMNS} rows=${data.streams} sort=${sort}
          keyOf=${(row) => `${row.account} ${row.name}`} empty=${empty}
          onSort=${(order) => replace({ sort: order, offset: "" })}
          onRow=${(row) => { location.hash = place(row); }} />
        ${data.matched > 0 && html`<${Pages} offset=${data.offset} limit=${LIMIT}
          total=${data.matched} what="stream"
          onOffset=${(value) => replace({ offset: value || "" })} />`}
      </div>`}
    <//>`;
}

export function Page(parameters) {
  const { data, error, retry } = useLive("/v1/jetstream");
  return html`
    <div class="stack">
      <${Head} title="JetStream" lead=${data?.domain && `Domain ${data.domain}`}>
        ${data?.enabled && may("admin") && html`
          <${Button} onClick=${() => create("$G")}>Create<//>`}
      <//>
      <${Loaded} data=${data} error=${error} retry=${retry} what="JetStream">
        ${data && !data.enabled && html`<div class="panel"><${Empty} title="JetStream is off.">
          Set jetstream.enabled and nats.listen in the configuration.<//></div>`}
        ${data?.enabled && html`<${Service} data=${data} /><${List} ...${parameters} />`}
      <//>
    </div>`;
}
