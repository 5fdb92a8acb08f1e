"""A cursor of a stream against dicts: whatever consumers, publishers, operators, clocks and crashes
do, in any order."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from support.engine import SECOND, Rig, scratch
from support.native.stores import kill, publish
from support.native.streams import Receiver

from broker.engine.stream.cursor import StreamCursor, StreamCursors
from broker.engine.stream.store import StreamLimits, open_store

UNKNOWN, REPEATED, DONE = 0, 1, 2
SUBJECTS = ["a", "b.1", "b.2", "c"]
FILTERS: list[tuple[str, ...]] = [(), ("a",), ("b.*",), ("a", "b.>"), ("b.1",)]
PURGES = ["a", "b.*", "b.1", ">"]

Draw = Callable[[Any], Any]


def matches(filters: tuple[str, ...], subject: str) -> bool:
    return not filters or any(
        subject == one or (one in {"b.*", "b.>"} and subject.startswith("b.")) or one == ">"
        for one in filters
    )


def contained(filters: tuple[str, ...], other: str) -> bool:
    if other == ">":
        return True
    return bool(filters) and all(
        one == other or (other == "b.*" and one.startswith("b.") and one != "b.>")
        for one in filters
    )


@dataclass
class Flight:
    """A message in flight."""

    consumer_seq: int
    sent: int
    due: int
    deliveries: int = 1
    naked: int | None = None  # when it is due for a nak; 0 = at once
    waits: bool = False  # it is in the queue of those that are delivered again


class Model:
    """What a cursor must know, in the plainest form."""

    def __init__(self, start: int) -> None:
        self.live: dict[int, str] = {}
        self.last = 0
        self.filters: tuple[str, ...] = ()
        self.next = start
        self.listed: list[int] = []
        self.flights: dict[int, Flight] = {}
        self.queue: list[int] = []
        self.exhausted: set[int] = set()
        self.delivered = (0, start - 1)
        self.floor = (0, start - 1)
        self.paused_until = 0
        self.waits: tuple[int, ...] = (SECOND,)
        self.max_deliver = 0
        self.max_pending = 0
        self.reported_exhausted: list[tuple[int, int]] = []
        self.reported_dropped: list[tuple[int, int, int]] = []

    def wait(self, flight: Flight) -> int:
        return self.waits[min(flight.deliveries, len(self.waits)) - 1]

    def fresh(self) -> list[int]:
        newer = (s for s in sorted(self.live) if s >= self.next)
        return self.listed + [s for s in newer if matches(self.filters, self.live[s])]

    def move_floor(self) -> None:
        if not self.flights:
            self.floor = self.delivered
            return
        oldest = min(self.flights)
        self.floor = (
            max(self.floor[0], self.flights[oldest].consumer_seq - 1),
            max(self.floor[1], oldest - 1),
        )

    def remove(self, seq: int) -> Flight:
        if seq in self.queue:
            self.queue.remove(seq)
        return self.flights.pop(seq)

    def take(self, room: int, now: int, policy: str) -> list[tuple[int, int, int, int]]:
        got = []
        while room and not now < self.paused_until:
            fresh = self.fresh()
            count = self.delivered[0] + 1
            if self.queue:
                seq = self.queue.pop(0)
                flight = self.flights[seq]
                flight.deliveries += 1
                flight.sent, flight.due = now, now + self.wait(flight)
                flight.naked, flight.waits = None, False
                self.delivered = (count, self.delivered[1])
                got.append((seq, flight.deliveries, count, len(fresh)))
            elif fresh and not (self.max_pending and len(self.flights) >= self.max_pending):
                seq = fresh[0]
                if self.listed:
                    self.listed.pop(0)
                else:
                    self.next = seq + 1
                self.delivered = (count, seq)
                if policy == "none":
                    self.floor = self.delivered
                else:
                    flight = Flight(count, now, 0)
                    flight.due = now + self.wait(flight)
                    self.flights[seq] = flight
                got.append((seq, 1, count, len(fresh) - 1))
            else:
                break
            room -= 1
        return got

    def ack(self, seq: int) -> int:
        if seq in self.flights:
            self.remove(seq)
            self.move_floor()
            return DONE
        if seq in self.exhausted:
            self.exhausted.remove(seq)
            return DONE
        return REPEATED if seq <= self.delivered[1] else UNKNOWN

    def ack_all(self, seq: int) -> int:
        if seq > self.delivered[1]:
            return UNKNOWN
        if seq <= self.floor[1]:
            return REPEATED
        count = self.floor[0]
        for one in sorted(self.flights):
            if one <= seq:
                count = max(count, self.remove(one).consumer_seq)
        self.exhausted = {one for one in self.exhausted if one > seq}
        self.floor = (count, seq)
        return DONE

    def expire(self, seq: int) -> None:
        flight = self.flights[seq]
        if self.max_deliver and flight.deliveries >= self.max_deliver:
            self.remove(seq)
            self.exhausted.add(seq)
            self.reported_exhausted.append((seq, flight.deliveries))
        else:
            flight.waits = True
            self.queue.append(seq)

    def advance(self, now: int, end: int) -> None:
        while True:
            running = {s: f.due for s, f in self.flights.items() if not f.waits and f.due <= end}
            if not running:
                return
            now = max(now, min(running.values()))
            for seq in sorted(s for s, due in running.items() if due <= now):
                self.expire(seq)

    def kill(self, seq: int, *, reported: bool) -> None:
        del self.live[seq]
        if seq in self.listed:
            self.listed.remove(seq)
        self.exhausted.discard(seq)
        if seq in self.flights:
            flight = self.remove(seq)
            self.move_floor()
            if reported:
                self.reported_dropped.append((seq, flight.consumer_seq, flight.deliveries))

    def jump(self, seq: int) -> None:
        self.listed = [one for one in self.listed if one >= seq]
        self.next = max(self.next, seq)
        self.delivered = (self.delivered[0], max(self.delivered[1], seq - 1))
        count = self.floor[0]
        for one in sorted(self.flights):
            if one < seq:
                count = max(count, self.remove(one).consumer_seq)
        self.exhausted = {one for one in self.exhausted if one >= seq}
        self.floor = (count, max(self.floor[1], seq - 1))
        if not self.flights:
            self.floor = self.delivered


class StreamCursorMachine(RuleBasedStateMachine):
    policy = "explicit"

    @initialize(filters=st.sampled_from(FILTERS), listed=st.booleans())
    def begin(self, filters: tuple[str, ...], listed: bool) -> None:
        self.folder = scratch()
        self.generation = 0
        self.rig = self.new_rig()
        self.model = Model(1)
        self.model.filters = filters
        self.open_stream()
        for subject in SUBJECTS[:3] * 2:
            self.publish(subject)
        self.start: Any = 1
        if listed:
            among = self.store.subjects.filter(list(filters))
            self.start = list(self.store.subjects.last_per_subject(among))
            self.model.listed = list(self.start)
            self.model.next = self.model.last + 1
            before = self.start[0] - 1 if self.start else self.model.last
            self.model.delivered = self.model.floor = (0, before)
        self.open_cursor()

    @property
    def place(self) -> Path:
        return self.folder / str(self.generation)

    @property
    def now(self) -> int:
        return self.rig.loop.now_ns

    def new_rig(self, clock: tuple[int, int] | None = None) -> Rig:
        self.place.mkdir(exist_ok=True)
        return Rig(
            self.place / "logs",
            clock=clock,
            inline_bytes=1 << 17,
            segment_bytes=4096,
            load_bytes=256,
            journal_bytes_min=300,
        )

    def open_stream(self) -> None:
        self.store = open_store(self.rig.engine, "js A/s", StreamLimits(), sync="none")
        self.all = StreamCursors(self.store)

    def open_cursor(self) -> None:
        model = self.model
        cursor = StreamCursor(
            self.all,
            "c",
            self.start,
            journal=str(self.place / "c.cursor"),
            ack_policy=self.policy,
            ack_wait_ns=model.waits[0],
            backoff_ns=model.waits if len(model.waits) > 1 else (),
            max_deliver=model.max_deliver,
            max_ack_pending=model.max_pending,
            filters=model.filters,
        )
        self.receiver = Receiver(cursor, 0)
        self.rig.loop.advance(0)
        self.rig.settle()

    def wait(self, work: Coroutine[Any, Any, Any]) -> Any:
        async def run() -> Any:
            task = asyncio.create_task(work)
            while not task.done():
                self.rig.loop.run()
                self.rig.loop.serve(0)
                await asyncio.sleep(0)
            return task.result()

        return asyncio.run(run())

    # --- what happens

    @rule(subject=st.sampled_from(SUBJECTS))
    def publish(self, subject: str) -> None:
        seq = publish(self.store, subject.encode(), b"x" * 20)
        self.model.last += 1
        assert seq == self.model.last
        self.model.live[seq] = subject
        self.rig.settle()

    @rule(room=st.integers(1, 6))
    def take(self, room: int) -> None:
        self.receiver.room = room
        self.receiver.take()
        self.receiver.room = 0
        got = [delivery[:4] for delivery in self.receiver.got()]
        assert got == self.model.take(room, self.now, self.policy)
        self.rig.settle()

    @rule(data=st.data())
    def ack(self, data: Any) -> None:
        seq = self.some_seq(data.draw)
        if self.policy == "all":
            assert self.receiver.ack_all(seq) == self.model.ack_all(seq)
        else:
            assert self.receiver.ack(seq) == self.model.ack(seq)
        self.rig.settle()

    @rule(data=st.data(), delay=st.integers(0, 2))
    def nak(self, data: Any, delay: int) -> None:
        seq = self.some_seq(data.draw)
        flight = self.model.flights.get(seq)
        result = self.receiver.nak(seq, delay * SECOND)
        if flight is None or flight.waits:
            assert result != DONE
        elif delay:
            flight.due = flight.naked = self.now + delay * SECOND
        else:
            flight.naked = 0
            self.model.expire(seq)
        self.rig.settle()

    @rule(data=st.data())
    def progress(self, data: Any) -> None:
        seq = self.some_seq(data.draw)
        flight = self.model.flights.get(seq)
        result = self.receiver.progress(seq)
        if flight is None or flight.waits:
            assert result != DONE
        else:
            flight.sent, flight.naked = self.now, None
            flight.due = self.now + self.model.wait(flight)
        self.rig.settle()

    @rule(seconds=st.integers(1, 3))
    def advance(self, seconds: int) -> None:
        end = self.now + seconds * SECOND
        self.model.advance(self.now, end)
        self.rig.advance(seconds)

    @rule(data=st.data())
    def delete(self, data: Any) -> None:
        if self.model.live:
            seq = data.draw(st.sampled_from(sorted(self.model.live)))
            assert kill(self.store, seq)
            self.model.kill(seq, reported=True)
            self.rig.settle()

    @rule(data=st.data(), how=st.sampled_from(["all", "below", "subject"]))
    def purge(self, data: Any, how: str) -> None:
        model = self.model
        subject, seq = None, 0
        if how == "below":
            seq = data.draw(st.integers(1, model.last))
        elif how == "subject":
            subject = data.draw(st.sampled_from(PURGES))
        self.wait(self.store.purge(subject, seq))
        below = seq or model.last + 1
        if subject is None or contained(model.filters, subject):
            model.jump(below)
        for one in sorted(model.live):
            if one < below and matches((subject,) if subject else (), model.live[one]):
                model.kill(one, reported=False)

    @rule(
        waits=st.sampled_from([(SECOND,), (2 * SECOND,), (SECOND, 3 * SECOND)]),
        most=st.sampled_from([0, 1, 2, 3]),
        pending=st.sampled_from([0, 2, 4]),
    )
    def update(self, waits: tuple[int, ...], most: int, pending: int) -> None:
        model = self.model
        model.waits, model.max_deliver, model.max_pending = waits, most, pending
        self.update_cursor()
        for flight in model.flights.values():
            if not flight.waits and flight.naked is None:
                flight.due = flight.sent + model.wait(flight)
        for seq in list(model.queue):
            if most and model.flights[seq].deliveries >= most:
                model.queue.remove(seq)
                model.expire(seq)
        model.advance(self.now, self.now)
        self.rig.loop.advance(0)
        self.rig.settle()

    def update_cursor(self) -> None:
        model = self.model
        self.receiver.cursor.update(
            ack_wait_ns=model.waits[0],
            backoff_ns=model.waits if len(model.waits) > 1 else (),
            max_deliver=model.max_deliver,
            max_ack_pending=model.max_pending,
            filters=model.filters,
        )

    @rule(filters=st.sampled_from(FILTERS))
    def refilter(self, filters: tuple[str, ...]) -> None:
        model = self.model
        model.filters = filters
        model.listed = [seq for seq in model.listed if matches(filters, model.live[seq])]
        self.update_cursor()
        self.rig.loop.advance(0)
        self.rig.settle()

    @rule(seconds=st.integers(0, 2))
    def pause(self, seconds: int) -> None:
        self.model.paused_until = self.now + seconds * SECOND if seconds else 0
        wall = self.rig.turn.wall_ns + seconds * SECOND if seconds else 0
        self.receiver.cursor.pause_until(wall)
        self.rig.settle()

    @rule(data=st.data())
    def reset(self, data: Any) -> None:
        model = self.model
        seq = data.draw(st.integers(0, model.last + 1))
        place = self.receiver.cursor.reset(seq)
        assert place == (seq or model.floor[1] + 1)
        model.flights, model.queue, model.exhausted, model.listed = {}, [], set(), []
        model.next = place
        model.delivered = model.floor = (0, place - 1)
        self.rig.settle()

    @rule()
    def restart(self) -> None:
        """As after kill -9: what the files hold is all there is."""
        model = self.model
        clock = (self.now, self.rig.turn.wall_ns)
        before = self.place
        self.generation += 1
        self.place.mkdir()
        self.rig.crash(self.place / "logs")
        shutil.copy(before / "c.cursor", self.place / "c.cursor")
        self.rig = self.new_rig(clock)
        self.open_stream()
        model.reported_exhausted, model.reported_dropped = [], []
        model.queue = [seq for seq in model.queue if model.flights[seq].naked == 0]
        for seq, flight in model.flights.items():
            flight.waits = seq in model.queue
            if not flight.waits and flight.naked is None:
                flight.due = flight.sent + model.wait(flight)
        self.open_cursor()
        model.advance(self.now, self.now)

    def some_seq(self, draw: Draw) -> int:
        known = sorted(self.model.flights) + sorted(self.model.exhausted)
        seqs = st.integers(1, self.model.last + 1)
        return int(draw(st.sampled_from(known) | seqs if known else seqs))

    # --- what must be so

    @invariant()
    def agrees(self) -> None:
        model, cursor = self.model, self.receiver.cursor
        assert cursor.num_pending == len(model.fresh())
        assert cursor.num_ack_pending == len(model.flights)
        again = sum(flight.deliveries > 1 for flight in model.flights.values())
        assert cursor.num_redelivered == again + len(model.exhausted)
        assert cursor.delivered == model.delivered
        assert cursor.ack_floor == model.floor
        for seq, flight in model.flights.items():
            assert self.receiver.pending(seq) == (flight.consumer_seq, flight.deliveries)
        assert self.receiver.exhausted_ones == model.reported_exhausted
        assert self.receiver.dropped_ones == model.reported_dropped

    def teardown(self) -> None:
        if hasattr(self, "rig"):
            self.rig.abandon()
            shutil.rmtree(self.folder, ignore_errors=True)


class AllMachine(StreamCursorMachine):
    policy = "all"


class NoneMachine(StreamCursorMachine):
    policy = "none"


SETTINGS = settings(
    max_examples=30,
    report_multiple_bugs=False,
    stateful_step_count=60,
    suppress_health_check=list(HealthCheck),
)


@pytest.mark.parametrize("machine", [StreamCursorMachine, AllMachine, NoneMachine])
def test_a_cursor_of_a_stream(machine: Any) -> None:
    machine.TestCase.settings = SETTINGS
    machine.TestCase().runTest()
