"""The server's own counters, as plain values: those of the engine, below all services.

Counters "since start" only increase. Nothing here is shared with the running broker: a snapshot is
a copy.
"""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING

from broker.base.values import dataclass
from broker.engine.state import SYNC_BUCKETS

if TYPE_CHECKING:
    from broker.engine.cursor.events import EventLog
    from broker.engine.engine import Engine


@dataclass(slots=True)
class Histogram:
    """Observations by size; `counts` has one more entry than `bounds`, for larger ones."""

    bounds: tuple[float, ...] = ()  # upper bounds in seconds, ascending
    counts: list[int] = field(default_factory=list)  # observations of each bucket alone
    total: float = 0.0  # sum of all observations, seconds


@dataclass(slots=True)
class EngineStats:
    """The logs of a data folder."""

    sync_seconds: Histogram = field(default_factory=Histogram)  # one observation per fdatasync
    log_bytes_written: int = 0  # since start
    write_errors: int = 0  # failed writes and syncs, since start
    quarantined_logs: int = 0  # that could not be opened, now
    problems: int = 0  # of the data folder, including those logs, now
    quarantined_ranges: int = 0  # ranges of unreadable records that were skipped
    torn_bytes_cut: int = 0  # bytes cut from the ends of logs by recovery, since start
    delivery_events: int = 0  # written to their log, since start
    delivery_events_lost: int = 0  # that their log could not store, since start


def engine_stats(engine: Engine, events: EventLog | None) -> EngineStats:
    """The current values; `events`: the log of delivery events, if there is one."""
    shared = engine.shared
    return EngineStats(
        sync_seconds=Histogram(SYNC_BUCKETS, list(shared.sync_buckets), shared.sync_seconds),
        log_bytes_written=shared.bytes_written,
        write_errors=shared.write_errors + shared.sync_errors,
        quarantined_logs=len(engine.quarantined),
        problems=len(shared.health.problems()),
        quarantined_ranges=shared.quarantined_ranges,
        torn_bytes_cut=shared.torn_bytes,
        delivery_events=events.written if events is not None else 0,
        delivery_events_lost=events.lost if events is not None else 0,
    )
