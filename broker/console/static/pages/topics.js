// The list of topics: those of NSQ and the channels of NATS Streaming. The server filters and sorts.

import { at, link, may, post, query, replace, useLive } from "../api.js";
import {
  Button, Choice, Count, Empty, Field, Head, Loaded, Pages, Search, Table, Tag, bytes, confirm,
  count, rate,
} from "../parts.js";
import { html } from "../vendor/ui.js";

const KINDS = { nsq: "NSQ", stan: "STAN", jetstream: "JetStream" };
const LIMIT = 50;
const number = (id, title, more = {}) => ({
  id, title, num: true, sort: true, cell: (row) => html`<${Count} value=${row[id]} />`, ...more,
});

const COLUMNS = [
  {
    id: "name", title: "Topic", sort: true, head: true, kind: "name",
    cell: (row) => html`<a href=${link("topic", { topic: row.name })}>${row.name}</a>
      ${row.paused && html` <${Tag} kind="warn">paused<//>`}
      ${row.ephemeral && html` <${Tag}>ephemeral<//>`}
      ${row.problem && html` <${Tag} kind="bad">${row.problem}<//>`}`,
  },
  { id: "kind", title: "Protocol", kind: "tight", less: true,
    cell: (row) => html`<${Tag}>${KINDS[row.kind] ?? row.kind}<//>` },
  number("depth", "Depth"),
  number("in_flight", "In flight"),
  number("deferred", "Deferred", { less: true }),
  number("in_rate", "In /s", { cell: (row) => html`<${Count} value=${row.in_rate} as=${rate} />` }),
  number("out_rate", "Out /s", {
    cell: (row) => html`<${Count} value=${row.out_rate} as=${rate} />`,
  }),
  number("channels", "Channels", { less: true }),
  number("consumers", "Consumers", { less: true }),
  number("messages", "Messages", { less: true, kind: "least" }),
  number("bytes", "Size", {
    less: true, cell: (row) => html`<${Count} value=${row.bytes} as=${bytes} />`,
  }),
];

const create = () =>
  confirm({
    title: "Create a topic",
    text: "Publishing to a topic creates it too.",
    verb: "Create",
    initial: { name: "" },
    fields: (values, change) => html`
      <${Field} label="Name">
        <input type="text" value=${values.name} autofocus required autocomplete="off"
          spellcheck=${false} onInput=${(event) => change("name", event.target.value)} />
      <//>`,
    act: async ({ name }) => {
      await post(at("topics"), { name });
      location.hash = link("topic", { topic: name });
      return `The topic ${name} was created.`;
    },
  });

export function Page({ filter = "", sort = "name", offset = "0", full, kind = "" }) {
  const start = Number(offset) || 0;
  const path = `/v1/topics${query({
    filter, sort, kind, offset: start, limit: LIMIT, non_empty: full && "true",
  })}`;
  const { data, error, retry } = useLive(path);
  const narrowed = filter || full || kind;
  const empty = narrowed
    ? html`<${Empty} title="No topic matches.">
        <button class="link"
          onClick=${() => replace({ filter: "", full: "", kind: "", offset: "" })}>
          Show all topics</button><//>`
    : html`<${Empty} title="There are no topics yet.">
        A topic appears when a client publishes to it or subscribes to it.${" "}
        <a href=${link("publish")}>Publish the first message</a>.<//>`;
  return html`
    <div class="stack">
      <${Head} title="Topics"
        tags=${data && html`<span class="muted">${count(data.total)}</span>`}>
        ${may("operator") && html`<${Button} onClick=${create}>Create a topic<//>`}
      <//>
      <section class="filters" aria-label="Filter">
        <${Search} label="Filter by name" value=${filter}
          onChange=${(text) => replace({ filter: text, offset: "" })} />
        <${Choice} label="Protocol" value=${kind}
          options=${[["", "All"], ["nsq", "NSQ"], ["stan", "STAN"]]}
          onChange=${(value) => replace({ kind: value, offset: "" })} />
        <label class="check">
          <input type="checkbox" checked=${Boolean(full)}
            onChange=${(event) => replace({ full: event.target.checked ? 1 : "", offset: "" })} />
          Not empty only
        </label>
      </section>
      <${Loaded} data=${data} error=${error} retry=${retry} what="the topics">
        ${data && html`<div class="panel" data-sort=${data.sort}>
          <${Table} label="Topics" columns=${COLUMNS} rows=${data.topics} sort=${sort}
            keyOf=${(row) => `${row.kind} ${row.name}`} empty=${empty}
            onSort=${(order) => replace({ sort: order, offset: "" })}
            onRow=${(row) => { location.hash = link("topic", { topic: row.name }); }} />
          ${data.matched > 0 && html`<${Pages} offset=${data.offset} limit=${LIMIT}
            total=${data.matched} what="topic"
            onOffset=${(value) => replace({ offset: value || "" })} />`}
        </div>`}
      <//>
    </div>`;
}
