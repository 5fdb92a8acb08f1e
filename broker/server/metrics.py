"""/metrics: the broker's counters in the formats that Prometheus reads.

Nothing is counted here. A scrape takes one snapshot of plain values on the loop's thread; turning
it into text touches nothing of the running broker, so it happens on another thread.
"""

from __future__ import annotations

import asyncio
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple, Protocol

from aiohttp import web
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from broker import __version__
from broker.protocols.nats.monitoring.metrics import NatsCollector, NatsFacts, nats_facts
from broker.protocols.stan.metrics import StanCollector, StanFacts, stan_facts

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence

    from prometheus_client.metrics_core import Metric

    from broker.protocols.nats.monitoring.pages import MonitorPages
    from broker.protocols.stan.monitor import StreamingPages
    from broker.server.stats import Histogram, Stats


class StatsSource(Protocol):
    """Whoever can say how things stand."""

    def snapshot(self) -> Stats:
        """A copy of all counters; called on the loop's thread."""


class _Series(NamedTuple):
    kind: type[CounterMetricFamily | GaugeMetricFamily]
    name: str  # without prefix; counters get _total
    attribute: str
    text: str


_COUNTER, _GAUGE = CounterMetricFamily, GaugeMetricFamily

_DOOR = (
    _Series(_GAUGE, "connections", "connections", "Connections open now."),
    _Series(_COUNTER, "connections_accepted", "total_connections", "Connections accepted."),
    _Series(_COUNTER, "messages_received", "in_msgs", "Messages received from clients."),
    _Series(_COUNTER, "messages_sent", "out_msgs", "Messages sent to clients."),
    _Series(_COUNTER, "received_bytes", "in_bytes", "Bytes of messages received."),
    _Series(_COUNTER, "sent_bytes", "out_bytes", "Bytes of messages sent."),
    _Series(
        _COUNTER,
        "slow_consumers",
        "slow_consumers",
        "Connections closed because they did not read what was sent to them.",
    ),
)
_TOPIC = (
    _Series(_GAUGE, "topic_depth_messages", "depth", "Messages that no channel has yet."),
    _Series(_COUNTER, "topic_messages", "message_count", "Messages published."),
    _Series(_COUNTER, "topic_bytes", "message_bytes", "Bytes published."),
    _Series(_GAUGE, "topic_paused", "paused", "1 when the topic is paused."),
)
_CHANNEL = (
    _Series(_GAUGE, "channel_depth_messages", "depth", "Messages waiting for a consumer."),
    _Series(_GAUGE, "channel_in_flight_messages", "in_flight", "Messages sent, not finished."),
    _Series(_GAUGE, "channel_deferred_messages", "deferred", "Messages that are not due yet."),
    _Series(_COUNTER, "channel_messages", "message_count", "Messages that reached the channel."),
    _Series(_COUNTER, "channel_requeues", "requeue_count", "Messages given back by consumers."),
    _Series(_COUNTER, "channel_timeouts", "timeout_count", "Deliveries that expired."),
    _Series(_GAUGE, "channel_consumers", "consumers", "Connections subscribed now."),
    _Series(_GAUGE, "channel_paused", "paused", "1 when the channel is paused."),
)
_ENGINE = (
    _Series(_COUNTER, "log_written_bytes", "log_bytes_written", "Bytes written to logs."),
    _Series(_COUNTER, "log_write_errors", "write_errors", "Writes and syncs that failed."),
    _Series(
        _COUNTER,
        "log_quarantined_ranges",
        "quarantined_ranges",
        "Records set aside because they could not be read.",
    ),
    _Series(
        _GAUGE,
        "quarantined_logs",
        "quarantined_logs",
        "Logs that could not be opened and that nobody may use.",
    ),
    _Series(
        _GAUGE,
        "storage_problems",
        "problems",
        "What is wrong with the data folder until somebody mends it; /healthz gives the reasons.",
    ),
    _Series(_COUNTER, "log_torn_bytes", "torn_bytes_cut", "Bytes cut from the ends of logs."),
    _Series(_COUNTER, "delivery_events", "delivery_events", "Delivery events written."),
    _Series(
        _COUNTER,
        "delivery_events_lost",
        "delivery_events_lost",
        "Delivery events that their log could not take.",
    ),
)


