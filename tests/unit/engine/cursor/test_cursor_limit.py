"""A cursor with a limit of waiting records drops the oldest, so that its log does not grow."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.engine import Rig, bodies_of, numbered

from broker.engine.cursor.local import LocalConsumer
from broker.engine.log.publish import append

SIZE = 1000
MOST = 10
NAME = "tail#ephemeral"


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with Rig(tmp_path / "data", segment_bytes=8 * SIZE) as rig:
        yield rig


def tail(rig: Rig, credit: int = 0) -> LocalConsumer:
    """A consumer of a new limited cursor."""
    cursor = rig.log().open_cursor(NAME, ephemeral=True)
    cursor.limit_waiting(MOST)
    return LocalConsumer(cursor, credit)


def test_the_oldest_are_dropped_and_their_files_go(rig: Rig) -> None:
    consumer, log = tail(rig), rig.log()
    for _ in range(10):
        rig.publish(log, numbered(MOST, size=SIZE))
    cursor = consumer.cursor
    assert (cursor.depth, cursor.dropped_count, cursor.message_count) == (MOST, 9 * MOST, 10 * MOST)
    rig.settle()
    assert log.retention.bytes() < 3 * MOST * SIZE
    consumer.set_credit(MOST)
    rig.settle()
    assert [seq for seq, *_ in consumer.records] == list(range(9 * MOST + 1, 10 * MOST + 1))


def test_nothing_is_dropped_up_to_the_limit_or_without_one(rig: Rig) -> None:
    consumer, log = tail(rig), rig.log()
    other = log.open_cursor("c")
    rig.publish(log, numbered(MOST, size=SIZE))
    assert (consumer.cursor.depth, consumer.cursor.dropped_count) == (MOST, 0)
    rig.publish(log, numbered(MOST, size=SIZE))
    assert (other.depth, other.dropped_count) == (2 * MOST, 0)


def test_a_consumer_that_is_ready_comes_first(rig: Rig) -> None:
    consumer = tail(rig, credit=5 * MOST)
    rig.publish(rig.log(), numbered(5 * MOST, size=SIZE))
    assert len(bodies_of(consumer)) == 5 * MOST
    assert consumer.cursor.dropped_count == 0


def test_a_paused_cursor_drops_too(rig: Rig) -> None:
    consumer = tail(rig, credit=1)
    consumer.cursor.pause()
    rig.publish(rig.log(), numbered(3 * MOST, size=SIZE))
    assert (consumer.cursor.depth, consumer.cursor.dropped_count) == (MOST, 2 * MOST)


def test_what_came_back_goes_and_what_is_in_flight_stays(rig: Rig) -> None:
    consumer, log = tail(rig, credit=2), rig.log()
    rig.publish(log, numbered(2, size=SIZE))
    first, second = (seq for seq, *_ in consumer.records)
    consumer.set_credit(0)
    consumer.requeue(first)
    rig.publish(log, numbered(3 * MOST, size=SIZE))
    cursor = consumer.cursor
    assert (cursor.depth, cursor.in_flight_count) == (MOST, 1)
    assert cursor.dropped_count == 2 * MOST + 1
    assert consumer.finish(second) == 0
    rig.settle()
    assert log.first_seq > 1


def test_a_deferred_record_waits_for_its_time(rig: Rig) -> None:
    consumer, log = tail(rig), rig.log()
    assert append(log, b"later", not_before_ns=rig.turn.wall_ns + 10**12)
    rig.publish(log, numbered(3 * MOST, size=SIZE))
    cursor = consumer.cursor
    assert (cursor.depth, cursor.deferred_count) == (MOST, 1)
    assert cursor.dropped_count == 2 * MOST


def test_a_rewound_cursor_reads_all_of_it_again(rig: Rig) -> None:
    consumer, log = tail(rig, credit=100 * MOST), rig.log()
    log.open_cursor("c")  # retains all
    rig.publish(log, numbered(3 * MOST, size=SIZE))
    consumer.set_credit(0)
    consumer.cursor.rewind(1)
    rig.publish(log, numbered(1, size=SIZE))
    assert (consumer.cursor.depth, consumer.cursor.dropped_count) == (3 * MOST + 1, 0)
    consumer.set_credit(100 * MOST)
    rig.settle()
    consumer.set_credit(0)
    rig.publish(log, numbered(3 * MOST, size=SIZE))
    assert (consumer.cursor.depth, consumer.cursor.dropped_count) == (MOST, 2 * MOST)


def test_emptying_a_paused_log_does_not_count_as_received(rig: Rig) -> None:
    log = rig.log()
    cursor = log.open_cursor("c")
    log.pause()
    rig.publish(log, numbered(3))
    log.empty()
    assert (cursor.depth, cursor.message_count) == (0, 0)
    late = log.open_cursor("late")
    log.unpause()
    rig.publish(log, numbered(1))
    assert (cursor.message_count, late.message_count) == (1, 1)
