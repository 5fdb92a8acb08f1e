"""Compare Twinwire with the original servers under the same load; print the ratios.

Every measured run starts its own server, on a free loopback port with an empty data folder, so
nothing of an earlier run is left and no second server uses the machine. Rounds alternate which of
the two goes first. A ratio is taken within a round; the table shows the median of them.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from dataclasses import dataclass, replace

import arguments as command_line
import report
import servers
from awake import cores_awake

from broker.bench.loadgen import LoadError
from broker.bench.scenarios import (
    NatsFlowPlan,
    NatsRequestPlan,
    NsqFlowPlan,
    Result,
    run_nats_flow,
    run_nats_request,
    run_nsq_flow,
)

ROUNDS = 5
SECONDS = 2.0
QUICK_ROUNDS = 2
QUICK_SECONDS = 0.5
AS_BEFORE = 0.97  # of the performance of an earlier build
# Seconds before each measured run, for page faults, heap growth and caches.
WARM_SECONDS = 0.2
REQUEST_WARM_SECONDS = 0.1

ANYWHERE = ("127.0.0.1", 0)
Plan = NatsFlowPlan | NatsRequestPlan | NsqFlowPlan


@dataclass(frozen=True)
class Row:
    """One comparison. `goals`: metric -> (bound on ours/theirs, whether more is better)."""

    name: str
    plan: Plan
    command: str
    goals: dict[str, tuple[float, bool]]

    @property
    def protocol(self) -> str:
        return "nsq" if isinstance(self.plan, NsqFlowPlan) else "nats"

    @property
    def original(self) -> str:
        return servers.NSQD if self.protocol == "nsq" else servers.NATS_SERVER


def flow(name: str, goal: float, pubs: int, subs: int, size: int) -> Row:
    plan = NatsFlowPlan(address=ANYWHERE, pubs=pubs, subs=subs, size=size)
    kind = f"pubsub --subs {subs}" if subs else "pub"
    command = f"nats {kind} --pubs {pubs} --size {size}"
    return Row(name, plan, command, {"msgs/s": (goal, True)})


def queue(name: str, goal: float, batch: int, window: int) -> Row:
    plan = NsqFlowPlan(address=ANYWHERE, batch=batch, window=window, topic="bench")
    command = f"nsq pubfin --batch {batch} --window {window} --size {plan.size}"
    return Row(name, plan, command, {"msgs/s": (goal, True)})


ROWS = [
    flow("NATS 1:1, 16 B", 4.0, 1, 1, 16),
    flow("NATS 1:1, 256 B", 3.0, 1, 1, 256),
    flow("NATS 1:4, 16 B", 3.5, 1, 4, 16),
    flow("NATS 4:4, 128 B", 3.0, 4, 4, 128),
    flow("NATS publish only, 16 B", 4.0, 1, 0, 16),
    flow("NATS 1:100, 16 B", 3.0, 1, 100, 16),
    Row(
        "NATS request/reply, 16 B",
        NatsRequestPlan(address=ANYWHERE),
        "nats request --size 16",
        {"p50 us": (0.75, False), "p99 us": (0.75, False)},
    ),
    queue("NSQ PUB to FIN, 200 B", 8.0, 1, 200),
    queue("NSQ MPUB of 200 to FIN, 200 B", 4.0, 200, 8),
]


@dataclass(frozen=True)
class Sample:
    """Result of one run: a value per metric, and the generator's share of one core."""

    values: dict[str, float]
    generator_busy: float


def as_before(row: Row) -> Row:
    """Goals for a build compared with an earlier one."""
    goals = {
        name: (AS_BEFORE if more_is_better else 1 / AS_BEFORE, more_is_better)
        for name, (_, more_is_better) in row.goals.items()
    }
    return replace(row, goals=goals)


def drive(plan: Plan) -> Result:
    if isinstance(plan, NatsFlowPlan):
        return run_nats_flow(plan)
    if isinstance(plan, NatsRequestPlan):
        return run_nats_request(plan)
    return run_nsq_flow(plan)


def sample(row: Row, command: str, seconds: float, root: str | None) -> Sample:
    """One run on a new server."""
    quiet = isinstance(row.plan, NatsRequestPlan)
    with servers.running(command, (row.protocol,), root) as server, cores_awake(quiet):
        plan = replace(row.plan, address=server.nsq if row.protocol == "nsq" else server.nats)
        drive(replace(plan, seconds=REQUEST_WARM_SECONDS if quiet else WARM_SECONDS))
        result = drive(replace(plan, seconds=seconds))
    busy = result.generator_cpu_seconds / result.seconds
    if result.latency_us is None:
        return Sample({"msgs/s": result.msgs_per_second}, busy)
    return Sample({f"{name} us": value for name, value in result.latency_us.items()}, busy)


