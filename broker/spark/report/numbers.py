"""Numbers, sizes and times formatted for readers."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

_COUNTS: Final = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_DURATIONS: Final = ((60e9, "min"), (1e9, "s"), (1e6, "ms"), (1e3, "us"), (1.0, "ns"))
_SIZES: Final = ((2.0**40, "TiB"), (2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB"))


def _scaled(value: float, units: tuple[tuple[float, str], ...], gap: str) -> str | None:
    for unit, name in units:
        if value >= unit:
            return f"{value / unit:.3g}{gap}{name}" if value < 1000 * unit else None
    return None


def count(value: float) -> str:
    """1234567 -> 1.23 M."""
    return _scaled(value, _COUNTS, " ") or f"{value:,.6g}"


def exact(value: float) -> str:
    """1234567 -> 1,234,567."""
    return f"{value:,.0f}"


def of(number: int, one: str) -> str:
    """`1 topic`, `2 topics`."""
    return f"{number:,} {one}{'' if number == 1 else 's'}"


def size(value: float) -> str:
    """Bytes."""
    return _scaled(value, _SIZES, " ") or f"{value:,.0f} B"


def duration(value_ns: float) -> str:
    """Nanoseconds."""
    if value_ns >= 3600e9:
        return f"{value_ns / 3600e9:,.3g} h"
    return _scaled(value_ns, _DURATIONS, " ") or f"{value_ns:,.0f} ns"


def share(value: float) -> str:
    """A fraction as a percentage."""
    if value == 0:
        return "0 %"
    return f"{value * 100:.3g} %" if value >= 1e-5 else "< 0.001 %"


def at(time_us: int) -> datetime:
    """Microseconds since 1970."""
    return datetime.fromtimestamp(time_us // 1_000_000, UTC).replace(microsecond=time_us % 10**6)


def moment(time_us: int) -> str:
    """In UTC, to the second."""
    return f"{at(time_us):%Y-%m-%d %H:%M:%S}"


_DAY_US: Final = 24 * 3600 * 10**6


def ticks(times_us: Sequence[int], step_us: int) -> list[str]:
    """Times as labels of a plot, without the parts that all of them share."""
    if step_us >= _DAY_US:
        form = "%m-%d"
    else:
        form = "%H:%M" if step_us >= 60 * 10**6 else "%H:%M:%S"
        if times_us and times_us[-1] - times_us[0] >= _DAY_US:
            form = f"%m-%d {form}"
    return [at(time).strftime(form) for time in times_us]
