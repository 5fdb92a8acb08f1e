"""Long loops in steps, so that other tasks of the loop run in between.

It is separate because the list of topics, which handlers get in their context, needs it too.
"""

from __future__ import annotations

import asyncio
import time

from broker.console import limits


class Pauses:
    """Lets other tasks run while one loops for long."""

    def __init__(self) -> None:
        self._since = time.monotonic_ns()
        self._steps = 0

    def is_due(self) -> bool:
        """Whether the task has run long enough; asked for each row."""
        self._steps += 1
        return self._steps % limits.CONSOLE_STEP_ROWS == 0 and self.is_over()

    def is_over(self) -> bool:
        """The same, asked after many rows."""
        return time.monotonic_ns() - self._since > limits.CONSOLE_STEP

    async def rest(self) -> None:
        """Let others run now."""
        await asyncio.sleep(0)
        self._since = time.monotonic_ns()
