"""The last lines of the log, for the console: the texts of the log, which have no secrets."""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING, Any

from broker.base.logs import message_of
from broker.console import limits

if TYPE_CHECKING:
    from collections.abc import Iterator

_LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}
_ROOT = "broker."


class RecentLines(logging.Handler):
    """Keeps the last lines of the log."""

    def __init__(self) -> None:
        super().__init__()
        self._lines: deque[tuple[int, int, int, str, str]] = deque(maxlen=limits.LOG_LINES_MAX)
        self._number = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a line; may be called on any thread, which the handler's lock allows."""
        self._number += 1
        text = message_of(record)[: limits.LOG_LINE_CHARS_MAX]
        name = record.name.removeprefix(_ROOT)
        time_ns = int(record.created * 1e9)
        self._lines.append((self._number, time_ns, record.levelno, name, text))

    def begin(self) -> None:
        """Start to keep lines."""
        logging.getLogger().addHandler(self)

    def end(self) -> None:
        """Stop keeping lines."""
        logging.getLogger().removeHandler(self)

    def page(self, level: str, contains: str | None, after: int, limit: int) -> dict[str, Any]:
        """The newest lines that match, oldest first."""
        text = (contains or "").lower()
        found: list[tuple[int, int, int, str, str]] = []
        for line in self._backwards(after):
            if line[2] >= _LEVELS[level] and text in f"{line[3]} {line[4]}".lower():
                found.append(line)
                if len(found) == limit:
                    break
        return {"lines": found[::-1], "next": self._number}

    def _backwards(self, after: int) -> Iterator[tuple[int, int, int, str, str]]:
        for line in reversed(list(self._lines)):
            if line[0] <= after:
                return
            yield line


def level_name(number: int) -> str:
    """The level of the API for a number of the log."""
    return next((name for name, low in reversed(_LEVELS.items()) if number >= low), "debug")
