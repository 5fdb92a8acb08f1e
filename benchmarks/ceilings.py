"""Rows of compare.py beside a plain C server: how much one thread can reach at all.

    python benchmarks/ceilings.py [--quick] [--rounds 6] [--seconds 2] [--rows NAME] [--write]

bare_server.c, compiled with cc, makes only the system calls that a row needs, on one thread: it
receives, writes the messages to files before it answers (NSQ), and sends. Twinwire, the original
and the bare server are driven by the same load, each in a new process; the rounds rotate which one
goes first. What the bare server reaches is about the most that any server with one thread can
reach; a goal above it cannot be met by making that thread faster. Where a single message is under
way, it runs twice a round, once awake between two messages; the better run counts.
"""

from __future__ import annotations

import argparse
import shlex
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path

import arguments as command_line
import compare
import report
import servers
from compare import Row, Sample
from report import Goal

from broker.bench.loadgen import LoadError

ROUNDS = 6  # each of the three is first equally often
SECONDS = 2.0
QUICK_ROUNDS = 2
QUICK_SECONDS = 0.5

NAMES = (
    "NATS 1:1, 8-512 B",
    "NATS 1:1, 500 subjects, 4-16 KiB",
    "NATS 1:4, 500 subjects, 4-16 KiB",
    "NSQ one PUB at a time, 8-512 B",
    "NSQ 100 publishers, one PUB under way each, 8-512 B",
    "NSQ 8 topics x 2 channels, PUB to FIN, 8-512 B",
    "NSQ MPUB of 200 to FIN, 8-512 B",
    "NSQ one message under way, PUB to delivery, 8-512 B",
)
AWAKE_US = 50  # longer than a generator takes for its next message
BARE = {"nats": "{program} nats {{nats}}", "nsq": "{program} nsq {{nsq}} {{data}}"}
METHOD = (
    "{} rounds of three runs, rotating, {:g} s of publishing per run after a warm-up of {:g} s; a"
    " fresh server for every run, one at a time. Ratios: medians of the rounds' ratios."
    " bare/original: the ceiling of a server with one thread; Twinwire sends long output on a"
    " second one and may be above it. The bare server (bare_server.c) matches no subjects, checks"
    " nothing and keeps no message for later; with NSQ it writes each message to a file before it"
    " answers OK, as Twinwire does. The ratios of `p50 us` are of times, of which less is better:"
    " there the ceiling is the smallest ratio, also bare/original, and a goal is above the ceiling"
    " if it asks for less. Where a single message is under way, idle-priority spinners keep the"
    " cores awake, and the bare server runs a second time, in which it stays awake for {} us before"
    " it sleeps; the better run counts. Such rows vary by a factor of two between equal runs of any"
    " of the three servers: to wake a process on the other core takes longer than on the same one,"
    " and the kernel chooses the core. Generator busy: its share of one core while it drives the"
    " bare server; where it is the limit, a faster generator might show a higher ceiling."
)
ABOVE = "goal above the ceiling"
HEAD = [
    "row", "metric", "ours", "original", "bare server", "goal of compare.py", "ours/original",
    "bare/original", "ours/bare", "generator busy", "",
]  # fmt: skip


def chosen() -> list[Row]:
    """The rows of compare.py, in the order of NAMES."""
    known = {row.name: row for row in compare.VARIED}
    if unknown := [name for name in NAMES if name not in known]:
        sys.exit(f"compare.py has no such row: {'; '.join(unknown)}")
    return [known[name] for name in NAMES]


@dataclass(frozen=True)
class Found:
    """The samples of a row, one per round and server."""

    ours: list[Sample]
    original: list[Sample]
    bare: list[Sample]


def measured(row: Row) -> tuple[str, Goal]:
    """The first goal of the row: the rate, or the median latency."""
    return next(iter(row.goals.items()))


def better(row: Row, samples: list[Sample]) -> Sample:
    """The sample with the higher rate or the smaller latency."""
    metric, goal = measured(row)
    pick = max if goal.least else min
    return pick(samples, key=lambda sample: sample.values[metric])


