"""Sends spans and metrics by OTLP over HTTP, on a separate thread; only this module imports the
SDK."""

from __future__ import annotations

import contextlib
import logging
import os
import platform
import threading
import time
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricExportResult,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags, TraceState

from broker import __version__
from broker.base.units import SECOND
from broker.telemetry import limits
from broker.telemetry.spans import DELIVER, FAILED, PUBLISH, Span

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from prometheus_client.metrics_core import Metric as Family

    from broker.telemetry.config import TelemetryConfig

log = logging.getLogger("broker.telemetry")
_SCOPE: Final = InstrumentationScope("twinwire", __version__)
_KINDS: Final = {PUBLISH: SpanKind.SERVER}  # other operations are INTERNAL
_TYPES: Final = {PUBLISH: "send", DELIVER: "receive"}  # other operations are "settle"
_CUMULATIVE: Final = AggregationTemporality.CUMULATIVE


def resource_of(config: TelemetryConfig, instance: str) -> Resource:
    """The attributes of this broker; the configuration overrides the defaults."""
    defaults: dict[str, str | int] = {
        "service.name": config.service_name,
        "service.version": __version__,
        "service.instance.id": instance,
        "host.name": platform.node(),
        "process.pid": os.getpid(),
    }
    configured = (text.partition("=") for text in config.resource)
    return Resource({**defaults, **{name: value for name, _, value in configured}})


def readable(span: Span, resource: Resource) -> ReadableSpan:
    """The span in the form that the SDK exports."""
    state = TraceState.from_header([span.state]) if span.state else None
    flags = TraceFlags(span.flags)

    more: dict[str, str | int] = {}
    if span.client:
        more = {
            "messaging.client.id": str(span.client),
            "network.peer.address": span.host,
            "network.peer.port": span.port,
        }
    if span.group:
        more["messaging.consumer.group.name"] = span.group
        more["twinwire.delivery.attempt"] = span.attempts

    def context(number: int, *, remote: bool) -> SpanContext:
        return SpanContext(span.trace_id, number, remote, flags, state)

    return ReadableSpan(
        f"{span.operation} {span.subject}",
        context(span.span_id, remote=False),
        context(span.parent_id, remote=span.operation == PUBLISH),
        resource,
        {
            "messaging.system": "nats",
            "messaging.operation.name": span.operation,
            "messaging.operation.type": _TYPES.get(span.operation, "settle"),
            "messaging.destination.name": span.subject,
            "messaging.message.body.size": span.body_bytes,
            "messaging.message.envelope.size": span.envelope_bytes,
            **more,
        },
        kind=_KINDS.get(span.operation, SpanKind.INTERNAL),
        status=Status(StatusCode.ERROR) if span.operation in FAILED else Status(),
        start_time=span.start_ns,
        end_time=span.end_ns,
        instrumentation_scope=_SCOPE,
    )


def metrics_of(families: Iterable[Family], start_ns: int, now_ns: int) -> Iterator[Metric]:
    """The families of /metrics as metrics of OTLP, under the same names."""
    for family in families:
        data: Any
        if family.type == "histogram":
            data = Histogram(list(_histograms(family, start_ns, now_ns)), _CUMULATIVE)
        else:
            points = [
                NumberDataPoint(dict(sample.labels), start_ns, now_ns, sample.value)
                for sample in family.samples
                if not sample.name.endswith("_created")
            ]
            is_counter = family.type == "counter"
            data = Sum(points, _CUMULATIVE, is_monotonic=True) if is_counter else Gauge(points)
        yield Metric(family.name, family.documentation, family.unit or "", data)


