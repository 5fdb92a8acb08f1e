"""The file of a segment that every cursor is done with becomes that of a later one."""

from __future__ import annotations

import errno
import os
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
    WRITE,
    Rig,
    bodies_of,
    drain,
    finish_all,
    flip_bit,
    limit,
    numbered,
    segment_files,
)

from broker.engine.bulk.ranges import Range
from broker.engine.cursor.local import LocalConsumer
from broker.engine.log.publish import append, outcome
from broker.engine.log.record import check_header, file_header, is_used
from broker.runtime import vfs

SEGMENT = 1 << 16
SHORT = 4096
HEADER, MARK, PAGE = 64, 40, 4096
REUSE: dict[str, Any] = {
    "segment_bytes": SEGMENT,
    "short_bytes": SHORT,
    "keep_bytes": 1024,
    "inline_bytes": 1 << 17,
}
ON_LOOP_OR_NOT = pytest.mark.parametrize("inline", [0, 1 << 17])


def spares(root: Path) -> list[Path]:
    return sorted(root.rglob("next.spare"))


def numbers(root: Path) -> set[int]:
    """The inodes of segments and spare files."""
    return {path.stat().st_ino for path in [*segment_files(root), *spares(root)]}


class Flow:
    """A log whose consumer finishes everything at once."""

    def __init__(self, rig: Rig, name: str = "c") -> None:
        self.rig = rig
        self.log = rig.log()
        self.consumer = LocalConsumer(self.log.open_cursor(name), 1 << 30)
        self.sent = 0

    def run(self, count: int, size: int = 100, turn: int = 5) -> None:
        """Publish in turns, and finish what comes: the same, in order."""
        for start in range(self.sent, self.sent + count, turn):
            bodies = numbered(min(turn, self.sent + count - start), start, size)
            assert set(self.rig.publish(self.log, bodies)) == {1}
            assert finish_all(self.consumer) == bodies
            self.rig.settle()
        self.sent += count


def header_of(path: Path) -> tuple[int, bool]:
    """(first seq, whether the file was used before) as the header says."""
    head = path.read_bytes()[:HEADER]
    found = check_header(head, path)
    assert found is not None
    return found[1], is_used(head)


@ON_LOOP_OR_NOT
def test_two_files_are_enough_for_a_log_whose_consumers_keep_up(
    tmp_path: Path, inline: int
) -> None:
    with Rig(tmp_path, **{**REUSE, "inline_bytes": inline}) as rig:
        flow = Flow(rig)
        flow.run(100)
        before = numbers(tmp_path)
        assert len(before) == 2
        for _ in range(10):
            flow.run(100)
            assert numbers(tmp_path) == before
        assert header_of(segment_files(tmp_path)[-1])[1]
        assert rig.reports == []


def test_the_mapping_is_used_again_with_the_file(tmp_path: Path) -> None:
    def places() -> set[str]:
        """The addresses at which files of the log are mapped."""
        lines = Path("/proc/self/maps").read_text().splitlines()
        return {line.partition(" ")[0] for line in lines if f"{tmp_path}/t/" in line}

    with Rig(tmp_path, **REUSE) as rig:
        flow = Flow(rig)
        flow.run(100)
        before = places()
        assert len(before) == 2
        for _ in range(5):
            flow.run(100)
            assert places() == before


def test_each_cursor_has_to_be_done(tmp_path: Path) -> None:
    with Rig(tmp_path, **REUSE) as rig:
        flow = Flow(rig)
        other = LocalConsumer(flow.log.open_cursor("other"), 1 << 30)
        flow.run(300)
        assert len(segment_files(tmp_path)) <= 2, "whole segments, for one that is behind"
        assert spares(tmp_path) == []
        assert finish_all(other) == numbered(300, 0, 100)
        flow.run(1500)
        assert finish_all(other) == numbered(1500, 300, 100)


def test_a_backlog_gets_whole_segments(tmp_path: Path) -> None:
    with Rig(tmp_path, **REUSE) as rig:
        log = rig.log()
        cursor = log.open_cursor("c")
        bodies = numbered(2000, 0, 100)
        for start in range(0, 2000, 50):
            rig.publish(log, bodies[start : start + 50])
        sizes = [path.stat().st_size for path in segment_files(tmp_path)]
        assert all(size > SEGMENT - 200 for size in sizes[:-1])
        consumer = LocalConsumer(cursor, 1 << 30)
        rig.until(lambda: not cursor.depth)
        assert finish_all(consumer) == bodies


def test_a_log_that_rests_keeps_no_file(tmp_path: Path) -> None:
    with Rig(tmp_path, **REUSE) as rig:
        flow = Flow(rig)
        flow.run(200)
        assert len(spares(tmp_path)) == 1
        for _ in range(5):
            rig.advance(1)
        assert spares(tmp_path) == []
        (left,) = segment_files(tmp_path)
        assert left.stat().st_size < SHORT
        flow.run(200)


