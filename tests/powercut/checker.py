"""Open a possible state of the disk as a broker does, and compare it with the answers."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import uvloop
from support.clients.bulk import read_frame
from support.services import begin_bulk, readers_of, streaming_of, writes_of

from broker.bulk.errors import RefusedError
from broker.bulk.read.readers import Position
from broker.config.config import Config
from broker.config.load import load
from broker.engine.bulk.ranges import Range
from broker.engine.cursor.local import LocalConsumer
from broker.engine.log.publish import publish
from broker.importers import nsqd, stan
from broker.server.server import Server
from powercut import sources
from powercut.bodies import LANE, body_of, number_of
from powercut.ledger import Ledger
from powercut.serving import config
from powercut.stream_checker import StreamChecker

WAIT_S = 20.0
CREDIT = 1 << 30
OURS = "powercut-audit"
Mark = Callable[..., None]


def no_mark(_event: str, **_what: Any) -> None:
    """For runs without a ledger."""


class Loop(uvloop.Loop):  # type: ignore[misc]
    """Keeps its timers, so that those of a stopped broker can be cancelled."""

    def __init__(self) -> None:
        super().__init__()
        self.timers: list[Any] = []

    def call_later(self, *args: Any, **more: Any) -> Any:
        timer = super().call_later(*args, **more)
        self.timers.append(timer)
        return timer

    def forget(self) -> None:
        for timer in self.timers:
            timer.cancel()
        self.timers.clear()


class Checker:
    """Checks one state; its `problems` are the result."""

    def __init__(self, data: str, ledger: Ledger, stage: int = 0, mark: Mark = no_mark) -> None:
        """`stage` separates the numbers of messages published here from others."""
        self.data = data
        self.ledger = ledger
        self.stage = stage
        self.mark = mark
        self.problems: list[str] = []
        self.consumers: dict[Any, Any] = {}
        self.records: dict[str, list[tuple[int, bytes]]] = {}  # what the audit has read
        self.server: Server

    def wrong(self, text: str) -> None:
        self.problems.append(text)

    async def run(self) -> list[str]:
        """Start, compare, publish on, compare again."""
        file = Path(self.data).with_suffix(".toml")
        file.write_text(config(self.data, http=False))
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _loop, facts: self.wrong(f"unhandled: {facts}"))
        hook, sys.unraisablehook = sys.unraisablehook, self._unraisable
        try:
            try:
                await self.take_over(load(file))
                self.server = Server(load(file))
                await self.server.start()
                await begin_bulk(self.server)
            except Exception as problem:
                self.wrong(f"does not start: {type(problem).__name__}: {problem}")
                return self.problems
            try:
                await self.compare()
            except (Exception, asyncio.CancelledError) as problem:
                self.wrong(f"{type(problem).__name__}: {problem} at {_where(problem)}")
            await self.server.stop()
        finally:
            sys.unraisablehook = hook
            loop.set_exception_handler(None)
            if isinstance(loop, Loop):
                loop.forget()
        return self.problems

    async def take_over(self, config: Config) -> None:
        """Finished imports are remembered, unfinished ones resume."""
        for kind, asked in self.ledger.imports.items():
            folder = Path(asked.folder)
            sources.place(kind, folder)
            importing = nsqd.importing if kind == sources.NSQD else stan.importing
            with importing(folder, Path(self.data), config) as make:
                outcome = await make().run()
            if asked.done and not outcome.already:
                self.wrong(f"the import of {kind} is forgotten")
            if outcome.remarks:
                self.wrong(f"the import of {kind}: {outcome.remarks[0]}")
            self.mark("import", kind=kind)
            if not asked.done:
                self.ledger.take({"e": "import", "kind": kind})

    def _unraisable(self, facts: Any) -> None:
        self.wrong(f"exception ignored in {facts.object!r}: {facts.exc_value!r}")

    async def compare(self) -> None:
        engine = self.server.engine
        await self.look_at_streams()
        self.look_at_readers()
        await self.maintain()
        await self.commit_again()
        for name in self.ledger.topics:
            await self.look(name)
        await self.maintain()
        for name in {*self.ledger.topics, *engine.logs}:
            await self.publish_on(name)
        await self.maintain()
        for name in self.ledger.topics:
            self.look_at_holds(name)
        await self.read_on()

    async def look_at_streams(self) -> None:
        if self.ledger.streams:
            streams = self.ledger.streams
            await StreamChecker(self.server, streams, self.stage, self.mark, self.wrong).run()

    async def maintain(self) -> None:
        """Run the housekeeping of a second."""
        self.server.engine.maintain()
        streaming = streaming_of(self.server)
        if streaming is not None:
            streaming.maintain()
        await self.server.engine.settle()

    # --- logs

    def log(self, name: str) -> Any:
        """A log as its users get it; created if it does not exist."""
        if name.startswith(("s.", "few.s", "small.", "all.")):
            streaming = streaming_of(self.server)
            assert streaming is not None
            return streaming.channel_table.open(name).log
        return self.server.engine.open_log(name)

    def first(self, name: str, log: Any) -> int:
        streaming = streaming_of(self.server)
        assert streaming is not None
        if name in streaming.channels:
            return int(streaming.channels[name].first_available)
        return int(log.first_seq)

    async def drain(self, cursor: Any, consumer: Any) -> list[tuple[int, bytes]]:
        """All records that a cursor delivers."""
        end = time.monotonic() + WAIT_S
        before = -1
        while cursor.depth or len(consumer.records) != before:
            before = len(consumer.records)
            await asyncio.sleep(0 if before else 0.0002)
            if time.monotonic() > end:
                self.wrong(f"{cursor.log.name} {cursor.name}: {cursor.depth} records do not come")
                break
        found, consumer.records = consumer.records, []
        return [(seq, body) for seq, _, _, body in found]

    async def look(self, name: str) -> None:
        """Compare one log with its ledger."""
        ledger, topic = self.ledger, self.ledger.topics[name]
        if topic.made and name not in self.server.engine.logs:
            self.wrong(f"the topic {name} is gone")
        log = self.log(name)
        for channel in topic.made_channels - set(log.cursors):
            self.wrong(f"the channel {channel} of {name} is gone")
        if topic.paused and not log.paused:
            self.wrong(f"{name} is not paused any more")
        if log.paused:
            self.mark("unpause-ask", t=name)
            log.unpause()
        back = topic.gone_channels & set(log.cursors)
        if back:
            self.wrong(f"{name}: deleted and back: {', '.join(back)}")
        required = ledger.common(name)
        records = await self.audit(name, log)
        self.look_at_records(name, records)
        if topic.channels and not name.startswith("few."):
            required = set()
        for channel in topic.channels:
            owed = ledger.owed(name, channel)
            required |= owed - topic.own
            await self.look_at_channel(name, log, channel, owed)
        there = {number_of(name, body) for _, body in records}
        missing = required - there
        if missing:
            self.wrong(f"{name}: {len(missing)} messages are lost: {_some(missing)}")
        await self.look_at_durables(name, log)

    async def audit(self, name: str, log: Any) -> list[tuple[int, bytes]]:
        """All records of a log, read by a cursor that is kept."""
        if name not in self.consumers:
            cursor = log.open_cursor(OURS, start=self.first(name, log))
            self.consumers[name] = LocalConsumer(cursor, CREDIT)
        consumer = self.consumers[name]
        found = self.records.setdefault(name, [])
        found += await self.drain(consumer.cursor, consumer)
        return found

    def look_at_records(self, name: str, records: list[tuple[int, bytes]]) -> None:
        topic = self.ledger.topics[name]
        counts: Counter[int] = Counter()
        lanes: dict[int, int] = {}
        last = 0
        for seq, body in records:
            number = number_of(name, body)
            if seq <= last:
                self.wrong(f"{name}: seq {seq} follows {last}")
            last = seq
            if number is None or number not in topic.asked:
                self.wrong(f"{name}: record {seq} was never published: {body[:40]!r}")
                continue
            counts[number] += 1
            if topic.asked[number] < topic.gone:
                self.wrong(f"{name}: {number} was deleted and is back")
            if number in topic.unordered:
                continue
            lane = number // LANE
            if number < lanes.get(lane, -1):
                self.wrong(f"{name}: {number} out of order")
            lanes[lane] = number
            for known, what in ((topic.read, "a reader"), (topic.seen, "a client")):
                if seq in known and known[seq] != number:
                    self.wrong(f"{name}: seq {seq} was {known[seq]} for {what}, is {number}")
        doubled = {number for number, count in counts.items() if count > 1}
        if doubled:
            self.wrong(f"{name}: {len(doubled)} messages are there twice: {_some(doubled)}")

    async def look_at_channel(self, name: str, log: Any, channel: str, owed: set[int]) -> None:
        topic = self.ledger.topics[name]
        cursor = log.open_cursor(channel)
        if channel in self.ledger.topics[name].paused_channels and not cursor.paused:
            self.wrong(f"{name} {channel} is not paused any more")
        if cursor.paused:
            self.mark("cunpause-ask", t=name, c=channel)
            cursor.unpause()
        consumer = LocalConsumer(cursor, CREDIT)
        records = await self.drain(cursor, consumer)
        missing = owed - {number_of(name, body) for _, body in records}
        if missing:
            self.wrong(f"{name} {channel}: {len(missing)} messages are lost: {_some(missing)}")
        acks = topic.synced_acks.get(channel)
        back = {seq for seq, _ in records if acks is not None and seq in acks}
        if back:
            self.wrong(f"{name} {channel}: finished and synced, and back: {_some(back)}")
        # go on with a part of it
        done = [(seq, number_of(name, body)) for seq, body in records if seq % 3]
        self.mark("fin", t=name, c=channel, n=[number for _, number in done if number is not None])
        for seq, _ in done:
            consumer.finish(seq)
        self.consumers[name, channel] = consumer

    async def look_at_durables(self, name: str, log: Any) -> None:
        topic = self.ledger.topics[name]
        streaming = streaming_of(self.server)
        assert streaming is not None
        for durable in topic.durables:
            channel = streaming.channels[name]
            found = [
                each for each in channel.subscriptions if each.record.durable_name == durable
                or each.record.queue_name in (f"{durable}:group", f"group:{durable}")
            ]  # fmt: skip
            if not found:
                self.wrong(f"{name}: durable {durable} is gone")
                continue
            found[0].detach()
            consumer = self.consumers[name, durable] = LocalConsumer(found[0].cursor, CREDIT)
            records = await self.drain(found[0].cursor, consumer)
            owed = self.ledger.owed_durable(name, durable)
            missing = owed - {number_of(name, body) for _, body in records}
            if missing:
                self.wrong(f"{name} durable {durable}: {len(missing)} lost: {_some(missing)}")

    # --- readers of the bulk API

    def readers(self) -> dict[str, Any]:
        """The readers that the broker knows."""
        return readers_of(self.server).known

    def look_at_readers(self) -> None:
        """Each reader has its last confirmed position, or a later requested one."""
        for name, may_be in self.ledger.readers.items():
            reader = self.readers().get(name)
            if reader is None:
                if None not in may_be:
                    self.wrong(f"reader {name} is gone")
                continue
            stored = reader.stored
            found = (stored.hold, {topic: at.seq for topic, at in stored.positions.items()})
            saids = [each for each in may_be if each is not None]
            fitting = [each for each in saids if (each.hold, each.seqs()) == found]
            if not fitting:
                self.wrong(f"reader {name} is {found}, said {may_be}")
            elif len(saids) == len(may_be) and all(
                each.hold and each.places.keys() >= stored.positions.keys() for each in saids
            ):
                may_be[:] = fitting[:1]  # it held before as well: from where it is now

    def look_at_holds(self, name: str) -> None:
        """Records held by a reader can be read in ranges, whatever the limits."""
        held = self.ledger.held(name)
        if not held:
            return
        log = self.server.engine.log(name)
        there: set[int | None] = set()
        at = log.retention.readable_from
        while at < log.sync.durable_next:
            found = Range(log, at, log.sync.durable_next, CREDIT)
            found.read()
            frame = read_frame(found.joined())
            there |= {number_of(name, body) for body in frame.bodies}
            at = frame.next
        if missing := held - there:
            self.wrong(f"{name}: {len(missing)} messages are lost that are held: {_some(missing)}")

    async def read_on(self) -> None:
        """Readers with holds read to the end."""
        for name, reader in list(self.readers().items()):
            if not reader.stored.hold:
                continue
            positions = {
                topic: Position(
                    int(self.server.engine.log(topic).sync.durable_next), at.incarnation
                )
                for topic, at in reader.stored.positions.items()
            }
            behind = (8 + self.stage) * LANE + 5
            places = {topic: (at.seq, behind) for topic, at in positions.items()}
            self.mark("reader-ask", r=name, hold=True, places=places)
            stored = replace(reader.stored, positions=positions, renewed_ns=time.time_ns())
            putting = asyncio.ensure_future(readers_of(self.server).put(stored))
            while not putting.done():
                self.server.engine.maintain()  # what is let go too early goes now
                await asyncio.sleep(0)
            await putting
            self.mark("reader", r=name)

    # --- commits

    async def commit_again(self) -> None:
        """Clients repeat their commits, answered or not."""
        writes = writes_of(self.server)
        for (writer, epoch), commit in self.ledger.commits.items():
            named = {topic: list(rows) for topic, rows in commit.named.items()}
            self.mark("commit-ask", w=writer, epoch=epoch, named=named, numbers=commit.numbers)
            try:
                await writes.commits.commit(writer, epoch, named)
            except RefusedError as refusal:
                if commit.answered or refusal.status != 409:
                    self.wrong(f"commit {epoch} of {writer}: {refusal.text}")
                await self.all_or_nothing(writer, epoch, commit)
            else:
                commit.answered = True
                self.mark("commit", w=writer, epoch=epoch)

    async def all_or_nothing(self, writer: str, epoch: int, commit: Any) -> None:
        for name, numbers in commit.numbers.items():
            if self.server.engine.log(name) is None:
                continue
            records = await self.audit(name, self.log(name))
            there = {number_of(name, body) for _, body in records} & set(numbers)
            if there:
                self.wrong(f"commit {epoch} of {writer} was refused, {name} has {_some(there)}")

    # --- going on

    async def publish_on(self, name: str) -> None:
        """Publish new messages and consume them."""
        if name.startswith("powercut"):
            return
        log = self.log(name)
        first = (8 + self.stage) * LANE
        numbers = list(range(first, first + 5))
        behind = log.visible
        self.mark("ask", t=name, n=numbers)
        try:
            await asyncio.wait_for(publish(log, [body_of(name, n) for n in numbers]), WAIT_S)
        except OSError as problem:
            self.wrong(f"{name}: cannot be published to: {problem}")
            return
        self.mark("ok", t=name, n=numbers)
        for key, consumer in self.consumers.items():
            if key == name or key[0] == name:
                records = await self.drain(consumer.cursor, consumer)
                there = [number_of(name, body) for seq, body in records if seq >= behind]
                if there != numbers:
                    self.wrong(f"{key}: published {numbers}, got {there}")

    def __repr__(self) -> str:
        return f"Checker({self.data})"


def _some(numbers: set[int]) -> str:
    found = sorted(numbers)
    return ", ".join(map(str, found[:6])) + (", ..." if len(found) > 6 else "")


def _where(problem: BaseException) -> str:
    trace = problem.__traceback__
    with contextlib.suppress(AttributeError):
        while trace is not None and trace.tb_next is not None:
            trace = trace.tb_next
    return "?" if trace is None else f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"
