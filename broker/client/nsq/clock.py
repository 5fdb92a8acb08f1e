"""The clock of the client, given from outside so that tests need not wait.

It stands alone because connections, the flow of RDY and readers all take one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol


class Timer(Protocol):
    """Something that happens later unless it is cancelled."""

    def cancel(self) -> None:
        """Do not let it happen."""


class Clock(Protocol):
    """Seconds, and callbacks after some of them."""

    def now(self) -> float:
        """Seconds since any fixed moment."""

    def call_later(self, delay_s: float, callback: Callable[[], object]) -> Timer:
        """Run the callback on the loop after the delay."""


class LoopClock:
    """The clock of the running event loop."""

    def now(self) -> float:
        """The loop's time."""
        return asyncio.get_running_loop().time()

    def call_later(self, delay_s: float, callback: Callable[[], object]) -> Timer:
        """The loop's own timer."""
        return asyncio.get_running_loop().call_later(delay_s, callback)