@pytest.mark.parametrize("records", range(40, 90))
def test_after_a_kill_nothing_of_the_older_segment_is_there(tmp_path: Path, records: int) -> None:
    with Rig(tmp_path / "a", **REUSE) as rig:
        flow = Flow(rig)
        flow.run(records, turn=1)
        assert rig.publish(flow.log, [b"new"]) == [1]
        rig.crash(tmp_path / "b")
    with Rig(tmp_path / "b", **REUSE) as rig:
        assert rig.engine.problems == []
        assert spares(tmp_path / "b") == []
        log = rig.engine.log("t")
        assert log.next_seq == records + 2
        consumer = LocalConsumer(log.cursors["c"], 1 << 30)
        assert drain(rig, consumer) == [b"new"]
        assert rig.publish(log, [b"after"]) == [1]
        assert drain(rig, consumer) == [b"after"]
        assert rig.reports == []


def in_used_file(root: Path, **limits: Any) -> Path:
    """A log `t` with 60 finished records and 5 others, whose last file was used before; the root
    of what a kill leaves."""
    with Rig(root / "a", **{**REUSE, **limits}) as rig:
        flow = Flow(rig)
        flow.run(60)
        rig.publish(flow.log, numbered(5, 60, 100))
        rig.crash(root / "b")
    assert header_of(segment_files(root / "b")[-1])[1]
    return root / "b"


def older_head(path: Path) -> bytes:
    """The header of that file, were it the first segment of its log."""
    return file_header(path.read_bytes()[16:32], 1, 1)


def end_of_records(path: Path) -> int:
    """Where the zeros behind the records begin."""
    text = path.read_bytes()
    at = HEADER
    while length := int.from_bytes(text[at : at + 4], "little"):
        at += (length + 7) & ~7
    return at


def test_a_torn_write_is_kept_without_what_is_older(tmp_path: Path) -> None:
    root = in_used_file(tmp_path)
    path = segment_files(root)[-1]
    text = bytearray(path.read_bytes())
    at = end_of_records(path)
    torn = bytes(text[HEADER : HEADER + 90])
    text[at : at + 90] = torn
    path.write_bytes(text)
    with Rig(root, **REUSE) as rig:
        (problem,) = rig.engine.problems
        assert f"was cut at {at}" in problem
        log = rig.engine.log("t")
        consumer = LocalConsumer(log.cursors["c"], 1 << 30)
        assert drain(rig, consumer) == numbered(5, 60, 100)
        assert rig.publish(log, [b"after"]) == [1]
        assert drain(rig, consumer) == [b"after"]
    (copy,) = path.parent.glob("*.torn-*")
    assert copy.read_bytes().startswith(torn)
    assert len(copy.read_bytes()) < 90 + 2 * 150, "not all that is older"


def test_a_damaged_record_in_a_used_file_is_passed_over(tmp_path: Path) -> None:
    root = in_used_file(tmp_path)
    path = segment_files(root)[-1]
    flip_bit(path, end_of_records(path) - 5 * 144 + 50)
    with Rig(root, **REUSE) as rig:
        assert any("do not read and are passed over" in text for text in rig.engine.problems)
        assert rig.engine.log("t").next_seq == 66
        consumer = LocalConsumer(rig.engine.log("t").cursors["c"], 1 << 30)
        assert drain(rig, consumer) == numbered(4, 61, 100)


def test_a_power_cut_left_the_header_of_the_older_segment(tmp_path: Path) -> None:
    root = in_used_file(tmp_path)
    path = segment_files(root)[-1]
    # nothing of what was written since is on the disk
    text = bytearray(path.read_bytes())
    text[:HEADER] = older_head(path)
    at = end_of_records(path)
    text[HEADER:at] = text[at + MARK :][: at - HEADER].ljust(at - HEADER, b"\1")
    path.write_bytes(text)
    with Rig(root, **REUSE) as rig:
        log = rig.engine.log("t")
        assert log.next_seq == 66, "the cursor knows of records up to there"
        consumer = LocalConsumer(log.cursors["c"], 1 << 30)
        assert drain(rig, consumer) == []
        assert rig.publish(log, [b"after"]) == [1]
        assert drain(rig, consumer) == [b"after"]
        rig.crash(tmp_path / "c")
    with Rig(tmp_path / "c", **REUSE) as rig:
        assert rig.engine.problems == []
        consumer = LocalConsumer(rig.engine.log("t").cursors["c"], 1 << 30)
        assert drain(rig, consumer) == [b"after"]


def half_written(root: Path, **limits: Any) -> tuple[Path, int]:
    """A used file of which one page is still that of the older segment, and a later one is not.
    The root, and how many of 60 records are left."""
    with Rig(root / "a", **{**REUSE, "short_bytes": 32768, **limits}) as rig:
        flow = Flow(rig)
        flow.run(480)
        rig.publish(flow.log, numbered(60, 480, 100))
        flow.consumer.leave()
        rig.crash(root / "b")
    path = segment_files(root / "b")[-1]
    text = bytearray(path.read_bytes())
    behind = (end_of_records(path) + MARK + PAGE) & -PAGE
    assert behind + PAGE < len(text)
    assert end_of_records(path) > 2 * PAGE
    first = text[PAGE : 2 * PAGE]
    text[PAGE : 2 * PAGE] = text[behind : behind + PAGE]
    path.write_bytes(text)
    return root / "b", 60 - sum(body[:4] in first for body in numbered(60, 480, 100))


