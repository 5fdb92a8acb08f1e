"""What the broker counts, as plain values: filled by the server, read by monitoring and metrics.

Names that end in _count, and everything said to be "since start", only ever grow. Nothing here is
shared with the running broker: a snapshot is a copy that a reader may keep.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class DoorStats:
    """One listening socket and everyone who came through it."""

    name: str  # nats, nsq, nsq_http, monitor
    connections: int = 0  # open now
    total_connections: int = 0  # since start
    in_msgs: int = 0  # messages received from clients, since start
    out_msgs: int = 0  # messages sent to clients, since start
    in_bytes: int = 0  # bytes of those messages: headers and body, no protocol lines
    out_bytes: int = 0
    slow_consumers: int = 0  # connections closed because they did not read, since start


@dataclass(slots=True)
class ChannelStats:
    """One NSQ channel: a place in its topic's log."""

    name: str
    depth: int = 0  # messages waiting; neither in flight nor deferred
    in_flight: int = 0  # sent, not yet finished
    deferred: int = 0  # not due yet
    message_count: int = 0  # messages that reached the channel, since start
    requeue_count: int = 0  # REQ, since start
    timeout_count: int = 0  # deliveries that expired, since start
    consumers: int = 0  # connections subscribed now
    paused: bool = False


@dataclass(slots=True)
class TopicStats:
    """One topic: a log with its readers."""

    name: str
    depth: int = 0  # messages that no channel has taken over yet
    message_count: int = 0  # messages published, since start
    message_bytes: int = 0  # bytes of their bodies, since start
    channels: list[ChannelStats] = field(default_factory=list)
    paused: bool = False


@dataclass(slots=True)
class Histogram:
    """Observations by size; `counts` has one entry more than `bounds`, for what exceeds them."""

    bounds: tuple[float, ...] = ()  # upper bounds in seconds, ascending
    counts: list[int] = field(default_factory=list)  # observations of each bucket alone
    total: float = 0.0  # sum of all observations, seconds


@dataclass(slots=True)
class EngineStats:
    """The store below all doors."""

    sync_seconds: Histogram = field(default_factory=Histogram)  # one observation per fdatasync
    log_bytes_written: int = 0  # since start
    write_errors: int = 0  # failed writes and syncs, since start
    quarantined_logs: int = 0  # that could not be opened, now
    problems: int = 0  # lasting ones of the data folder, those logs among them, now
    quarantined_ranges: int = 0  # stretches of records passed over because they do not read
    torn_bytes_cut: int = 0  # bytes cut from the ends of logs by recovery, since start
    delivery_events: int = 0  # written to their log, since start
    delivery_events_lost: int = 0  # their log could not take them, since start


@dataclass(slots=True)
class LagStats:
    """How far a named reader of the bulk door is behind in one topic."""

    reader: str
    topic: str
    records: int  # there and not read


@dataclass(slots=True)
class BulkStats:
    """The door for pipelines."""

    ranges: int = 0  # answered, since start
    records: int = 0  # in them, since start
    sent_bytes: int = 0  # of frames before they were compressed, since start
    refused: int = 0  # ranges that found no place in time, since start
    cut_off: int = 0  # readers that took nothing for too long, since start
    damaged_bytes: int = 0  # found on the way, since start
    under_way: int = 0  # ranges, now
    waiting: int = 0  # ranges in line, now
    expired: int = 0  # named readers that were forgotten, since start
    staged_bytes: int = 0  # of blocks that wait for their commit, now
    staged_attempts: int = 0  # files they are in, now
    commits: int = 0  # brought to their end, since start
    committed_records: int = 0  # that those have published
    commits_failed: int = 0  # times that one was refused or did not get to its end, since start
    commits_under_way: int = 0  # begun and not at their end, now
    lags: list[LagStats] = field(default_factory=list)


@dataclass(slots=True)
class Stats:
    """Everything at one moment."""

    doors: list[DoorStats] = field(default_factory=list)
    topics: list[TopicStats] = field(default_factory=list)
    engine: EngineStats = field(default_factory=EngineStats)
    subscriptions: int = 0  # NATS subscriptions held now
    bulk: BulkStats | None = None  # None: the door is off
