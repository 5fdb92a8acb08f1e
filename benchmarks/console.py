"""The web console: its size and speed in a browser, 100,000 topics, and what open tabs cost.

    python benchmarks/console.py [--parts page,lists,tabs,latency] [--write]
    python benchmarks/console.py --parts hour --minutes 60

`page` visits a broker with a new profile of Chromium each time. `lists` has a broker in a process
of its own that measures the longest turn of its loop: processor time of the thread, so that other
programs do not count. `tabs` and `latency` have clients that follow what tabs follow, without a
browser, which would need the processor itself. `hour` leaves one page open and looks at its heap.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import gzip
import http.client
import json
import multiprocessing
import os
import selectors
import shutil
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import report
import servers
import uvloop
from awake import cores_awake

from broker.bench.dial import dial_nsq
from broker.bench.scenarios import NatsRequestPlan, run_nats_request
from broker.config.load import load_with_origins
from broker.console.limits import ATTENTION_DEPTH
from broker.protocols.nsq.http.app import Query
from broker.protocols.nsq.service import NsqService
from broker.server import limits
from broker.server.server import Server

PARTS = ("page", "lists", "tabs", "latency", "hour")
USUAL = PARTS[:4]
MS = 1000.0
TOPICS_MANY, TOPICS = 100_000, 1_000  # of `lists`, and of the other parts
CHANNELS = ("archive", "mail")
TABS = 20
VISITS = 9
ASKED = 15  # times each page of a list is asked for
TYPED = 7  # times a filter or an order is chosen in the browser
WATCH_S, ROUNDS = 20.0, 5
LATENCY_S, LATENCY_ROUNDS = 3.0, 9
SETTLE_S = 3.0
RATE = 500  # messages per second while tabs are open
MINUTES = 60
LISTED = 100  # topics with so many messages that the overview lists them, if it has room
HEAP_AFTER = 0.34  # of the time: charts are full then, and what the page keeps must stay
# of a snapshot of the heap: kinds of what a page has made
KEPT = ("object", "closure", "string", "concatenated string", "sliced string", "array", "number")
DEADLINE_S = 300.0
BATCH = 500
NO_REQUEST: Any = None
GOALS = {
    "bytes": report.Goal(100_000, least=False),
    "requests": report.Goal(10, least=False),
    "interactive": report.Goal(500, least=False),
    "server": report.Goal(50, least=False),
    "paint": report.Goal(200, least=False),
    "turn": report.Goal(5, least=False),
    "tabs": report.Goal(2, least=False),
    "hidden": report.Goal(0.1, least=False),
    "p99": report.Goal(1.1, least=False),
    "heap": report.Goal(1.05, least=False),
}
HEAD = ["what", "reached", "spread", "goal", ""]
OURS = servers.OURS.replace("--console 127.0.0.1:0", "--console 127.0.0.1:{http}")
LISTS = {
    "first page by name": "/v1/topics?limit=50",
    "last page by name": f"/v1/topics?limit=50&offset={TOPICS_MANY - 50}",
    "by depth": "/v1/topics?limit=50&sort=-depth",
    "by rate, not empty only": "/v1/topics?limit=50&sort=-in_rate&non_empty=true",
    "filtered": "/v1/topics?limit=50&filter=99.EVENTS",
    "overview": "/v1/overview",
}
# What twenty tabs follow: no two the same but for the overview and the list.
FOLLOWED = (
    *["/v1/overview"] * 5,
    *[f"/v1/topics?limit=50&sort={sort}" for sort in ("name", "-depth", "-in_rate", "name")],
    "/v1/topics?limit=50&filter=service-0000",
    *[f"/v1/topics/service-{number:06d}.events" for number in range(4)],
    *[f"/v1/topics/service-{number:06d}.events/channels/mail" for number in range(3)],
    "/v1/nats", "/v1/nats/connections?limit=50", "/v1/dead-letters",
)  # fmt: skip

MEMORY = "/dev/shm"

CONFIG = """
[server]
data = "{data}"
[nats]
listen = "127.0.0.1:0"
[monitor]
listen = ""
[nsq]
listen = "127.0.0.1:0"
http = ""
[bulk]
listen = ""
[console]
listen = "127.0.0.1:0"
"""
# Runs in the page: the time until something is drawn, from `since`.
DRAWN = """
async ([selector, text, since]) => {
  const has = () => [...document.querySelectorAll(selector)].some(
    (one) => one.textContent.includes(text));
  while (!has()) await new Promise(requestAnimationFrame);
  await new Promise(requestAnimationFrame);
  return performance.now() - since;
}"""
TYPE = """
(text) => {
  const field = document.querySelector('input[data-filter]');
  field.value = text;
  const now = performance.now();
  field.dispatchEvent(new Event('input', { bubbles: true }));
  return now;
}"""
CLICK = """
(title) => {
  const found = [...document.querySelectorAll('thead button')].find(
    (one) => one.textContent.includes(title));
  const now = performance.now();
  found.click();
  return now;
}"""


class Row(NamedTuple):
    """A line of the table."""

    name: str
    values: list[float]
    goal: str = ""
    unit: str = "ms"

    def cells(self) -> list[str]:
        found = statistics.median(self.values)
        is_whole = found >= 100 or all(float(value).is_integer() for value in self.values)
        digits = ",.0f" if is_whole else ",.2f"
        spread = f"{min(self.values):{digits}}-{max(self.values):{digits}}"
        goal = GOALS[self.goal].cells(found) if self.goal else ["", ""]
        return [self.name, f"{found:{digits}} {self.unit}".strip(), spread, *goal]


# --- a broker that measures its turns ------------------------------------------------------------


class Turns:
    """The longest turn of a loop: its thread's processor time between two calls in a row."""

    def __init__(self) -> None:
        self.longest_ns = 0
        self._at_ns = 0
        self._runs = False

    def begin(self) -> None:
        self.longest_ns, self._at_ns, self._runs = 0, time.thread_time_ns(), True
        asyncio.get_running_loop().call_soon(self._beat)

    def end(self) -> float:
        """Milliseconds."""
        self._runs = False
        return self.longest_ns / 1e6

    def _beat(self) -> None:
        now_ns = time.thread_time_ns()
        self.longest_ns = max(self.longest_ns, now_ns - self._at_ns)
        self._at_ns = now_ns
        if self._runs:
            asyncio.get_running_loop().call_soon(self._beat)


