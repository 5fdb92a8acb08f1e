"""Signals that arrive while a server starts: the kernel keeps them until something handles them.

A handler of Python would not do: until there is one, SIGTERM and SIGHUP end the process, and SIGINT
raises KeyboardInterrupt in the middle of an import, which compiled modules do not survive. This is
a module of its own because it runs before all others: `signal` and `typing` take longer to import
than everything here.
"""

from __future__ import annotations

from _signal import (  # type: ignore[import-not-found]
    SIG_BLOCK,
    SIG_UNBLOCK,
    SIGHUP,
    SIGINT,
    SIGTERM,
    SIGUSR1,
    SIGUSR2,
    pthread_sigmask,
)

RELOADS = (SIGHUP,)
STOPS = (SIGINT, SIGTERM)
OTHERS = (SIGUSR1, SIGUSR2)


def hold(*numbers: int) -> None:
    """Keep these signals waiting from now on; without any, all that a server knows. Threads and
    processes that are created meanwhile inherit this."""
    pthread_sigmask(SIG_BLOCK, numbers or (*RELOADS, *STOPS, *OTHERS))


def let_through(*numbers: int) -> None:
    """Have these signals handled again, also those that have waited."""
    pthread_sigmask(SIG_UNBLOCK, numbers)
