"""Limits are kept, and what is over takes no room: entries, bits, files, descriptors."""

from __future__ import annotations

import gc
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from support.engine import (
    OPEN,
    SECOND,
    Rig,
    bodies_of,
    finish_all,
    numbered,
    segment_files,
)
from support.native.cursors import Acks, Entries

from broker.engine.cursor.local import LocalConsumer
from broker.engine.log.publish import append
from broker.runtime import vfs


def descriptors() -> int:
    """Open files of this process, once deleted folders are gone."""
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and "rmtree" in thread.name:
            thread.join(10)
    gc.collect()
    return len(list(Path("/proc/self/fd").iterdir()))


def test_a_record_larger_than_a_segment_after_all_was_given_back(tmp_path: Path) -> None:
    """An empty file waits under the name that the new one would have."""
    with Rig(tmp_path, segment_bytes=1024, reclaim_bytes=100) as rig:
        log = rig.log()
        cursor = log.open_cursor("c")
        consumer = LocalConsumer(cursor, 100)
        rig.publish(log, numbered(10))
        finish_all(consumer)
        rig.settle()
        rig.advance(3)
        assert len(segment_files(tmp_path)) == 1
        assert log.disk_bytes == 64
        big = os.urandom(5000)
        assert rig.publish(log, [big]) == [1]
        assert bodies_of(consumer) == [big]
        assert rig.publish(log, [b"small"]) == [1]
        rig.close()
    with Rig(tmp_path, segment_bytes=1024) as rig:
        consumer = LocalConsumer(rig.engine.log("t").cursors["c"], 10)
        rig.settle()
        assert bodies_of(consumer) == [big, b"small"]


def test_the_window_holds_deliveries_and_lets_go(tmp_path: Path) -> None:
    """One record that is never answered must not let the bitmap grow without end."""
    with Rig(tmp_path, window_max=5000) as rig:
        log = rig.log()
        cursor = log.open_cursor("c")
        consumer = LocalConsumer(cursor, 10, ack_wait=1000, ack_wait_max=5000)
        rig.publish(log, numbered(8000))
        first = consumer.records[0][0]
        while len(consumer.records) > 1 or consumer.records[0][0] != first:
            for seq, *_ in [r for r in consumer.records if r[0] != first]:
                assert consumer.finish(seq) == 0
            consumer.records = consumer.records[:1]
            rig.settle()
        assert 5000 <= cursor.next_seq <= 5000 + 3 * 64
        assert Acks(cursor.acks).word_count <= 2 * 5000 // 64
        consumer.finish(first)
        consumer.records = []
        seen = 0
        rig.settle()
        while consumer.records:
            seen += len(finish_all(consumer))
            rig.settle()
        assert cursor.acks.floor == 8001


def test_entries_hold_deliveries_and_let_go(tmp_path: Path) -> None:
    with Rig(tmp_path, entries_max=50) as rig:
        log = rig.log()
        cursor = log.open_cursor("c")
        consumer = LocalConsumer(cursor, 1000)
        rig.publish(log, numbered(200))
        total = 0
        while consumer.records:
            assert len(consumer.records) <= 50
            total += len(finish_all(consumer))
            rig.settle()
        assert total == 200


def test_a_full_consumer_is_left_alone(tmp_path: Path) -> None:
    with Rig(tmp_path) as rig:
        log = rig.log()
        cursor = log.open_cursor("c")
        full, free = LocalConsumer(cursor, 10), LocalConsumer(cursor, 3)
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
        consumer = LocalConsumer(cursor, 0)
        consumer.set_sample(20)
        consumer.set_credit(10_000)
        rig.publish(log, numbered(4000))
        taken = len(finish_all(consumer))
        assert 600 < taken < 1050
        assert (cursor.acks.floor, cursor.depth) == (4001, 0)


def test_a_shorter_touch_counts_at_once(tmp_path: Path) -> None:
    with Rig(tmp_path) as rig:
        log = rig.log()
        cursor = log.open_cursor("c")
        consumer = LocalConsumer(cursor, 1, ack_wait=60)
        rig.publish(log, [b"x"])
        ((seq, *_),) = consumer.records
        consumer.set_ack_wait(2)
        consumer.set_credit(0)
        assert consumer.touch(seq) == 0
        rig.advance(2)
        assert (cursor.timeout_count, cursor.in_flight_count, cursor.depth) == (1, 0, 1)


