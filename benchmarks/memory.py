"""Resident memory: idle connections, a million subscriptions, a backlog of ten million messages.

Memory is read from /proc: VmRSS now and VmHWM, its peak. Each measurement has a server of its
own. The goals apply to Twinwire only; the originals are listed for comparison.
"""

from __future__ import annotations

import argparse
import random
import shutil
import socket
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import arguments as command_line
import report
import servers

from broker.bench import limits
from broker.bench.dial import dial_nats, dial_nsq
from broker.bench.loadgen import LoadError
from broker.bench.scenarios import NsqFlowPlan, run_nsq_flow

CONNECTIONS = 10_000
FIRST_TOKENS = 1000
SECOND_TOKENS = 1000
SUBSCRIBERS = 10
MATCHES_CHECKED = 2000
BACKLOG_MSGS = 10_000_000
BACKLOG_SIZE_BYTES = 200
BACKLOG_BATCH = 200
# Maximum bytes of a message of the backlog on disk, including its record.
DISK_BYTES_PER_MESSAGE = 400
MB = 1_000_000
# Timeout of the check; publishing 2,000 messages takes milliseconds.
MATCH_SECONDS = 60.0
SEED = 1


@dataclass(frozen=True)
class Found:
    """One line of the table. `before` and `after` are the results of
    servers.Running.memory_bytes."""

    what: str
    server: str
    before: dict[str, int]
    after: dict[str, int]
    units: int
    remark: str = ""
    wrong: bool = False

    def cells(self, goal_mb: int | None) -> list[str]:
        growth = (self.after["VmRSS"] - self.before["VmRSS"]) / self.units
        verdict = ""
        if goal_mb is not None:
            met = self.after["VmHWM"] <= goal_mb * MB and not self.wrong
            verdict = "met" if met else "MISSED"
        return [
            self.what,
            self.server,
            f"{self.before['VmRSS'] / MB:,.1f}",
            f"{self.after['VmRSS'] / MB:,.1f}",
            f"{self.after['VmHWM'] / MB:,.1f}",
            f"{growth:,.0f}",
            f"<= {goal_mb} MB" if goal_mb is not None else "",
            verdict,
            self.remark,
        ]


HEAD = ["what", "server", "start MB", "now MB", "peak MB", "B each", "goal", "", "remark"]


def idle(command: str, name: str, protocol: str, options: Options) -> Found:
    """Idle connections after their handshake."""
    held: list[socket.socket] = []
    with servers.running(command, (protocol,), options.root) as run:
        before = run.memory_bytes()
        try:
            for _ in range(options.connections):
                sock, _early = dial_nats(run.nats) if protocol == "nats" else dial_nsq(run.nsq)
                held.append(sock)
            what = f"{options.connections:,} idle {protocol.upper()} connections"
            return Found(what, name, before, run.memory_bytes(), options.connections)
        finally:
            for sock in held:
                sock.close()


