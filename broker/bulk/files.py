"""Small files that must survive a power cut."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from broker.core.files import NEW_SUFFIX

if TYPE_CHECKING:
    from pathlib import Path


def save(path: Path, text: bytes) -> None:
    """Put a file in place in one step; its folder is made if need be. OSError: as before."""
    if not path.parent.is_dir():
        path.parent.mkdir(parents=True, exist_ok=True)
        sync_folder(path.parent.parent)
    fresh = path.with_name(path.name + NEW_SUFFIX)
    with fresh.open("wb") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
    sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Bring the names in a folder onto the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
