"""Returns memory that a burst has left free to the system, from time to time."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from pathlib import Path

from broker.runtime import memory
from broker.server import limits

_PAGE_BYTES = os.sysconf("SC_PAGESIZE")
_STATM = Path("/proc/self/statm")  # pages: size, resident, of which shared, ...


def resident_bytes() -> int:
    """Memory of this process alone that is in RAM."""
    _, resident, shared, *_ = _STATM.read_bytes().split()
    return (int(resident) - int(shared)) * _PAGE_BYTES


class FreeMemory:
    """Checks periodically how much memory is resident but not allocated, and has it returned.

    The check runs on a thread of its own for a limited share of time (`limits.TRIM_REST`), because
    the loop may have to wait for the allocator meanwhile.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, period_s: float = limits.TRIM_PERIOD_S):
        self.times = 0  # how often memory was returned
        self._loop = loop
        self._period_s = period_s
        self._rest_bytes = 0  # resident and not allocated: the least since the last trim
        self._timer: asyncio.TimerHandle | None = None
        self._later(period_s)

    def stop(self) -> None:
        """Stop checking."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _later(self, seconds: float) -> None:
        self._timer = self._loop.call_later(seconds, self._begin)

    def _begin(self) -> None:
        self._loop.run_in_executor(None, self.trim_if_useful).add_done_callback(self._looked)

    def _looked(self, looking: asyncio.Future[float]) -> None:
        if self._timer is not None:  # not stopped meanwhile
            self._later(max(self._period_s, limits.TRIM_REST * looking.result()))

    def trim_if_useful(self) -> float:
        """Return memory if it is worthwhile; return the seconds that it took."""
        began = time.monotonic()
        with contextlib.suppress(OSError):  # no file can be opened now
            self._trim()
        return time.monotonic() - began

    def _trim(self) -> None:
        resident = resident_bytes()
        rest = resident - memory.used_bytes()
        # Python's own arenas and mappings are in it as well, and they come and go.
        self._rest_bytes = min(self._rest_bytes, rest)
        if rest - self._rest_bytes > max(limits.TRIM_BYTES_MIN, resident // limits.TRIM_SHARE):
            self.times += memory.trim()
            self._rest_bytes = resident_bytes() - memory.used_bytes()
