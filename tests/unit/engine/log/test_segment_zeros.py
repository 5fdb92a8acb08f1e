"""A log that syncs what it answers writes zeros behind its records, so that the next sync need not
write down a new length."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest
from support.engine import FILL, SYNC, WRITE, Rig, numbered, readable_bodies, segment_files

from broker.engine.log.publish import append, outcome
from broker.runtime import vfs

BLOCK = 4096
MOST = 1 << 16
INLINE = {"on the loop": 1 << 17, "by the writer": 0}


@pytest.fixture(params=INLINE.values(), ids=INLINE)
def always(request: pytest.FixtureRequest) -> dict[str, Any]:
    return {"sync": "always", "inline_bytes": request.param}


def file_bytes(root: Path) -> int:
    return sum(path.stat().st_size for path in segment_files(root))


def record_bytes(log: Any) -> int:
    return sum(segment.planned for segment in log.segments)


def test_there_are_as_many_as_records_and_no_more_than_that(
    tmp_path: Path, always: dict[str, Any]
) -> None:
    with Rig(tmp_path, **always) as rig:
        log = rig.log()
        assert rig.publish(log, [b"first"]) == [1]
        assert file_bytes(tmp_path) == BLOCK
        lengths = set()
        for body in numbered(2000, size=200):
            assert rig.publish(log, [body]) == [1]
            zeros = file_bytes(tmp_path) - record_bytes(log)
            assert 0 <= zeros <= min(record_bytes(log), MOST) + BLOCK
            lengths.add(file_bytes(tmp_path))
        # a step for each length of 64 KiB, and fewer for the first ones
        assert len(lengths) <= record_bytes(log) // MOST + 8


def test_a_log_that_rests_has_none_and_begins_with_few(
    tmp_path: Path, always: dict[str, Any]
) -> None:
    with Rig(tmp_path, **always) as rig:
        log = rig.log()
        bodies = numbered(1000, size=100)
        for body in bodies:
            rig.publish(log, [body])
        assert file_bytes(tmp_path) > record_bytes(log)
        for _ in range(3):
            rig.advance(1)
        assert file_bytes(tmp_path) == record_bytes(log)
        assert rig.publish(log, [b"after"]) == [1]
        assert file_bytes(tmp_path) - record_bytes(log) < 2 * BLOCK
        assert readable_bodies(rig, log) == [*bodies, b"after"]


@pytest.mark.parametrize("sync", ["none", 1.0])
def test_a_log_that_is_not_always_synced_has_none(tmp_path: Path, sync: str | float) -> None:
    with Rig(tmp_path, sync=sync) as rig:
        log = rig.log()
        rig.publish(log, numbered(10))
        rig.publish(log, numbered(10))
        assert file_bytes(tmp_path) == record_bytes(log)


def test_a_clean_end_leaves_none(tmp_path: Path, always: dict[str, Any]) -> None:
    with Rig(tmp_path, **always) as rig:
        log = rig.log()
        rig.publish(log, numbered(100))
        end = record_bytes(log)
        rig.close()
    assert file_bytes(tmp_path) == end


def test_after_a_crash_they_are_cut_and_nothing_is_said(
    tmp_path: Path, always: dict[str, Any]
) -> None:
    bodies = numbered(300, size=100)
    with Rig(tmp_path / "a", **always) as rig:
        for body in bodies:
            assert rig.publish(rig.log(), [body]) == [1]
        end = record_bytes(rig.log())
        rig.crash(tmp_path / "b")
    with Rig(tmp_path / "b", **always) as rig:
        assert rig.engine.problems == []
        assert file_bytes(tmp_path / "b") == end
        assert rig.publish(rig.log(), [b"after"]) == [1]
        assert readable_bodies(rig, rig.log()) == [*bodies, b"after"]


def test_a_disk_without_room_for_them(tmp_path: Path, always: dict[str, Any]) -> None:
    with Rig(tmp_path, **always) as rig:
        log = rig.log()
        vfs.fail(FILL, errno.ENOSPC, times=1000)
        bodies = numbered(100, size=100)
        for body in bodies:
            assert rig.publish(log, [body]) == [1]
        assert vfs.unfired(FILL) < 1000
        assert file_bytes(tmp_path) == record_bytes(log)
        vfs.heal()
        assert readable_bodies(rig, log) == bodies
        assert rig.reports == []


def test_records_go_on_after_a_write_that_failed(tmp_path: Path, always: dict[str, Any]) -> None:
    with Rig(tmp_path, **always) as rig:
        log = rig.log()
        before, behind = numbered(50, size=100), numbered(50, 50, 100)
        for body in before:
            assert rig.publish(log, [body]) == [1]
        vfs.fail(WRITE, errno.ENOSPC, partial=40)
        assert rig.publish(log, [b"refused"]) == [-1]
        assert file_bytes(tmp_path) == record_bytes(log)
        rig.advance(2)
        for body in behind:
            assert rig.publish(log, [body]) == [1]
        assert readable_bodies(rig, log) == before + behind


def test_records_go_on_after_a_sync_that_failed(tmp_path: Path, always: dict[str, Any]) -> None:
    with Rig(tmp_path / "a", **always) as rig:
        log = rig.log()
        before, behind = numbered(50, size=100), numbered(50, 50, 100)
        for body in before:
            assert rig.publish(log, [body]) == [1]
        vfs.fail(SYNC, errno.EIO)
        assert rig.publish(log, [b"refused"]) == [-1]
        rig.advance(2)
        for body in behind:
            assert rig.publish(log, [body]) == [1]
        rig.crash(tmp_path / "b")
    with Rig(tmp_path / "b", **always) as rig:
        assert readable_bodies(rig, rig.log()) == before + behind


def test_a_file_that_was_full_before_its_last_write_has_none(tmp_path: Path) -> None:
    """The next file is begun, and this one cut, while that write is under way."""
    with Rig(tmp_path, sync="always", inline_bytes=0, segment_bytes=1 << 14) as rig:
        log = rig.log()
        assert rig.publish(log, numbered(10)) == [1] * 10
        vfs.hold(FILL)
        tickets = [append(log, body) for body in numbered(60, 10, 100)]
        rig.loop.run()
        rig.until(lambda: vfs.held(FILL) == 1)
        tickets += [append(log, body) for body in numbered(60, 70, 100)]
        assert len(log.segments) == 2
        vfs.release(FILL)
        rig.settle()
        assert {outcome(log, ticket) for ticket in tickets} == {1}
        assert segment_files(tmp_path)[0].stat().st_size == log.segments[0].planned
