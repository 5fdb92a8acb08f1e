"""What an engine promises, case by case: the property tests look for what nobody thought of."""

from __future__ import annotations

import gc
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from harness.engine import (
    OPEN,
    SECOND,
    Rig,
    bodies_of,
    finish_all,
    numbered,
    segment_files,
)

from broker.core import vfs
from broker.core.ear import Ear
from broker.core.ear import publish as publish_live
from broker.core.publish import append, outcome
from broker.core.taker import Taker


def descriptors() -> int:
    """Open files of this process, once deleted folders are gone."""
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and "rmtree" in thread.name:
            thread.join(10)
    gc.collect()
    return len(list(Path("/proc/self/fd").iterdir()))


# --- the crossing


def test_live_subscribers_hear_what_is_stored(tmp_path: Path) -> None:
    with Rig(tmp_path) as rig:
        ears = [Ear(rig.router) for _ in range(2)]
        ears[0].subscribe(b"1", b"orders.*")
        ears[1].subscribe(b"2", b"other")
        log = rig.log("orders.eu")
        taker = Taker(log.open_cursor("c"), 10)
        rig.publish(log, [b"one", b"two"])
        assert [m[1:] for m in ears[0].heard] == [
            (b"orders.eu", b"", b"one"),
            (b"orders.eu", b"", b"two"),
        ]
        assert ears[1].heard == []
        assert bodies_of(taker) == [b"one", b"two"]


def test_live_publishes_are_stored_once(tmp_path: Path) -> None:
    """And not sent round again: neither to the log nor to those who heard them already."""
    with Rig(tmp_path) as rig:
        ear = Ear(rig.router)
        ear.subscribe(b"1", b"orders.>")
        log = rig.log("orders.eu")
        taker = Taker(log.open_cursor("c"), 10)
        for i in range(3):
            assert publish_live(rig.router, b"orders.eu", b"%d" % i, reply=b"back") == 2
        rig.settle()
        assert bodies_of(taker) == [b"0", b"1", b"2"]
        assert [m[3] for m in ear.heard] == [b"0", b"1", b"2"]
        rig.settle()
        assert (log.visible, log.message_count, len(ear.heard)) == (4, 3, 3)


def test_what_came_live_and_what_did_not_in_one_write(tmp_path: Path) -> None:
    with Rig(tmp_path) as rig:
        ear = Ear(rig.router)
        ear.subscribe(b"1", b"t")
        log = rig.log("t")
        taker = Taker(log.open_cursor("c"), 10)
        append(log, b"stored")
        publish_live(rig.router, b"t", b"live")
        append(log, b"stored too")
        rig.settle()
        assert bodies_of(taker) == [b"stored", b"live", b"stored too"]
        assert [m[3] for m in ear.heard] == [b"live", b"stored", b"stored too"]


def test_each_crossing_can_be_switched_off(tmp_path: Path) -> None:
    with Rig(tmp_path, to_live=False, from_live=False) as rig:
        ear = Ear(rig.router)
        ear.subscribe(b"1", b"t")
        log = rig.log("t")
        assert rig.publish(log, [b"one"]) == [1]
        assert ear.heard == []
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
        ear = Ear(rig.router)
        ear.subscribe(b"1", b"else.where")
        log = rig.log("t")
        append(log, b"one")
        append(log, b"two", subject=b"else.where")
        rig.settle()
        assert [m[1:] for m in ear.heard] == [(b"else.where", b"", b"two")]


def test_live_publishes_that_cannot_be_stored_are_counted(tmp_path: Path) -> None:
    with Rig(tmp_path) as rig:
        log = rig.log("t")
        vfs.fail(OPEN, 28)
        assert publish_live(rig.router, b"t", b"x") == 0
        assert log.dropped_live == 1


def test_delayed_records_are_live_at_once(tmp_path: Path) -> None:
    with Rig(tmp_path) as rig:
        ear = Ear(rig.router)
        ear.subscribe(b"1", b"t")
        log = rig.log("t")
        taker = Taker(log.open_cursor("c"), 10)
        rig.publish(log, [b"later"], not_before_ns=rig.turn.wall_ns + 5 * SECOND)
        assert len(ear.heard) == 1
        assert bodies_of(taker) == []
        rig.advance(5)
        assert bodies_of(taker) == [b"later"]


