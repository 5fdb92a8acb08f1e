"""Whether the process can still open files. Each connection is one.

When there are no more, the loop's library accepts a connection with a file kept for that and closes
it at once: nobody else would ever hear of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import resource
from typing import TYPE_CHECKING, Final

from broker.base.units import SECOND
from broker.net import limits

if TYPE_CHECKING:
    import logging

_FINE, _FEW, _NONE = range(3)
_FULL: Final = {errno.EMFILE, errno.ENFILE}


class OpenFiles:
    """Says when they run out, and when that is over."""

    def __init__(self, log: logging.Logger) -> None:
        self.log = log
        self.state = _FINE

    def look(self) -> None:
        """Now."""
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        used = lowest_free()
        if used < 0:
            state = _NONE
        elif most != resource.RLIM_INFINITY and used * 100 >= most * limits.OPEN_FILES_FEW:
            state = _FEW
        else:
            state = _FINE
        if state == _FEW and self.state == _FINE:
            self.log.warning("%d of %d files are open, new connections need more", used, most)
        elif state == _NONE and self.state != _NONE:
            self.log.error("too many open files (%d): new connections are closed at once", most)
        elif state == _FINE and self.state != _FINE:
            self.log.info("files can be opened again, %d of %d are open", used, most)
        self.state = state


def lowest_free() -> int:
    """Files get the lowest number that is free, so it is about how many there are; -1: none is."""
    try:
        number = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in _FULL:
            return -1
        return 0  # no /dev/null: nothing can be said
    os.close(number)
    return number


async def until(stopping: asyncio.Event, log: logging.Logger) -> None:
    """Wait for the end; look after open files meanwhile."""
    files = OpenFiles(log)
    while not stopping.is_set():
        files.look()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stopping.wait(), limits.OPEN_FILES_LOOK / SECOND)
