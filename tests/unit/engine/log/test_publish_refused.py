"""A failed sync takes back what it has refused: what was stored before stays."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from support.engine import (
    CREATE,
    SECOND,
    SYNC,
    SYNC_PATH,
    WRITE,
    Rig,
    limit,
    numbered,
    readable_bodies,
    segment_files,
)

from broker.engine.cursor.local import LocalConsumer
from broker.engine.log.publish import append, check_appends, failure, outcome
from broker.runtime import mapping, vfs

ALWAYS = {"sync": "always", "segment_bytes": 4096}
STAN = "x"
STORED = numbered(50)


def refuse(rig: Rig, log: Any, count: int = 45) -> None:
    """A sync fails, and with it so many messages."""
    vfs.fail(SYNC, errno.EIO)
    assert set(rig.publish(log, numbered(count, size=200))) == {-1}
    rig.advance(2)


def full(rig: Rig, **limits: int) -> Any:
    log = rig.engine.open_log("t", protocol=STAN, retention="limits")
    limit(log, **limits)
    assert set(rig.publish(log, STORED)) == {1}
    return log


@pytest.mark.parametrize("limits", [{"msgs_max": 50}, {"bytes_max": sum(map(len, STORED))}])
def test_what_is_refused_pushes_nothing_out(tmp_path: Path, limits: dict[str, int]) -> None:
    with Rig(tmp_path, **ALWAYS) as rig:
        log = full(rig, **limits)
        files = segment_files(tmp_path)
        for _ in range(3):
            refuse(rig, log)
            assert log.first_seq == 1
        assert set(files) <= set(segment_files(tmp_path))
        assert readable_bodies(rig, log) == STORED
        # a message that is stored takes the place of the oldest, and of no more; bytes of files
        # that are not read are estimated
        assert rig.publish(log, [b"0"]) == [1]
        found = readable_bodies(rig, log)
        assert found[-50:] == [*STORED[1:], b"0"]
        assert len(found) == 50 or "bytes_max" in limits


def test_seqs_without_a_message_do_not_count_after_a_restart(tmp_path: Path) -> None:
    with Rig(tmp_path, **ALWAYS) as rig:
        refuse(rig, full(rig, msgs_max=50))
    with Rig(tmp_path, **ALWAYS) as rig:
        log = rig.engine.log("t")
        limit(log, msgs_max=50)
        assert readable_bodies(rig, log) == STORED
        assert rig.publish(log, [b"new"]) == [1]
        assert readable_bodies(rig, log) == [*STORED[1:], b"new"]


def test_retention_by_segments_does_not_count_them_either(tmp_path: Path) -> None:
    with Rig(tmp_path, **ALWAYS) as rig:
        log = rig.log()
        log.retention.configure((0, 0, 60))
        assert set(rig.publish(log, STORED)) == {1}
        refuse(rig, log, 400)
        assert rig.publish(log, [b"new"]) == [1]
        rig.advance(2)
        assert readable_bodies(rig, log) == [*STORED, b"new"]


def wait_for_workers(rig: Rig) -> None:
    """Until no worker has a job, the writer apart; what they did has not been heard of."""
    shared = rig.engine.shared
    rig.until(lambda: all(w.idle for w in shared.workers if w is not shared.writer))


@pytest.mark.parametrize("written_before", [0, 1])
def test_a_sync_that_fails_during_a_write(tmp_path: Path, written_before: int) -> None:
    """What it refuses stays refused, although the file is written to until later: no other sync
    may confirm it, and the file may not be replaced by a copy."""
    root, after = tmp_path / "before", tmp_path / "after"
    with Rig(root, **ALWAYS) as rig:
        log = rig.log()
        log.retention.configure((0, 0, 60))
        assert set(rig.publish(log, STORED)) == {1}
        vfs.hold(SYNC)
        vfs.fail(SYNC, errno.EIO)
        tickets = [append(log, b"first" * 10)]
        rig.until(lambda: log.visible > 51)
        if written_before:  # records that the failing sync does not cover
            tickets += [append(log, body) for body in numbered(400, size=200)]
            rig.until(lambda: len(log.segments) > 2 and log.visible > log.segments[1].first_seq)
        tickets += [append(log, body) for body in numbered(400, size=200)]
        vfs.hold(WRITE)  # not before: the loop itself writes the heads of files
        rig.until(lambda: vfs.held(WRITE) == 1)
        vfs.release(SYNC)
        rig.until(lambda: outcome(log, tickets[0]) != 0)
        wait_for_workers(rig)
        rig.loop.advance(2 * SECOND)  # longer than appends are refused after an error
        assert append(log, b"not yet") == 0
        wait_for_workers(rig)
        vfs.release(WRITE)
        rig.settle()
        assert {outcome(log, ticket) for ticket in tickets} == {-1}
        rig.advance(2)
        assert rig.publish(log, [b"new"]) == [1]
        rig.advance(2)
        shutil.copytree(root, after)  # as after kill -9
        assert readable_bodies(rig, log) == [*STORED, b"new"]
    with Rig(after, **ALWAYS) as rig:
        assert readable_bodies(rig, rig.log()) == [*STORED, b"new"]


def test_a_rollback_for_which_no_file_can_be_made(tmp_path: Path) -> None:
    """Nothing is confirmed before the refused records are hidden, a second later."""
    with Rig(tmp_path, **ALWAYS) as rig:
        log = full(rig, msgs_max=50)
        vfs.hold(SYNC)
        vfs.fail(SYNC, errno.EIO)
        tickets = [append(log, b"first")]
        rig.until(lambda: log.visible > 51)
        tickets.append(append(log, b"second"))  # the failing sync does not cover it
        rig.until(lambda: log.visible > 52)
        vfs.fail(CREATE, errno.ENOSPC)
        vfs.release(SYNC)
        rig.settle()
        assert {outcome(log, ticket) for ticket in tickets} == {-1}
        assert vfs.unfired(CREATE) == 0
        assert append(log, b"not yet") == 0
        rig.advance(2)
        assert readable_bodies(rig, log) == STORED
        assert rig.publish(log, [b"new"]) == [1]
        assert readable_bodies(rig, log) == [*STORED[1:], b"new"]


def test_a_rollback_that_waits_while_the_file_before_is_trusted_again(tmp_path: Path) -> None:
    """The copy of that file ends after no new file could be made: the refused records are hidden
    all the same, otherwise the log would refuse appends forever."""
    root, after = tmp_path / "before", tmp_path / "after"
    with Rig(root, **ALWAYS) as rig:
        assert rig.publish(rig.log(), STORED[:5]) == [1] * 5
        rig.crash(after)
    vfs.fail(SYNC, errno.EIO, times=1 << 20)  # what was found has to be copied into a new file
    with Rig(after, **ALWAYS) as rig:
        vfs.heal()
        log = rig.engine.log("t")
        rewriter = rig.engine.shared.rewriter
        rig.loop.remove_reader(rewriter.event_fd)  # the log hears of the copy's end later
        vfs.hold(SYNC_PATH)
        rig.loop.advance(SECOND)
        rig.until(lambda: vfs.held(SYNC_PATH) == 1)
        vfs.fail(SYNC, errno.EIO)
        ticket = append(log, b"refused")
        rig.until(lambda: vfs.unfired(SYNC) == 0)
        vfs.fail(CREATE, errno.ENOSPC)
        vfs.release(SYNC_PATH)
        rig.until(lambda: outcome(log, ticket) != 0)
        assert outcome(log, ticket) == -1
        assert vfs.unfired(CREATE) == 0
        rig.loop.add_reader(rewriter.event_fd, rewriter.reap)
        rig.settle()
        rig.advance(2)
        assert rig.publish(log, [b"new"]) == [1]
        assert readable_bodies(rig, log) == [*STORED[:5], b"new"]


def test_limits_that_become_narrower_behind_a_failed_sync(tmp_path: Path) -> None:
    size = sum(map(len, STORED))
    with Rig(tmp_path, **ALWAYS) as rig:
        log = full(rig, bytes_max=10 * size)
        refuse(rig, log)
        log.retention.limiter.set_limits(0, size // 2, 0)
        rest = readable_bodies(rig, log)
        assert STORED[-len(rest) :] == rest
        assert size // 2 - max(map(len, STORED)) <= sum(map(len, rest)) < size


def test_a_copy_does_not_take_the_name_of_a_log_made_anew(tmp_path: Path) -> None:
    """The workers' threads decide whether the rewriter begins: another try if it does not."""
    assert any(copies_beside_a_log_made_anew(tmp_path / str(number)) for number in range(30))


