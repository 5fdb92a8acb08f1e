"""Cursors that give what is unacknowledged first, and groups whose idlest member takes."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from support.engine import Rig, bodies_of, numbered

from broker.engine.cursor.local import LocalConsumer


@pytest.fixture
def rig() -> Any:
    with Rig(None) as made:
        yield made


def member(cursor: Any, credit: int = 100, *, ack_wait: float = 10, least: bool = False) -> Any:
    consumer = LocalConsumer(cursor, 0, ack_wait, 1e9)
    consumer.redeliver_first(least)
    consumer.set_credit(credit)
    return consumer


def seqs(consumer: Any) -> list[int]:
    """What arrived since the last call."""
    records, consumer.records = consumer.records, []
    return [record[0] for record in records]


def attempts(consumer: Any) -> list[tuple[int, int]]:
    records, consumer.records = consumer.records, []
    return [(record[0], record[1]) for record in records]


# --- settle


def test_whoever_holds_it_settles(rig: Rig) -> None:
    log = rig.log()
    cursor = log.open_cursor("c")
    one, other = member(cursor, 1), member(cursor, 1)
    rig.publish(log, numbered(3))
    held = {seq: consumer for consumer in (one, other) for seq in seqs(consumer)}
    assert sorted(held) == [1, 2]
    assert other.settle(1)
    assert one.settle(2)
    assert not one.settle(1)
    assert not one.settle(3), "it was not given to anybody yet"
    rig.settle()
    assert cursor.acks.floor == 3
    assert one.in_flight + other.in_flight == 1


def test_what_waits_to_be_given_again_can_be_settled(rig: Rig) -> None:
    log = rig.log()
    cursor = log.open_cursor("c")
    consumer = member(cursor)
    rig.publish(log, numbered(4))
    consumer.leave()
    assert cursor.inflight.again == 4
    late = member(cursor, 0)
    for seq in (2, 4, 1):
        assert late.settle(seq)
    late.set_credit(9)
    rig.settle()
    assert attempts(late) == [(3, 2)]
    assert late.finish(3) == 0
    assert (cursor.acks.floor, cursor.inflight.size, cursor.depth) == (5, 0, 0)


def test_what_is_deferred_can_be_settled(rig: Rig) -> None:
    log = rig.log()
    cursor = log.open_cursor("c")
    consumer = member(cursor)
    rig.publish(log, [b"1"])
    assert consumer.requeue(1, 5) == 0
    assert cursor.deferred_count == 1
    assert consumer.settle(1)
    rig.advance(10)
    assert seqs(consumer) == [1]
    assert (cursor.deferred_count, cursor.acks.floor) == (0, 2)


def test_a_settled_record_stays_so_after_a_kill(tmp_path: Path) -> None:
    with Rig(tmp_path / "0") as rig:
        log = rig.log()
        consumer = member(log.open_cursor("c"))
        rig.publish(log, numbered(5))
        assert seqs(consumer) == [1, 2, 3, 4, 5]
        assert consumer.settle(2)
        assert consumer.settle(5)
        rig.settle()
        rig.crash(tmp_path / "1")
    with Rig(tmp_path / "1") as rig:
        consumer = member(rig.engine.log("t").cursors["c"])
        rig.settle()
        assert attempts(consumer) == [(1, 2), (3, 2), (4, 2)]


# --- what is unacknowledged comes first


def test_before_all_that_is_fresh_and_in_order(rig: Rig) -> None:
    log = rig.log()
    cursor = log.open_cursor("c")
    consumer = member(cursor, 3)
    rig.publish(log, numbered(6))
    assert seqs(consumer) == [1, 2, 3]
    consumer.leave()
    again = member(cursor, 5)
    rig.settle()
    assert attempts(again) == [(1, 2), (2, 2), (3, 2), (4, 1), (5, 1)]


def test_again_whatever_the_credit(rig: Rig) -> None:
    """Redelivery does not count; what is new waits until there is room."""
    log = rig.log()
    cursor = log.open_cursor("c")
    consumer = member(cursor, 4)
    rig.publish(log, numbered(6))
    assert seqs(consumer) == [1, 2, 3, 4]
    consumer.leave()
    small = member(cursor, 1)
    rig.settle()
    assert attempts(small) == [(1, 2), (2, 2), (3, 2), (4, 2)]
    assert small.in_flight == 4
    for seq in (1, 2, 3):
        small.settle(seq)
    rig.settle()
    assert seqs(small) == []
    small.settle(4)
    rig.settle()
    assert seqs(small) == [5]


def test_after_the_wait_again_and_again(rig: Rig) -> None:
    log = rig.log()
    consumer = member(log.open_cursor("c"), 2, ack_wait=10)
    rig.publish(log, numbered(3))
    assert seqs(consumer) == [1, 2]
    for turn in range(2, 5):
        rig.advance(10.1)
        assert attempts(consumer) == [(1, turn), (2, turn)]


def test_alone_and_failing_it_waits(rig: Rig) -> None:
    log = rig.log()
    consumer = member(log.open_cursor("c"), ack_wait=10)
    rig.publish(log, numbered(2))
    assert seqs(consumer) == [1, 2]
    consumer.set_failing(True)
    rig.advance(25)
    assert seqs(consumer) == []
    rig.publish(log, numbered(1))
    assert seqs(consumer) == [3], "what is new is given all the same"
    consumer.set_failing(False)
    rig.settle()
    assert attempts(consumer) == [(1, 2), (2, 2)]


def test_full_it_waits_too(rig: Rig) -> None:
    log = rig.log()
    cursor = log.open_cursor("c")
    consumer = member(cursor, ack_wait=10)
    rig.publish(log, numbered(2))
    assert seqs(consumer) == [1, 2]
    consumer.full = True
    rig.advance(10.5)
    assert seqs(consumer) == []
    consumer.drained()
    rig.settle()
    assert attempts(consumer) == [(1, 2), (2, 2)]


# --- groups


def test_the_idlest_takes(rig: Rig) -> None:
    log = rig.log()
    cursor = log.open_cursor("g")
    busy, idle = (member(cursor, least=True) for _ in range(2))
    busy.set_credit(2)
    idle.set_credit(0)
    rig.publish(log, numbered(2))
    assert seqs(busy) == [1, 2]
    busy.set_credit(100)
    idle.set_credit(100)
    rig.publish(log, numbered(2))
    assert (seqs(busy), seqs(idle)) == ([], [3, 4])
    idle.settle(3)
    rig.publish(log, numbered(2))
    assert sorted(seqs(idle)) in ([5], [5, 6])


def test_the_group_is_full_when_all_are(rig: Rig) -> None:
    log = rig.log()
    cursor = log.open_cursor("g")
    members = [member(cursor, 2, least=True) for _ in range(3)]
    rig.publish(log, numbered(10))
    assert [consumer.in_flight for consumer in members] == [2, 2, 2]
    found = [seqs(consumer) for consumer in members]
    assert sorted(chain(*found)) == [1, 2, 3, 4, 5, 6]
    members[1].settle(found[1][0])
    rig.settle()
    assert [seqs(consumer) for consumer in members] == [[], [7], []]


def test_who_is_failing_gets_nothing_while_others_can(rig: Rig) -> None:
    log = rig.log()
    cursor = log.open_cursor("g")
    well, failing = (member(cursor, least=True) for _ in range(2))
    failing.set_failing(True)
    rig.publish(log, numbered(6))
    assert (seqs(well), seqs(failing)) == ([1, 2, 3, 4, 5, 6], [])
    well.set_failing(True)
    rig.publish(log, numbered(4))
    assert seqs(well) == []
    assert seqs(failing) == [7, 8, 9, 10]


def test_what_one_leaves_behind_is_shared(rig: Rig) -> None:
    log = rig.log()
    cursor = log.open_cursor("g")
    leaver = member(cursor, 6, least=True)
    rig.publish(log, numbered(6))
    assert len(bodies_of(leaver)) == 6
    others = [member(cursor, 100, least=True) for _ in range(2)]
    leaver.leave()
    rig.settle()
    found = [attempts(consumer) for consumer in others]
    assert [len(each) for each in found] == [3, 3]
    assert sorted(chain(*found)) == [(seq, 2) for seq in range(1, 7)]


def test_what_expired_goes_to_the_idlest(rig: Rig) -> None:
    log = rig.log()
    cursor = log.open_cursor("g")
    slow = member(cursor, 2, ack_wait=5, least=True)
    rig.publish(log, numbered(2))
    assert seqs(slow) == [1, 2]
    quick = member(cursor, 100, ack_wait=50, least=True)
    rig.advance(5.1)
    assert sorted(attempts(slow) + attempts(quick)) == [(1, 2), (2, 2)]
    assert (slow.in_flight, quick.in_flight) == (1, 1)
    assert quick.settle(1)
    assert quick.settle(2), "an ack counts, whoever sends it"
    assert cursor.acks.floor == 3


def test_what_one_never_acks_reaches_the_other(rig: Rig) -> None:
    """It timed out, so it is not in flight any more; who had it does not count as idle."""
    log = rig.log()
    cursor = log.open_cursor("g")
    for order in ((5.0, 50.0), (50.0, 5.0)):
        members = [member(cursor, ack_wait=wait, least=True) for wait in order]
        deaf, well = sorted(members, key=lambda one: order[members.index(one)])
        well.set_credit(0)
        rig.publish(log, numbered(1))
        [seq] = seqs(deaf)
        well.set_credit(100)
        rig.advance(5.1)
        assert (attempts(deaf), attempts(well)) == ([], [(seq, 2)])
        assert well.settle(seq)
        for consumer in members:
            consumer.leave()


def test_what_many_never_ack_reaches_the_last_one(rig: Rig) -> None:
    """Members that are equal get it in turn."""
    log = rig.log()
    cursor = log.open_cursor("g")
    members = [member(cursor, ack_wait=5, least=True) for _ in range(3)]
    for well in members:
        well.set_credit(0)
        rig.publish(log, numbered(1))
        well.set_credit(100)
        seq = cursor.acks.floor
        for _ in members:
            if well.in_flight == 0:
                rig.advance(5.1)
        assert well.in_flight == 1
        assert well.settle(seq)


# --- the end


def test_a_consumer_freed_after_the_end_leaves_no_work(rig: Rig) -> None:
    consumer = member(rig.log().open_cursor("c"))
    rig.close()
    rig.loop.run()
    del consumer
    assert not rig.loop._soon, "of an engine that may be freed at the same time"
