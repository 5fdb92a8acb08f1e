"""The series of NATS Streaming: our own, and those of prometheus-nats-exporter from its pages.

Dashboards written for the exporter find `nss_chan_msgs_total` and its other series here too; its
label `server` is the server_id. Types are those of the exporter, some of whose counters can
decrease; the counts of its serverz are gauges here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from broker.base.metrics import Block, Position
from broker.base.units import COUNT_MAX
from broker.base.values import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client.metrics_core import Metric

    from broker.protocols.stan.monitor import StreamingPages

    Json = dict[str, Any]

_INFO: Final = ("cluster_id", "server_id", "version", "go", "state", "role", "start_time")
_INFO_LABELS: Final = ("server", *_INFO[:3], "go_version", *_INFO[4:])
_COUNTS: Final = ("channels", "subscriptions", "clients")
_OWN: Final = (
    ("messages_received", "in_msgs", "Messages published by clients of NATS Streaming."),
    ("received_bytes", "in_bytes", "Bytes of these messages."),
    ("messages_sent", "out_msgs", "Messages sent to subscriptions, repeated ones included."),
    ("sent_bytes", "out_bytes", "Bytes of these messages."),
)
_SUB_LABELS: Final = (
    *("server", "channel", "client_id", "inbox", "queue_name", "is_durable", "is_offline"),
)
_SUB: Final = (
    ("last_sent", "last_sent", "Sequence of the last message sent."),
    ("pending_count", "pending_count", "Messages sent and not acknowledged."),
    ("max_inflight", "max_inflight", "Messages that may be so at once."),
)


@dataclass(slots=True)
class StanFacts:
    """The values for one scrape, copied on the loop's thread."""

    serverz: Json
    channels: list[Json]


def stan_facts(pages: StreamingPages) -> StanFacts:
    """Copy the present values; called on the loop's thread."""
    listed = pages.channelsz(0, COUNT_MAX, with_subs=True)
    return StanFacts(pages.serverz(), listed.get("channels", []))


def stan_metrics(pages: StreamingPages) -> Block:
    """The series of the service with its present values; called on the loop's thread."""
    return stan_block(stan_facts(pages))


def stan_block(facts: StanFacts) -> Block:
    """The series of these facts."""
    return Block(Position.EXPORTED, StanFamilies(facts).collect)


class StanFamilies:
    """Converts facts to metric families."""

    def __init__(self, facts: StanFacts) -> None:
        self.facts = facts

    def collect(self) -> Iterator[Metric]:
        """Families in the order of the page."""
        page = self.facts.serverz
        server = page["server_id"]
        for name, key, text in _OWN:
            yield CounterMetricFamily(f"twinwire_stan_{name}", text, page[key])
        for key in _COUNTS:
            yield GaugeMetricFamily(f"twinwire_stan_{key}", f"{key.capitalize()} now.", page[key])
        yield self._one(CounterMetricFamily, "server_bytes", page["total_bytes"], "Bytes stored.")
        yield self._one(CounterMetricFamily, "server_msgs", page["total_msgs"], "Messages stored.")
        for key in _COUNTS:
            yield self._one(
                GaugeMetricFamily, f"server_{key}", page[key], f"{key.capitalize()} now."
            )
        info = GaugeMetricFamily("nss_server_info", "The server.", labels=_INFO_LABELS)
        info.add_metric([server, *(str(page.get(key, "")) for key in _INFO)], 1)
        yield info
        yield from self._channels(server)

    def _one(self, kind: Any, name: str, value: int, text: str) -> Metric:
        family = kind(f"nss_{name}", text, labels=["server"])
        family.add_metric([self.facts.serverz["server_id"]], value)
        found: Metric = family
        return found

    def _channels(self, server: str) -> Iterator[Metric]:
        labels = ("server", "channel")
        size = CounterMetricFamily("nss_chan_bytes", "Bytes stored.", labels=labels)
        count = CounterMetricFamily("nss_chan_msgs", "Messages stored.", labels=labels)
        last = GaugeMetricFamily("nss_chan_last_seq", "The newest message.", labels=labels)
        subs = [
            GaugeMetricFamily(f"nss_chan_subs_{name}", text, labels=_SUB_LABELS)
            for name, _, text in _SUB
        ]
        for channel in self.facts.channels:
            where = [server, channel["name"]]
            size.add_metric(where, channel["bytes"])
            count.add_metric(where, channel["msgs"])
            last.add_metric(where, channel["last_seq"])
            for sub in channel.get("subscriptions", ()):
                who = [*where, *(_label(sub.get(name, "")) for name in _SUB_LABELS[2:])]
                for family, (_, key, _) in zip(subs, _SUB, strict=True):
                    family.add_metric(who, sub[key])
        yield from (size, count, last, *subs)


def _label(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