def copies_beside_a_log_made_anew(root: Path) -> bool:
    """False: it did not come to the copies that this is about."""
    with Rig(root, sync=2.0, inline_bytes=1 << 17) as rig:
        logs = {name: rig.log(name) for name in ("a", "b")}
        for log in logs.values():
            assert set(rig.publish(log, STORED)) == {1}
        rig.advance(3)
        files = {name: segment_files(root, name)[0] for name in logs}
        before = {name: file.stat().st_ino for name, file in files.items()}
        for log in logs.values():
            rig.publish(log, [b"x"])
        # Both are copied, one after the other; after the first copy the rewriter has to wait.
        vfs.hold(SYNC_PATH)
        vfs.fail(SYNC, errno.EIO, times=2)
        rig.loop.advance(3_000_000_000)
        copied: set[str] = set()
        for _ in range(300):
            copied = {name for name in files if files[name].stat().st_ino != before[name]}
            if copied:
                break
            rig.loop.serve(1)
            rig.loop.run()
        if len(copied) != 1:
            vfs.release(SYNC_PATH)
            rig.settle()
            return False
        (other,) = set(files) - copied
        rig.engine.delete_log(other)
        log = rig.log(other)
        tickets = [append(log, body) for body in numbered(60)]
        rig.loop.run()
        vfs.release(SYNC_PATH)
        rig.settle()
        assert {outcome(log, ticket) for ticket in tickets} == {1}
        rig.advance(3)
        assert set(rig.publish(log, [b"more"])) == {1}
    with Rig(root) as rig:
        assert readable_bodies(rig, rig.log(other)) == [*numbered(60), b"more"]
        assert not rig.engine.problems
    return True