# --- group commit


@pytest.mark.parametrize("inline", [0, 1 << 17])
def test_publishers_of_a_turn_share_a_sync(tmp_path: Path, inline: int) -> None:
    with Rig(tmp_path, sync="always", inline_bytes=inline) as rig:
        log = rig.log()
        rig.publish(log, [b"first"])  # the file and the folders are new to the disk
        before = rig.engine.shared.syncs
        tickets = [append(log, body) for body in numbered(50)]
        assert {outcome(log, ticket) for ticket in tickets} == {0}
        rig.settle()
        assert {outcome(log, ticket) for ticket in tickets} == {1}
        assert rig.engine.shared.syncs == before + 1


def test_nothing_is_answered_before_it_is_synced(tmp_path: Path) -> None:
    with Rig(tmp_path, sync="always") as rig:
        log = rig.log()
        rig.publish(log, [b"first"])
        shared = rig.engine.shared
        before = shared.syncs
        ticket = append(log, b"x")
        seen = []
        rig.loop.run()
        while not outcome(log, ticket):
            seen.append(shared.syncs)
            rig.loop.serve(5_000)
            rig.loop.run()
        assert set(seen) == {before}
        assert shared.syncs == before + 1


def test_what_was_written_during_a_sync_waits_for_the_next(tmp_path: Path) -> None:
    with Rig(tmp_path, sync="always", inline_bytes=1 << 17) as rig:
        log = rig.log()
        rig.publish(log, [b"first"])
        before = rig.engine.shared.syncs
        early = append(log, b"early")
        rig.loop.run()
        late = append(log, b"late")
        rig.loop.run()
        assert log.visible == log.next_seq == 4
        while outcome(log, early) == 0:
            assert outcome(log, late) == 0
            rig.loop.serve(5_000)
        assert rig.engine.shared.syncs == before + 1
        assert outcome(log, late) == 0
        rig.settle()
        assert outcome(log, late) == 1
        assert rig.engine.shared.syncs == before + 2


def test_a_period_syncs_once_per_period(memory_path: Path) -> None:
    with Rig(memory_path, sync=2.5) as rig:
        log = rig.log()
        syncs = []
        for _ in range(10):
            assert rig.publish(log, [b"x"]) == [1]
            rig.advance(0.5)
            syncs.append(rig.engine.shared.syncs)
        assert syncs == [0, 0, 0, 0, 1, 1, 1, 1, 1, 2]
        rig.advance(60)
        assert rig.engine.shared.syncs == 2


def test_no_policy_no_sync(tmp_path: Path) -> None:
    with Rig(tmp_path, sync="none") as rig:
        rig.publish(rig.log(), [b"x"])
        rig.advance(10)
        rig.close()
        assert rig.engine.shared.syncs == 0


# --- what operators do


def test_what_was_emptied_while_paused_does_not_come(tmp_path: Path) -> None:
    with Rig(tmp_path) as rig:
        log = rig.log()
        cursor = log.open_cursor("c")
        taker = Taker(cursor, 100)
        rig.publish(log, [b"before"])
        assert finish_all(taker) == [b"before"]
        log.pause()
        rig.publish(log, numbered(10))
        assert (log.depth, cursor.depth) == (10, 0)
        log.empty()
        rig.publish(log, [b"after"])
        log.unpause()
        rig.settle()
        assert bodies_of(taker) == [b"after"]
        assert (log.depth, cursor.depth, cursor.in_flight_count) == (0, 0, 1)


@pytest.mark.parametrize("inline", [0, 1 << 17])
@pytest.mark.parametrize("again", [False, True])
def test_a_deleted_cursor_stays_away(tmp_path: Path, inline: int, again: bool) -> None:
    """Also when its file was still on its way; and one made anew of the same name stays."""
    with Rig(tmp_path / "a", inline_bytes=inline) as rig:
        log = rig.log()
        rig.publish(log, [b"x"])
        for _ in range(3):
            log.open_cursor("c")
            log.delete_cursor("c")
        if again:
            log.open_cursor("c")
        rig.settle()
        rig.crash(tmp_path / "b")
    with Rig(tmp_path / "b") as rig:
        assert list(rig.engine.log("t").cursors) == ["c"] * again
        assert rig.engine.problems == []


