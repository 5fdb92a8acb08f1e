"""A task of a read: fetches its ranges from their broker and converts them to Arrow batches.

A missing or damaged range ends the task. With `failOnDataLoss = false` it is logged
instead, and with `gapRows` it becomes one row without a value:

    topic, partition, offset = first missing seq,
    headers = Twinwire-Gap-Next (the seq after the gap), Twinwire-Gap-Reason
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from broker.client.bulk.arrow import batches_of, open_frame
from broker.client.bulk.connection import Connection
from broker.client.bulk.errors import (
    DAMAGED,
    BeyondEnd,
    OtherIncarnation,
    Refused,
    Trimmed,
    UnknownTopic,
    Unreachable,
)
from broker.client.bulk.frame import head_of
from broker.spark.errors import (
    DOWN,
    RECREATED,
    SHORTER,
    STUCK,
    TRIMMED,
    UNREADABLE,
    VANISHED,
    BrokerDownError,
)
from broker.spark.limits import BATCH_ROWS
from broker.spark.memory import keep_memory
from broker.spark.offsets import report_loss
from broker.spark.options import Access, Reading
from broker.spark.schema import arrow_schema
from broker.spark.topics import BrokerRange

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

GAP_NEXT = "Twinwire-Gap-Next"
GAP_REASON = "Twinwire-Gap-Reason"


class RangePartition(InputPartition):
    """The work of one task; all its ranges are on one broker."""

    def __init__(self, ranges: Sequence[BrokerRange]) -> None:
        super().__init__(None)
        self.ranges = tuple(ranges)


class Rows:
    """Converts ranges to rows of the query's columns. Created by the driver, sent to tasks."""

    def __init__(self, access: Access, reading: Reading, columns: StructType) -> None:
        self.access = access
        self.reading = reading
        self.columns = columns

    def read(self, ranges: Sequence[BrokerRange]) -> Iterator[pa.RecordBatch]:
        """The batches of all ranges. Spark may stop iterating before the end."""
        keep_memory()
        schema = arrow_schema(self.columns)
        connection: Connection | None = None
        try:
            for one in ranges:
                server = self.access.servers[one.server]
                if connection is None or connection.server != server:
                    if connection is not None:
                        connection.close()
                    connection = Connection(server, self.access.options)
                yield from _Range(connection, one, self.reading, schema).batches()
        finally:
            if connection is not None:
                connection.close()


class _Range:
    """One range of one topic."""

    def __init__(
        self, connection: Connection, piece: BrokerRange, reading: Reading, schema: pa.Schema
    ) -> None:
        self.connection = connection
        self.piece = piece
        self.reading = reading
        self.schema = schema
        self.constants = {
            "topic": piece.range.topic,
            "partition": piece.range.partition,
            "broker": piece.broker,
        }

    def batches(self) -> Iterator[pa.RecordBatch]:
        at = self.piece.range.start
        while at < self.piece.range.end:
            frame, next_seq = self._fetch(at, self.piece.range.end)
            if frame is None:
                yield from self._gap_row(at, next_seq, "missing")
            else:
                yield from self._decode(frame)
            at = next_seq

    def _fetch(self, at: int, end: int) -> tuple[memoryview | None, int]:
        """The next frame and the seq after it. Frame None: the records before that seq are lost."""
        piece, topic_partition = self.piece, self.piece.range.topic_partition._asdict()
        try:
            frame = self.connection.range(
                piece.range.topic, at, end, incarnation=piece.range.incarnation
            )
        except Trimmed as error:
            next_seq = min(max(error.first, at + 1), end)
            self._report_loss(TRIMMED.format(**topic_partition, start=at, end=next_seq - 1))
            return None, next_seq
        except OtherIncarnation:
            self._report_loss(RECREATED.format(**topic_partition, start=at))
            return None, piece.range.end
        except UnknownTopic:
            self._report_loss(VANISHED.format(**topic_partition, start=at))
            return None, piece.range.end
        except BeyondEnd as error:
            self._report_loss(SHORTER.format(**topic_partition, start=at, next=error.next))
            return None, piece.range.end
        except Unreachable as error:
            raise BrokerDownError(DOWN.format(servers=error)) from error
        next_seq = head_of(frame).next
        if next_seq <= at:
            raise Refused(STUCK.format(**topic_partition, start=at))
        return frame, next_seq

    def _decode(self, frame: memoryview) -> Iterator[pa.RecordBatch]:
        reading, topic = self.reading, self.piece.range.topic
        opened = open_frame(frame, topic, reading.key_header, reading.subject_filter)
        if opened.bad:  # damaged on the disk or in transit
            second, next_seq = self._fetch(opened.first, opened.next)
            if second is not None and next_seq == opened.next:  # else it has other records
                opened = open_frame(second, topic, reading.key_header, reading.subject_filter)
        for gap in opened.gaps:
            reason = "damaged" if gap.reason == DAMAGED else "missing"
            text = UNREADABLE.format(
                **self.piece.range.topic_partition._asdict(),
                start=gap.first,
                end=gap.next - 1,
                reason=reason,
            )
            self._report_loss(text)
            yield from self._gap_row(gap.first, gap.next, reason)
        for batch in batches_of(opened, self.schema.names, self.constants, BATCH_ROWS):
            yield self._with_spark_schema(batch)

    def _with_spark_schema(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The same columns, with the inner field names that Spark expects."""
        if batch.schema.equals(self.schema):
            return batch
        arrays = [
            column if column.type.equals(field.type) else column.cast(field.type)
            for column, field in zip(batch.columns, self.schema, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _report_loss(self, text: str) -> None:
        report_loss(text, self.reading.fail_on_loss)

    def _gap_row(self, first: int, next_seq: int, reason: str) -> Iterator[pa.RecordBatch]:
        if not self.reading.gap_rows:
            return
        headers = [(GAP_NEXT, str(next_seq).encode()), (GAP_REASON, reason.encode())]
        row: dict[str, Any] = {
            **self.constants,
            "offset": first,
            "headers": [{"key": key, "value": value} for key, value in headers],
        }
        arrays = [pa.array([row.get(field.name)], field.type) for field in self.schema]
        yield pa.RecordBatch.from_arrays(arrays, schema=self.schema)
