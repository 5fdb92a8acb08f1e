"""HTTP listeners: an aiohttp application behind one listening socket, with or without TLS."""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeAlias, cast

from aiohttp import web

from broker.base.settings import is_loopback
from broker.base.units import SECOND
from broker.net import limits, umask
from broker.net.http.config import HttpConfig
from broker.net.http.connections import HttpConnection, HttpConnections
from broker.net.http.guard import HttpGuard
from broker.net.listener import bound, is_answered, opening, remove_socket

if TYPE_CHECKING:
    import socket
    import ssl
    from collections.abc import Awaitable, Callable, Iterable


class FrontConnection(Protocol):
    """An asyncio protocol that answers some requests itself."""

    answered: Callable[[], None] | None  # to be called after each of them


Front: TypeAlias = "Callable[[Callable[[], asyncio.Protocol], HttpGuard], FrontConnection]"


class Pages:
    """One application on one port."""

    def __init__(
        self,
        app: web.Application,
        context: ssl.SSLContext | None = None,
        settings: HttpConfig | None = None,
        *,
        names: Iterable[str] = (),
        public: bool = False,
    ) -> None:
        """With a `context` it is HTTPS. `names`, `public`: see HttpGuard."""
        # Bodies stay as they were sent; a request that hangs must not hold up the end for long.
        self.runner = web.AppRunner(
            app,
            access_log=None,
            handle_signals=False,
            auto_decompress=False,
            shutdown_timeout=limits.CLOSE_GRACE / SECOND,
            max_line_size=limits.HTTP_LINE_MAX,
            max_field_size=limits.HTTP_LINE_MAX,
        )
        app.middlewares.insert(0, self._guarded)
        self.settings = settings or HttpConfig()
        self.connections = HttpConnections(self.settings)
        self.context = context
        self.address = ("", 0)  # the port is the real one once it is open
        self._names = tuple(names)
        self._public = public
        # Set before `open`: answers some requests itself, and hands a connection on to the
        # application for the others.
        self.front: Front | None = None
        self._guard = HttpGuard(self.settings)
        self._sockets: list[socket.socket] = []
        self._servers: list[asyncio.Server] = []

    @web.middleware
    async def _guarded(
        self,
        request: web.Request,
        handler: Callable[[web.Request], Awaitable[web.StreamResponse]],
    ) -> web.StreamResponse:
        connection = request.transport and request.transport.get_protocol()
        refusal = self._guard.refusal(request.method, request.headers)
        if not isinstance(connection, HttpConnection):  # it has gone already
            return refusal or await handler(request)
        connection.begin(request.content)
        try:
            return refusal or await handler(request)
        finally:
            connection.end()

    async def open(self, listen: tuple[str, int]) -> None:
        """Listen; ListenError when the address is taken or not ours."""
        host, port = listen
        loopback = port != limits.UNIX_SOCKET_PORT and is_loopback(host)
        self._guard = HttpGuard(
            self.settings, (*self._names, host), loopback=loopback, public=self._public
        )
        await self.runner.setup()
        with opening(listen):
            await self._open(host, port)

    async def _open(self, host: str, port: int) -> None:
        if port == limits.UNIX_SOCKET_PORT:
            self.address = (host, port)
            if is_answered(host):
                raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE), host)
            server = await asyncio.get_running_loop().create_unix_server(
                self._accept, host, backlog=limits.ACCEPT_BACKLOG
            )
            self._servers.append(server)
            umask.widen(Path(host), umask.SOCKET)
            return
        self._sockets = bound(host, port)
        self.address = (host, self._sockets[0].getsockname()[1])
        for one in self._sockets:
            self._servers.append(
                await asyncio.get_running_loop().create_server(
                    self._accept, sock=one.dup(), backlog=limits.ACCEPT_BACKLOG
                )
            )

    def _accept(self) -> HttpConnection:
        general = self.runner.server
        assert general is not None
        if self.front is None:
            return HttpConnection(self.connections, general(), self.context)
        front = self.front(general, self._guard)
        connection = HttpConnection(self.connections, cast("asyncio.Protocol", front), self.context)
        front.answered = connection.end
        return connection

    async def use(self, context: ssl.SSLContext) -> None:
        """Shake hands with this context from now on; no connection is refused meanwhile."""
        self.context = context

    async def stop_listening(self) -> None:
        """Accept no more connections; open ones stay."""
        while self._servers:
            self._servers.pop().close()

    async def close(self) -> None:
        """Stop listening, end the connections."""
        await self.stop_listening()
        await self.runner.cleanup()
        for connection in list(self.connections.open):  # those with a front, for the most part
            connection.close()
        if self.address[1] == limits.UNIX_SOCKET_PORT:
            remove_socket(self.address[0])
        while self._sockets:
            self._sockets.pop().close()
