"""The number of open files."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from broker.net.listener import open_files

# In a process of its own: in this one other tests may have left files that are closed meanwhile.
COUNTED = """
import os
from pathlib import Path
from broker.net.listener import open_files

before = open_files()
fds = [os.dup(0) for _ in range(10)]
assert open_files() == before + len(fds)
Path.stat = lambda _path: os.stat_result((0,) * 10)  # before Linux 6.2
assert open_files() == before + len(fds)
"""


def test_files_are_counted() -> None:
    subprocess.run([sys.executable, "-c", COUNTED], check=True)


def test_they_are_not_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    """If there are thousands, that takes long."""
    if not Path("/proc/self/fd").stat().st_size:
        pytest.skip("this kernel does not count them")
    monkeypatch.setattr(Path, "iterdir", None)
    assert open_files() > 0