async def make(server: Server, number: int) -> None:
    """A topic with its channels, made by the HTTP API: it waits while too many files are open."""
    service = server.service(NsqService)
    assert service is not None
    routes = service.api.routes()

    async def post(path: str, query: str) -> None:
        await routes[path]["POST"].handler(NO_REQUEST, Query(query))

    await post("/topic/create", f"topic={name_of(number)}")
    for channel in CHANNELS:
        await post("/channel/create", f"topic={name_of(number)}&channel={channel}")


async def serve(folder: Path, topics: int) -> None:
    """A broker with many topics, in this process; commands come on stdin."""
    file = folder / "twinwire.toml"
    file.write_text(CONFIG.format(data=folder / "data"))
    config, given = load_with_origins(file)
    server = Server(config, given=given)
    await server.start()
    for first in range(len(server.engine.logs), topics, BATCH):
        await asyncio.gather(*(make(server, first + number) for number in range(BATCH)))
    gc.collect()
    gc.freeze()  # as the command does after a start
    gc.set_threshold(*limits.GC_THRESHOLD)
    print(f"{topics} topics made", file=sys.stderr)
    say({name: list(address) for name, address in server.ports.items()})
    reader = asyncio.StreamReader()
    loop, turns = asyncio.get_running_loop(), Turns()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while word := (await reader.readline()).strip():
        if word == b"begin":
            turns.begin()
        say({"turn_ms": turns.end() if word == b"end" else 0.0})
    await server.stop()


