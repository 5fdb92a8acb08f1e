"""Long loops in steps, so that other tasks of the event loop run in between."""

from __future__ import annotations

import asyncio
import time


class Pauses:
    """Lets other tasks run while one loops for long."""

    def __init__(self, step_ns: int) -> None:
        """`step_ns`: how long the task may run before a pause is due."""
        self._step_ns = step_ns
        self._since_ns = time.monotonic_ns()

    def is_step_over(self) -> bool:
        """Whether the task has run long enough."""
        return time.monotonic_ns() - self._since_ns >= self._step_ns

    async def pause(self) -> None:
        """Let other tasks run now."""
        await asyncio.sleep(0)
        self._since_ns = time.monotonic_ns()

    async def pause_if_step_over(self) -> None:
        """Let other tasks run if this one has run long enough."""
        if self.is_step_over():
            await self.pause()