@pytest.mark.parametrize("_", range(20))
def test_what_fails_beside_a_round_that_counts_for_nothing_is_answered(
    tmp_path: Path, _: int
) -> None:
    """Which of two rounds ends first is not certain: nobody waits for ever in either case."""
    with Rig(tmp_path, sync="always", inline_bytes=0) as rig:
        log = rig.log()
        assert set(rig.publish(log, STORED)) == {1}
        vfs.hold(SYNC)
        vfs.fail(SYNC, errno.EIO)
        tickets = [append(log, b"x") for _ in range(40)]
        rig.until(lambda: vfs.held(SYNC) == 1)
        tickets += [append(log, b"x") for _ in range(40)]
        rig.until(lambda: vfs.held(SYNC) == 2)
        vfs.hold(WRITE)
        tickets.append(append(log, b"x"))
        rig.until(lambda: vfs.held(WRITE) == 1)
        vfs.release(SYNC)
        rig.until(lambda: rig.engine.shared.sync_errors > 0)
        vfs.release(WRITE)
        rig.settle()
        assert 0 not in {outcome(log, ticket) for ticket in tickets}


def test_the_last_cursor_of_a_log_of_a_protocol_goes_without_a_sync(tmp_path: Path) -> None:
    """A client with many subscriptions may leave at any time: nobody waits for the disk then."""
    with Rig(tmp_path, **ALWAYS) as rig:
        log = full(rig, msgs_max=50)
        log.open_cursor("gone")
        rig.advance(3)
        vfs.fail(SYNC, errno.EIO)
        vfs.fail(SYNC_PATH, errno.EIO)
        before = (tmp_path / "t" / "meta.json").stat().st_ino
        log.delete_cursor("gone")
        assert (tmp_path / "t" / "meta.json").stat().st_ino == before
        assert vfs.unfired(SYNC) == vfs.unfired(SYNC_PATH) == 1
        vfs.heal()


