"""Batch queries: `spark.read.format("twinwire")`.

Everything that needs a broker happens in `partitions`, on the driver, and in `read`, in the tasks.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from broker.spark import schema
from broker.spark.brokers import Brokers, tell_down
from broker.spark.errors import UNKNOWN_TOPIC
from broker.spark.loss import lost
from broker.spark.offsets import Offsets
from broker.spark.source import microbatch, planning, positions
from broker.spark.source.fetch import RangePartition, Rows
from broker.spark.source.filters import Pruning
from broker.spark.source.options import ReadSettings
from broker.spark.topics import Survey

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


class BatchReader(DataSourceReader):
    """One scan. Spark makes a new one for each action, so each sees what is there by then."""

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
            tell_down(survey)
            self._check_named(survey, fail)
            start, end = self._bounds(brokers, survey)
            slices = microbatch.slices(start, end, survey, fail)
            name = settings.progress.name or f"spark-batch-{secrets.token_hex(6)}"
            if slices and settings.progress.hold:
                brokers.put_progress(survey, start, name, settings.progress)
        tasks = planning.plan(slices, settings.splitting)
        # an empty list would be taken for one partition whose value is None
        return [RangePartition(task) for task in tasks] or [RangePartition(())]

    def _bounds(self, brokers: Brokers, survey: Survey) -> tuple[Offsets, Offsets]:
        settings, find = self.settings, partial(brokers.find_times, survey)
        assert settings.end is not None
        start = positions.resolve(settings.start, survey, settings.wanted, find)
        end = positions.resolve(settings.end, survey, settings.wanted, find)
        there = microbatch.base(start, survey, settings.reading.fail_on_loss)
        if not settings.reading.gap_rows:
            start = there  # else the task that finds nothing there has a row for it
        if self.pruning is not None:
            return self.pruning.apply(start, end, find)
        return start, end

    def _check_named(self, survey: Survey, fail: bool) -> None:
        present = {place.topic for place in survey.entries}
        for topic in self.settings.wanted.names:
            if topic not in present and not survey.down:
                lost(UNKNOWN_TOPIC.format(topic=topic), fail)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, RangePartition)
        return self.rows.read(partition.slices)


class FilteringReader(BatchReader):
    """With filters handed down. Spark refuses a reader that could do so while
    `spark.sql.python.filterPushdown.enabled` is off, so this is a class of its own."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        self.pruning = Pruning()
        yield from self.pruning.take(filters)
