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
    """The content of a small file, followed by a line with its checksum."""
    return b"%s%s%08x\n" % (text, _SUM, zlib.crc32(text))


def unsealed(data: bytes) -> bytes:
    """The content without the checksum. ValueError: the checksum is wrong.

    A file of a version that wrote no checksums is returned unchanged.
    """
    text, end = data[:-_SUM_BYTES], data[-_SUM_BYTES:]
    if not end.startswith(_SUM):
        return data
    if end != sealed(text)[-_SUM_BYTES:]:
        raise ValueError("the checksum is wrong")
    return text


def sync_path(path: str | os.PathLike[str]) -> None:
    """Sync a file, or the names in a folder, to the disk. OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(path: str | os.PathLike[str], mode: int = 0o777) -> None:
    """Create a folder and its missing parents, and sync the name of each. OSError.

    The name of an existing folder is synced too: the process that created it may have ended before
    that. If a sync fails, the created folders are removed again. An existing parent that may not be
    read is not synced.
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
        # Otherwise the next call would assume that their names are on the disk.
        with contextlib.suppress(OSError):
            for made in missing:
                made.rmdir()
        raise
    if not missing:
        with contextlib.suppress(PermissionError):
            sync_path(folder.parent)


def remove_folder(path: Path) -> None:
    """Remove a folder with all that is in it, if it exists. OSError: a part of it may be left."""
    import shutil  # most programs do not need it

    if path.exists():
        shutil.rmtree(path)


class UnsyncedError(OSError):
    """The new file is in place, but a power cut may restore the old one."""


def save(path: Path, text: bytes) -> None:
    """Replace a file in one step, with a checksum that `unsealed` removes.

    Its folder is created if it is missing. UnsyncedError; OSError: the old file is unchanged.
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
