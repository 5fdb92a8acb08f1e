"""Ranges against the list of what was published: any start, end, size, files and damage."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from support.clients.bulk import DAMAGED, Frame, read_frame
from support.engine import Rig, scratch, segment_files

from broker.engine.bulk.ranges import Range
from broker.engine.log.publish import append

Published = tuple[bytes, bytes, bytes, bytes]  # subject, reply, headers, body

RECORDS = st.lists(
    st.tuples(
        st.sampled_from([b"", b"x.y"]),
        st.sampled_from([b"", b"inbox.1"]),
        st.sampled_from([b"", b"NATS/1.0\r\nA: b\r\n\r\n"]),
        st.integers(0, 60) | st.sampled_from([700, 5000]),
    ),
    min_size=1,
    max_size=60,
)
BYTES = st.sampled_from([1, 100, 500, 4096, 1 << 20])


def published(rig: Rig, log: Any, wanted: list[tuple[bytes, bytes, bytes, int]]) -> list[Published]:
    found = []
    for number, (subject, reply, headers, size) in enumerate(wanted):
        body = (b"%d:" % number).ljust(size, b"y")
        append(log, body, subject=subject, reply=reply, headers=headers)
        found.append((subject, reply, headers, body))
        if number % 7 == 6:
            rig.settle()
    rig.settle()
    return found


def frame_of(log: Any, start: int, end: int, bytes_max: int) -> Frame:
    found = Range(log, start, end, bytes_max)
    found.read()
    frame = read_frame(found.joined())
    found.add_to_index(log)
    return frame


@settings(max_examples=150)
@given(
    wanted=RECORDS,
    segment=st.sampled_from([256, 1000, 1 << 16]),
    in_memory=st.booleans(),
    again=st.booleans(),
    bytes_max=BYTES,
    data=st.data(),
)
def test_frames_are_what_was_published(
    wanted: list[tuple[bytes, bytes, bytes, int]],
    segment: int,
    in_memory: bool,
    again: bool,
    bytes_max: int,
    data: st.DataObject,
) -> None:
    folder = scratch()
    try:
        root = None if in_memory else folder / "a"
        rig = Rig(root, segment_bytes=segment, memory_segment_bytes=segment)
        log = rig.log()
        records = published(rig, log, wanted)
        if again and not in_memory:
            rig.close()
            rig = Rig(root, segment_bytes=segment)
            log = rig.engine.log("t")
        with rig:
            start = data.draw(st.integers(1, len(records) + 1))
            end = data.draw(st.integers(start, len(records) + 5))
            got, at = [], start
            while at < min(end, len(records) + 1):
                frame = frame_of(log, at, end, bytes_max)
                assert (frame.first, frame.gaps) == (at, [])
                assert frame.next > at
                taken = sum(40 + sum(map(len, record[3:])) for record in frame.records[:-1])
                assert taken <= bytes_max
                got += frame.records
                at = frame.next
            assert [record[3:] for record in got] == records[start - 1 : end - 1]
    finally:
        shutil.rmtree(folder)


@settings(max_examples=150)
@given(
    sizes=st.lists(st.integers(0, 200), min_size=1, max_size=40),
    places=st.lists(st.integers(0, 1 << 20), min_size=1, max_size=4),
    start=st.integers(1, 40),
    bytes_max=BYTES,
)
def test_whatever_is_damaged_no_wrong_record_and_no_silent_hole(
    sizes: list[int], places: list[int], start: int, bytes_max: int
) -> None:
    folder = scratch()
    try:
        with Rig(folder / "a") as rig:
            log = rig.log()
            records = published(rig, log, [(b"", b"", b"", size) for size in sizes])
            damage(segment_files(folder / "a")[0], places)
            at, got, lost = min(start, len(records)), {}, set()
            while at <= len(records):
                frame = frame_of(log, at, 1 << 62, bytes_max)  # its order and sums are checked
                got.update({record.seq: record.body for record in frame.records})
                lost.update(seq for low, high, _ in frame.gaps for seq in range(low, high))
                assert all(reason == DAMAGED for _, _, reason in frame.gaps)
                at = frame.next
            for seq, body in got.items():
                assert body == records[seq - 1][3]
            assert len(lost) <= len(places)
            assert got.keys() | lost == set(range(min(start, len(records)), len(records) + 1))
    finally:
        shutil.rmtree(folder)


def damage(path: Path, places: list[int]) -> None:
    """Turn a byte of the records over at each place."""
    raw = bytearray(path.read_bytes())
    for place in places:
        raw[64 + place % (len(raw) - 64)] ^= 0xFF
    path.write_bytes(raw)
