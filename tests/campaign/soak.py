"""A long mixed load with faults: the ledgers are correct, memory and descriptors do not grow.

The disk is slow or full for a while, clients are disconnected, also all at once, others receive
messages and do not answer. In between all faults end and the broker has to deliver all that is
left; then memory and descriptors are compared.
"""

from __future__ import annotations

import asyncio
import errno
import os
import random
import shutil
import statistics
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from support.engine import scratch
from support.servers.processes import START_DEADLINE_S, ServerError

from broker.protocols.nats.limits import NATS_CLOSED_CLIENTS
from campaign import links, report
from campaign.brokers import ForkedBroker, Spawner
from campaign.faults import FOR_EVER, Faults
from campaign.ledgers import Finding
from campaign.links import GONE, NatsLink, NsqLink, RefusedError
from campaign.load import CHANNEL, WORK, Load, Pace, config_text

CYCLE_S = 300.0
CYCLES_MIN = 4
FULL = ("create", "write", "mkdir")
PACE = Pace(window=20, pause_s=0.03, mark_every=20, rdy=30, rows_max=30)
GROWTH = 1.05
FILL_AT_ONCE = 100
WARM = 0.25  # share of samples from the time before memory is stable
HEAL_S = 20.0
MORE = """
[nats]
max_pending = "1MiB"
[stan]
enabled = true
max_msgs = 200000
hb_interval = "2s"
hb_timeout = "1s"
hb_fail_count = 2
"""


@dataclass(frozen=True)
class Spells:
    """The durations of faults: each from, to."""

    quiet_s: tuple[float, float] = (1.0, 6.0)  # before one of them
    spell_s: tuple[float, float] = (1.0, 8.0)
    fsync_s: tuple[float, float] = (0.2, 3.0)  # while the disk is slow


SPELLS = Spells()


