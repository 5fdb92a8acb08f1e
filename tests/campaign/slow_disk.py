"""A disk whose every fsync takes ten seconds, with live NATS messages and NSQ.

One broker; the disk is slow in every second time slice. NATS requests are measured in all slices,
while one client publishes to an NSQ topic that is synced each second, and another to a channel of
NATS Streaming, which waits for the disk each time.
"""

from __future__ import annotations

import asyncio
import math
import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path

from support.engine import scratch

from campaign import links, report
from campaign.brokers import ForkedBroker, Spawner
from campaign.faults import Faults
from campaign.links import GONE, NatsLink, NsqLink, StanLink

GAP_S = 5.0  # NSQ answers at least this often, on any machine
RATIO = 3.0  # of the p99; a higher one is a finding if it is also more than `harm_s`
CONFIG = '[stan]\nenabled = true\n[storage]\nsync = "1s"\n'


@dataclass(frozen=True)
class Lengths:
    """Lengths of slices, and limits."""

    fsync_s: float = 10.0
    slice_s: float = 15.0
    settle_s: float = 1.0  # at the beginning of each slice, not measured
    count_min: int = 2  # slices of each kind
    harm_s: float = 0.05


LENGTHS = Lengths()


@dataclass
class Measured:
    """The measurements of one kind of slices."""

    seconds: list[float] = field(default_factory=list)  # of each request
    answered: int = 0  # number of PUBs
    streamed: int = 0
    gap_s: float = 0.0  # the longest time without an answer to a PUB

    def waited(self, since: float) -> None:
        """Note that a PUB had no answer from this time until now."""
        self.gap_s = max(self.gap_s, time.monotonic() - since)

    def percentile(self, part: float) -> float:
        found = sorted(self.seconds) or [math.inf]
        return found[min(len(found) - 1, int(part * len(found)))]


class Run:
    """The clients; `now` is the current kind of slice."""

    def __init__(self, broker: ForkedBroker, lengths: Lengths = LENGTHS) -> None:
        self.broker, self.lengths = broker, lengths
        self.quick, self.slow = Measured(), Measured()
        self.now = Measured()
        self.asked = 0.0  # when the last PUB was sent

    async def requests(self) -> None:
        address = self.broker.ports["nats"]
        async with await NatsLink.to(address) as server, await NatsLink.to(address) as client:
            answered: asyncio.Queue[bytes] = asyncio.Queue()
            server.handlers["echo"] = lambda _, reply, data: server.publish(reply.decode(), data)
            client.handlers["inbox"] = lambda _, __, data: answered.put_nowait(data)
            server.send(b"SUB echo 1\r\n")
            client.send(b"SUB inbox 1\r\n")
            await server.ping()
            await client.ping()
            while True:
                start = time.perf_counter()
                client.publish("echo", b"x", "inbox")
                await answered.get()
                self.now.seconds.append(time.perf_counter() - start)
                await asyncio.sleep(0.001)

    async def publish(self) -> None:
        async with await NsqLink.to(self.broker.ports["nsq"]) as link:
            while True:
                self.asked = time.monotonic()
                link.send(links.pub("t", b"x" * 200))
                await link.answer()
                self.now.answered += 1
                self.now.waited(self.asked)
                await asyncio.sleep(0.001)

    async def stream(self) -> None:
        async with await StanLink.to(self.broker.ports["nats"]) as link:
            await link.register("client")
            while True:
                await link.post("s", b"x")
                self.now.streamed += 1

    async def slices(self, faults: Faults, end: float) -> int:
        """Run fast and slow slices in turn; returns how many of each."""
        jobs = [asyncio.create_task(j) for j in (self.requests(), self.publish(), self.stream())]
        count, lengths = 0, self.lengths
        try:
            while count < lengths.count_min or time.monotonic() < end:
                for measured, fsync_s in ((self.quick, 0.0), (self.slow, lengths.fsync_s)):
                    faults.slow_syncs(fsync_s)
                    self.now = Measured()
                    await asyncio.sleep(lengths.settle_s)
                    self.now = measured
                    done, _ = await asyncio.wait(
                        jobs, timeout=lengths.slice_s, return_when=asyncio.FIRST_COMPLETED
                    )
                    for job in done:
                        job.result()
                    measured.waited(self.asked)
                count += 1
                print(f"slow: {self.result()}", flush=True)
        finally:
            faults.slow_syncs(0)
            for job in jobs:
                job.cancel()
            await asyncio.gather(*jobs, return_exceptions=True)
        return count

    @property
    def ratio(self) -> float:
        """The ratio of the p99: slow to fast disk."""
        return self.slow.percentile(0.99) / self.quick.percentile(0.99)

    def result(self) -> str:
        """The result for the table."""
        quick, slow = self.quick, self.slow
        return (
            f"NATS request p50 {quick.percentile(0.5) * 1e3:.2f} ms and p99"
            f" {quick.percentile(0.99) * 1e3:.2f} ms with a fast disk,"
            f" {slow.percentile(0.5) * 1e3:.2f} and {slow.percentile(0.99) * 1e3:.2f} ms with a"
            f" slow one: ratio {self.ratio:.2f} over {len(quick.seconds)} and"
            f" {len(slow.seconds)} requests; {quick.answered} and {slow.answered} PUBs of NSQ"
            f" answered, the longest wait {slow.gap_s:.2f} s"
        )

    def findings(self) -> list[str]:
        found = []
        for measured, which in ((self.quick, "fast"), (self.slow, "slow")):
            counts = {"NATS request": len(measured.seconds), "PUB of NSQ": measured.answered}
            found += [
                f"no {what} was answered with a {which} disk"
                for what, count in counts.items()
                if not count
            ]
        more_s = self.slow.percentile(0.99) - self.quick.percentile(0.99)
        if self.ratio > RATIO and more_s > self.lengths.harm_s:
            found.append(f"the p99 of NATS requests with a slow disk is {self.ratio:.1f} times")
        if self.slow.gap_s > GAP_S:
            found.append(f"NSQ did not answer for {self.slow.gap_s:.1f} s")
        return found


def run(seed: int, minutes: float, kept: Path, *, lengths: Lengths = LENGTHS) -> report.Row:
    """Run the part."""
    folder = scratch()
    try:
        with Faults(folder / "data") as faults, Spawner(faults.environment) as spawner:
            broker = ForkedBroker(spawner, folder, CONFIG, folder / "data")
            broker.start()
            measured = Run(broker, lengths)
            findings = []
            try:
                asyncio.run(measured.slices(faults, time.monotonic() + 60 * minutes))
            except GONE as problem:
                findings.append(f"a client was cut off: {problem!r}")
            findings += measured.findings()
            if code := broker.stop():
                findings.append(f"ended with {code} on SIGTERM")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return report.Row(
        "slow",
        f"a disk whose fsync takes {lengths.fsync_s:g} s, under NSQ and NATS Streaming, with live"
        " NATS requests",
        measured.result(),
        f"make campaign PARTS=slow MINUTES={minutes:g}",
        findings,
    )
