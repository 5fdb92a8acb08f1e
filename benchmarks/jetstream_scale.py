"""JetStream with many subjects, keys and consumers, against nats-server.

    python benchmarks/jetstream_scale.py [--quick] [--rows NAME] [--rounds 3] [--write]
                                         [--original .originals/newest/nats-server]

Ours syncs before each answer, which is its default; the original every two minutes, which is its
default. Every run starts a new server with an empty folder, and rounds alternate which of the two
goes first.

put, get    a key-value bucket of 100,000 keys: publishers with 1,000 in flight, and readers of
            single keys (DIRECT.GET) with 500 in flight each
consumers   messages to 10,000 subjects; each subject has a push consumer that filters it, and one
            connection receives what all of them deliver. Until the last message was delivered
purge       a stream of 10 M messages with 1 M subjects, half of which are purged by a wildcard,
            while another connection sends a PING every millisecond: the time, and the longest PONG
start       the same stream, not purged: from the start of the process until the stream answers
            with its number of messages, and the memory then
"""

from __future__ import annotations

import argparse
import json
import os
import selectors
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

import arguments as command_line
import report
import servers
from report import Goal

from broker.bench.dial import ask_jetstream, dial_nats
from broker.bench.loadgen import LoadError
from broker.bench.scenarios import JetStreamPublishPlan, run_jetstream_publish

ROUNDS = 3
QUICK_SHARE = 50  # a quick run has so many times fewer messages, keys and consumers
SIZE_BYTES = 128
KEYS = 100_000
PUTS = 500_000
GETS = 200_000
READERS = 4
IN_FLIGHT = 500
CONSUMERS = 10_000
DELIVERED = 100_000
MANY = 10_000_000
SUBJECTS = 1_000_000
FILL_BATCH = 10_000  # messages that are published at a time; two wait for their PubAcks at most
PING_S = 0.001
WAIT_S = 600.0
RECV_BYTES = 1 << 20
WINDOW = 1000

FLAGS = "-js -sd {data} -a 127.0.0.1 -p {nats}"
OURS = "{python} -m broker nats-server " + FLAGS
HEAD = ["row", "ours", "original", "ratio", "spread", "goal", ""]
METHOD = (
    "{} rounds, alternating; a fresh server for every run, one at a time. {:,} keys, {:,}"
    " consumers, {:,} messages with {:,} subjects. Ratio: median of the rounds' ours/original for"
    " rates, and of original/ours for times; spread: smallest and largest."
)
BUCKET = {
    "max_msgs_per_subject": 1,
    "discard": "new",
    "allow_rollup_hdrs": True,
    "deny_delete": True,
    "allow_direct": True,
    "max_age": 0,
}

Found = dict[str, float]


class Row(NamedTuple):
    """A line of the table; `goal`: of the ratio, or of ours alone."""

    name: str
    value: str  # of a run
    goal: Goal
    unit: str = "/s"
    alone: bool = False


class Load(NamedTuple):
    """A run on a new server, and what it shows."""

    run: Callable[[str, argparse.Namespace], Found]
    rows: tuple[Row, ...]


def make(address: tuple[str, int], name: str, **more: object) -> None:
    """A stream of all subjects that begin with its name."""
    config = {"name": name, "subjects": [f"{name}.>"], "storage": "file", **more}
    ask_jetstream(address, f"STREAM.CREATE.{name}", config)


def fill(address: tuple[str, int], name: str, msgs: int, subjects: int) -> float:
    """Publish to subjects below `name`; messages per second."""
    plan = JetStreamPublishPlan(
        address=address, size=SIZE_BYTES, msgs=msgs, subjects=subjects, window=WINDOW, stream=name
    )
    return run_jetstream_publish(plan).msgs_per_second


