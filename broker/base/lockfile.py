"""One process per data folder: a lock that the kernel releases when the process ends."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from typing import TYPE_CHECKING

from broker.base.durable import make_folder

if TYPE_CHECKING:
    from pathlib import Path

LOCK_NAME = "twinwire.lock"


class DataLockedError(Exception):
    """Another process uses the data folder."""


class DataFolderError(OSError):
    """The data folder cannot be used. Its text says why."""

    def __init__(self, folder: Path, cause: OSError) -> None:
        super().__init__(cause.errno, cause.strerror)
        self.folder = folder

    def __str__(self) -> str:
        reason = self.strerror or "unknown reason"
        if self.errno in (errno.EEXIST, errno.ENOTDIR):
            reason = "it is, or is below, a file"
        elif self.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            reason += f" for user id {os.geteuid()}, which must be able to write there"
        return f"data folder {self.folder} cannot be used: {reason}"


class DataLock:
    """Locks a data folder, which is created if it is missing, until release() or the end of the
    process."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / LOCK_NAME
        try:
            make_folder(folder, 0o750)
            # Never unlinked: a second process could then lock a file without a name.
            self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        except OSError as error:
            raise DataFolderError(folder, error) from error
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(self._fd, 32, 0).decode("ascii", "replace").strip()
            os.close(self._fd)
            by = f"process {holder}" if holder else "another process"
            raise DataLockedError(f"data folder {folder} is in use by {by}") from None
        # release() empties the file, so what is in it is of a process that was killed.
        self.unclean = os.fstat(self._fd).st_size > 0
        # for the error text; a full disk must not prevent a start
        with contextlib.suppress(OSError):
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, f"{os.getpid()}\n".encode(), 0)

    def is_in_place(self) -> bool:
        """Whether the path of the lock file still leads to the file that is locked. An error that
        leaves this open counts as yes."""
        try:
            return os.path.samestat(self.path.stat(), os.fstat(self._fd))
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:
            return True

    def release(self) -> None:
        """Release the folder; a second call does nothing."""
        if self._fd >= 0:
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, 0)
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> DataLock:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
