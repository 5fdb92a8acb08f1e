"""Compare Twinwire with the original servers under the same load; print the ratios.

Every measured run starts its own server, on a free loopback port with an empty data folder, so
nothing of an earlier run is left and no second server uses the machine. Rounds alternate which of
the two goes first; each run begins with the same warm-up. A ratio is taken within a round; the
tables show the median of them.

Varied traffic comes first: subjects or topics, and sizes, in an order that looks random, as
applications send it. Uniform traffic repeats one message; a server gains from runs of equal ones.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import sys
from dataclasses import dataclass, replace

import arguments as command_line
import report
import servers
from awake import cores_awake
from report import Goal

from broker.bench import limits
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
# Before each measured run, on both sides: page faults, heap growth, caches, subjects seen once.
WARM_SECONDS = 0.3

ANYWHERE = ("127.0.0.1", 0)
SUBJECTS = 10_000
SMALL = (16, 64)
USUAL = (8, 512)
LARGE = (4096, 16_384)
LARGE_SUBJECTS = 500  # more would not fit into the generator's cache
Plan = NatsFlowPlan | NatsRequestPlan | NsqFlowPlan


@dataclass(frozen=True)
class Row:
    """One comparison; `goals` by metric. `may_halt`: idle cores halt, as on any machine."""

    name: str
    plan: Plan
    goals: dict[str, Goal]
    may_halt: bool = False

    @property
    def protocol(self) -> str:
        return "nsq" if isinstance(self.plan, NsqFlowPlan) else "nats"

    @property
    def original(self) -> str:
        return servers.NSQD if self.protocol == "nsq" else servers.NATS_SERVER

    @property
    def alone(self) -> bool:
        """Whether a single message is under way most of the time: the cores are kept awake."""
        if self.may_halt:
            return False
        if isinstance(self.plan, NsqFlowPlan):
            return self.plan.round_trip or (self.plan.window == 1 and self.plan.pubs == 1)
        return isinstance(self.plan, NatsRequestPlan)

    def command(self) -> str:
        """The same load as arguments of `twinwire bench`."""
        plan = self.plan
        if isinstance(plan, NatsRequestPlan):
            words = "nats request"
        elif isinstance(plan, NatsFlowPlan):
            words = "nats pubsub" if plan.subs else "nats pub"
        else:
            words = "nsq pubfin" if plan.subs else "nsq pub"
        for field in dataclasses.fields(plan):
            value = getattr(plan, field.name)
            name = {"group": "queue"}.get(field.name, field.name).replace("_", "-")
            if name in {"address", "topic", "channel"} or value == field.default:
                continue
            if value is True:
                words += f" --{name}"
            elif value:
                shown = "-".join(map(str, value)) if isinstance(value, tuple) else value
                words += f" --{name} {shown}"
        return words


def rate(goal: float) -> dict[str, Goal]:
    return {"msgs/s": Goal(goal)}


def latency(goal: float) -> dict[str, Goal]:
    return {"p50 us": Goal(goal, least=False), "p99 us": Goal(goal, least=False)}


def flow(**options: object) -> NatsFlowPlan:
    """NATS 1:1 unless other options say otherwise."""
    plan = NatsFlowPlan(address=ANYWHERE, subs=1)
    return replace(plan, **options)  # type: ignore[arg-type]


def varied(**options: object) -> NatsFlowPlan:
    return flow(**({"subjects": SUBJECTS, "size": USUAL} | options))


def queue(**options: object) -> NsqFlowPlan:
    """NSQ PUB to FIN, one publisher and one consumer, unless other options say otherwise."""
    plan = NsqFlowPlan(address=ANYWHERE, topic="bench", window=limits.PUB_WINDOW)
    return replace(plan, **options)  # type: ignore[arg-type]


VARIED = [
    Row("NATS 1:1, 8-512 B", varied(), rate(6)),
    Row("NATS 1:1, 16-64 B", varied(size=SMALL), rate(8)),
    Row("NATS 4:4, each message to one, 8-512 B", varied(pubs=4, subs=4, to_one=True), rate(7)),
    Row("NATS 16:16, each message to one, 8-512 B", varied(pubs=16, subs=16, to_one=True), rate(7)),
    Row("NATS 1:1, 2 headers (HPUB), 8-512 B", varied(headers=2), rate(6)),
    Row("NATS 1:8, a queue group, 8-512 B", varied(subs=8, group="workers"), rate(6)),
    Row("NATS 1:1, 500 subjects, 4-16 KiB", varied(size=LARGE, subjects=LARGE_SUBJECTS), rate(1.8)),
    Row(
        "NATS 1:4, 500 subjects, 4-16 KiB",
        varied(size=LARGE, subjects=LARGE_SUBJECTS, subs=4),
        rate(2.5),
    ),
    Row(
        "NATS request/reply, 50 clients, 8-512 B",
        NatsRequestPlan(address=ANYWHERE, size=USUAL, subjects=SUBJECTS, clients=50),
        latency(0.6),
    ),
    Row("NSQ one PUB at a time, 8-512 B", queue(subs=0, window=1, size=USUAL), rate(1.5)),
    Row(
        "NSQ 100 publishers, one PUB under way each, 8-512 B",
        queue(subs=0, window=1, pubs=100, size=USUAL),
        rate(3),
    ),
    Row("NSQ 1 topic, PUB to FIN, 8-512 B", queue(size=USUAL), rate(8)),
    Row(
        "NSQ 8 topics x 2 channels, PUB to FIN, 8-512 B",
        queue(topics=8, channels=2, size=USUAL),
        rate(8),
    ),
    Row(
        "NSQ MPUB of 200 to FIN, 8-512 B",
        queue(batch=200, window=limits.MPUB_WINDOW, size=USUAL),
        rate(6),
    ),
    Row(
        "NSQ one message under way, PUB to delivery, 8-512 B",
        queue(round_trip=True, size=USUAL, window=1),
        latency(0.7),
    ),
    Row(
        "NSQ one PUB at a time, 8-512 B, cores may halt",
        queue(subs=0, window=1, size=USUAL),
        rate(1.5),
        may_halt=True,
    ),
    Row(
        "NSQ one message under way, PUB to delivery, 8-512 B, cores may halt",
        queue(round_trip=True, size=USUAL, window=1),
        latency(0.7),
        may_halt=True,
    ),
    Row(
        "NATS request/reply, one client, 8-512 B, cores may halt",
        NatsRequestPlan(address=ANYWHERE, size=USUAL, subjects=SUBJECTS),
        latency(0.75),
        may_halt=True,
    ),
]

UNIFORM = [
    Row("NATS uniform 1:1, 16 B", flow(), rate(4)),
    Row("NATS uniform 1:1, 256 B", flow(size=256), rate(3)),
    Row("NATS uniform 1:4, 16 B", flow(subs=4), rate(3.5)),
    Row("NATS uniform 4:4, 128 B", flow(pubs=4, subs=4, size=128), rate(3)),
    Row("NATS uniform publish only, 16 B", flow(subs=0), rate(4)),
    Row("NATS uniform 1:100, 16 B", flow(subs=100), rate(3)),
    Row("NATS request/reply, one client, 16 B", NatsRequestPlan(address=ANYWHERE), latency(0.75)),
    Row("NSQ uniform PUB to FIN, 200 B", queue(), rate(8)),
    Row(
        "NSQ uniform MPUB of 200 to FIN, 200 B",
        queue(batch=200, window=limits.MPUB_WINDOW),
        rate(4),
    ),
]


@dataclass(frozen=True)
class Sample:
    """Result of one run: a value per metric, and the generator's share of one core."""

    values: dict[str, float]
    generator_busy: float


