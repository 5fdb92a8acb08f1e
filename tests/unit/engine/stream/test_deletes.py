"""Messages of a stream that are deleted and purged: at once, and for good."""

from __future__ import annotations

import asyncio
import select
from errno import EIO, ENOSPC
from pathlib import Path
from typing import Any

import pytest
from support.engine import RENAME, SECOND, SYNC, WRITE, Rig, wait
from support.native.stores import duplicate_of, kill, outcome, publish, skip

from broker.engine.cursor.journal import read_journal
from broker.engine.stream.store import StreamLimits, StreamStore, open_store
from broker.runtime import vfs

NAME = "js A/S"
MANY = 1 << 30
SUBJECT, ALL = 1, 2  # store.pxd Rollup
FAILED = "a segment of a stream cannot be compacted"


def open_in(rig: Rig, *, memory: bool = False, **limits: Any) -> StreamStore:
    return open_store(rig.engine, NAME, StreamLimits(**limits), memory=memory)


def state(store: StreamStore) -> tuple[int, int, int, int]:
    return store.messages, store.bytes, store.first_seq, store.last_seq


def seqs(store: StreamStore) -> list[int]:
    return [s for s in range(store.first_seq, store.last_seq + 1) if store.message(s)]


def fill(rig: Rig, store: StreamStore, count: int, subjects: int = 2) -> None:
    for i in range(count):
        publish(store, b"s.%d" % (i % subjects), b"%d" % i)
    rig.settle()


def reopened(rig: Rig, tmp_path: Path) -> tuple[Rig, StreamStore]:
    rig.close()
    again = Rig(tmp_path, **rig.limits)
    return again, open_in(again)


def crashed(rig: Rig, to: Path) -> tuple[Rig, StreamStore]:
    rig.crash(to)
    again = Rig(to, **rig.limits)
    return again, open_in(again)


@pytest.mark.parametrize("how", [reopened, crashed])
def test_a_deleted_message_stays_deleted(tmp_path: Path, how: Any) -> None:
    rig = Rig(tmp_path / "a")
    store = open_in(rig)
    fill(rig, store, 6)
    assert wait(rig, store.delete(3))
    assert not wait(rig, store.delete(3))
    assert not wait(rig, store.delete(99))
    assert wait(rig, store.delete(1))
    assert seqs(store) == [2, 4, 5, 6]
    before = state(store)
    again, store = how(rig, tmp_path / ("a" if how is reopened else "b"))
    with again:
        assert seqs(store) == [2, 4, 5, 6]
        assert state(store) == before
        assert store.deleted(10) == [3]
        assert store.num_deleted == 1
        assert publish(store, b"s.0") == 7
        again.close()


def test_a_delete_waits_for_the_message(tmp_path: Path) -> None:
    with Rig(tmp_path) as rig:
        store = open_in(rig)
        publish(store, b"a")
        assert wait(rig, store.delete(1))
        assert state(store) == (0, 0, 2, 1)


@pytest.mark.parametrize("subject", [None, "s.*"])
def test_a_purge_leaves_what_comes_after_its_call(tmp_path: Path, subject: str | None) -> None:
    with Rig(tmp_path) as rig:
        store = open_in(rig)
        for _ in range(4):
            publish(store, b"s.1")  # the purge waits for the disk

        async def purge() -> int:
            task = asyncio.ensure_future(store.purge(subject))
            await asyncio.sleep(0)
            publish(store, b"s.0")
            rig.settle()
            return await task

        assert wait(rig, purge()) == 4
        assert seqs(store) == [5]


def test_a_delete_that_the_disk_refuses_is_reported(tmp_path: Path) -> None:
    with Rig(tmp_path) as rig:
        store = open_in(rig)
        fill(rig, store, 3)
        vfs.fail(SYNC, EIO)
        with pytest.raises(OSError, match="Input/output"):
            wait(rig, store.delete(2))
        vfs.heal()
        rig.settle()  # a sync that was under way may fail too
        assert wait(rig, store.delete(1))
        rig.settle()
        again, store = crashed(rig, tmp_path.parent / f"{tmp_path.name}-crash")
        with again:
            assert seqs(store) == [3]


