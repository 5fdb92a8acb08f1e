"""Which pages of a file are in the page cache."""

from __future__ import annotations

import ctypes
import mmap
import os
from pathlib import Path

LIBC = ctypes.CDLL(None, use_errno=True)
PAGE = os.sysconf("SC_PAGE_SIZE")
ASKED_MAX = 1000  # times that the kernel is asked to let go of a file


def cached(path: Path, offset: int = 0) -> bool:
    """Whether a page is in memory, by mincore(2): any read would load it."""
    with path.open("r+b") as file, mmap.mmap(file.fileno(), PAGE, offset=offset) as pages:
        found = ctypes.c_ubyte()
        address = ctypes.addressof(ctypes.c_char.from_buffer(pages))
        if LIBC.mincore(ctypes.c_void_p(address), ctypes.c_size_t(PAGE), ctypes.byref(found)):
            raise OSError(ctypes.get_errno(), "mincore")
        return bool(found.value & 1)


def leave(path: Path, step: int = PAGE) -> bool:
    """Drop a file from the page cache. False: it stays there; one page in `step` bytes is
    checked."""
    fd = os.open(path, os.O_RDWR)
    try:
        os.fsync(fd)
        for _ in range(ASKED_MAX):
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            last = path.stat().st_size - PAGE
            if not any(cached(path, offset) for offset in range(0, last + 1, step)):
                return True
        return False
    finally:
        os.close(fd)
