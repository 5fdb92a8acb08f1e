"""SIGINT and SIGTERM: the first one ends a job when it has done what it is at, the next at once."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Final

ENDS: Final = "{job}: ends when this batch is done; once more ends it now\n"
ENDS_SOON: Final = "{job}: ends when Spark has started; once more ends it now\n"
_NUMBERS: Final = (signal.SIGTERM, signal.SIGINT)


def ends_with_signals(stop: threading.Event, job: str) -> None:
    """`stop` is set by a signal. PySpark's own handler for SIGINT would cancel what is running."""

    def handler(_number: int, _frame: FrameType | None) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()
        # Not print: the signal may have come in the middle of one.
        os.write(2, ENDS.format(job=job).encode())

    for number in _NUMBERS:
        signal.signal(number, handler)


@contextlib.contextmanager
def until_started(job: str) -> Iterator[None]:
    """Signals wait until Spark has started: a Java that is left alone earlier never ends."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came = threading.Event()

    def handler(_number: int, _frame: FrameType | None) -> None:
        if came.is_set():
            raise KeyboardInterrupt
        came.set()
        os.write(2, ENDS_SOON.format(job=job).encode())

    before = {number: signal.signal(number, handler) for number in _NUMBERS}
    try:
        yield
    finally:
        for number, had in before.items():
            if signal.getsignal(number) is handler:  # PySpark sets one of its own
                signal.signal(number, had)
        if came.is_set():  # also in the place of what Spark says when Java got the signal too
            raise KeyboardInterrupt
