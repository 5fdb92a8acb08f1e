"""A small file system that a test can fill."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

CHUNK = 1 << 16
FILLER = "filler"


@contextmanager
def small_disk(path: Path, size: int) -> Iterator[Path]:
    """A file system of `size` bytes, mounted at `path`; skips where that is not allowed."""
    path.mkdir(parents=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={size},mode=755", "tmpfs", str(path)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("mount is not on PATH")
    if done.returncode:
        pytest.skip(f"no file system can be mounted: {done.stderr.strip()}")
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


def fill(folder: Path) -> None:
    """Fill the file system with a file called `filler`."""
    with (folder / FILLER).open("ab", buffering=0) as file:
        size = CHUNK
        while size:
            try:
                if not file.write(bytes(size)):
                    size //= 2
            except OSError:
                size //= 2


def free_bytes(folder: Path) -> int:
    """The free bytes."""
    disk = os.statvfs(folder)
    return disk.f_bavail * disk.f_frsize