@pytest.mark.parametrize("erase", [False, True])
def test_a_delete_that_is_repeated_is_durable_too(tmp_path: Path, erase: bool) -> None:
    """It finds no message any more, but its answer must not come before the journal is synced."""
    with Rig(tmp_path) as rig:
        store = open_in(rig)
        for body in (b"one", b"secret", b"three"):
            publish(store, b"s.1", body)
        rig.settle()
        vfs.fail(SYNC, EIO, 0, 1000)
        for _ in range(2):
            with pytest.raises(OSError, match="Input/output"):
                wait(rig, store.delete(2, erase))
        vfs.heal()
        while True:
            try:
                assert not wait(rig, store.delete(2, erase))
                break
            except OSError:  # of a sync that was under way
                rig.advance(1)
        again, store = crashed(rig, tmp_path.parent / f"{tmp_path.name}-crash")
        with again:
            assert seqs(store) == [1, 3]
        files = (tmp_path.parent / f"{tmp_path.name}-crash").rglob("*.seg")
        assert erase == (b"secret" not in b"".join(file.read_bytes() for file in files))


@pytest.mark.parametrize("memory", [False, True])
@pytest.mark.parametrize(
    ("arguments", "left"),
    [
        ({}, []),
        ({"seq": 5}, [5, 6, 7, 8, 9, 10]),
        ({"keep": 3}, [8, 9, 10]),
        ({"keep": 30}, list(range(1, 11))),
        ({"subject": "s.0"}, [2, 4, 6, 8, 10]),
        ({"subject": "s.*", "seq": 4}, [4, 5, 6, 7, 8, 9, 10]),
        ({"subject": "s.1", "keep": 2}, [1, 3, 5, 7, 8, 9, 10]),
        ({"subject": "t"}, list(range(1, 11))),
        ({"subject": "s..0"}, list(range(1, 11))),
    ],
)
def test_purges(tmp_path: Path, arguments: dict[str, Any], left: list[int], memory: bool) -> None:
    with Rig(tmp_path) as rig:
        store = open_in(rig, memory=memory)
        fill(rig, store, 10)
        assert wait(rig, store.purge(**arguments)) == 10 - len(left)
        assert seqs(store) == left
        assert store.messages == len(left)
        assert store.first_seq == (left[0] if left else 11)
        assert store.last_seq == 10
        before = state(store)
        rig.settle()
        if not memory:
            again, store = crashed(rig, tmp_path.parent / f"{tmp_path.name}-crash")
            with again:
                assert (seqs(store), state(store)) == (left, before)
                assert publish(store, b"s") == 11


@pytest.mark.parametrize("how", [reopened, crashed])
def test_a_purge_beyond_the_end_moves_the_numbers(tmp_path: Path, how: Any) -> None:
    rig = Rig(tmp_path / "a")
    store = open_in(rig)
    fill(rig, store, 6)
    assert wait(rig, store.purge(seq=99)) == 6
    assert state(store) == (0, 0, 99, 98)
    again, store = how(rig, tmp_path / ("a" if how is reopened else "b"))
    with again:
        assert state(store) == (0, 0, 99, 98)
        assert publish(store, b"s") == 99
        again.settle()
        assert wait(again, store.purge(seq=10**13)) == 1
        assert publish(store, b"s") == 10**13
        again.settle()
        assert seqs(store) == [10**13]


def test_a_stream_may_begin_at_any_seq(tmp_path: Path) -> None:
    with Rig(tmp_path) as rig:
        store = open_in(rig)
        wait(rig, store.skip_to(100))
        assert state(store) == (0, 0, 100, 99)
        assert publish(store, b"a") == 100
        rig.settle()


def test_files_without_messages_go(tmp_path: Path) -> None:
    with Rig(tmp_path, segment_bytes=1000) as rig:
        store = open_in(rig)
        fill(rig, store, 200)
        folder = Path(store.log.folder or "")
        many = len(list(folder.glob("*.seg")))
        assert many > 5
        assert wait(rig, store.purge("s.0")) == 100
        for seq in range(50, 120, 2):
            assert kill(store, seq)
        left = seqs(store)
        for _ in range(4):
            rig.advance(1)
        assert len(list(folder.glob("*.seg"))) < many - 2
        assert seqs(store) == left
        again, store = reopened(rig, tmp_path)
        with again:
            assert seqs(store) == left
            wait(again, store.purge())
            for _ in range(4):
                again.advance(1)
            assert len(list(folder.glob("*.seg"))) == 1
            assert publish(store, b"s") == 201
            again.close()