def test_a_page_that_a_power_cut_left_as_it_was_is_no_damage(tmp_path: Path) -> None:
    root, left = half_written(tmp_path)
    with Rig(root, **REUSE) as rig:
        (problem,) = rig.engine.problems
        assert "were not written before the power was cut" in problem
        assert rig.engine.shared.health.problems() == []
        assert rig.engine.shared.quarantined_bytes == 0
        log = rig.engine.log("t")
        consumer = LocalConsumer(log.cursors["c"], 1 << 30)
        found = drain(rig, consumer)
        assert left - 2 <= len(found) < 60
        assert found == [body for body in numbered(60, 480, 100) if body in found]
        assert rig.publish(log, [b"after"]) == [1]
        assert drain(rig, consumer) == [b"after"]


def test_where_each_record_was_synced_it_may_be_damage(tmp_path: Path) -> None:
    root, _ = half_written(tmp_path)
    with Rig(root, sync="always", **REUSE) as rig:
        assert any("do not read and are passed over" in text for text in rig.engine.problems)
        assert rig.engine.shared.health.problems()


def test_a_power_cut_left_the_name_of_the_older_segment(tmp_path: Path) -> None:
    root = in_used_file(tmp_path)
    path = segment_files(root)[-1]
    path.rename(path.with_name("00000000000000000001.seg"))
    with Rig(root, **REUSE) as rig:
        (problem,) = rig.engine.problems
        assert "the header is that of segment" in problem
        assert path.exists()
        log = rig.engine.log("t")
        consumer = LocalConsumer(log.cursors["c"], 1 << 30)
        assert drain(rig, consumer) == numbered(5, 60, 100)
        assert log.next_seq == 66
        rig.close()
    with Rig(root, **REUSE) as rig:
        assert rig.engine.problems == []


def test_a_name_that_no_power_cut_explains_is_put_aside(tmp_path: Path) -> None:
    root = in_used_file(tmp_path)
    path = segment_files(root)[-1]
    shutil.copy(path, path.with_name("00000000000000000001.seg"))
    with Rig(root, **REUSE) as rig:
        assert any(".seg.unreadable" in text for text in rig.engine.problems)
        consumer = LocalConsumer(rig.engine.log("t").cursors["c"], 1 << 30)
        assert drain(rig, consumer) == numbered(5, 60, 100)
    assert (path.parent / "00000000000000000001.seg.unreadable").exists()


def test_a_spare_file_of_an_older_segment_is_removed(tmp_path: Path) -> None:
    root = in_used_file(tmp_path)
    path = segment_files(root)[-1]
    spare = path.with_name("next.spare")
    spare.write_bytes(older_head(path) + path.read_bytes()[HEADER:])
    with Rig(root, **REUSE) as rig:
        assert rig.engine.problems == []
    assert not spare.exists()
    assert list(root.rglob("*.unreadable")) == []


def test_a_spare_file_with_the_header_of_the_next_segment_becomes_it(tmp_path: Path) -> None:
    """The process ended, or the power was cut, between the two steps."""
    root = in_used_file(tmp_path)
    path = segment_files(root)[-1]
    spare = path.with_name("next.spare")
    path.rename(spare)
    with Rig(root, **REUSE) as rig:
        assert rig.engine.problems == []
        consumer = LocalConsumer(rig.engine.log("t").cursors["c"], 1 << 30)
        assert drain(rig, consumer) == numbered(5, 60, 100)


@pytest.mark.parametrize("sync", ["none", "always"])
def test_a_spare_file_that_did_not_become_a_segment_hides_nothing(
    tmp_path: Path, sync: str
) -> None:
    """It has the header of the next segment, but no name could be made; the segment before took
    shorter records, with those seqs."""
    limits = {**REUSE, "segment_bytes": SHORT, "short_bytes": 0}
    with Rig(tmp_path / "a", sync=sync, **limits) as rig:
        flow = Flow(rig)
        while not spares(tmp_path / "a"):
            flow.run(1)
        flow.run(10)
        vfs.fail(RENAME, errno.EIO)
        vfs.fail(CREATE, errno.EIO)
        assert rig.publish(flow.log, [bytes(SHORT - 500)]) == [0]
        assert not vfs.unfired(CREATE)
        assert header_of(*spares(tmp_path / "a"))[0] == flow.log.next_seq
        rig.advance(1.1)
        assert rig.publish(flow.log, numbered(3, 100)) == [1] * 3
        rig.crash(tmp_path / "b")
    with Rig(tmp_path / "b", sync=sync, **limits) as rig:
        assert rig.engine.problems == []
        assert spares(tmp_path / "b") == []
        consumer = LocalConsumer(rig.engine.log("t").cursors["c"], 1 << 30)
        assert drain(rig, consumer) == numbered(3, 100)


