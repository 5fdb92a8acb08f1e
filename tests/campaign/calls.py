"""Each file call of a broker fails once, with EIO, ENOSPC or EMFILE where such a call may.

A case starts a broker on a folder with some history, uses all stores a little, and stops it. The
first call of a kind fails in the first case, the second in the second, until a case has no more
calls: those of Python and of the compiled modules alike (faults.c). After each case the broker is
killed and started again without faults: everything that it answered must be stored, and it works.
"""

from __future__ import annotations

import asyncio
import copy
import errno
import random
import shutil
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from support.engine import scratch
from support.servers.processes import START_DEADLINE_S, ServerError

from campaign import report
from campaign.brokers import ForkedBroker, Spawner
from campaign.faults import Faults
from campaign.ledgers import END, Delivery, Finding, StreamLedger, TopicLedger
from campaign.load import Load, Pace, config_text
from campaign.logfiles import LogFiles

WORK_S = 0.25  # of the clients, after the start
CASE_S = 90.0  # a start with its work, or its check
HEAL_S = 30.0  # a broker takes work again within this time
REPORT_S = 30.0
FINDINGS_MAX = 40
CALLS_MAX = 100_000
PACE = Pace(window=8, pause_s=0.01, mark_every=4, rdy=10, rows_max=20)


class Fault(NamedTuple):
    """A kind of call and how it fails."""

    kind: str
    error: int

    def __str__(self) -> str:
        return f"{self.kind} {errno.errorcode[self.error]}"


NO_SPACE = ("create", "write", "sync", "truncate", "rename", "mkdir", "link")
NO_FILES = ("open", "create", "opendir")
FAULTS = [
    *(Fault(kind, errno.EIO) for kind in (
        "open", "create", "opendir", "read", "write", "sync", "truncate", "rename", "unlink",
        "mkdir", "rmdir", "stat", "mmap", "link",
    )),
    *(Fault(kind, errno.ENOSPC) for kind in NO_SPACE),
    *(Fault(kind, errno.EMFILE) for kind in NO_FILES),
]  # fmt: skip


class Case:
    """One broker, one call that fails."""

    def __init__(self, spawner: Spawner, faults: Faults, folder: Path, seed: int) -> None:
        """`folder`: of the broker's log; its data are where the faults are."""
        self.faults = faults
        self.load = Load(random.Random(seed), PACE, tolerant=True)
        text = config_text("always", "4KiB")
        self.broker = ForkedBroker(spawner, folder, text, faults.folder)
        self.said = ""

    def go_on(self, before: Case, data: Path) -> None:
        """From where another has come to, whose data are kept there."""
        shutil.rmtree(self.broker.data, ignore_errors=True)
        shutil.copytree(data, self.broker.data)
        known = (before.load.topics, before.load.stream, before.load.commits)
        self.load.topics, self.load.stream, self.load.commits = copy.deepcopy(known)
        self.load.attempt = before.load.attempt
        self.load.jetstream.go_on(before.load.jetstream)

    async def start(self) -> bool:
        """Whether it started; it may refuse with a message."""
        self.load.doing = "starting"
        self.broker.begin()
        deadline = time.monotonic() + START_DEADLINE_S
        try:
            while not self.broker.is_ready():
                if time.monotonic() > deadline:
                    raise Finding(f"not ready in {START_DEADLINE_S} s")
                await asyncio.sleep(0.003)
        except ServerError:
            return False
        return True

    async def begin(self) -> None:
        """Make some history, without faults."""
        assert await self.start()
        await self.load.prepare(self.broker.ports)
        await self.work()
        self.broker.shoot()

    async def work(self) -> None:
        """Run the clients briefly; refused ones continue."""
        self.load.stop.clear()
        running = asyncio.create_task(self.load.run(self.broker.ports))
        await asyncio.wait({running}, timeout=WORK_S)
        self.load.stop.set()
        await running

    async def harm(self, fault: Fault, after: int) -> bool:
        """Start and work while the call fails; whether the call was reached."""
        known = copy.deepcopy((self.load.topics, self.load.stream))
        self.faults.fail((fault.kind,), fault.error, after=after, partial=20)
        started = await self.start()
        if started:
            await self.work()
        failed = self.faults.failed > 0
        self.faults.heal()
        self.note()
        if failed:
            self.forget_finished(*known)
        if started:
            if self.ended():
                raise Finding(f"it ended: {self.said}")
            self.broker.shoot()
        elif not failed:
            raise Finding(f"it did not start: {self.said}")
        elif "cannot start" not in self.said:
            raise Finding(f"it did not start, and did not say why: {self.said}")
        return failed

    def forget_finished(self, topics: dict[str, TopicLedger], stream: StreamLedger) -> None:
        """A journal that cannot be written keeps FINs in memory: they are written when the disk
        is back, and a kill before that takes them. Those of before stay."""
        for name, topic in self.load.topics.items():
            for channel, ledger in topic.channels.items():
                before = topics[name].channel(channel).deliveries
                for number, delivery in ledger.deliveries.items():
                    was = before.get(number, Delivery())
                    delivery.finished, delivery.attempts = was.finished, was.attempts
        self.load.stream.fenced &= stream.fenced
        self.load.stream.noted = stream.noted

    def ended(self) -> bool:
        child = self.broker.processes[0].child
        assert child is not None
        return child.poll() is not None

    def note(self) -> None:
        self.said = self.broker.output()[-1500:]
        if "Traceback" in self.said or "Exception ignored" in self.said:
            raise Finding(f"an unhandled exception: {self.said}")

    async def check(self) -> None:
        """Without faults: everything that was answered is stored, and the broker works."""
        if not await self.start():
            raise Finding(f"it does not start any more: {self.broker.output()[-1500:]}")
        self.load.tolerant = False
        before = self.load.acked
        end = time.monotonic() + HEAL_S
        while self.load.acked == before and time.monotonic() < end:
            await self.work()
        if self.load.acked == before:
            raise Finding("nothing is answered any more")
        await self.load.audit(self.broker.ports)
        self.broker.shoot()
        for files in self.load.files.values():
            files.forget()
        self.check_refused()

    def check_refused(self) -> None:
        """A publish that was refused may be in a file (when only the sync failed), but once."""
        for name, topic in self.load.topics.items():
            for record in LogFiles(self.broker.data, name).fresh():
                if not record.body.startswith(END):
                    topic.seen(record.seq, record.body)

    def close(self) -> None:
        self.faults.heal()
        if self.broker.started:
            self.broker.shoot()


