"""NATS request/reply while an NSQ topic is written as fast as the disk takes it.

Each round has a fresh server: request/reply on an idle server, then again while another
process publishes large MPUBs to a topic. The ratio of the two p99 is taken within the round.
The writer's batches are large so that it waits for the disk, not for a core. The cores are
kept awake in both parts; otherwise writing would hide the time an idle core takes to wake.
"""

from __future__ import annotations

import argparse
import multiprocessing
import shutil
import statistics
import sys
import tempfile
from dataclasses import dataclass
from multiprocessing.connection import Connection

import report
import servers
from awake import cores_awake

from broker.bench.loadgen import LoadError
from broker.bench.scenarios import (
    NatsRequestPlan,
    NsqFlowPlan,
    Result,
    run_nats_request,
    run_nsq_flow,
)

ROUNDS = 5
SECONDS = 4.0
QUICK_ROUNDS = 1
QUICK_SECONDS = 1.0
WARM_SECONDS = 0.3
GOALS = {"p99": report.Goal(2, least=False), "p99.9": report.Goal(3, least=False)}
WRITE_SIZE_BYTES = 16 * 1024
WRITE_BATCH = 64
WRITE_WINDOW = 4
# The writer starts before the requests and ends after them.
LEAD_MSGS = 4096
TAIL_SECONDS = 1.0
WRITER_SECONDS = 60.0
# More than any disk writes in a round; the files of a round are removed before the next.
DISK_BYTES_PER_SECOND = 4_000_000_000


@dataclass(frozen=True)
class Round:
    """Percentiles idle and while writing, and the bytes written."""

    idle_us: dict[str, float]
    busy_us: dict[str, float]
    written_bytes_per_second: float

    def ratio(self, name: str) -> float:
        return self.busy_us[name] / self.idle_us[name]


def write(address: tuple[str, int], seconds: float, pipe: Connection) -> None:
    """The writer's process: reports when it has started, then its speed."""
    said = False

    def progress(published: int, _received: int) -> None:
        nonlocal said
        if not said and published >= LEAD_MSGS:
            said = True
            pipe.send("writing")

    plan = NsqFlowPlan(
        address=address,
        seconds=seconds,
        size=WRITE_SIZE_BYTES,
        batch=WRITE_BATCH,
        window=WRITE_WINDOW,
        subs=0,
        topic="written",
    )
    try:
        result = run_nsq_flow(plan, progress)
    except LoadError as error:
        pipe.send(f"failed: {error}")
    else:
        pipe.send(result.bytes / result.seconds)


def request(address: tuple[str, int], seconds: float) -> Result:
    return run_nats_request(NatsRequestPlan(address=address, seconds=seconds))


def received(pipe: Connection) -> str | float:
    """The writer's next report."""
    if not pipe.poll(WRITER_SECONDS):
        raise LoadError("the writer is silent")
    word: str | float = pipe.recv()
    if isinstance(word, str) and word.startswith("failed"):
        raise LoadError(f"the writer {word}")
    return word


def measure(command: str, seconds: float, root: str | None) -> Round:
    """One round."""
    with servers.running(command, ("nats", "nsq"), root) as server, cores_awake():
        request(server.nats, WARM_SECONDS)
        idle = request(server.nats, seconds)
        ours, theirs = multiprocessing.Pipe()
        writer = multiprocessing.Process(
            target=write, args=(server.nsq, seconds + TAIL_SECONDS, theirs), daemon=True
        )
        writer.start()
        try:
            received(ours)
            busy = request(server.nats, seconds)
            rate = received(ours)
            writer.join()
        finally:
            if writer.is_alive():
                writer.kill()
                writer.join()
    assert idle.latency_us is not None
    assert busy.latency_us is not None
    return Round(idle.latency_us, busy.latency_us, float(rate))


def text(rounds: list[Round], seconds: float) -> str:
    """The page in results/."""
    rows = []
    for name in rounds[0].idle_us:
        ratios = [r.ratio(name) for r in rounds]
        ratio = statistics.median(ratios)
        goal = GOALS.get(name)
        rows.append(
            [
                name,
                f"{statistics.median(r.idle_us[name] for r in rounds):,.0f}",
                f"{statistics.median(r.busy_us[name] for r in rounds):,.0f}",
                f"{ratio:.2f}",
                f"{min(ratios):.2f}-{max(ratios):.2f}",
                *(goal.cells(ratio) if goal else ["", ""]),
            ]
        )
    written = statistics.median(r.written_bytes_per_second for r in rounds) / 1e6
    head = ["request/reply", "idle us", "writing us", "ratio", "spread", "goal", ""]
    method = (
        f"{len(rounds)} rounds of {seconds:g} s idle and {seconds:g} s under writing, one request"
        " in flight, cores kept awake; the topic takes MPUBs of"
        f" {WRITE_BATCH} x {WRITE_SIZE_BYTES} B, {WRITE_WINDOW} in flight:"
        f" {written:,.0f} MB/s (median)."
    )
    parts = ["## Live latency under writing", report.about(), method, report.table(head, rows)]
    return "\n\n".join(parts)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=0, help=f"default {ROUNDS}")
    parser.add_argument("--quick", action="store_true", help="one short round")
    parser.add_argument("--write", action="store_true", help="write the page in results/")
    parser.add_argument("--ours-cmd", default=servers.OURS)
    parser.add_argument("--data-root", help="parent of the data folders; default: TMPDIR")
    options = parser.parse_args()
    seconds = QUICK_SECONDS if options.quick else SECONDS
    count = options.rounds or (QUICK_ROUNDS if options.quick else ROUNDS)
    if options.write and (options.quick or count < ROUNDS):
        parser.error(f"--write takes full rounds, at least {ROUNDS}")
    free = shutil.disk_usage(options.data_root or tempfile.gettempdir()).free
    if free < (seconds + 2 * TAIL_SECONDS) * DISK_BYTES_PER_SECOND:
        sys.exit("not enough free disk; see --data-root")
    rounds = []
    try:
        for turn in range(count):
            rounds.append(measure(options.ours_cmd, seconds, options.data_root))
            print(
                f"round {turn + 1} of {count}: p99 x{rounds[-1].ratio('p99'):.2f}", file=sys.stderr
            )
    except (LoadError, servers.ServerError) as error:
        sys.exit(f"failed: {error}")
    whole = text(rounds, seconds)
    print(whole)
    if options.write:
        report.write_section("latency under writing", whole)
    return 0


if __name__ == "__main__":
    multiprocessing.set_start_method("spawn")
    sys.exit(main())