def test_what_limits_delete_stays_deleted(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "a")
    store = open_in(rig, max_msgs=5, max_msgs_per_subject=2)
    fill(rig, store, 20, subjects=4)
    left = seqs(store)
    assert left == [16, 17, 18, 19, 20]
    rig.settle()
    again, store = crashed(rig, tmp_path / "b")  # with wider limits
    with again:
        assert seqs(store) == left


def test_a_failed_write_brings_back_what_it_would_have_replaced(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "a")
    store = open_in(rig, max_msgs_per_subject=1)
    fill(rig, store, 2)
    vfs.fail(WRITE, EIO)
    publish(store, b"s.0", b"new")
    publish(store, b"s.0", b"newer")
    rig.settle()
    vfs.heal()
    assert outcome(store) == -1
    assert seqs(store) == [1, 2]
    again, store = crashed(rig, tmp_path / "b")
    with again:
        assert seqs(store) == [1, 2]
        assert publish(store, b"s.1") == 3
        again.settle()
        assert seqs(store) == [1, 2, 3]


def test_the_journal_is_written_anew_when_it_has_grown(tmp_path: Path) -> None:
    with Rig(tmp_path, journal_bytes_min=200) as rig:
        store = open_in(rig)
        fill(rig, store, 400)
        for seq in range(1, 400, 3):
            assert kill(store, seq)
            rig.settle()
        assert skip(store) == 401
        rig.settle()
        left, before = seqs(store), state(store)
        journal = Path(store.log.folder or "") / "deletes.cur"
        assert journal.stat().st_size < 2000
        rig.crash(tmp_path.parent / f"{tmp_path.name}-crash")
    with Rig(tmp_path.parent / f"{tmp_path.name}-crash") as again:
        store = open_in(again)
        assert (seqs(store), state(store)) == (left, before)


def damaged_journal(folder: Path) -> tuple[Path, bytes]:
    """Of a stream whose messages 2 and 4 are deleted; the last byte is missing."""
    with Rig(folder) as rig:
        store = open_in(rig)
        fill(rig, store, 6)
        for seq in (2, 4):
            wait(rig, store.delete(seq))
        journal = Path(store.log.folder or "") / "deletes.cur"
        rig.close()
    damaged = journal.read_bytes()[:-1]
    journal.write_bytes(damaged)
    return journal, damaged


def test_a_journal_that_ends_badly_is_kept(tmp_path: Path) -> None:
    journal, damaged = damaged_journal(tmp_path)
    with Rig(tmp_path) as rig:
        store = open_in(rig)
        assert seqs(store) == [1, 3, 4, 5, 6]
        wait(rig, store.delete(5))
        rig.close()
    with Rig(tmp_path) as rig:
        store = open_in(rig)
        assert seqs(store) == [1, 3, 4, 6]
        rig.close()
    assert journal.with_name("deletes.cur.unreadable").read_bytes() == damaged


def test_a_journal_that_ends_badly_is_kept_if_nothing_is_deleted(tmp_path: Path) -> None:
    """Also by the housekeeping, which syncs what is there."""
    journal, damaged = damaged_journal(tmp_path)
    with Rig(tmp_path) as rig:
        store = open_in(rig)
        rig.advance(3)
        rig.settle()
        assert seqs(store) == [1, 3, 4, 5, 6]
        rig.close()
    assert journal.with_name("deletes.cur.unreadable").read_bytes() == damaged
    with Rig(tmp_path) as rig:
        assert seqs(open_in(rig)) == [1, 3, 4, 5, 6]
        assert not rig.reports
        rig.close()


def test_a_journal_that_ends_badly_is_kept_if_the_stream_closes_at_once(tmp_path: Path) -> None:
    journal, damaged = damaged_journal(tmp_path)
    with Rig(tmp_path) as rig:
        store = open_in(rig)
        kill(store, 6)
        store.close()
        rig.close()
    assert journal.with_name("deletes.cur.unreadable").read_bytes() == damaged
    with Rig(tmp_path) as rig:
        assert seqs(open_in(rig)) == [1, 3, 4, 5]
        rig.close()


