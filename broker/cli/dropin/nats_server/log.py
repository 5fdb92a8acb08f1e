"""The log of `twinwire nats-server`: its line format and destinations.

    [4711] 2026/01/31 12:00:00.000000 [INF] Server is ready

Lines have nats-server's format. They are written to standard error, to a file (rotated when it is
too long), or to a syslog. A thread with a short queue writes to the syslog: a slow one loses lines
and does not stop the broker.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from broker.base import logs
from broker.base.gotext import system_text
from broker.base.units import SECOND
from broker.cli.dropin import errors

if TYPE_CHECKING:
    from broker.protocols.nats.settings import Settings

log = logging.getLogger("broker.nats")

_LABELS: Final = {
    logs.TRACE: "TRC",
    logging.DEBUG: "DBG",
    logging.INFO: "INF",
    logging.WARNING: "WRN",
    logging.ERROR: "ERR",
    logging.CRITICAL: "FTL",
}
_COLORS: Final = {"TRC": "33", "DBG": "36", "INF": "32", "WRN": "0;93", "ERR": "31", "FTL": "31"}
_FILE_MODE: Final = 0o640
_OPEN: Final = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC


class LogError(Exception):
    """The destination of the log cannot be opened."""


def stamp_now() -> str:
    """Local time in the format of Go's log package."""
    return f"{datetime.now().astimezone():%Y/%m/%d %H:%M:%S}"


STREAMING: Final = "broker.stan"  # the logger of NATS Streaming


def message_of(record: logging.LogRecord) -> str:
    """The text, with the prefix that nats-streaming-server gives to its own lines."""
    text = logs.message_of(record)
    return f"STREAM: {text}" if record.name.startswith(STREAMING) else text


class LineFormatter(logging.Formatter):
    """Formats records as: [pid] time [LEVEL] message."""

    def __init__(self, *, timed: bool, utc: bool, colors: bool = False) -> None:
        super().__init__()
        self.timed, self.utc = timed, utc
        self.pid = os.getpid()
        self.labels = {
            level: f"\x1b[{_COLORS[label]}m{label}\x1b[0m" if colors else label
            for level, label in _LABELS.items()
        }

    def format(self, record: logging.LogRecord) -> str:
        """One line, followed by a traceback if there is one."""
        shown = ""
        if self.timed:
            moment = datetime.fromtimestamp(record.created, UTC)
            shown = f"{moment if self.utc else moment.astimezone():%Y/%m/%d %H:%M:%S.%f} "
        label = self.labels.get(record.levelno, record.levelname)
        return f"[{self.pid}] {shown}[{label}] {message_of(record)}"


class NoDebug(logging.Filter):
    """Keeps debug lines out of a log that shows traces."""

    def filter(self, record: logging.LogRecord) -> bool:
        return record.levelno != logging.DEBUG


