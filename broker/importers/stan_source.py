"""Keeping hands off a file store that a NATS Streaming server is using.

A server of a fault tolerance group holds a lock on a file of the folder. Any other holds no lock:
but it keeps its files open for writing, and the kernel says so to whoever asks for a read lease,
whatever container the server runs in. Where leases are not to be had, the open files of all
processes are looked through.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import signal
from pathlib import Path

from broker.importers.nsqd import ImportRefusedError
from broker.importers.stan_files import SERVER
from broker.importers.stan_state import CLIENTS

LOCK = ".rootdir.lck"  # of a fault tolerance group
_SET_SIGNAL = 10  # F_SETSIG
_KEPT_OPEN = (SERVER, CLIENTS)


class Hold:
    """No server uses the folder now, and none of a fault tolerance group can begin to."""

    def __init__(self, source: Path) -> None:
        """ImportRefusedError."""
        self.source = source
        self._fd = -1
        if not source.is_dir():
            raise ImportRefusedError(_not_here(source))
        try:
            self._fd = self._lock()
            if any(_is_written(source / name) for name in _KEPT_OPEN):
                raise ImportRefusedError(_busy(source))
        except BaseException:
            self.release()
            raise

    def _lock(self) -> int:
        try:
            fd = os.open(self.source / LOCK, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return -1  # there never was such a group, or it is not for us to know
        try:
            fcntl.lockf(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EACCES):
                os.close(fd)
                raise ImportRefusedError(_busy(self.source)) from None
        return fd

    def release(self) -> None:
        """Let others have the folder."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Hold:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def _is_written(path: Path) -> bool:
    """Whether some process has the file open for writing, as far as we may know."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False  # whoever reads it will tell
    try:
        fcntl.fcntl(fd, _SET_SIGNAL, signal.SIGURG)  # who begins to write does not end us
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except OSError as error:
        if error.errno == errno.EAGAIN:
            return True
        return _is_open(os.fstat(fd))
    finally:
        os.close(fd)
    return False


def _is_open(wanted: os.stat_result) -> bool:
    """Whether another process that we may look at has the file open."""
    for process in Path("/proc").iterdir():
        if not process.name.isdigit() or int(process.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            for entry in (process / "fd").iterdir():
                with contextlib.suppress(OSError):
                    if os.path.samestat(entry.stat(), wanted):
                        return True
    return False


def _busy(source: Path) -> str:
    return f"{source} is in use by a running nats-streaming-server: stop it first"


def _not_here(source: Path) -> str:
    return f"{source} is no folder (SQL stores are not read)"