@pytest.mark.parametrize("again", [False, True])
def test_a_cursor_deleted_while_its_journal_is_replaced(tmp_path: Path, again: bool) -> None:
    with Rig(tmp_path / "a", journal_bytes_min=1) as rig:
        log = rig.log()
        for _ in range(10):
            cursor = log.open_cursor("c")
            taker = Taker(cursor, 100)
            rig.publish(log, numbered(60))
            before = cursor.journal.snapshot_bytes
            for seq, *_ in taker.records[1::2]:
                taker.finish(seq)
            rig.settle()
            for seq, *_ in taker.records[::30]:
                taker.finish(seq)
            rig.loop.run()
            assert cursor.journal.snapshot_bytes != before, "no snapshot was begun"
            taker.leave()
            log.delete_cursor("c")
            if again:
                break
        if again:
            cursor = log.open_cursor("c")
            rig.publish(log, numbered(3))
            taker = Taker(cursor, 1)
            rig.settle()
            assert len(finish_all(taker)) == 1
        rig.settle()
        rig.crash(tmp_path / "b")
    with Rig(tmp_path / "b") as rig:
        cursors = rig.engine.log("t").cursors
        assert list(cursors) == ["c"] * again
        assert not rig.engine.problems
        if again:
            assert (cursors["c"].depth, cursors["c"].acks.floor) == (2, 62)


def test_a_log_deleted_and_made_anew(tmp_path: Path) -> None:
    with Rig(tmp_path, segment_bytes=512) as rig:
        for round_ in range(5):
            log = rig.log()
            taker = Taker(log.open_cursor("c"), 100)
            bodies = numbered(30, start=100 * round_)
            for body in bodies:
                append(log, body)
            if round_ % 2:
                rig.loop.run()
                rig.engine.delete_log("t")
            else:
                rig.settle()
                assert bodies_of(taker) == bodies
                rig.engine.delete_log("t")
            taker.leave()
        log = rig.log()
        taker = Taker(log.open_cursor("c"), 100)
        assert rig.publish(log, [b"last"]) == [1]
        assert bodies_of(taker) == [b"last"]
        rig.close()
    with Rig(tmp_path) as rig:
        taker = Taker(rig.engine.log("t").cursors["c"], 10)
        rig.settle()
        assert bodies_of(taker) == [b"last"]


def test_deleting_fails_what_waits_and_lets_consumers_go(tmp_path: Path) -> None:
    with Rig(tmp_path, sync="always") as rig:
        log = rig.log()
        cursor = log.open_cursor("c")
        taker = Taker(cursor, 10)
        rig.publish(log, [b"x"])
        ticket = append(log, b"y")
        rig.engine.delete_log("t")
        rig.settle()
        assert outcome(log, ticket) == -1
        assert append(log, b"z") == 0
        assert log.refusal == "exiting"
        seq = taker.records[0][0]
        assert (taker.finish(seq), taker.requeue(seq), taker.touch(seq)) == (1, 1, 1)
        taker.leave()
        with pytest.raises(OSError, match="log is deleted"):
            log.open_cursor("d")


def test_a_sync_that_fails_after_the_log_was_deleted(tmp_path: Path) -> None:
    with Rig(tmp_path, sync="always") as rig:
        log = rig.log()
        append(log, b"y")
        rig.loop.run()
        while not log.visible > 1:
            rig.loop.serve(5_000)
        vfs.fail(2, 5, times=10)
        append(log, b"z")
        rig.loop.run()
        rig.engine.delete_log("t")
        rig.settle()


def test_the_backlog_belongs_to_the_log_without_cursors(tmp_path: Path) -> None:
    with Rig(tmp_path) as rig:
        log = rig.log()
        rig.publish(log, [b"1", b"2"])
        assert log.depth == 2
        taker = Taker(log.open_cursor("c"), 1)
        rig.settle()
        assert (log.depth, bodies_of(taker)) == (0, [b"1"])
        taker.leave()
        log.delete_cursor("c")
        rig.publish(log, [b"3"])
        assert log.depth == 1
        rig.close()
    with Rig(tmp_path) as rig:
        log = rig.engine.log("t")
        assert log.depth == 1
        taker = Taker(log.open_cursor("d"), 10)
        rig.settle()
        assert bodies_of(taker) == [b"3"]


