// What pages are made of: numbers and times as text, tables, dialogs, charts.
//
// Names and bodies come from anybody: they become text nodes and never markup. Widths of bars and
// the like are set by the DOM after drawing, because the page's policy forbids style attributes.

import { html, signal, useEffect, useErrorBoundary, useId, useRef, useState } from "./vendor/ui.js";

// --- text ----------------------------------------------------------------------------------------

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const tenth = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });
const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const NOTHING = "–";

const isNumber = (value) => typeof value === "number" && Number.isFinite(value);

export const count = (value) => (isNumber(value) ? whole.format(value) : NOTHING);

export const compact = (value) =>
  !isNumber(value) ? NOTHING : value < 10_000 ? whole.format(value) : short.format(value);

export const rate = (value) =>
  !isNumber(value) ? NOTHING : value && value < 10 ? tenth.format(value) : compact(value);

export function bytes(value) {
  if (!isNumber(value)) return NOTHING;
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let unit = 0;
  for (; value >= 1024 && unit < units.length - 1; unit++) value /= 1024;
  return `${unit && value < 100 ? tenth.format(value) : whole.format(value)} ${units[unit]}`;
}

export function duration(seconds) {
  if (!isNumber(seconds)) return NOTHING;
  if (seconds && seconds < 1) return `${Math.max(1, Math.round(seconds * 1000))} ms`;
  if (seconds < 60) return `${tenth.format(seconds)} s`;
  const parts = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
  const first = parts.findIndex(([size]) => seconds >= size);
  return parts
    .slice(first, first + 2)
    .map(([size, unit], place) => {
      const rest = place ? seconds % parts[first][0] : seconds;
      return [Math.floor(rest / size), unit];
    })
    .filter(([amount]) => amount)
    .map((pair) => pair.join(" "))
    .join(" ");
}

const pad = (number, size = 2) => String(number).padStart(size, "0");

/** Local time; `moment`: seconds since 1970, or RFC 3339 as the broker writes it. */
export function time(moment, fractions = false) {
  const at = new Date(isNumber(moment) ? moment * 1000 : (moment ?? NaN));
  if (Number.isNaN(at.getTime())) return NOTHING;
  const day = `${at.getFullYear()}-${pad(at.getMonth() + 1)}-${pad(at.getDate())}`;
  const clock = `${pad(at.getHours())}:${pad(at.getMinutes())}:${pad(at.getSeconds())}`;
  return `${day} ${clock}${fractions ? `.${pad(at.getMilliseconds(), 3)}` : ""}`;
}

export const plural = (number, one, many = `${one}s`) =>
  `${count(number)} ${number === 1 ? one : many}`;

/** A number of a table: zeros step back, so that the others stand out. */
export const Count = ({ value, as = count }) =>
  html`<span class=${value ? undefined : "zero"}>${as(value)}</span>`;

/** `clock`: without the day, where all moments are of now. */
export const Time = ({ at, fractions, clock }) =>
  at
    ? html`<time datetime=${at}>${time(at, fractions).slice(clock ? "2026-01-01 ".length : 0)}</time>`
    : NOTHING;

// --- what happened -------------------------------------------------------------------------------

export const toasts = signal([]);
let toastNumber = 0;

export function tell(text, kind = "good") {
  const toast = { id: ++toastNumber, text, kind };
  toasts.value = [...toasts.value.slice(-3), toast];
  if (kind === "good") setTimeout(() => forget(toast.id), 6000);
}

const forget = (id) => {
  toasts.value = toasts.value.filter((toast) => toast.id !== id);
};

export const Toasts = () => html`
  <div class="toasts" role="status" aria-live="polite">
    ${toasts.value.map(
      (toast) => html`
        <div class=${`notice ${toast.kind}`} key=${toast.id}>
          <span>${toast.text}</span>
          <button class="link" onClick=${() => forget(toast.id)}>Close</button>
        </div>`,
    )}
  </div>`;

export const Notice = ({ kind = "", title, children, onRetry }) => html`
  <div class=${`notice ${kind}`} role=${kind === "bad" ? "alert" : undefined}>
    ${title && html`<strong>${title}</strong>`}<span>${children}</span>
    ${onRetry && html`<button class="button small" onClick=${onRetry}>Try again</button>`}
  </div>`;

export const Empty = ({ title, children }) =>
  html`<div class="empty"><strong>${title}</strong><p>${children}</p></div>`;

