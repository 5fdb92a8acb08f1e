"""What an engine guarantees, case by case; property tests look for other cases."""

from __future__ import annotations

import errno
import sys
from pathlib import Path
from typing import Any

import pytest
from support.engine import (
    SECOND,
    SYNC,
    UNLINK,
    WRITE,
    Rig,
    bodies_of,
    finish_all,
    numbered,
    segment_files,
)

from broker.base import durable
from broker.engine.cursor.local import LocalConsumer
from broker.engine.log.files import NameTakenError
from broker.engine.log.policy import OWNED
from broker.engine.log.publish import append, outcome
from broker.runtime import vfs


def test_what_was_emptied_while_paused_does_not_come(tmp_path: Path) -> None:
    with Rig(tmp_path) as rig:
        log = rig.log()
        cursor = log.open_cursor("c")
        consumer = LocalConsumer(cursor, 100)
        rig.publish(log, [b"before"])
        assert finish_all(consumer) == [b"before"]
        log.pause()
        rig.publish(log, numbered(10))
        assert (log.depth, cursor.depth) == (10, 0)
        log.empty()
        rig.publish(log, [b"after"])
        log.unpause()
        rig.settle()
        assert bodies_of(consumer) == [b"after"]
        assert (log.depth, cursor.depth, cursor.in_flight_count) == (0, 0, 1)


def test_a_log_is_deleted_as_a_whole_not_file_by_file(tmp_path: Path) -> None:
    """Two calls for each of thousands of cursors would keep other clients waiting."""
    with Rig(tmp_path) as rig:
        log = rig.log()
        for name in ("b", "c"):
            log.open_cursor(name)
        rig.publish(log, [b"x"])
        seen: list[tuple[str, str | None, bool]] = []
        rig.engine.watch(lambda *change: seen.append(change))
        vfs.fail(UNLINK, errno.EIO)
        rig.engine.delete_log("t")
        assert vfs.unfired(UNLINK)
        vfs.heal()
        assert seen == [("t", "b", False), ("t", "c", False), ("t", None, False)]
        again = rig.log()
        assert (again.cursors, again.next_seq) == ({}, 1)
        rig.until(lambda: not list(tmp_path.glob(".deleted*")))


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
            consumer = LocalConsumer(cursor, 100)
            rig.publish(log, numbered(60))
            before = cursor.journal.snapshot_bytes
            for seq, *_ in consumer.records[1::2]:
                consumer.finish(seq)
            rig.settle()
            for seq, *_ in consumer.records[::30]:
                consumer.finish(seq)
            rig.loop.run()
            assert cursor.journal.snapshot_bytes != before, "no snapshot was begun"
            consumer.leave()
            log.delete_cursor("c")
            if again:
                break
        if again:
            cursor = log.open_cursor("c")
            rig.publish(log, numbered(3))
            consumer = LocalConsumer(cursor, 1)
            rig.settle()
            assert len(finish_all(consumer)) == 1
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
            consumer = LocalConsumer(log.open_cursor("c"), 100)
            bodies = numbered(30, start=100 * round_)
            for body in bodies:
                append(log, body)
            if round_ % 2:
                rig.loop.run()
                rig.engine.delete_log("t")
            else:
                rig.settle()
                assert bodies_of(consumer) == bodies
                rig.engine.delete_log("t")
            consumer.leave()
        log = rig.log()
        consumer = LocalConsumer(log.open_cursor("c"), 100)
        assert rig.publish(log, [b"last"]) == [1]
        assert bodies_of(consumer) == [b"last"]
        rig.close()
    with Rig(tmp_path) as rig:
        consumer = LocalConsumer(rig.engine.log("t").cursors["c"], 10)
        rig.settle()
        assert bodies_of(consumer) == [b"last"]


