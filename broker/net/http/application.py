"""The application behind an HTTP listener, created when the first client connects: aiohttp with its
checks.

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


# Versions help only attackers. Answers to invalid HTTP do not call the application's signal: these
# name the program alone.
web_response.SERVER_SOFTWARE = "twinwire"  # type: ignore[attr-defined]


async def _without_server(_request: web.Request, response: web.StreamResponse) -> None:
    response.headers.pop("Server", None)


# The exceptions of aiohttp for invalid HTTP; their texts quote the client's bytes.
_INVALID = (http_exceptions.HttpProcessingError, web.RequestPayloadError)
log = logging.getLogger("broker.http")


class ListenerLog(logging.LoggerAdapter[logging.Logger]):
    """The log of aiohttp, without invalid requests: anyone can send many of them, and the errors
    quote their headers, which may contain secrets. They are counted instead."""

    def __init__(self, now_ns: Callable[[], int] = time.monotonic_ns) -> None:
        super().__init__(logging.getLogger("aiohttp.server"))
        self.now_ns = now_ns
        self._count = 0  # since the last log line
        self._last_ns = 0  # time of that line; 0 = there was none

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        """Log or count a record; the adapter calls this for each level."""
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
        problem = problem.__cause__  # not the context: an error of a handler may have one
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
        # Bodies are not decompressed. A request that hangs must not delay the end for long.
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
        """Prepare to serve."""
        await self.runner.setup()

    def protocol(self) -> asyncio.Protocol:
        """A protocol that parses and answers the requests of one connection; only after `setup`."""
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
        if not isinstance(connection, HttpConnection):  # the connection has been closed
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
        if request.transport is not None and not request.transport.is_closing():
            raise
        # The client has left before its body, or the page that it asked for, was complete.
        return web.Response()
