"""NATS Streaming in a server: what it is told, and a server that has nothing else."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from broker.base.lockfile import DataLock
from broker.base.units import COUNT_MAX
from broker.config.load import Config
from broker.engine import limits
from broker.engine.engine import Engine
from broker.net.listener import Runtime
from broker.protocols.access import Access
from broker.protocols.nats.server import NatsServer
from broker.protocols.stan.clients import random_name
from broker.protocols.stan.config import ChannelLimits, ChannelOverride, StanSettings
from broker.protocols.stan.monitor import StreamingPages
from broker.protocols.stan.streaming import Streaming
from broker.routing.router import Router
from broker.server.engine import LOGS_FOLDER, STAN_FOLDER, broken_log, engine_options, report
from broker.server.metrics import metrics_page
from broker.server.topics import sync_words

if TYPE_CHECKING:
    from pathlib import Path

    from broker.protocols.nats.settings import Settings

log = logging.getLogger("broker.stan")

# As in the original, what is stored and what is live do not meet, but for the service itself; and
# what memory may hold is said by the limits of channels alone.
_UNBRIDGED: Final = {"to_live": False, "from_live": False, "memory_bytes_max": COUNT_MAX}


def stan_settings(config: Config) -> StanSettings:
    """The settings of the service, enabled or not."""
    stan = config.stan
    return StanSettings(
        cluster_id=stan.cluster_id,
        discover_prefix=stan.discover_prefix,
        account=stan.account,
        store="memory" if stan.store == "memory" else "file",
        sync=sync_words(stan.sync),
        replace_durable=stan.replace_durable,
        hb_interval_ns=stan.hb_interval_ns,
        hb_timeout_ns=stan.hb_timeout_ns,
        hb_fail_count=stan.hb_fail_count,
        max_channels=stan.max_channels,
        limits=ChannelLimits(
            max_msgs=stan.max_msgs,
            max_bytes=stan.max_bytes,
            max_age_ns=stan.max_age_ns,
            max_subs=stan.max_subs,
            max_inactivity_ns=stan.max_inactivity_ns,
        ),
        channels=tuple(
            (
                entry.pattern,
                ChannelOverride(
                    max_msgs=entry.max_msgs,
                    max_bytes=entry.max_bytes,
                    max_age_ns=entry.max_age_ns,
                    max_subs=entry.max_subs,
                    max_inactivity_ns=entry.max_inactivity_ns,
                ),
            )
            for entry in stan.channel
        ),
        adopt_topics=stan.adopt_topics,
    )


class StreamingServer(NatsServer):
    """A NATS server with the service and its engine, in the place of nats-streaming-server."""

    def __init__(self, settings: Settings, stan: StanSettings, folder: Path | None) -> None:
        """`folder`: of the data; None = all of it in memory."""
        router = Router(limits.ROUTER_CACHE_SUBJECTS, limits.ROUTER_CACHE_REFS)
        super().__init__(settings, Runtime(), router)
        self.stan = stan
        self.folder = folder
        self.stan_id = random_name()
        self.engine = Engine(
            self.runtime.turn,
            router,
            None if folder is None else str(folder / LOGS_FOLDER),
            engine_options(Config()) | _UNBRIDGED,
            lambda _name: stan.sync,
            report,
        )
        self.access = Access(stan_to_nats=False, nats_to_stan=False)
        self.service: Streaming | None = None
        self.streaming_pages = StreamingPages()
        self.pages.broken = lambda: broken_log(self.engine)
        metrics = metrics_page(None, self.pages, self.streaming_pages)
        self.monitor.more = {**self.streaming_pages.handlers(), "/metrics": metrics}
        self._lock: DataLock | None = None
        self._opened = False

    async def start_service(self) -> Streaming:
        """Recover what is stored, and serve; OSError and the like when that cannot be."""
        if self.folder is not None:
            self._lock = DataLock(self.folder)
        self._opened = True
        self.engine.open(self.runtime.loop)
        for problem in self.engine.problems:
            log.warning("recovered: %s", problem)
        known = None if self.folder is None else self.folder / STAN_FOLDER
        service = Streaming(self.stan, self.engine, self, known, self.access)
        service.server_id = self.stan_id
        await service.start()
        self.service = self.streaming_pages.found = service
        return service

    async def stop(self) -> None:
        """Stop serving, write and sync everything, let go."""
        if self.service is not None:
            await self.service.stop()
        if self._opened:
            await self.engine.settle()
        await super().stop()
        if self._opened:
            await self.engine.close()
        if self._lock is not None:
            self._lock.release()