def ask(address: tuple[str, int], verb: str, body: dict[str, object] | None = None) -> float:
    """Seconds that a request to the API takes, however many."""
    inbox = b"_INBOX.%s" % os.urandom(8).hex().encode()
    sock, _ = dial_nats(address, [b"SUB %s 1" % inbox], headers=True, no_responders=True)
    sock.settimeout(WAIT_S)
    data, answer = json.dumps(body or {}).encode(), b""
    begun = time.perf_counter()
    line = b"PUB $JS.API.%s %s %d\r\n" % (verb.encode(), inbox, len(data))
    sock.sendall(line + data + b"\r\n")
    while not (b"{" in answer and answer.endswith(b"}\r\n")):
        answer += sock.recv(RECV_BYTES)
    taken = time.perf_counter() - begun
    sock.close()
    if b'"error"' in answer:
        raise LoadError(f"{verb} is refused: {answer!r}")
    return taken


# --- keys


def keys(command: str, options: argparse.Namespace) -> Found:
    """Put keys, and get them one by one."""
    with servers.running(command, ("nats",), options.data_root) as server:
        make(server.nats, "KV", **BUCKET)
        count = options.scaled(KEYS)
        puts = fill(server.nats, "KV", options.scaled(PUTS), count)
        return {"puts": puts, "gets": get(server.nats, options.scaled(GETS), count)}


def get(address: tuple[str, int], gets: int, count: int) -> float:
    """Direct gets a second, by connections that each wait for IN_FLIGHT messages at most."""
    marker = b"x" * SIZE_BYTES + b"\r\n"
    with selectors.DefaultSelector() as selector:
        readers = []
        for number in range(READERS):
            inbox = b"_INBOX.%s" % os.urandom(8).hex().encode()
            sock, _ = dial_nats(address, [b"SUB %s 1" % inbox], headers=True, no_responders=True)
            requests = [
                b"PUB $JS.API.DIRECT.GET.KV.KV.%d %s 0\r\n\r\n" % (n * 7919 % count, inbox)
                for n in range(number, gets, READERS)
            ]
            readers.append(Reader(sock, requests, marker))
            selector.register(sock, selectors.EVENT_READ, readers[-1])
        begun = time.perf_counter()
        for each in readers:
            each.send_more()
        while any(each.missing for each in readers):
            ready = selector.select(WAIT_S)
            if not ready:
                raise LoadError("no answer to a direct get")
            for key, _ in ready:
                key.data.receive()
        taken = time.perf_counter() - begun
        for each in readers:
            each.sock.close()
    return gets / taken


class Marks:
    """Counts a text in what a connection receives."""

    def __init__(self, sock: socket.socket, mark: bytes) -> None:
        self.sock = sock
        self.mark = mark
        self.count = 0
        self._rest = b""  # in which another one may have begun

    def receive(self) -> bytes:
        """Wait for bytes and count; LoadError if the connection ends."""
        data = self.sock.recv(RECV_BYTES)
        if not data:
            raise LoadError("the server closed a connection")
        whole = self._rest + data
        self.count += whole.count(self.mark)
        self._rest = whole[whole.rfind(self.mark) + 1 :][-len(self.mark) + 1 :]
        return data


class Reader:
    """A connection with requests, whose answers end with a mark."""

    def __init__(self, sock: socket.socket, requests: list[bytes], mark: bytes) -> None:
        self.sock = sock
        self.requests = requests
        self.sent = 0
        self._marks = Marks(sock, mark)

    @property
    def missing(self) -> int:
        """Answers that have not come."""
        return len(self.requests) - self._marks.count

    def send_more(self) -> None:
        """Send what the window allows."""
        upto = min(self._marks.count + IN_FLIGHT, len(self.requests))
        self.sock.sendall(b"".join(self.requests[self.sent : upto]))
        self.sent = upto

    def receive(self) -> None:
        """Count what has come, and ask for as many when half a window is free."""
        self._marks.receive()
        if self._marks.count + IN_FLIGHT // 2 >= self.sent:
            self.send_more()


# --- consumers


