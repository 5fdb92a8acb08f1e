"""Cursors far behind hand out little per turn and share it; those that keep up are not held up."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.engine import Rig, bodies_of, numbered

from broker.engine.cursor.local import LocalConsumer
from broker.engine.log.publish import append

SIZE = 1000
COUNT = 200
PUMP = 16_000
BACKLOG = 4_000


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with Rig(
        tmp_path / "data",
        segment_bytes=1 << 20,
        load_bytes=1 << 20,
        deliver_bytes_max=PUMP,
        backlog_bytes_max=BACKLOG,
        inline_bytes=1 << 20,
    ) as rig:
        yield rig


def standing(rig: Rig, names: list[str]) -> list[LocalConsumer]:
    """A consumer of each of these new cursors, with everything before it and a place in a file."""
    log = rig.log()
    for name in names:
        log.open_cursor(name)
    consumers = [LocalConsumer(log.open_cursor(name), 1) for name in names]
    rig.publish(log, numbered(COUNT, size=SIZE))
    for consumer in consumers:
        assert bodies_of(consumer) == numbered(1, size=SIZE)
    return consumers


def given_per_turn(rig: Rig, consumers: list[LocalConsumer], turns: int) -> list[list[int]]:
    found = []
    for _ in range(turns):
        rig.loop.run_once()
        found.append([len(bodies_of(consumer)) for consumer in consumers])
    return found


def test_a_backlog_is_handed_out_a_little_per_turn(rig: Rig) -> None:
    (consumer,) = standing(rig, ["c"])
    consumer.set_credit(COUNT)
    turns = given_per_turn(rig, [consumer], 10)
    assert turns == [[BACKLOG // SIZE]] * 10
    rig.settle()
    assert len(bodies_of(consumer)) == COUNT - 1 - 10 * BACKLOG // SIZE


@pytest.mark.parametrize(("count", "given"), [(12, 11), (20, BACKLOG // SIZE)])
def test_what_the_segment_before_has_left_counts_by_its_bytes(
    tmp_path: Path, count: int, given: int
) -> None:
    """A cursor is not far behind because its log has begun another segment."""
    limits = {"deliver_bytes_max": PUMP, "backlog_bytes_max": BACKLOG, "load_bytes": 1 << 20}
    with Rig(tmp_path / "data", segment_bytes=11 * SIZE, inline_bytes=1 << 20, **limits) as rig:
        log = rig.log()
        consumer = LocalConsumer(log.open_cursor("c"), 1)
        rig.publish(log, numbered(count, size=SIZE))
        assert len(log.segments) == 2
        assert bodies_of(consumer) == numbered(1, size=SIZE)
        consumer.set_credit(count)
        assert given_per_turn(rig, [consumer], 1) == [[given]]


def test_cursors_far_behind_share_a_turn(rig: Rig) -> None:
    consumers = standing(rig, ["a", "b"])
    for consumer in consumers:
        consumer.set_credit(COUNT)
    turns = given_per_turn(rig, consumers, 5)[1:]  # the first turn does not know of the second
    assert turns == [[BACKLOG // SIZE // 2] * 2] * 4


def test_a_cursor_far_behind_catches_up_with_its_publishers(rig: Rig) -> None:
    """However much they add in a turn, it hands out that much more, up to the limit of all."""
    (consumer,) = standing(rig, ["c"])
    consumer.set_credit(10 * COUNT)
    for added in (1, 5, 7, 20):
        add(rig, added)
        given = min(added * 1.05 + BACKLOG // SIZE, PUMP // SIZE)  # records have headers
        assert given_per_turn(rig, [consumer], 1)[0][0] == pytest.approx(given, abs=1)
        assert given_per_turn(rig, [consumer], 1) == [[BACKLOG // SIZE]], "nothing was added"


def add(rig: Rig, count: int) -> None:
    for _ in range(count):
        append(rig.log(), bytes(SIZE))


def test_what_was_added_while_it_had_no_credit_does_not_count(rig: Rig) -> None:
    consumers = standing(rig, ["a", "b"])
    for _ in range(5):
        add(rig, 10)
        rig.loop.run_once()
    rig.loop.run_once()
    for consumer in consumers:
        consumer.set_credit(10 * COUNT)
    first, *later = given_per_turn(rig, consumers, 4)
    assert sum(first) <= 2 * BACKLOG // SIZE, "the first turn does not know of the second cursor"
    assert later == [[BACKLOG // SIZE // 2] * 2] * 3


def test_cursors_share_what_they_may_hand_out_beside_what_was_added(rig: Rig) -> None:
    consumers = standing(rig, ["a", "b"])
    for consumer in consumers:
        consumer.set_credit(10 * COUNT)
    given_per_turn(rig, consumers, 2)
    for _ in range(3):
        add(rig, 6)
        (turn,) = given_per_turn(rig, consumers, 1)
        assert turn == pytest.approx([6 * 1.05 + BACKLOG // SIZE // 2] * 2, abs=1)


def test_what_was_just_published_is_handed_out_at_once(rig: Rig) -> None:
    (consumer,) = standing(rig, ["c"])
    consumer.set_credit(10 * COUNT)
    rig.settle()
    assert len(bodies_of(consumer)) == COUNT - 1
    fresh = numbered(PUMP // SIZE - 2, size=SIZE)
    for body in fresh:
        append(rig.log(), body)
    rig.loop.run_once()
    assert bodies_of(consumer) == fresh
