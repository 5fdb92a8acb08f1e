"""What the bulk API counts, and its series on /metrics. Names as in docs/reference/bulk-api.md."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from broker.base.metrics import Block, Position, Series, families
from broker.base.values import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client.metrics_core import Metric

_COUNTER, _GAUGE = CounterMetricFamily, GaugeMetricFamily

_SERIES: Final = (
    Series(_COUNTER, "bulk_ranges", "ranges", "Ranges served by the bulk API."),
    Series(_COUNTER, "bulk_records", "records", "Records in those ranges."),
    Series(_COUNTER, "bulk_sent_bytes", "sent_bytes", "Bytes of those ranges, uncompressed."),
    Series(_COUNTER, "bulk_refused", "refused", "Ranges rejected because too many were under way."),
    Series(
        _COUNTER, "bulk_cut_off", "cut_off", "Requests cut off because the client read nothing."
    ),
    Series(_COUNTER, "bulk_damaged_bytes", "damaged_bytes", "Damaged bytes found in ranges."),
    Series(_GAUGE, "bulk_ranges_under_way", "under_way", "Ranges under way now."),
    Series(_GAUGE, "bulk_ranges_waiting", "waiting", "Ranges waiting for a slot now."),
    Series(_COUNTER, "bulk_readers_expired", "expired", "Registered readers that expired."),
    Series(_GAUGE, "bulk_staged_bytes", "staged_bytes", "Bytes waiting for their commit."),
    Series(
        _GAUGE, "bulk_staged_attempts", "staged_attempts", "Attempts of tasks that they belong to."
    ),
    Series(_COUNTER, "bulk_commits", "commits", "Commits finished."),
    Series(_COUNTER, "bulk_committed_records", "committed_records", "Records they published."),
    Series(_COUNTER, "bulk_commits_failed", "commits_failed", "Commits rejected or postponed."),
    Series(_GAUGE, "bulk_commits_under_way", "commits_under_way", "Commits begun, not finished."),
)
_LAG: Final = (
    Series(_GAUGE, "bulk_reader_lag_records", "records", "Records that a reader has not read."),
)


@dataclass(slots=True)
class LagStats:
    """The lag of a registered reader in one topic."""

    reader: str
    topic: str
    records: int  # not read yet


@dataclass(slots=True)
class BulkStats:
    """Counters of the bulk API."""

    ranges: int = 0  # served, since start
    records: int = 0  # in them, since start
    sent_bytes: int = 0  # of frames before they were compressed, since start
    refused: int = 0  # ranges that got no slot in time, since start
    cut_off: int = 0  # requests whose client read nothing for too long, since start
    damaged_bytes: int = 0  # found in ranges, since start
    under_way: int = 0  # ranges that are being served, now
    waiting: int = 0  # ranges that wait for a slot, now
    expired: int = 0  # registered readers, since start
    staged_bytes: int = 0  # of blocks that wait for their commit, now
    staged_attempts: int = 0  # the files with those blocks, now
    commits: int = 0  # finished, since start
    committed_records: int = 0  # published by finished commits
    commits_failed: int = 0  # tries that were rejected or failed, since start
    commits_under_way: int = 0  # begun and not finished, now
    lags: list[LagStats] = field(default_factory=list)

    def block(self) -> Block:
        """Its series."""
        return Block(Position.PIPELINES, self._families)

    def _families(self) -> Iterator[Metric]:
        yield from families(_SERIES, (), [((), self)])
        rows = [((lag.reader, lag.topic), lag) for lag in self.lags]
        yield from families(_LAG, ("reader", "topic"), rows)
