// The overview: what the broker does now, whether it is well, what needs attention.

import { link, useLive } from "../api.js";
import {
  Bar, Chart, Count, Empty, Facts, Head, Loaded, Panel, Table, Tag, Tile, bytes, compact, count,
  duration, plural, rate,
} from "../parts.js";
import { html } from "../vendor/ui.js";

const KINDS = { error: "bad", critical: "bad", warning: "warn" };

export const place = (topic, channel) =>
  channel ? link("channel", { topic, channel }) : link("topic", { topic });

const placeOf = ({ topic, channel, account, stream }) =>
  stream ? link("stream", { account, stream, view: "consumers" }) : topic && place(topic, channel);

/** The findings have what makes the broker unhealthy, and what does not but needs somebody. */
function Attention({ findings: all }) {
  return html`
    <${Panel} bare title="Needs attention"
      note=${all.length ? plural(all.length, "finding") : undefined}>
      ${all.length
        ? html`<ul class="findings">
            ${all.map(
              (one, number) => html`
                <li key=${number}>
                  <${Tag} kind=${KINDS[one.severity] ?? ""}>${one.severity}<//>
                  <span>
                    ${placeOf(one) ? html`<a href=${placeOf(one)}>${one.text}</a>` : one.text}
                  </span>
                </li>`,
            )}
          </ul>`
        : html`<${Empty} title="Nothing needs attention.">
            Stalled channels and consumers, failing dead letters, a full disk and slow clients
            appear here.<//>`}
    <//>`;
}

const LISTENERS = [
  { id: "name", title: "Listener", head: true, kind: "tight", cell: (row) => row.name },
  { id: "address", title: "Address", kind: "tight", less: true,
    cell: (row) => html`<span class="mono">${row.address}</span>` },
  { id: "connections", title: "Connections", num: true,
    cell: (row) => html`<${Count} value=${row.connections} />` },
  { id: "in", title: "In", num: true, cell: (row) => html`<${Count} value=${row.in_msgs} />` },
  { id: "out", title: "Out", num: true,
    cell: (row) => html`<${Count} value=${row.out_msgs} />` },
];

/** All open listeners: those that carry messages have numbers. */
const listeners = ({ server, listeners: counted }) =>
  [...new Set([...counted.map((row) => row.name), ...Object.keys(server.ports)])].map((name) => ({
    name, address: server.ports[name], ...counted.find((row) => row.name === name),
  }));

function Disk({ disk }) {
  const used = disk.total_bytes ? 1 - disk.free_bytes / disk.total_bytes : 0;
  const text = `${bytes(disk.free_bytes)} of ${bytes(disk.total_bytes)} free`;
  return html`<div class="disk"><span>${text}</span>
    <${Bar} part=${used} label=${`${Math.round(used * 100)} percent of the disk is used`} /></div>`;
}

export function Page() {
  const { data, error, retry } = useLive("/v1/overview");
  if (!data || error)
    return html`<div class="stack"><${Head} title="Overview" />
      <${Loaded} data=${data} error=${error} retry=${retry} what="the overview" /></div>`;
  const { server, health, rates, topics, readers, history, process, jetstream } = data;
  const times = history.in_msgs.map(
    (_, place, all) => history.end - (all.length - 1 - place) * history.step_s,
  );
  const urgent = data.attention.length > 0;
  const attention = html`<${Attention} key="attention" findings=${data.attention} />`;
  return html`
    <div class="stack">
      <${Head} title=${server.name || "Overview"}
        tags=${html`<${Tag} kind=${health.ok ? "good" : "bad"}>
          ${health.ok ? "healthy" : "not healthy"}<//>`}
        lead=${`Twinwire ${server.version}, up for ${duration(server.uptime_s)}`} />
      <dl class="tiles">
        <${Tile} title="In" mark="in" value=${rate(rates.in_msgs)} unit="msg/s"
          more=${`${bytes(rates.in_bytes)}/s`} />
        <${Tile} title="Out" mark="out" value=${rate(rates.out_msgs)} unit="msg/s"
          more=${`${bytes(rates.out_bytes)}/s`} />
        <${Tile} title="Depth" value=${compact(topics.depth)}
          more=${`${count(topics.deferred)} deferred`} />
        <${Tile} title="In flight" value=${compact(topics.in_flight)} />
        <${Tile} title="Topics" value=${compact(topics.count)}
          more=${`${count(topics.channels)} channels, ${count(topics.paused)} paused`} />
        ${jetstream && html`<${Tile} title="Streams" value=${compact(jetstream.streams)}
          more=${`${compact(jetstream.messages)} messages, ${bytes(jetstream.bytes)}`} />`}
        <${Tile} title="Stored" value=${bytes(topics.bytes)}
          more=${data.disk && html`${bytes(data.disk.free_bytes)} free`} />
        <${Tile} title="Lag of readers" value=${compact(readers.lag)}
          more=${plural(readers.count, "reader")} />
      </dl>
      ${urgent && attention}
      <div class="grid">
        <${Panel} title="Messages per second">
          <${Chart} label="Messages per second, in and out" times=${times} as=${rate}
            series=${[
              { label: "In", color: "in", values: history.in_msgs },
              { label: "Out", color: "out", values: history.out_msgs },
            ]} />
        <//>
        <${Panel} title="Depth">
          <${Chart} label="Messages that wait" times=${times} as=${compact}
            series=${[{ label: "Waiting", color: "accent", values: history.depth }]} />
        <//>
      </div>
      ${!urgent && attention}
      <div class="grid roomy">
        <${Panel} bare title="Listeners" note="messages since the start">
          <${Table} label="Listeners" columns=${LISTENERS} rows=${listeners(data)}
            keyOf=${(row) => row.name}
            empty=${html`<${Empty} title="No listener is open.">
              See the section of each protocol in the configuration.<//>`} />
        <//>
        <${Panel} title="Process">
          <${Facts} rows=${[
            ["Memory", bytes(process.memory_bytes)],
            ["CPU", `${rate(process.cpu_percent)} %`],
            ["Open files", count(process.open_files)],
            data.disk && ["Data folder", html`<span class="mono">${data.disk.path}</span>`],
            data.disk && ["Disk", html`<${Disk} disk=${data.disk} />`],
          ]} />
        <//>
      </div>
    </div>`;
}
