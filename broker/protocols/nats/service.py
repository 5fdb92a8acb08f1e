"""NATS as a service of the broker: its server and the monitoring listener."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING

from broker.base.metrics import Block, Position
from broker.base.service import ListenerStats, Service
from broker.protocols.nats.section import nats_settings
from broker.protocols.nats.server import NatsServer
from broker.protocols.nats.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from prometheus_client.metrics_core import Metric

    from broker.protocols.host import Host, Sections
    from broker.protocols.nats.listener import NatsListener

log = logging.getLogger("broker.server_nats")


async def reload_nats(server: NatsServer, config: Sections) -> None:
    """Read the file again and apply it; an invalid file changes nothing and is logged."""
    from broker.protocols.nats import reload
    from broker.protocols.nats.conf.text import ConfErrors

    try:
        settings = await asyncio.to_thread(nats_settings, config)
        plan = reload.plan(server.settings, settings)
        await server.reload(settings)
    except (ConfErrors, reload.ReloadRefused, OSError, ValueError) as problem:
        for line in str(problem).splitlines():
            log.error("NATS settings stay as they were: %s", line)
        return
    for line in plan.lines:
        log.info("%s", line)


class NatsService(Service):
    """The NATS server of [nats]. Without a listener it still serves other services."""

    name = "nats"

    def __init__(self, host: Host, server: NatsServer | None = None) -> None:
        """`server`: one that its owner starts before the logs are opened; here it is only stopped,
        with all its connections."""
        self.host = host
        self.server: NatsServer | None = None
        self._is_ours = server is None
        self._listener: NatsListener | None = None
        if server is not None:
            self._use(server)

    def _use(self, server: NatsServer) -> None:
        self.server = server
        server.broken = self.host.health
        server.monitor.http = self.host.http

    async def start(self) -> None:
        """Create the server with its accounts. ConfErrors if its file is invalid."""
        if self._is_ours:
            host = self.host
            self._use(NatsServer(nats_settings(host), host.runtime, host.router))

    async def listen(self) -> None:
        """Open the listeners of clients, WebSocket clients and leaf nodes."""
        if not self._is_ours or self.host.section(Settings).listen is None:
            return
        assert self.server is not None
        await self.server.open_listeners()
        self._listener = self.server.listener

    async def drain(self) -> None:
        """Accept no new clients."""
        if self._listener is not None:
            await self._listener.close()

    async def disconnect(self) -> None:
        """End each connection after its pending output is written."""
        if self._listener is not None:
            await self._listener.drain()

    async def stop(self) -> None:
        """End the server, including the monitoring pages."""
        if self.server is not None:
            await self.server.stop()
            self.server = self._listener = None

    async def reload(self) -> None:
        """Read the file again, if [nats] names one."""
        if self.server is not None and self.host.section(Settings).config_file:
            await reload_nats(self.server, self.host)

    @property
    def ports(self) -> dict[str, tuple[str, int]]:
        """The ports of nats, websocket and leafnodes, if open; without those of monitoring."""
        if self._listener is None or self.server is None:
            return {}
        pages = self.server.monitor.ports
        return {name: bound for name, bound in self.server.ports.items() if name not in pages}

    def stats(self) -> Sequence[ListenerStats]:
        """Statistics of clients, without WebSocket clients and leaf nodes."""
        return [] if self._listener is None else [self._listener.stats(self.name)]

    def metrics(self) -> Iterable[Block]:
        """The series of subscriptions, and those of nats-server's exporter."""
        yield subscription_block(self.host.router.size)
        if self.server is not None:
            from broker.protocols.nats.monitoring.metrics import nats_metrics

            yield nats_metrics(self.server.pages)


def subscription_block(held: int) -> Block:
    """The series of the number of subscriptions."""
    return Block(Position.SUBSCRIPTIONS, partial(_subscriptions, held))


def _subscriptions(held: int) -> Iterator[Metric]:
    from prometheus_client.core import GaugeMetricFamily

    yield GaugeMetricFamily("twinwire_subscriptions", "NATS subscriptions held now.", held)


class MonitorService(Service):
    """The monitoring listener, with the pages of all services. It opens after all others, so that
    every listener is open when /healthz answers."""

    name = "monitor"

    def __init__(self, host: Host) -> None:
        self.host = host

    async def listen(self) -> None:
        """Open the pages of the NATS server."""
        server = self._server
        assert server is not None
        server.monitor.more = self.host.pages
        await server.open_pages()

    @property
    def _server(self) -> NatsServer | None:
        nats = self.host.service(NatsService)
        return nats.server if nats is not None else None

    @property
    def ports(self) -> dict[str, tuple[str, int]]:
        """The ports of monitor, and of monitor_https if both are open."""
        return self._server.monitor.ports if self._server is not None else {}