class Soak:
    """One broker and its faults."""

    def __init__(
        self, broker: ForkedBroker, faults: Faults, seed: int, spells: Spells = SPELLS
    ) -> None:
        self.broker, self.faults, self.spells = broker, faults, spells
        self.rng = random.Random(f"soak {seed}")
        self.load = Load(self.rng, PACE, tolerant=True)
        self.done: Counter[str] = Counter()
        self.memory: list[int] = []
        self.resident: list[int] = []
        self.files: list[int] = []
        self.cycles = 0

    # --- faults

    async def trouble(self) -> None:
        """Cause one fault after the other."""
        while True:
            await asyncio.sleep(self.rng.uniform(*self.spells.quiet_s))
            what = self.rng.choice((
                self.slow, self.full, self.cut_some, self.storm, self.sluggish, self.deaf,
            ))  # fmt: skip
            self.done[what.__name__.replace("_", " ")] += 1
            try:
                await what(self.rng.uniform(*self.spells.spell_s))
            except GONE:
                continue

    async def slow(self, seconds: float) -> None:
        self.faults.slow_syncs(self.rng.uniform(*self.spells.fsync_s))
        try:
            await asyncio.sleep(seconds)
        finally:
            self.faults.slow_syncs(0)

    async def full(self, seconds: float) -> None:
        self.faults.fail(FULL, errno.ENOSPC, times=FOR_EVER)
        try:
            await asyncio.sleep(seconds)
        finally:
            self.faults.heal()

    async def cut_some(self, seconds: float) -> None:
        for link in self.rng.sample(sorted(links.OPEN, key=id), min(3, len(links.OPEN))):
            link.close()

    async def storm(self, seconds: float) -> None:
        """Make all clients reconnect at once, and two hundred more connect."""
        for link in list(links.OPEN):
            link.close()
        ports = self.broker.ports
        found = await asyncio.gather(
            *(NsqLink.to(ports["nsq"]) for _ in range(100)),
            *(NatsLink.to(ports["nats"]) for _ in range(100)),
            return_exceptions=True,
        )
        for link in found:
            if isinstance(link, links.Link):
                link.close()

    async def fill(self) -> None:
        """Fill what has a limit, so that memory shows only growth without one: the broker remembers
        the last closed connections."""
        for _ in range(0, NATS_CLOSED_CLIENTS, FILL_AT_ONCE):
            opened = [NatsLink.to(self.broker.ports["nats"]) for _ in range(FILL_AT_ONCE)]
            for link in await asyncio.gather(*opened):
                link.close()

    async def sluggish(self, seconds: float) -> None:
        """A consumer that finishes nothing and disconnects: its messages go to others."""
        async with await NsqLink.to(self.broker.ports["nsq"]) as link:
            link.send(b"SUB %s %s\nRDY 20\n" % (WORK.encode(), CHANNEL.encode()))
            await asyncio.sleep(seconds)

    async def deaf(self, seconds: float) -> None:
        """A subscriber of all subjects that does not read."""
        _, writer = await asyncio.open_connection(*self.broker.ports["nats"])
        writer.transport.pause_reading()
        writer.write(b'CONNECT {"verbose":false}\r\nSUB > 1\r\n')
        try:
            await asyncio.sleep(seconds)
        finally:
            writer.transport.abort()

    # --- checks

    def sample(self) -> None:
        for line in Path(f"/proc/{self.broker.pid}/status").read_text().splitlines():
            name, _, value = line.partition(":")
            if name == "RssAnon":
                self.memory.append(int(value.split()[0]) * 1024)
            elif name == "VmRSS":
                self.resident.append(int(value.split()[0]) * 1024)

    async def watch(self) -> None:
        while True:
            self.sample()
            await asyncio.sleep(0.5)

    async def cycle(self, seconds: float) -> None:
        """Run load and faults, then deliver everything that is left."""
        self.load.stop.clear()
        self.load.tolerant = True
        jobs = [asyncio.create_task(job) for job in (self.trouble(), self.watch())]
        running = asyncio.create_task(self.load.run_on(self.broker.ports))
        try:
            done, _ = await asyncio.wait(
                {*jobs, running}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED
            )
            for task in done:
                task.result()
        finally:
            for job in jobs:
                job.cancel()
            await asyncio.gather(*jobs, return_exceptions=True)
            self.faults.heal()
            self.faults.slow_syncs(0)
            self.load.stop.set()
            await asyncio.gather(running, return_exceptions=True)
        await self.healed()
        self.load.tolerant = False
        await self.load.audit(self.broker.ports)
        self.load.retire()
        self.cycles += 1
        self.files.append(len(os.listdir(f"/proc/{self.broker.pid}/fd")))  # noqa: PTH208

    async def healed(self) -> None:
        """Wait until publishing works again."""
        end = time.monotonic() + HEAL_S
        self.load.stop.clear()
        before = {name: topic.acked for name, topic in self.load.topics.items() if topic.acked}
        running = asyncio.create_task(self.load.run_on(self.broker.ports))
        while any(self.load.topics[name].acked == was for name, was in before.items()):
            if time.monotonic() > end or running.done():
                break
            await asyncio.sleep(0.05)
        self.load.stop.set()
        await running
        for name, was in before.items():
            if self.load.topics[name].acked == was:
                raise Finding(f"{name} takes nothing, {HEAL_S:.0f} s after the faults have ended")

    def growth(self) -> tuple[float, float]:
        """The median of memory in the first and in the last third, after the start, in MiB."""
        samples = self.memory[int(WARM * len(self.memory)) :]
        third = max(1, len(samples) // 3)
        return (
            statistics.median(samples[:third]) / 2**20,
            statistics.median(samples[-third:]) / 2**20,
        )

    def result(self) -> str:
        """The result for the table."""
        first, last = self.growth()
        spells = ", ".join(f"{count} {what}" for what, count in sorted(self.done.items()))
        return (
            f"{self.cycles} cycles with faults ({spells}); {self.load.acked} publishes"
            f" acknowledged, {sum(t.refused for t in self.load.topics.values())} refused,"
            f" {self.load.delivered} deliveries, {self.load.finished} FINs and acks followed"
            f" by an answer; memory {first:.1f} MiB in the first third, {last:.1f} MiB in the last"
            f" (RSS {statistics.median(self.resident) / 2**20:.0f} MiB); open files"
            f" {self.files[0] if self.files else 0} after the first cycle,"
            f" {self.files[-1] if self.files else 0} after the last"
        )

    def findings(self) -> list[str]:
        found = []
        first, last = self.growth()
        if self.cycles >= CYCLES_MIN and last > first * GROWTH:
            found.append(f"memory grew from {first:.1f} to {last:.1f} MiB")
        if self.cycles >= CYCLES_MIN and self.files[-1] > max(self.files[: CYCLES_MIN // 2]) + 2:
            found.append(f"open files after each cycle: {self.files}")
        said = self.broker.output()
        if "Traceback" in said or "Exception ignored" in said:
            at = max(said.find("Traceback"), said.find("Exception ignored"))
            found.append(f"an unhandled exception: {said[max(0, at - 500) : at + 2000]}")
        return found


def run(
    seed: int,
    minutes: float,
    kept: Path,
    *,
    cycles: int = CYCLES_MIN,
    spells: Spells = SPELLS,
) -> report.Row:
    """Run the part, for at least `cycles` cycles if the time allows."""
    folder = scratch()
    findings: list[str] = []
    cycle_s = min(CYCLE_S, 60 * minutes / cycles)
    try:
        with Faults(folder / "data") as faults, Spawner(faults.environment) as spawner:
            text = config_text("1s", "256KiB").partition("[stan]\nenabled = true\n")[2]
            broker = ForkedBroker(spawner, folder, MORE + text, folder / "data")
            broker.start()
            soak = Soak(broker, faults, seed, spells)

            async def go() -> None:
                await soak.load.prepare(broker.ports)
                await soak.fill()
                end = time.monotonic() + 60 * minutes
                while time.monotonic() < end:
                    await soak.cycle(cycle_s)
                    print(f"soak: {soak.result()}", flush=True)

            try:
                asyncio.run(go())
            except (Finding, ServerError, AssertionError, RefusedError, *GONE) as problem:
                findings.append(f"cycle {soak.cycles}: {problem!r}\n{broker.output()[-3000:]}")
                place = kept / f"soak-{seed}"
                shutil.rmtree(place, ignore_errors=True)
                shutil.copytree(folder, place)
            soak.sample()
            findings += soak.findings()
            if broker.processes[0].child is not None and broker.processes[0].child.poll() is None:
                broker.send(15)
                if code := broker.ended(START_DEADLINE_S):
                    findings.append(f"ended with {code} on SIGTERM")
            else:
                findings.append("the broker has ended by itself")
            result = soak.result()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return report.Row(
        "soak",
        "a mixed load with slow and full disks, cut connections, simultaneous reconnects of all"
        " clients, consumers that do nothing and subscribers that do not read",
        result,
        f"make campaign PARTS=soak MINUTES={minutes:g} SEED={seed}",
        findings,
    )
