"""Facts about this process: memory, processor time, stacks of its threads."""

from __future__ import annotations

import asyncio
import os
import resource
import sys
import threading
import time
import traceback
from pathlib import Path

from broker.base.units import SECOND
from broker.protocols.nats.monitoring import limits

_PAGE_BYTES = os.sysconf("SC_PAGESIZE")


def resident_bytes() -> int:
    """The resident memory of this process; its maximum on systems without /proc."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except (OSError, IndexError, ValueError):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return pages * _PAGE_BYTES


class CpuMeter:
    """CPU use in percent of one core, averaged over at least MONITOR_CPU_SPAN."""

    def __init__(self) -> None:
        self._wall_ns, self._cpu_ns = time.monotonic_ns(), time.process_time_ns()
        self._percent = 0.0

    def percent(self) -> float:
        """The percentage with one decimal."""
        wall_ns, cpu_ns = time.monotonic_ns(), time.process_time_ns()
        span_ns = wall_ns - self._wall_ns
        if span_ns >= limits.MONITOR_CPU_SPAN:
            self._percent = round(100 * (cpu_ns - self._cpu_ns) / span_ns, 1)
            self._wall_ns, self._cpu_ns = wall_ns, cpu_ns
        return self._percent


class Clock:
    """Converts monotonic times to wall clock times, consistently."""

    def __init__(self) -> None:
        self._offset_ns = time.time_ns() - time.monotonic_ns()

    def wall_ns(self, monotonic_ns: int) -> int:
        """The wall clock time; follows a clock that was set."""
        offset_ns = time.time_ns() - time.monotonic_ns()
        if abs(offset_ns - self._offset_ns) > SECOND:
            self._offset_ns = offset_ns
        return monotonic_ns + self._offset_ns


def stacks() -> bytes:
    """The stacks of all threads and tasks, without values of variables."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    parts = []
    for ident, frame in sys._current_frames().items():
        parts.append(f"thread {names.get(ident, ident)}:\n")
        parts += traceback.format_stack(frame)
    for task in asyncio.all_tasks():
        parts.append(f"\ntask {task.get_name()}:\n")
        for frame in task.get_stack():
            parts += traceback.format_stack(frame, limit=1)
    return "".join(parts).encode("utf-8", "replace")
