"""Delivery events: the record of many deliveries, its fields, and when it is lost."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest
from support.delivery_events import Event, Events, read_events
from support.engine import SECOND, SYNC, WRITE, Rig, finish_all, numbered

from broker.engine.cursor.deadletter import DeadLetters
from broker.engine.cursor.events import EventLog
from broker.engine.cursor.local import LocalConsumer
from broker.engine.log.publish import append
from broker.runtime import vfs

WAIT = 10.0
TOPIC = "happened"


@pytest.fixture(autouse=True)
def healed() -> Any:
    yield
    vfs.heal()


class Diary:
    """A rig whose deliveries are recorded, with a log `t` and its cursor `c`."""

    def __init__(
        self, root: Path | None = None, *, buffer: int = 1 << 16, linger: int = 0, **limits: Any
    ) -> None:
        self.rig = Rig(root, **limits)
        engine = self.rig.engine
        self.events = EventLog(engine.shared, engine.open_log, TOPIC, buffer, linger)
        self.events.begin()
        self.log = self.rig.log()
        self.cursor = self.log.open_cursor("c")
        self.consumer = LocalConsumer(self.cursor, 100, WAIT)
        self.rig.settle()

    def publish(self, count: int = 1) -> None:
        assert self.rig.publish(self.log, numbered(count)) == [1] * count

    def records(self) -> list[Events]:
        self.rig.settle()
        log = self.rig.engine.log(TOPIC)
        reader = LocalConsumer(log.open_cursor("reader"), 10_000)
        self.rig.settle()
        found = [read_events(body) for body in finish_all(reader)]
        reader.leave()
        return found

    def new_events(self) -> list[Event]:
        """All events that were not asked for yet."""
        return [event for record in self.records() for event in record.events]

    def __enter__(self) -> Diary:
        return self

    def __exit__(self, *_: object) -> None:
        self.rig.__exit__()


def test_an_acked_record() -> None:
    with Diary() as diary:
        diary.publish()
        diary.rig.advance(3)
        wall = diary.rig.turn.wall_ns
        assert diary.consumer.finish(1) == 0
        assert diary.new_events() == [Event("t", "c", 1, 1, "fin", 3 * SECOND, wall)]
        diary.rig.settle()
        assert (diary.events.written, diary.events.lost) == (1, 0)


def test_latency_counts_from_the_publisher_not_from_the_delivery() -> None:
    with Diary() as diary:
        diary.consumer.leave()
        diary.publish()
        diary.rig.advance(5)
        consumer = LocalConsumer(diary.cursor, 1, WAIT)
        diary.rig.settle()
        diary.rig.advance(2)
        assert consumer.finish(1) == 0
        (event,) = diary.new_events()
        # how old it was at its delivery is kept with 24 bits
        assert abs(event.latency_ns - 7 * SECOND) < 1000


@pytest.mark.parametrize("delay", [0, 60])
def test_records_that_come_back(delay: float) -> None:
    with Diary() as diary:
        diary.publish()
        assert diary.consumer.requeue(1, delay) == 0
        diary.rig.advance(delay)
        diary.rig.advance(WAIT + 1)
        diary.consumer.leave()
        consumer = LocalConsumer(diary.cursor, 1, WAIT)
        diary.rig.settle()
        assert consumer.finish(1) == 0
        events = diary.new_events()
        assert [(event.event, event.attempt) for event in events] == [
            ("requeue", 1),
            ("timeout", 2),
            ("close", 3),
            ("fin", 4),
        ]
        ages = [round(event.latency_ns / SECOND, 3) for event in events]
        assert ages == [0, delay + WAIT, delay + WAIT + 1, delay + WAIT + 1]


def test_an_ack_after_the_time_was_up() -> None:
    """Its record waits to be given again: how old it is stands in its log."""
    with Diary() as diary:
        diary.publish()
        diary.consumer.set_credit(0)
        diary.rig.advance(WAIT + 5)
        assert diary.consumer.settle(1)
        assert [event[3:6] for event in diary.new_events()] == [
            (1, "timeout", int(WAIT) * SECOND),
            (1, "fin", int(WAIT + 5) * SECOND),
        ]
        assert not diary.consumer.settle(1)
        assert diary.new_events() == []


@pytest.mark.parametrize("reason", ["requeue", "timeout", "close"])
def test_a_dead_letter(tmp_path: Path, reason: str) -> None:
    with Diary(tmp_path) as diary:
        open_log = diary.rig.engine.open_log
        DeadLetters(diary.cursor, 1, "t.dead", open_log, lambda *_: b"").begin()
        diary.publish()
        if reason == "requeue":
            diary.consumer.requeue(1)
        elif reason == "timeout":
            diary.rig.advance(WAIT + 1)
        else:
            diary.consumer.leave()
        events = diary.new_events()
        assert [(event.event, event.attempt, event.reason) for event in events] == [
            (reason, 1, ""),
            ("dead", 1, reason),
        ]
        assert all(event.latency_ns >= 0 for event in events)


def test_a_dead_letter_that_cannot_be_stored_is_reported_once_it_is(tmp_path: Path) -> None:
    with Diary(tmp_path) as diary:

        def full(_name: str) -> Any:
            raise OSError(errno.ENOSPC, "full")

        letters = DeadLetters(diary.cursor, 1, "d", full, lambda *_: b"")
        letters.begin()
        diary.publish()
        diary.consumer.requeue(1)
        diary.rig.advance(5)
        assert [event.event for event in diary.new_events()] == ["requeue"]
        letters.end()
        DeadLetters(diary.cursor, 1, "d", diary.rig.engine.open_log, lambda *_: b"").begin()
        diary.rig.advance(5)
        assert [event.event for event in diary.new_events()] == ["dead"]


def test_one_record_for_a_turn() -> None:
    with Diary() as diary:
        other = LocalConsumer(diary.log.open_cursor("other \N{SNOWMAN}"), 100, WAIT)
        diary.publish(50)
        for seq in range(1, 51):
            assert diary.consumer.finish(seq) == other.finish(seq) == 0
        (record,) = diary.records()
        assert [(event.channel, event.seq) for event in record.events] == [
            (name, seq) for seq in range(1, 51) for name in ("c", "other \N{SNOWMAN}")
        ]


def test_they_are_gathered_for_a_while() -> None:
    with Diary(linger=SECOND) as diary:
        diary.publish(3)
        diary.consumer.finish(1)
        assert diary.records() == []
        diary.rig.advance(0.9)
        diary.consumer.finish(2)
        assert diary.records() == []
        diary.rig.advance(0.2)
        (record,) = diary.records()
        assert [event.seq for event in record.events] == [1, 2]
        diary.consumer.finish(3)
        diary.events.end()
        assert [event.seq for event in diary.new_events()] == [3]
        assert diary.rig.engine.log(TOPIC).next_seq == 3


def test_a_full_buffer_is_a_record_of_its_own() -> None:
    with Diary(buffer=1024, linger=SECOND) as diary:
        diary.publish(100)
        for seq in range(1, 101):
            diary.consumer.finish(seq)
        diary.rig.advance(2)
        records = diary.records()
        assert len(records) == 5
        events = [event for record in records for event in record.events]
        assert [event.seq for event in events] == list(range(1, 101))


def test_a_full_list_of_names_is_a_record_of_its_own() -> None:
    with Diary(buffer=1024) as diary:
        names = [f"{i:03d}".ljust(60, "n") for i in range(12)]
        consumers = [LocalConsumer(diary.log.open_cursor(name), 9, WAIT) for name in names]
        diary.publish(2)
        for seq in (1, 2):
            for consumer in consumers:
                consumer.finish(seq)
        assert [(e.seq, e.channel) for e in diary.new_events()] == [
            (s, n) for s in (1, 2) for n in names
        ]
        long = LocalConsumer(diary.log.open_cursor("n" * 300), 9, WAIT)
        diary.publish()
        long.finish(3)
        assert diary.new_events() == []
        assert diary.events.lost == 1


def test_there_are_no_events_of_the_log_itself() -> None:
    with Diary() as diary:
        diary.publish()
        diary.consumer.finish(1)
        assert len(diary.new_events()) == 1  # this reads and finishes, more than once
        reader = LocalConsumer(diary.rig.engine.log(TOPIC).open_cursor("reader"), 10)
        append(diary.rig.engine.log(TOPIC), b"from somebody else")
        diary.rig.settle()
        reader.requeue(2)
        diary.rig.advance(120)
        reader.leave()
        assert diary.rig.engine.log(TOPIC).next_seq == 3


def test_a_full_disk_loses_events_and_nothing_else(tmp_path: Path) -> None:
    with Diary(tmp_path) as diary:
        diary.publish(4)
        vfs.fail(WRITE, errno.ENOSPC, times=10**6)
        diary.consumer.finish(1)
        diary.rig.settle()
        assert (diary.events.written, diary.events.lost) == (0, 1)
        diary.consumer.finish(2)  # refused now
        diary.rig.settle()
        vfs.heal()
        diary.rig.advance(2)
        diary.consumer.finish(3)
        (record,) = diary.records()
        assert [event.seq for event in record.events] == [3]
        assert record.lost == 2
        diary.consumer.finish(4)
        (record,) = diary.records()
        assert record.lost == 0
        diary.rig.settle()
        assert (diary.events.written, diary.events.lost) == (2, 2)
        assert diary.cursor.acks.floor == 5


def test_what_a_lost_record_said_is_said_again(tmp_path: Path) -> None:
    with Diary(tmp_path, sync="always") as diary:
        diary.publish(3)
        for seq in (1, 2):
            vfs.fail(SYNC, errno.EIO, times=1)
            diary.consumer.finish(seq)
            diary.rig.settle()
            vfs.heal()
            diary.rig.advance(2)
        assert diary.events.lost == 2
        diary.consumer.finish(3)
        assert diary.records()[-1].lost == 2


def test_a_log_that_is_behind_is_not_waited_for(tmp_path: Path) -> None:
    with Diary(tmp_path, append_bytes_max=10) as diary:
        diary.publish(2)
        diary.consumer.finish(1)
        diary.rig.loop.run()
        diary.rig.loop.run()
        diary.consumer.finish(2)  # the first record is still with the writer
        diary.rig.loop.run()
        diary.rig.settle()
        assert (diary.events.written, diary.events.lost) == (1, 1)


def test_a_log_that_was_deleted_is_made_again(tmp_path: Path) -> None:
    with Diary(tmp_path) as diary:
        diary.publish(2)
        diary.consumer.finish(1)
        diary.rig.settle()
        diary.rig.engine.delete_log(TOPIC)
        diary.consumer.finish(2)
        assert [event.seq for event in diary.new_events()] == [2]


def test_a_log_that_cannot_be_opened_is_reported_once(tmp_path: Path) -> None:
    with Diary(tmp_path) as diary:
        diary.publish(2)
        diary.rig.engine.delete_log(TOPIC)
        (tmp_path / TOPIC).write_bytes(b"in the way")
        for seq in (1, 2):
            diary.consumer.finish(seq)
            diary.rig.settle()
        texts = [text for _, text, _ in diary.rig.reports]
        assert texts == ["delivery events are lost: their log cannot be opened"]
        assert diary.events.lost == 2
        assert diary.cursor.acks.floor == 3


def test_nobody_live_hears_or_adds(tmp_path: Path) -> None:
    with Diary(tmp_path) as diary:
        log = diary.rig.engine.log(TOPIC)
        assert not log.to_live
        assert diary.log.to_live


def test_after_its_end_nothing_is_reported(tmp_path: Path) -> None:
    with Diary(tmp_path) as diary:
        diary.publish(2)
        diary.consumer.finish(1)
        diary.events.end()
        diary.consumer.finish(2)
        assert [event.seq for event in diary.new_events()] == [1]