def test_deleting_fails_what_waits_and_lets_consumers_go(tmp_path: Path) -> None:
    with Rig(tmp_path, sync="always") as rig:
        log = rig.log()
        cursor = log.open_cursor("c")
        consumer = LocalConsumer(cursor, 10)
        rig.publish(log, [b"x"])
        ticket = append(log, b"y")
        rig.engine.delete_log("t")
        rig.settle()
        assert outcome(log, ticket) == -1
        assert append(log, b"z") == 0
        assert log.refusal == "exiting"
        seq = consumer.records[0][0]
        assert (consumer.finish(seq), consumer.requeue(seq), consumer.touch(seq)) == (1, 1, 1)
        consumer.leave()
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
        consumer = LocalConsumer(log.open_cursor("c"), 1)
        rig.settle()
        assert (log.depth, bodies_of(consumer)) == (0, [b"1"])
        consumer.leave()
        log.delete_cursor("c")
        rig.publish(log, [b"3"])
        assert log.depth == 1
        rig.close()
    with Rig(tmp_path) as rig:
        log = rig.engine.log("t")
        assert log.depth == 1
        consumer = LocalConsumer(log.open_cursor("d"), 10)
        rig.settle()
        assert bodies_of(consumer) == [b"3"]


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
        consumer = LocalConsumer(log.cursors["c"], 10)
        rig.settle()
        assert (log.depth, bodies_of(consumer)) == (0, [b"x", b"y"])


def test_in_memory(tmp_path: Path) -> None:
    with Rig(None, memory_bytes_max=20_000, memory_segment_bytes=4096) as rig:
        log = rig.log("m", ephemeral=True)
        unlimited = rig.log("n")
        for one in (log, unlimited):
            consumer = LocalConsumer(one.open_cursor("c", ephemeral=True), 50)
            results: list[int] = []
            while 0 not in results:
                results += rig.publish(one, [bytes(1000)] * 3)
            assert 15 <= results.count(1) <= 24
            assert one.refusal == "memory limit of the topic reached"
            while consumer.in_flight:
                finish_all(consumer)
                rig.settle()
            assert rig.publish(one, [b"x" * 6000]) == [1]
            assert bodies_of(consumer) == [b"x" * 6000]
            assert one.last_error == 0
            consumer.leave()
        assert "m" not in rig.engine.logs, "the last cursor of an ephemeral log takes it along"


def test_an_ephemeral_cursor_goes_with_its_last_consumer(tmp_path: Path) -> None:
    with Rig(tmp_path) as rig:
        log = rig.log()
        consumers = [LocalConsumer(log.open_cursor("e", ephemeral=True), 1) for _ in range(2)]
        consumers[0].leave()
        assert "e" in log.cursors
        consumers[1].leave()
        rig.settle()
        assert log.cursors == {}


@pytest.mark.parametrize("close", [False, True])
def test_a_restart_keeps_delays_attempts_and_pauses(tmp_path: Path, close: bool) -> None:
    with Rig(tmp_path / "a") as rig:
        log = rig.log()
        cursor = log.open_cursor("c")
        consumer = LocalConsumer(cursor, 10)
        rig.publish(log, numbered(5))
        rig.publish(log, [b"delayed"], not_before_ns=rig.turn.wall_ns + 40 * SECOND)
        assert [consumer.finish(1), consumer.requeue(2, 20), consumer.requeue(3)] == [0, 0, 0]
        rig.advance(5)
        assert [consumer.requeue(3, 30), consumer.requeue(4)] == [0, 0]
        rig.settle()
        cursor.pause()
        assert [r[:2] for r in consumer.records[-2:]] == [(3, 2), (4, 2)]
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
        consumer = LocalConsumer(cursor, 10, ack_wait=1000, ack_wait_max=1000)
        rig.settle()
        assert consumer.records == []
        cursor.unpause()
        seen = {}
        for second in range(40):
            for seq, attempts, *_ in consumer.records:
                seen[seq] = (second, attempts)
            consumer.records = []
            rig.advance(1)
        assert seen == {4: (1, 3), 5: (1, 2), 2: (15, 2), 3: (30, 3), 6: (35, 1)}