@pytest.mark.parametrize("call", [RENAME, OPEN, WRITE])
def test_a_file_that_cannot_be_used_again(tmp_path: Path, call: int) -> None:
    with Rig(tmp_path, **REUSE) as rig:
        flow = Flow(rig)
        flow.run(30, turn=1)
        failed = 0
        for number in range(30, 90):
            vfs.fail(call, errno.EIO)
            (answer,) = rig.publish(flow.log, numbered(1, number, 100))
            vfs.heal()
            if answer != 1:
                failed += 1
                rig.advance(2)
                assert rig.publish(flow.log, numbered(1, number, 100)) == [1]
            assert finish_all(flow.consumer) == numbered(1, number, 100)
            rig.settle()
        assert bool(failed) == (call == WRITE)
        rig.crash(tmp_path / "after")
    with Rig(tmp_path / "after", **REUSE) as rig:
        log = rig.engine.log("t")
        consumer = LocalConsumer(log.cursors["c"], 1 << 30)
        assert drain(rig, consumer) == []
        assert rig.publish(log, [b"after"]) == [1]
        assert drain(rig, consumer) == [b"after"]


def test_a_failed_write_gives_the_file_back(tmp_path: Path) -> None:
    """The disk may be full."""
    with Rig(tmp_path, **REUSE) as rig:
        flow = Flow(rig)
        flow.run(200)
        assert len(spares(tmp_path)) == 1
        vfs.fail(WRITE, errno.ENOSPC)
        assert rig.publish(flow.log, [b"lost"]) == [-1]
        assert spares(tmp_path) == []
        vfs.heal()
        rig.advance(2)
        flow.run(200)


def test_what_is_always_synced_waits_until_the_old_name_is_gone(tmp_path: Path) -> None:
    """Else a power cut could bring that name back, with records that are not its own."""
    with Rig(tmp_path, sync="always", **{**REUSE, "segment_bytes": 8192}) as rig:
        flow = Flow(rig)
        flow.run(50)
        assert set(rig.publish(flow.log, numbered(10, 50, 100))) == {1}
        first = segment_files(tmp_path)[0].stat().st_ino
        vfs.hold(SYNC_PATH)
        finish_all(flow.consumer)
        rig.until(lambda: bool(spares(tmp_path)))
        assert first == spares(tmp_path)[0].stat().st_ino
        tickets = []
        for body in numbered(60, 60, 100):
            tickets.append(append(flow.log, body))
            rig.loop.run()
        rig.until(lambda: len(segment_files(tmp_path)) == 2)
        assert first not in {path.stat().st_ino for path in segment_files(tmp_path)}
        vfs.release(SYNC_PATH)
        rig.settle()
        assert {outcome(flow.log, ticket) for ticket in tickets} == {1}
        assert finish_all(flow.consumer) == numbered(60, 60, 100)


def test_a_synced_log_uses_its_files_again(tmp_path: Path) -> None:
    with Rig(tmp_path, sync="always", **{**REUSE, "segment_bytes": 8192}) as rig:
        flow = Flow(rig)
        flow.run(200)
        before = numbers(tmp_path)
        flow.run(300)
        assert numbers(tmp_path) <= before
        rig.crash(tmp_path / "after")
    with Rig(tmp_path / "after", sync="always", **REUSE) as rig:
        assert rig.engine.problems == []


def test_a_log_with_limits_uses_its_files_again(tmp_path: Path) -> None:
    with Rig(tmp_path, **{**REUSE, "segment_bytes": 8192}) as rig:
        log = rig.log()
        log.set_protocol("x", "limits")
        limit(log, msgs_max=100)
        for start in range(0, 400, 10):
            assert set(rig.publish(log, numbered(10, start, 100))) == {1}
        before = numbers(tmp_path)
        for start in range(400, 1200, 10):
            assert set(rig.publish(log, numbered(10, start, 100))) == {1}
        assert numbers(tmp_path) == before
        cursor = log.open_cursor("late", start=log.first_seq)
        consumer = LocalConsumer(cursor, 1 << 30)
        rig.until(lambda: not cursor.depth)
        assert bodies_of(consumer) == numbered(100, 1100, 100)


def test_a_file_that_readers_may_have_open_is_removed(tmp_path: Path) -> None:
    with Rig(tmp_path, **REUSE) as rig:
        flow = Flow(rig)
        flow.run(10)
        number = segment_files(tmp_path)[0].stat().st_ino
        flow.log.sync.now()
        rig.settle()
        found = Range(flow.log, flow.log.first_seq, flow.log.next_seq, 1 << 20)
        with segment_files(tmp_path)[0].open("rb") as held:
            flow.run(200)
            assert os.fstat(held.fileno()).st_nlink == 0
        assert number not in numbers(tmp_path)
        assert found.bound > found.first


