"""The umask of a server: narrow for what it stores, as it was for what others are to reach.

A unix socket needs the right to write, which a narrow umask takes from the group that the operator
gave it to.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from broker.net import limits

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SOCKET = 0o777
FILE = 0o666

_before: list[int] = []  # what it was at first


def narrow() -> None:
    """Files that are made from now on are 0640, folders 0750, or narrower if the umask was: they
    hold messages, and names of topics and clients."""
    before = os.umask(limits.UMASK)
    os.umask(before | limits.UMASK)
    _before.append(before)


@contextlib.contextmanager
def narrowed() -> Iterator[None]:
    """As `narrow`, for a while: of a command that writes into the folder of a server."""
    before = os.umask(limits.UMASK)
    os.umask(before | limits.UMASK)
    try:
        yield
    finally:
        os.umask(before)


def widen(path: Path, mode: int) -> None:
    """Give this one the mode that it would have without `narrow`. OSError."""
    if _before:
        path.chmod(mode & ~_before[0])
