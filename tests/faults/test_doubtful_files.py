"""After a failed sync, or a failed write that cannot be taken back, a file is not believed.

What was refused is not there, neither for readers nor after a kill; what was answered before is
written into a new file.
"""

from __future__ import annotations

import errno
import shutil
from pathlib import Path
from typing import Any

import pytest
from support.engine import (
    CREATE,
    OPEN,
    RENAME,
    SYNC,
    SYNC_PATH,
    TRUNCATE,
    UNLINK,
    WRITE,
    Rig,
    bodies_of,
    drain,
    numbered,
    segment_files,
)

from broker.engine.cursor.local import LocalConsumer
from broker.engine.log.publish import append, outcome
from broker.runtime import vfs

INLINE = 1 << 17


def read_all(rig: Rig, name: str = "audit") -> list[bytes]:
    return list(drain(rig, LocalConsumer(rig.log().open_cursor(name, False, 1), 1 << 30), 5))


def reopened(tmp_path: Path, rig: Rig, sync: str | float) -> list[bytes]:
    rig.crash(tmp_path / "killed")
    with Rig(tmp_path / "killed", sync=sync) as after:
        found = read_all(after, "after")
        log = after.log()
        assert after.publish(log, [b"more"]) == [1]
        after.close()
    return found


@pytest.mark.parametrize("inline", [0, INLINE])
@pytest.mark.parametrize("before", [0, 5])
@pytest.mark.parametrize("call", [SYNC, SYNC_PATH])
def test_what_a_failed_sync_refused_is_not_there(
    tmp_path: Path, before: int, call: int, inline: int
) -> None:
    with Rig(tmp_path / "a", sync="always", inline_bytes=inline) as rig:
        log = rig.log()
        log.open_cursor("audit")
        assert rig.publish(log, numbered(before)) == [1] * before
        if call == SYNC_PATH:
            log.open_cursor("other")  # its name is to be synced with what comes
        vfs.fail(call, errno.EIO)
        assert rig.publish(log, numbered(5, start=before)) == [-1] * 5
        assert not vfs.unfired(call)
        after = numbered(5, start=20)
        rig.advance(2)
        assert rig.publish(log, after) == [1] * 5
        stored = numbered(before) + after
        assert read_all(rig) == stored
        assert log.sync.durable_next == log.visible
        assert reopened(tmp_path, rig, "always") == stored


@pytest.mark.parametrize("passed", range(4))
@pytest.mark.parametrize("call", [OPEN, RENAME])
def test_what_was_refused_is_hidden_when_the_disk_takes_it(
    tmp_path: Path, call: int, passed: int
) -> None:
    """Its files cannot be opened or renamed at first; some were when the next one fails."""
    sizes = {"segment_bytes": 2048, "inline_bytes": INLINE}
    with Rig(tmp_path / "a", sync="always", **sizes) as rig:
        log = rig.log()
        log.open_cursor("audit")
        before = [body.ljust(400) for body in numbered(2)]
        assert rig.publish(log, before) == [1] * 2
        vfs.fail(SYNC, errno.EIO)
        vfs.fail(call, errno.EIO, passed)
        assert 1 not in rig.publish(log, [body.ljust(400) for body in numbered(12, start=2)])
        vfs.heal()
        rig.advance(2)
        after = numbered(5, start=20)
        assert rig.publish(log, after) == [1] * 5
        assert read_all(rig) == before + after
        assert log.sync.durable_next == log.visible
        assert reopened(tmp_path, rig, "always") == before + after


def test_what_is_written_while_a_sync_fails_is_refused_too(tmp_path: Path) -> None:
    with Rig(tmp_path / "a", sync="always") as rig:
        log = rig.log()
        log.open_cursor("audit")
        assert rig.publish(log, numbered(3)) == [1] * 3
        vfs.fail(SYNC, errno.EIO)
        vfs.hold(SYNC)
        first = [append(log, body) for body in numbered(3, start=3)]
        rig.until(lambda: vfs.held(SYNC) == 1)
        vfs.hold(WRITE)
        second = [append(log, body) for body in numbered(3, start=6)]
        rig.until(lambda: vfs.held(WRITE) == 1)
        vfs.release(SYNC)
        rig.until(lambda: log.last_error != 0)
        vfs.release(WRITE)
        rig.settle()
        assert {outcome(log, ticket) for ticket in first + second} == {-1}
        rig.advance(2)
        assert rig.publish(log, [b"after"]) == [1]
        assert read_all(rig) == [*numbered(3), b"after"]
        assert reopened(tmp_path, rig, "always") == [*numbered(3), b"after"]


