"""A process that may open hardly any more files."""

from __future__ import annotations

import contextlib
import gc
import os
import resource
from collections.abc import Iterator

from broker.net import limits


@contextlib.contextmanager
def few_left() -> Iterator[None]:
    """Have so few that no new connection is taken, while a test can still open half of those.

    Garbage of earlier tests that is collected meanwhile would make room, so it goes before.
    """
    gc.collect()
    free = os.open(os.devnull, os.O_RDONLY)
    os.close(free)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free + limits.OPEN_FILES_KEPT_MIN // 2, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
