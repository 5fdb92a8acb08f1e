"""The file of the next segment is made beforehand when a log is busy and always synced."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from pathlib import Path

from support.engine import OPEN, SYNC, SYNC_PATH, WRITE, Rig, numbered

from broker.engine.cursor.local import LocalConsumer
from broker.engine.log.publish import append, outcome
from broker.runtime import vfs

SEGMENT = 1 << 20
BUSY = {"sync": "always", "spare_rate": 1000, "segment_bytes": SEGMENT, "inline_bytes": 1 << 17}


def spares(root: Path) -> list[Path]:
    return list(root.rglob("next.spare"))


def segments(root: Path) -> list[Path]:
    return sorted(root.rglob("*.seg"))


def busy(rig: Rig) -> list[bytes]:
    """Publishes so much in a second that a file is made, and a bit more, into that file."""
    log = rig.log()
    before, behind = numbered(100), numbered(100, 100)
    assert set(rig.publish(log, before)) == {1}
    rig.advance(1)
    assert set(rig.publish(log, behind)) == {1}
    return before + behind


def read_all(rig: Rig) -> list[bytes]:
    consumer = LocalConsumer(rig.log().open_cursor("audit"), 1 << 30)
    rig.settle()
    return [body for _, _, _, body in consumer.records]


def test_a_busy_log_gets_its_next_file_beforehand(tmp_path: Path) -> None:
    with Rig(tmp_path, **BUSY) as rig:
        bodies = busy(rig)
        first, second = segments(tmp_path)
        assert first.stat().st_size < SEGMENT
        assert second.stat().st_size == SEGMENT, "zeros behind the records"
        assert len(spares(tmp_path)) == 1, "the next one"
        assert read_all(rig) == bodies


def test_a_log_that_rests_gives_its_zeros_back(tmp_path: Path) -> None:
    with Rig(tmp_path, **BUSY) as rig:
        bodies = busy(rig)
        for _ in range(5):
            rig.advance(1)
        assert spares(tmp_path) == []
        assert sum(path.stat().st_size for path in segments(tmp_path)) < SEGMENT
        assert set(rig.publish(rig.log(), [b"after"])) == {1}
        assert read_all(rig) == [*bodies, b"after"]


def test_a_quiet_log_and_one_that_is_not_always_synced_do_without(tmp_path: Path) -> None:
    for sync, rate in (("always", 1 << 30), ("none", 1000), (1.0, 1000), ("always", 0)):
        root = tmp_path / f"{sync}{rate}"
        with Rig(root, **{**BUSY, "sync": sync, "spare_rate": rate}) as rig:
            busy(rig)
            assert spares(root) == []
            assert len(segments(root)) == 1


def test_a_log_that_is_written_in_long_batches_does_without(tmp_path: Path) -> None:
    """The zeros would take as long as the records; when the batches become short it gets one."""
    with Rig(tmp_path, **{**BUSY, "segment_bytes": 1 << 24}) as rig:
        log = rig.log()
        for _ in range(3):
            assert set(rig.publish(log, numbered(20, size=10_000))) == {1}
            rig.advance(1)
            assert spares(tmp_path) == []
        for body in numbered(100, size=1000):
            assert rig.publish(log, [body]) == [1]
        rig.advance(1)
        assert len(spares(tmp_path)) == 1


def test_after_a_crash_the_zeros_are_cut_and_nothing_is_said(tmp_path: Path) -> None:
    with Rig(tmp_path / "a", **BUSY) as rig:
        bodies = busy(rig)
        rig.crash(tmp_path / "b")
    with Rig(tmp_path / "b", **BUSY) as rig:
        assert rig.engine.problems == []
        assert spares(tmp_path / "b") == []
        assert sum(path.stat().st_size for path in segments(tmp_path / "b")) < SEGMENT
        assert read_all(rig) == bodies
        assert set(rig.publish(rig.log(), [b"after"])) == {1}
        assert rig.log().next_seq == len(bodies) + 2


def test_a_full_segment_whose_zeros_were_not_cut(tmp_path: Path) -> None:
    """The process ended between the last record and the cut."""
    with Rig(tmp_path, **BUSY) as rig:
        bodies = busy(rig)
        rig.close()
    first, _ = segments(tmp_path)
    with first.open("ab") as file:
        file.write(bytes(100_000))
    with Rig(tmp_path, **BUSY) as rig:
        assert read_all(rig) == bodies
        assert rig.engine.problems == []
        assert [text for _, text, _ in rig.reports] == []


def test_records_that_end_with_zeros_are_kept(tmp_path: Path) -> None:
    bodies = [bytes(1000) for _ in range(50)]
    with Rig(tmp_path, sync="always", segment_bytes=8192) as rig:
        assert set(rig.publish(rig.log(), bodies)) == {1}
        rig.close()
    with Rig(tmp_path, sync="always", segment_bytes=8192) as rig:
        assert read_all(rig) == bodies
        assert rig.engine.problems == []


def test_a_disk_without_room_for_a_spare_file(tmp_path: Path) -> None:
    for call in (OPEN, WRITE, SYNC):
        root = tmp_path / str(call)
        with Rig(root, **BUSY) as rig:
            log = rig.log()
            assert set(rig.publish(log, numbered(100))) == {1}
            vfs.fail(call, errno.ENOSPC)
            rig.advance(1)
            assert not vfs.unfired(call)
            assert spares(root) == []
            assert set(rig.publish(log, numbered(100, 100))) == {1}
            assert len(segments(root)) == 1
            assert read_all(rig) == numbered(200)


def undo_rename(root: Path) -> Path:
    """The last segment has its old name again, as a power cut leaves it that undid the rename."""
    *_, last = segments(root)
    return last.rename(last.with_name("next.spare"))


def test_a_segment_whose_rename_was_undone_is_found(tmp_path: Path) -> None:
    with Rig(tmp_path / "a", **BUSY) as rig:
        bodies = busy(rig)
        rig.crash(tmp_path / "b")
    undo_rename(tmp_path / "b")
    with Rig(tmp_path / "b", **BUSY) as rig:
        assert rig.engine.problems == []
        assert read_all(rig) == bodies
        assert set(rig.publish(rig.log(), [b"after"])) == {1}
        assert rig.log().next_seq == len(bodies) + 2


def test_an_undone_rename_with_lost_metadata(tmp_path: Path) -> None:
    with Rig(tmp_path / "a", **BUSY) as rig:
        bodies = busy(rig)
        rig.crash(tmp_path / "b")
    undo_rename(tmp_path / "b")
    (tmp_path / "b" / "t" / "meta.json").unlink()
    with Rig(tmp_path / "b", **BUSY) as rig:
        assert read_all(rig) == bodies


def test_a_spare_file_of_another_log_is_put_aside(tmp_path: Path) -> None:
    with Rig(tmp_path / "a", **BUSY) as rig:
        bodies = busy(rig)
        rig.crash(tmp_path / "b")
    with Rig(tmp_path / "c", **BUSY) as rig:
        busy(rig)
        rig.crash(tmp_path / "d")
    spare = undo_rename(tmp_path / "d")
    (tmp_path / "b" / "t" / "next.spare").write_bytes(spare.read_bytes())
    with Rig(tmp_path / "b", **BUSY) as rig:
        assert read_all(rig) == bodies
        assert spares(tmp_path / "b") == []
        assert (tmp_path / "b" / "t" / "next.spare.unreadable").exists()


def test_what_follows_a_roll_waits_for_the_name_of_the_new_file(tmp_path: Path) -> None:
    with Rig(tmp_path, **BUSY) as rig:
        log = rig.log()
        assert set(rig.publish(log, numbered(100))) == {1}
        rig.advance(1)
        vfs.hold(SYNC_PATH)
        first = [append(log, body) for body in numbered(40, 100)]
        rig.loop.run()
        assert len(log.segments) == 2
        second = [append(log, body) for body in numbered(100, 140)]
        rig.loop.run()
        serve_until(rig, lambda: vfs.held(SYNC_PATH) == 1)
        rig.loop.serve(0)
        assert log.sync.under_way == 1, "a sync of the data alone would end earlier"
        assert {outcome(log, ticket) for ticket in first + second} == {0}
        assert log.sync.durable_next == 101
        vfs.release(SYNC_PATH)
        rig.settle()
        assert {outcome(log, ticket) for ticket in first + second} == {1}
        assert log.sync.durable_next == 241


def test_a_new_log_answers_when_its_names_are_on_the_disk(tmp_path: Path) -> None:
    with Rig(tmp_path, sync="always", inline_bytes=1 << 17) as rig:
        log = rig.log()
        vfs.hold(SYNC_PATH)
        tickets = [append(log, body) for body in numbered(40)]
        rig.loop.run()
        tickets += [append(log, body) for body in numbered(100)]
        rig.loop.run()
        serve_until(rig, lambda: vfs.held(SYNC_PATH) == 1)
        rig.loop.serve(0)
        assert {outcome(log, ticket) for ticket in tickets} == {0}
        vfs.release(SYNC_PATH)
        rig.settle()
        assert {outcome(log, ticket) for ticket in tickets} == {1}


def test_names_that_could_not_be_synced_are_synced_again(tmp_path: Path) -> None:
    with Rig(tmp_path, sync="always", inline_bytes=1 << 17) as rig:
        log = rig.log()
        vfs.fail(SYNC_PATH, errno.EIO)
        assert set(rig.publish(log, [b"first"])) == {-1}
        assert not vfs.unfired(SYNC_PATH)
        vfs.fail(SYNC_PATH, errno.EIO)
        rig.advance(2)
        assert set(rig.publish(log, [b"second"])) == {-1}, "its names are still to be synced"
        assert not vfs.unfired(SYNC_PATH)
        rig.advance(2)
        assert set(rig.publish(log, [b"third"])) == {1}


def serve_until(rig: Rig, reached: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not reached():
        assert time.monotonic() < deadline
        rig.loop.serve(10)


def test_deleting_a_log_with_a_spare_file(tmp_path: Path) -> None:
    with Rig(tmp_path, **BUSY) as rig:
        busy(rig)
        rig.engine.delete_log("t")
        log = rig.log()
        rig.settle()
        assert set(rig.publish(log, [b"new"])) == {1}
        rig.close()
