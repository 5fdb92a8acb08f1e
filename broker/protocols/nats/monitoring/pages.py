"""All pages of one server by name, for the monitoring listener and the system account."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from broker.protocols.nats.monitoring import limits, options
from broker.protocols.nats.monitoring.accountz import account_info, accountz, accstatz
from broker.protocols.nats.monitoring.connz import connz
from broker.protocols.nats.monitoring.leafz import gatewayz, leafz, routez
from broker.protocols.nats.monitoring.options import PageError
from broker.protocols.nats.monitoring.process import Clock
from broker.protocols.nats.monitoring.subsz import subsz
from broker.protocols.nats.monitoring.varz import Health, healthz, jsz, varz

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from broker.protocols.nats.monitoring.lists import LongPage
    from broker.protocols.nats.views import ServerView

    Json = dict[str, Any]

__all__ = ["MonitorPages", "PageError"]


def _no_problem() -> str | None:
    return None


class MonitorPages:
    """Builds each page on request; PageError for invalid options."""

    def __init__(self, server: ServerView, broken: Callable[[], str | None] = _no_problem) -> None:
        """`broken` returns a problem of another part of this process, or None."""
        self.server = server
        self.broken = broken
        self.requests: Counter[str] = Counter()  # over HTTP, by path
        self.clock = Clock()
        self._named: dict[str, Callable[[Mapping[str, Any]], Json]] = {
            "VARZ": lambda _given: self.varz(),
            "CONNZ": self._connz,
            "SUBSZ": self._subsz,
            "ROUTEZ": lambda fields: routez(server, options.RoutezOptions.from_json(fields)),
            "GATEWAYZ": lambda fields: gatewayz(server, options.GatewayzOptions.from_json(fields)),
            "LEAFZ": lambda fields: leafz(server, options.LeafzOptions.from_json(fields)),
            "ACCOUNTZ": lambda fields: accountz(server, options.AccountzOptions.from_json(fields)),
            "ACCSTATZ": lambda fields: accstatz(server, options.AccstatzOptions.from_json(fields)),
            "INFO": lambda fields: account_info(server, fields.get("account", "")),
            "JSZ": lambda fields: jsz(server, options.JszOptions.from_json(fields)),
            "HEALTHZ": self._health,
        }

    def page(self, name: str, fields: Mapping[str, Any]) -> Json:
        """The answer to a request in the system account; `fields`: its validated JSON."""
        return self._named[name](fields)

    def varz(self) -> Json:
        return varz(self.server, self.server.cpu, self.requests)

    def connz(self, parsed: options.ConnzOptions) -> LongPage:
        return connz(self.server, parsed, self.clock)

    def subsz(self, parsed: options.SubszOptions) -> LongPage:
        return subsz(self.server, parsed)

    def healthz(self, parsed: options.HealthzOptions) -> Health:
        return healthz(self.server, parsed, self.broken)

    def _connz(self, fields: Mapping[str, Any]) -> Json:
        parsed = options.ConnzOptions.from_json(fields)
        return connz(self.server, parsed, self.clock, limits.MONITOR_SUBSCRIPTIONS_WHOLE).whole()

    def _subsz(self, fields: Mapping[str, Any]) -> Json:
        parsed = options.SubszOptions.from_json(fields)
        return subsz(self.server, parsed, limits.MONITOR_SUBSCRIPTIONS_WHOLE).whole()

    def _health(self, fields: Mapping[str, Any]) -> Json:
        health = self.healthz(options.HealthzOptions.from_json(fields))
        status, *rest = health.page.items()
        return dict([status, ("status_code", health.code), *rest])