def consumers(command: str, options: argparse.Namespace) -> Found:
    """Publish to a stream with a consumer for each subject."""
    count, msgs = options.scaled(CONSUMERS), options.scaled(DELIVERED)
    with servers.running(command, ("nats",), options.data_root) as server:
        make(server.nats, "S", max_consumers=count)
        # One each: nats-server takes none with a wildcard for a subscription of these consumers.
        lines = [b"SUB D.%d %d" % (number, number + 1) for number in range(count)]
        sock, _ = dial_nats(server.nats, lines, headers=True, no_responders=True)
        sock.settimeout(WAIT_S)
        counter = threading.Thread(target=count_messages, args=(sock, msgs))
        begun = time.perf_counter()
        for number in range(count):
            config = {
                "name": f"c{number}",
                "deliver_subject": f"D.{number}",
                "filter_subject": f"S.{number}",
                "ack_policy": "none",
            }
            verb = f"CONSUMER.CREATE.S.c{number}.S.{number}"
            ask_jetstream(server.nats, verb, {"stream_name": "S", "config": config})
        made = time.perf_counter() - begun
        counter.start()
        begun = time.perf_counter()
        fill(server.nats, "S", msgs, count)
        counter.join()
        taken = time.perf_counter() - begun
        sock.close()
        return {"made": count / made, "delivered": msgs / taken}


def count_messages(sock: socket.socket, msgs: int) -> None:
    """Receive so many messages."""
    marks = Marks(sock, b"x" * SIZE_BYTES + b"\r\n")
    while marks.count < msgs:
        if b"PING\r\n" in marks.receive():
            sock.sendall(b"PONG\r\n")


# --- many messages


def fill_halves(address: tuple[str, int], options: argparse.Namespace) -> None:
    """A stream whose messages have two kinds of subjects, in turn."""
    make(address, "M")
    msgs, subjects = options.scaled(MANY), options.scaled(SUBJECTS)
    inbox = b"_INBOX.%s" % os.urandom(8).hex().encode()
    sock, _ = dial_nats(address, [b"SUB %s 1" % inbox], headers=True, no_responders=True)
    sock.settimeout(WAIT_S)
    rest = b" %s %d\r\n%s\r\n" % (inbox, SIZE_BYTES, b"x" * SIZE_BYTES)
    acks = Marks(sock, b'"seq":')
    for sent in range(0, msgs, FILL_BATCH):
        numbers = (n * 7919 % subjects for n in range(sent, sent + FILL_BATCH))
        sock.sendall(b"".join([b"PUB M.%c.%d%s" % (b"ab"[n & 1], n, rest) for n in numbers]))
        last = sent + FILL_BATCH >= msgs
        while acks.count < (msgs if last else sent - FILL_BATCH):
            acks.receive()
    sock.close()


def many(command: str, options: argparse.Namespace) -> Found:
    """Fill a stream, start the server again, and purge half of it."""
    with tempfile.TemporaryDirectory(prefix="twinwire-bench-", dir=options.data_root) as folder:
        command = command.replace("{data}", folder)
        with servers.running(command, ("nats",)) as server:
            fill_halves(server.nats, options)
        begun = time.perf_counter()
        with servers.running(command, ("nats",), ready_s=WAIT_S) as server:
            state = ask_jetstream(server.nats, "STREAM.INFO.M")["state"]
            started = time.perf_counter() - begun
            assert isinstance(state, dict)
            if state["messages"] != options.scaled(MANY):
                raise LoadError(f"the stream has {state['messages']} messages")
            memory = server.memory_bytes()["VmRSS"] / 1e6
            pings = Pings(server.nats)
            purged = ask(server.nats, "STREAM.PURGE.M", {"filter": "M.a.>"})
            longest = pings.end()
        return {"start": started, "memory": memory, "purge": purged, "longest": longest * 1e3}


