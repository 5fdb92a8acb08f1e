"""The clock of the client: its time and its timers.

It is separate because connections, the flow of RDY and readers use it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol


class Timer(Protocol):
    """A scheduled callback that can be cancelled."""

    def cancel(self) -> None:
        """Cancel the callback."""


class Clock(Protocol):
    """The interface of a clock: the time in seconds, and timers."""

    def now(self) -> float:
        """Seconds since some fixed time."""

    def call_later(self, delay_s: float, callback: Callable[[], object]) -> Timer:
        """Run the callback on the loop after the delay."""


class LoopClock:
    """The clock of the running event loop."""

    def now(self) -> float:
        """The loop's time."""
        return asyncio.get_running_loop().time()

    def call_later(self, delay_s: float, callback: Callable[[], object]) -> Timer:
        """A timer of the loop."""
        return asyncio.get_running_loop().call_later(delay_s, callback)
