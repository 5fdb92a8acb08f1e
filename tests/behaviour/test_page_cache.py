"""What is on the disk and has no reader leaves the page cache; what somebody is to read stays."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from support.engine import Rig, numbered, segment_files

PAGE = os.sysconf("SC_PAGE_SIZE")
MIB = 1 << 20
BODIES = 64  # of one publish
PUBLISHES = 64  # 4 MiB in all
ASKED_MAX = 1000  # times that the kernel is asked to let go of a page


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


def fill(rig: Rig, root: Path) -> Path:
    log = rig.log()
    for _ in range(PUBLISHES):
        rig.publish(log, numbered(BODIES, size=1024))
    (path,) = segment_files(root)
    assert path.stat().st_size > 4 * MIB
    return path


def test_what_nobody_reads_leaves(disk: Path) -> None:
    with Rig(disk, sync="always", segment_bytes=64 * MIB) as rig:
        path = fill(rig, disk)
        # The kernel may refuse: a page that another processor has at hand stays until it
        # is asked again, which every sync does.
        for _ in range(ASKED_MAX):
            if not any(cached(path, offset) for offset in (0, MIB, 2 * MIB)):
                break
            rig.publish(rig.log(), numbered(1, size=1024))
        else:
            pytest.fail("everything stays in memory")
        size = path.stat().st_size
        assert cached(path, size - size % PAGE - PAGE)


def test_what_a_channel_will_read_stays(disk: Path) -> None:
    with Rig(disk, sync="always", segment_bytes=64 * MIB) as rig:
        rig.log().open_cursor("c")
        assert cached(fill(rig, disk), 0)


def test_what_is_held_stays(disk: Path) -> None:
    with Rig(disk, sync="always", segment_bytes=64 * MIB) as rig:
        rig.log().retention.retain_from(1)
        assert cached(fill(rig, disk), 0)
