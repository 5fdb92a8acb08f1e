"""Text as Go's standard library writes it: quoted strings, durations, numbers, errors."""

from __future__ import annotations

import re
from typing import Final

from broker.base.units import HOUR, INT64_MAX, INT64_MIN, MINUTE, MS, SECOND, US

_INT64_DIGITS: Final = len(str(INT64_MAX))

UNITS = {  # of durations, in nanoseconds
    "ns": 1,
    "us": US,
    "\u00b5s": US,
    "\u03bcs": US,
    "ms": MS,
    "s": SECOND,
    "m": MINUTE,
    "h": HOUR,
}


def duration_text(duration_ns: int) -> str:
    """A duration as Go writes it: 1m0s, 250ms, 2s, 1h0m0s."""
    if duration_ns == 0:
        return "0s"
    sign, rest = ("-" if duration_ns < 0 else ""), abs(duration_ns)
    for unit, name in ((US, "ns"), (MS, "\u00b5s"), (SECOND, "ms")):
        if rest < unit:
            step = UNITS[name]
            return f"{sign}{_decimal(rest, step)}{name}"
    hours, rest = divmod(rest, HOUR)
    minutes, rest = divmod(rest, MINUTE)
    text = f"{_decimal(rest, SECOND)}s"
    if hours:
        return f"{sign}{hours}h{minutes}m{text}"
    return f"{sign}{minutes}m{text}" if minutes else sign + text


def _decimal(number: int, unit: int) -> str:
    whole, part = divmod(number, unit)
    digits = str(part).rjust(len(str(unit)) - 1, "0").rstrip("0")
    return f"{whole}.{digits}" if part else str(whole)


def float_text(value: float) -> str:
    """A number as %v writes it: without a fraction if it is whole."""
    return str(int(value)) if value == int(value) else str(value)


def parse_int(text: str) -> int:
    """An int64 as strconv.Atoi reads it: decimal digits of ASCII, perhaps with a sign. ValueError
    with its text."""
    digits = text[1:] if text[:1] in {"+", "-"} else text
    if not (digits.isascii() and digits.isdigit()):
        raise ValueError(f"strconv.Atoi: parsing {go_quote(text)}: invalid syntax")
    size = digits.lstrip("0")
    # Python converts no more than some thousands of digits
    number = int(size or "0") if len(size) <= _INT64_DIGITS else INT64_MAX + 2
    number = -number if text[0] == "-" else number
    if not INT64_MIN <= number <= INT64_MAX:
        raise ValueError(f"strconv.Atoi: parsing {go_quote(text)}: value out of range")
    return number


def bool_text(value: bool) -> str:
    """true or false."""
    return "true" if value else "false"


_NAMED_ESCAPES: Final = {
    7: "\\a", 8: "\\b", 9: "\\t", 10: "\\n", 11: "\\v", 12: "\\f", 13: "\\r", 34: '\\"', 92: "\\\\",
}  # fmt: skip


def go_quote(value: bytes | str) -> str:
    """`value` in double quotes as %q and strconv.Quote write it. A str may have surrogate escapes.

    What counts as printable follows Python's Unicode tables; Go's may be of another version.
    """
    text = value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else value
    out = []
    for char in text:
        code = ord(char)
        if code in _NAMED_ESCAPES:
            out.append(_NAMED_ESCAPES[code])
        elif 0xDC80 <= code <= 0xDCFF:  # a byte that is not UTF-8
            out.append(f"\\x{code - 0xDC00:02x}")
        elif char.isprintable():
            out.append(char)
        elif code < 0x80:
            out.append(f"\\x{code:02x}")
        else:
            out.append(f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}")
    return '"' + "".join(out) + '"'


def time_quote(value: str) -> str:
    """`value` in double quotes as in errors of Go's package time, which does not use %q."""
    out = []
    for byte in value.encode("utf-8", "surrogateescape"):
        if byte < 0x20 or byte >= 0x80:
            out.append(f"\\x{byte:02x}")
        else:
            out.append(f"\\{byte:c}" if byte in b'"\\' else f"{byte:c}")
    return '"' + "".join(out) + '"'


_RFC3339: Final = "2006-01-02T15:04:05Z07:00"
# Its parts: the layout, what matches it, and what the number is if it has a range.
_TIME_PARTS: Final[tuple[tuple[str, str, str], ...]] = (
    ("2006", r"\d{4}", ""),
    ("-", "-", ""),
    ("01", r"0[1-9]|1[0-2]|(\d\d)", "month"),
    ("-", "-", ""),
    ("02", r"\d\d", ""),
    ("T", "T", ""),
    ("15", r"[01]\d|2[0-3]|(\d\d)|\d", "hour"),
    (":", ":", ""),
    ("04", r"[0-5]\d|(\d\d)", "minute"),
    (":", ":", ""),
    ("05", r"[0-5]\d(?:[.,]\d+)?|(\d\d)", "second"),
    ("Z07:00", r"Z|[+-](?:[01]\d|2[0-4]|(\d\d)):(?:[0-5]\d|60)", "time zone offset hour"),
)


def time_error(text: str) -> str:
    """The error of time.Parse for a text that is not a time of RFC 3339."""
    start = f"parsing time {time_quote(text)}"
    rest = text
    for layout, pattern, name in _TIME_PARTS:
        found = re.match(pattern, rest, re.ASCII)
        if found is None:
            return (
                f"{start} as {time_quote(_RFC3339)}: "
                f"cannot parse {time_quote(rest)} as {time_quote(layout)}"
            )
        if found.lastindex:
            return f"{start}: {name} out of range"
        rest = rest[found.end() :]
    if rest:
        return f"{start}: extra text: {time_quote(rest)}"
    return f"{start}: day out of range"


def system_text(what: str, path: str, error: OSError) -> str:
    """A failed file call: open PATH: no such file or directory."""
    return f"{what} {path}: {(error.strerror or str(error)).lower()}"
