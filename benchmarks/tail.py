"""A consumer with a backlog of 5 GB: its rate, and other live traffic until it has caught up.

    python benchmarks/tail.py [--quick] [--rounds 3] [--gigabytes 5] [--write]

Each round has a fresh server: a topic is written while its two channels have no consumer. Then one
NATS client measures request/reply on the idle server; a consumer of the first channel catches up
alone; a consumer of the second one catches up while request/reply is measured again. The ratio of
the two p99 is taken within the round. The cores are kept awake in every part. What was written
before stays in the page cache where memory suffices, as it does behind a consumer that was away for
minutes.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import shutil
import statistics
import sys
import tempfile
from dataclasses import dataclass
from multiprocessing.connection import Connection

import arguments as command_line
import report
import servers
from awake import cores_awake
from report import Goal

from broker.bench.dial import dial_nsq
from broker.bench.loadgen import LoadError
from broker.bench.scenarios import (
    NatsRequestPlan,
    NsqFlowPlan,
    Result,
    run_nats_request,
    run_nsq_flow,
)

ROUNDS = 3
GIGABYTES = 5.0
QUICK_ROUNDS = 1
QUICK_GIGABYTES = 2.0
SECONDS = 2.0
WARM_SECONDS = 0.3
RATE_GOAL = 1.5  # GB/s
LATENCY_GOAL = Goal(1.2, least=False)
SIZE_BYTES = 4096
BATCH = 64
TOPIC = "behind"
CHANNELS = ("alone", "beside")
# Of the time that the first consumer took: the requests end before the second one is there.
MEASURED_PART = 0.5
# The files of a round are removed before the next one; records are a little larger than bodies.
DISK_FACTOR = 1.2
CONSUMER_SECONDS = 120.0
GB = 1_000_000_000


@dataclass(frozen=True)
class Round:
    """Rates in GB/s, and percentiles idle and while a consumer catches up."""

    alone: float
    beside: float
    idle_us: dict[str, float]
    busy_us: dict[str, float]

    def ratio(self, name: str) -> float:
        return self.busy_us[name] / self.idle_us[name]


def fill(address: tuple[str, int], msgs: int) -> None:
    """Create the channels, then publish their backlog."""
    for channel in CHANNELS:
        dial_nsq(address, (TOPIC, channel))[0].close()
    run_nsq_flow(
        NsqFlowPlan(address=address, msgs=msgs, size=SIZE_BYTES, batch=BATCH, subs=0, topic=TOPIC)
    )
    # Its syncs must not fall into the measurement.
    os.sync()


def catch_up(address: tuple[str, int], channel: str, msgs: int, pipe: Connection) -> None:
    """The consumer's process: reports when messages come, then its seconds."""
    said = False

    def progress(_published: int, received: int) -> None:
        nonlocal said
        if not said and received:
            said = True
            pipe.send("receiving")

    plan = NsqFlowPlan(address=address, msgs=msgs, pubs=0, topic=TOPIC, channel=channel)
    try:
        result = run_nsq_flow(plan, progress)
    except LoadError as error:
        pipe.send(f"failed: {error}")
    else:
        pipe.send(result.seconds)


def reported(pipe: Connection) -> str | float:
    """The consumer's next report."""
    if not pipe.poll(CONSUMER_SECONDS):
        raise LoadError("the consumer is silent")
    word: str | float = pipe.recv()
    if isinstance(word, str) and word.startswith("failed"):
        raise LoadError(f"the consumer {word}")
    return word


def catch_up_with_requests(
    server: servers.Running, channel: str, msgs: int, seconds: float
) -> tuple[float, Result | None]:
    """Let a consumer catch up, and send requests for `seconds` meanwhile. Returns the seconds that
    it took, and the result of the requests."""
    here, there = multiprocessing.Pipe()
    consumer = multiprocessing.Process(
        target=catch_up, args=(server.nsq, channel, msgs, there), daemon=True
    )
    consumer.start()
    try:
        word = reported(here)
        found = request(server, seconds) if seconds else None
        if word == "receiving":
            if seconds and here.poll():
                raise LoadError("the consumer was there before the requests had ended: more bytes")
            word = reported(here)
        consumer.join()
    finally:
        if consumer.is_alive():
            consumer.kill()
            consumer.join()
    return float(word), found


