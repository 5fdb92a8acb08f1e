"""A log that a write or a sync failed is ill until the disk takes writes again, not for longer."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.engine import SYNC, WRITE, Rig, scratch

from broker.runtime import vfs

FOR_EVER = 1 << 20


@pytest.fixture
def folder() -> Iterator[Path]:
    path = scratch()
    yield path
    vfs.heal()
    shutil.rmtree(path, ignore_errors=True)


def test_it_is_well_again_without_a_publish(folder: Path) -> None:
    with Rig(folder) as rig:
        log = rig.log()
        vfs.fail(WRITE, errno.ENOSPC, times=FOR_EVER)
        assert rig.publish(log, [b"a"]) != [1]
        for _ in range(5):
            rig.advance(1.0)
            assert log.last_error == errno.ENOSPC
        vfs.heal()
        rig.advance(1.0)
        assert log.last_error == 0
        assert rig.publish(log, [b"b"]) == [1]
        assert not list(folder.glob("**/probe*"))
        assert "log takes appends again" in [text for _, text, _ in rig.reports]


def test_a_failed_sync_is_probed_with_a_sync(folder: Path) -> None:
    with Rig(folder, sync="always") as rig:
        log = rig.log()
        vfs.fail(SYNC, errno.EIO, times=FOR_EVER)
        assert rig.publish(log, [b"a"]) != [1]
        rig.advance(2.0)
        assert log.last_error == errno.EIO
        vfs.heal()
        rig.advance(1.0)
        assert log.last_error == 0
        assert rig.publish(log, [b"b"]) == [1]


def test_a_deleted_log_is_left_alone(folder: Path) -> None:
    with Rig(folder) as rig:
        log = rig.log()
        vfs.fail(WRITE, errno.ENOSPC, times=FOR_EVER)
        assert rig.publish(log, [b"a"]) != [1]
        rig.engine.delete_log("t")
        vfs.heal()
        rig.advance(3.0)
        assert rig.publish(rig.log("t"), [b"b"]) == [1]


def test_a_memory_log_is_well_when_it_has_room(folder: Path) -> None:
    with Rig(None, memory_bytes_max=8192) as rig:
        log = rig.log("t#ephemeral", ephemeral=True)
        rig.publish(log, [bytes(1000)] * 20)
        assert rig.publish(log, [bytes(1000)]) == [0]
        rig.advance(1.0)
        assert log.last_error == errno.ENOBUFS
        log.open_cursor("c").empty()
        rig.advance(2.0)
        assert log.last_error == 0
