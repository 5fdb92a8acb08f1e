"""Cursors of streams: what is delivered, when again, and what counts as settled."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from support.engine import SECOND, Rig
from support.native.stores import kill, publish
from support.native.streams import Receiver

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

    def receiver(
        self, start: Any = 1, *, room: int = 1 << 40, name: str = "c", **more: Any
    ) -> Receiver:
        more.setdefault("ack_wait_ns", SECOND)
        return Receiver(StreamCursor(self.all, name, start, **more), room)

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


def seqs(receiver: Receiver) -> list[int]:
    return [delivery[0] for delivery in receiver.got()]


def counts(receiver: Receiver) -> list[tuple[int, int, int]]:
    """(seq, deliveries, consumer seq) of each delivery."""
    return [delivery[:3] for delivery in receiver.got()]


def test_messages_are_delivered_once_in_order_and_settled_by_their_acks(stream: Stream) -> None:
    receiver = stream.receiver()
    stream.publish("a", "a", "a", "a")
    assert counts(receiver) == [(1, 1, 1), (2, 1, 2), (3, 1, 3), (4, 1, 4)]
    cursor = receiver.cursor
    assert receiver.ack(2) == DONE
    assert cursor.ack_floor == (0, 0)
    assert receiver.ack(1) == DONE
    assert cursor.ack_floor == (2, 2)
    assert cursor.num_ack_pending == 2
    stream.rig.advance(1)
    assert counts(receiver) == [(3, 2, 5), (4, 2, 6)]
    assert cursor.num_redelivered == 2
    assert receiver.ack(4) == DONE
    assert receiver.ack(3) == DONE
    assert receiver.ack(3) == REPEATED
    assert receiver.ack(5) == UNKNOWN
    assert cursor.ack_floor == cursor.delivered == (6, 4)


def test_a_deleted_message_moves_the_floor_and_frees_its_place(stream: Stream) -> None:
    receiver = stream.receiver(max_ack_pending=4)
    stream.publish("a", "a", "a", "a", "a")
    assert seqs(receiver) == [1, 2, 3, 4]
    receiver.ack(2)
    stream.rig.settle()
    assert seqs(receiver) == [5]
    assert receiver.cursor.ack_floor == (0, 0)
    kill(stream.store, 1)
    stream.rig.settle()
    assert receiver.cursor.ack_floor == (2, 2)
    assert receiver.dropped_ones == [(1, 1, 1)]
    assert receiver.cursor.num_ack_pending == 3
    stream.publish("a")
    assert seqs(receiver) == [6]


def test_pending_counts_down_to_zero(stream: Stream) -> None:
    stream.publish(*["a", "b"] * 5)
    receiver = stream.receiver(filters=["a"], room=2)
    assert [(d[0], d[3]) for d in receiver.got()] == [(1, 4), (3, 3)]
    kill(stream.store, 5)
    kill(stream.store, 1)
    kill(stream.store, 2)
    assert receiver.cursor.num_pending == 2
    receiver.room = 10
    receiver.take()
    assert [(d[0], d[3]) for d in receiver.got()] == [(7, 1), (9, 0)]
    assert receiver.cursor.num_pending == 0


def test_a_list_of_seqs_comes_before_what_is_new(stream: Stream) -> None:
    stream.publish("a", "b", "a", "c")
    receiver = stream.receiver(list(stream.store.subjects.last_per_subject()), room=0)
    cursor = receiver.cursor
    assert cursor.num_pending == 3
    assert cursor.delivered == (0, 1)
    kill(stream.store, 3)
    assert cursor.num_pending == 2
    stream.publish("b")
    assert cursor.num_pending == 3
    receiver.room = 9
    receiver.take()
    assert [(d[0], d[3]) for d in receiver.got()] == [(2, 2), (4, 1), (5, 0)]


@pytest.mark.parametrize("filters", [(), ("a",)])
def test_listed_messages_are_delivered_when_they_can_be_read(
    stream: Stream, filters: tuple[str, ...]
) -> None:
    """A watcher of a key that begins while the key is written."""
    stream.publish("b")
    assert publish(stream.store, b"a", b"x")  # it can be read after this turn
    receiver = stream.receiver([2], filters=filters)
    assert seqs(receiver) == []
    assert receiver.cursor.num_pending == 1
    stream.rig.settle()
    assert seqs(receiver) == [2]
    stream.publish("a")
    assert seqs(receiver) == [3]


def test_expired_messages_come_by_seq_and_rejected_ones_in_the_order_of_their_naks(
    stream: Stream,
) -> None:
    receiver = stream.receiver(room=4)
    stream.publish("a", "a", "a", "a", "a")
    assert seqs(receiver) == [1, 2, 3, 4]
    for seq in (3, 1, 2):
        assert receiver.nak(seq) == DONE
    stream.rig.advance(1)
    receiver.room = 9
    receiver.take()
    assert seqs(receiver) == [3, 1, 2, 4, 5]


def test_what_is_given_again_is_not_held_back_by_max_ack_pending(stream: Stream) -> None:
    receiver = stream.receiver(max_ack_pending=2)
    stream.publish("a", "a", "a")
    assert counts(receiver) == [(1, 1, 1), (2, 1, 2)]
    stream.rig.advance(1)
    assert counts(receiver) == [(1, 2, 3), (2, 2, 4)]
    receiver.ack(1)
    stream.rig.settle()
    assert counts(receiver) == [(3, 1, 5)]


def test_a_nak_with_a_delay_waits_and_progress_moves_the_deadline(stream: Stream) -> None:
    receiver = stream.receiver()
    stream.publish("a", "a")
    assert seqs(receiver) == [1, 2]
    assert receiver.nak(1, 3 * SECOND) == DONE
    stream.rig.advance(0.5)
    assert receiver.progress(2) == DONE
    stream.rig.advance(0.5)
    assert seqs(receiver) == []
    stream.rig.advance(0.5)
    assert seqs(receiver) == [2]
    receiver.ack(2)
    stream.rig.advance(1.4)
    assert seqs(receiver) == []
    stream.rig.advance(0.1)
    assert counts(receiver) == [(1, 2, 4)]
    receiver.ack(1)
    assert receiver.nak(1) == receiver.progress(1) == REPEATED
    stream.rig.advance(5)
    assert seqs(receiver) == []


def test_each_delivery_waits_for_its_step_of_the_backoff(stream: Stream) -> None:
    """Sent at 0, 0.3, 0.9 and 1.5 s; then the place is free for the next message."""
    receiver = stream.receiver(
        backoff_ns=[3 * SECOND // 10, 6 * SECOND // 10], max_deliver=4, max_ack_pending=1
    )
    stream.publish("a", "a")
    times = []
    for tenth in range(25):
        times += [(tenth, delivery[0], delivery[1]) for delivery in receiver.got()]
        stream.rig.advance(0.1)
    assert times == [(0, 1, 1), (3, 1, 2), (9, 1, 3), (15, 1, 4), (21, 2, 1), (24, 2, 2)]
    assert receiver.exhausted_ones == [(1, 4)]


def test_exhausted_messages_stay_until_a_late_ack(stream: Stream) -> None:
    receiver = stream.receiver(max_deliver=1)
    stream.publish("a", "a")
    assert seqs(receiver) == [1, 2]
    stream.rig.advance(1)
    cursor = receiver.cursor
    assert receiver.exhausted_ones == [(1, 1), (2, 1)]
    assert (cursor.num_ack_pending, cursor.num_redelivered, cursor.ack_floor) == (0, 2, (0, 0))
    assert receiver.ack(1) == DONE
    assert (cursor.num_redelivered, cursor.ack_floor) == (1, (0, 0))
    cursor.update(ack_wait_ns=SECOND, max_deliver=5)
    stream.rig.advance(5)
    assert seqs(receiver) == []
    stream.publish("a")
    receiver.ack(3)
    assert cursor.ack_floor == cursor.delivered == (3, 3)
    kill(stream.store, 2)
    assert cursor.num_redelivered == 0


def test_a_lower_limit_of_deliveries_is_in_force_for_what_is_in_flight(stream: Stream) -> None:
    receiver = stream.receiver()
    stream.publish("a")
    stream.rig.advance(1)
    assert counts(receiver) == [(1, 1, 1), (1, 2, 2)]
    receiver.cursor.update(ack_wait_ns=SECOND, max_deliver=2)
    stream.rig.advance(1)
    assert (seqs(receiver), receiver.exhausted_ones) == ([], [(1, 2)])


def test_an_ack_of_all_settles_what_came_before(stream: Stream) -> None:
    receiver = stream.receiver(ack_policy="all")
    stream.publish("a", "a", "a", "a")
    assert receiver.ack_all(3, 3) == DONE
    assert (receiver.cursor.ack_floor, receiver.cursor.num_ack_pending) == ((3, 3), 1)
    assert receiver.ack_all(2, 2) == REPEATED
    assert receiver.ack_all(9, 9) == UNKNOWN
    stream.rig.advance(1)
    assert receiver.ack_all(4, 5) == DONE
    assert receiver.cursor.ack_floor == (5, 4)


def test_without_acks_the_floor_is_what_was_delivered(stream: Stream) -> None:
    receiver = stream.receiver(ack_policy="none")
    stream.publish("a", "a")
    assert receiver.cursor.ack_floor == receiver.cursor.delivered == (2, 2)
    assert receiver.cursor.num_ack_pending == 0


def test_a_pause_ends_by_itself_and_redeliveries_come_first(stream: Stream) -> None:
    receiver = stream.receiver()
    stream.publish("a")
    assert seqs(receiver) == [1]
    receiver.cursor.pause_until(stream.rig.turn.wall_ns + 5 * SECOND)
    stream.publish("a")
    stream.rig.advance(4.9)
    assert seqs(receiver) == []
    stream.rig.advance(0.1)
    assert counts(receiver) == [(1, 2, 2), (2, 1, 3)]
    assert receiver.resumes == 1
    receiver.cursor.pause_until(stream.rig.turn.wall_ns + 5 * SECOND)
    stream.publish("a")
    assert seqs(receiver) == []
    receiver.cursor.pause_until(0)
    stream.rig.settle()
    assert seqs(receiver) == [3]


def test_a_reset_begins_again(stream: Stream) -> None:
    receiver = stream.receiver()
    stream.publish("a", "a", "a")
    receiver.ack(1)
    assert receiver.cursor.reset(0) == 2
    assert receiver.cursor.delivered == receiver.cursor.ack_floor == (0, 1)
    stream.rig.settle()
    assert counts(receiver) == [(1, 1, 1), (2, 1, 2), (3, 1, 3), (2, 1, 1), (3, 1, 2)]
    assert receiver.cursor.reset(9) == 9
    assert (receiver.cursor.num_pending, receiver.cursor.num_ack_pending) == (0, 0)


def test_a_place_after_the_end_is_kept(stream: Stream) -> None:
    stream.publish("a")
    receiver = stream.receiver(4)
    assert receiver.cursor.delivered == (0, 3)
    stream.publish("a", "a")
    assert (seqs(receiver), receiver.cursor.num_pending) == ([], 0)
    stream.publish("a", "a")
    assert seqs(receiver) == [4, 5]
    assert receiver.cursor.num_pending == 0


def test_overlapping_filters_deliver_each_message_once_and_in_order(stream: Stream) -> None:
    receiver = stream.receiver(filters=["a.*", "*.b"])
    stream.publish("a.b", "a.c", "c.b", "c.c", "a.b")
    assert [(d[0], d[3]) for d in receiver.got()] == [(1, 3), (2, 2), (3, 1), (5, 0)]
    assert receiver.cursor.num_pending == 0


def test_other_filters_are_counted_from_where_it_stands(stream: Stream) -> None:
    stream.publish("a", "b", "a", "b", "b")
    receiver = stream.receiver(filters=["a"], room=1)
    assert seqs(receiver) == [1]
    receiver.cursor.update(ack_wait_ns=SECOND, filters=["b"])
    assert receiver.cursor.num_pending == 3
    assert (receiver.cursor.num_ack_pending, receiver.cursor.ack_floor) == (1, (0, 0))
    receiver.room = 9
    receiver.take()
    assert seqs(receiver) == [2, 4, 5]


def test_only_waiting_cursors_whose_filter_matches_are_woken(stream: Stream) -> None:
    receivers = [
        stream.receiver(name=f"c{i}", filters=[f"s.{i % 3}"], room=i % 2) for i in range(12)
    ]
    stream.publish("s.1")
    assert [receiver.wakes for receiver in receivers] == [0, 1, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0]
    assert sum(len(receiver.got()) for receiver in receivers) == 2


def test_a_closed_cursor_is_not_woken(stream: Stream) -> None:
    receiver = stream.receiver()
    receiver.cursor.close(True)
    stream.publish("a")
    assert (seqs(receiver), stream.all.cursors) == ([], {})
    assert seqs(stream.receiver()) == [1]


# --- clients that hold messages ------------------------------------------------------------------


def held(stream: Stream, *holders: int, **more: Any) -> Receiver:
    """A receiver of one message for each of these clients."""
    receiver = stream.receiver(room=0, **more)
    stream.publish(*["a"] * len(holders))
    for holder in holders:
        receiver.holder, receiver.wait_ns, receiver.room = holder, 5 * SECOND, 1
        receiver.take()
    receiver.got()
    return receiver


def test_who_holds_a_message(stream: Stream) -> None:
    receiver = held(stream, 1, 2)
    assert receiver.in_flight_to(1, 1) == receiver.in_flight_to(2, 2) == "it"
    assert receiver.in_flight_to(1, 2) == "another"
    assert receiver.in_flight_to(3, 1) == "nobody"
    receiver.nak(1, SECOND)  # it is deferred
    assert receiver.in_flight_to(1, 1) == "nobody"
    receiver.holder = 0
    receiver.nak(2)
    assert receiver.in_flight_to(2, 2) == "nobody"
    receiver.room = 9
    receiver.take()
    assert receiver.in_flight_to(2, 2) == "another"  # of those that are served without a number
    assert receiver.released_ones == [1, 2]


def test_every_end_of_a_delivery_releases_its_holder_once(stream: Stream) -> None:
    receiver = held(stream, *range(1, 9), max_deliver=1)
    receiver.ack(1)
    receiver.term(2)
    kill(stream.store, 3)
    receiver.nak(4)  # exhausted
    receiver.nak(5, SECOND)
    receiver.nak(5)
    assert receiver.released_ones == [1, 2, 3, 4, 5]
    receiver.ack_all(6)
    assert receiver.released_ones == [1, 2, 3, 4, 5, 6]
    stream.rig.advance(5)
    assert receiver.released_ones == [1, 2, 3, 4, 5, 6, 7, 8]
    assert receiver.cursor.timeouts == 2


def test_each_delivery_waits_as_its_holder_says(stream: Stream) -> None:
    receiver = held(stream, 1, 2)
    stream.rig.advance(3)
    receiver.touch(1, 4 * SECOND, 60 * SECOND)
    receiver.touch(2, 4 * SECOND, 6 * SECOND)  # no longer than six seconds since its delivery
    receiver.room = 9
    receiver.take()
    stream.rig.advance(2)
    assert receiver.got() == []
    stream.rig.advance(1)
    assert counts(receiver) == [(2, 2, 3)]
    stream.rig.advance(1)
    assert counts(receiver) == [(1, 2, 4)]


def test_deadlines_do_not_depend_on_the_wall_clock(stream: Stream) -> None:
    receiver = held(stream, 1, 2)
    now_ns, wall_ns = stream.rig.loop.now_ns, stream.rig.turn.wall_ns
    stream.rig.turn.set_clock(now_ns, wall_ns + 3600 * SECOND)
    receiver.touch(1, 4 * SECOND, 60 * SECOND)
    stream.rig.turn.run_timers()
    assert receiver.cursor.timeouts == 0  # it has not had the message for an hour
    plain = stream.receiver(name="plain")
    assert seqs(plain)
    stream.rig.turn.set_clock(now_ns, wall_ns - 3600 * SECOND)
    plain.cursor.update(ack_wait_ns=2 * SECOND)
    stream.rig.advance(3)
    assert seqs(plain)


def test_a_pause_ends_soon_after_the_clock_is_set_forward(stream: Stream) -> None:
    receiver = stream.receiver()
    receiver.cursor.pause_until(stream.rig.turn.wall_ns + 3600 * SECOND)
    stream.publish("a")
    now_ns, wall_ns = stream.rig.loop.now_ns, stream.rig.turn.wall_ns
    stream.rig.loop.now_ns += 61 * SECOND
    stream.rig.turn.set_clock(now_ns + 61 * SECOND, wall_ns + 3600 * SECOND)
    stream.rig.turn.run_timers()
    stream.rig.settle()
    assert seqs(receiver) == [1]


def test_a_holder_that_goes_gives_back_at_once_or_in_time(stream: Stream) -> None:
    receiver = held(stream, 1, 2, 1, 3)
    receiver.holder_gone(1, True)
    receiver.holder_gone(2, False)
    receiver.holder, receiver.room = 3, 9
    receiver.take()
    assert counts(receiver) == [(1, 2, 5), (3, 2, 6)]
    assert receiver.in_flight_to(2, 2) == "another"
    assert receiver.released_ones == [1, 1]
    stream.rig.advance(5)
    assert [seq for seq, *_ in counts(receiver)] == [1, 2, 3, 4]
    assert receiver.cursor.num_ack_pending == 4


def test_new_settings_leave_the_time_of_a_holder(stream: Stream) -> None:
    receiver = held(stream, 1)
    receiver.cursor.update(ack_wait_ns=SECOND)
    receiver.room = 9
    receiver.take()
    stream.rig.advance(4)
    assert receiver.got() == []
    stream.rig.advance(1)
    assert counts(receiver) == [(1, 2, 2)]


def test_deferred_and_returned_messages_are_counted(stream: Stream) -> None:
    receiver = held(stream, 1, 1, 1)
    receiver.nak(1, 60 * SECOND)
    receiver.nak(2)
    cursor = receiver.cursor
    assert (cursor.deferred_count, cursor.again_count, cursor.num_ack_pending) == (1, 1, 3)


def test_all_that_nobody_holds_is_returned(stream: Stream) -> None:
    receiver = held(stream, 1, 1, 1, 1)
    receiver.nak(2, 60 * SECOND)
    receiver.ack(3)
    receiver.cursor.return_all()
    receiver.room = 9
    receiver.take()
    assert counts(receiver) == [(1, 2, 5), (4, 2, 6)]
