"""The umask of a server: narrow for stored files, the original one for files meant for others.

Connecting to a unix socket needs write permission, which a narrow umask would remove for the group.
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

_before: list[int] = []  # the original umask


def narrow() -> None:
    """From now on create files with mode 0640 and folders with 0750, or narrower if the umask was:
    they contain messages, and names of topics and clients."""
    before = os.umask(limits.UMASK)
    os.umask(before | limits.UMASK)
    _before.append(before)


@contextlib.contextmanager
def narrowed() -> Iterator[None]:
    """Same as `narrow`, during the block: for a command that writes into a server's folder."""
    before = os.umask(limits.UMASK)
    os.umask(before | limits.UMASK)
    try:
        yield
    finally:
        os.umask(before)


def widen(path: Path, mode: int) -> None:
    """Give a file the mode that it would have without `narrow`. OSError."""
    if _before:
        path.chmod(mode & ~_before[0])
