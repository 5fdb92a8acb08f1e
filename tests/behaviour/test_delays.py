"""Messages that are to wait take memory once for each log, not once for each of its cursors."""

from __future__ import annotations

from pathlib import Path

from support.engine import SECOND, Rig, bodies_of, finish_all, numbered, segment_files
from support.native.logs import DelayTable

from broker.engine.cursor.local import LocalConsumer
from broker.engine.log.delays import Delays

CURSORS = 100
COUNT = 1000
LATER = 3600 * SECOND


def test_cursors_that_nobody_reads_hold_nothing(memory_path: Path) -> None:
    with Rig(memory_path / "0") as rig:
        log = rig.log()
        cursors = [log.open_cursor(f"c{i}") for i in range(CURSORS)]
        rig.settle()
        journals = sorted((memory_path / "0" / "t" / "cursors").iterdir())
        before = [path.stat().st_size for path in journals]
        due = rig.turn.wall_ns + LATER
        rig.publish(log, numbered(COUNT), not_before_ns=due)
        assert [cursor.inflight.size for cursor in cursors] == [0] * CURSORS
        assert [path.stat().st_size for path in journals] == before
        assert len(DelayTable(log.delays)) == COUNT
        assert {cursor.deferred_count for cursor in cursors} == {COUNT}
        assert {cursor.depth for cursor in cursors} == {0}
        # who reads gets an entry for each, and gives them when their time has come
        consumer = LocalConsumer(cursors[0], 1 << 30)
        rig.settle()
        assert cursors[0].inflight.size == cursors[0].deferred_count == COUNT
        assert cursors[0].depth == 0
        assert not consumer.records
        rig.advance(3601)
        assert sorted(finish_all(consumer)) == sorted(numbered(COUNT))
        assert [(c.deferred_count, c.depth) for c in cursors] == [(0, 0)] + [(0, COUNT)] * (
            CURSORS - 1
        )
        late = LocalConsumer(cursors[1], 1 << 30)
        rig.settle()
        assert bodies_of(late) == numbered(COUNT)


def test_what_waits_is_counted_and_kept_after_a_kill(memory_path: Path) -> None:
    with Rig(memory_path / "0") as rig:
        log = rig.log()
        log.open_cursor("unread")
        consumer = LocalConsumer(log.open_cursor("read"), 10)
        rig.publish(log, [b"later"], not_before_ns=rig.turn.wall_ns + 100 * SECOND)
        rig.publish(log, [b"now"])
        assert bodies_of(consumer) == [b"now"]
        clock = (rig.loop.now_ns + SECOND, 0)
        rig.crash(memory_path / "1")
    with Rig(memory_path / "1", clock=clock) as rig:
        log = rig.engine.log("t")
        assert log.cursors["unread"].deferred_count == log.cursors["read"].deferred_count == 1
        assert log.cursors["unread"].depth == 1
        consumers = [LocalConsumer(log.cursors[name], 10) for name in ("read", "unread")]
        rig.settle()
        assert [finish_all(consumer) for consumer in consumers] == [[b"now"]] * 2
        rig.advance(98)
        assert [finish_all(consumer) for consumer in consumers] == [[]] * 2
        rig.advance(2)
        assert [finish_all(consumer) for consumer in consumers] == [[b"later"]] * 2
        assert len(segment_files(memory_path / "1")) == 1


def test_no_message_waits_longer_than_any_delay(memory_path: Path) -> None:
    """Whatever the wall clock shows: it may have been set back, or be set later."""
    with Rig(memory_path / "0") as rig:
        log = rig.log()
        log.open_cursor("unread")
        consumer = LocalConsumer(log.open_cursor("read"), 10)
        wall_ns = rig.turn.wall_ns
        rig.turn.set_clock(rig.loop.now_ns, wall_ns + 400 * 24 * LATER)
        rig.publish(log, [b"now"])
        rig.publish(log, [b"later"], not_before_ns=rig.turn.wall_ns + 10 * SECOND)
        (record,) = consumer.records
        assert consumer.requeue(record[0], 10) == 0
        rig.settle()
        rig.crash(memory_path / "1")
    with Rig(memory_path / "1", delay_max_ns=50 * SECOND) as rig:
        log = rig.engine.log("t")
        consumers = [LocalConsumer(log.cursors[name], 10) for name in ("read", "unread")]
        rig.settle()
        assert [bodies_of(each) for each in consumers] == [[], [b"now"]]
        rig.advance(51)
        assert [sorted(bodies_of(each)) for each in consumers] == [[b"later", b"now"], [b"later"]]


def test_a_record_with_a_longer_delay_of_its_own_keeps_it(memory_path: Path) -> None:
    """As the bulk API stores it, or before `max_defer` was lowered; also after a restart."""
    with Rig(memory_path / "0", delay_max_ns=50 * SECOND) as rig:
        log = rig.log()
        consumer = LocalConsumer(log.open_cursor("read"), 10)
        rig.publish(log, [b"later"], not_before_ns=rig.turn.wall_ns + 120 * SECOND)
        rig.advance(51)
        assert consumer.records == []
        assert (log.cursors["read"].deferred_count, log.cursors["read"].depth) == (1, 0)
        clock = (rig.loop.now_ns, 0)
        rig.crash(memory_path / "1")
    with Rig(memory_path / "1", clock=clock, delay_max_ns=50 * SECOND) as rig:
        consumer = LocalConsumer(rig.engine.log("t").cursors["read"], 10)
        rig.advance(51)
        assert consumer.records == []
        rig.advance(20)
        assert bodies_of(consumer) == [b"later"]