def test_a_damaged_segment_is_kept_and_not_used_again(tmp_path: Path) -> None:
    root = in_used_file(tmp_path)
    path = segment_files(root)[-1]
    flip_bit(path, end_of_records(path) - 5 * 144 + 50)
    with Rig(root, **REUSE) as rig:
        flow = Flow(rig)
        drain(rig, flow.consumer)
        for seq in range(flow.log.first_seq, flow.log.next_seq):
            flow.consumer.finish(seq)
        number = path.stat().st_ino
        flow.sent = 65
        flow.run(600)
        assert (path.parent / f"{path.name}.quarantined").stat().st_ino == number


def test_other_settings_are_in_the_header_of_a_used_file(tmp_path: Path) -> None:
    with Rig(tmp_path / "a", **REUSE) as rig:
        flow = Flow(rig)
        flow.run(60)
        flow.log.restamp()
        rig.publish(flow.log, [b"new"])
        assert header_of(segment_files(tmp_path / "a")[-1])[1]
        rig.crash(tmp_path / "b")
    with Rig(tmp_path / "b", **REUSE) as rig:
        assert rig.engine.problems == []


def test_a_file_is_not_closed_before_its_sync(tmp_path: Path) -> None:
    """The descriptor could be that of another file by then."""
    with Rig(tmp_path, sync=1.0, **REUSE) as rig:
        flow = Flow(rig)
        flow.run(25)
        assert set(rig.publish(flow.log, numbered(15, 25, 100))) == {1}
        vfs.hold(SYNC)
        rig.loop.advance(10**9)
        rig.until(lambda: vfs.held(SYNC) > 0)
        finish_all(flow.consumer)
        rig.loop.run()
        assert len(spares(tmp_path)) == 1
        vfs.fail(WRITE, errno.ENOSPC)
        append(flow.log, b"lost")
        rig.loop.run()
        assert spares(tmp_path) == []
        vfs.release(SYNC)
        rig.settle()
        assert not [text for _, text, _ in rig.reports if "sync failed" in text]


@pytest.mark.parametrize("second_has_the_name_of_the_first", [False, True])
def test_a_power_cut_left_the_names_of_two_older_segments(
    tmp_path: Path, second_has_the_name_of_the_first: bool
) -> None:
    with Rig(tmp_path / "a", **REUSE) as rig:
        flow = Flow(rig)
        flow.run(100)
        rig.publish(flow.log, numbered(25, 100, 100))
        rig.crash(tmp_path / "b")
    before, last = segment_files(tmp_path / "b")
    assert header_of(before)[1]
    assert header_of(last)[1]
    if second_has_the_name_of_the_first:
        before.rename(before.with_name("00000000000000000001.seg"))
        last.rename(before)
    else:
        before.rename(before.with_name("00000000000000000002.seg"))
        last.rename(before.with_name("00000000000000000001.seg"))
    with Rig(tmp_path / "b", **REUSE) as rig:
        assert len(rig.engine.problems) == 2
        assert segment_files(tmp_path / "b") == [before, last]
        consumer = LocalConsumer(rig.engine.log("t").cursors["c"], 1 << 30)
        assert drain(rig, consumer) == numbered(25, 100, 100)


def test_a_file_that_takes_no_more_stays_so(tmp_path: Path) -> None:
    """Its length is limited, and a cursor is behind."""
    with Rig(tmp_path, **REUSE) as rig:
        log = rig.log()
        log.open_cursor("c")
        assert set(rig.publish(log, numbered(5))) == {1}
        vfs.fail(WRITE, errno.EFBIG)
        assert rig.publish(log, [b"lost"]) == [-1]
        rig.advance(2)
        assert rig.publish(log, [b"new"]) == [1]
        assert len(segment_files(tmp_path)) == 2


def test_nothing_is_left_behind_a_segment_that_was_full_before_it_was_written(
    tmp_path: Path,
) -> None:
    with Rig(tmp_path, **{**REUSE, "inline_bytes": 0}) as rig:
        flow = Flow(rig)
        flow.run(100)
        while not header_of(segment_files(tmp_path)[-1])[1]:
            flow.run(1)
        active = flow.log.segments[-1]
        room = (SHORT - active.planned) // 144
        assert room > 3
        vfs.slow(WRITE, 100_000_000)  # the file is cut before it is written
        for body in numbered(room - 2, 0, 100):
            append(flow.log, body)
        rig.loop.run()
        append(flow.log, b"x" * 1000)
        rig.settle()
        assert flow.log.segments[-1] is not active
        assert Path(os.fsdecode(active.path)).stat().st_size == active.planned


