"""The series of prometheus-nats-exporter for the monitoring pages, under its names.

Grafana panels and alerts for the exporter can use these series (`gnatsd_varz_connections` ...),
which have the label server_id. All are gauges, as most are in the exporter. Its rules: numbers
become gauges, nested ones with `_` between the names; a few strings become a label `value`; times
are milliseconds since 1970. Series of JetStream, gateways and single connections are missing.
"""

from __future__ import annotations

import re
from datetime import datetime
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from prometheus_client.core import GaugeMetricFamily

from broker.base.metrics import Block, Position
from broker.base.units import SECOND
from broker.base.values import dataclass
from broker.protocols.nats.monitoring import limits
from broker.protocols.nats.monitoring.accountz import account_stat
from broker.protocols.nats.monitoring.leafz import leaf_facts, routez
from broker.protocols.nats.monitoring.options import HealthzOptions, RoutezOptions, SubszOptions
from broker.protocols.nats.views import links

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from prometheus_client.metrics_core import Metric

    from broker.protocols.nats.monitoring.pages import MonitorPages

    Json = dict[str, Any]

_PREFIX: Final = "gnatsd"
_LABELLED: Final = frozenset({"server_id", "server_name", "version", "domain", "leader", "name"})
_TIMES: Final = frozenset({"start", "config_load_time"})
_SKIPPED: Final = frozenset({"leaf", "trusted_operators_claim"})
_SUMMED: Final = (
    "pending_bytes",
    "subscriptions",
    "in_bytes",
    "out_bytes",
    "in_msgs",
    "out_msgs",
)
_LEAF_LABELS: Final = ("server_id", "account", "account_id", "ip", "port", "name")
_ACCOUNT_LABELS: Final = ("server_id", "account", "account_id", "account_name")
_ACCOUNT: Final = (
    ("current_connections", "conns"),
    ("total_connections", "total_conns"),
    ("subscriptions", "num_subscriptions"),
    ("leaf_nodes", "leafnodes"),
    ("slow_consumers", "slow_consumers"),
)


@dataclass(slots=True)
class NatsFacts:
    """The values for one scrape, copied on the loop's thread."""

    server_id: str
    varz: Json
    subsz: Json
    routez: Json
    connz: Mapping[str, float]
    leafs: list[tuple[Json, int]]  # an entry of /leafz and the round trip time in ns
    accounts: list[Json]
    health: str


def nats_facts(pages: MonitorPages) -> NatsFacts:
    """Copy the current values; must be called on the loop's thread."""
    server = pages.server
    sessions = list(server.sessions)
    sums = {name: sum(map(attrgetter(name), sessions)) for name in _SUMMED}
    counts = {"num_connections": len(sessions), "total": len(sessions), "offset": 0}
    return NatsFacts(
        server_id=server.server_id,
        varz=pages.varz(),
        subsz=pages.subsz(SubszOptions()).head,
        routez=routez(server, RoutezOptions()),
        connz=counts | {"limit": limits.MONITOR_CONNECTIONS} | sums,
        leafs=[(leaf_facts(link), link.rtt_ns) for link in links(server)],
        accounts=[account_stat(account) for account in server.accounts.values()],
        health=pages.healthz(HealthzOptions()).page["status"],
    )


def nats_metrics(pages: MonitorPages) -> Block:
    """The series of a NATS server with its current values; must be called on the loop's thread."""
    return nats_block(nats_facts(pages))


def nats_block(facts: NatsFacts) -> Block:
    """The series of these facts."""
    return Block(Position.EXPORTED, NatsFamilies(facts).collect)


def _gauge(name: str, labels: Iterable[str], rows: Iterable[tuple[list[str], float]]) -> Metric:
    text = name.split("_", 1)[1]
    family = GaugeMetricFamily(f"{_PREFIX}_{name}", text, labels=list(labels))
    for values, number in rows:
        family.add_metric(values, number)
    return family