def say(found: object) -> None:
    print(json.dumps(found), flush=True)


def name_of(number: int) -> str:
    return f"service-{number:06d}.events"


class Measured:
    """A broker of `serve`, seen from outside."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        ports = self._answer()
        self.console: tuple[str, int] = tuple(ports["console"])
        self.nsq: tuple[str, int] = tuple(ports["nsq"])

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        found: dict[str, Any] = json.loads(self.process.stdout.readline())
        return found

    def request(self, word: str) -> float:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{word}\n")
        self.process.stdin.flush()
        found: float = self._answer()["turn_ms"]
        return found

    def longest_turn(self, work: Callable[[], None]) -> float:
        """Of the loop, while work is done."""
        self.request("begin")
        work()
        return self.request("end")


@contextmanager
def many_topics(root: str | None, kept: str | None) -> Iterator[Measured]:
    """`kept`: a folder in which they stay, for the next time."""
    with ExitStack() as stack:
        made = tempfile.TemporaryDirectory(prefix="twinwire-bench-", dir=root)
        folder = kept or stack.enter_context(made)
        command = [sys.executable, __file__, "--serve", folder]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as process:
            try:
                yield Measured(process)
                assert process.stdin is not None
                process.stdin.close()
                process.wait(DEADLINE_S)
            finally:
                if process.poll() is None:
                    process.kill()


# --- the browser ---------------------------------------------------------------------------------


@contextmanager
def chromium() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    program = next(p for p in ("chromium", "google-chrome") if servers.found(p))
    path = shutil.which(program)
    with sync_playwright() as tools:
        browser = tools.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


def visit(browser: Any, url: str) -> tuple[float, int, int]:
    """Milliseconds until the overview is live, bytes as they are sent, requests."""
    context = browser.new_context()
    page = context.new_page()
    requests: list[Any] = []
    page.on("request", lambda request: requests.append(request))  # noqa: PLW0108
    page.goto(url, wait_until="commit")
    ms = page.evaluate(DRAWN, [".state", "Live", 0])
    page.locator(".chart canvas").first.wait_for()
    bodies = [r.response().body() for r in requests if "/v1/events" not in r.url]
    context.close()
    return ms, sum(len(gzip.compress(body, 9)) for body in bodies), len(requests)


def of_page(root: str | None) -> list[Row]:
    """A cold visit of a broker with some topics."""
    with servers.running(OURS, ("nats", "nsq", "http"), root) as server:
        make_topics(server, 50)
        url = "http://{}:{}/".format(*server.http)
        with chromium() as browser:
            visit(browser, url)  # the broker loads its application for the first client
            found = [visit(browser, url) for _ in range(VISITS)]
    times, sizes, requests = zip(*found, strict=True)
    return [
        Row("cold start, compressed", list(map(float, sizes)), "bytes", "B"),
        Row("cold start, requests", list(map(float, requests)), "requests", ""),
        Row("cold start until the page is live", list(times), "interactive"),
    ]


def chosen(page: Any, act: str, argument: str, selector: str, text: str) -> float:
    """Milliseconds from an input until its rows are drawn."""
    since = page.evaluate(act, argument)
    found: float = page.evaluate(DRAWN, [selector, text, since])
    return found


def of_lists(root: str | None, kept: str | None) -> list[Row]:
    """100,000 topics. Their 300,000 files are made in memory: what is measured reads none."""
    rows: list[Row] = []
    with many_topics(root or MEMORY, kept) as broker:
        connection = http.client.HTTPConnection(*broker.console, timeout=DEADLINE_S)

        def ask(path: str) -> float:
            since = time.perf_counter()
            connection.request("GET", path)
            response = connection.getresponse()
            body = response.read()
            assert response.status == http.HTTPStatus.OK, body
            return (time.perf_counter() - since) * MS

        first = ask("/v1/session") and ask(LISTS["first page by name"])
        rows.append(Row("100,000 topics: the very first page, names are sorted", [first]))
        ask(LISTS["by depth"])  # counts all
        time.sleep(SETTLE_S)
        for name, path in LISTS.items():
            values = [ask(path) for _ in range(ASKED)]
            is_first = name == "first page by name"
            rows.append(Row(f"100,000 topics: {name}", values, "server" if is_first else ""))

        def all_lists() -> None:
            for path in LISTS.values():
                ask(path)

        turns = [broker.longest_turn(all_lists) for _ in range(ASKED)]
        rows.append(Row("100,000 topics: longest turn of the loop for all of these", turns, "turn"))
        rows += of_painting("http://{}:{}/".format(*broker.console))
    return rows


def of_painting(url: str) -> list[Row]:
    """Filters and orders chosen in a browser."""
    filters, orders = [], []
    with chromium() as browser:
        page = browser.new_page()
        page.goto(f"{url}#topics")
        page.locator("tbody tr").first.wait_for()
        for number in range(TYPED):
            text = f"service-0{number}77"
            filters.append(chosen(page, TYPE, text, "tbody th a", text))
            chosen(page, TYPE, "", "tbody th a", name_of(0))
            orders.append(chosen(page, CLICK, "Depth", 'th[aria-sort="descending"]', "Depth"))
            chosen(page, CLICK, "Topic", 'th[aria-sort="ascending"]', "Topic")
    return [
        Row("100,000 topics: a filter until its rows are drawn", filters, "paint"),
        Row("100,000 topics: an order until its rows are drawn", orders, "paint"),
    ]


# --- tabs ----------------------------------------------------------------------------------------


def make_topics(server: servers.Running, count: int) -> None:
    """Topics with two channels each, and a message in each."""
    connection = http.client.HTTPConnection(*server.http, timeout=DEADLINE_S)
    headers = {"Twinwire-Console": "1", "Content-Type": "application/json"}

    def post(path: str, body: object) -> None:
        connection.request("POST", path, json.dumps(body), headers)
        response = connection.getresponse()
        text = response.read()
        assert response.status == http.HTTPStatus.OK, text

    for number in range(count):
        post("/v1/topics", {"name": name_of(number)})
        for channel in CHANNELS:
            post(f"/v1/topics/{name_of(number)}/channels", {"name": channel})
        post("/v1/publish", {"topic": name_of(number), "body": "first"})


def follow(address: tuple[str, int], paths: tuple[str, ...], pipe: Any) -> None:
    """The process of the tabs: follows all paths until it is ended; reports when all are open."""
    ready = selectors.DefaultSelector()
    for path in paths:
        sock = socket.create_connection(address)
        asked = f"/v1/events?of={quote(path, safe='')}"
        sock.sendall(f"GET {asked} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
        assert b"200 OK" in sock.recv(65536), path
        ready.register(sock, selectors.EVENT_READ)
    pipe.send("open")
    while True:
        for key, _ in ready.select():
            if not key.fileobj.recv(1 << 20):  # type: ignore[union-attr]
                raise ConnectionError("the broker has closed a stream")


@contextmanager
def tabs(server: servers.Running) -> Iterator[None]:
    """Twenty of them."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.Process(
        target=follow, args=(server.http, FOLLOWED, theirs), daemon=True
    )
    process.start()
    try:
        assert ours.poll(DEADLINE_S)
        assert ours.recv() == "open"
        yield
        assert process.is_alive()
    finally:
        process.kill()
        process.join()