class Pings:
    """A connection that sends PING every millisecond, in a thread."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.sock, _ = dial_nats(address, [])
        self.sock.settimeout(WAIT_S)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.over = threading.Event()
        self.longest = 0.0
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self) -> None:
        while not self.over.wait(PING_S):
            begun = time.perf_counter()
            self.sock.sendall(b"PING\r\n")
            while b"PONG" not in self.sock.recv(RECV_BYTES):
                pass  # the server's own PING
            self.longest = max(self.longest, time.perf_counter() - begun)

    def end(self) -> float:
        """The longest time until a PONG, in seconds."""
        self.over.set()
        self.thread.join()
        self.sock.close()
        return self.longest


LOADS = {
    "keys": Load(
        keys,
        (
            Row("put to 100,000 keys, 128 B", "puts", Goal(3.0)),
            Row("get single keys of 100,000, 128 B", "gets", Goal(2.0)),
        ),
    ),
    "consumers": Load(
        consumers,
        (
            Row("publish to 10,000 consumers with a filter each", "delivered", Goal(10.0)),
            Row("create 10,000 consumers", "made", Goal(1.0)),
        ),
    ),
    "many": Load(
        many,
        (
            Row("purge half of 10 M messages by subject", "purge", Goal(5.0), " s"),
            Row("... longest PING meanwhile", "longest", Goal(10.0, least=False), " ms", True),
            Row("start with 10 M messages, 1 M subjects", "start", Goal(2.0, False), " s", True),
            Row("... memory", "memory", Goal(250.0, least=False), " MB", True),
        ),
    ),
}


def lines_of(load: Load, ours: list[Found], theirs: list[Found]) -> list[list[str]]:
    """The rows of one load."""
    lines = []
    for row in load.rows:
        mine = [found[row.value] for found in ours]
        others = [found[row.value] for found in theirs]
        pairs = list(zip(mine, others, strict=True))
        ratios = [a / b if row.unit == "/s" else b / a for a, b in pairs]
        ratio = statistics.median(ratios)
        digits = 0 if row.unit == "/s" else 2
        lines.append([
            row.name,
            f"{statistics.median(mine):,.{digits}f}{row.unit}",
            f"{statistics.median(others):,.{digits}f}{row.unit}",
            f"{statistics.median(mine):.3g}{row.unit}" if row.alone else f"{ratio:.2f}",
            report.spread(mine if row.alone else ratios),
            *row.goal.cells(statistics.median(mine) if row.alone else ratio),
        ])  # fmt: skip
    return lines


def arguments() -> argparse.Namespace:
    parser = command_line.parser_of(__doc__, OURS, "{data} {nats} and {python}")
    parser.add_argument("--original", default="nats-server", help="the program to compare with")
    parser.add_argument("--rounds", type=int, default=0, help=f"default {ROUNDS}")
    parser.add_argument("--rows", default="", choices=["", *LOADS])
    parser.add_argument("--quick", action="store_true", help="one round of a smaller size")
    options = parser.parse_args()
    if options.write and (options.quick or options.rows or 0 < options.rounds < ROUNDS):
        parser.error("--write takes everything in full size")
    options.rounds = options.rounds or (1 if options.quick else ROUNDS)
    share = QUICK_SHARE if options.quick else 1
    options.scaled = lambda full: full // share
    return options


def main() -> int:
    options = arguments()
    other = f"{options.original} {FLAGS}"
    for command in (options.ours_cmd, other):
        if not servers.found(command):
            sys.exit(f"not found: {command.split()[0]}")
    table = []
    for name, load in LOADS.items():
        if options.rows not in ("", name):
            continue
        ours: list[Found] = []
        theirs: list[Found] = []
        for turn in range(options.rounds):
            pair = [(ours, options.ours_cmd), (theirs, other)]
            for found, command in pair if turn % 2 == 0 else reversed(pair):
                found.append(load.run(command, options))
                print(command.split()[0], json.dumps(found[-1]), file=sys.stderr)
        table += lines_of(load, ours, theirs)
    sizes = (options.scaled(each) for each in (KEYS, CONSUMERS, MANY, SUBJECTS))
    parts = [
        "## JetStream at scale",
        report.about(options.original),
        METHOD.format(options.rounds, *sizes),
        report.table(HEAD, table),
        f"Servers:\n\n```\n{options.ours_cmd}\nnats-server {FLAGS}\n```",
    ]
    whole = "\n\n".join(parts)
    print(whole)
    if options.write:
        report.write_section("jetstream-scale", whole)
    return 0


if __name__ == "__main__":
    sys.exit(main())