/** The states of something asked for: failed, not yet here, here. */
export function Loaded({ data, error, retry, children, what = "this" }) {
  if (error)
    return html`<${Notice} kind="bad" title=${`Cannot show ${what}.`} onRetry=${retry}>
      ${error.message}
    <//>`;
  if (data === undefined || data === null) return html`<p class="muted" role="status">Loading …</p>`;
  return children;
}

/** A fault of the page itself does not leave a blank window. */
export function Guarded({ children }) {
  const [error, reset] = useErrorBoundary();
  return error
    ? html`<${Notice} kind="bad" title="This page failed." onRetry=${reset}>${String(error)}<//>`
    : children;
}

// --- pieces --------------------------------------------------------------------------------------

export const Tag = ({ kind = "", children }) => html`<span class=${`tag ${kind}`}>${children}</span>`;

export const Head = ({ title, crumbs, tags, lead, children }) => html`
  <header class="head">
    ${crumbs && html`<nav class="crumbs" aria-label="Path">${crumbs}</nav>`}
    <h1>${title}</h1>
    ${tags}
    ${children && html`<div class="actions">${children}</div>`}
    ${lead && html`<p class="lead">${lead}</p>`}
  </header>`;

export function Panel({ title, note, actions, bare, wide, children }) {
  const id = useId();
  return html`
    <section class=${wide ? "panel wide" : "panel"} aria-labelledby=${id}>
      <header>
        <h2 id=${id}>${title}</h2>
        ${note && html`<span class="note">${note}</span>`}
        ${actions && html`<div class="actions">${actions}</div>`}
      </header>
      ${bare ? children : html`<div class="body">${children}</div>`}
    </section>`;
}

export const Tile = ({ title, value, unit, more, mark }) => html`
  <div class="tile">
    <dt>${mark && html`<i class=${`key ${mark}`}></i>`}${title}</dt>
    <dd>${value}${unit && html` <small>${unit}</small>`}</dd>
    ${more && html`<dd class="more">${more}</dd>`}
  </div>`;

export const Facts = ({ rows }) => html`
  <dl class="facts">
    ${rows
      .filter(Boolean)
      .map(([name, value]) => html`<dt key=${name}>${name}</dt><dd>${value}</dd>`)}
  </dl>`;

export const Button = ({ kind = "", children, ...rest }) =>
  html`<button type="button" class=${`button ${kind}`} ...${rest}>${children}</button>`;

/** A few choices of which one is on. */
export const Choice = ({ label, value, options, onChange }) => html`
  <div class="tabs" role="group" aria-label=${label}>
    ${options.map(
      ([key, text]) => html`
        <button type="button" key=${key} aria-pressed=${String(key === value)}
          onClick=${() => onChange(key)}>${text}</button>`,
    )}
  </div>`;

export function Field({ label, hint, wide, children }) {
  return html`<label class=${wide ? "field wide" : "field"}>
    <span>${label}</span>${children}${hint && html`<small class="hint">${hint}</small>`}
  </label>`;
}

/** A text that filters: told when typing pauses. */
export function Search({ label, value, onChange, placeholder }) {
  const timer = useRef(0);
  const field = useRef();
  useEffect(() => {
    if (document.activeElement !== field.current) field.current.value = value ?? "";
  }, [value]);
  const typed = (event) => {
    const text = event.target.value;
    clearTimeout(timer.current);
    timer.current = setTimeout(() => onChange(text), 60);
  };
  return html`<input ref=${field} type="search" data-filter aria-label=${label} onInput=${typed}
    placeholder=${placeholder ?? label} autocomplete="off" spellcheck=${false}
    defaultValue=${value} />`;
}

export function Bar({ part, label }) {
  const inner = useRef();
  const percent = Math.max(0, Math.min(100, part * 100));
  useEffect(() => {
    inner.current.style.width = `${percent}%`;
  }, [percent]);
  return html`<span class="bar" role="img" aria-label=${label}><i ref=${inner}></i></span>`;
}

// --- tables --------------------------------------------------------------------------------------

/**
 * Rows by columns: {id, title, cell(row), num, sort, less, head, kind}. `less` hides a column on
 * narrow screens, `head` names the row. Sorting is the server's: `onSort` is told the new order.
 * `detail(row)`: what stands below a row that is open.
 */
