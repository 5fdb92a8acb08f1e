"""Log lines to a syslog, of this host or another.

A thread with a short queue writes: a slow syslog loses lines and does not stop the broker.
"""

from __future__ import annotations

import contextlib
import logging
import logging.handlers
import os
import queue
import socket
import stat
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final
from urllib.parse import urlsplit

from broker.base.units import SECOND
from broker.cli.dropin import errors
from broker.protocols.nats import limits

if TYPE_CHECKING:
    from collections.abc import Callable

_LOCAL_SYSLOGS: Final = ("/dev/log", "/var/run/syslog", "/var/run/log")


class _Syslog(logging.handlers.SysLogHandler):
    """Formats messages for a syslog, with the priorities of the original."""

    append_nul = False
    priority_map: ClassVar[dict[str, str]] = {
        "DEBUG": "debug",
        "INFO": "notice",
        "WARNING": "warning",
        "ERROR": "err",
        "CRITICAL": "crit",
    }

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        """Drop a line that cannot be sent."""

    def mapPriority(self, levelName: str) -> str:  # noqa: N802, N803 - as it is in logging
        return self.priority_map.get(levelName, "notice")


class _SyslogFormatter(logging.Formatter):
    """The line after the priority."""

    def __init__(
        self, tag: str, message_of: Callable[[logging.LogRecord], str], *, remote: bool
    ) -> None:
        super().__init__()
        self.message_of = message_of
        self.tag = f"{tag}[{os.getpid()}]"
        self.host = f"{socket.gethostname()} " if remote else ""
        self.remote = remote

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created, UTC).astimezone()
        if self.remote:
            shown = moment.isoformat(timespec="seconds")
        else:
            shown = f"{moment:%b} {moment.day:2} {moment:%H:%M:%S}"
        return f"{shown} {self.host}{self.tag}: {self.message_of(record)}\n"


class SyslogThread(logging.handlers.QueueHandler):
    """Passes lines to a thread that writes them to a syslog."""

    def __init__(self, target: _Syslog, formatter: logging.Formatter) -> None:
        self.lines: queue.Queue[logging.LogRecord | None] = queue.Queue(limits.NATS_SYSLOG_QUEUE)
        super().__init__(self.lines)
        self.setFormatter(formatter)
        self.target = target
        self.closed = False
        self.thread = threading.Thread(target=self._run, name="syslog", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        while (record := self.lines.get()) is not None and not self.closed:
            self.target.emit(record)  # without the lock: only this thread writes, and may block

    def close(self) -> None:
        """Wait a short time for the thread to write the remaining lines."""
        with contextlib.suppress(queue.Full):
            self.lines.put_nowait(None)
        self.thread.join(limits.NATS_SYSLOG_FLUSH / SECOND)
        self.closed = True
        self.target.close()
        super().close()


def connected(url: str, tag: str, message_of: Callable[[logging.LogRecord], str]) -> SyslogThread:
    """A syslog; without a URL that of this host. ValueError with the reason.

    `message_of` makes the text of a line.
    """
    if not url:
        path = next((path for path in _LOCAL_SYSLOGS if _is_socket(path)), "")
        if not path:
            raise ValueError(errors.SYSLOG.format("Unix syslog delivery error"))
        daemon = logging.handlers.SysLogHandler.LOG_DAEMON
        formatter = _SyslogFormatter(tag, message_of, remote=False)
        return SyslogThread(_Syslog(path, daemon), formatter)
    try:
        target = _remote(url)
    except (OSError, ValueError) as error:
        raise ValueError(errors.SYSLOG.format(error)) from None
    if target is None:
        raise ValueError(errors.SYSLOG_NETWORK.format(urlsplit(url).scheme))
    return SyslogThread(target, _SyslogFormatter(tag, message_of, remote=True))


def _remote(url: str) -> _Syslog | None:
    """A connected syslog; None: the scheme is unknown. OSError, ValueError."""
    parts = urlsplit(url)
    kern = logging.handlers.SysLogHandler.LOG_KERN
    if parts.scheme == "unix":
        if not _is_socket(parts.path):
            raise ValueError(f"no socket at {parts.path}")
        return _Syslog(parts.path, kern)
    kinds = {"udp": socket.SOCK_DGRAM, "tcp": socket.SOCK_STREAM}
    if parts.scheme not in kinds:
        return None
    if not parts.port:
        raise ValueError(f"address {parts.netloc}: missing port")
    return _Syslog((parts.hostname or "localhost", parts.port), kern, kinds[parts.scheme])


def _is_socket(path: str) -> bool:
    try:
        return stat.S_ISSOCK(Path(path).stat().st_mode)
    except OSError:
        return False