def test_a_journal_that_ends_badly_is_kept_on_a_full_disk(tmp_path: Path) -> None:
    journal, damaged = damaged_journal(tmp_path)
    with Rig(tmp_path) as rig:
        store = open_in(rig)
        vfs.fail(WRITE, ENOSPC, times=MANY)
        kill(store, 6)
        rig.advance(3)
        rig.settle()
        rig.close()
    vfs.heal()
    assert journal.with_name("deletes.cur.unreadable").read_bytes() == damaged


@pytest.mark.parametrize("inline_bytes", [0, 1 << 17])
def test_a_full_disk_is_tried_again_from_time_to_time(tmp_path: Path, inline_bytes: int) -> None:
    """Not as soon as a worker has found it full: each attempt writes all that is dead."""
    with Rig(tmp_path, inline_bytes=inline_bytes) as rig:
        store = open_in(rig)
        fill(rig, store, 6)
        wait(rig, store.delete(2))
        vfs.fail(WRITE, ENOSPC, times=MANY)
        kill(store, 4)
        rig.settle()
        rig.advance(3)
        assert 0 < MANY - vfs.unfired(WRITE) < 10
        vfs.heal()
        rig.advance(3)
        rig.close()
    with Rig(tmp_path) as rig:
        assert seqs(open_in(rig)) == [1, 3, 5, 6]
        rig.close()


def test_a_delete_on_a_disk_that_has_healed_succeeds(tmp_path: Path) -> None:
    """At once, not after the pause between attempts."""
    with Rig(tmp_path) as rig:
        store = open_in(rig)
        fill(rig, store, 6)
        wait(rig, store.delete(2))
        vfs.fail(WRITE, ENOSPC, times=MANY)
        with pytest.raises(OSError, match="No space"):
            wait(rig, store.delete(4))
        vfs.heal()
        wait(rig, store.delete(5))
        rig.close()
    with Rig(tmp_path) as rig:
        assert seqs(open_in(rig)) == [1, 3, 6]
        rig.close()


def test_a_journal_that_has_grown_since_the_disk_has_healed(tmp_path: Path) -> None:
    """It is written again although less than a second has passed since the error."""
    with Rig(tmp_path, sync="always", journal_bytes_min=200) as rig:
        store = open_in(rig)
        fill(rig, store, 100)
        assert wait(rig, store.delete(1))
        vfs.fail(WRITE, EIO)
        with pytest.raises(OSError, match="Input/output error"):
            wait(rig, store.delete(2))
        for seq in range(3, 60):
            assert wait(rig, store.delete(seq))
        again, store = crashed(rig, tmp_path / "b")
        with again:
            assert seqs(store) == list(range(60, 101))


def test_an_erased_message_is_not_in_the_file(tmp_path: Path) -> None:
    with Rig(tmp_path) as rig:
        store = open_in(rig)
        for body in (b"first", b"secret" * 50, b"last"):
            publish(store, b"s", body, headers=b"H/1\r\nk: hidden\r\n\r\n")
        rig.settle()
        (file,) = Path(store.log.folder or "").glob("*.seg")
        size = file.stat().st_size
        assert wait(rig, store.delete(2, erase=True))
        assert b"secret" not in file.read_bytes()
        assert file.read_bytes().count(b"hidden") == 2
        assert file.stat().st_size == size
        assert publish(store, b"s") == 4
        rig.settle()
        again, store = reopened(rig, tmp_path)
        with again:
            assert seqs(store) == [1, 3, 4]
            assert not again.engine.problems
            again.close()


def test_an_erased_message_is_not_in_memory(tmp_path: Path) -> None:
    with Rig(tmp_path) as rig:
        store = open_in(rig, memory=True)
        fill(rig, store, 3)
        assert wait(rig, store.delete(2, erase=True))
        assert seqs(store) == [1, 3]