def publish(address: tuple[str, int], stop: threading.Event) -> None:
    """Some messages a second, to topics in turn, so that what tabs show changes."""
    sock, _ = dial_nsq(address)
    with sock:
        number = 0
        while not stop.wait(0.1):
            frames = b""
            for _ in range(RATE // 10):
                frames += b"PUB %s\n\0\0\0\5hello" % name_of(number % TOPICS).encode()
                number += 1
            sock.sendall(frames)
            sock.recv(65536)


@contextmanager
def traffic(server: servers.Running) -> Iterator[None]:
    stop = threading.Event()
    thread = threading.Thread(target=publish, args=(server.nsq, stop))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def cpu_percent(server: servers.Running) -> float:
    """Of one core, while it is watched."""
    time.sleep(SETTLE_S)
    before, since = server.cpu_seconds(), time.monotonic()
    time.sleep(WATCH_S)
    return 100 * (server.cpu_seconds() - before) / (time.monotonic() - since)


def of_tabs(root: str | None) -> list[Row]:
    """Processor time of the broker, with tabs and without, and before any page was opened."""
    open_, gone = [], []
    for _ in range(ROUNDS):
        with servers.running(OURS, ("nats", "nsq", "http"), root) as server:
            make_topics(server, TOPICS)
            with traffic(server):
                never = cpu_percent(server)
                with tabs(server):
                    with_tabs = cpu_percent(server)
                without = cpu_percent(server)
        open_.append(with_tabs - without)
        gone.append(without - never)
    return [
        Row(f"{TABS} open tabs, 1,000 topics: processor time", open_, "tabs", "% of a core"),
        Row(f"{TABS} hidden tabs: processor time", gone, "hidden", "% of a core"),
    ]


def of_latency(root: str | None) -> list[Row]:
    """NATS request/reply, with tabs and without, in turn."""
    ratios, alone, beside = [], [], []
    with servers.running(OURS, ("nats", "nsq", "http"), root) as server, cores_awake():
        make_topics(server, TOPICS)
        plan = NatsRequestPlan(address=server.nats, seconds=LATENCY_S)
        run_nats_request(plan)
        for number in range(LATENCY_ROUNDS):
            found = {}
            for with_tabs in (False, True) if number % 2 else (True, False):
                with ExitStack() as stack:
                    if with_tabs:
                        stack.enter_context(tabs(server))
                        time.sleep(SETTLE_S)
                    latency = run_nats_request(plan).latency_us
                assert latency is not None
                found[with_tabs] = latency["p99"]
            alone.append(found[False])
            beside.append(found[True])
            ratios.append(found[True] / found[False])
    return [
        Row("NATS request/reply p99, no tab", alone, "", "us"),
        Row(f"NATS request/reply p99, {TABS} tabs", beside, "", "us"),
        Row("NATS request/reply p99, ratio", ratios, "p99", ""),
    ]


# --- an hour -------------------------------------------------------------------------------------


def kept_bytes(probe: Any) -> float:
    """Objects and texts that the page keeps. Not what the browser keeps for it: compiled code, of
    which it has more and more, layouts, and up to 150 entries about numbers that became wider."""
    chunks: list[str] = []
    probe.on("HeapProfiler.addHeapSnapshotChunk", lambda part: chunks.append(part["chunk"]))
    probe.send("HeapProfiler.takeHeapSnapshot", {"reportProgress": False})
    found = json.loads("".join(chunks))
    meta, nodes = found["snapshot"]["meta"], found["nodes"]
    fields = meta["node_fields"]
    own = {meta["node_types"][0].index(name) for name in KEPT}
    kinds = nodes[fields.index("type") :: len(fields)]
    sizes = nodes[fields.index("self_size") :: len(fields)]
    return float(sum(size for kind, size in zip(kinds, sizes, strict=True) if kind in own))


def fill(address: tuple[str, int], topics: int) -> None:
    """So many messages into each topic that the overview lists it as one that needs attention."""
    sock, _ = dial_nsq(address)
    body = b"\0\0\0\5hello" * ATTENTION_DEPTH
    head = struct.pack(">II", len(body) + 4, ATTENTION_DEPTH)
    with sock, sock.makefile("rb") as answers:
        for number in range(topics):
            sock.sendall(b"MPUB %s\n" % name_of(number).encode() + head + body)
            assert answers.read(10)[8:] == b"OK"


def of_hour(root: str | None, minutes: float) -> list[Row]:
    """The heap of pages that stay open. The overview's list of what needs attention is full from
    the start: it would get its entries meanwhile, from messages that nobody consumes."""
    rows = []
    with servers.running(OURS, ("nats", "nsq", "http"), root) as server, chromium() as browser:
        make_topics(server, LISTED)
        fill(server.nsq, LISTED)
        url = "http://{}:{}/".format(*server.http)
        watched = {
            path: browser.new_context() for path in ("overview", f"topic?topic={name_of(1)}")
        }
        probes: dict[str, Any] = {}
        kept: dict[str, list[float]] = {path: [] for path in watched}
        for path, context in watched.items():
            page = context.new_page()
            page.goto(f"{url}#{path}")
            probes[path] = partial(context.new_cdp_session, page)
        heaps: dict[str, list[float]] = {path: [] for path in watched}
        with traffic(server):
            end = time.monotonic() + minutes * 60
            while time.monotonic() < end:
                time.sleep(60)
                last = time.monotonic() >= end
                full = end - time.monotonic() <= (1 - HEAP_AFTER) * minutes * 60
                for path, session in probes.items():
                    probe = session()
                    probe.send("HeapProfiler.collectGarbage")
                    used = probe.send("Runtime.getHeapUsage")["usedSize"]
                    heaps[path].append(used)
                    print(path, f"{used / 1e6:.2f} MB", file=sys.stderr)
                    if last or (full and not kept[path]):
                        kept[path].append(kept_bytes(probe))
                        print(path, f"keeps {kept[path][-1] / 1e6:.2f} MB", file=sys.stderr)
                    probe.detach()
        for path, values in heaps.items():
            later = values[int(len(values) * HEAP_AFTER) :]
            third = max(1, len(later) // 3)
            ratio = statistics.median(later[-third:]) / statistics.median(later[:third])
            name = f"{path.partition('?')[0]} open for {minutes:g} minutes"
            rows += [
                Row(f"{name}: what it keeps, to that with full charts",
                    [kept[path][-1] / kept[path][0]], "heap", ""),
                Row(f"{name}: the whole heap", [ratio], "", ""),
            ]  # fmt: skip
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--parts", default=",".join(USUAL), help=f"of {', '.join(PARTS)}")
    parser.add_argument("--minutes", type=float, default=MINUTES, help="of the part hour")
    parser.add_argument("--write", action="store_true", help="write the page in results/")
    parser.add_argument("--data-root", help="where data folders are made; default: TMPDIR")
    parser.add_argument("--topics", help="keep the 100,000 topics in this folder, or use them")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve(Path(options.serve), TOPICS_MANY))
        return
    root = options.data_root
    parts: dict[str, Callable[[], list[Row]]] = {
        "page": lambda: of_page(root),
        "lists": lambda: of_lists(root, options.topics),
        "tabs": lambda: of_tabs(root),
        "latency": lambda: of_latency(root),
        "hour": lambda: of_hour(root, options.minutes),
    }
    chosen = options.parts.split(",")
    rows = [row.cells() for part in chosen if part != "hour" for row in parts[part]()]
    method = (
        f"`benchmarks/console.py`, medians: {VISITS} visits of Chromium with new profiles; each"
        f" list asked {ASKED} times over loopback; turns of the loop as processor time of its"
        f" thread; {TABS} tabs as clients that follow what they follow, while {RATE} messages per"
        " second are published. Milliseconds are those of the clock, beside a load of"
        f" {os.getloadavg()[2]:.0f} processes on {os.cpu_count()} cores."
    )
    if rows:
        report.show("console", method, HEAD, rows, write=options.write, title="Console")
    if "hour" in chosen:
        rows = [row.cells() for row in parts["hour"]()]
        method = (
            "`benchmarks/console.py --parts hour`: Chromium's heap after a collection, while"
            f" {RATE} messages per second are published: the end to the time from which charts"
            " are full. What the page keeps is without the browser's own: compiled code, layouts."
        )
        title = "Console, left open"
        report.show("console-hour", method, HEAD, rows, write=options.write, title=title)


if __name__ == "__main__":
    main()
