"""Sectors that do not read and files that were cut while mapped: one range of one log is lost."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.engine import (
    OPEN,
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
from broker.engine.cursor.local import LocalConsumer, peek_log
from broker.runtime import mapping, vfs

PAGE = 4096
BODY = 200  # a record of 240 bytes: some lie across two pages
SMALL: dict[str, Any] = {"segment_bytes": 8 * PAGE, "load_bytes": 2 * PAGE}
COUNT = 600


@pytest.fixture(autouse=True)
def healed() -> Iterator[None]:
    yield
    mapping.unspoil()


def bodies() -> list[bytes]:
    return numbered(COUNT, size=BODY)


def make(root: Path) -> None:
    with Rig(root, **SMALL) as rig:
        log = rig.log()
        log.open_cursor("c")
        assert rig.publish(log, bodies()) == [1] * COUNT
        rig.close()


def hurt_by(file: Path, start: int, end: int) -> list[bytes]:
    """Bodies of the records that have a byte in these pages of a file."""
    first, step = int(file.stem), 40 + BODY
    return [
        body
        for n, body in enumerate(bodies(), 1)
        if n >= first
        and 64 + (n - first) * step < end
        and 64 + (n - first + 1) * step > start
        and 64 + (n - first + 1) * step <= file.stat().st_size
    ]


def without(lost: list[bytes]) -> list[bytes]:
    return [body for body in bodies() if body not in lost]


def damage_reported(rig: Rig) -> bool:
    return any("do not read" in text for _, text, _ in rig.reports)


@pytest.mark.parametrize("page", [0, 1, 3])
def test_a_sector_of_an_old_file(memory_path: Path, page: int) -> None:
    make(memory_path / "0")
    file = segment_files(memory_path / "0")[1]
    lost = hurt_by(file, page * PAGE, (page + 1) * PAGE)
    mapping.spoil(file, page * PAGE, page * PAGE + 1)
    with Rig(memory_path / "0", **SMALL) as rig:
        log = rig.engine.log("t")
        consumer = LocalConsumer(log.open_cursor("c"), 1 << 30)
        assert drain(rig, consumer) == without(lost)
        assert damage_reported(rig)
        assert rig.engine.shared.quarantined_ranges == 1
        assert rig.publish(log, [b"more"]) == [1]
        assert bodies_of(consumer) == [b"more"]


def test_what_does_not_read_is_kept_when_its_file_is_dropped(memory_path: Path) -> None:
    make(memory_path / "0")
    mapping.spoil(segment_files(memory_path / "0")[1], PAGE, PAGE + 1)
    with Rig(memory_path / "0", **SMALL) as rig:
        consumer = LocalConsumer(rig.engine.log("t").open_cursor("c"), 1 << 30)
        for _ in range(30):
            rig.settle()
            finish_all(consumer)
        rig.advance(2)
        kept = list((memory_path / "0" / "t").glob("*.quarantined"))
        assert len(kept) == 1
        assert len(segment_files(memory_path / "0")) <= 2


def test_it_is_no_problem_any_more_when_all_its_files_are_dropped(memory_path: Path) -> None:
    make(memory_path / "0")
    hurt = segment_files(memory_path / "0")[1:3]
    for file in hurt:
        mapping.spoil(file, PAGE, PAGE + 1)
    with Rig(memory_path / "0", **SMALL) as rig:
        health = rig.engine.shared.health
        consumer = LocalConsumer(rig.engine.log("t").open_cursor("c"), 1 << 30)
        rig.settle()
        while consumer.records:
            seq = consumer.records.pop(0)[0]
            if seq > int(hurt[1].stem) and hurt[1].exists():
                assert health.has("records of log", "t")
            assert consumer.finish(seq) == 0
            rig.settle()
        rig.advance(2)
        assert not any(file.exists() for file in hurt)
        assert health.problems() == []


def test_the_last_file_of_an_idle_log_is_dropped_for_its_damage(memory_path: Path) -> None:
    """It would be kept for the next messages; without any the problem would never end."""
    with Rig(memory_path / "0") as rig:
        log = rig.log()
        log.open_cursor("c")
        assert rig.publish(log, numbered(3, size=BODY)) == [1] * 3
        rig.close()
    (file,) = segment_files(memory_path / "0")
    flip_bit(file, 64 + 240 + 100)
    with Rig(memory_path / "0") as rig:
        health = rig.engine.shared.health
        log = rig.engine.log("t")
        consumer = LocalConsumer(log.open_cursor("c"), 1 << 30)
        rig.settle()
        rig.advance(3)
        assert health.has("records of log", "t")
        assert finish_all(consumer) == [numbered(3, size=BODY)[n] for n in (0, 2)]
        rig.advance(3)
        assert health.problems() == []
        assert file.with_name(file.name + ".quarantined").exists()
        assert rig.publish(log, [b"more"]) == [1]
        assert bodies_of(consumer) == [b"more"]


@pytest.mark.parametrize("page", [0, 2, -1])
def test_a_sector_of_the_last_file_at_start(memory_path: Path, page: int) -> None:
    """The broker starts, serves the rest, and appends to a new file; no seq is used again."""
    with Rig(memory_path / "0") as rig:
        log = rig.log()
        log.open_cursor("c")
        assert rig.publish(log, bodies()) == [1] * COUNT
        rig.crash(memory_path / "1")
    (file,) = segment_files(memory_path / "1")
    size = file.stat().st_size
    page %= (size + PAGE - 1) // PAGE
    lost = hurt_by(file, page * PAGE, (page + 1) * PAGE)
    mapping.spoil(file, page * PAGE, page * PAGE + 1)
    with Rig(memory_path / "1") as rig:
        log = rig.engine.log("t")
        assert log.next_seq > COUNT
        assert rig.publish(log, [b"more"]) == [1]
        consumer = LocalConsumer(log.open_cursor("c"), 1 << 30)
        assert drain(rig, consumer) == [*without(lost), b"more"]
        assert len(segment_files(memory_path / "1")) == 2
        assert file.stat().st_size == size
        assert not list((memory_path / "1" / "t").glob("*.torn*"))
        rig.close()
    mapping.unspoil()
    with Rig(memory_path / "1") as rig:
        assert not rig.engine.problems
        consumer = LocalConsumer(rig.engine.log("t").open_cursor("new", start=1), 1 << 30)
        assert set(drain(rig, consumer)) >= {*without(lost), b"more"}


def test_a_sector_goes_while_the_log_is_read(memory_path: Path) -> None:
    """What was in memory a moment ago, and is read without a look at its sum."""
    with Rig(memory_path / "0", segment_bytes=1 << 20) as rig:
        log = rig.log()
        cursor = log.open_cursor("c")
        consumer = LocalConsumer(cursor, 3)
        rig.publish(log, bodies())
        found = bodies_of(consumer)
        (file,) = segment_files(memory_path / "0")
        mapping.spoil(file, 2 * PAGE, 4 * PAGE)
        lost = hurt_by(file, 2 * PAGE, 4 * PAGE)
        consumer.set_credit(1 << 30)
        found += drain(rig, consumer)
        assert found == without(lost)
        assert damage_reported(rig)
        # the file gets no more records
        assert rig.publish(log, [b"more"]) == [1]
        assert drain(rig, consumer) == [b"more"]
        assert len(segment_files(memory_path / "0")) == 2


def test_two_cursors_find_the_same(memory_path: Path) -> None:
    with Rig(memory_path / "0", segment_bytes=1 << 20) as rig:
        log = rig.log()
        consumers = [LocalConsumer(log.open_cursor(name), 3) for name in ("a", "b")]
        rig.publish(log, bodies())
        (file,) = segment_files(memory_path / "0")
        mapping.spoil(file, 2 * PAGE, 3 * PAGE)
        lost = hurt_by(file, 2 * PAGE, 3 * PAGE)
        for consumer in consumers:
            found = bodies_of(consumer)
            consumer.set_credit(1 << 30)
            assert [*found, *drain(rig, consumer)] == without(lost)
        assert rig.engine.shared.quarantined_ranges == 1


def test_a_file_is_cut_from_outside_while_it_is_mapped(memory_path: Path) -> None:
    make(memory_path / "0")
    with Rig(memory_path / "0", **SMALL) as rig:
        log = rig.engine.log("t")
        cursor = log.open_cursor("c")
        file = segment_files(memory_path / "0")[0]
        lost = hurt_by(file, 2 * PAGE, 1 << 30)
        consumer = LocalConsumer(cursor, 5)
        found = drain(rig, consumer)
        os.truncate(file, 2 * PAGE)
        consumer.set_credit(1 << 30)
        found += drain(rig, consumer)
        assert found == without(lost)
        assert damage_reported(rig)


def test_records_given_again_from_a_sector_that_went(memory_path: Path) -> None:
    with Rig(memory_path / "0", segment_bytes=1 << 20) as rig:
        log = rig.log()
        consumer = LocalConsumer(log.open_cursor("c"), 1 << 30)
        rig.publish(log, bodies())
        assert bodies_of(consumer) == bodies()
        (file,) = segment_files(memory_path / "0")
        lost = hurt_by(file, 2 * PAGE, 3 * PAGE)
        mapping.spoil(file, 2 * PAGE, 3 * PAGE)
        consumer.leave()
        again = LocalConsumer(log.cursors["c"], 1 << 30)
        assert sorted(drain(rig, again)) == sorted(without(lost))
        assert rig.engine.shared.quarantined_ranges >= 1


def test_limits_pass_over_it(memory_path: Path) -> None:
    with Rig(memory_path / "0", **SMALL) as rig:
        log = rig.engine.open_log("t", protocol="x", retention="limits")
        rig.publish(log, bodies())
        rig.close()
    mapping.spoil(segment_files(memory_path / "0")[1], PAGE, 2 * PAGE)
    with Rig(memory_path / "0", **SMALL) as rig:
        log = rig.engine.log("t")
        limiter = limit(log)
        for left in range(COUNT, 0, -20):
            limiter.set_limits(left, 0, 0)
            rig.settle()
            assert log.visible - log.first_seq <= left


def test_ranges_and_peeks_of_it(memory_path: Path) -> None:
    make(memory_path / "0")
    file = segment_files(memory_path / "0")[0]
    lost = hurt_by(file, PAGE, 2 * PAGE)
    mapping.spoil(file, PAGE, 2 * PAGE)
    with Rig(memory_path / "0", **SMALL) as rig:
        log = rig.engine.log("t")
        part = Range(log, 1, 1 << 60, 1 << 20)
        part.read()
        held = len(hurt_by(file, 0, 1 << 30))
        assert part.count == held - len(lost)
        assert [gap[1] - gap[0] for gap in part.gaps] == [len(lost)]
        assert part.add_to_index(log) > 0
        assert rig.engine.shared.quarantined_ranges == 1
        page = peek_log(log, 1, held)
        assert len(page.read(1 << 20)) == held - len(lost)


def test_a_bit_that_flipped_in_flight(memory_path: Path) -> None:
    """The record is not counted as finished in silence, and its file is not deleted."""
    with Rig(memory_path / "0", segment_bytes=512) as rig:
        log = rig.log()
        consumer = LocalConsumer(log.open_cursor("own"), 2)
        for _ in range(6):
            rig.publish(log, [b"precious".ljust(100, b".")])
        first = segment_files(memory_path / "0")[0]
        with first.open("r+b") as file:
            file.seek(64 + 66)
            file.write(b"!")
        consumer.leave()
        again = LocalConsumer(log.cursors["own"], 100)
        rig.settle()
        assert [record[0] for record in again.records] == [2, 3, 4, 5, 6]
        for seq, *_ in again.records:
            assert again.settle(seq)
        rig.advance(5)
        assert rig.engine.shared.quarantined_ranges == 1
        assert [path.name for path in (memory_path / "0" / "t").glob("*.quarantined")] == [
            first.name + ".quarantined"
        ]


def test_two_readers_at_two_damaged_places_of_a_file(memory_path: Path) -> None:
    """Each asks the disk once more for its own place, and not again after the other has."""
    make(memory_path / "0")
    file = segment_files(memory_path / "0")[0]
    places = [50, 115]
    with Rig(memory_path / "0", **SMALL) as rig:
        log = rig.engine.log("t")
        consumers = [LocalConsumer(log.open_cursor(f"from{seq}", start=seq), 3) for seq in (1, 70)]
        rig.settle()
        found = [bodies_of(consumer) for consumer in consumers]
        assert [len(some) for some in found] == [3, 3]
        with file.open("r+b") as data:
            for seq in places:
                data.seek(64 + (seq - 1) * (40 + BODY) + 100)
                data.write(b"!")
        loads = rig.engine.shared.loader.reaped
        for consumer in consumers:
            consumer.set_credit(1 << 30)
        rig.loop.run()
        while rig.engine.behind:
            rig.loop.serve(20_000)
            rig.loop.run()
            assert rig.engine.shared.loader.reaped - loads < 1000, "the disk is asked for ever"
        lost = [bodies()[seq - 1] for seq in places]
        for start, consumer, some in zip((1, 70), consumers, found, strict=True):
            whole = [body for body in bodies()[start - 1 :] if body not in lost]
            assert some + bodies_of(consumer) == whole
        assert rig.engine.shared.quarantined_ranges == 2


def test_what_reads_the_second_time_is_not_lost(memory_path: Path) -> None:
    """An error that passes, as of a link to the disk: nothing is quarantined."""
    with Rig(memory_path / "0", segment_bytes=1 << 20) as rig:
        log = rig.log()
        consumer = LocalConsumer(log.open_cursor("c"), 3)
        rig.publish(log, bodies())
        found = bodies_of(consumer)
        (file,) = segment_files(memory_path / "0")
        before = mapping.faults()
        mapping.spoil(file, 2 * PAGE, 4 * PAGE)
        mapping.unspoil()  # what is mapped already does not read; what is mapped again does
        consumer.set_credit(1 << 30)
        assert [*found, *drain(rig, consumer)] == bodies()
        assert mapping.faults() > before
        assert rig.engine.shared.quarantined_ranges == 0


def test_memory_that_is_at_fault_is_not_taken_for_the_disk(memory_path: Path) -> None:
    """Of records that were just written the sum is not looked at, and no page is missing."""
    with Rig(memory_path / "0", segment_bytes=1 << 20) as rig:
        log = rig.log()
        consumer = LocalConsumer(log.open_cursor("c"), 3)
        rig.publish(log, bodies())
        found = bodies_of(consumer)
        (file,) = segment_files(memory_path / "0")
        before = mapping.faults()
        assert hurt_by(file, 0, 4 * PAGE) == bodies()[:68], "one begins with the page"
        assert mapping.blank(file, 4 * PAGE, 5 * PAGE) == 1
        consumer.set_credit(1 << 30)
        assert [*found, *drain(rig, consumer)] == bodies()
        assert mapping.faults() == before
        assert rig.engine.shared.quarantined_ranges == 0


def wrong_memory(root: Path, consumer: Any) -> None:
    """The consumer is in an old file, of which a page that it has yet to read is wrong."""
    file = segment_files(root)[0]
    assert mapping.blank(file, 4 * PAGE, 5 * PAGE) >= 1
    assert consumer.in_flight < int(segment_files(root)[1].stem) - 1


@pytest.mark.parametrize("again", [False, True])
def test_memory_that_is_at_fault_while_no_file_can_be_opened(
    memory_path: Path, *, again: bool
) -> None:
    """The consumer waits for the file: what it does not read now is not lost."""
    make(memory_path / "0")
    with Rig(memory_path / "0", **SMALL) as rig:
        log = rig.engine.log("t")
        health = rig.engine.shared.health
        consumer = LocalConsumer(log.open_cursor("c"), 100 if again else 3)
        found = drain(rig, consumer)
        if again:
            consumer.leave()
            consumer = LocalConsumer(log.open_cursor("c"), 0)
            found = []
        wrong_memory(memory_path / "0", consumer)
        vfs.fail(OPEN, errno.EMFILE, times=1 << 20)
        consumer.set_credit(1 << 30)
        rig.advance(1)
        rig.advance(1)
        assert health.has("files of log", "t")
        vfs.heal()
        rig.advance(2)
        found = [*found, *drain(rig, consumer)]
        assert sorted(found) == sorted(bodies())
        assert rig.engine.shared.quarantined_ranges == 0
        for _ in range(15):
            rig.advance(1)
        assert health.problems() == []


def test_a_damaged_place_is_asked_for_once(memory_path: Path) -> None:
    """Else what the disk gives at another place would not be asked for any more."""
    with Rig(memory_path / "0", segment_bytes=1 << 20) as rig:
        log = rig.log()
        consumer = LocalConsumer(log.open_cursor("c"), 3)
        rig.publish(log, bodies())
        found = bodies_of(consumer)
        (file,) = segment_files(memory_path / "0")
        with file.open("r+b") as data:
            data.seek(64 + 10 * (40 + BODY))
            data.write(bytes(4))  # its length: it is not even looked at whether the sum is right
        assert hurt_by(file, 0, 19 * PAGE) == bodies()[:324], "one begins with the page"
        assert mapping.blank(file, 19 * PAGE, 20 * PAGE) == 1
        consumer.set_credit(1 << 30)
        assert [*found, *drain(rig, consumer)] == without(bodies()[10:11])
        assert rig.engine.shared.quarantined_ranges == 1


def test_a_file_with_very_many_damaged_records(memory_path: Path) -> None:
    """The disk is asked once more for some of them only, and reading comes to its end."""
    limits: dict[str, Any] = {"segment_bytes": 500 * (40 + BODY), "load_bytes": 2 * PAGE}
    with Rig(memory_path / "0", **limits) as rig:
        log = rig.log()
        log.open_cursor("c")
        rig.publish(log, bodies())
        rig.close()
    file, _ = segment_files(memory_path / "0")
    hurt = range(1, 450, 2)
    with file.open("r+b") as data:
        for number in hurt:
            data.seek(64 + number * (40 + BODY) + 100)
            data.write(b"!")
    with Rig(memory_path / "0", **limits) as rig:
        loader = rig.engine.shared.loader
        before = loader.reaped
        consumer = LocalConsumer(rig.engine.log("t").open_cursor("c"), 1 << 30)
        assert drain(rig, consumer) == [body for n, body in enumerate(bodies()) if n not in hurt]
        assert rig.engine.shared.quarantined_ranges == len(hurt)
        assert loader.reaped - before < len(hurt) + 100


def test_a_file_that_did_not_read_once_is_kept_when_it_is_dropped(memory_path: Path) -> None:
    """Although nothing of it is quarantined: the disk may not give it a third time."""
    with Rig(memory_path / "0", segment_bytes=1 << 20) as rig:
        log = rig.log()
        consumer = LocalConsumer(log.open_cursor("c"), 3)
        rig.publish(log, bodies())
        finish_all(consumer)
        (file,) = segment_files(memory_path / "0")
        mapping.spoil(file, 2 * PAGE, 4 * PAGE)
        mapping.unspoil()
        consumer.set_credit(1 << 30)
        rig.settle()
        rig.publish(log, [b"more"])
        rig.settle()
        assert finish_all(consumer)[-1:] == [b"more"]
        rig.advance(2)
        assert rig.engine.shared.quarantined_ranges == 0
        assert file.with_name(file.name + ".quarantined").exists()
        assert file not in segment_files(memory_path / "0")


def test_records_given_again_that_read_the_second_time_are_not_lost(memory_path: Path) -> None:
    with Rig(memory_path / "0", segment_bytes=1 << 20) as rig:
        log = rig.log()
        consumer = LocalConsumer(log.open_cursor("c"), 1 << 30)
        rig.publish(log, bodies())
        assert bodies_of(consumer) == bodies()
        (file,) = segment_files(memory_path / "0")
        before = mapping.faults()
        mapping.spoil(file, 2 * PAGE, 4 * PAGE)
        mapping.unspoil()
        consumer.leave()
        again = LocalConsumer(log.cursors["c"], 1 << 30)
        assert sorted(drain(rig, again)) == sorted(bodies())
        assert mapping.faults() > before
        assert rig.engine.shared.quarantined_ranges == 0


def test_a_log_made_again_has_a_file_as_long(memory_path: Path) -> None:
    """Readers of a deleted log get the error that it is gone, not one of damage."""
    with Rig(memory_path / "0") as rig:
        log = rig.log()
        rig.publish(log, numbered(10))
        part = Range(log, 1, 1 << 60, 1 << 20)
        page = peek_log(log, 1, 10)
        rig.engine.delete_log("t")
        rig.settle()
        rig.publish(rig.log(), numbered(10))
        with pytest.raises(FileNotFoundError):
            part.read()
        assert page.read(1 << 20) == {}


def test_damage_of_a_header_is_no_other_log(memory_path: Path) -> None:
    with Rig(memory_path / "0") as rig:
        log = rig.log()
        rig.publish(log, numbered(10))
        rig.close()
    flip_bit(segment_files(memory_path / "0")[0], 20)
    with Rig(memory_path / "0") as rig:
        part = Range(rig.engine.log("t"), 1, 1 << 60, 1 << 20)
        part.read()
        assert part.count == 10


def test_the_signal_of_others_ends_the_process(memory_path: Path) -> None:
    """Memory that is not a log's is nothing that is put right."""
    file = memory_path / "file"
    file.write_bytes(bytes(PAGE))
    make(memory_path / "0")
    code = f"""
import mmap, os, sys
sys.path[:0] = {sys.path!r}
from pathlib import Path
from broker.engine.cursor.local import LocalConsumer
from support.engine import Rig
rig = Rig(Path({str(memory_path / "0")!r}))
consumer = LocalConsumer(rig.engine.log("t").open_cursor("c"), 9)
rig.settle()
print(len(consumer.records), flush=True)
with open({str(file)!r}, "r+b") as file:
    other = mmap.mmap(file.fileno(), {PAGE}, mmap.MAP_SHARED, mmap.PROT_READ)
    os.truncate(file.fileno(), 0)
    other[0]
"""
    ended = subprocess.run(
        [sys.executable, "-c", code], check=False, timeout=120, capture_output=True
    )
    assert ended.stdout == b"9\n", ended.stderr.decode()  # a file of the log is mapped by then
    assert ended.returncode == -7, ended.stderr.decode()
