// The effective configuration with the origin of each value, and the newest lines of the log.

import { query, replace, useGet, useLive } from "../api.js";
import {
  Choice, Empty, Head, Loaded, Panel, Search, Table, Tag, Time, count,
} from "../parts.js";
import { html } from "../vendor/ui.js";

const SETTINGS = [
  { id: "key", title: "Setting", head: true, kind: "name", cell: (row) => html`
    <span class="mono">${row.section}.${row.key}</span>` },
  { id: "value", title: "Value", kind: "value", cell: (row) => html`<span class="mono">${String(row.value)}</span>` },
  { id: "origin", title: "From", cell: (row) => html`
    <${Tag} kind=${row.changed ? "accent" : ""}>${row.origin}<//>` },
];

function Settings({ filter, changed }) {
  const { data, error, refresh } = useGet("/v1/configuration");
  const wanted = filter.toLowerCase();
  const rows = (data?.settings ?? []).filter(
    (row) =>
      (!changed || row.changed) &&
      `${row.section}.${row.key} ${row.value} ${row.origin}`.toLowerCase().includes(wanted),
  );
  return html`
    <${Panel} bare title="Effective values" note=${data && count(rows.length)}
      actions=${html`<label class="check"><input type="checkbox" checked=${Boolean(changed)}
          onChange=${(event) => replace({ changed: event.target.checked ? 1 : "" })} />
          Not the default</label>
        <${Search} label="Filter settings" value=${filter}
          onChange=${(text) => replace({ filter: text })} />`}>
      <${Loaded} data=${data} error=${error} retry=${refresh} what="the configuration">
        <${Table} label="Settings" columns=${SETTINGS} rows=${rows}
          keyOf=${(row) => `${row.section}.${row.key}`}
          empty=${html`<${Empty} title="No setting matches." />`} />
      <//>
    <//>`;
}

const KINDS = { warning: "warn", error: "bad", critical: "bad" };
const LINES = [
  { id: "time", title: "Time", kind: "tight", head: true,
    cell: (row) => html`<span class="num"><${Time} at=${row.time} fractions /></span>` },
  { id: "level", title: "Level", kind: "tight",
    cell: (row) => html`<${Tag} kind=${KINDS[row.level] ?? ""}>${row.level}<//>` },
  { id: "logger", title: "Part", kind: "tight", less: true, cell: (row) => row.logger },
  { id: "message", title: "Message", kind: "message", cell: (row) => row.message },
];
const LEVELS = [["debug", "All"], ["info", "Info"], ["warning", "Warnings"], ["error", "Errors"]];

function Log({ filter, level }) {
  const { data, error, retry } = useLive(
    `/v1/logs${query({ level, contains: filter, limit: 200 })}`,
  );
  return html`
    <${Panel} bare title="Recent log lines" note="newest first"
      actions=${html`<${Choice} label="Level" value=${level} options=${LEVELS}
          onChange=${(value) => replace({ level: value })} />
        <${Search} label="Filter lines" value=${filter}
          onChange=${(text) => replace({ filter: text })} />`}>
      <${Loaded} data=${data} error=${error} retry=${retry} what="the log">
        ${data && html`<${Table} label="Log lines" columns=${LINES}
          rows=${data.records.toReversed()} keyOf=${(row) => row.number}
          empty=${html`<${Empty} title="No line matches.">
            Lines from before the start are in the log of the service manager.<//>`} />`}
      <//>
    <//>`;
}

const VIEWS = [["settings", "Settings"], ["log", "Log"]];

export const Page = ({ view = "settings", filter = "", level = "info", changed = "" }) => html`
  <div class="stack">
    <${Head} title="Configuration" />
    <${Choice} label="Show" value=${view} options=${VIEWS}
      onChange=${(value) => replace({ view: value, filter: "" })} />
    ${view === "log"
      ? html`<${Log} filter=${filter} level=${level} />`
      : html`<${Settings} filter=${filter} changed=${changed} />`}
  </div>`;