export function Table({ label, columns, rows, keyOf, sort, onSort, empty, onRow, selected, detail }) {
  const turn = (id) => onSort(sort === id ? `-${id}` : sort === `-${id}` ? id : firstOrder(columns, id));
  const kinds = (column) =>
    [column.num && "num", column.less && "less", column.kind].filter(Boolean).join(" ") || undefined;
  if (!rows.length && empty) return empty;
  return html`
    <div class="scroll" role="region" aria-label=${label} tabindex="0">
      <table>
        <caption class="unseen">${label}</caption>
        <thead>
          <tr>
            ${columns.map(
              (column) => html`
                <th key=${column.id} scope="col" class=${kinds(column)}
                  aria-sort=${orderOf(sort, column.id)}>
                  ${column.sort
                    ? html`<button type="button" onClick=${() => turn(column.id)}>
                        ${column.title}<span class="arrow" aria-hidden="true">
                          ${{ ascending: "▲", descending: "▼" }[orderOf(sort, column.id)] ?? ""}
                        </span>
                      </button>`
                    : column.title}
                </th>`,
            )}
          </tr>
        </thead>
        <tbody>
          ${rows.flatMap((row) => [
            html`
              <tr key=${keyOf(row)} class=${selected?.(row) ? "on" : undefined}
                onClick=${onRow && ((event) => inactive(event.target) && onRow(row))}>
                ${columns.map((column) =>
                  column.head
                    ? html`<th key=${column.id} scope="row" class=${kinds(column)}>
                        ${column.cell(row)}
                      </th>`
                    : html`<td key=${column.id} class=${kinds(column)}>${column.cell(row)}</td>`,
                )}
              </tr>`,
            detail && selected(row) && html`<tr key=${`${keyOf(row)} detail`} class="detail">
              <td colspan=${columns.length}>${detail(row)}</td></tr>`,
          ])}
        </tbody>
      </table>
    </div>`;
}

const inactive = (element) => !element.closest("a, button, input, label");
const orderOf = (sort, id) =>
  sort === id ? "ascending" : sort === `-${id}` ? "descending" : undefined;
const firstOrder = (columns, id) => (columns.find((one) => one.id === id).num ? `-${id}` : id);

/** Which rows of how many are shown, and the way to the others. */
export const Pages = ({ offset, limit, total, onOffset, what = "row" }) => html`
  <div class="foot">
    <span>
      ${total
        ? `${count(offset + 1)}–${count(Math.min(offset + limit, total))} of ${plural(total, what)}`
        : `No ${what}s`}
    </span>
    ${total > limit &&
    html`<div class="actions">
      <${Button} kind="small" disabled=${!offset}
        onClick=${() => onOffset(Math.max(0, offset - limit))}>Previous<//>
      <${Button} kind="small" disabled=${offset + limit >= total}
        onClick=${() => onOffset(offset + limit)}>Next<//>
    </div>`}
  </div>`;

// --- dialogs -------------------------------------------------------------------------------------

export const dialog = signal(null);

/** Show a dialog: `open(({ close }) => html...)`. */
export const open = (content) => {
  dialog.value = content;
};

export function Dialogs() {
  const box = useRef();
  const before = useRef(null);
  const content = dialog.value;
  const close = () => {
    dialog.value = null;
  };
  useEffect(() => {
    const element = box.current;
    if (content && !element.open) {
      before.current = document.activeElement;
      element.showModal();
    } else if (!content && element.open) {
      element.close();
      if (before.current?.isConnected) before.current.focus();
    }
  }, [content]);
  const title = useId();
  return html`
    <dialog ref=${box} onClose=${close} aria-labelledby=${title}>
      ${content && html`<${content} close=${close} title=${title} />`}
    </dialog>`;
}

/**
 * Ask before something happens. `typed`: a name that must be typed, for what cannot be undone.
 * `fields`: (values, change) => elements for what the action needs.
 */
