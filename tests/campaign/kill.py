"""Kill -9 at random moments under a mixed load.

A run is a series of *eras*, several at a time. An era is one data folder, one configuration and 8
to 30 kills: mostly under load, sometimes during the start or the stop. After each kill the files
are compared with the ledgers, and at the end of the era the broker has to deliver all that is left.
Seed and number of an era decide every random choice, except those of the kernel's scheduler, so a
finding keeps the data folder as the kill left it.
"""

from __future__ import annotations

import asyncio
import json
import random
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.engine import scratch
from support.servers.processes import START_DEADLINE_S, ServerError

from campaign import report
from campaign.brokers import ForkedBroker, Spawner
from campaign.ledgers import Finding
from campaign.links import GONE, RefusedError
from campaign.load import Load, Pace, config_text

SLOTS = 2
KILLS = (8, 30)  # of an era
ROUND_S = (0.02, 0.8)  # from ready to the kill
STARTING_S = 0.15  # a start is killed within this time
STOPPING_S = 0.05  # a stop is killed within this time
SYNCS = ("1s", "always", "none")
SEGMENTS = ("4KiB", "16KiB", "64KiB", "1MiB")
POLL_S = 0.002
LOG_SHOWN_CHARS = 3000


@dataclass
class Totals:
    """Totals of all eras."""

    eras: int = 0
    kills: Counter[str] = field(default_factory=Counter)
    acked: int = 0
    delivered: int = 0
    finished: int = 0
    commits: int = 0
    findings: list[str] = field(default_factory=list)

    @property
    def killed(self) -> int:
        """The number of kills."""
        return sum(self.kills.values())

    def take(self, load: Load) -> None:
        """Add what an era's ledgers hold."""
        self.eras += 1
        self.acked += load.acked
        self.delivered += load.delivered
        self.finished += load.finished
        self.commits += load.commits.committed

    def result(self) -> str:
        """The result for the table."""
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(self.kills.items()))
        return (
            f"{self.killed} kills ({kinds}) in {self.eras} data folders;"
            f" {self.acked} publishes acknowledged, {self.commits} commits,"
            f" {self.delivered} deliveries, {self.finished} FINs and acks followed by an answer:"
            + (f" {len(self.findings)} findings" if self.findings else " 0 lost, 0 delivered again")
        )


