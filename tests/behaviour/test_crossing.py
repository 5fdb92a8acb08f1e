"""Logs and live subscribers: what is stored goes live, what is live is stored, neither twice."""

from __future__ import annotations

from pathlib import Path

from support.engine import (
    OPEN,
    SECOND,
    Rig,
    bodies_of,
)
from support.native.routing import Subscriber

from broker.engine.cursor.local import LocalConsumer
from broker.engine.log.publish import append
from broker.routing.local import publish as publish_live
from broker.runtime import vfs


def test_live_subscribers_hear_what_is_stored(tmp_path: Path) -> None:
    with Rig(tmp_path) as rig:
        subscribers = [Subscriber(rig.router) for _ in range(2)]
        subscribers[0].subscribe(b"1", b"orders.*")
        subscribers[1].subscribe(b"2", b"other")
        log = rig.log("orders.eu")
        consumer = LocalConsumer(log.open_cursor("c"), 10)
        rig.publish(log, [b"one", b"two"])
        assert [m[1:] for m in subscribers[0].received] == [
            (b"orders.eu", b"", b"one"),
            (b"orders.eu", b"", b"two"),
        ]
        assert subscribers[1].received == []
        assert bodies_of(consumer) == [b"one", b"two"]


def test_live_publishes_are_stored_once(tmp_path: Path) -> None:
    """And not sent round again: neither to the log nor to those who heard them already."""
    with Rig(tmp_path) as rig:
        subscriber = Subscriber(rig.router)
        subscriber.subscribe(b"1", b"orders.>")
        log = rig.log("orders.eu")
        consumer = LocalConsumer(log.open_cursor("c"), 10)
        for i in range(3):
            assert publish_live(rig.router, b"orders.eu", b"%d" % i, reply=b"back") == 2
        rig.settle()
        assert bodies_of(consumer) == [b"0", b"1", b"2"]
        assert [m[3] for m in subscriber.received] == [b"0", b"1", b"2"]
        rig.settle()
        assert (log.visible, log.message_count, len(subscriber.received)) == (4, 3, 3)


def test_what_came_live_and_what_did_not_in_one_write(tmp_path: Path) -> None:
    with Rig(tmp_path) as rig:
        subscriber = Subscriber(rig.router)
        subscriber.subscribe(b"1", b"t")
        log = rig.log("t")
        consumer = LocalConsumer(log.open_cursor("c"), 10)
        append(log, b"stored")
        publish_live(rig.router, b"t", b"live")
        append(log, b"stored too")
        rig.settle()
        assert bodies_of(consumer) == [b"stored", b"live", b"stored too"]
        assert [m[3] for m in subscriber.received] == [b"live", b"stored", b"stored too"]


def test_each_crossing_can_be_switched_off(tmp_path: Path) -> None:
    with Rig(tmp_path, to_live=False, from_live=False) as rig:
        subscriber = Subscriber(rig.router)
        subscriber.subscribe(b"1", b"t")
        log = rig.log("t")
        assert rig.publish(log, [b"one"]) == [1]
        assert subscriber.received == []
        assert publish_live(rig.router, b"t", b"two") == 1
        rig.settle()
        assert log.visible == 2


def test_a_log_hears_nothing_of_others_and_nothing_once_deleted(tmp_path: Path) -> None:
    with Rig(tmp_path) as rig:
        one, two = rig.log("one"), rig.log("two")
        publish_live(rig.router, b"one", b"x")
        rig.settle()
        assert (one.visible, two.visible) == (2, 1)
        rig.engine.delete_log("one")
        assert publish_live(rig.router, b"one", b"y") == 0
        assert rig.router.size == 1
        rig.close()
        assert rig.router.size == 0


def test_a_record_of_another_subject_goes_live_under_it(tmp_path: Path) -> None:
    with Rig(tmp_path) as rig:
        subscriber = Subscriber(rig.router)
        subscriber.subscribe(b"1", b"else.where")
        log = rig.log("t")
        append(log, b"one")
        append(log, b"two", subject=b"else.where")
        rig.settle()
        assert [m[1:] for m in subscriber.received] == [(b"else.where", b"", b"two")]


def test_live_publishes_that_cannot_be_stored_are_counted(tmp_path: Path) -> None:
    with Rig(tmp_path) as rig:
        log = rig.log("t")
        vfs.fail(OPEN, 28)
        assert publish_live(rig.router, b"t", b"x") == 0
        assert log.dropped_live == 1


def test_delayed_records_are_live_at_once(tmp_path: Path) -> None:
    with Rig(tmp_path) as rig:
        subscriber = Subscriber(rig.router)
        subscriber.subscribe(b"1", b"t")
        log = rig.log("t")
        consumer = LocalConsumer(log.open_cursor("c"), 10)
        rig.publish(log, [b"later"], not_before_ns=rig.turn.wall_ns + 5 * SECOND)
        assert len(subscriber.received) == 1
        assert bodies_of(consumer) == []
        rig.advance(5)
        assert bodies_of(consumer) == [b"later"]
