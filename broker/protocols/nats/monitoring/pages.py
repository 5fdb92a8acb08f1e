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


def _all_is_well() -> str | None:
    return None


class MonitorPages:
    """Builds each page on request; PageError for invalid options."""

    def __init__(self, server: ServerView, broken: Callable[[], str | None] = _all_is_well) -> None:
        """`broken` returns the problem of the rest of this process, or None."""
        self.server = server
        self.broken = broken
        self.requests: Counter[str] = Counter()  # over HTTP, by path
        self.clock = Clock()
        self._named: dict[str, Callable[[Mapping[str, Any]], Json]] = {
            "VARZ": lambda _given: self.varz(),
            "CONNZ": self._connz,
            "SUBSZ": self._subsz,
            "ROUTEZ": lambda given: routez(server, options.RoutezOptions.from_json(given)),
            "GATEWAYZ": lambda given: gatewayz(server, options.GatewayzOptions.from_json(given)),
            "LEAFZ": lambda given: leafz(server, options.LeafzOptions.from_json(given)),
            "ACCOUNTZ": lambda given: accountz(server, options.AccountzOptions.from_json(given)),
            "ACCSTATZ": lambda given: accstatz(server, options.AccstatzOptions.from_json(given)),
            "INFO": lambda given: account_info(server, given.get("account", "")),
            "JSZ": lambda given: jsz(server, options.JszOptions.from_json(given)),
            "HEALTHZ": self._health,
        }

    def page(self, name: str, given: Mapping[str, Any]) -> Json:
        """The answer to a request in the system account; `given`: its validated JSON."""
        return self._named[name](given)

    def varz(self) -> Json:
        return varz(self.server, self.server.cpu, self.requests)

    def connz(self, asked: options.ConnzOptions) -> LongPage:
        return connz(self.server, asked, self.clock)

    def subsz(self, asked: options.SubszOptions) -> LongPage:
        return subsz(self.server, asked)

    def healthz(self, asked: options.HealthzOptions) -> Health:
        return healthz(self.server, asked, self.broken)

    def _connz(self, given: Mapping[str, Any]) -> Json:
        asked = options.ConnzOptions.from_json(given)
        return connz(self.server, asked, self.clock, limits.MONITOR_SUBSCRIPTIONS_WHOLE).whole()

    def _subsz(self, given: Mapping[str, Any]) -> Json:
        asked = options.SubszOptions.from_json(given)
        return subsz(self.server, asked, limits.MONITOR_SUBSCRIPTIONS_WHOLE).whole()

    def _health(self, given: Mapping[str, Any]) -> Json:
        health = self.healthz(options.HealthzOptions.from_json(given))
        status, *rest = health.page.items()
        return dict([status, ("status_code", health.code), *rest])