def drive(plan: Plan) -> Result:
    if isinstance(plan, NatsFlowPlan):
        return run_nats_flow(plan)
    if isinstance(plan, NatsRequestPlan):
        return run_nats_request(plan)
    return run_nsq_flow(plan)


def sample(row: Row, command: str, seconds: float, root: str | None) -> Sample:
    """One run on a new server."""
    with servers.running(command, (row.protocol,), root) as server, cores_awake(row.alone):
        plan = replace(row.plan, address=server.nsq if row.protocol == "nsq" else server.nats)
        drive(replace(plan, seconds=WARM_SECONDS))
        result = drive(replace(plan, seconds=seconds))
    values = {f"{name} us": value for name, value in (result.latency_us or {}).items()}
    return Sample(values | {"msgs/s": result.msgs_per_second}, result.generator_busy)


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


def lines(
    row: Row, ours: list[Sample], theirs: list[Sample], *, as_before: bool
) -> list[list[str]]:
    """Table lines, one per metric."""
    found = []
    busy = statistics.median(s.generator_busy for s in ours)
    for metric, goal in row.goals.items():
        mine = [s.values[metric] for s in ours]
        other = [s.values[metric] for s in theirs]
        ratios = [a / b for a, b in zip(mine, other, strict=True)]
        ratio = statistics.median(ratios)
        found.append(
            [
                row.name,
                metric,
                f"{statistics.median(mine):,.0f}",
                f"{statistics.median(other):,.0f}",
                f"{ratio:.2f}",
                f"{min(ratios):.2f}-{max(ratios):.2f}",
                *(goal.as_before() if as_before else goal).cells(ratio),
                report.busy(busy),
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


@dataclass
class Table:
    """One of the two tables, and the loads of its rows."""

    title: str
    rows: list[Row]
    lines: list[list[str]] = dataclasses.field(default_factory=list)
    commands: list[str] = dataclasses.field(default_factory=list)


def run(tables: list[Table], options: argparse.Namespace) -> list[str]:
    """Fill the tables; return what was skipped or failed."""
    notes: list[str] = []
    if not servers.found(options.ours_cmd):
        sys.exit(f"not found: {options.ours_cmd.split()[0]}")
    for table in tables:
        for row in table.rows:
            other = options.against or row.original
            if options.rows.lower() not in row.name.lower():
                continue
            if not servers.found(other):
                notes.append(f"skipped: {row.name} ({other.split()[0]} is not on PATH)")
                continue
            table.commands.append(f"twinwire bench {row.command()} --duration {options.seconds:g}")
            try:
                ours, theirs = measure(row, other, options)
            except (LoadError, servers.ServerError) as error:
                print(error, file=sys.stderr)
                notes.append(f"failed: {row.name}: {str(error).partition(chr(10))[0]}")
                continue
            table.lines += lines(row, ours, theirs, as_before=bool(options.against))
            print(" ".join(table.lines[-1]), file=sys.stderr)
    return notes


def text(options: argparse.Namespace, tables: list[Table], notes: list[str]) -> str:
    """The page in results/."""
    method = (
        f"{options.rounds} rounds, alternating, {options.seconds:g} s of publishing per run after a"
        f" warm-up of {WARM_SECONDS:g} s; a fresh server for every run, one at a time. Ratio:"
        " median of the rounds' ours/original; spread: smallest and largest. Generator busy: its"
        " share of one core while it drives ours. While latency is measured, idle-priority"
        " spinners keep the cores awake."
    )
    commands = [options.ours_cmd]
    commands += [options.against] if options.against else [servers.NATS_SERVER, servers.NSQD]
    parts = ["## Ours against the originals", report.about(), method]
    for table in tables:
        if table.lines:
            parts += [f"### {table.title}", report.table(HEAD, table.lines)]
    parts.append("\n".join(f"- {note}" for note in notes))
    parts.append("Servers:\n\n```\n{}\n```".format("\n".join(commands)))
    loads = "\n".join(line for table in tables for line in table.commands)
    if loads:
        parts.append(f"Loads, with `--server` added:\n\n```\n{loads}\n```")
    return "\n\n".join(part for part in parts if part)


def arguments() -> argparse.Namespace:
    parser = command_line.parser_of(__doc__, servers.OURS, "{data} {nats} {nsq} {http} {python}")
    command_line.add_rounds(parser, ROUNDS, SECONDS)
    command_line.add_against(parser)
    return command_line.rounds_of(parser, (ROUNDS, SECONDS), (QUICK_ROUNDS, QUICK_SECONDS))


def main() -> int:
    options = arguments()
    tables = [Table("Varied traffic", VARIED), Table("Uniform traffic", UNIFORM)]
    notes = run(tables, options)
    whole = text(options, tables, notes)
    print(whole)
    if options.write:
        report.write_section("compare", whole)
    return 1 if any(note.startswith("failed") for note in notes) else 0


if __name__ == "__main__":
    sys.exit(main())
