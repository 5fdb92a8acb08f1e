"""A task of `rollup`: reads ranges of logs, or files of an archive, and counts.

    records   by topic, broker, incarnation, window and step of size
    events    by topic, channel, broker, window, event, attempt and step of latency

The result of a task is small, whatever it has read. There is no Python object per record or event:
PyArrow groups the batches, and only the groups are added up here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from broker.client.bulk.arrow import batches_of
from broker.client.bulk.connection import Connection
from broker.client.bulk.errors import DAMAGED, BulkError, is_passing
from broker.client.bulk.options import Options
from broker.client.bulk.reading import Piece, checked, frames
from broker.spark.jobs.limits import (
    ATTEMPTS_SHOWN,
    EVENT_BATCH_ROWS,
    GAPS_REPORTED,
    TASK_BATCH_ROWS,
)
from broker.spark.offsets import OffsetRange
from broker.spark.rollup.histogram import steps_of

COLUMNS: Final = ("offset", "timestamp", "value")
_WHOLE: Final = pa.int64()


class File(NamedTuple):
    """One file of an archive."""

    path: str
    topic: str
    partition: int
    incarnation: str


class Hole(NamedTuple):
    """Seqs [first, next) that could not be read."""

    topic: str
    partition: int
    first: int
    next: int
    reason: str


@dataclass(frozen=True, slots=True)
class Since:
    """The time from which topics are counted, in us: one for all, or one for each."""

    everywhere: int | None = None
    partitions: Mapping[str, int] = field(default_factory=dict)

    def of(self, topic: str) -> int:
        """The time of a topic; 0: its beginning."""
        return self.partitions.get(topic, 0) if self.everywhere is None else self.everywhere


@dataclass(frozen=True, slots=True)
class Work:
    """The input of a task; it is pickled. Either ranges of a server, or files."""

    window_us: int
    since: Since
    until_us: int | None
    events_topic: str = ""
    server: str = ""
    broker: str = ""
    options: Options = field(default_factory=Options)
    ranges: tuple[OffsetRange, ...] = ()
    files: tuple[File, ...] = ()


# topic, partition, incarnation, start of the window (us), step of size
RecordKey = tuple[str, int, str, int, int]
# topic, channel, partition, start of the window (us), event, attempt, step of latency
EventKey = tuple[str, str, int, int, str, int, int]


@dataclass(slots=True)
class Counted:
    """The result of a task, or of all of them. A failure is a value, not an exception."""

    # records, bytes, smallest, largest, first seq, last seq
    records: dict[RecordKey, tuple[int, int, int, int, int, int]] = field(default_factory=dict)
    events: dict[EventKey, tuple[int, int]] = field(default_factory=dict)  # count, largest latency
    holes: list[Hole] = field(default_factory=list)
    foreign: int = 0  # records of the events topic that are not delivery events
    failure: str = ""
    retry: bool = False

    def add(self, other: Counted) -> None:
        for key, added in other.records.items():
            self._add_records(key, added)
        for name, (count, largest) in other.events.items():
            self._add_events(name, count, largest)
        self.holes += other.holes
        self.foreign += other.foreign

    def _add_records(self, key: RecordKey, added: tuple[int, int, int, int, int, int]) -> None:
        had = self.records.get(key)
        if had is not None:
            added = (
                had[0] + added[0], had[1] + added[1], min(had[2], added[2]), max(had[3], added[3]),
                min(had[4], added[4]), max(had[5], added[5]),
            )  # fmt: skip
        self.records[key] = added

    def _add_events(self, key: EventKey, count: int, largest: int) -> None:
        had = self.events.get(key, (0, 0))
        self.events[key] = (had[0] + count, max(had[1], largest))

    # --- batches

    def count_records(self, batch: pa.RecordBatch, source: OffsetRange | File, work: Work) -> None:
        """Rows of offset, timestamp, value; those without a value are gaps of an archive."""
        times = batch.column("timestamp").cast(_WHOLE)
        sizes = pc.binary_length(batch.column("value")).cast(_WHOLE)
        table = pa.table(
            {
                "window": _window_of(times, work.window_us),
                "step": steps_of(sizes),
                "size": sizes,
                "offset": batch.column("offset"),
                "time": times,
            }
        ).filter(_within(times, work, source.topic))
        grouped = table.group_by(["window", "step"], use_threads=False).aggregate(
            [("size", "count"), ("size", "sum"), ("size", "min"), ("size", "max"),
             ("offset", "min"), ("offset", "max")]
        )  # fmt: skip
        for row in _rows(grouped):
            if row["step"] is not None:
                key = (
                    source.topic,
                    source.partition,
                    source.incarnation,
                    row["window"],
                    row["step"],
                )
                names = ("size_count", "size_sum", "size_min", "size_max", "offset_min",
                         "offset_max")  # fmt: skip
                self._add_records(key, tuple(row[name] for name in names))

    def count_events(self, batch: pa.RecordBatch, partition: int, work: Work) -> None:
        """Count records of the events topic, a few at a time, because each may have thousands of
        events."""
        # Imported here, because it is compiled: executors need the wheel only for events.
        from broker.client.bulk.arrow_events import events_of

        for at in range(0, batch.num_rows, EVENT_BATCH_ROWS):
            found = events_of(batch.column("value").slice(at, EVENT_BATCH_ROWS))
            self.foreign += found.foreign + found.bad
            self._count_events(found.batch, partition, work)

    def _count_events(self, events: pa.RecordBatch, partition: int, work: Work) -> None:
        times = events.column("time").cast(_WHOLE)
        event = events.column("event")
        final = pc.is_in(event, pa.array(["fin", "dead"]))
        attempts = pc.min_element_wise(events.column("attempt"), ATTEMPTS_SHOWN)
        none = pa.scalar(None, pa.int64())
        latency = pc.if_else(pc.equal(event, "fin"), events.column("latency_ns"), none)
        table = pa.table(
            {
                "topic": pc.fill_null(events.column("topic"), ""),
                "channel": pc.fill_null(events.column("channel"), ""),
                "window": _window_of(times, work.window_us),
                "event": event,
                "attempt": pc.if_else(final, attempts, pa.scalar(0, pa.int32())),
                "step": pc.fill_null(steps_of(latency), NO_LATENCY),
                "latency": pc.fill_null(latency, 0),
                # The seq of a row `lost` is the number of lost events.
                "count": pc.if_else(pc.equal(event, "lost"), events.column("seq"), 1),
            }
        ).filter(_within(times, work, work.events_topic))
        names = ["topic", "channel", "window", "event", "attempt", "step"]
        grouped = table.group_by(names, use_threads=False).aggregate(
            [("count", "sum"), ("latency", "max")]
        )
        for row in _rows(grouped):
            topic, channel, window, event_, attempt, step = (row[name] for name in names)
            key = (topic, channel, partition, window, event_, attempt, step)
            self._add_events(key, row["count_sum"], row["latency_max"])


NO_LATENCY: Final = -2


def _rows(table: pa.Table) -> Iterator[dict[str, Any]]:
    yield from table.to_pylist()


def _window_of(times_us: pa.Array, window_us: int) -> pa.Array:
    """The beginning of the window of each time. Times before 1970 belong to the first window of
    1970."""
    return pc.multiply(pc.divide(pc.max_element_wise(times_us, 0), window_us), window_us)


def _within(times_us: pa.Array, work: Work, topic: str) -> pa.Array:
    inside = pc.greater_equal(times_us, work.since.of(topic))
    if work.until_us is not None:
        inside = pc.and_(inside, pc.less(times_us, work.until_us))
    return inside


def count(work: Work) -> Counted:
    """Run a task: read everything and count."""
    counted = Counted()
    try:
        if work.files:
            for file in work.files:
                _count_file(work, file, counted)
        else:
            with Connection(work.server, work.options) as connection:
                for one in work.ranges:
                    _count_range(work, one, connection, counted)
    except (BulkError, OSError, pa.ArrowException) as error:
        failed = Counted(failure=str(error) or repr(error))
        failed.retry = is_passing(error)
        return failed
    return counted


def _count_range(work: Work, one: OffsetRange, connection: Connection, counted: Counted) -> None:
    def trimmed(_broker: str, _topic: str, gap: Any) -> None:
        _report_hole(counted, Hole(one.topic, one.partition, gap.first, gap.next, "trimmed"))

    topic, partition, incarnation, start, end = one
    piece = Piece(connection, topic, partition, work.broker, "", incarnation, start, end)
    constants = {"topic": one.topic, "partition": one.partition, "broker": work.broker}
    for frame in frames(piece, skip_trimmed=True, told_gap=trimmed):
        opened = checked(piece, frame)
        for gap in opened.gaps:
            reason = "damaged" if gap.reason == DAMAGED else "missing"
            hole = Hole(one.topic, one.partition, gap.first, min(gap.next, one.end), reason)
            _report_hole(counted, hole)
        for batch in batches_of(opened, COLUMNS, constants, TASK_BATCH_ROWS):
            _count(work, one, batch, counted)


def _count_file(work: Work, one: File, counted: Counted) -> None:
    with pq.ParquetFile(Path(one.path)) as file:
        for batch in file.iter_batches(TASK_BATCH_ROWS, columns=list(COLUMNS)):
            _count(work, one, batch, counted)


def _count(work: Work, source: OffsetRange | File, batch: pa.RecordBatch, counted: Counted) -> None:
    if source.topic == work.events_topic:
        counted.count_events(batch, source.partition, work)
    else:
        counted.count_records(batch, source, work)


def _report_hole(counted: Counted, hole: Hole) -> None:
    if len(counted.holes) < GAPS_REPORTED:
        counted.holes.append(hole)