class LogFile(logging.Handler):
    """Appends to a file; above `size_max` bytes it is renamed and a new one begins (0 = never)."""

    def __init__(self, path: str, size_max: int = 0, files_max: int = 0) -> None:
        """`files_max`: the number of files including renamed ones, 0 = any number. OSError."""
        super().__init__()
        self.path = Path(path)
        self.size_max = self.size_next = size_max
        self.files_max = files_max
        self._open()

    def _open(self) -> None:
        self.fd = os.open(self.path, _OPEN, _FILE_MODE)
        self.size = os.fstat(self.fd).st_size

    def begin(self) -> None:
        """Rename a file that is too long already, before the first line is written."""
        if self.size_max and self.size > self.size_max:
            log.info("Rotating logfile...")

    def emit(self, record: logging.LogRecord) -> None:
        """Write one line."""
        try:
            self._write(self.format(record))
            if self.size_next and self.size > self.size_next:
                self._rotate()
        except OSError:
            self.handleError(record)

    def _write(self, line: str) -> None:
        data = memoryview(line.encode("utf-8", "backslashreplace") + b"\n")
        while data:
            count = os.write(self.fd, data)
            self.size += count
            data = data[count:]

    def _say(self, level: int, template: str, *args: object) -> None:
        self._write(self.format(logging.LogRecord(log.name, level, "", 0, template, args, None)))

    def _rotate(self) -> None:
        now_ns = time.time_ns()
        moment = datetime.fromtimestamp(now_ns // SECOND).astimezone()
        saved = f"{self.path}.{moment:%Y.%m.%d.%H.%M.%S}.{now_ns % SECOND:09d}"
        before = self.fd
        try:
            self.path.rename(saved)
            self._open()
        except OSError as error:
            self.size_next *= 2
            self._say(logging.ERROR, errors.LOG_KEPT, error.strerror, self.size_next)
            return
        os.close(before)
        self.size_next = self.size_max
        self._say(logging.INFO, "Rotated log, backup saved as %s", f'"{saved}"')
        if self.files_max:
            self._purge()

    def _purge(self) -> None:
        pattern = re.compile(re.escape(self.path.name) + r"(?:\.[0-9]+){7}")
        try:
            names = [e.name for e in self.path.parent.iterdir() if pattern.fullmatch(e.name)]
            for name in sorted(names)[: max(len(names) - self.files_max + 1, 0)]:
                (self.path.parent / name).unlink()
                self._say(logging.INFO, "Purged log file %s", f'"{name}"')
        except OSError as error:
            self._say(logging.ERROR, "Unable to purge old log files: %s", error.strerror)

    def close(self) -> None:
        """Close the file."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
        super().close()


def _syslog(url: str, tag: str) -> logging.Handler:
    """A connected syslog. LogError."""
    from broker.cli.dropin.nats_server import syslog

    try:
        return syslog.connected(url, tag, message_of)
    except (OSError, ValueError) as error:
        raise LogError(error) from None


class Log:
    """The current destination of the log of this process."""

    def __init__(self, tag: str) -> None:
        """`tag`: the name of the program, for a syslog."""
        self.tag = tag
        self.handler: logging.Handler | None = None
        self.settings: Settings | None = None

    def use(self, settings: Settings) -> None:
        """Switch to the destination of these settings; after a LogError the old one stays."""
        handler = self._make(settings)
        if settings.trace and not settings.debug:
            handler.addFilter(NoDebug())
        before, self.handler, self.settings = self.handler, handler, settings
        logging.addLevelName(logs.TRACE, "TRACE")
        logging.raiseExceptions = False  # an unwritable log must not print tracebacks
        root, ours = logging.getLogger(), logging.getLogger("broker")
        root.handlers[:] = [handler]
        root.setLevel(logging.WARNING)  # of libraries
        level = logging.DEBUG if settings.debug else logging.INFO
        ours.setLevel(logs.TRACE if settings.trace else level)
        if before is not None:
            before.close()
        if isinstance(handler, LogFile):
            handler.begin()

    def _make(self, settings: Settings) -> logging.Handler:
        colors = False
        handler: logging.Handler
        if settings.logfile:
            try:
                size_max = max(settings.logfile_size_limit, 0)
                handler = LogFile(settings.logfile, size_max, max(settings.logfile_max_num, 0))
            except OSError as error:
                text = system_text("open", settings.logfile, error)
                raise LogError(errors.LOG_FILE.format(text)) from None
        elif settings.remote_syslog or settings.syslog:
            return _syslog(settings.remote_syslog, self.tag)
        else:
            handler = logging.StreamHandler(sys.stderr)
            colors = sys.stderr.isatty()
        formatter = LineFormatter(timed=settings.logtime, utc=settings.logtime_utc, colors=colors)
        handler.setFormatter(formatter)
        return handler

    def reopen(self) -> None:
        """Open a new file of the same name, after the old one was renamed."""
        if self.settings is None or not isinstance(self.handler, LogFile):
            log.info("File log re-open ignored, not a file logger")
            return
        try:
            self.use(self.settings)
        except LogError as error:
            log.error("%s", error)
        else:
            log.info("File log re-opened")

    def close(self) -> None:
        """Write pending lines; nothing is logged afterwards."""
        if self.handler is not None:
            logging.getLogger().handlers[:] = []
            self.handler.close()
            self.handler = None
