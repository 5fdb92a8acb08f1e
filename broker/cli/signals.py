"""Signals that arrive while a server starts: the kernel keeps them until something handles them.

They are blocked rather than handled: before a handler is installed SIGTERM and SIGHUP end the
process, and KeyboardInterrupt during the import of a compiled module can crash it. This is a module
of its own because it runs before all others: `signal` and `typing` take longer to import than
everything here.
"""

from __future__ import annotations

from _signal import (  # type: ignore[import-not-found]
    SIG_BLOCK,
    SIG_DFL,
    SIG_UNBLOCK,
    SIGHUP,
    SIGINT,
    SIGTERM,
    SIGUSR1,
    SIGUSR2,
    pthread_sigmask,
    signal,
    sigpending,
)

RELOADS = (SIGHUP,)
STOPS = (SIGINT, SIGTERM)
OTHERS = (SIGUSR1, SIGUSR2)


def hold(*numbers: int) -> None:
    """Block these signals; without arguments, all that a server handles. New threads and child
    processes inherit the mask."""
    pthread_sigmask(SIG_BLOCK, numbers or (*RELOADS, *STOPS, *OTHERS))


def let_through(*numbers: int) -> None:
    """Unblock these signals; pending ones are delivered."""
    pthread_sigmask(SIG_UNBLOCK, numbers)


class Stoppable:
    """In this context, SIGINT and SIGTERM end the process at once, because reading a file may take
    for ever if it is a FIFO or a terminal. A signal that was pending before is kept for the server.
    Only for the main thread."""

    def __init__(self) -> None:
        self._handlers: list[tuple[int, object]] = []

    def __enter__(self) -> None:
        if sigpending().isdisjoint(STOPS):
            self._handlers = [(number, signal(number, SIG_DFL)) for number in STOPS]
            let_through(*STOPS)

    def __exit__(self, *_problem: object) -> None:
        if self._handlers:
            hold(*STOPS)
            for number, handler in self._handlers:
                signal(number, handler)
