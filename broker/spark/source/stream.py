"""Streaming queries: `spark.readStream.format("twinwire")`.

    initialOffset -> latestOffset -> partitions -> (tasks) -> latestOffset ... commit

An offset has the next seq to read of each topic; a restarted query needs nothing else. The brokers
have a copy, for monitoring and to retain unread records; the query never reads it back. Spark calls
`commit` for a batch when it plans the next one, or not at all.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from broker.spark import offsets, schema
from broker.spark.brokers import Brokers, log_brokers_down
from broker.spark.limits import READER_RENEWALS
from broker.spark.offsets import Offsets
from broker.spark.source import microbatch, planning, positions
from broker.spark.source.fetch import RangePartition, Rows
from broker.spark.source.microbatch import admit_bytes, admit_records
from broker.spark.source.options import ReadSettings
from broker.spark.topics import Survey

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

log = logging.getLogger("twinwire.spark")


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The driver has one for the whole query; the tasks of each batch receive a copy."""

    def __init__(self, settings: ReadSettings, columns: StructType) -> None:
        schema.check_readable(columns)
        self.settings = settings
        self.rows = Rows(settings.access, settings.reading, columns)
        self.name = settings.progress.name or f"spark-{secrets.token_hex(6)}"
        self._brokers: Brokers | None = None
        self._survey: Survey | None = None
        self._latest: Offsets | None = None  # of the last survey
        self._frozen: Offsets | None = None  # the limit of a query that ends, once it is known
        self._reported: tuple[float, Offsets] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """The state that tasks need, without connections."""
        return {**self.__dict__, "_brokers": None, "_survey": None, "_reported": None}

    @property
    def _fail(self) -> bool:
        return self.settings.reading.fail_on_loss

    def _request_topics(self) -> Survey:
        if self._brokers is None:
            self._brokers = Brokers(self.settings.access)
        self._survey = self._brokers.survey(self.settings.wanted, patient=not self._fail)
        log_brokers_down(self._survey)
        self._latest = self._survey.latest()
        return self._survey

    def initialOffset(self) -> offsets.Tree:
        survey = self._request_topics()
        assert self._brokers is not None
        find = partial(self._brokers.find_times, survey)
        start = positions.resolve(self.settings.start, survey, self.settings.wanted, find)
        self._report(survey, start)
        return offsets.dump(start)

    def getDefaultReadLimit(self) -> ReadLimit:
        splitting = self.settings.splitting
        if splitting.records_per_trigger is not None:
            return ReadMaxRows(splitting.records_per_trigger)
        if splitting.bytes_per_trigger is not None:
            return ReadMaxBytes(splitting.bytes_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self._frozen = self._request_topics().latest()

    def latestOffset(self, start: offsets.Tree, limit: ReadLimit) -> offsets.Tree:
        survey = self._request_topics()
        before = offsets.load(start)
        begin = microbatch.known(microbatch.base(before, survey, self._fail), before, self._frozen)
        end = microbatch.target(begin, survey, self._frozen)
        if isinstance(limit, ReadMaxRows):
            end = admit_records(begin, end, limit.max_rows)
        elif isinstance(limit, ReadMaxBytes):
            end = admit_bytes(begin, end, limit.max_bytes, survey)
        self._renew(survey, before)
        return offsets.dump(end)

    def reportLatestOffset(self) -> offsets.Tree | None:
        return None if self._latest is None else offsets.dump(self._latest)

    def partitions(self, start: offsets.Tree, end: offsets.Tree) -> Sequence[InputPartition]:
        before, after = offsets.load(start), offsets.load(end)
        survey = self._survey
        if survey is None or not survey.entries.keys() >= after.keys():
            survey = self._request_topics()  # a batch of an earlier run: no survey yet
        ranges = microbatch.ranges_between(before, after, survey, self._fail)
        if ranges:
            self._report(survey, before)
        return [RangePartition(task) for task in planning.plan(ranges, self.settings.splitting)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, RangePartition)
        return self.rows.read(partition.ranges)

    def commit(self, end: offsets.Tree) -> None:
        if self._survey is not None:
            self._report(self._survey, offsets.load(end))

    def stop(self) -> None:
        if self._brokers is not None:
            self._brokers.close()

    def _report(self, survey: Survey, position: Offsets) -> None:
        """Report the position of this query to the brokers, if it has changed."""
        if self._brokers is None or (self._reported is not None and self._reported[1] == position):
            return
        self._brokers.put_progress(survey, position, self.name, self.settings.progress)
        self._reported = (time.monotonic(), position)

    def _renew(self, survey: Survey, position: Offsets) -> None:
        """Renew the hold of a query without new records, so that later ones are retained for it."""
        period_s = self.settings.progress.ttl_s / READER_RENEWALS
        if self._reported is not None and time.monotonic() - self._reported[0] > period_s:
            self._reported = None
            self._report(survey, position)