class Calls:
    """All cases of one run."""

    def __init__(self, seed: int, kept: Path, minutes: float) -> None:
        self.seed, self.kept = seed, kept
        self.end = time.monotonic() + 60 * minutes
        self.counts: Counter[str] = Counter()
        self.findings: list[str] = []
        self.reported = time.monotonic()

    async def run(self, spawner: Spawner, faults: Faults, folder: Path, only: str) -> None:
        """Every fault at its first place, then every one at its second, and so on."""
        base = Case(spawner, faults, folder / "run", self.seed)
        await base.begin()
        kept = folder / "kept"
        shutil.copytree(faults.folder, kept)
        todo = [fault for fault in FAULTS if not only or str(fault) == only.rpartition(" ")[0]]
        after = int(only.rpartition(" ")[2]) if only else 0
        while todo and after < CALLS_MAX:
            for fault in list(todo):
                if time.monotonic() > self.end:
                    return
                case = Case(spawner, faults, folder / "run", self.seed + after)
                case.go_on(base, kept)
                if not await self.one(case, fault, after):
                    todo.remove(fault)
                    self.counts["kinds to the end"] += 1
            if only:
                return
            after += 1

    async def one(self, case: Case, fault: Fault, after: int) -> bool:
        """Whether the call was reached."""
        try:
            failed = await asyncio.wait_for(case.harm(fault, after), CASE_S)
            self.counts["cases"] += 1
            if failed:
                self.counts["failed"] += 1
                self.counts[str(fault)] += 1
                await asyncio.wait_for(case.check(), CASE_S)
        except Exception as problem:  # whatever a client ran into
            failed = True
            self.keep(case, fault, after, problem)
        finally:
            case.close()
        if time.monotonic() > self.reported + REPORT_S:
            self.reported = time.monotonic()
            print(f"calls: {self.result()}", flush=True)
        return failed

    def keep(self, case: Case, fault: Fault, after: int, problem: BaseException) -> None:
        self.counts["findings"] += 1
        what = (
            f"it hangs, {case.load.doing}\n{case.broker.output()[-1500:]}"
            if isinstance(problem, TimeoutError)
            else f"{type(problem).__name__}: {problem}"
        )
        text = (
            f"{fault} after {after} ({case.faults.last}): {what}\n    again: make campaign"
            f" PARTS=calls SEED={self.seed} CAMPAIGN_ARGS='--case \"{fault} {after}\"'"
        )
        if len(self.findings) < FINDINGS_MAX:
            self.findings.append(text)
            print(f"calls: FINDING: {text}", flush=True)

    def result(self) -> str:
        """For the table."""
        return (
            f"{self.counts['failed']} calls failed in {self.counts['cases']} cases,"
            f" {self.counts['kinds to the end']} of {len(FAULTS)} kinds of failure to their last"
            f" call: {self.counts['findings']} findings"
        )


def run(seed: int, minutes: float, kept: Path, *, case: str = "") -> report.Row:
    """The part. `case`: this one alone, such as "sync EIO 3"."""
    folder = scratch()
    calls = Calls(seed, kept, minutes)
    try:
        with Faults(folder / "data") as faults, Spawner(faults.environment) as spawner:
            asyncio.run(calls.run(spawner, faults, folder, case))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return report.Row(
        "calls",
        "each file call of a broker at work over all stores failing once, with EIO, ENOSPC and"
        " EMFILE where it may",
        calls.result(),
        f"make campaign PARTS=calls MINUTES={minutes:g} SEED={seed}",
        calls.findings,
    )
