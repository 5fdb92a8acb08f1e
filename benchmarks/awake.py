"""Keep the cores from halting while latency is measured.

A halted core of a virtual machine takes tens of microseconds to wake up, several times per request:
longer than any server takes, and at random. Spinners of the SCHED_IDLE class yield to everything
else at once, so they remove this noise and change nothing else.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator
from contextlib import contextmanager


def _spin(parent: int) -> None:
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    while os.getppid() == parent:
        pass


@contextmanager
def cores_awake(wanted: bool = True) -> Iterator[None]:
    """One spinner per core until the block ends; they end with this process in any case."""
    count = (os.cpu_count() or 1) if wanted else 0
    spinners = [
        multiprocessing.Process(target=_spin, args=(os.getpid(),), daemon=True)
        for _ in range(count)
    ]
    for spinner in spinners:
        spinner.start()
    try:
        yield
    finally:
        for spinner in spinners:
            spinner.kill()
            spinner.join()
