"""The services of a broker, in the order in which they start, listen and drain.

A new one is one line here. Its module is imported only if it is needed, so another one costs
nothing; broker/base/service.py says when each of its methods is called.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

from broker.base.values import dataclass
from broker.bulk.config import BULK_FOLDER, STAGED_FOLDER, BulkConfig
from broker.console.config import ConsoleConfig
from broker.protocols.jetstream.config import JetStreamConfig
from broker.protocols.nats.settings import MonitorConfig, Settings
from broker.protocols.nsq.lookup.config import LookupConfig
from broker.protocols.stan.config import StanConfig
from broker.telemetry.config import TelemetryConfig

if TYPE_CHECKING:
    from collections.abc import Callable

    from broker.base.service import Service
    from broker.protocols.host import Host


@dataclass(frozen=True)
class Factory:
    """How a service is created."""

    module: str
    kind: str  # the name of its class
    needed: Callable[[Host], bool] = lambda _host: (
        True
    )  # whether the configuration has a use for it

    def __call__(self, host: Host) -> Service | None:
        """The service for this server; None if it is not needed."""
        if not self.needed(host):
            return None
        service: Service = getattr(import_module(self.module), self.kind)(host)
        return service


def has_lookup(host: Host) -> bool:
    """Whether [nsqlookupd] is enabled."""
    return host.section(LookupConfig).enabled


def has_streaming(host: Host) -> bool:
    """Whether [stan] is enabled."""
    return host.section(StanConfig).enabled


def has_jetstream(host: Host) -> bool:
    """Whether [jetstream] is enabled and NATS clients can connect."""
    return host.section(JetStreamConfig).enabled and host.section(Settings).listen is not None


def has_nats(host: Host) -> bool:
    """Whether NATS clients, monitoring clients or NATS Streaming use a NATS server."""
    nats = host.section(Settings)
    if nats.listen is not None or nats.config_file:
        return True
    return host.section(MonitorConfig).listen is not None or has_streaming(host)


def has_bulk(host: Host) -> bool:
    """Whether the bulk API has a listener, or has left readers or commits in the data folder."""
    if host.section(BulkConfig).listen is not None:
        return True
    return host.data is not None and any(
        (host.data / name).exists() for name in (BULK_FOLDER, STAGED_FOLDER)
    )


def has_telemetry(host: Host) -> bool:
    """Whether [telemetry] has an endpoint."""
    return host.section(TelemetryConfig).enabled


def has_console(host: Host) -> bool:
    """Whether [console] has a listener."""
    return host.section(ConsoleConfig).listen is not None


SERVICES: Final[tuple[Factory, ...]] = (
    Factory("broker.protocols.nsq.lookup.service", "LookupService", has_lookup),
    Factory("broker.server.metrics", "MetricsService"),
    Factory("broker.protocols.nats.service", "NatsService", has_nats),
    Factory("broker.protocols.jetstream.service", "JetStreamService", has_jetstream),
    Factory("broker.protocols.stan.service", "StanService", has_streaming),
    Factory("broker.protocols.nsq.service", "NsqService"),
    Factory("broker.bulk.service", "BulkService", has_bulk),
    Factory("broker.console.service", "ConsoleService", has_console),
    Factory("broker.protocols.nats.service", "MonitorService", has_nats),
    Factory("broker.telemetry.service", "TelemetryService", has_telemetry),
)
