"""Durable writes: files and folders that survive a power cut, with checksums."""

from __future__ import annotations

import contextlib
import os
import zlib
from pathlib import Path

NEW_SUFFIX = ".new"  # of a file that is not finished; removed at start
_SUM = b"\ncrc32 "
_SUM_BYTES = len(_SUM) + 8 + 1  # eight hexadecimal digits and the end of the line


def sealed(text: bytes) -> bytes:
    """The content of a small file with its sum, which is a line of its own at the end."""
    return b"%s%s%08x\n" % (text, _SUM, zlib.crc32(text))


def unsealed(data: bytes) -> bytes:
    """The content without the sum. ValueError: they do not fit.

    A file of a version that wrote no sums is returned as it is.
    """
    text, end = data[:-_SUM_BYTES], data[-_SUM_BYTES:]
    if not end.startswith(_SUM):
        return data
    if end != sealed(text)[-_SUM_BYTES:]:
        raise ValueError("the checksum does not fit")
    return text


def sync_path(path: str | os.PathLike[str]) -> None:
    """Bring a file, or the names in a folder, onto the disk. OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(path: str | os.PathLike[str], mode: int = 0o777) -> None:
    """Make a folder and those above it that are missing; the name of each is on the disk. OSError.

    The name of a folder that exists already is synced too: the process that made it may have ended
    before that. When a sync fails, the folders that were made are removed again. A folder above
    that was not made here and must not be read is left alone.
    """
    folder = Path(path)
    missing = []
    above = folder
    while not above.exists() and above != above.parent:
        missing.append(above)
        above = above.parent
    folder.mkdir(mode, parents=True, exist_ok=True)
    try:
        for made in reversed(missing):
            sync_path(made.parent)
    except OSError:
        # The next call would take them for folders whose names are safe.
        with contextlib.suppress(OSError):
            for made in missing:
                made.rmdir()
        raise
    if not missing:
        with contextlib.suppress(PermissionError):
            sync_path(folder.parent)


class UnsyncedError(OSError):
    """The new file is in place, and after a power cut perhaps the old one."""


def save(path: Path, text: bytes) -> None:
    """Put a file in place in one step, with a checksum that `unsealed` takes off again.

    Its folder is made if it is missing. UnsyncedError; OSError: as before.
    """
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
