"""Log lines as text or as JSON, with the same fields.

    log.info("ready", extra=fields(nats="127.0.0.1:4222"))

writes `2026-01-31T12:00:00.000+00:00 INFO server: ready nats=127.0.0.1:4222`. A record is one
line, whatever a client's name contains: control characters are escaped in both formats. Secrets, in
URLs for example, are not written. Longer texts are cut and end with an ellipsis.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TextIO

import orjson

from broker.base import limits
from broker.base.redact import HIDDEN, redacted

if TYPE_CHECKING:
    from collections.abc import Mapping

TRACE = 5  # a level below debug: the traffic of connections

_ATTRIBUTE = "twinwire_fields"
_ROOT = "broker."
_ELLIPSIS = "\u2026"


def fields(**values: object) -> dict[str, Any]:
    """The argument `extra` of a log call with these fields."""
    return {_ATTRIBUTE: values}


def _time(record: logging.LogRecord, *, utc: bool) -> str:
    moment = datetime.fromtimestamp(record.created, UTC)
    return (moment if utc else moment.astimezone()).isoformat(timespec="milliseconds")


def _fields_of(record: logging.LogRecord) -> Mapping[str, object]:
    found: Mapping[str, object] = getattr(record, _ATTRIBUTE, {})
    return found


def one_line(text: str) -> str:
    """`text` with every control character escaped."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text)


def _value(value: object) -> str:
    text = str(value)
    if text and text.isprintable() and not any(c in ' "=' for c in text):
        return text
    return json.dumps(text, ensure_ascii=not text.isprintable())


def _clean(text: str, most: int) -> str:
    """`text` without secrets, cut to `most` characters. Twice as many are searched, so that a
    secret at the cut is still recognized."""
    if len(text) <= most:
        return redacted(text)
    return redacted(text[: 2 * most])[:most] + _ELLIPSIS


def _field(key: str, value: object) -> object:
    """The value of a field without secrets; hidden if the field's name denotes a secret."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, list | tuple):
        return [_field(key, each) for each in value]
    clean = _clean(str(value), limits.LOG_TEXT_MAX)
    named = f"{key}={clean}"
    return clean if redacted(named) == named else HIDDEN


def _message_max(record: logging.LogRecord) -> int:
    # max_traced_msg_len limits traces.
    return sys.maxsize if record.levelno <= TRACE else limits.LOG_TEXT_MAX


def message_of(record: logging.LogRecord) -> str:
    """The message and its fields in one line, followed by a traceback if there is one."""
    parts = [one_line(record.getMessage())]
    parts += [f"{key}={_value(_field(key, value))}" for key, value in _fields_of(record).items()]
    line = _clean(" ".join(parts), _message_max(record))
    if record.exc_info:
        traceback = logging.Formatter().formatException(record.exc_info)
        line += "\n" + _clean(traceback, limits.LOG_TRACEBACK_MAX)
    return line


class TextFormatter(logging.Formatter):
    """time LEVEL logger: message key=value ..."""

    def __init__(self, *, utc: bool) -> None:
        super().__init__()
        self.utc = utc

    def format(self, record: logging.LogRecord) -> str:
        """One line, followed by a traceback if there is one."""
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
            "message": _clean(record.getMessage(), _message_max(record)),
        }
        if record.exc_info:
            traceback = self.formatException(record.exc_info)
            line["exception"] = _clean(traceback, limits.LOG_TRACEBACK_MAX)
        # Before encoding: in JSON, hiding secrets could remove quotes and braces.
        line = {key: _field(key, value) for key, value in _fields_of(record).items()} | line
        # Names from the network may contain lone surrogates, which orjson refuses.
        try:
            return orjson.dumps(line).decode()
        except orjson.JSONEncodeError:
            return json.dumps(line)


def setup(level: str, style: str, *, utc: bool, stream: TextIO | None = None) -> None:
    """Send every logger of the process to one stream (standard error)."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter(utc=utc) if style == "json" else TextFormatter(utc=utc))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    # An unwritable log (a full disk, a closed pipe) must not print tracebacks.
    logging.raiseExceptions = False