def test_a_cursor_made_just_before_a_crash_has_the_backlog(tmp_path: Path) -> None:
    """The journal is there and the metadata is not yet."""
    with Rig(tmp_path / "a") as rig:
        log = rig.log()
        rig.publish(log, numbered(3))
        log.empty()
        rig.publish(log, [b"x", b"y"])
        before = (tmp_path / "a" / "t" / "meta.json").read_bytes()
        log.open_cursor("c")
        rig.settle()
        (tmp_path / "a" / "t" / "meta.json").write_bytes(before)
        rig.crash(tmp_path / "b")
    with Rig(tmp_path / "b") as rig:
        log = rig.engine.log("t")
        taker = Taker(log.cursors["c"], 10)
        rig.settle()
        assert (log.depth, bodies_of(taker)) == (0, [b"x", b"y"])


def test_in_memory(tmp_path: Path) -> None:
    with Rig(None, memory_bytes_max=20_000, memory_segment_bytes=4096) as rig:
        log = rig.log("m", ephemeral=True)
        unlimited = rig.log("n")
        for one in (log, unlimited):
            taker = Taker(one.open_cursor("c", ephemeral=True), 50)
            results: list[int] = []
            while 0 not in results:
                results += rig.publish(one, [bytes(1000)] * 3)
            assert 15 <= results.count(1) <= 24
            assert one.refusal == "memory limit of the topic reached"
            while taker.in_flight:
                finish_all(taker)
                rig.settle()
            assert rig.publish(one, [b"x" * 6000]) == [1]
            assert bodies_of(taker) == [b"x" * 6000]
            assert one.last_error == 0
            taker.leave()
        assert "m" not in rig.engine.logs, "the last cursor of an ephemeral log takes it along"


def test_an_ephemeral_cursor_goes_with_its_last_consumer(tmp_path: Path) -> None:
    with Rig(tmp_path) as rig:
        log = rig.log()
        takers = [Taker(log.open_cursor("e", ephemeral=True), 1) for _ in range(2)]
        takers[0].leave()
        assert "e" in log.cursors
        takers[1].leave()
        rig.settle()
        assert log.cursors == {}


@pytest.mark.parametrize("close", [False, True])
def test_a_restart_keeps_delays_attempts_and_pauses(tmp_path: Path, close: bool) -> None:
    with Rig(tmp_path / "a") as rig:
        log = rig.log()
        cursor = log.open_cursor("c")
        taker = Taker(cursor, 10)
        rig.publish(log, numbered(5))
        rig.publish(log, [b"delayed"], not_before_ns=rig.turn.wall_ns + 40 * SECOND)
        assert [taker.finish(1), taker.requeue(2, 20), taker.requeue(3)] == [0, 0, 0]
        rig.advance(5)
        assert [taker.requeue(3, 30), taker.requeue(4)] == [0, 0]
        rig.settle()
        cursor.pause()
        assert [r[:2] for r in taker.records[-2:]] == [(3, 2), (4, 2)]
        rig.settle()
        if close:
            rig.close()
            (tmp_path / "a").rename(tmp_path / "b")
        else:
            rig.crash(tmp_path / "b")
    with Rig(tmp_path / "b", clock=(rig.loop.now_ns, 0)) as rig:
        cursor = rig.engine.log("t").cursors["c"]
        assert cursor.paused
        assert (cursor.depth, cursor.deferred_count, cursor.acks.floor) == (2, 3, 2)
        taker = Taker(cursor, 10, ack_wait=1000, ack_wait_max=1000)
        rig.settle()
        assert taker.records == []
        cursor.unpause()
        seen = {}
        for second in range(40):
            for seq, attempts, *_ in taker.records:
                seen[seq] = (second, attempts)
            taker.records = []
            rig.advance(1)
        assert seen == {4: (1, 3), 5: (1, 2), 2: (15, 2), 3: (30, 3), 6: (35, 1)}


