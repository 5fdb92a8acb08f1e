// Readers of the bulk interface and the pipelines behind them: their lag and what they hold.

import { at, link, may, query, remove, useLive } from "../api.js";
import {
  Button, Count, Empty, Facts, Head, Loaded, Panel, Table, Tag, Tile, Time, compact, confirm, count,
  duration,
} from "../parts.js";
import { html } from "../vendor/ui.js";

const STATES = {
  ok: ["good", "fine"],
  no_topic: ["warn", "no such topic"],
  other_incarnation: ["warn", "topic was made again"],
  in_memory: ["", "in memory only"],
  stream: ["", "stream, not held"],
  trimmed: ["bad", "messages are gone"],
};

const POSITIONS = [
  { id: "topic", title: "Topic", head: true, kind: "name",
    cell: (row) => html`<a href=${link("topic", { topic: row.topic })}>${row.topic}</a>` },
  { id: "seq", title: "Sequence", num: true, cell: (row) => count(row.seq) },
  { id: "lag", title: "Lag", num: true, cell: (row) => html`<${Count} value=${row.lag} />` },
  { id: "state", title: "State", cell: (row) => {
    const [kind, text] = STATES[row.state] ?? ["", row.state];
    return html`<${Tag} kind=${kind}>${text}<//>`;
  } },
];

const erase = (reader) =>
  confirm({
    title: `Delete the reader ${reader.name}?`,
    text: "Its positions are forgotten, and what it holds can be dropped.",
    verb: "Delete",
    danger: true,
    typed: reader.name,
    act: async () => {
      await remove(`${at("readers", reader.name)}${query({ confirm: reader.name })}`);
      return `Deleted the reader ${reader.name}.`;
    },
  });

const Reader = ({ reader }) => html`
  <${Panel} title=${reader.name} note=${reader.hold ? "holds messages" : "holds nothing"}
    actions=${may("admin") && html`<${Button} kind="small danger" onClick=${() => erase(reader)}>
      Delete<//>`} bare>
    <div class="body">
      <${Facts} rows=${[
        ["Lag", `${count(reader.lag)} messages`],
        ["Last archive", html`<${Time} at=${reader.renewed} />`],
        ["Expires in", duration(reader.expires_in_s)],
      ]} />
    </div>
    <${Table} label=${`Positions of ${reader.name}`} columns=${POSITIONS} rows=${reader.positions}
      keyOf=${(row) => row.topic} empty=${html`<${Empty} title="It has read nothing yet." />`} />
  <//>`;

export function Page() {
  const { data, error, retry } = useLive("/v1/readers");
  const readers = data?.readers ?? [];
  const lags = readers.map((one) => one.lag).filter((lag) => lag !== null);
  return html`
    <div class="stack">
      <${Head} title="Readers and pipelines"
        lead="Jobs that read topics as a whole. What a reader holds is kept until it has read it." />
      <${Loaded} data=${data} error=${error} retry=${retry} what="the readers">
        ${data && !data.enabled && html`<div class="panel"><${Empty} title="The bulk interface is off.">
          Set bulk.listen in the configuration.<//></div>`}
        ${data?.enabled && html`
          <dl class="tiles">
            <${Tile} title="Readers" value=${count(readers.length)} />
            <${Tile} title="Largest lag" value=${lags.length ? compact(Math.max(...lags)) : "–"} />
            <${Tile} title="Ranges read" value=${compact(data.pipelines.ranges)} />
            <${Tile} title="Records read" value=${compact(data.pipelines.records)} />
            <${Tile} title="Commits" value=${compact(data.pipelines.commits)} />
          </dl>
          ${readers.length
            ? html`<div class="grid">
                ${readers.map((one) => html`<${Reader} key=${one.name} reader=${one} />`)}</div>`
            : html`<div class="panel"><${Empty} title="There are no readers.">
                A pipeline registers one when it first archives a topic.<//></div>`}`}
      <//>
    </div>`;
}