class Era:
    """One data folder and its kills."""

    def __init__(
        self, spawner: Spawner, seed: int, number: int, folder: Path, kept: Path, totals: Totals
    ) -> None:
        self.seed, self.number, self.kept, self.totals = seed, number, kept, totals
        self.rng = random.Random(f"kill {seed} {number}")
        self.sync = self.rng.choice(SYNCS)
        self.segment_size = self.rng.choice(SEGMENTS)
        self.kills = self.rng.randint(*KILLS)
        pace = Pace(
            window=self.rng.choice((1, 8, 40)),
            pause_s=self.rng.choice((0.0005, 0.003, 0.02)),
            mark_every=self.rng.choice((1, 10, 40)),
            rdy=self.rng.choice((1, 20, 200)),
        )
        self.load = Load(self.rng, pace)
        self.folder = folder
        self.broker = ForkedBroker(
            spawner, folder, config_text(self.sync, self.segment_size), folder / "data"
        )
        self.before = folder / "before"
        self.killed = 0

    async def run(self, over: Callable[[], bool]) -> None:
        """All kills, then the audit; a finding keeps the evidence."""
        try:
            while self.killed < self.kills and not over():
                await self.round()
            await self.start()
            await self.load.audit(self.broker.ports)
            self.broker.send(signal.SIGTERM)
            if code := await asyncio.to_thread(self.broker.ended, START_DEADLINE_S):
                raise Finding(f"ended with {code} on SIGTERM\n{self.broker.output()}")
            self.load.look_into(self.broker.data, whole=True)
        except (Finding, ServerError, AssertionError, RefusedError, *GONE) as problem:
            self.keep(problem)
        finally:
            if self.broker.started:
                await asyncio.to_thread(self.broker.shoot)
            self.totals.take(self.load)
            shutil.rmtree(self.folder, ignore_errors=True)

    async def round(self) -> None:
        """One start and one kill."""
        draw = self.rng.random()
        if draw < 0.12 and self.killed:
            self.broker.begin()
            await asyncio.sleep(self.rng.uniform(0, STARTING_S))
            await self.kill("while starting")
        else:
            await self.start()
            if not self.killed:
                await self.load.prepare(self.broker.ports)
            running = asyncio.create_task(self.load.run(self.broker.ports))
            await asyncio.sleep(self.rng.uniform(*ROUND_S))
            if running.done():
                await self.kill("under load")
                running.result()
                raise Finding("every client was cut off before the kill")
            if draw > 0.93:
                self.load.tolerant = True  # a stopping broker refuses new publishes
                self.broker.send(signal.SIGTERM)
                await asyncio.sleep(self.rng.uniform(0, STOPPING_S))
                await self.kill("while stopping")
            else:
                await self.kill("under load")
            await running
            self.load.tolerant = False
        self.load.look_into(self.broker.data)
        await asyncio.to_thread(self.copy)

    def copy(self) -> None:
        """Copy the folder as the kill left it, for a possible finding."""
        shutil.rmtree(self.before, ignore_errors=True)
        shutil.copytree(self.broker.data, self.before)

    async def start(self) -> None:
        self.broker.begin()
        deadline = time.monotonic() + START_DEADLINE_S
        while not self.broker.is_ready():
            if time.monotonic() > deadline:
                raise Finding(f"not ready in {START_DEADLINE_S} s\n{self.broker.output()}")
            await asyncio.sleep(POLL_S)
        said = self.broker.output()
        if "Exception ignored" in said or "Traceback" in said:
            raise Finding(f"an exception while starting\n{said}")

    async def kill(self, kind: str) -> None:
        await asyncio.to_thread(self.broker.shoot)
        self.killed += 1
        self.totals.kills[kind] += 1

    def keep(self, problem: BaseException) -> None:
        """Keep all evidence of a finding."""
        place = self.kept / f"kill-{self.seed}-{self.number}"
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        for name, folder in (("data", self.broker.data), ("before", self.before)):
            if folder.exists():
                shutil.copytree(folder, place / name)
        said = self.broker.output()
        (place / "broker.log").write_text(said)
        (place / "twinwire.toml").write_text(self.broker.config_text)
        (place / "ledgers.json").write_text(json.dumps(self.ledgers(), indent=1))
        text = (
            f"era {self.number}, kill {self.killed} of {self.kills} (sync {self.sync},"
            f" segments of {self.segment_size}): {problem}\n"
            f"kept in {place}; again: make campaign PARTS=kill SEED={self.seed}"
            f" ERA={self.number}"
        )
        (place / "finding.txt").write_text(f"{text}\n{said[-LOG_SHOWN_CHARS:]}")
        self.totals.findings.append(text)
        print(f"kill: FINDING: {text}", flush=True)

    def ledgers(self) -> dict[str, Any]:
        """The ledgers of all clients, as text and for programs."""
        return {
            name: {
                "sent": topic.sent,
                "messages": {
                    number: [m.seq, m.acked, m.refused] for number, m in topic.messages.items()
                },
                "channels": {
                    channel.name: {
                        number: [d.attempts, d.finish_sent, d.finished]
                        for number, d in channel.deliveries.items()
                    }
                    for channel in topic.channels.values()
                },
            }
            for name, topic in self.load.topics.items()
        }


async def eras(
    seed: int, minutes: float, kept: Path, *, only: int | None, disk: Path, slots: int, kills: int
) -> Totals:
    """Run eras until the time is over, or `kills` are reached, or a finding."""
    totals, end = Totals(), time.monotonic() + 60 * minutes
    numbers = iter(range(only, only + 1) if only is not None else range(1 << 30))
    reported = 0.0

    def over() -> bool:
        return only is None and (time.monotonic() > end or (kills > 0 and totals.killed >= kills))

    with Spawner() as spawner:

        async def slot(on_disk: bool) -> None:
            nonlocal reported
            for number in numbers:
                if over() or totals.findings:
                    return
                folder = scratch() if not on_disk else disk / f"era-{seed}-{number}"
                shutil.rmtree(folder, ignore_errors=True)
                await Era(spawner, seed, number, folder, kept, totals).run(over)
                if time.monotonic() > reported + 30:
                    reported = time.monotonic()
                    left_s = max(0, end - reported)
                    print(f"kill: {totals.result()}; {left_s / 60:.0f} min left", flush=True)

        await asyncio.gather(*(slot(number % 2 == 1) for number in range(slots)))
    return totals


def run(
    seed: int,
    minutes: float,
    kept: Path,
    *,
    era: int | None = None,
    slots: int = SLOTS,
    kills: int = 0,
) -> report.Row:
    """Run the part."""
    disk = kept / "work"
    totals = asyncio.run(eras(seed, minutes, kept, only=era, disk=disk, slots=slots, kills=kills))
    return report.Row(
        "kill",
        "`kill -9` at random moments under a mixed load of NSQ (PUB, MPUB, DPUB, FIN, REQ), NATS,"
        " NATS Streaming, JetStream and bulk commits",
        totals.result(),
        f"make campaign PARTS=kill MINUTES={minutes:g} SEED={seed}",
        totals.findings,
    )