def test_all_cursors_share_what_may_be_held_back() -> None:
    """At the limit a cursor waits for its records' time, and then goes on."""
    with Rig(None, deferred_max=4096, memory_bytes_max=1 << 22) as rig:
        log = rig.log()
        cursors = [log.open_cursor(name) for name in ("a", "b", "c")]
        consumers = [LocalConsumer(cursor, 1 << 30) for cursor in cursors]
        rig.publish(log, [b"x"] * 3000, not_before_ns=rig.turn.wall_ns + 10 * SECOND)
        held = sorted(cursor.inflight.size for cursor in cursors)
        assert held[2] == 3000
        assert sum(held) <= 4096 + 1024
        assert {cursor.deferred_count for cursor in cursors} == {3000}
        rig.publish(log, [b"y"])
        assert sorted(len(consumer.records) for consumer in consumers) == [0, 0, 1]
        rig.advance(12)
        assert [sum(1 for _ in consumer.records) for consumer in consumers] == [3001] * 3
        for consumer in consumers:
            finish_all(consumer)
        rig.settle()
        assert rig.engine.shared.deferred == 0
        for consumer in consumers:
            consumer.leave()
        rig.engine.delete_log("t")
        assert rig.engine.shared.deferred == 0


def test_what_a_cursor_held_back_is_free_for_others_when_it_goes() -> None:
    with Rig(None, deferred_max=4096, memory_bytes_max=1 << 22) as rig:
        log = rig.log()
        consumers = {
            name: LocalConsumer(log.open_cursor(name), 1 << 30) for name in ("a", "b", "c")
        }
        rig.publish(log, [b"x"] * 3000, not_before_ns=rig.turn.wall_ns + LATER)
        rig.publish(log, [b"y"])
        while consumers:
            through = [name for name, consumer in consumers.items() if consumer.records]
            assert through, "nobody comes back for the message behind"
            for name in through:
                assert finish_all(consumers.pop(name)) == [b"y"]
                log.delete_cursor(name)
            rig.advance(2)
        assert rig.engine.shared.deferred == 0


def test_what_a_log_remembers_of_times_is_bounded(memory_path: Path) -> None:
    """However many messages a client defers: the others count as waiting until a cursor comes to
    them, and none is given before its time."""
    with Rig(memory_path / "0", deferred_max=100) as rig:
        log = rig.log()
        cursor = log.open_cursor("c")
        due = rig.turn.wall_ns + 10 * SECOND
        for start in range(0, COUNT, 50):
            assert rig.publish(log, numbered(50, start), not_before_ns=due) == [1] * 50
        assert len(log.delays) == 100
        assert (cursor.deferred_count, cursor.depth) == (100, COUNT - 100)
        consumer = LocalConsumer(cursor, 1 << 30)
        rig.settle()
        assert not consumer.records
        rig.advance(11)
        assert sorted(finish_all(consumer)) == sorted(numbered(COUNT))
        assert (cursor.deferred_count, cursor.depth) == (0, 0)
        assert rig.publish(log, [b"x"], not_before_ns=rig.turn.wall_ns + SECOND) == [1]
        assert len(log.delays) == 1


def test_counting() -> None:
    delays = DelayTable(Delays(100))
    for seq in range(1, 201):
        delays.add(seq, 1000 + seq, 0)
    assert len(delays) == 100
    assert delays.count(1, 201, 0) == 100
    assert delays.count(51, 61, 0) == 10
    assert delays.count(61, 51, 0) == 0
    assert delays.count(1, 201, 1050) == 50
    assert delays.count(1, 201, 5000) == 0
    delays.add(201, 9000, 5000)
    assert delays.count(1, 202, 5000) == len(delays) == 1


def test_records_that_were_dealt_with_do_not_count(memory_path: Path) -> None:
    """The backlog of a paused log is emptied, and with it what is to wait."""
    with Rig(memory_path / "0") as rig:
        log = rig.log()
        cursor = log.open_cursor("c")
        rig.publish(log, [b"x"] * 3, not_before_ns=rig.turn.wall_ns + LATER)
        log.pause()
        rig.publish(log, [b"x"] * 5, not_before_ns=rig.turn.wall_ns + LATER)
        log.empty()
        assert (cursor.deferred_count, cursor.depth) == (3, 0)
        cursor.empty()
        assert (cursor.deferred_count, cursor.depth) == (0, 0)


def test_a_full_table_takes_more_when_times_have_come() -> None:
    delays = DelayTable(Delays(100))
    for seq in range(1, 151):
        delays.add(seq, 1000 + seq, 0)
    assert len(delays) == 100
    for seq in range(151, 451):
        delays.add(seq, 10_000, 5000)
    assert delays.count(1, 151, 5000) == 0
    assert delays.count(151, 451, 5000) == 100
