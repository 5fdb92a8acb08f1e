"""Streaming queries on a live broker."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from harness import Server
from harness.http import request
from live_spark import batches_of, fill, make_topic, numbered, run, stream, values, written

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_a_checkpoint_goes_on_where_it_was(
    spark: SparkSession, lake: Server, topic: str, tmp_path: Path
) -> None:
    fill(lake, topic, numbered(30))
    run(stream(spark, lake, topic), tmp_path)
    fill(lake, topic, numbered(30, 30))
    run(stream(spark, lake, topic, startingOffsets="latest"), tmp_path)
    run(stream(spark, lake, topic), tmp_path)  # nothing new
    frame = written(spark, tmp_path)
    assert values(frame) == sorted(numbered(60))
    assert sorted(row.offset for row in frame.collect()) == list(range(1, 61))


def test_a_trigger_takes_no_more_than_it_may(
    spark: SparkSession, lake: Server, topic: str, tmp_path: Path
) -> None:
    fill(lake, f"{topic}-a", numbered(90))
    fill(lake, f"{topic}-b", numbered(10))
    pattern = {"subscribePattern": f"{topic}-.", "maxOffsetsPerTrigger": 40}
    query = run(stream(spark, lake, None, **pattern), tmp_path)
    assert batches_of(query) == [40, 40, 20]
    assert values(written(spark, tmp_path)) == sorted(numbered(90) + numbered(10))
    (source,) = query.lastProgress.sources
    assert json.loads(source.endOffset)[f"{topic}-a"]["0"]["seq"] == 91


def test_by_bytes(spark: SparkSession, lake: Server, topic: str, tmp_path: Path) -> None:
    fill(lake, topic, [bytes(1000)] * 20)
    query = run(stream(spark, lake, topic, maxBytesPerTrigger="10k"), tmp_path)
    assert 2 <= len(batches_of(query)) <= 4
    assert sum(batches_of(query)) == 20


def test_without_a_limit_all_is_one_batch(
    spark: SparkSession, lake: Server, topic: str, tmp_path: Path
) -> None:
    fill(lake, topic, numbered(10))
    limited = stream(spark, lake, topic, maxOffsetsPerTrigger=3)
    query = run(limited, tmp_path, once=True)  # this trigger overrules the option
    assert batches_of(query) == [10]


def test_topics_that_appear_later(
    spark: SparkSession, lake: Server, topic: str, tmp_path: Path
) -> None:
    pattern = {"subscribePattern": f"{topic}-.", "startingOffsets": "latest"}
    fill(lake, f"{topic}-a", numbered(5))
    run(stream(spark, lake, None, **pattern), tmp_path)
    fill(lake, f"{topic}-a", numbered(5, 5))
    fill(lake, f"{topic}-b", numbered(5, 10))
    run(stream(spark, lake, None, **pattern), tmp_path)
    assert values(written(spark, tmp_path)) == sorted(numbered(10, 5))


def test_a_topic_by_name_may_come_later(
    spark: SparkSession, lake: Server, topic: str, tmp_path: Path
) -> None:
    run(stream(spark, lake, topic), tmp_path)
    fill(lake, topic, [b"x"])
    run(stream(spark, lake, topic), tmp_path)
    assert values(written(spark, tmp_path)) == [b"x"]


def test_a_topic_that_was_made_anew(
    spark: SparkSession, lake: Server, topic: str, tmp_path: Path
) -> None:
    fill(lake, topic, numbered(5))
    run(stream(spark, lake, topic), tmp_path)
    assert request(lake.nsq_http, "POST", "/topic/delete", topic=topic).status == 200
    fill(lake, topic, [b"new"] * 9)
    with pytest.raises(Exception, match="was deleted and made anew"):
        run(stream(spark, lake, topic), tmp_path)
    run(stream(spark, lake, topic, failOnDataLoss="false"), tmp_path)
    assert values(written(spark, tmp_path)) == sorted([*numbered(5), *[b"new"] * 9])


def test_a_topic_that_is_gone(
    spark: SparkSession, lake: Server, topic: str, tmp_path: Path
) -> None:
    fill(lake, f"{topic}-a", [b"a"])
    fill(lake, f"{topic}-b", [b"b"])
    pattern = {"subscribePattern": f"{topic}-."}
    run(stream(spark, lake, None, **pattern), tmp_path)
    assert request(lake.nsq_http, "POST", "/topic/delete", topic=f"{topic}-a").status == 200
    fill(lake, f"{topic}-b", [b"bb"])
    with pytest.raises(Exception, match="is gone; it was read up to 2"):
        run(stream(spark, lake, None, **pattern), tmp_path)
    run(stream(spark, lake, None, failOnDataLoss="false", **pattern), tmp_path)
    assert values(written(spark, tmp_path)) == [b"a", b"b", b"bb"]


def test_ends_are_refused(spark: SparkSession, lake: Server, topic: str, tmp_path: Path) -> None:
    make_topic(lake, topic)
    with pytest.raises(Exception, match="a stream has no end"):
        run(stream(spark, lake, topic, endingOffsets="latest"), tmp_path)
