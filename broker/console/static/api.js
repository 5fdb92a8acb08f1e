// What the page asks of the broker: the address shown, the session, requests, live events.

import { batch, signal, useEffect, useRef, useState } from "./vendor/ui.js";

// --- addresses: #path?name=value -----------------------------------------------------------------

export function query(values) {
  const found = new URLSearchParams();
  for (const [key, value] of Object.entries(values))
    if (value !== undefined && value !== null && value !== "" && value !== false)
      found.set(key, value);
  const text = found.toString();
  return text && `?${text}`;
}

export const link = (path, values = {}) => `#${path}${query(values)}`;
export const at = (...parts) => `/v1/${parts.map(encodeURIComponent).join("/")}`;

function read() {
  const [path, text] = location.hash.slice(1).split(/\?(.*)/s);
  return {
    path: path.replace(/^\//, "") || "overview",
    parameters: Object.fromEntries(new URLSearchParams(text)),
  };
}

export const route = signal(read());
addEventListener("hashchange", () => {
  route.value = read();
});

/** Change values of the address without a new entry of the history: filters, order, pages. */
export function replace(changed) {
  const { path, parameters } = route.value;
  history.replaceState(null, "", link(path, { ...parameters, ...changed }));
  route.value = read();
}

// --- requests ------------------------------------------------------------------------------------

export class Refused extends Error {
  constructor(status, code, message) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

export async function request(method, path, body, signal) {
  const headers = method === "GET" ? {} : { "Twinwire-Console": "1" };
  if (body !== undefined) headers["Content-Type"] = "application/json";
  let answer;
  try {
    answer = await fetch(path, {
      method,
      headers,
      signal,
      body: body === undefined ? undefined : JSON.stringify(body),
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused(0, "NO_ANSWER", "The broker does not answer. Is it running?");
  }
  const data = await answer.json().catch(() => ({}));
  if (answer.ok) return data;
  if (answer.status === 401 && data.code === "UNAUTHENTICATED") expired();
  throw new Refused(answer.status, data.code, sentence(data.message ?? `Status ${answer.status}.`));
}

const sentence = (text) =>
  `${text.charAt(0).toUpperCase()}${text.slice(1)}${/[.!?]$/.test(text) ? "" : "."}`;

export const get = (path, signal) => request("GET", path, undefined, signal);
export const post = (path, body) => request("POST", path, body);
export const patch = (path, body) => request("PATCH", path, body);
export const put = (path, body) => request("PUT", path, body);
export const remove = (path) => request("DELETE", path);

// --- the session ---------------------------------------------------------------------------------

export const session = signal(null); // null until the first answer
const RANKS = { viewer: 1, operator: 2, admin: 3 };

const known = (answer) => {
  session.value = { ...answer, wanted: answer.login && !answer.user };
};
const expired = () => {
  if (session.value) session.value = { ...session.value, user: null, role: null, wanted: true };
};

export async function start() {
  try {
    known(await get("/v1/session"));
  } catch (error) {
    session.value = { error };
  }
}

export const login = async (user, password) => known(await post("/v1/session", { user, password }));

export async function logout() {
  await remove("/v1/session");
  await start();
}

/** Whether the user may do what needs this role; nobody may if the console is read only. */
export const may = (role) =>
  !session.value.read_only && (RANKS[session.value.role] ?? 0) >= RANKS[role];

// --- live events ---------------------------------------------------------------------------------

export const live = signal("off"); // off, waiting, live, hidden, lost

/**
 * Follow a stream of events while the tab is visible. `handlers`: what to do with the data of each
 * kind of event. Returns a function that ends it.
 */
export function follow(path, handlers) {
  let source = null;
  const close = () => {
    source?.close();
    source = null;
  };
  const connect = () => {
    live.value = "waiting";
    source = new EventSource(path);
    source.onopen = () => {
      live.value = "live";
    };
    source.onerror = () => {
      live.value = "lost";
      // A refusal closes the source for good: ask why, perhaps the login ended.
      if (source?.readyState === EventSource.CLOSED) {
        close();
        get("/v1/session").then((answer) => {
          known(answer);
          if (!session.value.wanted) setTimeout(turn, 3000);
        }, () => setTimeout(turn, 3000));
      }
    };
    for (const [kind, handle] of Object.entries(handlers))
      source.addEventListener(kind, (event) => batch(() => handle(JSON.parse(event.data))));
  };
  let ended = false;
  const turn = () => {
    if (ended) return;
    if (document.hidden) {
      close();
      live.value = "hidden";
    } else if (!source) connect();
  };
  document.addEventListener("visibilitychange", turn);
  turn();
  return () => {
    ended = true;
    document.removeEventListener("visibilitychange", turn);
    close();
    live.value = "off";
  };
}

/** The current answer of a GET, kept up to date: { data, error, retry }. */
export function useLive(path) {
  const [state, setState] = useState({});
  const [again, retry] = useState(0);
  useEffect(() => {
    if (!path) return undefined;
    return follow(`/v1/events${query({ of: path })}`, {
      data: (data) => setState({ data, of: path }),
      problem: (problem) =>
        setState({ error: new Refused(problem.status, problem.code, sentence(problem.message)) }),
    });
  }, [path, again]);
  return { ...state, retry: () => retry((n) => n + 1) };
}

/** The answer of a GET, once per address and at each `refresh`: { data, error, busy, refresh }. */
export function useGet(path) {
  const [state, setState] = useState({});
  const [again, refresh] = useState(0);
  useEffect(() => {
    if (!path) return undefined;
    const stop = new AbortController();
    setState((old) => ({ ...old, busy: true }));
    get(path, stop.signal).then(
      (data) => setState({ data }),
      (error) => error.name !== "AbortError" && setState({ error }),
    );
    return () => stop.abort();
  }, [path, again]);
  return { ...state, refresh: () => refresh((n) => n + 1) };
}

const STEP_S = 2; // between events of what changes
const QUIET_MS = 10_000; // without an event, then the line goes on at the last value

/** Values of live events over time, for charts: the last `length` of them. */
export function useHistory(key, values, length = 180) {
  const kept = useRef({ key: null, times: [], columns: {} });
  const [, drawn] = useState(0);
  useEffect(() => {
    const timer = setInterval(() => {
      const { times, columns } = kept.current;
      const now = Date.now() / 1000;
      if (live.value !== "live" || !times.length || now - times.at(-1) < QUIET_MS / 1000) return;
      for (const name of Object.keys(columns))
        columns[name] = [...columns[name], columns[name].at(-1)].slice(-length);
      kept.current.times = [...times, now].slice(-length);
      drawn((n) => n + 1);
    }, QUIET_MS);
    return () => clearInterval(timer);
  }, [key]);
  if (kept.current.key !== key) kept.current = { key, times: [], columns: {}, last: null };
  const all = kept.current;
  if (values && all.last !== values.of) {
    all.last = values.of;
    const now = Date.now() / 1000;
    // Nothing is sent while nothing changes: the line was flat until shortly before this value.
    const flat = all.times.length && now - all.times.at(-1) > 2 * STEP_S ? [now - STEP_S] : [];
    all.times = [...all.times, ...flat, now].slice(-length);
    for (const [name, value] of Object.entries(values)) {
      if (name === "of") continue;
      const old = all.columns[name] ?? [];
      all.columns[name] = [...old, ...flat.map(() => old.at(-1)), value].slice(-length);
    }
  }
  return all;
}
