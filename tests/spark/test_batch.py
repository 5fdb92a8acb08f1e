"""Batch queries on a live broker."""

from __future__ import annotations

import datetime
import json
import os
from typing import TYPE_CHECKING

import pytest
from support import Server
from support.live.spark import fill, load, numbered, values

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_the_schema_is_kafkas(spark: SparkSession, lake: Server, topic: str) -> None:
    frame = load(spark, lake, topic)
    assert frame.dtypes == [
        ("key", "binary"),
        ("value", "binary"),
        ("topic", "string"),
        ("partition", "int"),
        ("offset", "bigint"),
        ("timestamp", "timestamp"),
        ("timestampType", "int"),
        ("subject", "string"),
    ]
    more = load(spark, lake, topic, includeHeaders="true", includeMetadata="true")
    assert dict(more.dtypes)["headers"] == "array<struct<key:string,value:binary>>"
    assert [name for name, _ in more.dtypes[-3:]] == ["broker", "messageId", "notBefore"]


def test_every_column(spark: SparkSession, lake: Server, topic: str) -> None:
    before = datetime.datetime.now(datetime.UTC)
    block = b"NATS/1.0\r\nKey: k1\r\nNats-Msg-Id: m1\r\nKey: k2\r\n\r\n"
    fill(lake, topic, [b"body"], headers=block)
    options = {"includeHeaders": "true", "includeMetadata": "true", "keyHeader": "Key"}
    (row,) = load(spark, lake, topic, **options).collect()
    assert (bytes(row.key), bytes(row.value)) == (b"k1", b"body")
    assert (row.topic, row.partition, row.offset, row.subject) == (topic, 0, 1, topic)
    assert before - datetime.timedelta(seconds=5) < row.timestamp.astimezone(datetime.UTC)
    assert row.timestampType == 1
    pairs = [(pair.key, bytes(pair.value)) for pair in row.headers]
    assert pairs == [("Key", b"k1"), ("Nats-Msg-Id", b"m1"), ("Key", b"k2")]
    assert row.messageId == "m1"
    assert row.notBefore is None
    assert row.broker


def test_bodies_of_any_kind(spark: SparkSession, lake: Server, topic: str) -> None:
    bodies = [b"", b"\x00\xff\xfe", "é".encode("latin-1"), os.urandom(1 << 20), b"\r\n\r\n"]
    fill(lake, topic, bodies)
    frame = load(spark, lake, topic, includeHeaders="true")
    rows = frame.orderBy("offset").collect()
    assert [bytes(row.value) for row in rows] == bodies
    assert [list(row.headers or []) for row in rows] == [[]] * len(bodies)
    assert frame.where("value is null").count() == 0


def test_many_headers(spark: SparkSession, lake: Server, topic: str) -> None:
    lines = b"".join(b"Name-%d: value %d\r\n" % (n % 50, n) for n in range(200))
    fill(lake, topic, [b"x"], headers=b"NATS/1.0\r\n" + lines + b"Odd: \xff\xfe\r\n\r\n")
    (row,) = load(spark, lake, topic, includeHeaders="true").collect()
    assert len(row.headers) == 201
    assert bytes(row.headers[199].value) == b"value 199"
    assert bytes(row.headers[200].value) == b"\xff\xfe"


def test_the_users_schema_is_all_that_is_read(
    spark: SparkSession, lake: Server, topic: str
) -> None:
    fill(lake, topic, numbered(10))
    frame = load(spark, lake, topic, schema="timestamp timestamp, offset long")
    assert frame.columns == ["timestamp", "offset"]
    assert [row.offset for row in frame.orderBy("offset").collect()] == list(range(1, 11))
    headers = load(spark, lake, topic, schema="headers array<struct<key:string,value:binary>>")
    assert headers.count() == 10


def test_options_that_cannot_be(spark: SparkSession, lake: Server, topic: str) -> None:
    with pytest.raises(Exception, match="did you mean 'startingOffsets'"):
        load(spark, lake, topic, startingOfset="latest")
    with pytest.raises(Exception, match="unknown column 'payload'"):
        load(spark, lake, topic, schema="payload binary").collect()


def test_several_topics(spark: SparkSession, lake: Server, topic: str) -> None:
    for name in ("a", "b", "c"):
        fill(lake, f"{topic}-{name}", [name.encode()] * 3)
    assert values(load(spark, lake, f"{topic}-a,{topic}-c")) == [b"a"] * 3 + [b"c"] * 3
    pattern = {"subscribePattern": f"{topic}-[bc]"}
    assert values(load(spark, lake, None, **pattern)) == [b"b"] * 3 + [b"c"] * 3
    assigned = {"assign": json.dumps({f"{topic}-a": [0, 7]})}
    assert values(load(spark, lake, None, **assigned)) == [b"a"] * 3


def test_partitions_by_number(spark: SparkSession, lake: Server, topic: str) -> None:
    fill(lake, topic, numbered(100))
    frame = load(spark, lake, topic, maxRecordsPerPartition=10)
    assert frame.rdd.getNumPartitions() == 10
    assert values(frame) == sorted(numbered(100))
    assert load(spark, lake, topic, minPartitions=3).rdd.getNumPartitions() == 3
    assert len(load(spark, lake, topic, minPartitions=3).take(1)) == 1


def test_filters_are_handed_down(spark: SparkSession, lake: Server, topic: str) -> None:
    fill(lake, topic, numbered(20))
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        frame = load(spark, lake, topic).where("offset > 5 and offset <= 8")
        assert values(frame) == [b"5", b"6", b"7"]
        plan = frame._jdf.queryExecution().executedPlan().toString()
        assert "offset#" in plan
        assert "Filter (" not in plan or "> 5" not in plan.split("BatchScan")[0]
        assert load(spark, lake, topic).where("topic = 'x'").count() == 0
        assert load(spark, lake, topic).where("timestamp > '2020-01-01'").count() == 20
        assert load(spark, lake, topic).where("timestamp < '2020-01-01'").count() == 0
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_registered_by_hand(spark: SparkSession, lake: Server, topic: str) -> None:
    from pyspark_twinwire import DefaultSource

    fill(lake, topic, [b"x"])
    spark.dataSource.register(DefaultSource)
    assert values(load(spark, lake, topic)) == [b"x"]
