"""Values per second of the whole broker over the last minutes, for the charts of the overview.

Recording begins with the first client of the console.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from broker.base.units import SECOND
from broker.console import limits
from broker.console.listing import per_second

if TYPE_CHECKING:
    from broker.console.listing import Listing
    from broker.protocols.host import Host

COUNTERS = ("in_msgs", "out_msgs", "in_bytes", "out_bytes")


class History:
    """The samples of the last minutes, and the current rates."""

    def __init__(self, host: Host, listing: Listing) -> None:
        self.host = host
        self.listing = listing
        self._values: deque[tuple[tuple[float, ...], int | None]] = deque(
            maxlen=limits.HISTORY_VALUES
        )
        self._end = time.time()
        self._step: tuple[int, tuple[int, ...]] | None = None
        self._last: tuple[int, tuple[int, ...]] | None = None
        self._rates: tuple[float, ...] = (0.0,) * len(COUNTERS)
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """Start to record."""
        if self._timer is None:
            self._step = (time.monotonic_ns(), self._totals())
            self._set_timer()

    def end(self) -> None:
        """Stop recording."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _set_timer(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(limits.HISTORY_STEP / SECOND, self._record)

    def _totals(self) -> tuple[int, ...]:
        rows = self.host.stats()
        return tuple(sum(getattr(row, key) for row in rows) for key in COUNTERS)

    def _record(self) -> None:
        assert self._step is not None
        now_ns, totals = time.monotonic_ns(), self._totals()
        at_ns, before = self._step
        rates = per_second(before, totals, max(1, now_ns - at_ns))
        self.listing.count_if_quick()  # for the next sample
        sweep = self.listing.sweep
        depth = None if sweep is None else sweep.totals["depth"]
        self._values.append((tuple(rate or 0.0 for rate in rates), depth))
        self._end, self._step = time.time(), (now_ns, totals)
        self._set_timer()

    def rates(self) -> dict[str, float]:
        """Per second, over at least one second."""
        now_ns, totals = time.monotonic_ns(), self._totals()
        if self._last is None:
            self._last = self._step or (now_ns, totals)
        at_ns, before = self._last
        if now_ns - at_ns >= limits.SAMPLE_AGE:
            found = per_second(before, totals, now_ns - at_ns)
            self._rates = tuple(rate or 0.0 for rate in found)
            self._last = (now_ns, totals)
        return dict(zip(COUNTERS, self._rates, strict=True))

    def page(self) -> dict[str, Any]:
        """All values, oldest first."""
        columns = {key: [rates[at] for rates, _ in self._values] for at, key in enumerate(COUNTERS)}
        return {
            "step_s": limits.HISTORY_STEP / SECOND,
            "end": self._end,
            **columns,
            "depth": [depth for _, depth in self._values],
        }
