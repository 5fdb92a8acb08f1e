"""The services of a broker, in the order in which they start, listen and drain.

A new one is one line here. Its module is imported only if it is enabled, so a disabled one costs
nothing; broker/base/service.py says when each of its methods is called.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final, Protocol

from broker.base.values import dataclass
from broker.protocols.nsq.lookup.config import LookupConfig
from broker.protocols.stan.config import StanConfig

if TYPE_CHECKING:
    from broker.base.service import Service
    from broker.protocols.host import Host


class Switched(Protocol):
    """A section of the configuration that can disable its service."""

    @property
    def enabled(self) -> bool: ...


@dataclass(frozen=True)
class Factory:
    """How a service is created."""

    module: str
    kind: str  # the name of its class
    switch: type[Switched] | None = None  # its section, if that can disable it

    def __call__(self, host: Host) -> Service | None:
        """The service for this server; None if it is disabled."""
        if self.switch is not None and not host.section(self.switch).enabled:
            return None
        service: Service = getattr(import_module(self.module), self.kind)(host)
        return service


SERVICES: Final[tuple[Factory, ...]] = (
    Factory("broker.protocols.nsq.lookup.service", "LookupService", LookupConfig),
    Factory("broker.server.metrics", "MetricsService"),
    Factory("broker.protocols.nats.service", "NatsService"),
    Factory("broker.protocols.stan.service", "StanService", StanConfig),
    Factory("broker.protocols.nsq.service", "NsqService"),
    Factory("broker.bulk.service", "BulkService"),
    Factory("broker.protocols.nats.service", "MonitorService"),
)
