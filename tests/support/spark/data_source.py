"""Spark's calls to a data source, without Spark: batches, restarts, retries.

Everything passed from the driver to tasks is pickled.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

from broker.spark.schema import readable
from broker.spark.sink.options import write_settings
from broker.spark.sink.sink import BatchWriter, StreamWriter
from broker.spark.source.batch import BatchReader
from broker.spark.source.options import read_settings
from broker.spark.source.stream import StreamReader

T = TypeVar("T")
COLUMNS = readable(headers=True, metadata=False)
Row = dict[str, Any]


def travelled(thing: T) -> T:
    """A copy, as another process gets it."""
    copy: T = pickle.loads(pickle.dumps(thing))
    return copy


def read_batch(**options: object) -> list[Row]:
    """A batch query, its partitions one after another."""
    settings = read_settings({name: str(value) for name, value in options.items()}, stream=False)
    reader = BatchReader(settings, COLUMNS)
    return rows_of(reader, reader.partitions())


def rows_of(reader: Any, partitions: Iterable[Any]) -> list[Row]:
    found: list[Row] = []
    for partition in partitions:
        for batch in travelled(reader).read(travelled(partition)):
            found += batch.to_pylist()
    return found


class Query:
    """A stream and its checkpoint."""

    def __init__(self, **options: object) -> None:
        self.options = options
        self.offset: Any = None
        self.rows: list[Row] = []
        self.pending: Any = None  # a batch that was planned and not committed
        self.reader = self.start()

    def start(self, **options: object) -> StreamReader:
        """Start, or resume after a crash."""
        given = {"startingOffsets": "earliest", **self.options, **options}
        settings = read_settings({n: str(v) for n, v in given.items()}, stream=True)
        self.reader = StreamReader(settings, COLUMNS)
        return self.reader

    def batch(self) -> list[Row]:
        """The rows of the next batch; none, if there is no news."""
        reader = self.reader
        if self.offset is None:
            self.offset = reader.initialOffset()
        if self.pending is None:
            self.pending = reader.latestOffset(self.offset, reader.getDefaultReadLimit())
        if self.pending == self.offset:
            self.pending = None
            return []
        rows = rows_of(reader, reader.partitions(self.offset, self.pending))
        self.offset, self.pending = self.pending, None
        self.rows += rows
        reader.commit(self.offset)
        return rows


def batch_writer(columns: StructType, **options: object) -> BatchWriter:
    settings = write_settings({n: str(v) for n, v in options.items()}, stream=False)
    return BatchWriter(settings, columns, False)


def stream_writer(columns: StructType, **options: object) -> StreamWriter:
    settings = write_settings({n: str(v) for n, v in options.items()}, stream=True)
    return StreamWriter(settings, columns, False)


def write(
    writer: BatchWriter | StreamWriter,
    rows: Iterable[Row],
    part: int = 0,
    query: tuple[str, int] | None = None,
    at_once: int = 100,
) -> WriterCommitMessage:
    """One attempt of one task; a stream's says which query and batch it is of."""
    context = TaskContext()
    context._partitionId = part
    if query is not None:
        names = ("sql.streaming.queryId", "streaming.sql.batchId")
        context._localProperties = dict(zip(names, map(str, query), strict=True))
    TaskContext._taskContext = context
    try:
        return travelled(travelled(writer).write(_batches(rows, at_once)))
    finally:
        TaskContext._taskContext = None


def _batches(rows: Iterable[Row], at_once: int) -> Iterator[pa.RecordBatch]:
    listed = list(rows)
    for at in range(0, len(listed), at_once):
        yield pa.RecordBatch.from_pylist(listed[at : at + at_once])
