"""How monitoring pages write times, durations and numbers: as programs in Go do."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import orjson

from broker.base.gotext import duration_text
from broker.base.units import MS, SECOND, US

if TYPE_CHECKING:
    from collections.abc import Mapping

_ESCAPED = {b"<": rb"\u003c", b">": rb"\u003e", b"&": rb"\u0026"}
_ESCAPED |= {"\u2028".encode(): rb"\u2028", "\u2029".encode(): rb"\u2029"}


def rfc3339(wall_ns: int) -> str:
    """A wall clock time, UTC, nanoseconds without trailing zeros."""
    seconds, fraction = divmod(wall_ns, SECOND)
    text = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
    digits = f"{fraction:09d}".rstrip("0")
    return f"{text}.{digits}Z" if digits else f"{text}Z"


def uptime(span_ns: int) -> str:
    """1y2d3h4m5s, from the largest unit that is not zero."""
    seconds = max(0, span_ns) // SECOND
    rest, parts = divmod(seconds, 60)[0], [f"{seconds % 60}s"]
    for size, unit in ((60, "m"), (24, "h"), (365, "d")):
        if not rest:
            break
        rest, count = divmod(rest, size)
        parts.append(f"{count}{unit}")
    if rest:
        parts.append(f"{rest}y")
    return "".join(reversed(parts))


def round_trip(rtt_ns: int) -> str:
    """In whole microseconds as long as it is less than a millisecond."""
    if US < rtt_ns < MS:
        rtt_ns -= rtt_ns % US
    return duration_text(rtt_ns)


def number(value: float) -> float:
    """A whole number has no fraction in JSON."""
    return int(value) if value == int(value) else value


def seconds(duration_ns: int) -> float:
    """A duration where the original keeps seconds."""
    return number(duration_ns / SECOND)


def text(raw: bytes) -> str:
    """A subject or name for JSON, which knows no bytes."""
    return raw.decode("utf-8", "replace")


def encode(page: Any, *, indent: bool = True) -> bytes:
    """JSON byte for byte as Go writes it: what HTML could take for its own is escaped."""
    try:
        body = orjson.dumps(page, option=orjson.OPT_INDENT_2 if indent else 0)
    except TypeError:  # half a surrogate pair, out of some client's JSON
        body = orjson.dumps(_whole(page), option=orjson.OPT_INDENT_2 if indent else 0)
    for mark, escape in _ESCAPED.items():
        if mark in body:
            body = body.replace(mark, escape)
    return body


def _whole(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {_whole(key): _whole(inner) for key, inner in value.items()}
    return [_whole(inner) for inner in value] if isinstance(value, list | tuple) else value


def filled(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Without those that are empty, as Go's omitempty leaves them out."""
    return {name: value for name, value in fields.items() if value or value is None}
