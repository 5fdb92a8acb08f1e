"""Writing to topics of a live broker."""

from __future__ import annotations

import datetime
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support import Server
from support.live.spark import fill, load, numbered, save, values

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def seqs(spark: SparkSession, server: Server, topic: str) -> list[int]:
    rows = load(spark, server, topic, schema="offset long").collect()
    return sorted(row.offset for row in rows)


def test_all_columns(spark: SparkSession, lake: Server, topic: str) -> None:
    later = datetime.datetime(2100, 1, 2, 3, 4, 5, 678901, datetime.UTC)
    schema = (
        "topic string, value binary, key string, messageId string, notBefore timestamp,"
        " headers array<struct<key:string,value:binary>>, subject string"
    )
    rows = [
        (f"{topic}-a", b"\x00\xff", "k1", "m1", later, [("H", b"1"), ("H", b"2")], None),
        (f"{topic}-b", b"", None, None, None, None, None),
        (f"{topic}-a", bytes(1 << 20), None, None, None, [], f"{topic}-a"),
    ]
    frame = spark.createDataFrame(rows, schema).coalesce(1)
    save(frame, lake, keyHeader="Key")
    more = {"includeHeaders": "true", "includeMetadata": "true", "keyHeader": "Key"}
    first, second = load(spark, lake, f"{topic}-a", **more).orderBy("offset").collect()
    assert (bytes(first.value), bytes(first.key), first.messageId) == (b"\x00\xff", b"k1", "m1")
    assert first.notBefore.astimezone(datetime.UTC) == later
    pairs = [(pair.key, bytes(pair.value)) for pair in first.headers]
    assert [pair for pair in pairs if pair[0] == "H"] == [("H", b"1"), ("H", b"2")]
    assert len(second.value) == 1 << 20
    assert second.key is None
    assert second.subject == f"{topic}-a"
    assert values(load(spark, lake, f"{topic}-b")) == [b""]


def test_many_headers(spark: SparkSession, lake: Server, topic: str) -> None:
    pairs = [(f"Name-{n % 50}", b"value %d" % n) for n in range(200)]
    schema = "value string, headers array<struct<key:string,value:binary>>"
    save(spark.createDataFrame([("é", pairs)], schema), lake, topic)
    (row,) = load(spark, lake, topic, includeHeaders="true").collect()
    assert bytes(row.value) == "é".encode()
    assert [(pair.key, bytes(pair.value)) for pair in row.headers] == pairs


def test_many_rows_of_many_tasks(spark: SparkSession, lake: Server, topic: str) -> None:
    frame = spark.range(0, 50_000, 1, 8).selectExpr("cast(id as string) as value")
    save(frame, lake, topic)
    assert values(load(spark, lake, topic)) == sorted(numbered(50_000))
    save(frame.where("value is null"), lake, topic)  # no rows at all
    assert len(seqs(spark, lake, topic)) == 50_000


def test_what_cannot_be_written(spark: SparkSession, lake: Server, topic: str) -> None:
    frame = spark.createDataFrame([("x", "k")], "value string, key string")
    with pytest.raises(Exception, match="column 'key' needs option 'keyHeader'"):
        save(frame, lake, topic)
    with pytest.raises(Exception, match="cannot be overwritten"):
        frame.select("value").write.format("twinwire").mode("overwrite").options(
            servers=str(lake.bulk), topic=topic
        ).save()
    with pytest.raises(Exception, match=r"(?i)null"):
        save(spark.createDataFrame([(None,)], "value string"), lake, topic)
    assert load(spark, lake, topic, failOnDataLoss="false").count() == 0


def test_a_batch_write_that_is_done_again(spark: SparkSession, lake: Server, topic: str) -> None:
    frame = spark.range(100).selectExpr("cast(id as string) as value")
    for epoch in (4, 4, 3, 5):
        save(frame, lake, topic, writerId=f"w-{topic}", epoch=epoch)
    assert seqs(spark, lake, topic) == list(range(1, 201))
    save(frame, lake, topic)  # a write of its own each time
    save(frame, lake, topic, writerId=f"w-{topic}")
    assert len(seqs(spark, lake, topic)) == 400


def test_a_checkpoint_that_was_replaced_by_an_old_copy(
    spark: SparkSession, lake: Server, topic: str, tmp_path: Path
) -> None:
    """Its batches would count as published, with the new rows in them."""
    source, target = f"{topic}-from", f"{topic}-to"

    def copy(more: list[bytes], **options: str) -> None:
        fill(lake, source, more)
        rows = spark.readStream.format("twinwire").options(
            servers=str(lake.bulk), subscribe=source, startingOffsets="earliest"
        )
        to = {"servers": str(lake.bulk), "topic": target, **options}
        query = rows.load().select("value").writeStream.format("twinwire").options(**to)
        state = query.option("checkpointLocation", str(tmp_path / "state"))
        state.trigger(availableNow=True).start().awaitTermination()

    copy(numbered(10))
    shutil.copytree(tmp_path / "state", tmp_path / "old")
    for start in (10, 20):
        copy(numbered(10, start))
    assert len(seqs(spark, lake, target)) == 30
    shutil.rmtree(tmp_path / "state")
    shutil.copytree(tmp_path / "old", tmp_path / "state")
    with pytest.raises(Exception, match="the checkpoint is an old copy"):
        copy(numbered(10, 30))
    copy([], writerId="again")
    assert len(seqs(spark, lake, target)) == 60