def measure(row: Row, bare: str, options: argparse.Namespace) -> Found:
    """All rounds of a row."""
    found = Found([], [], [])
    bares = [bare, f"{bare} {AWAKE_US}"] if row.alone else [bare]
    sides = [
        (found.ours, [options.ours_cmd]),
        (found.original, [row.original]),
        (found.bare, bares),
    ]
    for turn in range(options.rounds):
        first = turn % len(sides)
        for samples, commands in sides[first:] + sides[:first]:
            runs = [
                compare.sample(row, command, options.seconds, options.data_root)
                for command in commands
            ]
            samples.append(better(row, runs))
        print(f"{row.name}: round {turn + 1} of {options.rounds}", file=sys.stderr)
    return found


def line(row: Row, found: Found) -> list[str]:
    """One line of the table."""
    metric, goal = measured(row)
    ours, original, bare = (
        [sample.values[metric] for sample in samples]
        for samples in (found.ours, found.original, found.bare)
    )

    def ratio(above: list[float], below: list[float]) -> float:
        return statistics.median(a / b for a, b in zip(above, below, strict=True))

    ceiling = ratio(bare, original)
    out_of_reach = goal.bound > ceiling if goal.least else goal.bound < ceiling
    return [
        row.name,
        metric,
        *(f"{statistics.median(values):,.0f}" for values in (ours, original, bare)),
        goal.cells(ceiling)[0],
        f"{ratio(ours, original):.2f}",
        f"{ceiling:.2f}",
        f"{ratio(ours, bare):.2f}",
        report.busy(statistics.median(sample.generator_busy for sample in found.bare)),
        ABOVE if out_of_reach else "",
    ]


def run(
    rows: list[Row], program: Path, options: argparse.Namespace
) -> tuple[list[list[str]], list[str]]:
    """The lines of the table, and what was skipped or failed."""
    table: list[list[str]] = []
    notes: list[str] = []
    for row in rows:
        if not servers.found(row.original):
            notes.append(f"skipped: {row.name} ({row.original.split()[0]} is not on PATH)")
            continue
        bare = BARE[row.protocol].format(program=shlex.quote(str(program)))
        try:
            table.append(line(row, measure(row, bare, options)))
        except (LoadError, servers.ServerError) as error:
            print(error, file=sys.stderr)
            notes.append(f"failed: {row.name}: {str(error).partition(chr(10))[0]}")
            continue
        print(" ".join(table[-1]), file=sys.stderr)
    return table, notes


def text(
    options: argparse.Namespace, rows: list[Row], table: list[list[str]], notes: list[str]
) -> str:
    """The page in results/."""
    bare = [command.format(program="bare_server") for command in BARE.values()]
    commands = "\n".join([options.ours_cmd, servers.NATS_SERVER, servers.NSQD, *bare])
    loads = "\n".join(
        f"twinwire bench {row.command()} --duration {options.seconds:g}" for row in rows
    )
    parts = [
        "## What a plain C server reaches",
        report.about(),
        METHOD.format(options.rounds, options.seconds, compare.WARM_SECONDS, AWAKE_US),
        report.table(HEAD, table) if table else "",
        "\n".join(f"- {note}" for note in notes),
        f"Servers:\n\n```\n{commands}\n```",
        f"Loads, with `--server` added:\n\n```\n{loads}\n```",
    ]
    return "\n\n".join(part for part in parts if part)


def arguments() -> argparse.Namespace:
    parser = command_line.parser_of(__doc__, servers.OURS, "{data} {nats} {nsq} {http} {python}")
    command_line.add_rounds(parser, ROUNDS, SECONDS)
    return command_line.rounds_of(parser, (ROUNDS, SECONDS), (QUICK_ROUNDS, QUICK_SECONDS))


def main() -> int:
    options = arguments()
    if not servers.found(options.ours_cmd):
        sys.exit(f"not found: {options.ours_cmd.split()[0]}")
    rows = [row for row in chosen() if options.rows.lower() in row.name.lower()]
    with servers.compiled("bare_server") as program:
        table, notes = run(rows, program, options)
    whole = text(options, rows, table, notes)
    print(whole)
    if options.write:
        report.write_section("ceilings", whole)
    return 1 if any(note.startswith("failed") for note in notes) else 0


if __name__ == "__main__":
    sys.exit(main())