def request(server: servers.Running, seconds: float) -> Result:
    return run_nats_request(NatsRequestPlan(address=server.nats, seconds=seconds))


def measure(command: str, msgs: int, root: str | None) -> Round:
    """One round."""
    with servers.running(command, ("nats", "nsq"), root) as server, cores_awake():
        fill(server.nsq, msgs)
        request(server, WARM_SECONDS)
        idle = request(server, SECONDS)
        alone, _ = catch_up_with_requests(server, CHANNELS[0], msgs, 0)
        slow, busy = catch_up_with_requests(server, CHANNELS[1], msgs, alone * MEASURED_PART)
    assert idle.latency_us is not None
    assert busy is not None
    assert busy.latency_us is not None
    size = msgs * SIZE_BYTES / GB
    return Round(size / alone, size / slow, idle.latency_us, busy.latency_us)


def text(rounds: list[Round], msgs: int) -> str:
    """The page in results/."""
    rows = []
    for name, rates, goal in (
        ("catching up, GB/s", [r.alone for r in rounds], RATE_GOAL),
        ("catching up beside requests, GB/s", [r.beside for r in rounds], 0.0),
    ):
        rate = statistics.median(rates)
        cells = [f">= {goal:g}", report.verdict(rate, goal)] if goal else ["", ""]
        rows.append([name, f"{rate:.2f}", report.spread(rates), "", *cells])
    for name in rounds[0].idle_us:
        ratios = [r.ratio(name) for r in rounds]
        ratio = statistics.median(ratios)
        idle = statistics.median(r.idle_us[name] for r in rounds)
        busy = statistics.median(r.busy_us[name] for r in rounds)
        cells = LATENCY_GOAL.cells(ratio) if name == "p99" else ["", ""]
        rows.append(
            [
                f"request/reply, {name} us",
                f"{busy:,.0f}",
                report.spread(ratios),
                f"{ratio:.2f} x {idle:,.0f}",
                *cells,
            ]
        )
    method = (
        f"{len(rounds)} rounds; {msgs:,} messages of {SIZE_BYTES:,} B wait,"
        f" {msgs * SIZE_BYTES / GB:.1f} GB, in the page cache. One consumer with FIN for each;"
        " one request under way. Spread: of the rate, or of the ratio to the idle server."
    )
    head = ["row", "median", "spread", "x idle", "goal", ""]
    title = "## A consumer far behind"
    return "\n\n".join([title, report.about_us(), method, report.table(head, rows)])


def arguments() -> argparse.Namespace:
    parser = command_line.parser_of(__doc__, servers.OURS, "{data} {nats} {nsq} and {python}")
    parser.add_argument("--quick", action="store_true", help="one round of 2 GB")
    parser.add_argument("--rounds", type=int, default=0, help=f"default {ROUNDS}")
    parser.add_argument("--gigabytes", type=float, default=0.0, help=f"default {GIGABYTES:g}")
    options = parser.parse_args()
    options.rounds = options.rounds or (QUICK_ROUNDS if options.quick else ROUNDS)
    options.gigabytes = options.gigabytes or (QUICK_GIGABYTES if options.quick else GIGABYTES)
    if options.write and (options.quick or options.rounds < ROUNDS):
        parser.error(f"--write takes full rounds, at least {ROUNDS}")
    return options


def main() -> int:
    options = arguments()
    free = shutil.disk_usage(options.data_root or tempfile.gettempdir()).free
    size = min(options.gigabytes * GB, free / DISK_FACTOR / 2)
    msgs = int(size) // SIZE_BYTES // BATCH * BATCH
    rounds = []
    try:
        for turn in range(options.rounds):
            rounds.append(measure(options.ours_cmd, msgs, options.data_root))
            print(f"round {turn + 1} of {options.rounds}: {rounds[-1]}", file=sys.stderr)
    except (LoadError, servers.ServerError) as error:
        sys.exit(f"failed: {error}")
    whole = text(rounds, msgs)
    print(whole)
    if options.write:
        report.write_section("tail", whole)
    return 0


if __name__ == "__main__":
    multiprocessing.set_start_method("spawn")
    sys.exit(main())
