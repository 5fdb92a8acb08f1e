"""How the broker's cost grows: connections, subscriptions, topics, channels, sizes of messages.

    python benchmarks/growth.py [--quick] [--rows TEXT] [--write]

With --rows and --write only those rows of the table are replaced, so that it can be measured in
parts. 100,000 topics take two minutes, nine beside much other work: with fewer open files than
topics the broker syncs and closes the files of most of them while they are made, and publishers
wait for that.
Each line is a run on a fresh server, after a short run of the first line's load. CPU is the
broker's own, of all threads, from the moment when every client is connected. Growth is the exponent
of a cost between two lines: 0 = the same, 1 = in proportion to the size, 2 = quadratic. Nothing may
grow faster than in proportion: CPU per message, or peak memory beyond that of the idle server.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import arguments as command_line
import report
import servers

from broker.bench.loadgen import LoadError
from broker.bench.scenarios import (
    NatsFlowPlan,
    NsqFlowPlan,
    Result,
    run_nats_flow,
    run_nsq_flow,
)

SECONDS = 1.0
WARM_SECONDS = 0.2
SIZE_BYTES = 128
SUBJECTS = 100
WINDOW = 200
WINDOW_MIN = 2
WINDOW_BYTES = 800_000
DELIVERIES = 1_000_000  # of all channels together
QUICK_MAX = 1000  # sizes up to here, and the first one above
GROWTH_MAX = 1.0
# Two lines differ by tenfold or more; a factor of 1.25 between runs is not growth.
TOLERANCE = 0.1
# Memory below this is one buffer more or less.
MEMORY_BYTES_MIN = 4_000_000
SECONDS_MAX = 240.0  # of one row
ANYWHERE = ("127.0.0.1", 0)
MB = 1_000_000
Plan = NatsFlowPlan | NsqFlowPlan


@dataclass(frozen=True)
class Row:
    """What grows, and the load of each size; `first` publishes before the clock starts, so that
    what the messages need exists."""

    name: str
    sizes: list[int]
    plan: Callable[[int], Plan]
    first: Callable[[int], int] = lambda _size: 0


@dataclass(frozen=True)
class Cost:
    """One run."""

    size: int
    msgs_per_second: float
    cpu_us: float  # per message
    memory_bytes: float  # peak
    beyond_bytes: float  # of it, beyond the idle server's


def connections(count: int) -> Plan:
    return NatsFlowPlan(
        address=ANYWHERE,
        subs=count,
        subjects=max(count, SUBJECTS),
        to_one=True,
        size=SIZE_BYTES,
        seconds=SECONDS,
    )


def subscriptions(count: int) -> Plan:
    return NatsFlowPlan(
        address=ANYWHERE, subs=1, subjects=count, by_name=True, size=16, seconds=SECONDS
    )


def topics(count: int) -> Plan:
    return NsqFlowPlan(
        address=ANYWHERE,
        subs=0,
        topics=count,
        topic="grown",
        window=WINDOW,
        size=SIZE_BYTES,
        seconds=SECONDS,
    )


def channels(count: int) -> Plan:
    """Every channel has a consumer; all of them together receive as many messages."""
    return NsqFlowPlan(
        address=ANYWHERE,
        channels=count,
        topic="grown",
        window=WINDOW,
        size=SIZE_BYTES,
        msgs=DELIVERIES // count,
    )


def nats_sizes(size: int) -> Plan:
    return NatsFlowPlan(address=ANYWHERE, subs=1, subjects=SUBJECTS, size=size, seconds=SECONDS)


def nsq_sizes(size: int) -> Plan:
    """As many bytes under way for each size: more than fit into a core's cache cost twice as much
    per byte, whatever the size of a message."""
    window = max(WINDOW_MIN, min(WINDOW, WINDOW_BYTES // size))
    return NsqFlowPlan(
        address=ANYWHERE, topic="grown", window=window, size=size, seconds=SECONDS / 2
    )


SIZES = [16, 256, 4096, 65_536, 1_048_576]
ROWS = [
    Row("NATS connections, each message to one", [1, 10, 100, 1000, 10_000], connections),
    Row("NATS subscriptions, each message to one", [1, 100, 10_000, 1_000_000], subscriptions),
    Row("NSQ topics, PUB to all in turn", [1, 100, 10_000, 100_000], topics, first=lambda n: n),
    Row("NSQ channels of a topic, per delivery", [1, 10, 100, 1000, 5000], channels),
    Row("bytes of a NATS message, 1:1", SIZES, nats_sizes),
    Row("bytes of an NSQ message, PUB to FIN", SIZES, nsq_sizes),
]


def drive(plan: Plan, server: servers.Running, ready: Callable[[], None] | None = None) -> Result:
    if isinstance(plan, NatsFlowPlan):
        return run_nats_flow(replace(plan, address=server.nats), ready=ready)
    return run_nsq_flow(replace(plan, address=server.nsq), ready=ready)


def measure(row: Row, size: int, options: argparse.Namespace) -> Cost:
    """One run on a fresh server."""
    listeners = ("nats", "nsq")
    with servers.running(options.ours_cmd, listeners, options.data_root) as server:
        idle = server.memory_bytes()["VmRSS"]
        warm = replace(row.plan(row.sizes[0]), seconds=WARM_SECONDS)
        drive(replace(warm, topic="warm") if isinstance(warm, NsqFlowPlan) else warm, server)
        plan = row.plan(size)
        if before := row.first(size):
            drive(replace(plan, msgs=before, seconds=0), server)
        began: list[float] = []
        result = drive(plan, server, lambda: began.append(server.cpu_seconds()))
        cpu = server.cpu_seconds() - began[0]
        peak = server.memory_bytes()["VmHWM"]
    return Cost(size, result.msgs_per_second, cpu / result.msgs * 1e6, peak, peak - idle)


def exponent(before: float, after: float, times: float) -> float:
    """By which power of `times` a cost has grown."""
    return math.log(after / before) / math.log(times)


def line(name: str, now: Cost, before: Cost | None) -> list[str]:
    """One line of the table."""
    cells = [
        name,
        f"{now.size:,}",
        f"{now.msgs_per_second:,.0f}",
        f"{now.cpu_us:,.2f}",
        f"{now.memory_bytes / MB:,.0f}",
    ]
    if before is None:
        return [*cells, "", "", ""]
    times = now.size / before.size
    cpu = exponent(before.cpu_us, now.cpu_us, times)
    memory = exponent(
        max(before.beyond_bytes, MEMORY_BYTES_MIN), max(now.beyond_bytes, MEMORY_BYTES_MIN), times
    )
    met = report.verdict(max(cpu, memory), GROWTH_MAX + TOLERANCE, least=False)
    return [*cells, f"{cpu:.2f}", f"{memory:.2f}", met]


HEAD = [
    "what grows",
    "size",
    "msgs/s",
    "CPU us per message",
    "peak MB",
    "growth of CPU",
    "of memory",
    "at most linear",
]


def table(options: argparse.Namespace) -> tuple[list[list[str]], list[str]]:
    """The lines, and what failed."""
    lines: list[list[str]] = []
    notes: list[str] = []
    for row in ROWS:
        if options.rows.lower() not in row.name.lower():
            continue
        began = time.monotonic()
        before: Cost | None = None
        for size in row.sizes:
            if options.quick and before is not None and before.size > QUICK_MAX:
                break
            try:
                now = measure(row, size, options)
            except (LoadError, servers.ServerError, OSError) as error:
                print(error, file=sys.stderr)
                notes.append(f"failed: {row.name}, {size:,}: {str(error).partition(chr(10))[0]}")
                break
            lines.append(line(row.name, now, before))
            print(f"{time.monotonic() - began:.0f} s:", *lines[-1], file=sys.stderr)
            before = now
        took = time.monotonic() - began
        if took > SECONDS_MAX:
            notes.append(f"failed: {row.name} took {took:.0f} s, more than {SECONDS_MAX:.0f} s")
    return lines, notes


def with_others(lines: list[list[str]]) -> list[list[str]]:
    """The lines, and those of all other rows in RESULTS.md."""
    measured = {cells[0] for cells in lines}
    places = {row.name: place for place, row in enumerate(ROWS)}
    for text in report.section("growth").splitlines():
        cells = [cell.strip() for cell in text.strip().strip("|").split("|")]
        if cells[0] in places.keys() - measured and len(cells) == len(HEAD):
            lines.append(cells)
    return sorted(lines, key=lambda cells: places[cells[0]])


def arguments() -> argparse.Namespace:
    parser = command_line.parser_of(__doc__, servers.OURS, "{data} {nats} {nsq} and {python}")
    parser.add_argument("--quick", action="store_true", help="only the smaller sizes")
    parser.add_argument("--rows", default="", help="only rows whose name contains this")
    options = parser.parse_args()
    if options.write and options.quick:
        parser.error("--write takes rows in full")
    return options


def main() -> int:
    options = arguments()
    wanted = max(size for row in ROWS[:1] for size in row.sizes)
    if servers.raise_file_limit(wanted) < wanted:
        sys.exit(f"{wanted:,} connections need as many open files")
    lines, notes = table(options)
    if options.write:
        lines = with_others(lines)
    method = (
        "Growth is the exponent of a cost between a line and the one before: 0 = no growth, 1 = in"
        f" proportion to the size. At most linear: both exponents are at most {GROWTH_MAX:g}, with"
        f" {TOLERANCE:g} for noise; memory is the peak beyond the idle server, at least"
        f" {MEMORY_BYTES_MIN / MB:.0f} MB. CPU is the broker's."
    )
    parts = ["## Cost growth", report.about_us(), method]
    parts += [report.table(HEAD, lines) if lines else "", "\n".join(f"- {note}" for note in notes)]
    whole = "\n\n".join(part for part in parts if part)
    print(whole)
    if options.write:
        report.write_section("growth", whole)
    return 1 if notes else 0


if __name__ == "__main__":
    sys.exit(main())
