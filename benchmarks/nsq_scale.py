"""NSQ at scale: thousands of idle topics, and a thousand consumers on one channel.

Idle: 5,000 topics with two channels each are created over HTTP, then no client sends anything; the
CPU time of the next seconds and the resident memory are read from /proc. Fair: a thousand
consumers with the same RDY share one channel while a backlog is published; each counts its
messages.
"""

from __future__ import annotations

import argparse
import http.client
import multiprocessing
import os
import selectors
import socket
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import arguments as command_line
import report
import servers

from broker.bench.dial import dial_nsq
from broker.bench.loadgen import LoadError
from broker.bench.scenarios import NsqFlowPlan, run_nsq_flow

TOPICS = 5000
CHANNELS = ("first", "second")
IDLE_CORE_MAX = 0.03
IDLE_RSS_MAX = 300_000_000
# After creating the topics the server is busy for a moment.
SETTLE_SECONDS = 5.0
WATCH_SECONDS = 10.0
CONSUMERS = 1000
SHARE_MSGS = 400
RDY = 5
FAIR_SPREAD_MAX = 0.10
BATCH = 100
SIZE_BYTES = 100
SILENT_SECONDS = 30.0
HEAD_BYTES = 4
READ_BYTES = 65536
MESSAGE = 2
ID_AT, ID_END = 4 + 4 + 8 + 2, 4 + 4 + 8 + 2 + 16
MB = 1_000_000
OURS = servers.OURS.replace("--nsq-http 127.0.0.1:0", "--nsq-http 127.0.0.1:{http}")
HEAD = ["what", "server", "reached", "goal", ""]


@dataclass
class Consumer:
    """One of many consumers: its unparsed bytes and its number of messages."""

    sock: socket.socket
    held: bytes
    given: int = 0

    def take(self) -> int:
        """Read the available bytes and finish every message in them."""
        data = self.sock.recv(READ_BYTES)
        if not data:
            raise LoadError("the server closed a consumer")
        self.held += data
        answer, pos, given = bytearray(), 0, 0
        while len(self.held) - pos >= HEAD_BYTES:
            end = pos + HEAD_BYTES + int.from_bytes(self.held[pos : pos + HEAD_BYTES], "big")
            if end > len(self.held):
                break
            if self.held[pos + 7] == MESSAGE:
                answer += b"FIN " + self.held[pos + ID_AT : pos + ID_END] + b"\n"
                given += 1
            else:
                answer += b"NOP\n"
            pos = end
        self.held = self.held[pos:]
        self.given += given
        if answer:
            self.sock.sendall(answer)
        return given


def create(port: int, topics: int) -> None:
    """Create topics and channels over one HTTP connection."""
    api = http.client.HTTPConnection("127.0.0.1", port, timeout=SILENT_SECONDS)
    for number in range(topics):
        topic = f"topic-{number:05d}"
        paths = [f"/topic/create?topic={topic}"]
        paths += [f"/channel/create?topic={topic}&channel={channel}" for channel in CHANNELS]
        for path in paths:
            api.request("POST", path)
            answer = api.getresponse()
            answer.read()
            if answer.status != http.client.OK:
                raise LoadError(f"{path}: {answer.status}")
    api.close()


def processor_seconds(pid: int) -> float:
    """User and system time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def idle(command: str, name: str, root: str | None, topics: int) -> list[list[str]]:
    with servers.running(command, ("nsq", "http"), root) as run:
        create(run.http[1], topics)
        time.sleep(SETTLE_SECONDS)
        before = processor_seconds(run.pid)
        time.sleep(WATCH_SECONDS)
        core = (processor_seconds(run.pid) - before) / WATCH_SECONDS
        rss = run.memory_bytes()["VmRSS"]
    what = f"{topics:,} topics x {len(CHANNELS)} channels, idle"
    ours = name == "ours"
    quiet = verdict(ours, core < IDLE_CORE_MAX, "< 3 %")
    small = verdict(ours, rss < IDLE_RSS_MAX, "< 300 MB")
    return [
        [f"{what}: core", name, f"{core:.2%}", *quiet],
        [f"{what}: RSS", name, f"{rss / MB:,.0f} MB", *small],
    ]


def verdict(ours: bool, met: bool, goal: str) -> list[str]:
    if not ours:
        return ["", ""]
    return [goal, "met" if met else "MISSED"]


def publish(address: tuple[str, int], msgs: int) -> None:
    run_nsq_flow(
        NsqFlowPlan(
            address=address, msgs=msgs, size=SIZE_BYTES, batch=BATCH, subs=0, topic="shared"
        )
    )


def fair(command: str, name: str, root: str | None, consumers: int) -> list[list[str]]:
    msgs = consumers * SHARE_MSGS
    with servers.running(command, ("nsq",), root) as run, selectors.DefaultSelector() as ready:
        held = []
        for _ in range(consumers):
            sock, early = dial_nsq(run.nsq, ("shared", "all"), RDY)
            consumer = Consumer(sock, early)
            held.append(consumer)
            ready.register(sock, selectors.EVENT_READ, consumer)
        publisher = multiprocessing.Process(target=publish, args=(run.nsq, msgs), daemon=True)
        publisher.start()
        given = 0
        while given < msgs:
            events = ready.select(SILENT_SECONDS)
            if not events:
                raise LoadError(f"nothing more after {given:,} of {msgs:,} messages")
            for key, _mask in events:
                given += key.data.take()
        publisher.join()
        for consumer in held:
            consumer.sock.close()
    counts = [consumer.given for consumer in held]
    mean = statistics.fmean(counts)
    spread = max(max(counts) - mean, mean - min(counts)) / mean
    what = f"{consumers:,} consumers on one channel, {SHARE_MSGS} messages each: largest deviation"
    ours = name == "ours"
    return [[what, name, f"{spread:.1%}", *verdict(ours, spread <= FAIR_SPREAD_MAX, "<= 10 %")]]


def arguments() -> argparse.Namespace:
    parser = command_line.parser_of(__doc__, OURS)
    return command_line.size_of(parser, ("idle", "fair"), "a twentieth of everything")


def main() -> int:
    chosen = arguments()
    part = 20 if chosen.quick else 1
    jobs = {"idle": (idle, TOPICS // part), "fair": (fair, CONSUMERS // part)}
    table: list[list[str]] = []
    notes: list[str] = []
    for kind, (job, size) in jobs.items():
        for name, command in (("ours", chosen.ours_cmd), ("nsqd", servers.NSQD_DEFAULT)):
            if chosen.only not in ("", kind):
                continue
            if not servers.found(command):
                notes.append(f"skipped: {kind} of {name} (not on PATH)")
                continue
            try:
                table += job(command, name, chosen.data_root, size)
                print(" ".join(table[-1]), file=sys.stderr)
            except (LoadError, servers.ServerError, OSError) as error:
                notes.append(f"failed: {kind} of {name}: {str(error).partition(chr(10))[0]}")
    lines = ["## NSQ at scale", report.about(), report.table(HEAD, table) if table else ""]
    lines.append("\n".join(f"- {note}" for note in notes))
    whole = "\n\n".join(line for line in lines if line)
    print(whole)
    if chosen.write:
        report.write_section("scale", whole)
    return 1 if any(note.startswith("failed") for note in notes) else 0


if __name__ == "__main__":
    sys.exit(main())
