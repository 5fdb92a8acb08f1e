"""Ranges of records: what a frame holds, with files as they should be and as they should not."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from support.clients.bulk import DAMAGED, MISSING, Frame, read_frame
from support.engine import CALLS, Rig, flip_bit, numbered, segment_files, wait
from support.native.stores import publish

from broker.engine.bulk.ranges import Range, moment_in_memory
from broker.engine.log.publish import append
from broker.engine.stream.store import StreamLimits, open_store
from broker.runtime import vfs

ALL = 1 << 62
RECORD = 64  # of a body of 24 bytes


def frame_of(
    log: Any, start: int, end: int = ALL, bytes_max: int = 1 << 20, *, complete: bool = True
) -> Frame:
    found = Range(log, start, end, bytes_max)
    found.read()
    found.add_to_index(log)
    assert found.joined() == b"".join(found.parts())
    frame = read_frame(found.joined(), complete=complete)
    assert (found.count, found.next_seq, found.gaps) == (
        len(frame.records),
        frame.next,
        frame.gaps,
    )
    return frame


@pytest.mark.parametrize("in_memory", [False, True])
def test_all_that_is_asked_for(tmp_path: Path, in_memory: bool) -> None:
    with Rig(None if in_memory else tmp_path / "a") as rig:
        log = rig.log()
        rig.publish(log, numbered(60))
        frame = frame_of(log, 11, 31)
        assert (frame.first, frame.next, frame.log_id) == (11, 31, log.log_id)
        assert frame.bodies == numbered(20, 10)
        assert frame_of(log, 1).bodies == numbered(60)
        assert frame_of(log, 61).next == 61
        assert frame_of(log, 5, 3).next == 5


@pytest.mark.parametrize("in_memory", [False, True])
def test_everything_of_a_record(tmp_path: Path, in_memory: bool) -> None:
    with Rig(None if in_memory else tmp_path / "a") as rig:
        log = rig.log()
        headers = b"NATS/1.0\r\nA: b\r\n\r\n"
        append(log, b"body", headers=headers, reply=b"r", subject=b"s.x", not_before_ns=7)
        append(log, b"")
        rig.settle()
        one, two = frame_of(log, 1).records
        assert one[2:] == (7, b"s.x", b"r", headers, b"body")
        assert one.timestamp_ns == rig.turn.wall_ns
        assert two[2:] == (0, b"", b"", b"", b"")


@pytest.mark.parametrize("in_memory", [False, True])
def test_as_many_as_fit_and_at_least_one(tmp_path: Path, in_memory: bool) -> None:
    with Rig(None if in_memory else tmp_path / "a") as rig:
        log = rig.log()
        rig.publish(log, [*numbered(10), b"x" * 5000, *numbered(10, 11)])
        assert frame_of(log, 1, bytes_max=3 * RECORD).next == 4
        assert frame_of(log, 1, bytes_max=4 * RECORD - 1).next == 4
        assert frame_of(log, 11, bytes_max=100).bodies == [b"x" * 5000]
        assert frame_of(log, 10, bytes_max=100).next == 11


def test_a_mapping_is_given_back_when_no_view_is_in_use(tmp_path: Path) -> None:
    with Rig(tmp_path / "a") as rig:
        log = rig.log()
        rig.publish(log, numbered(10))
        found = Range(log, 1, ALL, 1 << 20)
        found.read()
        maps = Path("/proc/self/maps")
        assert ".seg" in maps.read_text()
        view = found.view()
        part, copy = view[64:], bytes(view)
        found.release()
        assert bytes(view) == copy, "it is still there"
        view.release()
        found.release()
        assert bytes(part) == copy[64:]
        part.release()
        before = maps.read_text().count(".seg")
        found.release()
        assert maps.read_text().count(".seg") == before - 1
        found.release()
        with pytest.raises(BufferError):
            found.view()


def test_release_of_records_in_memory_does_nothing() -> None:
    with Rig(None) as rig:
        log = rig.log()
        rig.publish(log, numbered(3))
        found = Range(log, 1, ALL, 1 << 20)
        found.read()
        found.release()
        assert len(bytes(found.view())) == 3 * RECORD


def test_within_one_segment(tmp_path: Path) -> None:
    with Rig(tmp_path / "a", segment_bytes=1000) as rig:
        log = rig.log()
        for i in range(50):
            rig.publish(log, numbered(1, i))
        assert len(log.segments) > 3
        at, bodies = 1, []
        for segment in list(log.segments):
            frame = frame_of(log, at)
            assert frame.next == segment.next_seq
            bodies += frame.bodies
            at = frame.next
        assert bodies == numbered(50)


def test_nothing_beyond_what_the_disk_has(tmp_path: Path) -> None:
    with Rig(tmp_path / "a", sync=1.0) as rig:
        log = rig.log()
        rig.publish(log, numbered(5))
        assert (log.visible, log.sync.durable_next) == (6, 1)
        assert frame_of(log, 1).next == 1
        rig.advance(1)
        rig.publish(log, numbered(5, 5))
        assert frame_of(log, 1).bodies == numbered(5)


def test_a_disk_that_fails_hides_nothing_that_was_there(tmp_path: Path) -> None:
    """A log that was opened and could not be written yet says what it has all the same."""
    with Rig(tmp_path / "a") as rig:
        rig.publish(rig.log(), numbered(5))
        rig.close()
    with Rig(tmp_path / "a", sync=1.0) as rig:
        log = rig.engine.log("t")
        rig.advance(1)  # what is found at a start is synced
        rig.advance(1)
        vfs.fail(CALLS["write"], 28)
        assert rig.publish(log, numbered(1)) == [-1]
        assert log.last_error
        assert log.sync.durable_next == 6


@pytest.mark.parametrize("byte", range(RECORD))
def test_a_flipped_bit_is_a_gap(tmp_path: Path, byte: int) -> None:
    with Rig(tmp_path / "a") as rig:
        log = rig.log()
        rig.publish(log, numbered(9))
        flip_bit(segment_files(tmp_path / "a")[0], 64 + 4 * RECORD + byte, bit=5)
        frame = frame_of(log, 1)
        assert frame.gaps == [(5, 6, DAMAGED)]
        assert frame.bodies == numbered(4) + numbered(4, 5)
        assert [report[1] for report in rig.reports] == ["records do not read and are passed over"]
        assert frame_of(log, 1) == frame
        assert len(rig.reports) == 1, "reported once"
        assert rig.engine.shared.quarantined_ranges == 1
        assert frame_of(log, 6).gaps == []
        assert frame_of(log, 3, 5).gaps == []


LONG = 300_000  # of a body: 14 records are a part of 4 MiB, after which a walk pauses
DAMAGED_ONES = (1, 14, 15, 28, 45)


def long_bodies() -> list[bytes]:
    return [bytes([number]) * LONG for number in range(1, 46)]


def test_damage_in_a_range_of_several_parts(tmp_path: Path) -> None:
    bodies = long_bodies()
    with Rig(tmp_path / "a", segment_bytes=32 << 20) as rig:
        log = rig.log()
        for body in bodies:
            rig.publish(log, [body])
        (path,) = segment_files(tmp_path / "a")
        whole = path.read_bytes()
        for number in DAMAGED_ONES:
            flip_bit(path, whole.index(bodies[number - 1]))
        frame = frame_of(log, 1, bytes_max=32 << 20)
        gaps = [(1, 2), (14, 16), (28, 29), (45, 46)]
        assert frame.gaps == [(start, end, DAMAGED) for start, end in gaps]
        assert frame.bodies == [
            body for seq, body in enumerate(bodies, 1) if seq not in DAMAGED_ONES
        ]


def test_a_stream_s_range_of_several_parts(tmp_path: Path) -> None:
    bodies = long_bodies()
    with Rig(tmp_path / "a", segment_bytes=32 << 20) as rig:
        store = open_store(rig.engine, "js.A/S", StreamLimits())
        for body in bodies:
            publish(store, b"s", body)
        rig.settle()
        for seq in DAMAGED_ONES:
            assert wait(rig, store.delete(seq))
        (path,) = tmp_path.rglob("*.seg")
        flip_bit(path, path.read_bytes().index(bodies[29]))
        frame = frame_of(store.log, 1, bytes_max=32 << 20, complete=False)
        assert frame.gaps == [(30, 31, DAMAGED)]
        assert frame.bodies == [
            body for seq, body in enumerate(bodies, 1) if seq not in (*DAMAGED_ONES, 30)
        ]


def test_damage_at_both_ends(tmp_path: Path) -> None:
    with Rig(tmp_path / "a") as rig:
        log = rig.log()
        rig.publish(log, numbered(9))
        for number in (0, 1, 7, 8):
            flip_bit(segment_files(tmp_path / "a")[0], 64 + number * RECORD + 50)
        frame = frame_of(log, 1)
        assert frame.gaps == [(1, 3, DAMAGED), (8, 10, DAMAGED)]
        assert frame.bodies == numbered(5, 2)
        assert frame_of(log, 8).records == []


def test_a_damaged_stretch_counts_as_bytes(tmp_path: Path) -> None:
    """The data is one stretch of the file, so it may not hold much that nobody can read."""
    with Rig(tmp_path / "a") as rig:
        log = rig.log()
        rig.publish(log, [*numbered(2), b"x" * 5000, *numbered(2, 3)])
        flip_bit(segment_files(tmp_path / "a")[0], 64 + 2 * RECORD + 50)
        frame = frame_of(log, 1, bytes_max=1000)
        assert (frame.next, frame.gaps) == (4, [(3, 4, DAMAGED)])
        assert frame.bodies == numbered(2)
        assert frame_of(log, frame.next).bodies == numbered(2, 3)


def test_missing_records(tmp_path: Path) -> None:
    with Rig(tmp_path / "a") as rig:
        log = rig.log()
        rig.publish(log, numbered(3))
        rig.close()
    path = segment_files(tmp_path / "a")[0]
    raw = path.read_bytes()
    path.write_bytes(raw[: 64 + RECORD] + raw[64 + 2 * RECORD :])
    with Rig(tmp_path / "a") as rig:
        frame = frame_of(rig.engine.log("t"), 1)
        assert frame.gaps == [(2, 3, MISSING)]
        assert frame.bodies == [numbered(3)[0], numbered(3)[2]]


def test_a_lost_end(tmp_path: Path) -> None:
    """A file that was cut, with the padding of its last record: what follows begins elsewhere."""
    with Rig(tmp_path / "a", segment_bytes=600) as rig:
        log = rig.log()
        for i in range(9):
            rig.publish(log, numbered(1, i, size=21))
        assert len(log.segments) == 2
        behind = log.segments[0].next_seq
        rig.close()
    path = segment_files(tmp_path / "a")[0]
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) - RECORD - 3])
    with Rig(tmp_path / "a", segment_bytes=600) as rig:
        log = rig.engine.log("t")
        frame = frame_of(log, 1)
        assert frame.next == behind
        assert frame.gaps == [(behind - 1, behind, MISSING)]
        assert frame.bodies == numbered(behind - 2, size=21)
        assert frame_of(log, behind).bodies == numbered(10 - behind, behind - 1, size=21)


def test_a_dropped_file_is_sent_when_it_was_open(tmp_path: Path) -> None:
    with Rig(tmp_path / "a") as rig:
        log = rig.log()
        rig.publish(log, numbered(9))
        begun, late, later = (Range(log, 1, ALL, 1 << 20) for _ in range(3))
        begun.read()
        rig.engine.delete_log("t")
        assert read_frame(begun.joined()).bodies == numbered(9)
        with pytest.raises(FileNotFoundError):
            late.read()
        fresh = rig.log()
        rig.publish(fresh, numbered(1))
        with pytest.raises(FileNotFoundError):
            later.read()


def test_the_index_learns_the_way(tmp_path: Path) -> None:
    """Only the first range of a file that was not written by this process walks from its start."""
    with Rig(tmp_path / "a", segment_bytes=200_000) as rig:
        log = rig.log()
        for i in range(0, 6000, 100):
            rig.publish(log, numbered(100, i))
        rig.close()
    with Rig(tmp_path / "a", segment_bytes=200_000) as rig:
        log = rig.engine.log("t")
        assert frame_of(log, 3000, bytes_max=RECORD).bodies == numbered(1, 2999)
        flip_bit(segment_files(tmp_path / "a")[0], 64 + 5)
        frame = frame_of(log, 3000, bytes_max=RECORD)
        assert frame.bodies == numbered(1, 2999)
        assert rig.reports == [], "the walk began behind the flipped bit"


@pytest.mark.parametrize("in_memory", [False, True])
def test_what_can_be_read(tmp_path: Path, in_memory: bool) -> None:
    with Rig(None if in_memory else tmp_path / "a", segment_bytes=1000) as rig:
        log = rig.log()
        assert log.retention.readable_from == 1
        cursor = log.open_cursor("c")
        for i in range(50):
            rig.publish(log, numbered(1, i, size=500))
        cursor.empty()
        rig.advance(1)
        assert log.retention.readable_from == log.segments[0].first_seq > 1


def test_a_moment_in_memory() -> None:
    with Rig(None) as rig:
        log = rig.log()
        assert moment_in_memory(log, 0) == 1
        start = rig.turn.wall_ns
        for i in range(200):
            rig.publish(log, numbered(1, i, size=100))
            rig.advance(1)
        assert len(log.segments) > 3
        for number in (0, 1, 77, 199):
            assert moment_in_memory(log, start + number * 10**9) == number + 1
            assert moment_in_memory(log, start + number * 10**9 + 1) == number + 2
        assert moment_in_memory(log, -1) == 1


def test_damage_found_while_a_message_is_erased_is_looked_at_again(tmp_path: Path) -> None:
    """The bytes of that message may change while they are read."""
    with Rig(tmp_path) as rig:
        store = open_store(rig.engine, "js.A/S", StreamLimits())
        for body in numbered(9):
            publish(store, b"s", body)
        rig.settle()
        (path,) = tmp_path.rglob("*.seg")
        flip_bit(path, path.read_bytes().index(numbered(9)[4]))

        async def run() -> None:
            erasing = asyncio.ensure_future(store.delete(2, erase=True))
            await asyncio.sleep(0)  # it begins
            assert store.erasing
            early, begun = (Range(store.log, 1, 10, 1 << 20) for _ in range(2))
            early.read()
            assert early.is_disturbed(store.log)
            while not erasing.done():
                await asyncio.sleep(0)
                rig.loop.serve(1)
                rig.loop.run()
            begun.read()
            assert begun.is_disturbed(store.log)
            late = Range(store.log, 1, 10, 1 << 20)
            late.read()
            assert not late.is_disturbed(store.log)
            assert late.gaps == [(5, 6, DAMAGED)]
            assert late.add_to_index(store.log) > 0

        asyncio.run(run())
