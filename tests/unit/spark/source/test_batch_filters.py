"""Filters handed down: what narrows a read, and what Spark looks at again."""

from __future__ import annotations

import datetime
from collections.abc import Mapping

import pytest

pytest.importorskip("pyspark")

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
)

from broker.spark.limits import TIME_SLACK_S
from broker.spark.offsets import Offset, TopicPartition
from broker.spark.source.batch import Pruning

T, U = TopicPartition("t", 0), TopicPartition("u", 1)
START = {T: Offset(1, "x"), U: Offset(1, "y")}
END = {T: Offset(100, "x"), U: Offset(50, "y")}
OFFSET, TOPIC, PARTITION, TIME = ("offset",), ("topic",), ("partition",), ("timestamp",)


def find(times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
    """Seq n was stored n hours after 1970."""
    return {p: ms // 3_600_000 if ms < 100 * 3_600_000 else None for p, ms in times.items()}


def narrowed(*filters: Filter) -> tuple[dict[TopicPartition, tuple[int, int]], list[Filter]]:
    pruning = Pruning()
    left = list(pruning.take(filters))
    start, end = pruning.apply(START, END, find)
    return {tp: (start[tp].seq, end[tp].seq) for tp in end}, left


def test_offsets() -> None:
    ranges, left = narrowed(GreaterThan(OFFSET, 9), LessThanOrEqual(OFFSET, 60))
    assert ranges == {T: (10, 61), U: (10, 50)}
    assert left == []
    assert narrowed(GreaterThanOrEqual(OFFSET, 9), LessThan(OFFSET, 60))[0][T] == (9, 60)
    assert narrowed(EqualTo(OFFSET, 70))[0] == {T: (70, 71), U: (70, 70)}
    only = In(OFFSET, (3, None, 8))
    assert narrowed(only) == ({T: (3, 9), U: (3, 9)}, [only])


def test_topics_and_partitions() -> None:
    assert narrowed(EqualTo(TOPIC, "t")) == ({T: (1, 100)}, [])
    assert narrowed(In(TOPIC, ("u", "v"))) == ({U: (1, 50)}, [])
    assert narrowed(In(TOPIC, ("u", "t")), EqualTo(TOPIC, "t"))[0] == {T: (1, 100)}
    assert narrowed(EqualTo(PARTITION, 1)) == ({U: (1, 50)}, [])
    assert narrowed(EqualTo(TOPIC, "v")) == ({}, [])


def test_times_only_narrow() -> None:
    slack = datetime.timedelta(seconds=TIME_SLACK_S)
    moment = datetime.datetime.fromtimestamp(0, datetime.UTC) + datetime.timedelta(hours=20)
    since, until = GreaterThanOrEqual(TIME, moment + slack), LessThan(TIME, moment - slack)
    ranges, left = narrowed(since)
    assert (ranges, left) == ({T: (20, 100), U: (20, 50)}, [since])
    ranges, left = narrowed(until)
    assert (ranges, left) == ({T: (1, 20), U: (1, 20)}, [until])
    beyond = datetime.datetime.fromtimestamp(0, datetime.UTC) + datetime.timedelta(hours=200)
    assert narrowed(GreaterThan(TIME, beyond))[0] == {T: (100, 100), U: (50, 50)}
    assert narrowed(LessThan(TIME, beyond))[0] == {T: (1, 100), U: (1, 50)}


def test_what_is_not_understood_stays_with_spark() -> None:
    others = [
        IsNotNull(OFFSET),
        Not(EqualTo(TOPIC, "t")),
        EqualTo(("headers", "key"), "x"),
        EqualTo(("subject",), "x"),
        GreaterThan(TOPIC, "t"),
    ]
    assert narrowed(*others) == ({T: (1, 100), U: (1, 50)}, others)