def measure(row: Row, other: str, options: argparse.Namespace) -> tuple[list[Sample], list[Sample]]:
    """Samples of both sides, pairwise by round."""
    ours_found: list[Sample] = []
    theirs_found: list[Sample] = []
    rounds: int = options.rounds
    for turn in range(rounds):
        pair = [(ours_found, options.ours_cmd), (theirs_found, other)]
        for samples, command in pair if turn % 2 == 0 else reversed(pair):
            samples.append(sample(row, command, options.seconds, options.data_root))
        print(f"{row.name}: round {turn + 1} of {rounds}", file=sys.stderr)
    return ours_found, theirs_found


def lines(row: Row, ours: list[Sample], theirs: list[Sample]) -> list[list[str]]:
    """Table lines, one per metric."""
    found = []
    busy = statistics.median(s.generator_busy for s in ours)
    for metric, (goal, more_is_better) in row.goals.items():
        mine = [s.values[metric] for s in ours]
        other = [s.values[metric] for s in theirs]
        ratios = [a / b for a, b in zip(mine, other, strict=True)]
        ratio = statistics.median(ratios)
        met = ratio >= goal if more_is_better else ratio <= goal
        found.append(
            [
                row.name,
                metric,
                f"{statistics.median(mine):,.0f}",
                f"{statistics.median(other):,.0f}",
                f"{ratio:.2f}",
                f"{min(ratios):.2f}-{max(ratios):.2f}",
                f"{'>=' if more_is_better else '<='} {goal:g}",
                "met" if met else "MISSED",
                f"{busy:.0%}",
            ]
        )
    return found


HEAD = [
    "row",
    "metric",
    "ours",
    "original",
    "ratio",
    "spread",
    "goal",
    "",
    "generator busy",
]


def run(options: argparse.Namespace) -> tuple[list[list[str]], list[str], list[str]]:
    """Table lines, commands, and what was skipped or failed."""
    table: list[list[str]] = []
    commands: list[str] = []
    notes: list[str] = []
    if not servers.found(options.ours_cmd):
        sys.exit(f"not found: {options.ours_cmd.split()[0]}")
    for row in ROWS:
        if options.rows and options.rows.lower() not in row.name.lower():
            continue
        other = options.against or row.original
        if not servers.found(other):
            notes.append(f"skipped: {row.name} ({other.split()[0]} is not on PATH)")
            continue
        commands.append(f"twinwire bench {row.command} --duration {options.seconds:g}")
        try:
            ours, theirs = measure(row, other, options)
        except (LoadError, servers.ServerError) as error:
            print(error, file=sys.stderr)
            notes.append(f"failed: {row.name}: {str(error).partition(chr(10))[0]}")
            continue
        table += lines(as_before(row) if options.against else row, ours, theirs)
        print(" ".join(table[-1]), file=sys.stderr)
    return table, commands, notes


def text(
    options: argparse.Namespace, table: list[list[str]], commands: list[str], notes: list[str]
) -> str:
    """The section of RESULTS.md."""
    method = (
        f"{options.rounds} rounds, alternating, {options.seconds:g} s of publishing per run after a"
        " short warm-up; a fresh server for every run, one at a time. Ratio: median of the rounds'"
        " ours/original; spread: smallest and largest. Generator busy: its share of one core while"
        " it drives ours. While latency is measured, idle-priority spinners keep the cores awake."
    )
    shown = f"{options.ours_cmd}\n{servers.NATS_SERVER}\n{servers.NSQD}"
    parts = [
        "## Ours against the originals",
        report.about(),
        method,
        report.table(HEAD, table) if table else "",
        "\n".join(f"- {note}" for note in notes),
        f"Servers:\n\n```\n{shown}\n```",
    ]
    if commands:
        loads = "\n".join(commands)
        parts.append(f"Loads, with `--server` added:\n\n```\n{loads}\n```")
    return "\n\n".join(part for part in parts if part)


def arguments() -> argparse.Namespace:
    parser = command_line.parser_of(__doc__, servers.OURS, "{data} {nats} {nsq} {http} {python}")
    command_line.add_rounds(parser, ROUNDS, SECONDS)
    parser.add_argument(
        "--against",
        default="",
        metavar="COMMAND",
        help="compare with this command, for example an earlier build, instead of the originals",
    )
    return command_line.rounds_of(parser, (ROUNDS, SECONDS), (QUICK_ROUNDS, QUICK_SECONDS))


def main() -> int:
    options = arguments()
    table, commands, notes = run(options)
    whole = text(options, table, commands, notes)
    print(whole)
    if options.write:
        report.write_section("compare", whole)
    return 1 if any(note.startswith("failed") for note in notes) else 0


if __name__ == "__main__":
    sys.exit(main())
