"""Deliveries time out each at its own deadline, in whatever order the deadlines come."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.engine import Rig, numbered

from broker.engine.cursor.cursor import Cursor
from broker.engine.cursor.local import LocalConsumer

WAIT = 10


@pytest.fixture
def rig() -> Iterator[Rig]:
    with Rig(None) as made:
        yield made


def give(rig: Rig, consumer: LocalConsumer, count: int) -> list[int]:
    """Publish so many; the seqs that the consumer got, which gets no others afterwards."""
    consumer.set_credit(consumer.in_flight + count)
    rig.publish(rig.log(), numbered(count))
    rig.settle()
    records, consumer.records = consumer.records, []
    return [record[0] for record in records]


def timeouts(rig: Rig, cursor: Cursor, seconds: int) -> list[int]:
    """How many deliveries have timed out after each of the next seconds."""
    found = []
    for _ in range(seconds):
        rig.advance(1)
        found.append(cursor.timeout_count)
    return found


def joined(rig: Rig, wait: float = WAIT) -> tuple[Cursor, LocalConsumer]:
    cursor = rig.log().open_cursor("c")
    return cursor, LocalConsumer(cursor, 0, wait, 1000)


def test_one_after_the_other(rig: Rig) -> None:
    cursor, consumer = joined(rig)
    for _ in range(3):
        give(rig, consumer, 2)
        rig.advance(2)
    consumer.set_credit(0)
    assert timeouts(rig, cursor, 9) == [0, 0, 0, 2, 2, 4, 4, 6, 6]


def test_a_later_delivery_with_an_earlier_deadline(rig: Rig) -> None:
    cursor, consumer = joined(rig)
    give(rig, consumer, 1)
    consumer.set_ack_wait(4)
    give(rig, consumer, 1)
    consumer.set_ack_wait(7)
    give(rig, consumer, 1)
    consumer.set_credit(0)
    assert timeouts(rig, cursor, 10) == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3]


def test_an_earlier_deadline_when_nothing_else_is_in_flight(rig: Rig) -> None:
    """The timer is still set for what was acknowledged."""
    cursor, consumer = joined(rig)
    assert consumer.finish(*give(rig, consumer, 1)) == 0
    consumer.set_ack_wait(4)
    give(rig, consumer, 1)
    consumer.set_credit(0)
    assert timeouts(rig, cursor, 5) == [0, 0, 0, 1, 1]


def test_the_timer_of_what_was_acknowledged_does_nothing(rig: Rig) -> None:
    cursor, consumer = joined(rig)
    first, second, third = give(rig, consumer, 3)
    rig.advance(5)
    (fourth,) = give(rig, consumer, 1)
    consumer.set_credit(0)
    for seq in (second, first, third):
        assert consumer.finish(seq) == 0
    assert timeouts(rig, cursor, 10) == [0] * 9 + [1]
    assert consumer.finish(fourth) == 1, "it has timed out"


@pytest.mark.parametrize("touched", [[0], [1], [2], [0, 1], [1, 0], [2, 0], [0, 1, 2], [2, 1, 0]])
def test_touched_ones_have_more_time(rig: Rig, touched: list[int]) -> None:
    cursor, consumer = joined(rig)
    seqs = give(rig, consumer, 3)
    consumer.set_credit(0)
    rig.advance(4)
    for place in touched:
        assert consumer.touch(seqs[place]) == 0
    left = 3 - len(touched)
    assert timeouts(rig, cursor, 10) == [0] * 5 + [left] * 4 + [3]


def test_touched_again_with_less_time(rig: Rig) -> None:
    cursor, consumer = joined(rig)
    first, _ = give(rig, consumer, 2)
    consumer.set_credit(0)
    assert consumer.touch(first) == 0
    consumer.set_ack_wait(3)
    assert consumer.touch(first) == 0
    assert timeouts(rig, cursor, 10) == [0, 0, 1, 1, 1, 1, 1, 1, 1, 2]


def test_those_of_a_consumer_that_left(rig: Rig) -> None:
    """It does not give them back: they return when their time is up."""
    cursor, consumer = joined(rig)
    first, second = give(rig, consumer, 2)
    rig.advance(3)
    give(rig, consumer, 1)
    assert consumer.touch(second) == 0
    consumer.leave(requeue=False)
    assert cursor.in_flight_count == 3
    assert timeouts(rig, cursor, 10) == [0] * 6 + [1] * 3 + [3]
    other = LocalConsumer(cursor, 3, WAIT)
    rig.settle()
    assert sorted(record[0] for record in other.records) == [first, second, 3]


@pytest.mark.parametrize("left", [False, True])
def test_they_come_back_in_the_order_of_their_deadlines(rig: Rig, left: bool) -> None:
    """Whichever consumer had them, and whether or not it has left."""
    cursor, one = joined(rig)
    other = LocalConsumer(cursor, 0, WAIT - 4, 1000)
    for consumer in (one, other, one, other):
        give(rig, consumer, 1)
        consumer.set_credit(0)
        rig.advance(1)
    if left:
        one.leave(requeue=False)
        other.leave(requeue=False)
    rig.advance(20)
    third = LocalConsumer(cursor, 4, WAIT)
    rig.settle()
    assert [record[0] for record in third.records] == [2, 4, 1, 3]


def test_after_a_rewind_nothing_has_a_deadline(rig: Rig) -> None:
    cursor, consumer = joined(rig)
    give(rig, consumer, 3)
    consumer.set_credit(0)
    cursor.rewind(1)
    assert timeouts(rig, cursor, 12) == [0] * 12
    consumer.set_credit(3)
    rig.settle()
    consumer.set_credit(0)
    assert timeouts(rig, cursor, 10) == [0] * 9 + [3]
