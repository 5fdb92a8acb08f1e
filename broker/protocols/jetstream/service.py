"""JetStream as a service of the server: start and shutdown."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from broker.base.service import Service
from broker.protocols.jetstream.config import JetStreamConfig
from broker.protocols.nats.service import NatsService

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from broker.base.metrics import Block
    from broker.protocols.host import Host
    from broker.protocols.jetstream.jetstream import JetStream

log = logging.getLogger("broker.server")

JETSTREAM_FOLDER: Final = "jetstream"  # in the data folder


class JetStreamService(Service):
    """JetStream in the NATS server of the same process."""

    name = "jetstream"

    def __init__(self, host: Host, config: JetStreamConfig | None = None) -> None:
        """`config`: None = the section of the configuration."""
        self.host = host
        self.config = config or host.section(JetStreamConfig)
        self.jetstream: JetStream | None = None

    @property
    def _folder(self) -> Path | None:
        return None if self.host.data is None else self.host.data / JETSTREAM_FOLDER

    async def start(self) -> None:
        """Open the stored streams and serve requests, before NATS clients can connect."""
        nats = self.host.service(NatsService)
        if nats is None or nats.server is None:
            return
        config = self.config.merged(nats.server.settings.jetstream)
        if not config.enabled:
            return
        from broker.protocols.jetstream.jetstream import JetStream

        self.jetstream = JetStream(
            config, nats.server, self.host.engine, self._folder, self.host.access
        )
        nats.server.context.jetstream = self.jetstream
        await self.jetstream.start()

    def metrics(self) -> Iterable[Block]:
        """The series of JetStream: our own, and those of prometheus-nats-exporter."""
        if self.jetstream is None:
            return []
        from broker.protocols.jetstream import metrics

        numbers = metrics.jetstream_numbers(self.jetstream.context, self.jetstream.accounts)
        return [metrics.own_block(numbers), metrics.exported_block(numbers)]

    def problems(self) -> Iterable[tuple[str, str, str]]:
        """The streams and consumers that could not be opened."""
        if self.jetstream is None:
            return
        for account in self.jetstream.accounts.values():
            for stream, reason in account.offline.items():
                yield "stream", f"{account.name} > {stream}", reason
            for (stream, consumer), reason in account.consumers.offline.items():
                yield "consumer", f"{account.name} > {stream} > {consumer}", reason

    async def drain(self) -> None:
        """End waiting pull requests before their clients are disconnected."""
        if self.jetstream is not None:
            self.jetstream.drain()

    async def stop(self) -> None:
        """Close the streams; their files remain."""
        if self.jetstream is not None:
            jetstream, self.jetstream = self.jetstream, None
            jetstream.nats.context.jetstream = None
            await jetstream.stop()
