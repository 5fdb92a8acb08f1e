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


def test_expired_messages_come_by_seq_and_rejected_ones_in_the_order_of_their_naks(
    stream: Stream,
) -> None:
    taker = stream.taker(room=4)
    stream.publish("a", "a", "a", "a", "a")
    assert seqs(taker) == [1, 2, 3, 4]
    for seq in (3, 1, 2):
        assert taker.nak(seq) == DONE
    stream.rig.advance(1)
    taker.room = 9
    taker.take()
    assert seqs(taker) == [3, 1, 2, 4, 5]


def test_what_is_given_again_is_not_held_back_by_max_ack_pending(stream: Stream) -> None:
    taker = stream.taker(max_ack_pending=2)
    stream.publish("a", "a", "a")
    assert counts(taker) == [(1, 1, 1), (2, 1, 2)]
    stream.rig.advance(1)
    assert counts(taker) == [(1, 2, 3), (2, 2, 4)]
    taker.ack(1)
    stream.rig.settle()
    assert counts(taker) == [(3, 1, 5)]


def test_a_nak_with_a_delay_waits_and_progress_moves_the_deadline(stream: Stream) -> None:
    taker = stream.taker()
    stream.publish("a", "a")
    assert seqs(taker) == [1, 2]
    assert taker.nak(1, 3 * SECOND) == DONE
    stream.rig.advance(0.5)
    assert taker.progress(2) == DONE
    stream.rig.advance(0.5)
    assert seqs(taker) == []
    stream.rig.advance(0.5)
    assert seqs(taker) == [2]
    taker.ack(2)
    stream.rig.advance(1.4)
    assert seqs(taker) == []
    stream.rig.advance(0.1)
    assert counts(taker) == [(1, 2, 4)]
    taker.ack(1)
    assert taker.nak(1) == taker.progress(1) == REPEATED
    stream.rig.advance(5)
    assert seqs(taker) == []