def test_old_records_go_by_age_bytes_and_count(tmp_path: Path) -> None:
    with Rig(tmp_path, segment_bytes=1024) as rig:
        log = rig.log()
        cursor = log.open_cursor("c")
        rig.publish(log, numbered(100))
        log.retention.configure((0, 0, 40))
        rig.advance(1)
        assert 40 <= cursor.depth < 70
        log.retention.configure((0, 2048, 0))
        rig.publish(log, [b"x"])
        rig.advance(1)
        assert log.disk_bytes <= 2048 + 1024
        log.retention.configure((30 * SECOND, 0, 0))
        rig.publish(log, [b"x"])
        rig.advance(40)
        assert (cursor.depth, log.disk_bytes) == (0, 64)
        consumer = LocalConsumer(cursor, 10)
        rig.publish(log, [b"new"])
        assert bodies_of(consumer) == [b"new"]
        assert not rig.reports


@pytest.mark.parametrize("delay", [0, 1])
def test_a_file_that_cannot_be_opened_now_loses_nothing(tmp_path: Path, delay: int) -> None:
    with Rig(tmp_path / "a", segment_bytes=512) as rig:
        log = rig.log()
        consumer = LocalConsumer(log.open_cursor("c"), 20)
        rig.publish(log, numbered(60))
        for seq, *_ in consumer.records[:10]:
            consumer.requeue(seq, delay)
        consumer.set_credit(10)
        rig.settle()
        rig.crash(tmp_path / "b")
    with Rig(tmp_path / "b", segment_bytes=512) as rig:
        vfs.fail(OPEN, 24, times=7)
        consumer = LocalConsumer(rig.engine.log("t").cursors["c"], 100)
        rig.settle()
        assert vfs.unfired(OPEN) == 0 or consumer.in_flight < 60
        for _ in range(20):
            rig.advance(1)
        assert sorted(bodies_of(consumer)) == sorted(numbered(60))
        assert consumer.in_flight == 60
        assert any("cannot be read" in text for _, text, _ in rig.reports)


def test_descriptors_are_given_back(memory_path: Path) -> None:
    def once(root: Path) -> None:
        with Rig(root, segment_bytes=512, sync=1.0, reclaim_bytes=64) as rig:
            for name in ("a", "b", "c"):
                log = rig.log(name)
                consumers = [LocalConsumer(log.open_cursor(cursor), 30) for cursor in "xy"]
                rig.publish(log, numbered(100))
                for consumer in consumers:
                    finish_all(consumer)
                    consumer.leave()
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


def cycles(rig: Rig, log: Any, consumer: Any, rounds: int, run: int) -> None:
    for _ in range(rounds):
        for _ in range(run):
            append(log, b"0123456789")
        rig.settle()
        records, consumer.records = consumer.records, []
        assert len(records) == run
        for seq, *_ in reversed(records):
            consumer.finish(seq)
        rig.settle()


def test_a_million_messages_leave_nothing_behind(tmp_path: Path) -> None:
    """Entries, bitmap, journal, segments: what is finished takes no room."""
    limits = {"segment_bytes": 1 << 18, "journal_bytes_min": 1 << 14, "inline_bytes": 1 << 20}
    with Rig(tmp_path, **limits) as rig:
        log = rig.log()
        cursor = log.open_cursor("c")
        consumer = LocalConsumer(cursor, 100_000)
        cycles(rig, log, consumer, 100, 10_000)
        assert cursor.acks.floor == 1_000_001
        assert (cursor.inflight.size, Entries(cursor.inflight).slab_count) == (0, 10_001 // 64 + 1)
        assert (cursor.acks.count, Acks(cursor.acks).word_count) == (0, 256)
        assert len(log.segments) <= 2
        assert cursor.journal.file_bytes < 1 << 19
        rig.settle()
        assert len(segment_files(tmp_path)) == len(log.segments)


def test_an_engine_may_go_as_garbage_with_its_consumers() -> None:
    """All of it at once, in no order."""
    for ephemeral in (False, True) * 5:
        rig = Rig(None)
        cursor = rig.log().open_cursor("c", ephemeral=ephemeral)
        consumers = [LocalConsumer(cursor, 10) for _ in range(3)]
        rig.publish(rig.log(), numbered(20))
        for consumer in consumers:
            consumer.records += [consumers, rig]
        rig.abandon()
        del rig, cursor, consumers, consumer
        gc.collect()
