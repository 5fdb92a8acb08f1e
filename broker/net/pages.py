"""HTTP doors: an aiohttp application behind one listening socket, with or without TLS."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

from aiohttp import web

from broker import limits
from broker.net.listener import is_answered, remove_socket
from broker.net.listening import opening
from broker.net.sockets import bound

if TYPE_CHECKING:
    import socket
    import ssl


class Pages:
    """One application on one port."""

    def __init__(self, app: web.Application, context: ssl.SSLContext | None = None) -> None:
        """With a `context` it is HTTPS."""
        # Bodies stay as they were sent; a request that hangs must not hold up the end for long.
        self.runner = web.AppRunner(
            app,
            access_log=None,
            handle_signals=False,
            auto_decompress=False,
            shutdown_timeout=limits.CLOSE_GRACE / limits.SECOND,
            max_line_size=limits.HTTP_LINE_MAX,
            max_field_size=limits.HTTP_LINE_MAX,
        )
        self.context = context
        self.address = ("", 0)  # the port is the real one once it is open
        self._sockets: list[socket.socket] = []
        self._sites: list[web.SockSite] = []

    async def open(self, listen: tuple[str, int]) -> None:
        """Listen; ListenError when the address is taken or not ours."""
        await self.runner.setup()
        with opening(listen):
            await self._open(*listen)

    async def _open(self, host: str, port: int) -> None:
        if port == limits.UNIX_SOCKET_PORT:
            self.address = (host, port)
            if is_answered(host):
                raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE), host)
            await web.UnixSite(self.runner, host).start()
            return
        self._sockets = bound(host, port)
        self.address = (host, self._sockets[0].getsockname()[1])
        await self._listen()

    async def _listen(self) -> None:
        before, self._sites = self._sites, []
        for one in self._sockets:
            site = web.SockSite(
                self.runner, one.dup(), ssl_context=self.context, backlog=limits.ACCEPT_BACKLOG
            )
            self._sites.append(site)
            await site.start()
        for site in before:
            await site.stop()  # its connections stay

    async def use(self, context: ssl.SSLContext) -> None:
        """Shake hands with this context from now on; no connection is refused meanwhile."""
        self.context = context
        await self._listen()

    async def stop_listening(self) -> None:
        """Accept nobody any more; who is here stays."""
        while self._sites:
            await self._sites.pop().stop()

    async def close(self) -> None:
        """Stop listening, end the connections."""
        await self.runner.cleanup()
        if self.address[1] == limits.UNIX_SOCKET_PORT:
            remove_socket(self.address[0])
        while self._sockets:
            self._sockets.pop().close()
