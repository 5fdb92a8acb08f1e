"""Telemetry as a service of the broker. The exporter is imported when the service starts."""

from __future__ import annotations

import asyncio
from operator import attrgetter
from typing import TYPE_CHECKING

from broker.base.metrics import Block, Position
from broker.base.service import Service
from broker.base.units import SECOND
from broker.protocols.nats.service import NatsService
from broker.telemetry.config import TelemetryConfig
from broker.telemetry.deliveries import DeliverySpans
from broker.telemetry.spans import SpanTracer

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from prometheus_client.metrics_core import Metric

    from broker.protocols.host import Host
    from broker.telemetry.export import Exporter


class MissingExtraError(Exception):
    """The packages of the extra `otel` are not installed."""


class TelemetryService(Service):
    """Exports the metrics of the server and the spans of its NATS messages."""

    name = "telemetry"

    def __init__(self, host: Host) -> None:
        self.host = host
        self.config = host.section(TelemetryConfig)
        self.tracer: SpanTracer | None = None
        self.exporter: Exporter | None = None
        self._deliveries: DeliverySpans | None = None
        self._timer: asyncio.TimerHandle | None = None

    async def start(self) -> None:
        """Start the exporter. MissingExtraError."""
        try:
            from broker.telemetry.export import Exporter
        except ImportError as error:
            reason = f"[telemetry] needs pip install 'twinwire[otel]': {error}"
            raise MissingExtraError(reason) from None
        loop = asyncio.get_running_loop()
        config = self.config
        self.tracer = SpanTracer(config.queue_spans, config.sample_ratio, loop.call_soon)
        nats = self.host.service(NatsService)
        server = None if nats is None else nats.server
        instance = self.host.name or ("" if server is None else server.server_id)
        self.exporter = Exporter(config, instance, self.tracer.queue)
        if config.traces and server is not None:
            server.frontend.tracer = self.tracer
        if config.traces:
            self._deliveries = DeliverySpans(self.host.engine.shared, self.tracer.settled)
            self._deliveries.begin()
        if config.metrics:
            self._timer = loop.call_later(config.interval_ns / SECOND, self._export)

    def _export(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self.config.interval_ns / SECOND, self._export)
        self._collect()

    def _collect(self) -> None:
        """Collect the numbers on the loop's thread; the exporter's thread converts them."""
        blocks = sorted(self.host.metrics(), key=attrgetter("position"))
        assert self.exporter is not None
        self.exporter.metrics(lambda: [one for block in blocks for one in block.families()])

    async def stop(self) -> None:
        """Send everything that is queued, for a limited time."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._deliveries is not None:
            self._deliveries.end()
            self._deliveries = None
        if self.tracer is not None:
            self.tracer.finish()
        exporter, self.exporter = self.exporter, None
        if exporter is not None:
            await asyncio.to_thread(exporter.stop)

    def metrics(self) -> Iterable[Block]:
        """The counters of telemetry."""
        tracer, exporter = self.tracer, self.exporter
        if tracer is None or exporter is None:
            return
        numbers = (tracer.collected, tracer.dropped, exporter.sent, exporter.failed)
        yield Block(Position.DISK, lambda: _families(numbers))


_COUNTERS = (
    ("spans", "Spans of messages, including dropped ones."),
    ("spans_dropped", "Spans for which the queue of the exporter had no room."),
    ("spans_sent", "Spans that the receiver of telemetry accepted."),
    ("spans_failed", "Spans that could not be sent."),
)


def _families(numbers: Sequence[int]) -> Sequence[Metric]:
    from prometheus_client.core import CounterMetricFamily

    return [
        CounterMetricFamily(f"twinwire_telemetry_{name}", text, value=value)
        for (name, text), value in zip(_COUNTERS, numbers, strict=True)
    ]
