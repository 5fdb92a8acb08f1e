"""nsqlookupd: a TCP listener for nsqds, an HTTP listener for consumers and tools, one registry."""

from __future__ import annotations

import asyncio
import socket
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from broker.net import limits as net_limits
from broker.net.http.pages import Pages
from broker.net.sockets import bound, opening
from broker.protocols.nsq import limits
from broker.protocols.nsq.lookup.registry import Registry
from broker.protocols.nsq.lookup.tcp import LOG, LookupPeer, Peers

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiohttp import web

    from broker.net.http.config import HttpConfig
    from broker.protocols.nsq.lookup.config import LookupConfig


class LookupServer:
    """The listeners and their registry; needs a running loop and no other part of the broker."""

    def __init__(
        self,
        config: LookupConfig,
        now_ns: Callable[[], int] = time.monotonic_ns,
        http: HttpConfig | None = None,
    ) -> None:
        """`now_ns`: the clock for inactivity and tombstones."""
        self.config = config
        self.now_ns = now_ns
        self.registry = Registry(config.inactive_producer_timeout_ns, config.tombstone_lifetime_ns)
        silence_max_ns = max(2 * config.inactive_producer_timeout_ns, limits.NSQ_LOOKUP_SILENCE_MIN)
        self.peers = Peers(self.registry, now_ns, silence_max_ns, self.identity)
        self.http_settings = http
        self.ports: dict[str, tuple[str, int]] = {}  # "tcp", "http": the bound addresses
        self.hostname = socket.gethostname()
        self._servers: list[asyncio.Server] = []  # of "tcp"
        self._open = False
        self._pages: Pages | None = None

    async def start(self) -> None:
        """Open both listeners; OSError if either cannot be opened."""
        self._open = True
        try:
            await self._start()
        except BaseException:
            await self.stop()
            raise

    async def _start(self) -> None:
        config = self.config
        if config.listen is not None:
            await self._open_tcp(config.listen)
        if config.http is not None:
            pages = self._pages = Pages(
                self._application,
                settings=self.http_settings,
                names=(config.broadcast_address,),
            )
            await pages.open(config.http)
            self.ports["http"] = pages.address
        for name, (host, port) in self.ports.items():
            LOG.info("%s: listening on %s", name.upper(), _shown(host, port))

    def _application(self) -> web.Application:
        from broker.protocols.nsq.lookup.http import LookupApi, LookupConnection

        assert self._pages is not None
        api = LookupApi(self.registry, self.now_ns)
        self._pages.front = partial(LookupConnection, api)
        return api.app()

    async def _open_tcp(self, listen: tuple[str, int]) -> None:
        with opening(listen):
            sockets = bound(*listen)
        self.ports["tcp"] = (listen[0], sockets[0].getsockname()[1])
        for one in sockets:
            self._servers.append(
                await asyncio.get_running_loop().create_server(
                    lambda: LookupPeer(self.peers), sock=one, backlog=net_limits.ACCEPT_BACKLOG
                )
            )

    async def stop(self) -> None:
        """Close both listeners and every connection."""
        if self._open:
            self._open = False
            for name, address in self.ports.items():
                LOG.info("%s: closing %s", name.upper(), _shown(*address))
        while self._servers:
            self._servers.pop().close()
        for peer in list(self.peers.connections):
            peer.close()
        if self._pages is not None:
            await self._pages.close()
            self._pages = None

    async def reload(self) -> bool:
        """Do nothing: settings are read only at the start."""
        LOG.info("nothing to reload")
        return False

    def identity(self) -> dict[str, Any]:
        """The answer to IDENTIFY: the addresses of this nsqlookupd."""
        return {
            "broadcast_address": self.config.broadcast_address or self.hostname,
            "hostname": self.hostname,
            "http_port": self.ports["http"][1] if "http" in self.ports else 0,
            "tcp_port": self.ports["tcp"][1] if "tcp" in self.ports else 0,
            "version": limits.NSQ_VERSION,
        }


def _shown(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