def _flat(page: Json, path: tuple[str, ...] = ()) -> Iterator[tuple[str, str, object]]:
    """(name, its last part, value) of every field that is not an object."""
    for key, value in page.items():
        name = re.sub("_+", "_", "_".join((*path, key)).replace("/", "_")).strip("_")
        if name in _SKIPPED:
            continue
        if isinstance(value, dict):
            yield from _flat(value, (*path, key))
        else:
            yield name, key, value


class NatsFamilies:
    """Converts the facts of one scrape to metric families."""

    def __init__(self, facts: NatsFacts) -> None:
        self.facts = facts

    def collect(self) -> Iterator[Metric]:
        """Families in the order of the pages."""
        facts = self.facts
        me = [facts.server_id]
        for endpoint, page in (("varz", facts.varz), ("subsz", facts.subsz)):
            yield from self._generic(endpoint, page)
        yield from self._generic("routez", facts.routez)
        for name, number in facts.connz.items():
            yield _gauge(f"connz_{name}", ["server_id"], [(me, number)])
        healthy = facts.health == "ok"
        yield _gauge("healthz_status", ["server_id"], [(me, float(not healthy))])
        yield _gauge(
            "healthz_status_value", ["server_id", "value"], [([*me, facts.health], float(healthy))]
        )
        yield from self._leafs()
        yield from self._accounts()

    def _generic(self, endpoint: str, page: Json) -> Iterator[Metric]:
        me = self.facts.server_id
        for name, key, value in _flat(page):
            full = f"{endpoint}_{name}"
            if isinstance(value, bool):
                continue
            if isinstance(value, int | float):
                yield _gauge(full, ["server_id"], [([me], value)])
            elif isinstance(value, str) and key in _TIMES:
                yield _gauge(full, ["server_id"], [([me], _milliseconds(value))])
            elif isinstance(value, str) and key in _LABELLED:
                yield _gauge(full, ["server_id", "value"], [([me, value], 1)])

    def _leafs(self) -> Iterator[Metric]:
        facts = self.facts
        yield _gauge(
            "leafz_conn_nodes_total", ["server_id"], [([facts.server_id], len(facts.leafs))]
        )
        if not facts.leafs:
            return
        rows = [
            (
                [
                    facts.server_id,
                    leaf["account"],
                    leaf["account"],
                    leaf["ip"],
                    str(leaf["port"]),
                    leaf["name"],
                ],
                leaf | {"info": 1, "rtt": rtt_ns / SECOND},
            )
            for leaf, rtt_ns in facts.leafs
        ]
        for name, key in (
            ("info", "info"),
            ("conn_rtt", "rtt"),
            ("conn_in_msgs", "in_msgs"),
            ("conn_out_msgs", "out_msgs"),
            ("conn_in_bytes", "in_bytes"),
            ("conn_out_bytes", "out_bytes"),
            ("conn_subscriptions_total", "subscriptions"),
        ):
            known = [(labels, float(leaf[key])) for labels, leaf in rows]
            yield _gauge(f"leafz_{name}", _LEAF_LABELS, known)

    def _accounts(self) -> Iterator[Metric]:
        facts = self.facts
        rows = [([facts.server_id, *[stat["acc"]] * 3], stat) for stat in facts.accounts]
        for name, key in _ACCOUNT:
            known = [(labels, float(stat[key])) for labels, stat in rows]
            yield _gauge(f"accstatz_{name}", _ACCOUNT_LABELS, known)
        for direction in ("sent", "received"):
            for unit, key in (("messages", "msgs"), ("bytes", "bytes")):
                known = [(labels, float(stat[direction][key])) for labels, stat in rows]
                yield _gauge(f"accstatz_{direction}_{unit}", _ACCOUNT_LABELS, known)


def _milliseconds(rfc3339: str) -> float:
    """Milliseconds since 1970. Python cannot parse nine fractional digits."""
    text = re.sub(r"(\.\d{6})\d+", r"\1", rfc3339)
    return round(datetime.fromisoformat(text).timestamp() * 1000)
