"""What has been written is on the disk."""

from __future__ import annotations

import os


def sync_path(path: str | os.PathLike[str]) -> None:
    """Bring a file, or the names in a folder, onto the disk. OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