# --- limits


def test_a_record_larger_than_a_segment_after_all_was_given_back(tmp_path: Path) -> None:
    """An empty file waits under the name that the new one would have."""
    with Rig(tmp_path, segment_bytes=1024, reclaim_bytes=100) as rig:
        log = rig.log()
        cursor = log.open_cursor("c")
        taker = Taker(cursor, 100)
        rig.publish(log, numbered(10))
        finish_all(taker)
        rig.settle()
        rig.advance(3)
        assert len(segment_files(tmp_path)) == 1
        assert log.disk_bytes == 64
        big = os.urandom(5000)
        assert rig.publish(log, [big]) == [1]
        assert bodies_of(taker) == [big]
        assert rig.publish(log, [b"small"]) == [1]
        rig.close()
    with Rig(tmp_path, segment_bytes=1024) as rig:
        taker = Taker(rig.engine.log("t").cursors["c"], 10)
        rig.settle()
        assert bodies_of(taker) == [big, b"small"]


def test_the_window_holds_deliveries_and_lets_go(tmp_path: Path) -> None:
    """One record that is never answered must not let the bitmap grow without end."""
    with Rig(tmp_path, window_max=5000) as rig:
        log = rig.log()
        cursor = log.open_cursor("c")
        taker = Taker(cursor, 10, ack_wait=1000, ack_wait_max=5000)
        rig.publish(log, numbered(8000))
        first = taker.records[0][0]
        while len(taker.records) > 1 or taker.records[0][0] != first:
            for seq, *_ in [r for r in taker.records if r[0] != first]:
                assert taker.finish(seq) == 0
            taker.records = taker.records[:1]
            rig.settle()
        assert 5000 <= cursor.next_seq <= 5000 + 3 * 64
        assert cursor.acks.word_count <= 2 * 5000 // 64
        taker.finish(first)
        taker.records = []
        seen = 0
        rig.settle()
        while taker.records:
            seen += len(finish_all(taker))
            rig.settle()
        assert cursor.acks.floor == 8001


def test_entries_hold_deliveries_and_let_go(tmp_path: Path) -> None:
    with Rig(tmp_path, entries_max=50) as rig:
        log = rig.log()
        cursor = log.open_cursor("c")
        taker = Taker(cursor, 1000)
        rig.publish(log, numbered(200))
        total = 0
        while taker.records:
            assert len(taker.records) <= 50
            total += len(finish_all(taker))
            rig.settle()
        assert total == 200


def test_a_full_consumer_is_left_alone(tmp_path: Path) -> None:
    with Rig(tmp_path) as rig:
        log = rig.log()
        cursor = log.open_cursor("c")
        full, free = Taker(cursor, 10), Taker(cursor, 3)
        full.full = True
        rig.publish(log, numbered(6))
        assert (bodies_of(full), bodies_of(free)) == ([], numbered(3))
        assert cursor.depth == 3
        full.drained()
        rig.settle()
        assert bodies_of(full) == numbered(3, start=3)


def test_a_sampled_consumer_finishes_the_others(tmp_path: Path) -> None:
    with Rig(tmp_path) as rig:
        log = rig.log()
        cursor = log.open_cursor("c")
        taker = Taker(cursor, 0)
        taker.set_sample(20)
        taker.set_credit(10_000)
        rig.publish(log, numbered(4000))
        taken = len(finish_all(taker))
        assert 600 < taken < 1050
        assert (cursor.acks.floor, cursor.depth) == (4001, 0)


def test_a_shorter_touch_counts_at_once(tmp_path: Path) -> None:
    with Rig(tmp_path) as rig:
        log = rig.log()
        cursor = log.open_cursor("c")
        taker = Taker(cursor, 1, ack_wait=60)
        rig.publish(log, [b"x"])
        ((seq, *_),) = taker.records
        taker.set_ack_wait(2)
        taker.set_credit(0)
        assert taker.touch(seq) == 0
        rig.advance(2)
        assert (cursor.timeout_count, cursor.in_flight_count, cursor.depth) == (1, 0, 1)


