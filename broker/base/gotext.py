"""Values as Go's standard library writes them, for what imitates a program written in Go."""

from __future__ import annotations

import json
from typing import Final

from broker.base.units import HOUR, MINUTE, MS, SECOND, US

UNITS = {
    "ns": 1,
    "us": US,
    "\u00b5s": US,
    "\u03bcs": US,
    "ms": MS,
    "s": SECOND,
    "m": MINUTE,
    "h": HOUR,
}


def quoted(value: str) -> str:
    """As Go's %q writes it."""
    return json.dumps(value, ensure_ascii=False)


def duration_text(duration_ns: int) -> str:
    """As Go writes one: 1m0s, 250ms, 2s, 1h0m0s."""
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
    """A number as %v writes it: no fraction when there is none."""
    return str(int(value)) if value == int(value) else str(value)


def bool_text(value: bool) -> str:
    """true or false."""
    return "true" if value else "false"


_NAMED_ESCAPES: Final = {
    7: "\\a", 8: "\\b", 9: "\\t", 10: "\\n", 11: "\\v", 12: "\\f", 13: "\\r", 34: '\\"', 92: "\\\\",
}  # fmt: skip


def go_quote(raw: bytes) -> str:
    """`raw` in double quotes as Go's %q writes it."""
    out = []
    for char in raw.decode("utf-8", "surrogateescape"):
        code = ord(char)
        if code in _NAMED_ESCAPES:
            out.append(_NAMED_ESCAPES[code])
        elif 0xDC80 <= code <= 0xDCFF:
            out.append(f"\\x{code - 0xDC00:02x}")
        elif code == 0x20 or (char.isprintable() and not char.isspace()):
            out.append(char)
        elif code < 0x80:
            out.append(f"\\x{code:02x}")
        else:
            out.append(f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}")
    return '"' + "".join(out) + '"'
