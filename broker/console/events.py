"""Server-sent events: answers of requests whenever they change.

All clients that follow the same request share one task, which calls its handler and encodes the
answer once. A client that reads slowly misses values and receives the newest one. A hidden page
closes its stream, and a request without followers is not made.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import orjson
from aiohttp import web

from broker.base.units import SECOND
from broker.console import errors, limits
from broker.console.errors import RefusedError
from broker.net.http.requests import continue_until_left

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

log = logging.getLogger("broker.console")

Request = Callable[[], Awaitable[dict[str, Any]]]
HEARTBEAT = b": \n\n"


def event(name: str, data: object) -> bytes:
    """One event as it is sent."""
    return b"event: %s\ndata: %s\n\n" % (name.encode(), orjson.dumps(data))


class Feed:
    """The answers of one request."""

    def __init__(self, request_answer: Request, interval_ns: int) -> None:
        self._request = request_answer
        self._interval_s = interval_ns / SECOND
        self.followers = 0
        self.number = 0  # of the newest value
        self.newest = b""
        self.changed = asyncio.Event()
        self.task: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Make the request periodically."""
        while True:
            try:
                found = event("data", await self._request())
            except RefusedError as refusal:
                found = event("problem", {"status": refusal.status, **refusal.page()})
            except Exception:
                log.exception("an answer cannot be made")
                internal = RefusedError(errors.INTERNAL)
                found = event("problem", {"status": internal.status, **internal.page()})
            if found != self.newest:
                self.newest = found
                self.number += 1
                self.changed.set()
                self.changed = asyncio.Event()
            await asyncio.sleep(self._interval_s)


class Streams:
    """All open streams of one listener."""

    def __init__(self) -> None:
        self.stopping = False
        self.open = 0
        self._wake = asyncio.Event()
        self._feeds: dict[str, Feed] = {}

    def stop(self) -> None:
        """End all streams."""
        self.stopping = True
        self.recheck()
        for feed in self._feeds.values():
            if feed.task is not None:
                feed.task.cancel()

    def recheck(self) -> None:
        """End the streams whose login has ended. Called when a login may have ended."""
        self._wake.set()
        self._wake = asyncio.Event()

    async def follow(
        self, key: str, request_answer: Request, interval_ns: int
    ) -> AsyncIterator[bytes]:
        """The answers of a request, each when it has changed. Requests with the same `key` share a
        task."""
        feed = self._feeds.get(key)
        if feed is None:
            feed = self._feeds[key] = Feed(request_answer, interval_ns)
            feed.task = asyncio.get_running_loop().create_task(feed.run())
        feed.followers += 1
        sent_number = 0
        try:
            while True:
                if feed.number == sent_number:
                    await feed.changed.wait()
                sent_number = feed.number
                yield feed.newest
        finally:
            feed.followers -= 1
            if not feed.followers:
                assert feed.task is not None
                feed.task.cancel()
                del self._feeds[key]

    async def serve(
        self,
        request: web.Request,
        events: AsyncIterator[bytes],
        is_valid: Callable[[], bool],
    ) -> web.StreamResponse:
        """Send the events until the client disconnects, the broker stops or the login ends."""
        if self.open >= limits.STREAMS_MAX:
            raise RefusedError(errors.STREAMS)
        response = web.StreamResponse(
            headers={
                "Content-Type": "text/event-stream",
                "Cache-Control": "no-store",
                "X-Accel-Buffering": "no",  # nginx would delay events
            }
        )
        self.open += 1
        source = aiter(events)
        waiting: asyncio.Task[bytes] | None = None
        wake = asyncio.create_task(self._wake.wait())
        try:
            await response.prepare(request)
            continue_until_left(request)
            while not self.stopping and is_valid():
                if waiting is None:
                    waiting = asyncio.ensure_future(anext(source))
                await asyncio.wait(
                    (waiting, wake),
                    timeout=limits.EVENTS_HEARTBEAT / SECOND,
                    return_when=asyncio.FIRST_COMPLETED,
                )
                if wake.done():
                    wake = asyncio.create_task(self._wake.wait())
                elif waiting.done():
                    await response.write(waiting.result())
                    waiting = None
                else:
                    await response.write(HEARTBEAT)
        except (ConnectionError, StopAsyncIteration):
            pass  # the client has disconnected, or there are no more events
        finally:
            self.open -= 1
            wake.cancel()
            await _end(source, waiting)
        return response


async def _end(source: AsyncIterator[bytes], waiting: asyncio.Task[bytes] | None) -> None:
    if waiting is not None:
        waiting.cancel()
        await asyncio.wait((waiting,))
    close = getattr(source, "aclose", None)
    if close is not None:
        await close()
