"""Limits of telemetry: the queue of spans, batches and times."""

from __future__ import annotations

from typing import Final

from broker.base.units import MINUTE, SECOND

QUEUE_SPANS: Final = 20_000  # default: spans that wait for the exporter; further ones are dropped
QUEUE_SPANS_MAX: Final = 10_000_000
BATCH_SPANS: Final = 512  # spans of one request
SPANS_PERIOD_S: Final = 1.0  # spans wait at most this long for a request
INTERVAL: Final = 15 * SECOND  # default: between two exports of metrics
TIMEOUT: Final = 10 * SECOND  # default: timeout of one request, including its repetitions
TIMEOUT_MAX: Final = MINUTE
STOP_S: Final = 3.0  # a stop waits this long until the queue is sent
# Delivery spans of one run of messages; further ones are counted as dropped.
DELIVERIES_MAX: Final = 1000
TRACESTATE_BYTES: Final = 512  # the length that the W3C recommends to propagate at least
