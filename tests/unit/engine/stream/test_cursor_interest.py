"""Messages go when the cursors they are for have settled them: interest and work queues."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.engine import SECOND, Rig
from support.native.stores import publish, skip
from support.native.streams import Receiver, interested

from broker.engine.stream.cursor import StreamCursor, StreamCursors
from broker.engine.stream.store import StreamLimits, open_store
from tests.unit.engine.stream.test_cursor import Stream, seqs


@pytest.fixture
def rig() -> Iterator[Rig]:
    with Rig(None, clock=(SECOND, SECOND)) as rig:
        yield rig


def test_with_interest_a_message_goes_after_the_last_ack(rig: Rig) -> None:
    stream = Stream(rig, "interest")
    one, two = stream.receiver(name="one"), stream.receiver(name="two", filters=["a"])
    stream.publish("a", "b", "a")
    one.ack(1)
    one.ack(2)
    assert stream.seqs == [1, 3]
    two.ack(3)
    two.ack(1)
    assert stream.seqs == [3]
    one.term(3)
    assert stream.seqs == []
    assert (one.cursor.num_pending, two.cursor.num_pending) == (0, 0)


def test_a_cursor_without_acks_is_done_when_it_has_delivered(rig: Rig) -> None:
    stream = Stream(rig, "interest")
    receiver = stream.receiver(ack_policy="none", room=1)
    stream.publish("a", "a")
    assert seqs(receiver) == [1]
    assert stream.seqs == [2]


def test_nobody_is_interested_without_a_cursor_for_the_subject(rig: Rig) -> None:
    stream = Stream(rig, "interest")
    assert not interested(stream.all, b"a")
    receiver = stream.receiver(filters=["a.*"])
    assert interested(stream.all, b"a.b")
    assert not interested(stream.all, b"b")
    receiver.cursor.close(True)
    assert not interested(stream.all, b"a.b")
    assert skip(stream.store) == 1
    assert interested(Stream(rig, "workqueue").all, b"a")


def test_a_deleted_cursor_lets_go_what_it_alone_kept(rig: Rig) -> None:
    stream = Stream(rig, "interest")
    one, two = stream.receiver(name="one"), stream.receiver(name="two", filters=["a"])
    stream.publish("a", "b", "a")
    two.ack(1)
    one.cursor.close(True)
    rig.settle()
    assert stream.seqs == [3]
    two.cursor.close(True)
    rig.settle()
    assert stream.seqs == []


def test_other_filters_let_go_and_settle_what_no_longer_matches(rig: Rig) -> None:
    stream = Stream(rig, "interest")
    receiver = stream.receiver(filters=["a", "b"], room=2)
    stream.publish("a", "b", "a", "b")
    receiver.cursor.update(ack_wait_ns=SECOND, filters=["b"])
    rig.settle()
    assert stream.seqs == [2, 4]
    assert (receiver.cursor.num_ack_pending, receiver.cursor.num_pending) == (1, 1)
    assert receiver.cursor.ack_floor == (1, 1)


def test_a_change_to_interest_lets_go_what_is_settled_and_keeps_what_no_filter_matches(
    rig: Rig,
) -> None:
    stream = Stream(rig)
    receiver = stream.receiver(filters=["a"], room=2)
    stream.publish("a", "b", "a", "a")
    receiver.ack(1)
    assert stream.seqs == [1, 2, 3, 4]
    stream.all.set_retention("interest")
    rig.settle()
    assert stream.seqs == [2, 3, 4]
    assert not stream.all.sweeping


def test_a_change_to_interest_lets_all_go_at_once_without_consumers(rig: Rig) -> None:
    stream = Stream(rig)
    stream.publish("a", "b")
    stream.all.set_retention("interest")
    assert stream.seqs == []


def test_a_work_queue_keeps_what_was_not_acked(rig: Rig) -> None:
    stream = Stream(rig, "workqueue")
    stream.publish("a", "a", "b")
    receiver = stream.receiver(filters=["a"], max_deliver=1)
    assert seqs(receiver) == [1, 2]
    receiver.ack(1)
    rig.advance(1)
    assert receiver.exhausted_ones == [(2, 1)]
    assert stream.seqs == [2, 3]
    receiver.ack(2)
    assert stream.seqs == [3]
    receiver.cursor.close(True)
    rig.settle()
    assert stream.seqs == [3]


def test_exhausted_messages_stay_with_interest_until_a_late_ack(rig: Rig) -> None:
    stream = Stream(rig, "interest")
    receiver = stream.receiver(max_deliver=1)
    stream.publish("a", "a")
    rig.advance(1)
    receiver.ack(2)
    stream.all.sweep()
    rig.settle()
    assert stream.seqs == [1]
    receiver.ack(1)
    assert stream.seqs == []


def test_nothing_goes_while_a_consumer_cannot_be_opened(rig: Rig) -> None:
    stream = Stream(rig, "interest")
    receiver = stream.receiver()
    stream.all.suspend_retention()
    assert interested(stream.all, b"x")
    stream.publish("a")
    receiver.ack(1)
    stream.all.sweep()
    rig.settle()
    assert stream.seqs == [1]


@pytest.mark.parametrize("retention", ["interest", "workqueue"])
def test_after_a_start_what_was_settled_before_goes(tmp_path: Path, retention: str) -> None:
    """As after a crash between the entry of an ack in the journal and the delete."""
    for turn in range(2):
        with Rig(tmp_path / "logs") as rig:
            store = open_store(rig.engine, "js A/s", StreamLimits(), sync="none")
            # the first time messages stay, as if the process had ended before they went
            cursors = StreamCursors(store, retention if turn else "limits")
            journal = str(tmp_path / "c.cursor")
            receiver = Receiver(StreamCursor(cursors, "c", 1, journal=journal, filters=["a"]))
            if turn == 0:
                for subject in (b"a", b"a", b"b", b"a"):
                    publish(store, subject)
                rig.settle()
                receiver.ack(1)
                receiver.ack(4)
                rig.settle()
                rig.close()
                continue
            cursors.sweep()
            rig.settle()
            left = [seq for seq in range(1, 5) if store.message(seq)]
            assert left == [2, 3]  # nothing goes because it is for nobody


def test_what_a_filter_never_delivered_stays_in_a_work_queue(tmp_path: Path) -> None:
    for turn in range(2):
        with Rig(tmp_path / "logs") as rig:
            store = open_store(rig.engine, "js A/s", StreamLimits(), sync="none")
            cursors = StreamCursors(store, "workqueue")
            journal = str(tmp_path / "c.cursor")
            filters = ["b"] if turn else ["a"]
            receiver = Receiver(StreamCursor(cursors, "c", 1, journal=journal, filters=filters))
            if turn == 0:
                for subject in (b"b", b"a"):
                    publish(store, subject)
                rig.settle()
                receiver.ack(2)
                receiver.cursor.update(ack_wait_ns=SECOND, filters=["b"])
                rig.settle()
                rig.close()
                continue
            cursors.sweep()
            rig.settle()
            assert [seq for seq in (1, 2) if store.message(seq)] == [1]
