"""Streaming queries on a live broker."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from support import Server
from support.live.spark import batches_of, fill, numbered, run, stream, values, written

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


def test_without_a_limit_all_is_one_batch(
    spark: SparkSession, lake: Server, topic: str, tmp_path: Path
) -> None:
    fill(lake, topic, numbered(10))
    limited = stream(spark, lake, topic, maxOffsetsPerTrigger=3)
    query = run(limited, tmp_path, once=True)  # this trigger overrules the option
    assert batches_of(query) == [10]
