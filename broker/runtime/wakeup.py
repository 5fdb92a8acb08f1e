"""Lets coroutines wait for a change that C code makes."""

from __future__ import annotations

import asyncio


class Wakeup:
    """A change, for coroutines that look again after it. They say how long they wait at most,
    because not everything they wait for is such a change (a disk may have room again)."""

    def __init__(self) -> None:
        self._waiting: list[asyncio.Future[None]] = []

    def wake(self) -> None:
        """Something has changed: everybody who waits looks again."""
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)

    async def wait(self, seconds: float) -> None:
        """Until the next change, or so long."""
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
