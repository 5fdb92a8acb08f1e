"""One process per data folder."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from broker.base.lockfile import LOCK_NAME, DataLock, DataLockedError

HOLD = """
import sys
from pathlib import Path
from broker.base.lockfile import DataLock
lock = DataLock(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


def test_folder_is_made_and_holder_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "data"
    with DataLock(folder):
        assert (folder / LOCK_NAME).read_text() == f"{os.getpid()}\n"
        expected = re.escape(f"data folder {folder} is in use by process {os.getpid()}")
        with pytest.raises(DataLockedError, match=expected):
            DataLock(folder)
    with DataLock(folder):
        pass


def test_release_twice(tmp_path: Path) -> None:
    lock = DataLock(tmp_path)
    lock.release()
    lock.release()
    DataLock(tmp_path).release()


def test_a_killed_holder_leaves_no_lock(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, tmp_path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).resolve().parents[3],
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(DataLockedError, match=f"process {holder.pid}"):
            DataLock(tmp_path)
        holder.kill()
        holder.wait()
        with DataLock(tmp_path):
            assert (tmp_path / LOCK_NAME).read_text() == f"{os.getpid()}\n"
