"""Cursors of streams: what is delivered, when again, and what counts as settled."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from support.engine import SECOND, Rig
from support.native.stores import kill, publish
from support.native.streams import Taker

from broker.engine.stream.cursor import StreamCursor, StreamCursors
from broker.engine.stream.store import StreamLimits, StreamStore, open_store

UNKNOWN, REPEATED, DONE = 0, 1, 2  # what became of an ack


class Stream:
    """A stream in memory, on a clock that stands until it is moved."""

    def __init__(self, rig: Rig, retention: str = "limits", **limits: Any) -> None:
        self.rig = rig
        self.store: StreamStore = open_store(
            rig.engine, "js A/s", StreamLimits(**limits), sync="none", memory=True
        )
        self.all = StreamCursors(self.store, retention)

    def publish(self, *subjects: str) -> None:
        for subject in subjects:
            assert publish(self.store, subject.encode(), b"x")
        self.rig.settle()

    def taker(self, start: Any = 1, *, room: int = 1 << 40, name: str = "c", **more: Any) -> Taker:
        more.setdefault("ack_wait_ns", SECOND)
        return Taker(StreamCursor(self.all, name, start, **more), room)

    @property
    def seqs(self) -> list[int]:
        return [
            seq
            for seq in range(self.store.first_seq, self.store.last_seq + 1)
            if self.store.message(seq) is not None
        ]


@pytest.fixture
def stream() -> Iterator[Stream]:
    with Rig(None, clock=(SECOND, SECOND)) as rig:
        yield Stream(rig)


def seqs(taker: Taker) -> list[int]:
    return [delivery[0] for delivery in taker.got()]


def counts(taker: Taker) -> list[tuple[int, int, int]]:
    """(seq, deliveries, consumer seq) of each delivery."""
    return [delivery[:3] for delivery in taker.got()]


def test_messages_are_delivered_once_in_order_and_settled_by_their_acks(stream: Stream) -> None:
    taker = stream.taker()
    stream.publish("a", "a", "a", "a")
    assert counts(taker) == [(1, 1, 1), (2, 1, 2), (3, 1, 3), (4, 1, 4)]
    cursor = taker.cursor
    assert taker.ack(2) == DONE
    assert cursor.ack_floor == (0, 0)
    assert taker.ack(1) == DONE
    assert cursor.ack_floor == (2, 2)
    assert cursor.num_ack_pending == 2
    stream.rig.advance(1)
    assert counts(taker) == [(3, 2, 5), (4, 2, 6)]
    assert cursor.num_redelivered == 2
    assert taker.ack(4) == DONE
    assert taker.ack(3) == DONE
    assert taker.ack(3) == REPEATED
    assert taker.ack(5) == UNKNOWN
    assert cursor.ack_floor == cursor.delivered == (6, 4)


def test_a_deleted_message_moves_the_floor_and_frees_its_place(stream: Stream) -> None:
    taker = stream.taker(max_ack_pending=4)
    stream.publish("a", "a", "a", "a", "a")
    assert seqs(taker) == [1, 2, 3, 4]
    taker.ack(2)
    stream.rig.settle()
    assert seqs(taker) == [5]
    assert taker.cursor.ack_floor == (0, 0)
    kill(stream.store, 1)
    stream.rig.settle()
    assert taker.cursor.ack_floor == (2, 2)
    assert taker.dropped_ones == [(1, 1, 1)]
    assert taker.cursor.num_ack_pending == 3
    stream.publish("a")
    assert seqs(taker) == [6]


def test_pending_counts_down_to_zero(stream: Stream) -> None:
    stream.publish(*["a", "b"] * 5)
    taker = stream.taker(filters=["a"], room=2)
    assert [(d[0], d[3]) for d in taker.got()] == [(1, 4), (3, 3)]
    kill(stream.store, 5)
    kill(stream.store, 1)
    kill(stream.store, 2)
    assert taker.cursor.num_pending == 2
    taker.room = 10
    taker.take()
    assert [(d[0], d[3]) for d in taker.got()] == [(7, 1), (9, 0)]
    assert taker.cursor.num_pending == 0


def test_a_list_of_seqs_comes_before_what_is_new(stream: Stream) -> None:
    stream.publish("a", "b", "a", "c")
    taker = stream.taker(list(stream.store.subjects.last_per_subject()), room=0)
    cursor = taker.cursor
    assert cursor.num_pending == 3
    assert cursor.delivered == (0, 1)
    kill(stream.store, 3)
    assert cursor.num_pending == 2
    stream.publish("b")
    assert cursor.num_pending == 3
    taker.room = 9
    taker.take()
    assert [(d[0], d[3]) for d in taker.got()] == [(2, 2), (4, 1), (5, 0)]
