"""nsqlookupd as a whole: both doors over one registry."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from typing import TYPE_CHECKING, Protocol

from broker import limits
from broker.net.pages import Pages
from broker.protocols.nsq.http import make_app
from broker.protocols.nsq.lookup.http import LookupApi
from broker.protocols.nsq.lookup.registry import Registry
from broker.protocols.nsq.lookup.tcp import LookupSession

if TYPE_CHECKING:
    from collections.abc import Callable

LOG = logging.getLogger("broker.nsqlookupd")


class LookupSettings(Protocol):
    """The part of config.LookupConfig that is used here."""

    @property
    def listen(self) -> tuple[str, int] | None: ...
    @property
    def http(self) -> tuple[str, int] | None: ...
    @property
    def broadcast_address(self) -> str: ...
    @property
    def inactive_producer_timeout_ns(self) -> int: ...
    @property
    def tombstone_lifetime_ns(self) -> int: ...


class LookupServer:
    """Start it, stop it; the addresses are the real ones in between."""

    def __init__(
        self, config: LookupSettings, now_ns: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self.config = config
        self.registry = Registry(
            now_ns, config.inactive_producer_timeout_ns, config.tombstone_lifetime_ns
        )
        self.sessions: set[LookupSession] = set()
        self.address = ("", 0)
        self.http_address = ("", 0)
        self.hostname = socket.gethostname()
        self._server: asyncio.Server | None = None
        self._pages = Pages(make_app(LookupApi(self.registry).routes(), limits.LOOKUP_BODY_MAX))

    def about(self) -> dict[str, object]:
        """What IDENTIFY is answered with."""
        return {
            "broadcast_address": self.config.broadcast_address or self.hostname,
            "hostname": self.hostname,
            "http_port": self.http_address[1],
            "tcp_port": self.address[1],
            "version": limits.NSQ_VERSION,
        }

    async def start(self) -> None:
        """Open both doors; OSError when an address is taken or not ours."""
        assert self.config.listen is not None
        assert self.config.http is not None
        host, port = self.config.listen
        self._server = await asyncio.get_running_loop().create_server(
            lambda: LookupSession(self.registry, self.sessions, self.about),
            host or None,
            port,
            reuse_address=True,
            backlog=limits.ACCEPT_BACKLOG,
        )
        self.address = (host, self._server.sockets[0].getsockname()[1])
        LOG.info("TCP: listening on %s:%d", *self.address)
        await self._pages.open(self.config.http)
        self.http_address = self._pages.address
        LOG.info("HTTP: listening on %s:%d", *self.http_address)

    async def stop(self) -> None:
        """Close everything."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for session in list(self.sessions):
            session.end()
        await self._pages.close()
