// hash: #overview #topics #topic?topic=T #channel?topic=T&channel=C #dead-letters #nats #jetstream #stream?account=A&stream=S #publish #readers #configuration
// The frame of the console: which page is shown, navigation, keys, login.
//
// A page is a module of pages/ that is loaded when it is first opened. It exports `Page`, which is
// given the parameters of its address. Addresses stand behind the #, so the server has one page.

import { login, logout, link, live, route, session, start } from "./api.js";
import {
  Button, Dialogs, Empty, Guarded, Head, Loaded, Notice, Toasts, dialog, open,
} from "./parts.js";
import { html, render, useEffect, useRef, useState } from "./vendor/ui.js";

const PAGES = [
  { path: "overview", title: "Overview", key: "o", module: "overview" },
  { path: "topics", title: "Topics", key: "t", module: "topics" },
  { path: "dead-letters", title: "Dead letters", key: "d", module: "dead_letters" },
  { path: "nats", title: "NATS", key: "n", module: "nats" },
  { path: "jetstream", title: "JetStream", key: "s", module: "jetstream" },
  { path: "publish", title: "Publish and tail", key: "p", module: "publish" },
  { path: "readers", title: "Readers and pipelines", key: "r", module: "readers" },
  { path: "configuration", title: "Configuration", key: "c", module: "configuration" },
];
const INNER = [
  { path: "topic", title: "Topic", module: "topic", under: "topics" },
  { path: "channel", title: "Channel", module: "topic", under: "topics" },
  { path: "stream", title: "Stream", module: "stream", under: "jetstream" },
];

const pageOf = (path) => [...PAGES, ...INNER].find((page) => page.path === path);

// --- keys ----------------------------------------------------------------------------------------

const SHORTCUTS = [
  ["?", "List the shortcuts"],
  ["/", "Filter"],
  ...PAGES.map((page) => [`g ${page.key}`, page.title]),
  ["j k", "Next and previous row of a table"],
  ["Esc", "Close a dialog, leave a field"],
];

const Shortcuts = ({ close, title }) => html`
  <div class="stack">
    <h2 id=${title}>Keyboard shortcuts</h2>
    <dl class="facts">
      ${SHORTCUTS.map(
        ([keys, what]) => html`
          <dt key=${keys}>${keys.split(" ").map((key) => html`<kbd>${key}</kbd>${" "}`)}</dt>
          <dd>${what}</dd>`,
      )}
    </dl>
    <div class="actions"><${Button} onClick=${close}>Close<//></div>
  </div>`;

function stepRow(step) {
  const links = [...document.querySelectorAll("main tbody tr:not(.detail)")]
    .map((row) => row.querySelector("a, button"))
    .filter(Boolean);
  const here = links.findIndex((one) => one.closest("tr").contains(document.activeElement));
  links[Math.max(0, Math.min(links.length - 1, here + step))]?.focus();
}

function keys() {
  let went = 0; // when `g` was pressed
  return (event) => {
    const writing = event.target.closest?.("input, textarea, select");
    if (event.key === "Escape" && writing && !dialog.value) writing.blur();
    if (writing || dialog.value || event.ctrlKey || event.metaKey || event.altKey) return;
    const page = Date.now() - went < 1500 && PAGES.find((one) => one.key === event.key);
    went = event.key === "g" ? Date.now() : 0;
    if (page) location.hash = link(page.path);
    else if (event.key === "?") open(Shortcuts);
    else if (event.key === "/") document.querySelector("main [data-filter]")?.focus();
    else if (event.key === "j") stepRow(1);
    else if (event.key === "k") stepRow(-1);
    else return;
    event.preventDefault();
  };
}

// --- the frame -----------------------------------------------------------------------------------

const LIVE = {
  off: ["", ""],
  waiting: ["warn", "Connecting"],
  live: ["good", "Live"],
  hidden: ["", "Paused"],
  lost: ["bad", "No connection"],
};

const Mark = () => html`
  <svg width="20" height="20" viewBox="0 0 24 24" fill="none" stroke="currentColor"
    stroke-width="2.4" stroke-linecap="round" aria-hidden="true">
    <path d="M3 8c6 0 6 8 12 8h6" /><path d="M3 16c6 0 6-8 12-8h6" />
  </svg>`;