def test_consumers_that_have_a_refused_message_go_on(tmp_path: Path) -> None:
    with Rig(tmp_path, sync="always", inline_bytes=INLINE) as rig:
        log = rig.log()
        consumer = LocalConsumer(log.open_cursor("c"), 1000)
        assert rig.publish(log, numbered(3)) == [1] * 3
        vfs.fail(SYNC, errno.EIO)
        assert rig.publish(log, numbered(3, start=3)) == [-1] * 3
        seqs = [seq for seq, *_ in consumer.records]
        assert seqs == [1, 2, 3, 4, 5, 6]
        assert consumer.finish(4) == 0
        assert consumer.requeue(5, 0) == 0
        bodies_of(consumer)
        rig.advance(2)
        assert rig.publish(log, [b"after"]) == [1]
        assert bodies_of(consumer) == [b"after"], "seqs are not used again"
        assert log.next_seq == 8


@pytest.mark.parametrize("inline", [0, INLINE])
def test_what_was_answered_goes_into_a_new_file(tmp_path: Path, inline: int) -> None:
    with Rig(tmp_path / "a", sync=1.0, inline_bytes=inline) as rig:
        log = rig.log()
        log.open_cursor("audit")
        assert rig.publish(log, numbered(5)) == [1] * 5
        rig.advance(1)
        (file,) = segment_files(tmp_path / "a")
        inode = file.stat().st_ino
        assert rig.publish(log, numbered(5, start=5)) == [1] * 5
        vfs.fail(SYNC, errno.EIO, 0, 2)  # the copy fails as well
        rig.advance(1)
        assert log.sync.durable_next == 6
        rig.advance(1)
        rig.advance(1)
        rig.advance(1)
        assert file.stat().st_ino != inode
        assert log.sync.durable_next == 11
        assert rig.publish(log, numbered(5, start=10)) == [1] * 5
        assert read_all(rig) == numbered(15)
        assert reopened(tmp_path, rig, 1.0) == numbered(15)


def test_a_second_sync_that_succeeds_says_nothing(tmp_path: Path) -> None:
    with Rig(tmp_path, sync=1.0, inline_bytes=INLINE) as rig:
        log = rig.log()
        assert rig.publish(log, numbered(5)) == [1] * 5
        vfs.fail(SYNC, errno.EIO, 0, 3)  # the sync, and the copies of the next seconds
        for _ in range(6):
            rig.advance(1)
            if vfs.unfired(SYNC):
                assert log.sync.durable_next == 1
                assert log.last_error
        assert not vfs.unfired(SYNC)
        assert (log.sync.durable_next, log.last_error) == (6, 0)


@pytest.mark.parametrize("inline", [0, INLINE])
@pytest.mark.parametrize("before", [0, 3])
def test_a_failed_write_that_cannot_be_cut_never_comes_alive(
    tmp_path: Path, before: int, inline: int
) -> None:
    with Rig(tmp_path / "a", inline_bytes=inline) as rig:
        log = rig.log()
        log.open_cursor("audit")
        assert rig.publish(log, numbered(before)) == [1] * before
        vfs.fail(WRITE, errno.ENOSPC, 0 if before else 1, 1, 1 << 20)  # all of it gets in
        vfs.fail(TRUNCATE, errno.EIO)
        assert rig.publish(log, numbered(3, start=10)) == [-1] * 3
        assert not vfs.unfired(TRUNCATE)
        rig.crash(tmp_path / "killed")
    with Rig(tmp_path / "killed") as rig:
        log = rig.log()
        assert log.next_seq == before + 1
        assert read_all(rig) == numbered(before)
        assert rig.publish(log, [b"after"]) == [1]
        assert read_all(rig, "again") == [*numbered(before), b"after"]


def test_a_ticket_that_failed_long_ago_is_never_said_to_be_stored(tmp_path: Path) -> None:
    with Rig(tmp_path, sync="always", inline_bytes=INLINE) as rig:
        log = rig.log()
        failed = []
        for _ in range(80):
            vfs.fail(SYNC, errno.EIO)
            failed.append(append(log, b"refused"))
            rig.settle()
            rig.advance(2)
            assert rig.publish(log, [b"stored"]) == [1]
        assert {outcome(log, ticket) for ticket in failed} == {-1}


@pytest.mark.parametrize("sync", ["always", 1.0])
def test_what_a_kill_left_behind_is_synced_before_it_counts(
    tmp_path: Path, sync: str | float
) -> None:
    with Rig(tmp_path / "a", sync=60.0) as rig:
        assert rig.publish(rig.log(), numbered(5)) == [1] * 5
        rig.crash(tmp_path / "b")
    shutil.copytree(tmp_path / "b", tmp_path / "c")
    with Rig(tmp_path / "b", sync=sync) as rig:
        assert rig.log().sync.durable_next == 6
    vfs.fail(SYNC_PATH, errno.EIO)
    vfs.fail(SYNC, errno.EIO, 1, 1000)
    with Rig(tmp_path / "c", sync=sync) as rig:
        log: Any = rig.engine.log("t")
        for _ in range(3):
            rig.advance(1)
            assert (log.visible, log.sync.durable_next) == (6, 1)
        vfs.heal()
        for _ in range(3):
            rig.advance(1)
        assert log.sync.durable_next == 6


