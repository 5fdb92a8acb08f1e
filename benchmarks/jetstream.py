"""JetStream against nats-server: publishers that wait for PubAcks, and readers.

    python benchmarks/jetstream.py [--quick] [--rounds 5] [--seconds 3] [--rows NAME] [--write]
                                   [--original .originals/newest/nats-server]

Ours syncs a message before its PubAck, which is its default. The original answers when a message is
written and syncs every two minutes, which is its default; in rows that say "both synced" it has
`sync_interval: always`. Every run starts a new server with an empty folder; rounds alternate which
of the two goes first, and a ratio is taken within a round. Readers get messages that are stored
already: all in order by flow control, batches with an ack for each message, or the last message of
each subject, as a watcher of a key-value bucket does.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

import arguments as command_line
import report
import servers
from report import Goal

from broker.bench.scenarios import (
    JetStreamConsumePlan,
    JetStreamPublishPlan,
    Result,
    run_jetstream_consume,
    run_jetstream_publish,
)

ROUNDS = 5
SECONDS = 3.0
QUICK_ROUNDS = 2
QUICK_SECONDS = 1.0
READ_MSGS = 500_000  # of a run of readers
WARM_SECONDS = 0.3

FLAGS = "-js -sd {data} -a 127.0.0.1 -p {nats}"
OURS = "{python} -m broker nats-server " + FLAGS
SYNCED = "jetstream { sync_interval: always }\n"
METHOD = (
    "{} rounds, alternating, {:g} s of publishing per run after a warm-up of {:g} s; a fresh server"
    " and a new stream for every run, one at a time. Latency: publish to PubAck. Ratio: median of"
    " the rounds' ours/original; spread: smallest and largest. Memory: of the processes of the"
    " server after the run. Generator busy: its share of one core while it drives ours."
)
HEAD = [
    "row", "msgs/s ours", "original", "ratio", "spread", "goal", "", "p50 us ours", "original",
    "p99 us ours", "original", "MB ours", "original", "generator busy",
]  # fmt: skip


@dataclass(frozen=True)
class Row:
    """One comparison; `goal`: the smallest acceptable ours/original. `synced`: the original syncs
    before it answers too."""

    name: str
    goal: float
    size: int = 128
    pubs: int = 1
    window: int = 1000
    storage: str = "file"
    synced: bool = False
    reads: str = ""  # consume, fetch or watch: stored messages are read
    batch: int = 0
    subjects: int = 1
    msgs: int = READ_MSGS

    def reader(self, address: tuple[str, int]) -> JetStreamConsumePlan:
        return JetStreamConsumePlan(
            address=address,
            size=self.size,
            msgs=self.msgs,
            batch=self.batch,
            last=self.reads == "watch",
            subjects=self.subjects,
            storage=self.storage,
        )

    def plan(self, address: tuple[str, int]) -> JetStreamPublishPlan:
        return JetStreamPublishPlan(
            address=address,
            size=self.size,
            pubs=self.pubs,
            window=self.window,
            storage=self.storage,
        )

    def command(self, seconds: float) -> str:
        if self.reads:
            batch = f" --batch {self.batch}" if self.batch else ""
            last = f" --last --subjects {self.subjects}" if self.reads == "watch" else ""
            verb = "fetch" if self.batch else "consume"
            return f"{verb} --size {self.size} --msgs {self.msgs}{batch}{last}"
        return (
            f"pub --size {self.size} --pubs {self.pubs} --window {self.window}"
            f" --storage {self.storage} --duration {seconds:g}"
        )


ROWS = [
    Row("128 B, 1,000 in flight", 3.0),
    Row("1 KiB, 1,000 in flight", 3.0, size=1024),
    Row("128 B, 1,000 in flight, both synced", 10.0, synced=True),
    Row(
        "128 B, 64 publishers with one in flight, both synced", 10.0, pubs=64, window=1, synced=True
    ),
    Row("128 B, 64 publishers with one in flight", 1.0, pubs=64, window=1),
    Row("128 B, one publisher with one in flight, both synced", 1.5, window=1, synced=True),
    Row("128 B, in memory, 1,000 in flight", 4.0, storage="memory"),
    Row("read in order, 128 B", 3.0, reads="consume"),
    Row("fetch 500 and ack, 128 B", 4.0, reads="fetch", batch=500),
    Row("watch 100,000 keys, 128 B", 3.0, reads="watch", subjects=100_000, msgs=100_000),
]


def sample(row: Row, command: str, options: argparse.Namespace) -> tuple[Result, float]:
    """One run on a new server: the result, and the MB of the server after it."""
    with servers.running(command, ("nats",), options.data_root) as server:
        if row.reads:
            result = run_jetstream_consume(row.reader(server.nats))
            return result, sum(server.memory_bytes().values()) / 1e6
        plan = row.plan(server.nats)
        run_jetstream_publish(replace(plan, seconds=WARM_SECONDS))
        result = run_jetstream_publish(replace(plan, seconds=options.seconds))
        return result, sum(server.memory_bytes().values()) / 1e6


def measure(row: Row, options: argparse.Namespace, synced: Path) -> list[str]:
    """One line of the table."""
    ours: list[tuple[Result, float]] = []
    theirs: list[tuple[Result, float]] = []
    other = options.against or f"{options.original} {FLAGS}"
    if row.synced and not options.against:
        other += f" -c {synced}"
    for turn in range(options.rounds):
        pair = [(ours, options.ours_cmd), (theirs, other)]
        for found, command in pair if turn % 2 == 0 else reversed(pair):
            found.append(sample(row, command, options))
        print(f"{row.name}: round {turn + 1} of {options.rounds}", file=sys.stderr)
    both = (ours, theirs)
    ratios = [a.msgs_per_second / b.msgs_per_second for (a, _), (b, _) in zip(*both, strict=True)]
    ratio = statistics.median(ratios)
    latencies = (
        [""] * 4
        if row.reads
        else [
            f"{statistics.median((result.latency_us or {})[name] for result, _ in results):,.0f}"
            for name in ("p50", "p99")
            for results in both
        ]
    )
    goal = Goal(row.goal).as_before() if options.against else Goal(row.goal)
    return [
        row.name,
        *(f"{statistics.median(r.msgs_per_second for r, _ in rs):,.0f}" for rs in both),
        f"{ratio:.2f}",
        f"{min(ratios):.2f}-{max(ratios):.2f}",
        *goal.cells(ratio),
        *latencies,
        *(f"{statistics.median(size for _, size in rs):,.0f}" for rs in both),
        report.busy(statistics.median(result.generator_busy for result, _ in ours)),
    ]


def text(options: argparse.Namespace, table: list[list[str]], notes: list[str]) -> str:
    """The page in results/."""
    loads = "\n".join(f"twinwire bench js {row.command(options.seconds)}" for row in ROWS)
    parts = [
        "## JetStream",
        report.about(options.original),
        METHOD.format(options.rounds, options.seconds, WARM_SECONDS),
        report.table(HEAD, table) if table else "",
        "\n".join(f"- {note}" for note in notes),
        f"Servers:\n\n```\n{options.ours_cmd}\n{options.against or f'nats-server {FLAGS}'}\n```",
        f"Loads, with `--server` added:\n\n```\n{loads}\n```",
    ]
    return "\n\n".join(part for part in parts if part)


def arguments() -> argparse.Namespace:
    parser = command_line.parser_of(__doc__, OURS, "{data} {nats} and {python}")
    parser.add_argument("--original", default="nats-server", help="the program to compare with")
    command_line.add_rounds(parser, ROUNDS, SECONDS)
    command_line.add_against(parser)
    return command_line.rounds_of(parser, (ROUNDS, SECONDS), (QUICK_ROUNDS, QUICK_SECONDS))


def main() -> int:
    options = arguments()
    for command in (options.ours_cmd, options.against or options.original):
        if not servers.found(command):
            sys.exit(f"not found: {command.split()[0]}")
    with tempfile.TemporaryDirectory(prefix="twinwire-bench-") as folder:
        synced = Path(folder) / "synced.conf"
        synced.write_text(SYNCED)
        table, notes = report.measured(
            ROWS, lambda row: measure(row, options, synced), options.rows
        )
    whole = text(options, table, notes)
    print(whole)
    if options.write:
        report.write_section("jetstream", whole)
    return 1 if notes else 0


if __name__ == "__main__":
    sys.exit(main())
