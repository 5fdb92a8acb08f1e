"""The HTTP application of the bulk API: its routes, and the identification of callers."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from aiohttp import web

from broker.bulk import errors
from broker.bulk.context import BulkRoute
from broker.bulk.errors import RefusedError
from broker.bulk.read.ranges import RangeHandlers
from broker.bulk.read.reader_handlers import ReaderHandlers
from broker.bulk.read.topics import TopicHandlers
from broker.bulk.responses import CALLER, errors_as_json

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from broker.bulk.access import Access
    from broker.bulk.context import BulkContext
    from broker.bulk.read.readers import Readers

PREFIX = "/bulk/v1"


class BulkApp:
    """The routes of one engine. Requests are refused while `stopping` is set."""

    def __init__(
        self,
        context: BulkContext,
        access: Access,
        readers: Readers,
        more_routes: Iterable[BulkRoute] = (),
    ) -> None:
        """`more_routes`: those of the write API."""
        self.context = context
        self.access = access
        self.topics = TopicHandlers(context)
        self.ranges = RangeHandlers(context)
        self.readers = ReaderHandlers(context, readers)
        self.more_routes = list(more_routes)
        self.stopping = False

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
        yield BulkRoute("GET", "/readers", self.readers.show)
        yield BulkRoute("PUT", "/readers/{name}", self.readers.put)
        yield BulkRoute("DELETE", "/readers/{name}", self.readers.delete)
        yield from self.more_routes

    @web.middleware
    async def _identified(
        self,
        request: web.Request,
        handler: Callable[[web.Request], Awaitable[web.StreamResponse]],
    ) -> web.StreamResponse:
        if self.stopping:
            raise RefusedError(errors.BULK_STOPPING)
        await asyncio.sleep(0)  # aiohttp has used 0.2 ms: let the loop handle live traffic
        authorization = request.headers.get("Authorization")
        request[CALLER] = self.access.caller(authorization, request.remote or "")
        return await handler(request)
