"""What is on the disk and has no reader leaves the page cache; what somebody is to read stays."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.engine import SECOND, Rig, bodies_of, drain, limit, numbered, segment_files
from support.page_cache import PAGE, cached, leave

from broker.engine.cursor.local import LocalConsumer
from broker.engine.log.log import Log

MIB = 1 << 20
BODIES = 64  # of one publish
PUBLISHES = 64  # 4 MiB in all
RECORDS = 1500  # of one write
HURT = 32
RETRIES = 40  # of a MiB each: the file has room for them


def fill(rig: Rig, root: Path, log: Log | None = None) -> Path:
    log = log or rig.log()
    for _ in range(PUBLISHES):
        rig.publish(log, numbered(BODIES, size=1024))
    (path,) = Path(log.folder).glob("*.seg")
    assert path.stat().st_size > 4 * MIB
    return path


def until_left(rig: Rig, path: Path) -> None:
    """The log goes on until all but its end is out of memory."""
    # The kernel may refuse: a page that another processor has at hand stays until it
    # is asked again, which is done for each MiB.
    for _ in range(RETRIES):
        if not any(cached(path, offset) for offset in (0, MIB, 2 * MIB)):
            break
        rig.publish(rig.log(), numbered(1024, size=1024))
    else:
        pytest.fail("everything stays in memory")
    size = path.stat().st_size
    assert cached(path, size - size % PAGE - PAGE)


def test_what_nobody_reads_leaves(disk: Path) -> None:
    with Rig(disk, sync="always", segment_bytes=64 * MIB) as rig:
        until_left(rig, fill(rig, disk))


def test_what_goes_for_its_age_leaves(disk: Path) -> None:
    """Its limiter looks at the oldest record only, which it keeps in memory."""
    with Rig(disk, sync="always", segment_bytes=4 * MIB) as rig:
        log = rig.engine.open_log("t", retention="limits")
        limit(log, age_max_ns=3600 * SECOND)
        for _ in range(RETRIES):
            rig.publish(log, numbered(1024, size=1024))
            if not all(cached(path, 0) for path in segment_files(disk)[1:]):
                break
        else:
            pytest.fail("everything stays in memory")


def test_what_goes_for_its_number_stays(disk: Path) -> None:
    """Its limiter looks at each record that goes."""
    with Rig(disk, sync="always", segment_bytes=4 * MIB) as rig:
        log = rig.engine.open_log("t", retention="limits")
        limit(log, msgs_max=1 << 20)
        for _ in range(RETRIES):
            rig.publish(log, numbered(1024, size=1024))
        paths = segment_files(disk)
        assert len(paths) > 8
        assert all(cached(path, offset) for path in paths[:-1] for offset in range(0, 3 * MIB, MIB))


def test_what_a_limiter_comes_to_is_read_before(disk: Path) -> None:
    """In the next segment already: the kernel itself would not look there."""
    with Rig(disk, segment_bytes=4 * MIB, load_bytes=MIB) as rig:
        log = rig.engine.open_log("t", retention="limits")
        for _ in range(PUBLISHES * 3):
            rig.publish(log, numbered(BODIES, size=1024))
        paths = segment_files(disk)
        assert len(paths) > 3
        rig.advance(2)  # nothing stays mapped
        for path in paths[:2]:
            assert leave(path, MIB)
        limiter = limit(log)
        for gone in range(0, 3500, 100):  # of about 3,900 in a segment
            limiter.set_limits(log.visible - 1 - gone, 0, 0)
            rig.until(lambda: rig.engine.shared.loader.idle)
            if gone == 1000:
                assert not cached(paths[1], 0)
        rig.until(lambda: cached(paths[1], 0))
        assert len(log.segments) == len(paths)


def test_what_left_is_read_by_a_worker(disk: Path) -> None:
    """Not by the loop of a channel that begins there: it would wait for the disk."""
    with Rig(disk, sync="always", segment_bytes=64 * MIB, load_bytes=MIB) as rig:
        path = fill(rig, disk)
        until_left(rig, path)
        loader = rig.engine.shared.loader
        before, size = loader.submitted, path.stat().st_size
        consumer = LocalConsumer(rig.log().open_cursor("c"), 1 << 30)
        bodies = drain(rig, consumer)
        assert bodies[: BODIES * PUBLISHES] == numbered(BODIES, size=1024) * PUBLISHES
        # all but the end, which was written a moment ago
        assert size // MIB - 2 <= loader.submitted - before <= size // MIB
        rig.publish(rig.log(), [b"new"])
        assert bodies_of(consumer)[-1] == b"new"
        assert loader.submitted - before <= size // MIB


def test_a_reader_that_begins_within_what_left(disk: Path) -> None:
    """What it passes over on the way to its first record is read by the worker too."""
    with Rig(disk, sync="always", segment_bytes=64 * MIB, load_bytes=MIB) as rig:
        path = fill(rig, disk)
        until_left(rig, path)
        before = rig.engine.shared.loader.submitted
        cursor = rig.log().open_cursor("c", start=1000)
        consumer = LocalConsumer(cursor, 1)
        assert not consumer.records  # not before the worker is done
        assert drain(rig, consumer)[0] == numbered(BODIES, size=1024)[999 % BODIES]
        assert rig.engine.shared.loader.submitted > before


def test_damage_before_where_a_reader_begins(disk: Path) -> None:
    """It passes over that; the good records behind it are still there for others."""
    with Rig(disk, sync="always", segment_bytes=64 * MIB, load_bytes=MIB) as rig:
        path = fill(rig, disk)
        until_left(rig, path)
        with path.open("r+b") as file:
            file.seek(64 + 994 * (40 + 1024) + 100)  # within the record 995
            file.write(b"!")
        log = rig.log()
        begun = LocalConsumer(log.open_cursor("c", start=1000), 1 << 30)
        assert len(drain(rig, begun)) == log.visible - 1000
        everything = LocalConsumer(log.open_cursor("d", start=1), 1 << 30)
        assert len(drain(rig, everything)) == log.visible - 1 - 1  # all but one


def test_a_limiter_weighs_nothing_that_left(disk: Path) -> None:
    """It would be read by the loop; what it counts for is estimated."""
    with Rig(disk, sync="always", segment_bytes=64 * MIB) as rig:
        path = fill(rig, disk)
        until_left(rig, path)
        log = rig.log()
        records = log.visible - 1
        limiter = limit(log, bytes_max=1 << 40)
        assert not cached(path, MIB)
        assert limiter.bytes == pytest.approx(records * 1024, rel=0.05)


def test_what_a_channel_will_read_stays(disk: Path) -> None:
    with Rig(disk, sync="always", segment_bytes=64 * MIB) as rig:
        rig.log().open_cursor("c")
        assert cached(fill(rig, disk), 0)


def test_what_a_stream_has_stays(disk: Path) -> None:
    with Rig(disk, sync="always", segment_bytes=64 * MIB) as rig:
        log = rig.engine.open_log("js.A/S", retention="owned")
        assert cached(fill(rig, disk, log), 0)


def test_what_is_held_stays(disk: Path) -> None:
    with Rig(disk, sync="always", segment_bytes=64 * MIB) as rig:
        rig.log().retention.retain_from(1)
        assert cached(fill(rig, disk), 0)


def read_bytes() -> int:
    """Bytes that this process had to get from a disk so far."""
    try:
        counts = Path("/proc/self/io").read_text()
    except OSError:
        pytest.skip("this kernel does not count what a process reads from disks")
    return int(counts.partition("\nread_bytes: ")[2].partition("\n")[0])


def test_what_is_read_again_is_asked_of_the_disk(disk: Path) -> None:
    """Memory that is at fault would only show the same once more."""
    with Rig(disk, sync="always", segment_bytes=64 * MIB) as rig:
        log = rig.log()
        consumer = LocalConsumer(log.open_cursor("c"), 1 << 30)
        # written at once: the kernel keeps such data in large pieces, and drops whole ones only
        rig.publish(log, numbered(RECORDS, size=1024))
        assert len(bodies_of(consumer)) == RECORDS
        (path,) = segment_files(disk)
        with path.open("r+b") as file:
            # several: the kernel is asked, not ordered; at 1 MiB and more its pieces are large
            for number in range(1000, 1000 + HURT):
                file.seek(64 + number * (40 + 1024) + 100)
                file.write(b"!")
            file.flush()
            os.fsync(file.fileno())
        consumer.leave()
        before = read_bytes()
        again = LocalConsumer(log.cursors["c"], 1 << 30)
        assert len(drain(rig, again)) == RECORDS - HURT
        assert rig.engine.shared.quarantined_ranges == HURT
        assert read_bytes() - before >= PAGE