export function confirm({ title, text, verb, typed, danger, fields, initial = {}, act }) {
  open(function Confirm({ close, title: id }) {
    const [name, setName] = useState("");
    const [values, setValues] = useState(initial);
    const [state, setState] = useState({});
    const change = (key, value) => setValues((old) => ({ ...old, [key]: value }));
    const go = async (event) => {
      event.preventDefault();
      setState({ busy: true });
      try {
        const said = await act(values);
        close();
        if (said) tell(said);
      } catch (error) {
        setState({ error });
      }
    };
    const blocked = state.busy || (typed !== undefined && name !== typed);
    return html`
      <form class="stack" onSubmit=${go}>
        <h2 id=${id}>${title}</h2>
        ${text && html`<p>${text}</p>`}
        ${fields?.(values, change)}
        ${typed !== undefined &&
        html`<${Field} label=${html`Type <code>${typed}</code> to confirm`}>
          <input type="text" value=${name} autofocus autocomplete="off" spellcheck=${false}
            data-typed onInput=${(event) => setName(event.target.value)} />
        <//>`}
        ${state.error && html`<${Notice} kind="bad" title="Nothing was changed.">
          ${state.error.message}<//>`}
        <div class="actions">
          <${Button} onClick=${close}>Cancel<//>
          <button class=${`button main ${danger ? "danger" : ""}`} disabled=${blocked}>
            ${state.busy ? "Working …" : verb}
          </button>
        </div>
      </form>`;
  });
}

// --- charts --------------------------------------------------------------------------------------

let plotting; // the chart library, loaded with the first chart

function library() {
  plotting ??= import("./vendor/uplot.js").then((module) => {
    const sheet = new CSSStyleSheet();
    sheet.replaceSync(module.css);
    document.adoptedStyleSheets = [...document.adoptedStyleSheets, sheet];
    return module.default;
  });
  return plotting;
}

const dark = matchMedia("(prefers-color-scheme: dark)");

/** Lines over time. `series`: [{ label, color: "in" or another of the CSS's names, values }]. */
export function Chart({ label, times, series, as = compact }) {
  const place = useRef();
  const plot = useRef(null);
  const [theme, setTheme] = useState(dark.matches);
  const data = [times, ...series.map((one) => one.values)];
  useEffect(() => {
    const changed = () => setTheme(dark.matches);
    dark.addEventListener("change", changed);
    return () => dark.removeEventListener("change", changed);
  }, []);
  useEffect(() => {
    let gone = false;
    let watch;
    const box = place.current;
    library().then((Plot) => {
      if (gone) return;
      plot.current = new Plot(chartOptions(box, series, as), data, box);
      watch = new ResizeObserver(() =>
        plot.current?.setSize({ width: box.clientWidth, height: box.clientHeight }),
      );
      watch.observe(box);
    });
    return () => {
      gone = true;
      watch?.disconnect();
      plot.current?.destroy();
      plot.current = null;
    };
  }, [theme, series.length]);
  useEffect(() => plot.current?.setData(data));
  const last = times.length - 1;
  return html`
    <figure class="stack" aria-label=${label}>
      <div class="legend">
        ${series.map(
          (one) => html`<span key=${one.label}>
            <i class=${`key ${one.color}`}></i>${one.label} ${last < 0 ? NOTHING : as(one.values[last])}
          </span>`,
        )}
      </div>
      <div class="chart" ref=${place} aria-hidden="true"></div>
    </figure>`;
}

/** A value without neighbours is no line: it is drawn as a point. */
const lonely = (plot, number) => {
  const values = plot.data[number];
  const missing = (place) => values[place] === null || values[place] === undefined;
  return values.map((_, place) => place).filter(
    (place) => !missing(place) && missing(place - 1) && missing(place + 1));
};

const WHOLE = Array.from({ length: 16 }, (_, power) => [1, 2, 5].map((n) => n * 10 ** power)).flat();
const TENTHS = [0.1, 0.2, 0.5, ...WHOLE];
const SPAN_MIN_S = 60;

/** A chart that has just begun is empty on its left, not stretched. */
function spanOf(first, last) {
  const end = Number.isFinite(last) ? last : Date.now() / 1000;
  return [Math.min(first ?? end, end - SPAN_MIN_S), end];
}

function chartOptions(box, series, as) {
  const style = getComputedStyle(box);
  const color = (name) => style.getPropertyValue(`--${name}`).trim();
  const font = `12px ${color("sans")}`;
  const axis = {
    stroke: color("muted"),
    font,
    grid: { stroke: color("line"), width: 1 },
    ticks: { show: false },
  };
  return {
    width: box.clientWidth,
    height: box.clientHeight,
    legend: { show: false },
    cursor: { y: false, points: { size: 6 } },
    padding: [8, 28, 0, 0],
    scales: {
      // uPlot gives a day to a single point
      x: { range: (plot, first, last) => spanOf(first, plot.data[0].length > 1 ? last : first) },
      y: { range: (_, low, high) => [0, high > 0 ? high * 1.1 : 1] },
    },
    axes: [
      { ...axis, size: 28, space: 90, values: (_, all) => all.map((at) => time(at).slice(11)) },
      { ...axis, size: 52, space: 32, incrs: as === compact ? WHOLE : TENTHS,
        values: (_, all) => all.map((value) => as(value)) },
    ],
    series: [
      {},
      ...series.map((one) => ({
        label: one.label,
        stroke: color(one.color),
        width: 1.5,
        points: { show: true, size: 5, fill: color(one.color), filter: lonely },
      })),
    ],
  };
}
