"""The door itself: routes, who may use them, threads for the disk."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from aiohttp import web

from broker.bulk import errors, limits
from broker.bulk.admission import Traffic
from broker.bulk.read.ranges import RangePages
from broker.bulk.read.readers import Readers
from broker.bulk.read.readers_api import ReaderPages
from broker.bulk.read.topics import TopicPages
from broker.bulk.responses import RefusedError, errors_as_json

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable
    from pathlib import Path

    from broker.bulk.access import Access, Caller
    from broker.bulk.identity import Identity
    from broker.engine.engine import Engine
    from broker.engine.log.log import Log

T = TypeVar("T")
CALLER: web.RequestKey[Caller] = web.RequestKey("caller")
PREFIX = "/bulk/v1"


class BulkRoute(NamedTuple):
    """One route below /bulk/v1; `{name}` in its path is one part, percent-decoded."""

    method: str
    path: str
    handler: Callable[[web.Request], Awaitable[web.StreamResponse]]


class BulkDoor:
    """Serves one engine. Handlers ask `caller` for who it is and then what that one may do."""

    def __init__(self, engine: Engine, identity: Identity, access: Access, folder: Path) -> None:
        """`folder`: where readers are kept; made before anything can be trimmed. OSError."""
        self.engine = engine
        self.identity = identity
        self.access = access
        self.traffic = Traffic()
        self.topic_pages = TopicPages(self)
        self.range_pages = RangePages(self)
        self.readers = Readers(engine, folder, self.in_thread)
        self.readers.load()
        self.reader_pages = ReaderPages(self, self.readers)
        self.stopping = False  # requests are refused: the server ends
        self.more_routes: list[BulkRoute] = []  # of others; before `app`
        self._threads = ThreadPoolExecutor(limits.BULK_THREADS, "bulk", initializer=step_back)

    def app(self) -> web.Application:
        """The application that serves all of it."""
        app = web.Application(middlewares=[errors_as_json, self._identified])
        for method, path, handler in self.routes():
            app.router.add_route(method, PREFIX + path.replace("}", ":[^/]+}"), handler)
        return app

    def routes(self) -> Iterable[BulkRoute]:
        """Everything it knows."""
        yield BulkRoute("GET", "/topics", self.topic_pages.topics)
        yield BulkRoute("POST", "/offsets", self.topic_pages.offsets)
        yield BulkRoute("GET", "/range/{topic}", self.range_pages.range)
        yield BulkRoute("GET", "/readers", self.reader_pages.show)
        yield BulkRoute("PUT", "/readers/{name}", self.reader_pages.put)
        yield BulkRoute("DELETE", "/readers/{name}", self.reader_pages.delete)
        yield from self.more_routes

    @web.middleware
    async def _identified(
        self,
        request: web.Request,
        handler: Callable[[web.Request], Awaitable[web.StreamResponse]],
    ) -> web.StreamResponse:
        if self.stopping:
            raise RefusedError(errors.BULK_STOPPING)
        authorization = request.headers.get("Authorization")
        request[CALLER] = self.access.caller(authorization, request.remote or "")
        return await handler(request)

    def caller(self, request: web.Request) -> Caller:
        """Who asks."""
        return request[CALLER]

    def log(self, name: str) -> Log:
        """The log of that name. RefusedError."""
        found = self.engine.log(name)
        if found is None:
            self.refuse_quarantined(name)
            raise RefusedError(errors.BULK_NO_TOPIC, topic=name)
        return found

    def refuse_quarantined(self, name: str) -> None:
        """A log that could not be opened must not pass for one that is not there. RefusedError."""
        if name in self.engine.quarantined:
            raise RefusedError(errors.BULK_QUARANTINED, topic=name)

    async def in_thread(self, work: Callable[..., T], *arguments: object) -> T:
        """Do what may wait for a disk, or takes long, on a thread of the door."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, work, *arguments)

    async def close(self) -> None:
        """Give the threads back, once the listener is closed."""
        await self.readers.end()
        self._threads.shutdown(wait=True, cancel_futures=True)


def step_back() -> None:
    """Let the loop's thread go first where there are more threads than cores."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), limits.BULK_NICE)
