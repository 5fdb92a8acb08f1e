"""Log lines: text for people, JSON for machines; both carry the same fields.

    log.info("ready", extra=fields(nats="127.0.0.1:4222"))

writes `2026-01-31T12:00:00.000+00:00 INFO server: ready nats=127.0.0.1:4222`. A line is one record
whatever a client put into its name: control characters are escaped in both formats.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TextIO

import orjson

if TYPE_CHECKING:
    from collections.abc import Mapping

TRACE = 5  # a level below debug: what goes over the connections

_ATTRIBUTE = "twinwire_fields"
_ROOT = "broker."


def fields(**values: object) -> dict[str, Any]:
    """What a log call passes as `extra`."""
    return {_ATTRIBUTE: values}


def _time(record: logging.LogRecord, *, utc: bool) -> str:
    moment = datetime.fromtimestamp(record.created, UTC)
    return (moment if utc else moment.astimezone()).isoformat(timespec="milliseconds")


def _fields_of(record: logging.LogRecord) -> Mapping[str, object]:
    found: Mapping[str, object] = getattr(record, _ATTRIBUTE, {})
    return found


def one_line(text: str) -> str:
    """With every control character escaped."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text)


def _value(value: object) -> str:
    text = str(value)
    if text and text.isprintable() and not any(c in ' "=' for c in text):
        return text
    return json.dumps(text, ensure_ascii=not text.isprintable())


def message_of(record: logging.LogRecord) -> str:
    """The message and its fields in one line, and a traceback below it when there is one."""
    parts = [one_line(record.getMessage())]
    parts += [f"{key}={_value(value)}" for key, value in _fields_of(record).items()]
    if record.exc_info:
        parts[-1] += "\n" + logging.Formatter().formatException(record.exc_info)
    return " ".join(parts)


class TextFormatter(logging.Formatter):
    """time LEVEL logger: message key=value ..."""

    def __init__(self, *, utc: bool) -> None:
        super().__init__()
        self.utc = utc

    def format(self, record: logging.LogRecord) -> str:
        """One line, and a traceback below it when there is one."""
        time, name = _time(record, utc=self.utc), record.name.removeprefix(_ROOT)
        return f"{time} {record.levelname} {name}: {message_of(record)}"


class JsonFormatter(logging.Formatter):
    """One JSON object per line."""

    def __init__(self, *, utc: bool) -> None:
        super().__init__()
        self.utc = utc

    def format(self, record: logging.LogRecord) -> str:
        """Fixed keys first; fields of the record cannot replace them."""
        line: dict[str, object] = {
            "time": _time(record, utc=self.utc),
            "level": record.levelname.lower(),
            "logger": record.name.removeprefix(_ROOT),
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        line = dict(_fields_of(record)) | line
        # Names from the network may hold lone surrogates, which orjson refuses.
        try:
            return orjson.dumps(line, default=str).decode()
        except orjson.JSONEncodeError:
            return json.dumps(line, default=str)


def setup(level: str, style: str, *, utc: bool, stream: TextIO | None = None) -> None:
    """Send every logger of the process to one stream (standard error)."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter(utc=utc) if style == "json" else TextFormatter(utc=utc))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    # A log that cannot be written (a full disk, a closed pipe) must not become noise of its own.
    logging.raiseExceptions = False
