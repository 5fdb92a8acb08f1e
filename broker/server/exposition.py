"""/metrics: the counters of the server and of its services in the formats that Prometheus reads.

Nothing is counted here. A scrape copies plain values on the loop's thread; converting them to text
does not access the running broker, so another thread does it.
"""

from __future__ import annotations

import asyncio
from functools import partial
from itertools import accumulate
from operator import attrgetter
from typing import TYPE_CHECKING, Final

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
from broker.base.metrics import Block, Position, Series, families

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from prometheus_client.metrics_core import Metric

    from broker.base.service import Handler, ListenerStats
    from broker.server.stats import EngineStats, Histogram

_COUNTER, _GAUGE = CounterMetricFamily, GaugeMetricFamily

_LISTENER: Final = (
    Series(_GAUGE, "connections", "connections", "Connections open now."),
    Series(_COUNTER, "connections_accepted", "total_connections", "Connections accepted."),
    Series(_COUNTER, "messages_received", "in_msgs", "Messages received from clients."),
    Series(_COUNTER, "messages_sent", "out_msgs", "Messages sent to clients."),
    Series(_COUNTER, "received_bytes", "in_bytes", "Bytes of messages received."),
    Series(_COUNTER, "sent_bytes", "out_bytes", "Bytes of messages sent."),
    Series(
        _COUNTER,
        "slow_consumers",
        "slow_consumers",
        "Connections closed because they did not read what was sent to them.",
    ),
)
_ENGINE: Final = (
    Series(_COUNTER, "log_written_bytes", "log_bytes_written", "Bytes written to logs."),
    Series(_COUNTER, "log_write_errors", "write_errors", "Writes and syncs that failed."),
    Series(
        _COUNTER,
        "log_quarantined_ranges",
        "quarantined_ranges",
        "Ranges of unreadable records that are skipped.",
    ),
    Series(
        _GAUGE,
        "quarantined_logs",
        "quarantined_logs",
        "Logs that could not be opened and are not in use.",
    ),
    Series(
        _GAUGE,
        "storage_problems",
        "problems",
        "Problems of the data folder that an operator must resolve; /healthz gives the reasons.",
    ),
    Series(_COUNTER, "log_torn_bytes", "torn_bytes_cut", "Bytes cut from the ends of logs."),
    Series(_COUNTER, "delivery_events", "delivery_events", "Delivery events written."),
    Series(
        _COUNTER,
        "delivery_events_lost",
        "delivery_events_lost",
        "Delivery events that their log could not store.",
    ),
)


def server_blocks(
    listeners: Sequence[ListenerStats], engine: EngineStats, busy_poll_seconds: float = 0.0
) -> list[Block]:
    """The series of the server itself. `busy_poll_seconds`: the time in which its loop has looked
    for events."""
    return [
        Block(Position.LISTENERS, partial(_loop_families, busy_poll_seconds)),
        Block(Position.LISTENERS, partial(_listener_families, listeners)),
        Block(Position.STORAGE, partial(families, _ENGINE, (), [((), engine)])),
        Block(Position.DISK, partial(_sync_families, engine)),
    ]


def _listener_families(listeners: Sequence[ListenerStats]) -> Iterator[Metric]:
    yield InfoMetricFamily("twinwire", "The running broker.", {"version": __version__})
    yield from families(_LISTENER, ("door",), [((each.name,), each) for each in listeners])


def _loop_families(busy_poll_seconds: float) -> Iterator[Metric]:
    text = "Processor time in which the loop looked for the next event instead of sleeping."
    yield CounterMetricFamily("twinwire_busy_poll_seconds", text, busy_poll_seconds)


def _sync_families(engine: EngineStats) -> Iterator[Metric]:
    text = "Duration of syncs of the disk."
    yield _histogram("log_sync_seconds", text, engine.sync_seconds)


def _histogram(name: str, text: str, found: Histogram) -> HistogramMetricFamily:
    counts = list(accumulate(found.counts)) or [0]
    bounds = [*map(str, found.bounds), "+Inf"]
    family = HistogramMetricFamily(f"twinwire_{name}", text)
    family.add_metric([], list(zip(bounds, counts, strict=True)), found.total)
    return family


class _Blocks(Collector):
    """The families of all blocks, in the order of the page."""

    def __init__(self, blocks: Iterable[Block]) -> None:
        self.blocks = sorted(blocks, key=attrgetter("position"))

    def collect(self) -> Iterator[Metric]:
        for block in self.blocks:
            yield from block.families()


def render(blocks: Iterable[Block], accept: str = "") -> tuple[bytes, str]:
    """The page and its content type, in the format that the Accept header asks for."""
    registry = CollectorRegistry()
    registry.register(_Blocks(blocks))
    ProcessCollector(registry=registry)
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type


def metrics_page(source: Callable[[], list[Block]]) -> Handler:
    """The handler of GET /metrics; `source` copies the numbers, on the loop's thread."""

    # Each thread that renders takes its turns between those of the loop.
    one_at_a_time = asyncio.Lock()

    async def serve(request: web.Request) -> web.StreamResponse:
        accept = request.headers.get("Accept", "")
        async with one_at_a_time:
            if request.transport is None:
                return web.Response()  # nobody reads it: the client went while it waited
            page, content_type = await asyncio.to_thread(render, source(), accept)
        return web.Response(body=page, headers={"Content-Type": content_type})

    return serve