def test_files_with_little_left_become_smaller(tmp_path: Path) -> None:
    with Rig(tmp_path, segment_bytes=10_000) as rig:
        store = open_in(rig)
        for i in range(400):
            publish(store, b"s.%d" % (i % 10), b"%d" % i * 20)
        rig.settle()
        folder = Path(store.log.folder or "")
        before = {file.name: file.stat().st_size for file in folder.glob("*.seg")}
        assert len(before) > 4
        left = {s: store.message(s) for s in range(1, 401) if s % 10 == 3 or s > 380}
        for s in range(1, 401):
            if s not in left:
                assert kill(store, s)
        for _ in range(40):
            rig.advance(1)
        after = {file.name: file.stat().st_size for file in folder.glob("*.seg")}
        assert after.keys() == before.keys()
        small = [name for name in before if 2 * after[name] < before[name]]
        assert len(small) >= len(before) - 2
        assert {s: store.message(s) for s in seqs(store)} == left
        numbers = state(store)
        again, store = crashed(rig, tmp_path.parent / f"{tmp_path.name}-crash")
        with again:
            assert {s: store.message(s) for s in seqs(store)} == left
            assert state(store) == numbers
            assert not again.engine.problems
            again.close()


def test_a_compaction_that_fails_changes_nothing(tmp_path: Path) -> None:
    with Rig(tmp_path, segment_bytes=10_000) as rig:
        store = open_in(rig)
        for i in range(200):
            publish(store, b"s", b"%d" % i * 20)
        rig.settle()
        for s in range(1, 180):
            if s % 10:
                kill(store, s)
        left = {s: store.message(s) for s in seqs(store)}
        rig.advance(1)
        vfs.fail(RENAME, EIO)
        rig.until(lambda: (rig.advance(1), any(r[1] == FAILED for r in rig.reports))[1])
        assert {s: store.message(s) for s in seqs(store)} == left
        vfs.heal()
        for _ in range(20):
            rig.advance(1)
        assert {s: store.message(s) for s in seqs(store)} == left
        assert not list(Path(store.log.folder or "").glob("*.new"))


def test_a_file_is_not_compacted_before_its_last_write(tmp_path: Path) -> None:
    """The next file is active already, and records of this one still wait for the writer."""
    rig = Rig(tmp_path / "a", segment_bytes=10_000)
    store = open_in(rig, max_msgs_per_subject=1)
    for _ in range(60):
        publish(store, b"same", b"x" * 60)
    publish(store, b"kept")
    rig.settle()
    first = publish(store, b"first")
    rig.loop.run()
    written = rig.engine.shared.writer.event_fd  # nobody hears of it before the next `serve`
    assert select.select([written], [], [], 20)[0]
    for i in range(100):
        publish(store, b"s.%d" % i, b"%d" % i * 20)
    rig.loop.run()
    assert len(store.log.segments) == 2
    vfs.hold(WRITE)
    rig.until(lambda: store.log.sync.durable_next > first and vfs.held(WRITE) > 0)
    for _ in range(3):
        rig.loop.advance(SECOND)
        rig.loop.serve(0)
    vfs.release(WRITE)
    for _ in range(5):
        rig.advance(1)
    wanted = [60, 61, *range(first, first + 101)]
    assert seqs(store) == wanted
    again, store = crashed(rig, tmp_path / "b")
    assert seqs(store) == wanted
    again.abandon()


def test_memory_of_what_is_gone_is_given_back(tmp_path: Path) -> None:
    with Rig(tmp_path, memory_segment_bytes=8192) as rig:
        store = open_in(rig, memory=True, max_msgs_per_subject=1)
        for i in range(3000):
            publish(store, b"s.%d" % (i if i % 50 == 0 else 1), b"%d" % i * 10)
            if i % 100 == 0:
                rig.settle()
        rig.settle()
        assert store.messages == 61
        left = {s: store.message(s) for s in seqs(store)}
        before = store.log.memory_bytes()
        for _ in range(4):
            rig.advance(1)
        assert store.log.memory_bytes() < before / 4
        assert {s: store.message(s) for s in seqs(store)} == left
        publish(store, b"s.1", b"more")
        rig.settle()
        assert store.messages == 61


