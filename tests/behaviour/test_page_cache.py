"""What is on the disk and has no reader leaves the page cache; what somebody is to read stays."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from support.engine import Rig, bodies_of, drain, numbered, segment_files

from broker.engine.cursor.local import LocalConsumer
from broker.engine.log.log import Log

PAGE = os.sysconf("SC_PAGE_SIZE")
MIB = 1 << 20
BODIES = 64  # of one publish
PUBLISHES = 64  # 4 MiB in all
RECORDS = 1500  # of one write
HURT = 32
ASKED_MAX = 1000  # times that the kernel is asked to let go of a page
RETRIES = 40  # of a MiB each: the file has room for them


def cached(path: Path, offset: int) -> bool:
    """Is the page in memory? A read that may not wait tells, and brings nothing there."""
    fd = os.open(path, os.O_RDONLY)
    try:
        return os.preadv(fd, [bytearray(PAGE)], offset, os.RWF_NOWAIT) == PAGE
    except BlockingIOError:
        return False
    finally:
        os.close(fd)


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    """A folder whose file system has a page cache that can be left."""
    file = tmp_path / "probe"
    file.write_bytes(bytes(PAGE))
    fd = os.open(file, os.O_RDWR)
    try:
        os.fsync(fd)
        for _ in range(ASKED_MAX):
            os.posix_fadvise(fd, 0, PAGE, os.POSIX_FADV_DONTNEED)
            if not cached(file, 0):
                break
        else:
            pytest.skip("this file system keeps everything in memory")
    except OSError as error:
        if error.errno != errno.EOPNOTSUPP:
            raise
        pytest.skip("this file system does not tell what is in memory")
    finally:
        os.close(fd)
    return tmp_path / "logs"


def fill(rig: Rig, root: Path, log: Log | None = None) -> Path:
    log = log or rig.log()
    for _ in range(PUBLISHES):
        rig.publish(log, numbered(BODIES, size=1024))
    (path,) = Path(log.folder).glob("*.seg")
    assert path.stat().st_size > 4 * MIB
    return path


def test_what_nobody_reads_leaves(disk: Path) -> None:
    with Rig(disk, sync="always", segment_bytes=64 * MIB) as rig:
        path = fill(rig, disk)
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