def test_nothing_is_left_behind_a_segment_after_which_no_file_could_be_made(tmp_path: Path) -> None:
    with Rig(tmp_path, **{**REUSE, "inline_bytes": 0}) as rig:
        flow = Flow(rig)
        flow.run(100)
        while not header_of(segment_files(tmp_path)[-1])[1]:
            flow.run(1)
        active = flow.log.segments[-1]
        path = Path(os.fsdecode(active.path))
        vfs.slow(WRITE, 100_000_000)  # the file is cut before it is written
        for body in numbered((SHORT - active.planned) // 144 - 2, 0, 100):
            append(flow.log, body)
        rig.loop.run()
        vfs.fail(OPEN, errno.EMFILE)
        vfs.fail(RENAME, errno.EIO)
        append(flow.log, b"x" * 1000)
        rig.settle()
        vfs.heal()
        assert flow.log.segments[-1] is active
        rig.advance(2)
        assert rig.publish(flow.log, [b"x" * 1000]) == [1]
        assert flow.log.segments[-1] is not active
        rig.settle()
        assert path.stat().st_size == active.planned


def test_a_log_that_slows_down_gives_its_file_back(tmp_path: Path) -> None:
    """The pages may have left memory."""
    with Rig(tmp_path, **REUSE) as rig:
        flow = Flow(rig)
        flow.run(200)
        for _ in range(25):
            assert len(spares(tmp_path)) == (flow.sent < 221)
            flow.run(1, size=1)
            rig.advance(1)
        assert len(flow.log.segments) == 1, "it has not become that of another segment"


def test_a_file_that_could_not_get_its_name_is_removed_after_a_kill(tmp_path: Path) -> None:
    with Rig(tmp_path / "a", **REUSE) as rig:
        flow = Flow(rig)
        flow.run(30)
        while not spares(tmp_path / "a"):
            flow.run(1, turn=1)
        while spares(tmp_path / "a") and len(segment_files(tmp_path / "a")) == 1:
            vfs.fail(RENAME, errno.EIO)
            rig.publish(flow.log, numbered(1, flow.sent, 100))
            flow.sent += 1
            vfs.heal()
        rig.crash(tmp_path / "b")
    assert spares(tmp_path / "b")
    with Rig(tmp_path / "b", **REUSE) as rig:
        assert rig.engine.problems == []
        assert list((tmp_path / "b").rglob("*.unreadable")) == []
        assert spares(tmp_path / "b") == []


def test_refused_records_do_not_come_back_out_of_a_used_file(tmp_path: Path) -> None:
    """Their seqs are in use again when the file has become that of a later segment."""
    limits = {**REUSE, "inline_bytes": 0}
    with Rig(tmp_path / "a", sync="always", **limits) as rig:
        log = rig.log()
        consumer = LocalConsumer(log.open_cursor("c"), 1 << 30)
        rig.publish(log, numbered(20, 0, 300))
        rig.settle()
        kept = consumer.records.pop()  # unfinished until all others are
        finish_all(consumer)
        vfs.fail(SYNC, errno.EIO)
        vfs.hold(SYNC)
        tickets = [append(log, b"first")]
        rig.loop.run()
        rig.until(lambda: vfs.held(SYNC) > 0)
        vfs.hold(WRITE)
        tickets += [append(log, b"refused %d" % each) for each in range(400)]
        rig.loop.run()
        rig.until(lambda: vfs.held(WRITE) > 0)
        vfs.release(SYNC)
        rig.until(lambda: any("sync failed" in text for _, text, _ in rig.reports))
        vfs.release(WRITE)
        vfs.heal()
        rig.settle()
        assert {outcome(log, ticket) for ticket in tickets} == {-1}
        path = segment_files(tmp_path / "a")[0]
        assert b"refused 399" in path.read_bytes(), "a reader may be behind its new end"
        rig.advance(2)
        assert rig.publish(log, [b"stored"]) == [1]
        finish_all(consumer)
        consumer.finish(kept[0])
        rig.settle()
        assert not path.exists()
        while len(log.segments) == 1:  # fewer records than were refused fill the file
            room = SEGMENT - log.segments[0].planned
            assert rig.publish(log, [b"x" * (15000 if room > 16000 else room - 30)]) == [1]
        finish_all(consumer)
        assert rig.publish(log, [b"last"]) == [1]
        end = log.next_seq
        rig.crash(tmp_path / "b")
    with Rig(tmp_path / "b", sync="always", **limits) as rig:
        assert rig.engine.problems == []
        log = rig.engine.log("t")
        assert log.next_seq == end
        assert drain(rig, LocalConsumer(log.cursors["c"], 1 << 30)) == [b"last"]


def test_a_file_that_is_longer_than_its_segment_is_not_used(tmp_path: Path) -> None:
    """It could not be cut."""
    with Rig(tmp_path, **REUSE) as rig:
        flow = Flow(rig)
        while len(segment_files(tmp_path)) < 2:
            rig.publish(flow.log, numbered(1, 0, 100))
        first = segment_files(tmp_path)[0]
        os.truncate(first, first.stat().st_size + MARK + 8)
        finish_all(flow.consumer)
        rig.settle()
        assert not first.exists()
        assert spares(tmp_path) == []


def test_a_file_whose_sync_has_failed_is_not_used(tmp_path: Path) -> None:
    with Rig(tmp_path, sync="always", **{**REUSE, "segment_bytes": 8192}) as rig:
        flow = Flow(rig)
        flow.run(50)
        while flow.log.segments[-1].planned < 7000:
            flow.run(1)
        with segment_files(tmp_path)[-1].open() as file:  # no other one gets its number
            vfs.fail(SYNC, errno.EIO)
            vfs.hold(SYNC)
            tickets = [append(flow.log, body) for body in numbered(6, 0, 300)]
            rig.loop.run()
            rig.until(lambda: vfs.held(SYNC) > 0)
            for body in numbered(6, 6, 300):
                tickets.append(append(flow.log, body))
                rig.loop.run()
            finish_all(flow.consumer)
            rig.loop.run()
            vfs.release(SYNC)
            vfs.heal()
            rig.settle()
            assert {outcome(flow.log, ticket) for ticket in tickets} == {-1}
            assert os.fstat(file.fileno()).st_ino not in numbers(tmp_path)


@pytest.mark.parametrize("sync", ["none", 1.0, "always"])
def test_a_log_that_rested_before_its_consumer_came_gives_its_file_back(
    tmp_path: Path, sync: str | float
) -> None:
    with Rig(tmp_path, sync=sync, **{**REUSE, "segment_bytes": 8192}) as rig:
        log = rig.log()
        consumer = LocalConsumer(log.open_cursor("c", ephemeral=True), 1 << 30)
        for start in range(0, 100, 5):
            rig.publish(log, numbered(5, start, 100))
        for _ in range(5):
            rig.advance(1)
        finish_all(consumer)
        rig.settle()
        assert len(spares(tmp_path)) == 1
        for _ in range(30):
            rig.advance(1)
        assert spares(tmp_path) == []


def test_a_spare_file_that_the_disk_cannot_read_harms_nothing(tmp_path: Path) -> None:
    root = in_used_file(tmp_path)
    (root / "t" / "next.spare").write_bytes(b"x" * PAGE)
    vfs.fail(OPEN, errno.EIO)
    with Rig(root, **REUSE) as rig:
        vfs.heal()
        (problem,) = rig.engine.problems
        assert "next.spare: the disk cannot read it" in problem
        consumer = LocalConsumer(rig.engine.log("t").cursors["c"], 1 << 30)
        assert drain(rig, consumer) == numbered(5, 60, 100)
    assert spares(root) == []
    assert len(list(root.rglob("next.spare.unreadable"))) == 1


def two_used(root: Path) -> tuple[Path, list[bytes]]:
    """A log whose last two files were used before, the last one with 50 records; the root of what a
    kill leaves, and the bodies of all records that are not finished."""
    with Rig(root / "a", **{**REUSE, "short_bytes": 32768}) as rig:
        flow = Flow(rig)
        flow.run(1000)
        while not 22000 < flow.log.segments[-1].planned < 26000:
            flow.run(1)
        last = flow.log.segments[-1]
        sent = flow.sent
        flow.consumer.leave()
        while flow.log.segments[-1] is last:
            assert rig.publish(flow.log, numbered(1, sent, 100)) == [1]
            sent += 1
        assert set(rig.publish(flow.log, numbered(50, sent, 100))) == {1}
        sent += 50
        rig.crash(root / "b")
    assert all(header_of(path)[1] for path in segment_files(root / "b"))
    return root / "b", numbered(sent - flow.sent, flow.sent, 100)


def older_page(path: Path, page: int) -> bytes:
    """What a used file has there of the older segment."""
    text = path.read_bytes()
    assert end_of_records(path) + MARK < page * PAGE < len(text) - PAGE
    return text[page * PAGE : (page + 1) * PAGE]


def finish_and_drop(rig: Rig, consumer: LocalConsumer) -> None:
    log = rig.engine.log("t")
    for seq in range(log.first_seq, log.next_seq):
        consumer.finish(seq)
    while rig.publish(log, [b"x" * 4000]) and len(log.segments) > 1:
        drain(rig, consumer)
        for seq in range(log.first_seq, log.next_seq):
            consumer.finish(seq)
        rig.settle()


def test_zeros_behind_a_segment_that_was_full_are_no_damage(tmp_path: Path) -> None:
    """The process was killed after it had written the last records and before it cut the file."""
    root, bodies = two_used(tmp_path)
    path = segment_files(root)[0]
    path.write_bytes(path.read_bytes() + bytes(MARK))
    with Rig(root, **REUSE) as rig:
        assert rig.engine.problems == []
        consumer = LocalConsumer(rig.engine.log("t").cursors["c"], 1 << 30)
        assert drain(rig, consumer) == bodies
        finish_and_drop(rig, consumer)
        assert rig.reports == []
    assert not path.exists()
    assert list(root.rglob("*.quarantined")) == []


def with_older_page(root: Path, zeros: int = 0) -> tuple[Path, list[bytes]]:
    """A page of the file before the last is still that of the older segment: the root, and what was
    in the log."""
    root, bodies = two_used(root)
    path, last = segment_files(root)
    text = bytearray(path.read_bytes())
    text[6 * PAGE : 7 * PAGE] = older_page(last, 6)
    path.write_bytes(text + bytes(zeros))
    return root, bodies


def is_damage(rig: Rig) -> bool:
    """What readers found: damage, or pages that were not written over."""
    said = [text for _, text, _ in rig.reports]
    damage = bool(rig.engine.shared.health.problems())
    assert bool(rig.engine.shared.quarantined_bytes) == damage
    assert any("not written before the power was cut" in text for text in said) != damage
    assert any("do not read and are passed over" in text for text in said) == damage
    return damage


@pytest.mark.parametrize("zeros", [0, MARK])
@pytest.mark.parametrize("sync", ["none", 1.0, "always"])
def test_a_power_cut_left_a_page_of_a_full_file_as_it_was(
    tmp_path: Path, sync: str | float, zeros: int
) -> None:
    root, bodies = with_older_page(tmp_path, zeros)
    with Rig(root, sync=sync, **REUSE) as rig:
        assert rig.engine.problems == []
        consumer = LocalConsumer(rig.engine.log("t").cursors["c"], 1 << 30)
        found = drain(rig, consumer)
        assert found == [body for body in bodies if body in found]
        assert len(bodies) - 31 <= len(found) < len(bodies)
        assert is_damage(rig) == (sync == "always")
        finish_and_drop(rig, consumer)
    assert len(list(root.rglob("*.quarantined"))) == (sync == "always")


def test_a_bulk_reader_finds_a_page_that_was_not_written(tmp_path: Path) -> None:
    root, _ = with_older_page(tmp_path)
    with Rig(root, **REUSE) as rig:
        log = rig.engine.log("t")
        log.sync.now()
        rig.settle()
        part = Range(log, log.first_seq, log.next_seq, 1 << 20)
        part.read()
        assert part.add_to_index(log) > 0
        assert not is_damage(rig)


def test_a_page_of_a_file_that_was_written_long_before_is_damage(tmp_path: Path) -> None:
    """It was on the disk."""
    root, _ = with_older_page(tmp_path)
    path = segment_files(root)[0]
    os.utime(path, (path.stat().st_mtime - 3600,) * 2)
    with Rig(root, sync=1.0, **REUSE) as rig:
        drain(rig, LocalConsumer(rig.engine.log("t").cursors["c"], 1 << 30))
        assert is_damage(rig)


def test_the_last_page_of_a_full_file_has_no_whole_older_record(tmp_path: Path) -> None:
    root, bodies = two_used(tmp_path)
    path, last = segment_files(root)
    text = bytearray(path.read_bytes())
    text[-144:] = bytes(MARK) + older_page(last, 6)[-104:]
    path.write_bytes(text)
    with Rig(root, **REUSE) as rig:
        found = drain(rig, LocalConsumer(rig.engine.log("t").cursors["c"], 1 << 30))
        assert len(found) == len(bodies) - 1
        assert not is_damage(rig)


def test_damage_in_a_full_file_that_ends_with_zeros_is_reported(tmp_path: Path) -> None:
    root, _ = two_used(tmp_path)
    path = segment_files(root)[0]
    path.write_bytes(path.read_bytes() + bytes(MARK))
    flip_bit(path, HEADER + 160 * 144 + 60)
    with Rig(root, **REUSE) as rig:
        drain(rig, LocalConsumer(rig.engine.log("t").cursors["c"], 1 << 30))
        assert is_damage(rig)


def test_a_power_cut_has_undone_the_cut_of_a_full_file(tmp_path: Path) -> None:
    root, bodies = two_used(tmp_path)
    path, last = segment_files(root)
    path.write_bytes(path.read_bytes() + bytes(MARK) + older_page(last, 6))
    with Rig(root, **REUSE) as rig:
        consumer = LocalConsumer(rig.engine.log("t").cursors["c"], 1 << 30)
        assert drain(rig, consumer) == bodies
        assert rig.engine.shared.health.problems() == []
        assert rig.engine.shared.quarantined_bytes == 0


def test_a_power_cut_left_the_first_page_as_it_was_when_the_file_got_its_name(
    tmp_path: Path,
) -> None:
    """And the file before ends too early: the records of later pages are kept all the same."""
    root, bodies = two_used(tmp_path)
    path, last = segment_files(root)
    older = older_page(last, 6)
    text = bytearray(last.read_bytes())
    text[HEADER : HEADER + MARK] = bytes(MARK)
    text[HEADER + MARK : PAGE] = older[HEADER + MARK :]
    last.write_bytes(text)
    before = bytearray(path.read_bytes())
    at = HEADER + 144 * 170
    before[at : at + MARK] = bytes(MARK)
    before[at + MARK :] = (older * 4)[: len(before) - at - MARK]
    path.write_bytes(before)
    with Rig(root, **REUSE) as rig:
        (problem,) = rig.engine.problems
        assert "were not written before the power was cut" in problem
        found = drain(rig, LocalConsumer(rig.engine.log("t").cursors["c"], 1 << 30))
        assert found[-20:] == bodies[-20:]
    assert last.exists()