def test_each_delivery_waits_for_its_step_of_the_backoff(stream: Stream) -> None:
    """Sent at 0, 0.3, 0.9 and 1.5 s; then the place is free for the next message."""
    taker = stream.taker(
        backoff_ns=[3 * SECOND // 10, 6 * SECOND // 10], max_deliver=4, max_ack_pending=1
    )
    stream.publish("a", "a")
    times = []
    for tenth in range(25):
        times += [(tenth, delivery[0], delivery[1]) for delivery in taker.got()]
        stream.rig.advance(0.1)
    assert times == [(0, 1, 1), (3, 1, 2), (9, 1, 3), (15, 1, 4), (21, 2, 1), (24, 2, 2)]
    assert taker.exhausted_ones == [(1, 4)]


def test_exhausted_messages_stay_until_a_late_ack(stream: Stream) -> None:
    taker = stream.taker(max_deliver=1)
    stream.publish("a", "a")
    assert seqs(taker) == [1, 2]
    stream.rig.advance(1)
    cursor = taker.cursor
    assert taker.exhausted_ones == [(1, 1), (2, 1)]
    assert (cursor.num_ack_pending, cursor.num_redelivered, cursor.ack_floor) == (0, 2, (0, 0))
    assert taker.ack(1) == DONE
    assert (cursor.num_redelivered, cursor.ack_floor) == (1, (0, 0))
    cursor.update(ack_wait_ns=SECOND, max_deliver=5)
    stream.rig.advance(5)
    assert seqs(taker) == []
    stream.publish("a")
    taker.ack(3)
    assert cursor.ack_floor == cursor.delivered == (3, 3)
    kill(stream.store, 2)
    assert cursor.num_redelivered == 0


def test_a_lower_limit_of_deliveries_is_in_force_for_what_is_in_flight(stream: Stream) -> None:
    taker = stream.taker()
    stream.publish("a")
    stream.rig.advance(1)
    assert counts(taker) == [(1, 1, 1), (1, 2, 2)]
    taker.cursor.update(ack_wait_ns=SECOND, max_deliver=2)
    stream.rig.advance(1)
    assert (seqs(taker), taker.exhausted_ones) == ([], [(1, 2)])


def test_an_ack_of_all_settles_what_came_before(stream: Stream) -> None:
    taker = stream.taker(ack_policy="all")
    stream.publish("a", "a", "a", "a")
    assert taker.ack_all(3, 3) == DONE
    assert (taker.cursor.ack_floor, taker.cursor.num_ack_pending) == ((3, 3), 1)
    assert taker.ack_all(2, 2) == REPEATED
    assert taker.ack_all(9, 9) == UNKNOWN
    stream.rig.advance(1)
    assert taker.ack_all(4, 5) == DONE
    assert taker.cursor.ack_floor == (5, 4)


def test_without_acks_the_floor_is_what_was_delivered(stream: Stream) -> None:
    taker = stream.taker(ack_policy="none")
    stream.publish("a", "a")
    assert taker.cursor.ack_floor == taker.cursor.delivered == (2, 2)
    assert taker.cursor.num_ack_pending == 0


def test_a_pause_ends_by_itself_and_redeliveries_come_first(stream: Stream) -> None:
    taker = stream.taker()
    stream.publish("a")
    assert seqs(taker) == [1]
    taker.cursor.pause_until(stream.rig.turn.wall_ns + 5 * SECOND)
    stream.publish("a")
    stream.rig.advance(4.9)
    assert seqs(taker) == []
    stream.rig.advance(0.1)
    assert counts(taker) == [(1, 2, 2), (2, 1, 3)]
    assert taker.resumes == 1
    taker.cursor.pause_until(stream.rig.turn.wall_ns + 5 * SECOND)
    stream.publish("a")
    assert seqs(taker) == []
    taker.cursor.pause_until(0)
    stream.rig.settle()
    assert seqs(taker) == [3]


def test_a_reset_begins_again(stream: Stream) -> None:
    taker = stream.taker()
    stream.publish("a", "a", "a")
    taker.ack(1)
    assert taker.cursor.reset(0) == 2
    assert taker.cursor.delivered == taker.cursor.ack_floor == (0, 1)
    stream.rig.settle()
    assert counts(taker) == [(1, 1, 1), (2, 1, 2), (3, 1, 3), (2, 1, 1), (3, 1, 2)]
    assert taker.cursor.reset(9) == 9
    assert (taker.cursor.num_pending, taker.cursor.num_ack_pending) == (0, 0)


def test_a_place_after_the_end_is_kept(stream: Stream) -> None:
    stream.publish("a")
    taker = stream.taker(4)
    assert taker.cursor.delivered == (0, 3)
    stream.publish("a", "a")
    assert (seqs(taker), taker.cursor.num_pending) == ([], 0)
    stream.publish("a", "a")
    assert seqs(taker) == [4, 5]
    assert taker.cursor.num_pending == 0


def test_overlapping_filters_deliver_each_message_once_and_in_order(stream: Stream) -> None:
    taker = stream.taker(filters=["a.*", "*.b"])
    stream.publish("a.b", "a.c", "c.b", "c.c", "a.b")
    assert [(d[0], d[3]) for d in taker.got()] == [(1, 3), (2, 2), (3, 1), (5, 0)]
    assert taker.cursor.num_pending == 0


def test_other_filters_are_counted_from_where_it_stands(stream: Stream) -> None:
    stream.publish("a", "b", "a", "b", "b")
    taker = stream.taker(filters=["a"], room=1)
    assert seqs(taker) == [1]
    taker.cursor.update(ack_wait_ns=SECOND, filters=["b"])
    assert taker.cursor.num_pending == 3
    assert (taker.cursor.num_ack_pending, taker.cursor.ack_floor) == (1, (0, 0))
    taker.room = 9
    taker.take()
    assert seqs(taker) == [2, 4, 5]


def test_only_waiting_cursors_whose_filter_matches_are_woken(stream: Stream) -> None:
    takers = [stream.taker(name=f"c{i}", filters=[f"s.{i % 3}"], room=i % 2) for i in range(12)]
    stream.publish("s.1")
    assert [taker.wakes for taker in takers] == [0, 1, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0]
    assert sum(len(taker.got()) for taker in takers) == 2


def test_a_closed_cursor_is_not_woken(stream: Stream) -> None:
    taker = stream.taker()
    taker.cursor.close(True)
    stream.publish("a")
    assert (seqs(taker), stream.all.cursors) == ([], {})
    assert seqs(stream.taker()) == [1]