def test_a_protocol_that_cannot_be_stored_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Rig(tmp_path, **ALWAYS) as rig:
        log = rig.log()

        def full_disk(*_: object, **__: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        with monkeypatch.context() as patched:
            patched.setattr("broker.engine.log.log.save_meta", full_disk)
            for _ in range(2):
                with pytest.raises(OSError, match="No space"):
                    rig.engine.open_log("t", protocol=STAN, retention="limits")
                assert log.protocol is None
        assert rig.engine.open_log("t", protocol=STAN, retention="limits").protocol == STAN


def test_a_journal_whose_last_sync_failed_is_written_again(tmp_path: Path) -> None:
    with Rig(tmp_path, **ALWAYS) as rig:
        log = rig.log()
        consumer = LocalConsumer(log.open_cursor("c"), 10)
        assert set(rig.publish(log, STORED)) == {1}
        rig.advance(5)
        consumer.finish(1)
        rig.settle()
        vfs.fail(SYNC, errno.EIO)
        journal = log.cursors["c"].journal
        for _ in range(3):
            rig.loop.advance(SECOND)  # nothing happens, and the sync is not over yet
        rig.settle()
        assert not vfs.unfired(SYNC)
        assert journal.last_error == errno.EIO
        for _ in range(8):
            rig.advance(1)
        assert journal.last_error == 0
        assert not journal.unsynced


def test_a_page_that_does_not_read_does_not_stop_a_copy(tmp_path: Path) -> None:
    """The disk has failed a sync, and the file it is about has a bad sector."""
    with Rig(tmp_path, sync=2.0) as rig:
        log = rig.log()
        bodies = numbered(100, size=100)
        assert set(rig.publish(log, bodies)) == {1}
        (path,) = segment_files(tmp_path)
        whole = path.read_bytes()
        mapping.spoil(path, 4096, 8192)
        try:
            vfs.fail(SYNC, errno.EIO)
            rig.advance(2)
            rig.advance(2)
            assert log.sync.durable_next == log.visible
        finally:
            mapping.unspoil()
        assert path.with_name(path.name + ".unreadable").read_bytes() == whole
        assert [text for level, text, _ in rig.reports if "does not read" in text]
        found = readable_bodies(rig, log)
        assert 50 < len(found) < 100
        assert set(found) < set(bodies)


def test_the_reasons_of_failures_stay_known(tmp_path: Path) -> None:
    """Also when the log accepts appends again: an answer may be sent later, and who checks for
    failures now and then must not miss one."""
    with Rig(tmp_path, **ALWAYS) as rig:
        log = rig.log()
        assert rig.publish(log, [b"stored"]) == [1]
        check_appends(log)
        failed = []
        for call, error in ((WRITE, errno.ENOSPC), (SYNC, errno.EIO)):
            vfs.fail(call, error)
            failed.append(append(log, b"refused"))
            rig.settle()
            rig.advance(2)
            assert rig.publish(log, [b"stored"]) == [1]
            assert log.last_error == 0
        assert [outcome(log, ticket) for ticket in failed] == [-1, -1]
        assert [failure(log, ticket) for ticket in failed] == [
            os.strerror(errno.ENOSPC),
            os.strerror(errno.EIO),
        ]
        with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
            check_appends(log)


def test_a_topic_that_was_deleted_is_exiting(tmp_path: Path) -> None:
    with Rig(tmp_path, **ALWAYS) as rig:
        log = rig.log()
        vfs.hold(SYNC)
        ticket = append(log, b"waits")
        rig.loop.run()
        rig.engine.delete_log("t")
        vfs.release(SYNC)
        rig.settle()
        assert outcome(log, ticket) == -1
        assert failure(log, ticket) == "exiting"
