"""nsqlookupd: a TCP door for nsqd, an HTTP door for consumers and tools, one registry."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from typing import TYPE_CHECKING, Any, Protocol

from aiohttp import web

from broker import limits
from broker.net.listening import opening
from broker.net.sockets import bound
from broker.protocols.nsq.lookup_db import Registry
from broker.protocols.nsq.lookup_http import DateLine, LookupApi, LookupConnection
from broker.protocols.nsq.lookup_tcp import LOG, LookupPeer

if TYPE_CHECKING:
    from collections.abc import Callable


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
    """Needs a running loop and nothing else of the broker."""

    def __init__(
        self, config: LookupSettings, now_ns: Callable[[], int] = time.monotonic_ns
    ) -> None:
        """`now_ns`: the clock that inactivity and tombstones go by."""
        self.config = config
        self.now_ns = now_ns
        self.log: logging.Logger = LOG
        self.registry = Registry(config.inactive_producer_timeout_ns, config.tombstone_lifetime_ns)
        self.peers: set[LookupPeer] = set()
        self.http_connections: set[LookupConnection] = set()
        self.date_line = DateLine()
        self.ports: dict[str, tuple[str, int]] = {}  # "tcp", "http": where it really listens
        self.hostname = socket.gethostname()
        self._servers: dict[str, list[asyncio.Server]] = {}
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        """Open both doors; OSError if one cannot be."""
        try:
            await self._start()
        except BaseException:
            await self.stop()
            raise

    async def _start(self) -> None:
        config = self.config
        if config.listen is not None:
            await self._open("tcp", config.listen, lambda: LookupPeer(self))
        if config.http is not None:
            runner = self._runner = web.AppRunner(
                LookupApi(self).app(),
                access_log=None,
                shutdown_timeout=limits.CLOSE_GRACE / limits.SECOND,
            )
            await runner.setup()
            general = runner.server
            assert general is not None
            await self._open("http", config.http, lambda: LookupConnection(self, general))
        for name, (host, port) in self.ports.items():
            LOG.info("%s: listening on %s", name.upper(), _shown(host, port))

    async def _open(
        self, name: str, listen: tuple[str, int], factory: Callable[[], asyncio.Protocol]
    ) -> None:
        with opening(listen):
            sockets = bound(*listen)
        self.ports[name] = (listen[0], sockets[0].getsockname()[1])
        servers = self._servers[name] = []
        for one in sockets:
            servers.append(
                await asyncio.get_running_loop().create_server(
                    factory, sock=one, backlog=limits.ACCEPT_BACKLOG
                )
            )

    async def stop(self) -> None:
        """Close both doors and every connection."""
        for name, servers in self._servers.items():
            LOG.info("%s: closing %s", name.upper(), _shown(*self.ports[name]))
            for server in servers:
                server.close()
        self._servers.clear()
        for peer in list(self.peers):
            peer.close()
        for connection in list(self.http_connections):
            connection.close()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    def identity(self) -> dict[str, Any]:
        """What a peer is told of us."""
        return {
            "broadcast_address": self.config.broadcast_address or self.hostname,
            "hostname": self.hostname,
            "http_port": self.ports["http"][1] if "http" in self.ports else 0,
            "tcp_port": self.ports["tcp"][1] if "tcp" in self.ports else 0,
            "version": limits.NSQ_VERSION,
        }


def _shown(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
