"""Values as Go's standard library writes them, for what imitates a program written in Go."""

from __future__ import annotations

import json

from broker import limits

UNITS = {
    "ns": 1,
    "us": limits.US,
    "\u00b5s": limits.US,
    "\u03bcs": limits.US,
    "ms": limits.MS,
    "s": limits.SECOND,
    "m": limits.MINUTE,
    "h": limits.HOUR,
}


def quoted(value: str) -> str:
    """As Go's %q writes it."""
    return json.dumps(value, ensure_ascii=False)


def duration_text(duration_ns: int) -> str:
    """As Go writes one: 1m0s, 250ms, 2s, 1h0m0s."""
    if duration_ns == 0:
        return "0s"
    sign, rest = ("-" if duration_ns < 0 else ""), abs(duration_ns)
    for unit, name in ((limits.US, "ns"), (limits.MS, "\u00b5s"), (limits.SECOND, "ms")):
        if rest < unit:
            step = UNITS[name]
            return f"{sign}{_decimal(rest, step)}{name}"
    hours, rest = divmod(rest, limits.HOUR)
    minutes, rest = divmod(rest, limits.MINUTE)
    text = f"{_decimal(rest, limits.SECOND)}s"
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