function Side({ current }) {
  const [kind, text] = LIVE[live.value];
  const { user, version } = session.value;
  const pages = useRef();
  useEffect(() => {
    // On narrow screens the pages are one line that scrolls: show which is open.
    const place = pages.current.querySelector("[aria-current]");
    if (place)
      pages.current.scrollLeft =
        place.offsetLeft - (pages.current.clientWidth - place.offsetWidth) / 2;
  }, [current]);
  return html`
    <div class="side">
      <a class="brand" href=${link("overview")}><${Mark} />Twinwire</a>
      <nav class="nav" aria-label="Pages" ref=${pages}>
        ${PAGES.map(
          (page) => html`
            <a key=${page.path} href=${link(page.path)}
              aria-current=${current === page.path ? "page" : undefined}>${page.title}</a>`,
        )}
      </nav>
      <footer>
        ${text && html`<span class=${`state ${kind}`}>${text}</span>`}
        ${version && html`<span>${version}</span>`}
        ${user && html`<span>${user}</span>`}
        ${user && html`<button class="link" onClick=${logout}>Log out</button>`}
        <button class="link" onClick=${() => open(Shortcuts)}>Shortcuts <kbd>?</kbd></button>
      </footer>
    </div>`;
}

const modules = new Map();

function Body({ page, parameters }) {
  const [, drawn] = useState(0);
  const [error, fail] = useState(null);
  const shown = modules.get(page.module);
  useEffect(() => {
    const { channel, topic, stream } = parameters;
    document.title = `${channel ?? topic ?? stream ?? page.title} – Twinwire`;
  }, [page, parameters.topic, parameters.channel, parameters.stream]);
  useEffect(() => {
    if (shown) return;
    import(`./pages/${page.module}.js`).then((module) => {
      modules.set(page.module, module.Page);
      drawn((n) => n + 1);
    }, fail);
  }, [page.module]);
  return html`
    <${Loaded} data=${shown} error=${error} what="the page" retry=${() => location.reload()}>
      ${shown && html`<${Guarded} key=${page.path}><${shown} ...${parameters} path=${page.path} /><//>`}
    <//>`;
}

function Frame() {
  const { path, parameters } = route.value;
  const page = pageOf(path);
  const main = useRef();
  const first = useRef(true);
  useEffect(() => {
    const pressed = keys();
    addEventListener("keydown", pressed);
    return () => removeEventListener("keydown", pressed);
  }, []);
  useEffect(() => {
    if (!first.current) {
      scrollTo(0, 0);
      main.current.focus();
    }
    first.current = false;
  }, [path, parameters.topic, parameters.channel, parameters.stream]);
  const toMain = (event) => {
    event.preventDefault();
    main.current.focus();
  };
  return html`
    <a class="skip" href="#main" onClick=${toMain}>Skip to the content</a>
    <div class="frame">
      <${Side} current=${page?.under ?? path} />
      <main class="page" id="main" tabindex="-1" ref=${main}>
        ${page
          ? html`<${Body} page=${page} parameters=${parameters} />`
          : html`<div class="stack"><${Head} title="Page not found" />
              <div class="panel"><${Empty} title="The console has no page at this address.">
                <a href=${link("overview")}>Go to the overview</a><//></div></div>`}
      </main>
    </div>`;
}

// --- login ---------------------------------------------------------------------------------------

function Login() {
  const [state, setState] = useState({});
  const name = useRef();
  useEffect(() => name.current.focus(), []);
  const go = async (event) => {
    event.preventDefault();
    const { user, password } = event.target.elements;
    setState({ busy: true });
    try {
      await login(user.value, password.value);
    } catch (error) {
      setState({ error });
    }
  };
  return html`
    <main class="login">
      <form class="panel stack" onSubmit=${go}>
        <h1 class="brand"><${Mark} />Twinwire</h1>
        <label class="field"><span>User</span>
          <input ref=${name} type="text" name="user" autocomplete="username" required />
        </label>
        <label class="field"><span>Password</span>
          <input type="password" name="password" autocomplete="current-password" required />
        </label>
        ${state.error && html`<${Notice} kind="bad" title="Not logged in.">${state.error.message}<//>`}
        <button class="button main" disabled=${state.busy}>Log in</button>
      </form>
    </main>`;
}

function App() {
  const now = session.value;
  if (now === null) return html`<main class="page"><p role="status">Connecting …</p></main>`;
  if (now.error)
    return html`<main class="page">
      <${Notice} kind="bad" title="The broker does not answer." onRetry=${start}>
        ${now.error.message}<//>
    </main>`;
  return html`${now.wanted ? html`<${Login} />` : html`<${Frame} />`}<${Dialogs} /><${Toasts} />`;
}

start();
render(html`<${App} />`, document.getElementById("app"));
