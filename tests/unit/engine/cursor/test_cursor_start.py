"""New cursors, and when they are on the disk."""

from __future__ import annotations

import asyncio
import errno
import shutil
from pathlib import Path
from typing import Any

import pytest
from support.engine import (
    RENAME,
    SECOND,
    SYNC,
    SYNC_PATH,
    WAIT_MS,
    WRITE,
    Rig,
    bodies_of,
    finish_all,
    numbered,
)

from broker.base.durable import make_folder
from broker.engine.cursor.journal import read_journal
from broker.engine.cursor.local import LocalConsumer
from broker.engine.log.publish import append, outcome
from broker.runtime import vfs

MANY = 1 << 30
ACK = 1  # in journals


def test_what_follows_a_new_cursor_waits_for_its_name(tmp_path: Path) -> None:
    with Rig(tmp_path, sync="always", inline_bytes=1 << 17) as rig:
        log = rig.log()
        assert rig.publish(log, [b"first"]) == [1]
        vfs.hold(SYNC_PATH)
        log.open_cursor("c")
        rig.until(lambda: vfs.held(SYNC_PATH) == 1)
        tickets = [append(log, body) for body in numbered(100)]
        rig.loop.run()
        rig.loop.serve(0)
        assert {outcome(log, ticket) for ticket in tickets} == {0}
        vfs.release(SYNC_PATH)
        rig.settle()
        assert {outcome(log, ticket) for ticket in tickets} == {1}
        assert rig.publish(log, [b"last"]) == [1]


def test_names_of_cursors_are_synced_once(tmp_path: Path) -> None:
    with Rig(tmp_path, sync="always", inline_bytes=1 << 17) as rig:
        log = rig.log()
        assert rig.publish(log, [b"first"]) == [1]
        log.open_cursor("c")
        rig.advance(2)
        vfs.fail(SYNC_PATH, errno.EIO)
        assert rig.publish(log, [b"second"]) == [1]
        rig.advance(2)
        assert vfs.unfired(SYNC_PATH), "there is no name to be synced"


def test_a_cursor_whose_name_cannot_be_synced(tmp_path: Path) -> None:
    with Rig(tmp_path, sync="always", inline_bytes=1 << 17) as rig:
        log = rig.log()
        assert rig.publish(log, [b"first"]) == [1]
        vfs.fail(SYNC_PATH, errno.EIO, 0, 2)
        consumer = LocalConsumer(log.open_cursor("c"), 1000)
        rig.settle()
        for _ in range(4):
            rig.advance(1)
        assert not vfs.unfired(SYNC_PATH)
        assert rig.publish(log, [b"second"]) == [1]
        assert bodies_of(consumer)[-1:] == [b"second"]


def test_a_cursor_that_cannot_be_remembered_is_not_made(tmp_path: Path) -> None:
    with Rig(tmp_path, sync="always") as rig:
        log = rig.log()
        vfs.fail(WRITE, errno.ENOSPC)
        with pytest.raises(OSError, match="No space"):
            log.open_cursor("c")
        assert "c" not in log.cursors
        log.open_cursor("c")


def test_a_full_disk_is_tried_again_from_time_to_time(tmp_path: Path) -> None:
    """Not in each turn in which a consumer finishes a message: that writes the whole state."""
    with Rig(tmp_path, inline_bytes=0) as rig:
        log = rig.log()
        consumer = LocalConsumer(log.open_cursor("c"), 1000)
        rig.publish(log, numbered(100))
        assert len(bodies_of(consumer)) == 100
        vfs.fail(WRITE, errno.ENOSPC, times=MANY)
        for seq in range(1, 91):
            if seq == 45:
                rig.advance(3)
            assert consumer.finish(seq) == 0
            rig.settle()
        assert 0 < MANY - vfs.unfired(WRITE) < 10
        vfs.heal()
        rig.advance(3)
        rig.close()
    with Rig(tmp_path) as rig:
        consumer = LocalConsumer(rig.log().cursors["c"], 1000)
        rig.settle()
        assert len(bodies_of(consumer)) == 10
        rig.close()


def test_a_cursor_deleted_while_its_name_is_synced(tmp_path: Path) -> None:
    with Rig(tmp_path, sync="always", inline_bytes=1 << 17) as rig:
        log = rig.log()
        assert rig.publish(log, [b"first"]) == [1]
        vfs.hold(SYNC_PATH)
        log.open_cursor("a")
        rig.until(lambda: vfs.held(SYNC_PATH) == 1)
        log.open_cursor("b")
        log.delete_cursor("b")
        log.delete_cursor("a")
        vfs.release(SYNC_PATH)
        rig.settle()
        assert rig.publish(log, [b"second"]) == [1]


