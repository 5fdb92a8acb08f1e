"""Small files that must survive a power cut."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from broker.engine.log.files import NEW_SUFFIX
from broker.base.durable import make_folder, sealed, sync_path

if TYPE_CHECKING:
    from pathlib import Path


class UnsyncedError(OSError):
    """The new file is in place, and after a power cut perhaps the old one."""


def save(path: Path, text: bytes) -> None:
    """Put a file in place in one step, with a checksum that `durable.unsealed` takes off again;
    its folder is made if need be. UnsyncedError; OSError: as before."""
    if not path.parent.is_dir():
        make_folder(path.parent)
    fresh = path.with_name(path.name + NEW_SUFFIX)
    with fresh.open("wb") as file:
        file.write(sealed(text))
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
    try:
        sync_path(path.parent)
    except OSError as problem:
        raise UnsyncedError(*problem.args) from problem
