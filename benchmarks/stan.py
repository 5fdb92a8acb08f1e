"""NATS Streaming against nats-streaming-server: each PubAck after a sync of its message.

    python benchmarks/stan.py [--quick] [--rounds 5] [--seconds 3] [--rows NAME] [--write]

Both keep channels in files and sync before they answer (`-st file`, where the original's
file_sync is on by default). Every run starts a new server with an empty folder;
rounds alternate which of the two goes first, and a ratio is taken within a round.

After each pair appender.c, compiled with cc, appends records of the same size to files and syncs
them, without a network and a protocol: what the disk allows while no more messages are
unacknowledged than in the row. It forms the batches of a broker: the whole window, or two halves
under way at a time; the better one counts. With files full of zeros, made before its clock starts
(its best case: a broker has to make them meanwhile), and with files that grow.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

import arguments as command_line
import report
import servers
from report import Goal

from broker.bench.scenarios import Result, StanFlowPlan, run_stan_flow
from broker.bench.traffic import Size, bounds

ROUNDS = 5
SECONDS = 3.0
QUICK_ROUNDS = 2
QUICK_SECONDS = 1.0
WARM_SECONDS = 0.3
APPENDER_SECONDS = 1.0
LANES = (1, 2)  # batches under way: Twinwire syncs at most two of a log at a time
RECORD_HEADER_BYTES = 40  # of Twinwire's log; a record ends at a multiple of 8

ORIGINAL = "nats-streaming-server -st file -dir {data} -a 127.0.0.1 -p {nats}"
OURS = "{python} -m broker " + ORIGINAL
METHOD = (
    "{} rounds, alternating, {:g} s of publishing per run after a warm-up of {:g} s; a fresh server"
    " for every run, one at a time. Latency: publish to PubAck. Ratio: median of the rounds'"
    " ours/original; spread: smallest and largest. Generator busy: its share of one core while it"
    " drives ours. Disk: records per second of appender.c, which only writes and syncs, into files"
    " full of zeros and into files that grow; ours/disk: medians of the ratios of the rounds."
)
HEAD = [
    "row", "msgs/s ours", "original", "ratio", "spread", "goal", "", "p50 us ours", "original",
    "p99 us ours", "original", "generator busy", "disk, zeros", "disk, growing",
    "ours/disk, zeros", "growing",
]  # fmt: skip


@dataclass(frozen=True)
class Row:
    """One comparison; `goal`: the smallest acceptable ours/original."""

    name: str
    goal: float
    size: Size = 128
    pubs: int = 1
    window: int = 1000
    subs: int = 0

    def plan(self, address: tuple[str, int]) -> StanFlowPlan:
        return StanFlowPlan(
            address=address, size=self.size, pubs=self.pubs, window=self.window, subs=self.subs
        )

    @property
    def record_bytes(self) -> int:
        low, high = bounds(self.size)
        return (RECORD_HEADER_BYTES + (low + high) // 2 + 7) // 8 * 8

    def command(self) -> str:
        kind = f"pubsub --subs {self.subs}" if self.subs else "pub"
        size = "-".join(str(bound) for bound in dict.fromkeys(bounds(self.size)))
        return f"{kind} --size {size} --pubs {self.pubs} --window {self.window}"


ROWS = [
    Row("128 B, 1,000 in flight", 5.0),
    Row("1 KiB, 1,000 in flight", 5.0, size=1024),
    Row("8-512 B, 1,000 in flight", 5.0, size=(8, 512)),
    Row("128 B, 64 publishers with one in flight", 5.0, pubs=64, window=1),
    Row("128 B, one publisher with one in flight", 1.0, window=1),
    Row("128 B to deliver to ack 1:1, 1,000 in flight", 3.0, subs=1),
]


def sample(row: Row, command: str, seconds: float, root: str | None) -> Result:
    """One run on a new server, with a new channel for the measured part."""
    with servers.running(command, ("nats",), root) as server:
        plan = row.plan(server.nats)
        run_stan_flow(replace(plan, seconds=WARM_SECONDS, channel="warm"))
        return run_stan_flow(replace(plan, seconds=seconds))


def disk_rate(row: Row, program: Path, zeroed: bool, root: str | None) -> float:
    """Records per second that the disk allows with the window of the row."""
    window = row.pubs * row.window
    rates = []
    for lanes in LANES:
        if window % lanes:
            continue
        with tempfile.TemporaryDirectory(prefix="twinwire-bench-", dir=root) as folder:
            words = (row.record_bytes, window // lanes, lanes, int(zeroed), APPENDER_SECONDS)
            run = [str(program), folder, *(str(word) for word in words)]
            done = subprocess.run(run, check=True, capture_output=True, text=True)
            rates.append(float(done.stdout.split()[0]))
    return max(rates)


def measure(row: Row, options: argparse.Namespace, program: Path) -> list[str]:
    """One line of the table."""
    disk: dict[bool, list[float]] = {True: [], False: []}
    ours: list[Result] = []
    theirs: list[Result] = []
    for turn in range(options.rounds):
        pair = [(ours, options.ours_cmd), (theirs, options.against or ORIGINAL)]
        for found, command in pair if turn % 2 == 0 else reversed(pair):
            found.append(sample(row, command, options.seconds, options.data_root))
        for zeroed, rates in disk.items():
            rates.append(disk_rate(row, program, zeroed, options.data_root))
        print(f"{row.name}: round {turn + 1} of {options.rounds}", file=sys.stderr)
    pairs = zip(ours, theirs, strict=True)
    ratios = [a.msgs_per_second / b.msgs_per_second for a, b in pairs]
    ratio = statistics.median(ratios)
    shares = [
        statistics.median(a.msgs_per_second / b for a, b in zip(ours, rates, strict=True))
        for rates in disk.values()
    ]
    latencies = [
        f"{statistics.median((result.latency_us or {})[name] for result in results):,.0f}"
        for name in ("p50", "p99")
        for results in (ours, theirs)
    ]
    goal = Goal(row.goal).as_before() if options.against else Goal(row.goal)
    return [
        row.name,
        *(f"{statistics.median(r.msgs_per_second for r in rs):,.0f}" for rs in (ours, theirs)),
        f"{ratio:.2f}",
        f"{min(ratios):.2f}-{max(ratios):.2f}",
        *goal.cells(ratio),
        *latencies,
        report.busy(statistics.median(result.generator_busy for result in ours)),
        *(f"{statistics.median(rates):,.0f}" for rates in disk.values()),
        *(f"{share:.0%}" for share in shares),
    ]


def text(options: argparse.Namespace, table: list[list[str]], notes: list[str]) -> str:
    """The page in results/."""
    loads = "\n".join(
        f"twinwire bench stan {row.command()} --duration {options.seconds:g}" for row in ROWS
    )
    parts = [
        "## NATS Streaming, persisted and synced",
        report.about("nats-streaming-server"),
        METHOD.format(options.rounds, options.seconds, WARM_SECONDS),
        report.table(HEAD, table) if table else "",
        "\n".join(f"- {note}" for note in notes),
        f"Servers:\n\n```\n{options.ours_cmd}\n{options.against or ORIGINAL}\n```",
        f"Loads, with `--server` added:\n\n```\n{loads}\n```",
    ]
    return "\n\n".join(part for part in parts if part)


def arguments() -> argparse.Namespace:
    parser = command_line.parser_of(__doc__, OURS, "{data} {nats} and {python}")
    command_line.add_rounds(parser, ROUNDS, SECONDS)
    command_line.add_against(parser)
    return command_line.rounds_of(parser, (ROUNDS, SECONDS), (QUICK_ROUNDS, QUICK_SECONDS))


def main() -> int:
    options = arguments()
    for command in (options.ours_cmd, options.against or ORIGINAL):
        if not servers.found(command):
            sys.exit(f"not found: {command.split()[0]}")
    with servers.compiled("appender") as program:
        table, notes = report.measured(
            ROWS, lambda row: measure(row, options, program), options.rows
        )
    whole = text(options, table, notes)
    print(whole)
    if options.write:
        report.write_section("stan", whole)
    return 1 if notes else 0


if __name__ == "__main__":
    sys.exit(main())
