"""Faults of file calls that a running broker meets."""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.engine import SYNC_PATH, Rig, make_log, numbered, readable_bodies

from broker.runtime import vfs

CREATE = 7
FOR_EVER = 1 << 40
WAIT_S = 30.0
BODIES = numbered(20)


@pytest.fixture(autouse=True)
def _healed() -> Iterator[None]:
    yield
    vfs.heal()


def test_only_opening_a_new_file_fails(tmp_path: Path) -> None:
    make_log(tmp_path / "logs", BODIES)
    vfs.fail(CREATE, errno.ENOSPC, times=FOR_EVER)
    with Rig(tmp_path / "logs") as rig:  # files that exist are opened
        log = rig.engine.log("t")
        assert readable_bodies(rig, log) == BODIES
        with pytest.raises(OSError, match="No space left"):
            log.open_cursor("new")  # its journal is a new file
        vfs.heal()
        assert log.open_cursor("new") is not None


def test_a_slow_call_takes_at_least_that_long(tmp_path: Path) -> None:
    delay_s = 0.05
    vfs.slow(SYNC_PATH, int(delay_s * 1e9))
    start = time.monotonic()
    assert vfs.sync_file_system(bytes(tmp_path)) == 0
    assert time.monotonic() - start >= delay_s


def test_a_delay_ends_when_it_is_taken_back(tmp_path: Path) -> None:
    """Also for a call that waits already."""
    vfs.slow(SYNC_PATH, 3600 * 10**9)
    waiting = threading.Thread(target=vfs.sync_file_system, args=(bytes(tmp_path),))
    waiting.start()
    vfs.slow(SYNC_PATH, 0)
    waiting.join(WAIT_S)
    assert not waiting.is_alive()


def test_there_are_nine_kinds() -> None:
    with pytest.raises(ValueError, match="no such file call"):
        vfs.slow(9, 1)