def test_messages_of_a_failed_sync_stay_away_when_files_go(tmp_path: Path) -> None:
    with Rig(tmp_path) as rig:
        store = open_in(rig)
        fill(rig, store, 3)
        vfs.fail(SYNC, EIO)
        for _ in range(3):
            publish(store, b"s.0", b"failed")
        rig.settle()
        vfs.heal()
        rig.advance(3)
        fill(rig, store, 3)
        wait(rig, store.delete(2))
        left, before = seqs(store), state(store)
        assert len(left) == 5
        for _ in range(4):
            rig.advance(1)
        again, store = reopened(rig, tmp_path)
        with again:
            assert (seqs(store), state(store)) == (left, before)
            again.close()


@pytest.mark.parametrize("after_another_start", [False, True])
def test_a_message_that_a_failed_sync_refused_does_nothing_when_files_go(
    tmp_path: Path, after_another_start: bool
) -> None:
    """The file that hides it is needed as long as the one that has it: neither its rollup nor its
    id may count."""
    window, header = StreamLimits(duplicate_window_ns=600 * SECOND), b"Id"

    def open_with_ids(rig: Rig) -> StreamStore:
        return open_store(rig.engine, NAME, window, id_header=header)

    rig = Rig(tmp_path / "a")
    store = open_with_ids(rig)
    fill(rig, store, 4)
    vfs.fail(SYNC, EIO)
    publish(store, b"s.0", b"failed", headers=b"NATS/1.0\r\nId: x\r\n\r\n", rollup=ALL)
    rig.settle()
    vfs.heal()
    rig.advance(3)
    assert seqs(store) == [1, 2, 3, 4]
    if after_another_start:
        rig.crash(tmp_path / "between")
        rig = Rig(tmp_path / "between")
        store = open_with_ids(rig)
    fill(rig, store, 1)
    left = [*seqs(store)]
    assert len(left) == 5
    assert wait(rig, store.delete(2))
    left.remove(2)
    for _ in range(4):
        rig.advance(1)
    rig.crash(tmp_path / "b")
    with Rig(tmp_path / "b") as rig:
        store = open_with_ids(rig)
        assert seqs(store) == left
        assert duplicate_of(store, b"x") == 0
        rig.settle()
        wait(rig, store.purge())
        for _ in range(4):
            rig.advance(1)
        assert len(list((tmp_path / "b").rglob("*.seg"))) == 1


@pytest.mark.parametrize("rollup", [SUBJECT, ALL])
def test_what_a_rollup_replaced_just_before_a_kill_stays_away(tmp_path: Path, rollup: int) -> None:
    with Rig(tmp_path / "a", segment_bytes=4096) as rig:
        store = open_in(rig)
        fill(rig, store, 4)
        assert wait(rig, store.delete(1))
        journal = Path(store.log.folder or "") / "deletes.cur"
        before = journal.read_bytes()
        publish(store, b"long", b"x" * 4000)  # what follows is in another file
        publish(store, b"s.1", b"new", rollup=rollup)
        rig.settle()
        rig.crash(tmp_path / "b")
    (tmp_path / "b" / journal.relative_to(tmp_path / "a")).write_bytes(before)
    with Rig(tmp_path / "b", segment_bytes=4096) as rig:
        store = open_in(rig)
        left = seqs(store)
        assert left == ([6] if rollup == ALL else [3, 5, 6])
        publish(store, b"long", b"x" * 4000)
        publish(store, b"end")
        rig.settle()
        assert wait(rig, store.delete(6))
        for _ in range(4):
            rig.advance(1)
        rig.crash(tmp_path / "c")
    with Rig(tmp_path / "c", segment_bytes=4096) as rig:
        assert seqs(open_in(rig)) == [*left[:-1], 7, 8]


def test_the_first_journal_has_what_is_dead_and_not_more(tmp_path: Path) -> None:
    """It is begun when messages are deleted, from what the subjects know."""
    with Rig(tmp_path) as rig:
        store = open_in(rig)
        fill(rig, store, 50)
        for seq in (3, 4, 9, 48):
            assert kill(store, seq)
        rig.settle()
        ops, _, unread = read_journal(str(Path(store.log.folder or "") / "deletes.cur"))
        assert (ops, unread) == (
            [(4, 1, 0, 0), (2, 51, 0, 0), (1, 3, 2, 0), (1, 9, 1, 0), (1, 48, 1, 0)],
            0,
        )