def test_a_compacted_journal_has_its_name_synced(tmp_path: Path) -> None:
    with Rig(tmp_path, sync="always", inline_bytes=1 << 17, journal_bytes_min=200) as rig:
        log = rig.log()
        consumer = LocalConsumer(log.open_cursor("c"), 1000)
        rig.publish(log, [b"first"])
        rig.advance(2)
        (journal,) = (tmp_path / "t" / "cursors").glob("*.cur")
        inode = journal.stat().st_ino
        while journal.stat().st_ino == inode:
            rig.publish(log, numbered(5))
            finish_all(consumer)
            rig.settle()
        vfs.fail(SYNC_PATH, errno.EIO)
        rig.advance(1)
        assert not vfs.unfired(SYNC_PATH)
        vfs.fail(SYNC_PATH, errno.EIO)
        rig.advance(1)
        assert not vfs.unfired(SYNC_PATH), "it failed, so it is tried again"
        rig.advance(1)
        vfs.fail(SYNC_PATH, errno.EIO)
        rig.advance(1)
        assert vfs.unfired(SYNC_PATH)


def acked(path: Path) -> set[int]:
    """The messages that a journal says are finished, one by one."""
    ops, _, unread = read_journal(str(path))
    assert unread == 0
    return {
        seq for kind, first, count, _ in ops if kind == ACK for seq in range(first, first + count)
    }


@pytest.mark.parametrize("code", [0, errno.ENOSPC])
def test_what_is_finished_while_a_journal_is_replaced_is_in_both_files(
    tmp_path: Path, code: int
) -> None:
    """A kill may come before the new file has the name, or after."""
    with Rig(tmp_path, inline_bytes=1 << 17, journal_bytes_min=200) as rig:
        log = rig.log()
        cursor = log.open_cursor("c")
        consumer = LocalConsumer(cursor, 1000)
        rig.publish(log, numbered(300))
        rig.settle()
        waiting = [record[0] for record in consumer.records]
        (path,) = (tmp_path / "t" / "cursors").glob("*.cur")
        inode = path.stat().st_ino
        finished = set()

        def finish() -> None:
            finished.add(waiting[-1])
            assert consumer.finish(waiting.pop()) == 0
            rig.loop.run()

        vfs.hold(SYNC)
        while not cursor.journal.replacing:
            finish()
        rig.until(lambda: vfs.held(SYNC) == 1)
        finish()
        finish()
        assert acked(path) == finished
        if code:
            vfs.fail(WRITE, code)
            finish()
        vfs.release(SYNC)
        rig.settle()
        rig.advance(60)
        assert code or path.stat().st_ino != inode  # a second new file may get its number again
        assert acked(path) == finished
        finish()
        assert acked(path) == finished


@pytest.mark.parametrize("inline_bytes", [1 << 17, 0])
def test_a_journal_closed_while_it_is_replaced_has_all(tmp_path: Path, inline_bytes: int) -> None:
    """Also what waits in memory for the new file, because writes on the loop take too long."""
    with Rig(tmp_path, inline_bytes=inline_bytes, journal_bytes_min=200) as rig:
        log = rig.log()
        cursor = log.open_cursor("c")
        consumer = LocalConsumer(cursor, 1000)
        rig.publish(log, numbered(300))
        rig.settle()
        waiting = [record[0] for record in consumer.records]
        (path,) = (tmp_path / "t" / "cursors").glob("*.cur")
        finished = set()

        def finish() -> None:
            finished.add(waiting[-1])
            assert consumer.finish(waiting.pop()) == 0
            rig.loop.run()

        while not cursor.journal.replacing:
            vfs.release(SYNC)
            rig.settle()
            vfs.hold(SYNC)
            finish()
        finish()
        cursor.journal.close()
        vfs.release(SYNC)
        rig.settle()
        assert acked(path) == finished


def test_folders_are_made_with_their_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[Path] = []
    monkeypatch.setattr("broker.base.durable.sync_path", lambda path: synced.append(Path(path)))
    make_folder(tmp_path / "a" / "b" / "c")
    assert synced == [tmp_path, tmp_path / "a", tmp_path / "a" / "b"]
    synced.clear()
    make_folder(tmp_path / "a" / "b" / "c")
    assert synced == [tmp_path / "a" / "b"], "whoever made it may have ended before that"
    shutil.rmtree(tmp_path / "a")


def wait_until_synced(rig: Rig, cursor: Any) -> None:
    async def waiting() -> None:
        async with asyncio.timeout(WAIT_MS / 1000):
            task = asyncio.create_task(cursor.synced())
            while not task.done():
                rig.loop.serve(0)
                rig.loop.run()
                await asyncio.sleep(0)
            await task

    asyncio.run(waiting())


