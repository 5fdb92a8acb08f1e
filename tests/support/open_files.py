"""A process that may open only a few more files."""

from __future__ import annotations

import contextlib
import gc
import os
import resource
from collections.abc import Iterator
from pathlib import Path

from broker.net import limits


@contextlib.contextmanager
def few_left() -> Iterator[None]:
    """Lower the limit of open files, so that the broker accepts no more connections, while the test
    can still open some files.

    Earlier tests leave gaps between the numbers of open files, more of them when their garbage is
    collected: the gaps that are there are filled, and no garbage is collected meanwhile.
    """
    gc.collect()
    gc.disable()
    with contextlib.ExitStack() as undo:
        undo.callback(gc.enable)
        highest = max(int(entry.name) for entry in Path("/proc/self/fd").iterdir())
        free = -1
        while free <= highest:
            free = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
            undo.callback(os.close, free)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        most = free + 1 + limits.OPEN_FILES_KEPT_MIN // 2
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        undo.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        yield
