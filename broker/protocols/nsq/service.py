"""NSQ as a service: the TCP listener, the HTTP API, statsd, and reports to nsqlookupds."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections import deque
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from broker.base.service import ListenerStats, Service
from broker.engine.config import StorageConfig
from broker.engine.names import is_ephemeral, is_name
from broker.net import sockets
from broker.net.http.pages import Pages
from broker.protocols.nsq import limits
from broker.protocols.nsq.config import NsqConfig

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Iterable, Sequence

    from aiohttp import web

    from broker.base.metrics import Block
    from broker.base.settings import Address
    from broker.protocols.host import Host
    from broker.protocols.nsq.http.api import NsqApi
    from broker.protocols.nsq.listener import NsqListener
    from broker.protocols.nsq.lookup.client import LookupPeers

log = logging.getLogger("broker.server")
_TOPICS = logging.getLogger("broker.nsq.topics")

# The objects that the HTTP handlers are built from.
_API_MODULES: Final = ("broker.protocols.nsq.http.api", "broker.protocols.nsq.http.v1")


def _log_topics(topic: str, channel: str | None, made: bool) -> None:
    """Log that a topic or channel was created or deleted, in nsqd's words."""
    name = (channel or topic).encode()
    if not is_name(topic.encode()) or not is_name(name):
        return  # it belongs to another protocol
    # Clients create and drop ephemeral ones all the time.
    level = logging.DEBUG if is_ephemeral(name) else logging.INFO
    if channel is None:
        _TOPICS.log(level, "TOPIC(%s): %s", topic, "created" if made else "deleting")
    elif made:
        _TOPICS.log(level, "TOPIC(%s): new channel(%s)", topic, channel)
    else:
        _TOPICS.log(level, "TOPIC(%s): deleting channel %s", topic, channel)