def subscriptions(command: str, name: str, options: Options) -> Found:
    """One subscription per subject, then publishes to a sample of them."""
    second = range(SECOND_TOKENS)
    every = [b"s%d.t%d" % (i, j) for i in range(options.first_tokens) for j in second]
    share = -(-len(every) // SUBSCRIBERS)
    subscribers: list[socket.socket] = []
    with servers.running(command, ("nats",), options.root) as run:
        before = run.memory_bytes()
        try:
            for part in range(SUBSCRIBERS):
                mine = every[part * share : (part + 1) * share]
                lines = [b"SUB %s %d" % (subject, sid) for sid, subject in enumerate(mine, 1)]
                subscribers.append(dial_nats(run.nats, lines)[0])
            wrong = wrong_matches(run.nats, subscribers, every, share)
            what = f"{len(every):,} subscriptions"
            remark = f"{wrong:,} of {MATCHES_CHECKED:,} matches wrong"
            after = run.memory_bytes()
            return Found(what, name, before, after, len(every), remark, wrong > 0)
        finally:
            for sock in subscribers:
                sock.close()


def wrong_matches(
    address: tuple[str, int], subscribers: list[socket.socket], every: list[bytes], share: int
) -> int:
    """Each published subject reaches exactly its own subscription; the fence ends each stream."""
    chosen = random.Random(SEED).sample(range(len(every)), MATCHES_CHECKED)
    wanted = Counter((i // share, b"MSG %s %d 1" % (every[i], i % share + 1)) for i in chosen)
    publisher, _early = dial_nats(address)
    with publisher:
        publisher.settimeout(MATCH_SECONDS)
        publisher.sendall(b"".join(b"PUB %s 1\r\nx\r\n" % every[i] for i in chosen) + b"PING\r\n")
        read_until_pong(publisher)
    got: Counter[tuple[int, bytes]] = Counter()
    for part, sock in enumerate(subscribers):
        sock.settimeout(MATCH_SECONDS)
        sock.sendall(b"PING\r\n")
        for line in read_until_pong(sock):
            if line.startswith(b"MSG"):
                got[part, line] += 1
    return (wanted - got).total() + (got - wanted).total()


def read_until_pong(sock: socket.socket) -> list[bytes]:
    """Lines before the PONG; a PING of the server is answered."""
    data = b""
    while not data.endswith(b"PONG\r\n"):
        more = sock.recv(65536)
        if not more:
            raise LoadError("the server closed a connection")
        if b"PING\r\n" in more:
            sock.sendall(b"PONG\r\n")
        data += more
    return data.split(b"\r\n")


def backlog(command: str, name: str, options: Options) -> Found:
    """Messages published by MPUB without a consumer."""
    with servers.running(command, ("nsq",), options.root) as run:
        before = run.memory_bytes()
        plan = NsqFlowPlan(
            address=run.nsq,
            msgs=options.backlog,
            size=BACKLOG_SIZE_BYTES,
            batch=BACKLOG_BATCH,
            subs=0,
            topic="backlog",
        )
        result = run_nsq_flow(plan)
        files = sum(path.stat().st_size for path in run.data.rglob("*") if path.is_file())
        remark = f"{result.msgs_per_second:,.0f} msgs/s, {files / MB:,.0f} MB of files"
        what = f"{result.msgs:,} messages of {BACKLOG_SIZE_BYTES} B waiting"
        return Found(what, name, before, run.memory_bytes(), result.msgs, remark)


@dataclass(frozen=True)
class Options:
    """Sizes, smaller with --quick."""

    connections: int
    first_tokens: int
    backlog: int
    root: str | None
    ours: str
    full: bool


def measure(options: Options, only: str) -> tuple[list[list[str]], list[str]]:
    """Table lines, and what was skipped or failed."""
    ours, nats, nsqd = options.ours, servers.NATS_SERVER, servers.NSQD_DEFAULT
    jobs: list[tuple[str, str, int | None, Callable[[], Found]]] = [
        ("idle", ours, 100, lambda: idle(ours, "ours", "nats", options)),
        ("idle", nats, None, lambda: idle(nats, "nats-server", "nats", options)),
        ("idle", ours, None, lambda: idle(ours, "ours", "nsq", options)),
        ("idle", nsqd, None, lambda: idle(nsqd, "nsqd", "nsq", options)),
        ("subscriptions", ours, 400, lambda: subscriptions(ours, "ours", options)),
        ("subscriptions", nats, None, lambda: subscriptions(nats, "nats-server", options)),
        ("backlog", ours, 250, lambda: backlog(ours, "ours", options)),
        ("backlog", nsqd, None, lambda: backlog(nsqd, "nsqd", options)),
    ]
    table: list[list[str]] = []
    notes: list[str] = []
    for kind, command, goal_mb, job in jobs:
        program = command.split()[0]
        if only and only != kind:
            continue
        if not servers.found(command):
            notes.append(f"skipped: {kind} of {program} (not on PATH)")
            continue
        try:
            table.append(job().cells(goal_mb if options.full else None))
            print(" ".join(table[-1]), file=sys.stderr)
        except (LoadError, servers.ServerError, OSError) as error:
            print(error, file=sys.stderr)
            notes.append(f"failed: {kind} of {program}: {str(error).partition(chr(10))[0]}")
    return table, notes


def arguments() -> argparse.Namespace:
    return command_line.size_of(
        command_line.parser_of(__doc__, servers.OURS),
        ("idle", "subscriptions", "backlog"),
        "a twentieth of everything, without goals",
    )


def main() -> int:
    chosen = arguments()
    part = 20 if chosen.quick else 1
    connections = servers.raise_file_limit(CONNECTIONS // part)
    options = Options(
        min(CONNECTIONS // part, connections),
        FIRST_TOKENS // part,
        BACKLOG_MSGS // part,
        chosen.data_root,
        chosen.ours_cmd,
        connections >= CONNECTIONS and not chosen.quick,
    )
    free = shutil.disk_usage(chosen.data_root or tempfile.gettempdir()).free
    if free < options.backlog * DISK_BYTES_PER_MESSAGE:
        sys.exit("not enough free disk for the backlog; see --data-root")
    table, notes = measure(options, chosen.only)
    lines = ["## Memory", report.about(), report.table(HEAD, table) if table else ""]
    lines.append(
        f"Subscriptions: {SUBSCRIBERS} connections, subjects of two tokens. Backlog: MPUB of"
        f" {BACKLOG_BATCH}, window {limits.MPUB_WINDOW}, no consumer; nsqd with its default"
        " memory queue. Goals are for the peak."
    )
    lines.append("\n".join(f"- {note}" for note in notes))
    whole = "\n\n".join(line for line in lines if line)
    print(whole)
    if chosen.write:
        report.write_section("memory", whole)
    return 1 if any(note.startswith("failed") for note in notes) else 0


if __name__ == "__main__":
    sys.exit(main())