def test_an_error_at_one_log_does_not_end_the_housekeeping(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    problems: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", problems.append)
    with Rig(tmp_path, sync="always") as rig:
        broken, sound = rig.log("broken"), rig.log("sound")
        cursor = sound.open_cursor("c")
        rig.settle()
        broken.cursors["x"] = object()
        for _ in range(3):
            rig.advance(1)
        assert problems
        del broken.cursors["x"]
        cursor.pause()
        rig.settle()
        vfs.fail(SYNC, errno.EIO)
        rig.advance(1)
        assert not vfs.unfired(SYNC), "its journal is synced once a second"


def test_a_pause_that_cannot_be_stored_changes_nothing(tmp_path: Path) -> None:
    in_the_way = tmp_path / "t" / "meta.json.new"
    with Rig(tmp_path, sync="always") as rig:
        log = rig.log()
        consumer = LocalConsumer(log.open_cursor("c"), 100)
        in_the_way.mkdir()
        with pytest.raises(IsADirectoryError):
            log.pause()
        assert rig.publish(log, [b"1"]) == [1]
        assert bodies_of(consumer) == [b"1"]
        in_the_way.rmdir()
        log.pause()
        assert rig.publish(log, [b"2"]) == [1]
        in_the_way.mkdir()
        with pytest.raises(IsADirectoryError):
            log.unpause()
        rig.settle()
        assert log.paused
        assert (bodies_of(consumer), log.depth) == ([], 1)
        in_the_way.rmdir()
        log.unpause()
        rig.settle()
        assert bodies_of(consumer) == [b"2"]


def test_a_folder_of_logs_that_was_removed_is_made_with_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "logs"
    with Rig(root, sync="always") as rig:
        root.rmdir()
        synced: list[Path] = []
        monkeypatch.setattr(durable, "sync_path", synced.append)
        rig.log()
        assert synced == [tmp_path]


@pytest.mark.parametrize("inline", [0, 1 << 17])
def test_a_file_that_may_not_grow_is_followed_by_another(tmp_path: Path, inline: int) -> None:
    """A limit of the process or of the file system can be below segment_size."""
    with Rig(tmp_path, sync="always", inline_bytes=inline) as rig:
        log = rig.log()
        consumer = LocalConsumer(log.open_cursor("c"), 100)
        assert rig.publish(log, [b"1"]) == [1]
        vfs.fail(WRITE, errno.EFBIG)
        assert rig.publish(log, [b"2"]) == [-1]
        assert len(segment_files(tmp_path)) == 1
        rig.advance(2)
        assert rig.publish(log, [b"3"]) == [1]
        assert len(segment_files(tmp_path)) == 2
        assert bodies_of(consumer) == [b"1", b"3"]


def test_a_reserved_name(tmp_path: Path) -> None:
    """No log is made of it, and what stands for it is found by it."""
    heard: list[tuple[str, str | None, bool]] = []
    with Rig(tmp_path) as rig:
        engine = rig.engine
        engine.open_log("t")
        engine.watch(lambda *change: heard.append(change))
        with pytest.raises(NameTakenError):
            engine.reserve("t")
        engine.reserve("s")
        assert engine.reserved == {"s": None}
        engine.reserve("s", "its owner")
        assert engine.reserved == {"s": "its owner"}
        with pytest.raises(NameTakenError):
            engine.open_log("s")
        assert engine.log("s") is None
        engine.announce("s", "channel", True)
        engine.release("s")
        engine.release("s")
        engine.open_log("s")
        assert heard == [("s", "channel", True), ("s", None, True)]


def test_the_name_of_a_stream_is_no_topic(tmp_path: Path) -> None:
    """Records that its owner does not know of would take the seqs of messages."""
    with Rig(tmp_path) as rig:
        engine = rig.engine
        engine.open_log("js.A/S", retention=OWNED)
        engine.open_log("t")
        for name, retention in (("js.A/S", None), ("js.A/S", "limits"), ("t", OWNED)):
            with pytest.raises(NameTakenError):
                engine.open_log(name, retention=retention)
        assert engine.open_log("js.A/S", retention=OWNED).policy.retention == OWNED
        assert engine.readable("js.A/S") is None  # nobody knows its messages
        assert engine.readable("t") is engine.log("t")
