"""What stands behind an HTTP listener once it has a client: aiohttp with an application.

A module of its own because it imports aiohttp, which takes longer than all else of a start; see
pages.py for when that happens.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Any

from aiohttp import http_exceptions, web, web_response

from broker.base.logs import fields
from broker.base.units import SECOND
from broker.net import limits
from broker.net.http.connections import HttpConnection
from broker.net.http.guard import HttpGuard

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from broker.net.http.config import HttpConfig


# Versions help attackers only. Answers to requests that are no HTTP call no signal of the
# application: these say at least no more than the program.
web_response.SERVER_SOFTWARE = "twinwire"  # type: ignore[attr-defined]


async def _without_server(_request: web.Request, response: web.StreamResponse) -> None:
    response.headers.pop("Server", None)


# What aiohttp raises for bytes that are no HTTP; their texts quote these bytes.
_INVALID = (http_exceptions.HttpProcessingError, web.RequestPayloadError)
log = logging.getLogger("broker.http")


class ListenerLog(logging.LoggerAdapter[logging.Logger]):
    """What aiohttp logs, but for invalid requests: anyone can send many of them, and the errors
    quote their headers, which may be secrets. They are counted instead."""

    def __init__(self, now_ns: Callable[[], int] = time.monotonic_ns) -> None:
        super().__init__(logging.getLogger("aiohttp.server"))
        self.now_ns = now_ns
        self._count = 0  # since the last line
        self._last_ns = 0  # of that line; 0 = there was none

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        """Called by the adapter's methods for each level."""
        if not _is_about_bytes(kwargs.get("exc_info")):
            super().log(level, msg, *args, **kwargs)
            return
        self._count += 1
        now_ns = self.now_ns()
        if not self._last_ns or now_ns >= self._last_ns + limits.HTTP_INVALID_APART:
            log.warning("requests are no valid HTTP", extra=fields(count=self._count))
            self._count, self._last_ns = 0, now_ns


def _is_about_bytes(problem: object) -> bool:
    """Whether a traceback of this exception would quote what a client sent."""
    seen = 0
    while isinstance(problem, BaseException) and seen < limits.HTTP_CAUSES_MAX:
        if isinstance(problem, _INVALID):
            return True
        problem = problem.__cause__  # not the context: a fault of a handler may have one
        seen += 1
    return False


class Application:
    """Pages in a runner that checks where each request comes from."""

    def __init__(
        self,
        pages: web.Application,
        settings: HttpConfig,
        names: Iterable[str],
        *,
        loopback: bool,
        public: bool,
    ) -> None:
        """`names`, `loopback`, `public`: see HttpGuard."""
        self.log = ListenerLog()
        self.guard = HttpGuard(settings, names, loopback=loopback, public=public)
        pages.middlewares.insert(0, self._guarded)
        pages.on_response_prepare.append(_without_server)
        # Bodies stay as they were sent; a request that hangs must not hold up the end for long.
        self.runner = web.AppRunner(
            pages,
            access_log=None,
            logger=self.log,
            handle_signals=False,
            auto_decompress=False,
            shutdown_timeout=limits.CLOSE_GRACE / SECOND,
            max_line_size=limits.HTTP_LINE_MAX,
            max_field_size=limits.HTTP_LINE_MAX,
        )

    async def setup(self) -> None:
        """Get ready to serve."""
        await self.runner.setup()

    def protocol(self) -> asyncio.Protocol:
        """What parses and answers one connection; only after `setup`."""
        assert self.runner.server is not None
        return self.runner.server()

    async def cleanup(self) -> None:
        """End all requests."""
        await self.runner.cleanup()

    @web.middleware
    async def _guarded(
        self,
        request: web.Request,
        handler: Callable[[web.Request], Awaitable[web.StreamResponse]],
    ) -> web.StreamResponse:
        connection = request.transport and request.transport.get_protocol()
        refusal = self.guard.refusal(request.method, request.headers)
        if not isinstance(connection, HttpConnection):  # it has gone already
            return refusal or await _answer(request, handler)
        connection.begin(request.content)
        try:
            return refusal or await _answer(request, handler)
        finally:
            connection.end()


async def _answer(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    try:
        return await handler(request)
    except ConnectionError:
        if request.transport is not None:
            raise
        return web.Response()  # the client has left before its body was complete