def test_old_records_go_by_age_bytes_and_count(tmp_path: Path) -> None:
    with Rig(tmp_path, segment_bytes=1024) as rig:
        log = rig.log()
        cursor = log.open_cursor("c")
        rig.publish(log, numbered(100))
        log.retention = (0, 0, 40)
        rig.advance(1)
        assert 40 <= cursor.depth < 70
        log.retention = (0, 2048, 0)
        rig.publish(log, [b"x"])
        rig.advance(1)
        assert log.disk_bytes <= 2048 + 1024
        log.retention = (30 * SECOND, 0, 0)
        rig.publish(log, [b"x"])
        rig.advance(40)
        assert (cursor.depth, log.disk_bytes) == (0, 64)
        taker = Taker(cursor, 10)
        rig.publish(log, [b"new"])
        assert bodies_of(taker) == [b"new"]
        assert not rig.reports


# --- files and memory


@pytest.mark.parametrize("delay", [0, 1])
def test_a_file_that_cannot_be_opened_now_loses_nothing(tmp_path: Path, delay: int) -> None:
    with Rig(tmp_path / "a", segment_bytes=512) as rig:
        log = rig.log()
        taker = Taker(log.open_cursor("c"), 20)
        rig.publish(log, numbered(60))
        for seq, *_ in taker.records[:10]:
            taker.requeue(seq, delay)
        taker.set_credit(10)
        rig.settle()
        rig.crash(tmp_path / "b")
    with Rig(tmp_path / "b", segment_bytes=512) as rig:
        vfs.fail(OPEN, 24, times=7)
        taker = Taker(rig.engine.log("t").cursors["c"], 100)
        rig.settle()
        assert vfs.unfired(OPEN) == 0 or taker.in_flight < 60
        for _ in range(20):
            rig.advance(1)
        assert sorted(bodies_of(taker)) == sorted(numbered(60))
        assert taker.in_flight == 60
        assert any("cannot be read" in text for _, text, _ in rig.reports)


def test_descriptors_are_given_back(memory_path: Path) -> None:
    def once(root: Path) -> None:
        with Rig(root, segment_bytes=512, sync=1.0, reclaim_bytes=64) as rig:
            for name in ("a", "b", "c"):
                log = rig.log(name)
                takers = [Taker(log.open_cursor(cursor), 30) for cursor in "xy"]
                rig.publish(log, numbered(100))
                for taker in takers:
                    finish_all(taker)
                    taker.leave()
                rig.advance(2)
            rig.engine.log("c").delete_cursor("y")
            rig.engine.delete_log("b")
            rig.close()

    once(memory_path)
    before = descriptors()
    for _ in range(3):
        once(memory_path)
    assert descriptors() == before


def test_few_descriptors_for_many_segments(memory_path: Path) -> None:
    with Rig(memory_path, segment_bytes=512, sync="always") as rig:
        log = rig.log()
        log.open_cursor("c")
        before = descriptors()
        rig.publish(log, numbered(1000))
        rig.advance(2)
        assert len(log.segments) > 100
        assert descriptors() <= before + 2


def cycles(rig: Rig, log: Any, taker: Any, rounds: int, run: int) -> None:
    for _ in range(rounds):
        for _ in range(run):
            append(log, b"0123456789")
        rig.settle()
        records, taker.records = taker.records, []
        assert len(records) == run
        for seq, *_ in reversed(records):
            taker.finish(seq)
        rig.settle()


def test_a_million_messages_leave_nothing_behind(tmp_path: Path) -> None:
    """Entries, bitmap, journal, segments: what is finished takes no room."""
    limits = {"segment_bytes": 1 << 18, "journal_bytes_min": 1 << 14, "inline_bytes": 1 << 20}
    with Rig(tmp_path, **limits) as rig:
        log = rig.log()
        cursor = log.open_cursor("c")
        taker = Taker(cursor, 100_000)
        cycles(rig, log, taker, 100, 10_000)
        assert cursor.acks.floor == 1_000_001
        assert (cursor.inflight.size, cursor.inflight.slab_count) == (0, 10)
        assert (cursor.acks.count, cursor.acks.word_count) == (0, 256)
        assert len(log.segments) <= 2
        assert cursor.journal.file_bytes < 1 << 19
        rig.settle()
        assert len(segment_files(tmp_path)) == len(log.segments)
