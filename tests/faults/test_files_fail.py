"""Every file call fails once: the first, then the second, and so on until a run has no more.

Whatever fails, nothing acknowledged is lost, nothing comes back that was finished, no record is
there by half, and the log works again when the disk does.
"""

from __future__ import annotations

import errno
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from support.engine import (
    OPEN,
    RENAME,
    SECOND,
    SYNC,
    TRUNCATE,
    UNLINK,
    WRITE,
    Rig,
    bodies_of,
    drain,
    finish_all,
    numbered,
    segment_files,
)
from support.native.cursors import Acks

from broker.engine.cursor.local import LocalConsumer
from broker.engine.log.publish import append, outcome
from broker.runtime import vfs

ALWAYS = 1 << 40
RUNS_MAX = 400
LIMITS: dict[str, Any] = {
    "segment_bytes": 600,
    "journal_bytes_min": 200,
    "reclaim_bytes": 600,
    "load_bytes": 256,
}


class Story:
    """What is done to a log while a file call fails, and what was promised meanwhile."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.stored: list[bytes] = []
        self.failed: set[bytes] = set()
        self.finished: set[int] = set()
        self.kept: set[bytes] = set()
        self.consumer: Any = None
        self.count = 0

    def publish(self, count: int) -> None:
        bodies = numbered(count, start=self.count)
        self.count += count
        for body, result in zip(bodies, self.rig.publish(self.log, bodies), strict=True):
            assert result in (1, 0, -1)
            if result == 1:
                self.stored.append(body)
            else:
                self.failed.add(body)

    def finish(self, every: int) -> None:
        records, self.consumer.records = self.consumer.records, []
        for i, (seq, *_) in enumerate(records):
            if i % every == 0:
                assert self.consumer.finish(seq) == 0
                self.finished.add(seq)
            else:
                assert self.consumer.requeue(seq, 60 if i % 3 else 0) == 0
        self.rig.settle()

    def tell(self) -> None:
        rig = self.rig
        self.log = rig.log()
        self.log.open_cursor("audit")
        self.consumer = LocalConsumer(self.log.open_cursor("c"), 1000)
        self.publish(3)
        self.publish(30)
        self.finish(2)
        rig.advance(1.2)
        self.publish(5)
        self.log.open_cursor("gone")
        self.finish(1)
        self.log.delete_cursor("gone")
        rig.advance(1.2)
        self.publish(12)
        rig.advance(1.2)
        self.finish(1)
        self.pass_through()

    def pass_through(self) -> None:
        """Records of a second log: most are finished, so that its files go."""
        rig = self.rig
        self.through = rig.log("u")
        consumer = LocalConsumer(self.through.open_cursor("c"), 1000)
        for start in (0, 15, 30):
            bodies = numbered(15, start=start)
            results = rig.publish(self.through, bodies)
            self.kept |= {b for b, result in zip(bodies, results, strict=True) if result == 1}
            while consumer.records:
                seq, _, _, body = consumer.records.pop(0)
                if body != numbered(1, start=40)[0]:
                    assert consumer.finish(seq) == 0
                    self.kept.discard(body)
            rig.advance(1.2)
        rig.engine.delete_log(rig.log("v").name)

    def check_through(self, rig: Rig) -> None:
        log = rig.engine.logs.get("u")
        if log is None or "c" not in log.cursors:
            assert not self.kept
            return
        consumer = LocalConsumer(log.cursors["c"], 1000)
        rig.settle()
        assert self.kept <= set(bodies_of(consumer)) <= self.kept | set(numbered(45, start=0))
        assert log.cursors["c"].acks.floor >= log.first_seq

    def read_all(self, rig: Rig) -> list[bytes]:
        """All that is there, through a cursor that has seen nothing yet."""
        cursor = rig.engine.log("t").cursors["audit"]
        consumer = LocalConsumer(cursor, 1000)
        found = list(drain(rig, consumer, 3))
        consumer.leave()
        return found

    def check(self, rig: Rig, extras: bool) -> None:
        found = self.read_all(rig)
        assert [body for body in found if body not in self.failed] == self.stored
        if not extras:
            assert not self.failed.intersection(found), "a failed publish is there all the same"
        assert len(found) == len(set(found))


def survive(folder: Path, sync: str, faults: dict[int, tuple[int, int]], **more: Any) -> bool:
    """One story under faults {call: (after, times)}; False when the first of them did not fire."""
    shutil.rmtree(folder, ignore_errors=True)
    error = more.pop("error")
    partial = more.pop("partial", 0)
    first, *_ = faults
    with Rig(folder / "a", sync=sync, **LIMITS, **more) as rig:
        story = Story(rig)
        for call, (after, times) in faults.items():
            vfs.fail(call, error, after, times, partial)
        try:
            story.tell()
        except OSError:
            assert first in (RENAME, UNLINK, OPEN, WRITE), (
                "only what makes or removes files may raise"
            )
        fired = vfs.unfired(first) < faults[first][1]
        vfs.heal()
        rig.advance(3)
        rig.log().open_cursor("audit")  # unless it was made before the fault
        story.log = rig.log()
        assert rig.publish(story.log, [b"healed"]) == [1]
        story.stored.append(b"healed")
        extras = sync == "always" or TRUNCATE in faults
        story.check(rig, extras)
        deferred = [c.deferred_count for c in story.log.cursors.values() if c.name == "c"]
        if story.consumer is not None:
            story.consumer.set_credit(0)
        rig.settle()
        rig.advance(2)
        rig.crash(folder / "b")
    with Rig(folder / "b", sync=sync, clock=(rig.loop.now_ns, 0), **LIMITS) as rig:
        assert not [p for p in rig.engine.problems if TRUNCATE not in faults]
        assert not list((folder / "b" / "t" / "cursors").glob("*.new"))
        story.check(rig, extras)
        story.check_through(rig)
        cursor = rig.engine.log("t").cursors.get("c")
        assert "gone" not in rig.engine.log("t").cursors or first == UNLINK
        if cursor is not None:
            assert all(seq in Acks(cursor.acks) for seq in story.finished)
            assert [cursor.deferred_count] == deferred
            consumer = LocalConsumer(cursor, 1000)
            rig.settle()
            assert not story.finished.intersection(seq for seq, *_ in consumer.records)
    return fired


def loop(folder: Path, sync: str, call: int, **more: Any) -> int:
    """Let the call fail at every place it is made; how many there were."""
    times = more.pop("times", 1)
    besides = more.pop("besides", {})
    for after in range(RUNS_MAX):
        if not survive(folder, sync, {call: (after, times), **besides}, **more):
            return after
    raise AssertionError("the calls never end")


@pytest.mark.parametrize("sync", ["none", "always"])
@pytest.mark.parametrize("inline_bytes", [0, 1 << 17])
@pytest.mark.parametrize(("error", "partial"), [(errno.ENOSPC, 50), (errno.EIO, 0)])
def test_writes(folder: Path, sync: str, inline_bytes: int, error: int, partial: int) -> None:
    made = loop(folder, sync, WRITE, error=error, partial=partial, inline_bytes=inline_bytes)
    assert made > 20


@pytest.mark.parametrize("partial", [8, 64, 150, 1000])
def test_writes_that_cannot_be_taken_back(folder: Path, partial: int) -> None:
    """What got into the file of a failed write stays there, since it cannot be cut either."""
    besides = {TRUNCATE: (0, ALWAYS)}
    assert loop(folder, "none", WRITE, error=errno.EIO, partial=partial, besides=besides) > 20


@pytest.mark.parametrize("sync", ["none", "always"])
@pytest.mark.parametrize(("call", "least"), [(OPEN, 12), (RENAME, 8), (UNLINK, 3)])
def test_files_that_cannot_be_made_or_removed(
    folder: Path, sync: str, call: int, least: int
) -> None:
    assert loop(folder, sync, call, error=errno.ENOSPC) >= least


def test_syncs(folder: Path) -> None:
    assert loop(folder, "always", SYNC, error=errno.EIO) > 10


@pytest.mark.parametrize("call", [OPEN, WRITE, SYNC, RENAME])
def test_a_disk_that_fails_for_a_while(folder: Path, call: int) -> None:
    assert loop(folder, "always", call, error=errno.EIO, times=4) >= 5


def test_a_file_that_has_no_room_and_cannot_be_removed(folder: Path) -> None:
    """Its name would hide the short messages that the file before it still has room for."""
    with Rig(folder / "a", segment_bytes=600) as rig:
        log = rig.log()
        log.open_cursor("audit")
        bodies = [b"first", b"x" * 500, b"short"]
        assert append(log, bodies[0])
        vfs.fail(WRITE, errno.ENOSPC)
        vfs.fail(UNLINK, errno.EIO)
        assert append(log, bodies[1]) == 0
        vfs.heal()
        rig.loop._set_clock(rig.loop.now_ns + 2 * SECOND)  # in a long turn
        stored = bodies[:1]
        if append(log, bodies[2]):
            stored.append(bodies[2])
        rig.settle()
        rig.crash(folder / "b")
    with Rig(folder / "b", segment_bytes=600) as rig:
        consumer = LocalConsumer(rig.log().open_cursor("audit"), 100)
        rig.settle()
        assert bodies_of(consumer) == stored


@pytest.mark.parametrize("call", [OPEN, WRITE, SYNC, TRUNCATE, RENAME, UNLINK])
def test_opening_what_was_left_behind(folder: Path, call: int) -> None:
    """Recovery itself meets a failing disk: it says so, and the next one finds everything."""
    with Rig(folder / "a", **LIMITS) as rig:
        log = rig.log()
        log.open_cursor("audit")
        bodies = numbered(40)
        rig.publish(log, bodies)
        rig.close()
    *_, last = segment_files(folder / "a")
    last.write_bytes(last.read_bytes() + b"torn" * 10)
    for after in range(RUNS_MAX):
        shutil.rmtree(folder / "b", ignore_errors=True)
        shutil.copytree(folder / "a", folder / "b")
        vfs.fail(call, errno.EIO, after)
        with suppress(OSError):
            rig = Rig(folder / "b", **LIMITS)
            rig.advance(2)
            rig.abandon()
        fired = not vfs.unfired(call)
        vfs.heal()
        with Rig(folder / "b", **LIMITS) as rig:
            consumer = LocalConsumer(rig.engine.log("t").cursors["audit"], 100)
            assert list(drain(rig, consumer)) == bodies
        if not fired:
            return
    raise AssertionError("the calls never end")


# --- who gets the error


def test_a_failing_sync_fails_those_who_wait_for_it(folder: Path) -> None:
    with Rig(folder, sync="always") as rig:
        log = rig.log()
        before = [append(log, body) for body in numbered(3)]
        rig.settle()
        vfs.fail(SYNC, errno.EIO)
        waiting = [append(log, body) for body in numbered(3, 3)]
        rig.settle()
        after = [append(log, body) for body in numbered(3, 6)]
        rig.settle()
        assert [outcome(log, ticket) for ticket in before] == [1] * 3
        assert [outcome(log, ticket) for ticket in waiting] == [-1] * 3
        assert [outcome(log, ticket) for ticket in after] == [1] * 3
        assert len(segment_files(folder)) == 3, "one hides what was refused"
        assert rig.engine.shared.sync_errors == 1
        assert (log.last_error, log.refusal) == (0, "record too large")


def test_a_failing_write_fails_everything_behind_it(folder: Path) -> None:
    with Rig(folder, segment_bytes=600) as rig:
        log = rig.log()
        consumer = LocalConsumer(log.open_cursor("c"), 100)
        assert rig.publish(log, [b"first"]) == [1]
        # the records go behind the headers of the files that the run needs
        vfs.fail(WRITE, errno.ENOSPC, after=3)
        bodies = numbered(30)
        assert rig.publish(log, bodies) == [-1] * 30
        assert len(log.segments) == 1
        assert log.refusal == "No space left on device"
        assert rig.publish(log, [b"too early"]) == [0]
        rig.advance(1)
        assert rig.publish(log, bodies) == [1] * 30
        assert bodies_of(consumer) == [b"first", *bodies]
        assert log.next_seq == 32


def test_acks_while_the_journal_cannot_be_written(folder: Path) -> None:
    """They take no memory meanwhile, and are there when the disk is back, without any traffic."""
    with Rig(folder / "a", inline_bytes=1 << 17) as rig:
        log = rig.log()
        consumer = LocalConsumer(log.open_cursor("c"), 100_000)
        rig.publish(log, numbered(20_000))
        vfs.fail(WRITE, errno.ENOSPC, times=ALWAYS)
        vfs.fail(OPEN, errno.ENOSPC, times=ALWAYS)
        records, consumer.records = consumer.records, []
        for seq, *_ in records[::2]:
            consumer.finish(seq)
            rig.loop.run()
        assert log.cursors["c"].journal.pending_bytes <= 4096
        rig.advance(5)
        vfs.heal()
        rig.advance(3)
        rig.crash(folder / "b")
    with Rig(folder / "b") as rig:
        assert rig.engine.log("t").cursors["c"].depth == 10_000


def test_a_deletion_that_fails_while_the_journal_is_replaced(folder: Path) -> None:
    """Otherwise the new journal would get the name, and the deleted cursor return."""
    limits = {**LIMITS, "journal_bytes_min": 1}
    with Rig(folder / "0", **limits) as rig:
        log = rig.log()
        consumer = LocalConsumer(log.open_cursor("c"), 2)
        log.open_cursor("other")
        rig.publish(log, numbered(10_000))
        vfs.hold(SYNC)

        def is_replaced() -> bool:
            for seq, *_ in consumer.records:  # the journal becomes longer than what it says
                consumer.finish(seq)
            consumer.records.clear()
            return vfs.held(SYNC) == 1

        rig.until(is_replaced)
        vfs.fail(UNLINK, errno.EIO)
        with pytest.raises(OSError, match="Input/output"):
            log.delete_cursor("c")
        assert "c" in log.cursors
        log.delete_cursor("c")
        vfs.release(SYNC)
        rig.settle()
        rig.crash(folder / "1")
    with Rig(folder / "1", **limits) as rig:
        assert set(rig.engine.log("t").cursors) == {"other"}


def test_metadata_that_cannot_be_saved(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Rig(folder) as rig:
        log = rig.log()

        def full(*_: object, **__: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr("broker.engine.log.log.save_meta", full)
        with pytest.raises(OSError, match="No space"):
            rig.log("other")
        assert "other" not in rig.engine.logs
        monkeypatch.setattr(
            "broker.engine.log.log.has_meta", lambda *_: False
        )  # as if there was news
        assert rig.publish(log, [b"x"]) == [1]
        rig.close()
        assert any("cannot be saved" in text for _, text, _ in rig.reports)
    monkeypatch.undo()
    with Rig(folder) as rig:
        assert list(rig.engine.logs) == ["t"]
        assert rig.engine.log("t").depth == 1


@pytest.mark.parametrize("what", ["delete", "empty"])
def test_a_backlog_that_ended_while_metadata_could_not_be_saved(
    folder: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """The next channel does not begin with what was finished or dropped, even after a kill."""

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with Rig(folder / "0") as rig:
        log = rig.log()
        if what == "delete":
            consumer = LocalConsumer(log.open_cursor("c"), 1 << 30)
        assert rig.publish(log, numbered(10)) == [1] * 10
        with monkeypatch.context() as patch:
            patch.setattr("broker.engine.log.log.save_meta", full)
            if what == "delete":
                assert finish_all(consumer) == numbered(10)
                log.delete_cursor("c")
            else:
                with pytest.raises(OSError, match="No space"):
                    log.empty()
            rig.advance(2)
        rig.advance(2)
        rig.crash(folder / "1")
    with Rig(folder / "1") as rig:
        log = rig.engine.log("t")
        assert log.depth == 0
        assert rig.publish(log, [b"new"]) == [1]
        consumer = LocalConsumer(log.open_cursor("c"), 1 << 30)
        rig.settle()
        assert bodies_of(consumer) == [b"new"]


def test_a_folder_that_cannot_be_recovered_says_why(folder: Path) -> None:
    (folder / "t").mkdir()
    (folder / "t" / "00000000000000000001.seg").write_bytes(b"x" * 100)
    with Rig(folder) as rig:
        said = rig.engine.shared.health.first()
        assert "no metadata and no readable segment header" in str(said)
