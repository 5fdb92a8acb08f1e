"""Columns that can be read and written, without a session."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

import pyarrow as pa
from pyspark.sql.types import StructType

from broker.spark import schema
from broker.spark.errors import OptionError, RowError
from broker.spark.sink.options import write_settings
from broker.spark.sink.sink import BatchWriter, StreamWriter
from broker.spark.sink.upload import Upload
from broker.spark.source.batch import BatchReader
from broker.spark.source.options import read_settings
from broker.spark.source.stream import StreamReader

READ = {"servers": "a:1", "subscribe": "t"}
WRITE = {"servers": "a:1"}
VALUE = StructType().add("value", "string")
BOTH = StructType().add("value", "string").add("key", "string")


@pytest.mark.parametrize(
    ("name", "kind", "text"),
    [
        ("offset", "integer", "type bigint, not int"),
        ("payload", "binary", "unknown column 'payload'"),
    ],
)
def test_columns_that_cannot_be_read(name: str, kind: str, text: str) -> None:
    columns = StructType().add(name, kind)
    with pytest.raises(OptionError, match=text):
        BatchReader(read_settings(READ, stream=False), columns)
    with pytest.raises(OptionError, match=text):
        StreamReader(read_settings(READ, stream=True), columns)


WRONG: list[tuple[StructType, dict[str, str], str]] = [
    (BOTH, {"topic": "t"}, "column 'key' needs option 'keyHeader'"),
    (StructType().add("key", "string"), {"topic": "t", "keyHeader": "K"}, "'value' is required"),
    (VALUE, {}, "a column 'topic' or the option"),
    (StructType().add("value", "integer"), {"topic": "t"}, "is of type binary or string, not int"),
    (
        StructType().add("x", "integer"),
        {"topic": "t"},
        "unknown column 'x'; the columns are value, topic",
    ),
    (VALUE, {"topic": "t", "delivery": "dedupe"}, "needs a column 'messageId'"),
    (VALUE, {"topic": "t", "epoch": "1"}, "'epoch' needs option 'writerId'"),
    (VALUE, {"topic": "t", "mode": "append"}, "unknown option 'mode'"),
    (VALUE, {"topic": "t", "delivery": "twice"}, "one of transactional, dedupe, append"),
    (VALUE, {"topic": "t", "routing": "any"}, "one of first, topic"),
    (VALUE, {"topic": "t", "writerId": "a/b"}, "a name of at most"),
    (VALUE, {"topic": "t", "subscribe": "t"}, "unknown option 'subscribe'"),
]


@pytest.mark.parametrize(("columns", "options", "text"), WRONG)
def test_what_cannot_be_written(columns: StructType, options: dict[str, str], text: str) -> None:
    with pytest.raises(OptionError, match=text):
        BatchWriter(write_settings({**WRITE, **options}, stream=False), columns, False)


def test_nothing_is_overwritten() -> None:
    settings = write_settings({**WRITE, "topic": "t"}, stream=True)
    for kind in (BatchWriter, StreamWriter):
        with pytest.raises(OptionError, match="cannot be overwritten"):
            kind(settings, VALUE, True)


def test_a_stream_counts_its_own_epochs() -> None:
    options = {**WRITE, "writerId": "w", "epoch": "4", "checkpointLocation": "x", "queryName": "q"}
    with pytest.raises(OptionError, match="a stream counts its own"):
        write_settings(options, stream=True)
    writer = BatchWriter(write_settings({**options, "topic": "t"}, stream=False), VALUE, False)
    assert writer.transaction == ("w", 4)


def test_batch_writes_are_all_different() -> None:
    settings = write_settings({**WRITE, "topic": "t"}, stream=False)
    first, second = (BatchWriter(settings, VALUE, False).transaction for _ in range(2))
    assert first.writer != second.writer
    named = write_settings({**WRITE, "topic": "t", "writerId": "w"}, stream=False)
    assert BatchWriter(named, VALUE, False).transaction.writer.startswith("w.spark-")


def test_ids_must_be_there() -> None:
    settings = write_settings({**WRITE, "topic": "t", "delivery": "dedupe"}, stream=False)
    rows = pa.RecordBatch.from_pydict({"value": [b"x"], "messageId": pa.array([None], pa.string())})
    with Upload(settings, None, 0, "a") as upload, pytest.raises(RowError, match="no messageId"):
        upload.add(rows)


def test_readers_and_writers_travel() -> None:
    """Spark pickles them for its tasks."""
    columns = schema.readable(headers=True, metadata=True)
    batch = BatchReader(read_settings(READ, stream=False), columns)
    stream = StreamReader(read_settings(READ, stream=True), columns)
    writer = BatchWriter(write_settings({**WRITE, "topic": "t"}, stream=False), VALUE, False)
    for one in (batch, stream, writer):
        copy: Any = pickle.loads(pickle.dumps(one))
        assert copy.settings == one.settings
    assert pickle.loads(pickle.dumps(stream)).name == stream.name


def test_arrow_has_what_spark_expects() -> None:
    columns = schema.readable(headers=True, metadata=True)
    arrow = schema.arrow_schema(columns)
    assert arrow.names == columns.fieldNames()
    assert arrow.field("timestamp").type == pa.timestamp("us", tz="UTC")
    assert all(field.nullable for field in arrow)
    assert arrow.field("headers").type.value_field.name == "element"
