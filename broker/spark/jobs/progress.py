"""What a job says of itself: a line for each batch, on stderr."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final, NamedTuple

Tell = Callable[[str], None]
_SIZES: Final = ("B", "KiB", "MiB", "GiB", "TiB")


def tell(text: str) -> None:
    print(f"{datetime.now(UTC):%H:%M:%S} {text}", file=sys.stderr, flush=True)


def size(n: float) -> str:
    """Bytes for people."""
    for unit in _SIZES[:-1]:
        if n < 1024:
            return f"{n:.0f} {unit}" if unit == "B" else f"{n:.1f} {unit}"
        n /= 1024
    return f"{n:.1f} {_SIZES[-1]}"


class Done(NamedTuple):
    """What a batch has done; lag is what still waits behind it."""

    records: int
    bytes: int
    seconds: float
    lag: int

    def line(self, job: str, number: int) -> str:
        rate = self.records / max(self.seconds, 1e-3)
        return (
            f"{job}: batch {number}: {self.records:,} records, {size(self.bytes)}, "
            f"{self.seconds:.1f} s ({rate:,.0f}/s), lag {self.lag:,}"
        )
