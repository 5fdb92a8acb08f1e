"""TLS handshakes of one loop: each costs as much time as thousands of messages.

So they get a slice of each turn of the loop, in the order in which they come: a thousand that
come at once, after a network has been away, hold up nobody who is there.
"""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING

from broker.net import limits

if TYPE_CHECKING:
    from collections.abc import Callable


class Handshakes:
    """Steps that wait for their slice."""

    def __init__(
        self,
        call_soon: Callable[[Callable[[], None]], object],
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._call_soon = call_soon
        self._clock = clock
        self._steps: deque[Callable[[], None]] = deque()

    def add(self, step: Callable[[], None]) -> None:
        """Do this when it is its turn; it raises nothing."""
        self._steps.append(step)
        if len(self._steps) == 1:
            self._call_soon(self._go)

    def _go(self) -> None:
        end = self._clock() + limits.HANDSHAKE_SLICE
        while True:
            self._steps[0]()
            self._steps.popleft()
            if not self._steps:
                return
            if self._clock() >= end:
                self._call_soon(self._go)
                return
