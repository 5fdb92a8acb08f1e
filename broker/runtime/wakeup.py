"""Lets coroutines wait for a change that C code makes."""

from __future__ import annotations

import asyncio


class Wakeup:
    """A change, for coroutines that check a condition after it. Their waits have a limit, because
    not every condition depends on such a change (a disk may have room again)."""

    def __init__(self) -> None:
        self._waiting: list[asyncio.Future[None]] = []

    def wake(self) -> None:
        """Report a change: all waiting coroutines check again."""
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)

    async def wait(self, seconds: float) -> None:
        """Wait until the next change, or for this time."""
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        self._waiting.append(future)
        timer = loop.call_later(seconds, self._expire, future)
        try:
            await future
        finally:
            timer.cancel()

    def _expire(self, future: asyncio.Future[None]) -> None:
        if future in self._waiting:
            self._waiting.remove(future)
        if not future.done():
            future.set_result(None)