def _histograms(family: Family, start_ns: int, now_ns: int) -> Iterator[HistogramDataPoint]:
    rows: dict[tuple[tuple[str, str], ...], dict[str, Any]] = {}
    for sample in family.samples:
        labels = tuple(sorted((k, v) for k, v in sample.labels.items() if k != "le"))
        row = rows.setdefault(labels, {"bounds": [], "sum": 0.0})
        if sample.name.endswith("_bucket"):
            row["bounds"].append((float(sample.labels["le"]), sample.value))
        elif sample.name.endswith("_sum"):
            row["sum"] = sample.value
    for labels, row in rows.items():
        bounds = sorted(row["bounds"])
        totals = [0, *(int(total) for _, total in bounds)]
        counts = [after - before for before, after in pairwise(totals)]
        yield HistogramDataPoint(
            dict(labels), start_ns, now_ns, totals[-1], row["sum"], counts,
            [bound for bound, _ in bounds if bound != float("inf")], 0.0, 0.0,
        )  # fmt: skip


class Exporter:
    """The thread that sends, and its counters."""

    def __init__(self, config: TelemetryConfig, instance: str, queue: deque[Span]) -> None:
        headers = {name: value for name, _, value in (h.partition("=") for h in config.headers)}
        base, timeout = config.endpoint.rstrip("/"), config.timeout_ns / SECOND
        self.sent = 0  # spans accepted by the receiver, since start
        self.failed = 0  # spans in requests that failed
        self.metrics_failed = 0  # exports of metrics that failed
        self._spans = OTLPSpanExporter(f"{base}/v1/traces", headers=headers, timeout=timeout)
        self._metrics = OTLPMetricExporter(f"{base}/v1/metrics", headers=headers, timeout=timeout)
        self._queue = queue
        self._resource = resource_of(config, instance)
        self._start_ns = time.time_ns()
        self._families: Callable[[], Sequence[Family]] | None = None
        self._wake = threading.Event()
        self._ending = False
        self._works = True
        # The SDK logs each failure with a traceback; one line for each change of state is enough.
        for name in ("opentelemetry.exporter", "opentelemetry.sdk"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
        self._thread = threading.Thread(target=self._run, name="telemetry", daemon=True)
        self._thread.start()

    def metrics(self, families: Callable[[], Sequence[Family]]) -> None:
        """Send metrics soon; `families` is called on the exporter's thread. Metrics that are not
        sent yet are replaced."""
        self._families = families
        self._wake.set()

    def stop(self) -> None:
        """Send everything that is queued, for a limited time, and end the thread."""
        self._ending = True
        self._wake.set()
        self._thread.join(limits.STOP_S)

    def _run(self) -> None:
        while not self._ending:
            self._wake.wait(limits.SPANS_PERIOD_S)
            self._wake.clear()
            self._send()
        self._send()
        with contextlib.suppress(Exception):
            self._spans.shutdown()  # type: ignore[no-untyped-call]
            self._metrics.shutdown()

    def _send(self) -> None:
        while self._queue:
            count = min(len(self._queue), limits.BATCH_SPANS)
            batch = [self._queue.popleft() for _ in range(count)]
            sent = self._try(partial(self._send_spans, batch))
            self.sent += len(batch) if sent else 0
            self.failed += 0 if sent else len(batch)
            if not sent and self._ending:
                break
        families, self._families = self._families, None
        if families is not None and not self._try(lambda: self._send_metrics(families)):
            self.metrics_failed += 1

    def _try(self, send: Callable[[], bool]) -> bool:
        try:
            works, reason = send(), "the receiver refused it or did not answer"
        except Exception as error:  # an error of the receiver must not end the thread
            works, reason = False, str(error)
        if works != self._works:
            self._works = works
            if works:
                log.info("telemetry is received again")
            else:
                log.warning("telemetry cannot be sent: %s", reason)
        return works

    def _send_spans(self, batch: Sequence[Span]) -> bool:
        spans = [readable(span, self._resource) for span in batch]
        return self._spans.export(spans) is SpanExportResult.SUCCESS

    def _send_metrics(self, families: Callable[[], Sequence[Family]]) -> bool:
        found = list(metrics_of(families(), self._start_ns, time.time_ns()))
        data = MetricsData([ResourceMetrics(self._resource, [ScopeMetrics(_SCOPE, found, "")], "")])
        return self._metrics.export(data) is MetricExportResult.SUCCESS
