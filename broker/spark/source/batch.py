"""Batch queries: `spark.read.format("twinwire")`.

Only `partitions`, on the driver, and `read`, in the tasks, connect to brokers.
"""

from __future__ import annotations

import datetime
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import (
    DataSourceReader,
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)

from broker.spark import schema
from broker.spark.brokers import Brokers, log_brokers_down
from broker.spark.errors import UNKNOWN_TOPIC
from broker.spark.limits import TIME_SLACK_S
from broker.spark.offsets import Offsets, TopicPartition, report_loss
from broker.spark.source import microbatch, planning, positions
from broker.spark.source.fetch import RangePartition, Rows
from broker.spark.source.options import ReadSettings
from broker.spark.topics import Survey

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

_NO_END: Final = 2**63 - 1
_EQUAL: Final = (EqualTo, EqualNullSafe)


@dataclass(slots=True)
class Pruning:
    """The part of a read that filters select. Seqs are in [first, end)."""

    first: int = 0
    end: int = _NO_END
    topics: frozenset[str] | None = None
    partitions: frozenset[int] | None = None
    since_ms: int | None = None
    until_ms: int | None = None

    def take(self, filters: Iterable[Filter]) -> Iterator[Filter]:
        """Apply filters; yield those that Spark must evaluate as well."""
        for one in filters:
            if not self._apply_one(one):
                yield one

    def _apply_one(self, one: Filter) -> bool:
        path: tuple[str, ...] = getattr(one, "attribute", ())
        value = getattr(one, "value", None)
        if len(path) != 1 or value is None:
            return False
        column = path[0]
        if column == "offset":
            return self._apply_offset(one, value)
        if column in {"topic", "partition"}:
            return self._apply_name(column, one, value)
        if column == "timestamp":
            self._apply_time(one, value)
        return False

    def _apply_offset(self, one: Filter, value: Any) -> bool:
        if isinstance(one, In):
            numbers = [n for n in value if n is not None]
            if numbers:
                self._narrow(min(numbers), max(numbers) + 1)
            return False  # seqs between these numbers are read as well
        ranges: dict[type[Filter], tuple[int, int]] = {
            GreaterThan: (value + 1, _NO_END),
            GreaterThanOrEqual: (value, _NO_END),
            LessThan: (0, value),
            LessThanOrEqual: (0, value + 1),
            EqualTo: (value, value + 1),
            EqualNullSafe: (value, value + 1),
        }
        if type(one) not in ranges:
            return False
        self._narrow(*ranges[type(one)])
        return True

    def _narrow(self, first: int, end: int) -> None:
        self.first, self.end = max(self.first, first), min(self.end, end)

    def _apply_name(self, column: str, one: Filter, value: Any) -> bool:
        if isinstance(one, In):
            names = frozenset(name for name in value if name is not None)
        elif isinstance(one, _EQUAL):
            names = frozenset({value})
        else:
            return False
        if column == "topic":
            self.topics = names if self.topics is None else self.topics & names
        else:
            self.partitions = names if self.partitions is None else self.partitions & names
        return True

    def _apply_time(self, one: Filter, value: Any) -> None:
        if not isinstance(value, datetime.datetime):
            return
        moment = int(value.astimezone(datetime.UTC).timestamp() * 1000)
        slack = TIME_SLACK_S * 1000
        if isinstance(one, GreaterThan | GreaterThanOrEqual | EqualTo | EqualNullSafe):
            self.since_ms = max(self.since_ms or 0, moment - slack, 0)
        if isinstance(one, LessThan | LessThanOrEqual | EqualTo | EqualNullSafe):
            until = moment + slack + 1
            self.until_ms = until if self.until_ms is None else min(self.until_ms, until)

    def apply(
        self,
        start: Offsets,
        end: Offsets,
        find: Callable[[Mapping[TopicPartition, int]], Mapping[TopicPartition, int | None]],
    ) -> tuple[Offsets, Offsets]:
        """`start` and `end` narrowed by the filters; equal for a topic without selected records."""
        wanted_partitions = [p for p in end if self._has(p)]
        since = find(dict.fromkeys(wanted_partitions, self.since_ms)) if self.since_ms else {}
        until = find(dict.fromkeys(wanted_partitions, self.until_ms)) if self.until_ms else {}
        starts: Offsets = {}
        ends: Offsets = {}
        for tp in wanted_partitions:
            first, last = start[tp], end[tp]
            begin = max(first.seq, self.first, since.get(tp, first.seq) or last.seq)
            stop = min(last.seq, self.end, until.get(tp, last.seq) or last.seq)
            starts[tp] = first._replace(seq=begin)
            ends[tp] = last._replace(seq=max(stop, begin))
        return starts, ends

    def _has(self, tp: TopicPartition) -> bool:
        in_topics = self.topics is None or tp.topic in self.topics
        return in_topics and (self.partitions is None or tp.partition in self.partitions)


class BatchReader(DataSourceReader):
    """One scan. Spark creates a new one for each action, which reads the records of that time."""

    def __init__(self, settings: ReadSettings, columns: StructType) -> None:
        schema.check_readable(columns)
        self.settings = settings
        self.rows = Rows(settings.access, settings.reading, columns)
        self.pruning: Pruning | None = None

    def partitions(self) -> Sequence[InputPartition]:
        settings = self.settings
        fail = settings.reading.fail_on_loss
        with Brokers(settings.access) as brokers:
            survey = brokers.survey(settings.wanted, patient=not fail)
            log_brokers_down(survey)
            self._check_named(survey, fail)
            start, end = self._bounds(brokers, survey)
            ranges = microbatch.ranges_between(start, end, survey, fail)
            name = settings.progress.name or f"spark-batch-{secrets.token_hex(6)}"
            if ranges and settings.progress.hold:
                brokers.put_progress(survey, start, name, settings.progress)
        tasks = planning.plan(ranges, settings.splitting)
        # Spark treats an empty list as one partition whose value is None.
        return [RangePartition(task) for task in tasks] or [RangePartition(())]

    def _bounds(self, brokers: Brokers, survey: Survey) -> tuple[Offsets, Offsets]:
        settings, find = self.settings, partial(brokers.find_times, survey)
        assert settings.end is not None
        start = positions.resolve(settings.start, survey, settings.wanted, find)
        end = positions.resolve(settings.end, survey, settings.wanted, find)
        readable_start = microbatch.base(start, survey, settings.reading.fail_on_loss)
        if not settings.reading.gap_rows:
            start = readable_start  # otherwise the task reports them as a gap row
        if self.pruning is not None:
            return self.pruning.apply(start, end, find)
        return start, end

    def _check_named(self, survey: Survey, fail: bool) -> None:
        present = {tp.topic for tp in survey.entries}
        for topic in self.settings.wanted.names:
            if topic not in present and not survey.down:
                report_loss(UNKNOWN_TOPIC.format(topic=topic), fail)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, RangePartition)
        return self.rows.read(partition.ranges)


class FilteringReader(BatchReader):
    """A reader that evaluates filters. It is a separate class because Spark refuses such a reader
    while `spark.sql.python.filterPushdown.enabled` is off."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        self.pruning = Pruning()
        yield from self.pruning.take(filters)
