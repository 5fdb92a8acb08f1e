"""Reports to the service manager that started this process (sd_notify(3)): ready, reloading,
stopping, and alive.

A manager that expects reports sets NOTIFY_SOCKET. If it wants to know that the process is alive
(WATCHDOG_USEC), the event loop reports it at half of that period: a loop that hangs reports
nothing, and the manager restarts the process. Without a manager nothing here does anything.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterator

WATCHDOG_SHARE: Final = 2  # reports in a watchdog's period
_USEC: Final = 1_000_000
_NSEC_PER_USEC: Final = 1_000


def report(*fields: str) -> bool:
    """Send fields, such as READY=1, in one datagram. Returns whether it was sent to a manager. A
    missing manager is not an error."""
    path = os.environ.get("NOTIFY_SOCKET", "")
    if not path.startswith(("/", "@")):
        return False
    address = f"\0{path[1:]}" if path[0] == "@" else path  # "@": abstract namespace
    with (
        contextlib.suppress(OSError),
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as one,
    ):
        one.sendto("\n".join(fields).encode(), address)
        return True
    return False


def ready(status: str) -> None:
    """Report that all listeners are open, and from now on, that the loop is alive. Call it on the
    loop."""
    if report("READY=1", f"STATUS={status}"):
        _watch()


def _watch() -> None:
    import asyncio

    period = os.environ.get("WATCHDOG_USEC", "")
    pid = os.environ.get("WATCHDOG_PID", "")
    if period.isdecimal() and int(period) and pid in ("", str(os.getpid())):
        _alive(asyncio.get_running_loop(), int(period) / _USEC / WATCHDOG_SHARE)


def _alive(loop: asyncio.AbstractEventLoop, seconds: float) -> None:
    report("WATCHDOG=1")
    loop.call_later(seconds, _alive, loop, seconds)


@contextlib.contextmanager
def reloading() -> Iterator[None]:
    """Report that the process is reloading its configuration, and after the block that it has done
    so."""
    report("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // _NSEC_PER_USEC}")
    try:
        yield
    finally:
        report("READY=1")


def stopping(status: str = "stopping") -> None:
    """Report that the process is stopping."""
    report("STOPPING=1", f"STATUS={status}")