_BULK = (
    _Series(_COUNTER, "bulk_ranges", "ranges", "Ranges answered by the bulk door."),
    _Series(_COUNTER, "bulk_records", "records", "Records in those ranges."),
    _Series(_COUNTER, "bulk_sent_bytes", "sent_bytes", "Bytes of those ranges, uncompressed."),
    _Series(_COUNTER, "bulk_refused", "refused", "Ranges refused because too many were under way."),
    _Series(_COUNTER, "bulk_cut_off", "cut_off", "Readers cut off because they took nothing."),
    _Series(_COUNTER, "bulk_damaged_bytes", "damaged_bytes", "Bytes of ranges that did not read."),
    _Series(_GAUGE, "bulk_ranges_under_way", "under_way", "Ranges under way now."),
    _Series(_GAUGE, "bulk_ranges_waiting", "waiting", "Ranges waiting for a place now."),
    _Series(_COUNTER, "bulk_readers_expired", "expired", "Named readers forgotten."),
    _Series(_GAUGE, "bulk_staged_bytes", "staged_bytes", "Bytes waiting for their commit."),
    _Series(_GAUGE, "bulk_staged_attempts", "staged_attempts", "Attempts of tasks those are of."),
    _Series(_COUNTER, "bulk_commits", "commits", "Commits finished."),
    _Series(_COUNTER, "bulk_committed_records", "committed_records", "Records they published."),
    _Series(_COUNTER, "bulk_commits_failed", "commits_failed", "Commits refused or put off."),
    _Series(_GAUGE, "bulk_commits_under_way", "commits_under_way", "Commits begun, not finished."),
)
_LAG = (
    _Series(_GAUGE, "bulk_reader_lag_records", "records", "Records that a reader has not read."),
)


def _families(
    series: Sequence[_Series],
    labels: Sequence[str],
    rows: Iterable[tuple[Sequence[str], object]],
) -> Iterator[Metric]:
    known = list(rows)
    for kind, name, attribute, text in series:
        family = kind(f"twinwire_{name}", text, labels=labels)
        for values, row in known:
            family.add_metric(values, float(getattr(row, attribute)))
        yield family


def _histogram(name: str, text: str, found: Histogram) -> HistogramMetricFamily:
    counts = list(accumulate(found.counts)) or [0]
    bounds = [*map(str, found.bounds), "+Inf"]
    family = HistogramMetricFamily(f"twinwire_{name}", text)
    family.add_metric([], list(zip(bounds, counts, strict=True)), found.total)
    return family


class StatsCollector(Collector):
    """One snapshot as metric families."""

    def __init__(self, stats: Stats) -> None:
        self.stats = stats

    def collect(self) -> Iterator[Metric]:
        """Families in the order of the page."""
        stats = self.stats
        yield InfoMetricFamily("twinwire", "The running broker.", {"version": __version__})
        yield from _families(_DOOR, ("door",), [((door.name,), door) for door in stats.doors])
        yield GaugeMetricFamily(
            "twinwire_subscriptions", "NATS subscriptions held now.", stats.subscriptions
        )
        yield from _families(_TOPIC, ("topic",), [((t.name,), t) for t in stats.topics])
        yield from _families(
            _CHANNEL,
            ("topic", "channel"),
            [((t.name, c.name), c) for t in stats.topics for c in t.channels],
        )
        yield from _families(_ENGINE, (), [((), stats.engine)])
        if stats.bulk is not None:
            yield from _families(_BULK, (), [((), stats.bulk)])
            lags = [((lag.reader, lag.topic), lag) for lag in stats.bulk.lags]
            yield from _families(_LAG, ("reader", "topic"), lags)
        yield _histogram(
            "log_sync_seconds", "How long the disk took to sync.", stats.engine.sync_seconds
        )


def render(
    stats: Stats | None,
    accept: str = "",
    nats: NatsFacts | None = None,
    stan: StanFacts | None = None,
) -> tuple[bytes, str]:
    """The page and its content type, in the format that the Accept header asks for."""
    registry = CollectorRegistry()
    if stats is not None:
        registry.register(StatsCollector(stats))
    if nats is not None:
        registry.register(NatsCollector(nats))
    if stan is not None:
        registry.register(StanCollector(stan))
    ProcessCollector(registry=registry)
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type


def metrics_page(
    source: StatsSource | None,
    pages: MonitorPages | None = None,
    streaming: StreamingPages | None = None,
) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    """The handler of GET /metrics: our own series, those of a NATS server and its streaming."""

    async def serve(request: web.Request) -> web.StreamResponse:
        stats = source.snapshot() if source is not None else None
        nats = nats_facts(pages) if pages is not None else None
        accept = request.headers.get("Accept", "")
        stan = stan_facts(streaming) if streaming is not None and streaming.found else None
        page, content_type = await asyncio.to_thread(render, stats, accept, nats, stan)
        return web.Response(body=page, headers={"Content-Type": content_type})

    return serve
