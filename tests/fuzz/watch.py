"""The sanitizer and the coverage map of this process, as far as it has them."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

MODULES = b"/broker/"
BYTES_HEAD = sys.getsizeof(b"") - 1  # of a bytes object, before its first byte

_process = ctypes.CDLL(None)


def function(
    name: str, result: type[ctypes._SimpleCData[int]] | None = None
) -> ctypes._NamedFuncPointer | None:
    """A C function somebody preloaded, or None."""
    found: ctypes._NamedFuncPointer | None = getattr(_process, name, None)
    if found is not None:
        found.restype = result
    return found


_poison = function("__asan_poison_memory_region")
_unpoison = function("__asan_unpoison_memory_region")
_allocated = function("__sanitizer_get_current_allocated_bytes", ctypes.c_size_t)
SANITIZED = _poison is not None


def allocated() -> int:
    """Bytes that C code has from malloc; 0 when nobody counts them."""
    return int(_allocated()) if _allocated is not None else 0


@contextmanager
def fence(address: int, size: int) -> Iterator[None]:
    """Whoever touches these bytes meanwhile is ended by the sanitizer."""
    if _poison is None or _unpoison is None or size <= 0:
        yield
        return
    start, length = ctypes.c_void_p(address), ctypes.c_size_t(size)
    _poison(start, length)
    try:
        yield
    finally:
        _unpoison(start, length)


def fence_behind(view: memoryview, used: int) -> AbstractContextManager[None]:
    """Fence what follows the first `used` bytes of a writable buffer."""
    room = (ctypes.c_char * len(view)).from_buffer(view)
    return fence(ctypes.addressof(room) + used, len(view) - used)


def fence_end(data: bytes) -> AbstractContextManager[None]:
    """Fence the zero that Python puts behind bytes: scanners must not count on it."""
    # one byte or none: an object that everybody shares
    return fence(id(data) + BYTES_HEAD + len(data), 1 if len(data) > 1 else 0)


class Map:
    """Steps between blocks of the modules loaded so far; without coverage nothing is news."""

    def __init__(self) -> None:
        open_ = function("tw_cov_open", ctypes.c_int)
        self._begin, self._end = function("tw_cov_begin"), function("tw_cov_end", ctypes.c_int)
        self._steps = function("tw_cov_steps", ctypes.c_uint)
        self.modules = int(open_(ctypes.c_char_p(MODULES))) if open_ is not None else 0

    def begin(self) -> None:
        """Watch this thread."""
        if self._begin is not None:
            self._begin()

    def end(self) -> int:
        """Stop; 2 = a new step, 1 = a new count of one, 0 = no news."""
        return int(self._end()) if self._end is not None else 0

    @property
    def steps(self) -> int:
        """Different steps seen."""
        return int(self._steps()) if self._steps is not None else 0
