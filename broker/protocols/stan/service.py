"""NATS Streaming as a service of the broker: start and shutdown."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from broker.base.service import Service
from broker.protocols.nats.service import NatsService
from broker.protocols.stan.channels import name_channels
from broker.protocols.stan.clients import random_name
from broker.protocols.stan.config import StanConfig
from broker.protocols.stan.store import STAN_FOLDER, StateVersionError
from broker.protocols.stan.streaming import Streaming

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from broker.base.metrics import Block
    from broker.base.service import Handler
    from broker.protocols.host import Host
    from broker.protocols.stan.monitor import StreamingPages

log = logging.getLogger("broker.server")


class StanService(Service):
    """NATS Streaming in the NATS server of the same process."""

    name = "stan"

    def __init__(self, host: Host, *, alone: bool = False) -> None:
        """`alone`: the process runs only for this service, as nats-streaming-server. Damaged state
        then aborts the start, and the service ends before its clients are disconnected."""
        self.host = host
        self.settings = host.section(StanConfig)
        self.server_id = random_name()
        self.streaming: Streaming | None = None
        self._is_alone = alone
        self._found: Streaming | None = None  # from its start on, also after its end
        self._is_served = True

    @property
    def _folder(self) -> Path | None:
        return None if self.host.data is None else self.host.data / STAN_FOLDER

    def prepare(self) -> None:
        """Give the logs of channels the names that [bridge] requires."""
        if not self._is_alone and self.host.logs is not None and self._folder is not None:
            name_channels(self.host.logs, self._folder, self.host.access)

    async def start(self) -> None:
        """Recover the stored state and serve requests, before NATS clients can connect."""
        nats = self.host.service(NatsService)
        assert nats is not None
        assert nats.server is not None
        engine, access = self.host.engine, self.host.access
        try:
            streaming = Streaming(self.settings, engine, nats.server, self._folder, access)
        except (OSError, StateVersionError) as problem:
            if self._is_alone:
                raise
            # an error must not stop the other protocols
            engine.shared.health.add("stan", self.settings.cluster_id, str(problem))
            log.error("NATS Streaming is not served: %s", problem)
            self._is_served = False
            return
        streaming.server_id = self.server_id
        self.streaming = streaming
        await streaming.start()
        self._found = streaming

    async def drain(self) -> None:
        """End a stand-alone service here, before its clients are disconnected."""
        if self._is_alone:
            await self.stop()

    async def stop(self) -> None:
        """End the service; its stored state remains."""
        if self.streaming is not None:
            streaming, self.streaming = self.streaming, None
            await streaming.stop()

    def metrics(self) -> Iterable[Block]:
        """The series of the exporter for nats-streaming-server, and some of Twinwire's own."""
        if self._found is None:
            return []
        from broker.protocols.stan.metrics import stan_metrics

        return [stan_metrics(self._pages)]

    def pages(self) -> Mapping[str, Handler]:
        """The pages below /streaming."""
        return self._pages.handlers() if self._is_served else {}

    @property
    def _pages(self) -> StreamingPages:
        from broker.protocols.stan.monitor import StreamingPages

        return StreamingPages(lambda: self._found)