class TopicLines:
    """Log lines about topics and channels, in their order, some in each turn of the loop: a topic
    may be deleted with thousands of channels."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: deque[tuple[str, str | None, bool]] = deque()
        self._room = limits.TOPIC_LINES_AT_ONCE  # in this turn

    def add(self, topic: str, channel: str | None, made: bool) -> None:
        """Log that it was created or deleted, now or soon."""
        if not self._room:
            self._waiting.append((topic, channel, made))
            return
        if self._room == limits.TOPIC_LINES_AT_ONCE:
            self._loop.call_soon(self._next_turn)
        self._room -= 1
        _log_topics(topic, channel, made)

    def _next_turn(self) -> None:
        self._room = limits.TOPIC_LINES_AT_ONCE
        while self._waiting and self._room:
            self.add(*self._waiting.popleft())

    def close(self) -> None:
        """Write all lines that wait."""
        while self._waiting:
            _log_topics(*self._waiting.popleft())


class NsqService(Service):
    """Serves NSQ clients as [nsq] configures; without a listener it only provides /metrics."""

    name = "nsq"

    def __init__(self, host: Host) -> None:
        self.host = host
        self.config = host.section(NsqConfig)
        self.listener: NsqListener | None = None
        self.peers: LookupPeers | None = None  # the nsqlookupds that topics are reported to
        self._pages: dict[str, Pages] = {}
        self._statsd: asyncio.Task[None] | None = None
        self._lines: TopicLines | None = None

    async def listen(self) -> None:
        """Open the listeners, then report to statsd and nsqlookupds."""
        if self.config.listen is None:
            return
        from broker.protocols.nsq.listener import NsqListener

        host, config = self.host, self.config
        nsq = NsqListener(config, host.runtime, host.engine, host.access)
        nsq.dead_letters.begin(host.section(StorageConfig).for_topic)
        await nsq.open()
        self.listener = nsq
        self._lines = TopicLines(asyncio.get_running_loop())
        host.engine.watch(self._lines.add)
        await self._open_pages(nsq)
        if config.statsd_address is not None:
            self._report_to_statsd(nsq)
        if config.nsqlookupd_tcp_addresses:
            self._report_to_lookupds(config.nsqlookupd_tcp_addresses)

    def _facts(self) -> dict[str, Any]:
        """The values of nsqd's /config that [nsq] does not have."""
        storage = self.host.section(StorageConfig)
        return {
            "id": max(self.config.node_id, 0),
            "http_address": sockets.text_of(self.config.http),
            "data_path": str(Path(self.host.data or "").resolve()),
            "max_bytes_per_file": storage.segment_size,
            "sync_every": int(storage.sync.mode == "always"),
            "sync_timeout": storage.sync.period_ns,
            "statsd_prefix": self._statsd_prefix(),
            **self.config.given,
        }

    @cached_property
    def api(self) -> NsqApi:
        """The handlers of all HTTP listeners, created for the first client."""
        from broker.protocols.nsq.http.api import NsqApi
        from broker.protocols.nsq.http.settings import TopicSettings
        from broker.protocols.nsq.http.v1 import V1Api

        assert self.listener is not None
        api = NsqApi(self.listener, self.host.health, self._facts())
        settings = TopicSettings(self.host.engine)
        api.extra_routes = V1Api(self.listener, settings, self.host.problems).routes()
        api.options.on_lookupd_addresses = self._report_to_lookupds
        api.http_port, api.https_port = self._port("nsq_http"), self._port("nsq_https")
        return api

    def _app(self) -> web.Application:
        return self.api.app()

    def _refusing_app(self) -> web.Application:
        return self.api.refusing_app()

    def _port(self, name: str) -> int:
        """The port of that listener; 0 if it is not open."""
        return self.ports.get(name, ("", 0))[1]

    async def _open_pages(self, nsq: NsqListener) -> None:
        config = self.config
        if nsq.certificates is not None and config.https is not None:
            context = nsq.certificates.context
            await self._serve("nsq_https", config.https, self._app, context)
        if config.http is not None:
            # a policy for client certificates also rules out plain HTTP
            only_tls = config.tls_required == "true" or (
                config.tls_required == "false" and config.tls_client_auth_policy != ""
            )
            await self._serve(
                "nsq_http",
                config.http,
                self._refusing_app if only_tls else self._app,
            )

    async def _serve(
        self,
        name: str,
        listen: Address,
        make: Callable[[], web.Application],
        context: ssl.SSLContext | None = None,
    ) -> None:
        names = (self.config.broadcast_address,)
        pages = self._pages[name] = Pages(make, context, self.host.http, names=names)
        pages.modules += _API_MODULES
        await pages.open(listen)

    def _report_to_statsd(self, nsq: NsqListener) -> None:
        from broker.protocols.nsq.statsd import Statsd

        statsd = Statsd(nsq.topics, self.config, self._statsd_prefix())
        self._statsd = asyncio.create_task(statsd.run())

    def _statsd_prefix(self) -> str:
        """The prefix of statsd names, with this server's host and port."""
        from broker.protocols.nsq.statsd import full_prefix

        host = self.config.broadcast_address or socket.gethostname()
        own = sockets.port_of(self.ports.get("nsq_http", self.ports["nsq"]))
        port = self.config.broadcast_http_port or own
        return full_prefix(self.config.statsd_prefix, host, port)

    def _report_to_lookupds(self, addresses: Sequence[str]) -> None:
        """Report topics and channels to exactly these nsqlookupds."""
        if self.peers is not None:
            self.peers.set_addresses(addresses)
            return
        from broker.protocols.nsq.lookup.client import LookupPeers

        self.peers = LookupPeers(self.config, self.host.engine)
        tcp, http = (sockets.port_of(self.ports.get(name)) for name in ("nsq", "nsq_http"))
        self.peers.start(tcp, http, addresses)

    async def drain(self) -> None:
        """Disconnect from the nsqlookupds, then accept no new clients."""
        if self.peers is not None:
            await self.peers.stop()
        if self.listener is not None:
            await self.listener.close()

    async def disconnect(self) -> None:
        """End each connection after its publishes are answered."""
        if self.listener is not None:
            await self.listener.drain()

    async def stop(self) -> None:
        """Stop reports, connections and HTTP listeners."""
        if self._statsd is not None:
            self._statsd.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._statsd
            self._statsd = None
        if self.peers is not None:
            await self.peers.stop()
            self.peers = None
        if self.listener is not None:
            await self.listener.drain()
        # a first client of HTTP may still wait for the handlers, which are made of the listener
        await asyncio.gather(*(pages.close() for pages in self._pages.values()))
        self._pages.clear()
        if self.listener is not None:
            self.listener = None
        if self._lines is not None:
            self.host.engine.unwatch(self._lines.add)
            self._lines.close()
            self._lines = None

    async def reload(self) -> None:
        """Read certificates again."""
        if self.listener is None or self.listener.certificates is None:
            return
        certificates = self.listener.certificates
        if certificates.reload(log) and "nsq_https" in self._pages:
            await self._pages["nsq_https"].use(certificates.context)

    @property
    def ports(self) -> dict[str, tuple[str, int]]:
        """The ports of nsq, nsq_https and nsq_http, if open."""
        tcp = {} if self.listener is None else {"nsq": self.listener.address}
        return tcp | {name: pages.address for name, pages in self._pages.items()}

    def stats(self) -> Sequence[ListenerStats]:
        """Statistics of TCP connections, including messages published over HTTP."""
        return [] if self.listener is None else [ListenerStats.of(self.name, self.listener)]

    def metrics(self) -> Iterable[Block]:
        """The series of topics and channels, even if no NSQ listener is open."""
        from broker.protocols.nsq.http.metrics import topic_metrics

        return [topic_metrics(self.host.engine)]
