"""HTTP listeners: an aiohttp application behind one listening socket, with or without TLS.

A listener costs a socket until its first client connects: only then is aiohttp imported, on another
thread, and the application made. The client waits meanwhile where the kernel keeps connections that
nobody has accepted. Most brokers have three HTTP listeners, and many never have a client on any.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import socket
import stat
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeAlias, cast

from broker.base.settings import is_loopback
from broker.base.units import SECOND
from broker.net import limits, umask
from broker.net.http.config import HttpConfig
from broker.net.http.connections import HttpConnection, HttpConnections
from broker.net.sockets import bound, is_answered, opening, remove_socket

if TYPE_CHECKING:
    import ssl
    from collections.abc import Awaitable, Callable, Iterable

    from aiohttp import web

    from broker.net.http.application import Application
    from broker.net.http.guard import HttpGuard

log = logging.getLogger("broker.http")


class FrontConnection(Protocol):
    """The interface of an asyncio protocol that answers some requests itself."""

    answered: Callable[[], None] | None  # called after each of them
    general: asyncio.Protocol | None  # the application's protocol, once it is needed


Front: TypeAlias = "Callable[[Callable[[], asyncio.Protocol], HttpGuard], FrontConnection]"


class Pages:
    """One application on one port."""

    def __init__(
        self,
        make: Callable[[], web.Application],
        context: ssl.SSLContext | None = None,
        settings: HttpConfig | None = None,
        *,
        names: Iterable[str] = (),
        public: bool = False,
    ) -> None:
        """`make` is called when the first client has connected. With a `context` the listener is
        HTTPS. `names`, `public`: see HttpGuard."""
        self.settings = settings or HttpConfig()
        self.connections = HttpConnections(self.settings)
        self.context = context
        self.address = ("", 0)  # the actual port once it is open
        # Set before `open` or by `make`: answers some requests itself. At any other request it
        # passes the connection to the application.
        self.front: Front | None = None
        # Extended before `open`: what `make` needs; imported on a thread, not on the loop.
        self.modules: tuple[str, ...] = ("broker.net.http.application",)
        # Set before `open`: awaited before `make`; if it fails, the client waits for a retry.
        self.prepare: Callable[[], Awaitable[None]] | None = None
        self.application: Application | None = None  # once it is loaded
        self._make = make
        self._names = tuple(names)
        self._public = public
        self._sockets: list[socket.socket] = []  # nobody accepts connections from these yet
        self._servers: list[asyncio.Server] = []
        self._loading: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None  # until the next attempt to load it

    async def open(self, listen: tuple[str, int]) -> None:
        """Listen. ListenError: the address is in use, or not one of this host."""
        host, port = listen
        with opening(listen):
            if port == limits.UNIX_SOCKET_PORT:
                self._sockets = [_bound_unix(host)]
                self.address = (host, port)
            else:
                self._sockets = bound(host, port)
                self.address = (host, self._sockets[0].getsockname()[1])
            for one in self._sockets:
                one.listen(limits.ACCEPT_BACKLOG)
            self._watch()

    def _watch(self) -> None:
        """Wait for the first client."""
        self._timer = None
        loop = asyncio.get_running_loop()
        for one in self._sockets:
            loop.add_reader(one, self._connected)

    def _connected(self) -> None:
        """Load the application; the client is accepted after that."""
        loop = asyncio.get_running_loop()
        for one in self._sockets:
            loop.remove_reader(one)
        self._loading = loop.create_task(self._load())

    async def _load(self) -> None:
        try:
            await asyncio.to_thread(self._import)
            if self.prepare is not None:
                await self.prepare()
            await self._serve()
        except Exception:  # such as too many open files: the client waits for a retry
            log.exception("the application at %s:%d cannot be loaded now", *self.address)
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(limits.HTTP_LOAD_AGAIN / SECOND, self._watch)

    def _import(self) -> None:
        for module in self.modules:
            import_module(module)

    async def _serve(self) -> None:
        from broker.net.http.application import Application

        host, port = self.address
        loopback = port != limits.UNIX_SOCKET_PORT and is_loopback(host)
        names = (*self._names, host)
        application = Application(
            self._make(), self.settings, names, loopback=loopback, public=self._public
        )
        await application.setup()
        self.application = application
        loop = asyncio.get_running_loop()
        is_unix = port == limits.UNIX_SOCKET_PORT
        create = partial(
            loop.create_unix_server if is_unix else loop.create_server,
            self._accept,
            backlog=limits.ACCEPT_BACKLOG,
        )
        while self._sockets:
            server = await create(sock=self._sockets[-1])
            self._sockets.pop()  # it belongs to the server now
            self._servers.append(server)

    def _accept(self) -> HttpConnection:
        assert self.application is not None
        general = self.application.protocol
        if self.front is None:
            return HttpConnection(self.connections, general(), self.context)
        front = self.front(general, self.application.guard)
        connection = HttpConnection(self.connections, cast("asyncio.Protocol", front), self.context)
        front.answered = connection.end
        return connection

    async def use(self, context: ssl.SSLContext) -> None:
        """Use this context for new handshakes; no connection is refused meanwhile."""
        self.context = context

    def _close_sockets(self) -> None:
        loop = asyncio.get_running_loop()
        while self._sockets:
            one = self._sockets.pop()
            loop.remove_reader(one)
            one.close()

    async def close(self) -> None:
        """Stop listening, end the connections."""
        if self._loading is not None:
            await self._loading  # a client may still get its answer
        if self._timer is not None:
            self._timer.cancel()
        self._close_sockets()
        while self._servers:
            self._servers.pop().close()
        if self.application is not None:
            await self.application.cleanup()
        for connection in list(self.connections.open):  # most of these have a front
            connection.close()
        if self.address[1] == limits.UNIX_SOCKET_PORT:
            remove_socket(self.address[0])


def _bound_unix(path: str) -> socket.socket:
    if is_answered(path):
        raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE), path)
    with contextlib.suppress(FileNotFoundError):
        if stat.S_ISSOCK(Path(path).stat().st_mode):  # a former process has left it
            Path(path).unlink()
    one = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        one.setblocking(False)
        one.bind(path)
        umask.widen(Path(path), umask.SOCKET)
    except BaseException:
        one.close()
        raise
    return one