def test_a_journal_that_was_closed_unsynced_is_synced_when_that_is_asked(tmp_path: Path) -> None:
    """Without syncs a journal that rests is closed as it is; the log's settings may change then."""
    with Rig(tmp_path, inline_bytes=1 << 17) as rig:
        log = rig.log()
        cursor = log.open_cursor("c")
        wait_until_synced(rig, cursor)
        rig.engine.set_settings(log, {"sync": "always"})
        rig.advance(2)
        rig.engine.set_settings(log, {"sync": "none"})
        cursor.pause()
        rig.settle()
        for _ in range(4):
            rig.advance(1)
        rig.engine.set_settings(log, {"sync": "always"})
        vfs.fail(SYNC, errno.EIO)
        with pytest.raises(OSError, match="Input/output"):
            wait_until_synced(rig, cursor)
        rig.advance(2)
        wait_until_synced(rig, cursor)


def test_a_compacted_journal_that_was_closed_unsynced(tmp_path: Path) -> None:
    with Rig(tmp_path, inline_bytes=1 << 17, journal_bytes_min=200) as rig:
        log = rig.log()
        cursor = log.open_cursor("c")
        consumer = LocalConsumer(cursor, 1000)
        (journal,) = (tmp_path / "t" / "cursors").glob("*.cur")
        inode = journal.stat().st_ino
        while journal.stat().st_ino == inode:
            rig.publish(log, numbered(5))
            finish_all(consumer)
            rig.settle()
        for _ in range(4):
            rig.advance(1)
        rig.engine.set_settings(log, {"sync": "always"})
        rig.settle()  # the log syncs its folder as well
        vfs.fail(SYNC_PATH, errno.EIO)
        with pytest.raises(OSError, match="Input/output"):
            wait_until_synced(rig, cursor)
        wait_until_synced(rig, cursor)


def test_a_name_that_the_log_has_synced_after_an_error(tmp_path: Path) -> None:
    with Rig(tmp_path, sync=1.5, inline_bytes=1 << 17) as rig:
        cursor = rig.log().open_cursor("c")
        vfs.fail(SYNC_PATH, errno.EIO)
        rig.advance(1)
        assert not vfs.unfired(SYNC_PATH)
        rig.advance(0.6)
        cursor.pause()
        wait_until_synced(rig, cursor)


def test_without_syncs_an_order_is_in_the_file_when_it_is_confirmed(tmp_path: Path) -> None:
    with Rig(tmp_path) as rig:
        cursor = rig.log().open_cursor("c")
        rig.settle()
        cursor.pause()
        vfs.fail(WRITE, errno.EIO)
        with pytest.raises(OSError, match="Input/output"):
            wait_until_synced(rig, cursor)


def test_an_order_that_an_earlier_process_has_stored_is_synced(tmp_path: Path) -> None:
    """It was killed before it had synced the journal; the same order again changes nothing."""
    with Rig(tmp_path / "0", sync="always") as rig:
        cursor = rig.log().open_cursor("c")
        cursor.pause()
        rig.settle()
        rig.crash(tmp_path / "1")
    for call in (SYNC, SYNC_PATH):
        shutil.copytree(tmp_path / "1", tmp_path / str(call) / "logs")
        with Rig(tmp_path / str(call) / "logs", sync="always") as rig:
            cursor = rig.engine.log("t").cursors["c"]
            assert cursor.paused
            rig.publish(rig.engine.log("t"), [b"1"])
            rig.advance(2)
            cursor.pause()
            vfs.fail(call, errno.EIO)
            with pytest.raises(OSError, match="Input/output"):
                wait_until_synced(rig, cursor)
            wait_until_synced(rig, cursor)


@pytest.mark.parametrize("call", [WRITE, RENAME])
def test_a_cursor_that_cannot_be_stored_takes_no_backlog_along(tmp_path: Path, call: int) -> None:
    with Rig(tmp_path, segment_bytes=4096) as rig:
        log = rig.log()
        backlog = numbered(100, size=100)
        assert rig.publish(log, backlog) == [1] * 100
        vfs.fail(call, errno.ENOSPC)
        with pytest.raises(OSError, match="No space"):
            log.open_cursor("c")
        assert (log.depth, log.frontier) == (100, 1)
        rig.advance(2)
        assert log.first_seq == 1, "nothing of it is dropped"
        consumer = LocalConsumer(log.open_cursor("c"), MANY)
        rig.settle()
        rig.until(lambda: not log.cursors["c"].depth)
        assert bodies_of(consumer) == backlog


def test_acks_that_were_long_on_their_way_are_synced(tmp_path: Path) -> None:
    """Their log seems idle meanwhile."""
    with Rig(tmp_path, sync=1.0) as rig:
        log = rig.log()
        consumer = LocalConsumer(log.open_cursor("c"), MANY)
        assert rig.publish(log, numbered(5)) == [1] * 5
        rig.advance(3)
        vfs.hold(WRITE)
        finish_all(consumer)
        rig.loop.run()
        rig.until(lambda: vfs.held(WRITE) == 1)
        for _ in range(5):
            rig.loop.advance(SECOND)
        vfs.release(WRITE)
        rig.settle()
        assert log.cursors["c"].journal.unsynced
        for _ in range(3):
            rig.advance(1)
        assert not log.cursors["c"].journal.unsynced
