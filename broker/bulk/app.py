"""The HTTP application of the bulk API: its routes, and who may use them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiohttp import web

from broker.bulk import errors
from broker.bulk.context import CALLER, BulkContext, BulkRoute
from broker.bulk.read.ranges import RangeHandlers
from broker.bulk.read.readers import ReaderHandlers, Readers
from broker.bulk.read.topics import TopicHandlers
from broker.bulk.responses import RefusedError, errors_as_json

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable
    from pathlib import Path

    from broker.bulk.access import Access, Identity
    from broker.engine.engine import Engine

PREFIX = "/bulk/v1"


class BulkApp:
    """The routes of one engine. Requests are refused while `stopping` is set."""

    def __init__(self, engine: Engine, identity: Identity, access: Access, folder: Path) -> None:
        """`folder` has the registered readers; they are loaded before retention can drop what
        they hold. OSError."""
        self.context = BulkContext(engine, identity)
        self.access = access
        self.topics = TopicHandlers(self.context)
        self.ranges = RangeHandlers(self.context)
        self.readers = Readers(engine, folder, self.context.in_thread)
        self.readers.load()
        self.reader_handlers = ReaderHandlers(self.context, self.readers)
        self.stopping = False
        self.more_routes: list[BulkRoute] = []  # those of the write API; set before `build`

    def build(self) -> web.Application:
        """The aiohttp application with all routes."""
        app = web.Application(middlewares=[errors_as_json, self._identified])
        for method, path, handler in self.routes():
            app.router.add_route(method, PREFIX + path.replace("}", ":[^/]+}"), handler)
        return app

    def routes(self) -> Iterable[BulkRoute]:
        """All routes."""
        yield BulkRoute("GET", "/topics", self.topics.topics)
        yield BulkRoute("POST", "/offsets", self.topics.offsets)
        yield BulkRoute("GET", "/range/{topic}", self.ranges.range)
        yield BulkRoute("GET", "/readers", self.reader_handlers.show)
        yield BulkRoute("PUT", "/readers/{name}", self.reader_handlers.put)
        yield BulkRoute("DELETE", "/readers/{name}", self.reader_handlers.delete)
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

    async def close(self) -> None:
        """End the readers' timer and the threads, once the listener is closed."""
        await self.readers.end()
        self.context.close()