def test_readers_that_keep_seqs_get_what_is_on_the_disk(tmp_path: Path) -> None:
    with Rig(tmp_path, sync="always", inline_bytes=INLINE) as rig:
        log = rig.log()
        log.deliver_durable()
        consumer = LocalConsumer(log.open_cursor("c"), 1000)
        rig.settle()
        vfs.hold(SYNC)
        append(log, b"one")
        rig.until(lambda: vfs.held(SYNC) == 1)
        assert log.visible == 2
        assert bodies_of(consumer) == []
        vfs.release(SYNC)
        rig.settle()
        assert bodies_of(consumer) == [b"one"]


def test_a_file_that_says_that_there_is_nothing_gets_no_records(tmp_path: Path) -> None:
    """Those that follow have seqs too far above its first one: they would count as damaged."""
    with Rig(tmp_path / "a", sync="always") as rig:
        log = rig.log()
        log.open_cursor("audit")
        before = numbered(3)
        assert rig.publish(log, before) == [1] * 3
        vfs.fail(SYNC, errno.EIO)
        vfs.fail(CREATE, errno.ENOSPC)
        assert rig.publish(log, numbered(10, start=3)) == [-1] * 10
        assert not vfs.unfired(CREATE)
        vfs.fail(CREATE, errno.ENOSPC, 1)  # not that file, but the one after it
        rig.advance(1.1)
        assert not vfs.unfired(CREATE)
        assert [int(path.stem) for path in segment_files(tmp_path / "a")] == [1, 4]
        rig.advance(2)
        after = numbered(10, start=20)
        assert rig.publish(log, after) == [1] * 10
        assert [int(path.stem) for path in segment_files(tmp_path / "a")] == [1, 4, 14]
        assert read_all(rig) == before + after
        assert reopened(tmp_path, rig, "always") == before + after


# --- the file of a segment that was begun and is not to be


def begun_in_vain(rig: Rig, log: Any, *besides: int) -> tuple[list[bytes], Path]:
    """The write of the last records of a file fails, when the next file has been begun: what is
    stored, and that file. These calls fail too."""
    log.open_cursor("audit")
    stored = numbered(10, size=100)
    assert rig.publish(log, stored) == [1] * 10
    assert rig.root is not None
    before = set(segment_files(rig.root))
    tickets = [append(log, body) for body in numbered(40, start=10, size=100)]
    (begun,) = set(segment_files(rig.root)) - before
    for call in (WRITE, *besides):
        vfs.fail(call, errno.EIO)
    rig.settle()
    assert {outcome(log, ticket) for ticket in tickets} == {-1}
    return stored, begun


@pytest.mark.parametrize("inline", [0, INLINE])
@pytest.mark.parametrize("sync", ["none", "always"])
def test_a_file_begun_in_vain_hides_nothing(tmp_path: Path, sync: str, inline: int) -> None:
    with Rig(tmp_path / "a", sync=sync, segment_bytes=4096, inline_bytes=inline) as rig:
        log = rig.log()
        stored, begun = begun_in_vain(rig, log, RENAME)
        assert not vfs.unfired(RENAME)
        assert begun.exists()
        rig.advance(2)
        vfs.fail(UNLINK, errno.EIO)
        assert rig.publish(log, [b"not yet"]) == [0]
        assert log.last_error == errno.EIO
        rig.advance(2)
        # these are shorter: more of them get into the file before
        after = numbered(50, start=100)
        assert rig.publish(log, after) == [1] * 50
        assert log.next_seq > int(begun.stem)
        assert not begun.exists()
        assert reopened(tmp_path, rig, sync) == stored + after


def test_a_power_cut_does_not_bring_a_file_back_that_was_begun_in_vain(tmp_path: Path) -> None:
    with Rig(tmp_path / "a", sync="always", segment_bytes=4096) as rig:
        log = rig.log()
        begun_in_vain(rig, log)
        rig.advance(2)
        vfs.hold(SYNC_PATH)
        ticket = append(log, b"after")
        rig.until(lambda: vfs.held(SYNC_PATH) == 1)
        assert outcome(log, ticket) == 0, "the folder is synced before the answer"
        vfs.release(SYNC_PATH)
        rig.settle()
        assert outcome(log, ticket) == 1
        vfs.fail(SYNC_PATH, errno.EIO)
        assert rig.publish(log, [b"more"]) == [1]
        assert vfs.unfired(SYNC_PATH), "once is enough"


def test_a_file_without_its_header_hides_nothing(tmp_path: Path) -> None:
    with Rig(tmp_path / "a", segment_bytes=4096, inline_bytes=INLINE) as rig:
        log = rig.log()
        log.open_cursor("audit")
        stored = numbered(25, size=100)
        assert rig.publish(log, stored) == [1] * 25
        vfs.fail(WRITE, errno.EIO)
        vfs.fail(UNLINK, errno.EIO)
        assert rig.publish(log, [bytes(2000)]) == [0]
        assert not vfs.unfired(UNLINK)
        assert len(segment_files(tmp_path / "a")) == 2
        rig.advance(2)
        after = numbered(3, start=100)
        assert rig.publish(log, after) == [1] * 3
        assert reopened(tmp_path, rig, "none") == stored + after
