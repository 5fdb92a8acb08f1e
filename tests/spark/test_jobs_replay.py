"""Replay and windows on Spark. That a replay publishes all once is in tests/faults."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support import Server
from support.archives import archiver, rows
from support.live.spark import SYNCED, fill, numbered

from broker.client.bulk import read_arrow
from broker.spark.archive.manifest import time_us
from broker.spark.archive.replay import ReplaySelection
from broker.spark.jobs.command import Job
from broker.spark.jobs.errors import JobError
from broker.spark.jobs.replay import Replayer, ReplayOptions, build
from broker.spark.jobs.windows import Windows
from broker.spark.jobs.windows import build as build_windows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def folder(spark: SparkSession, lake: Server, topic: str, tmp_path: Path) -> Path:
    """An archive of 100 records, the first 50 with a header."""
    fill(lake, topic, numbered(50), b"NATS/1.0\r\nA: b\r\n\r\n")
    fill(lake, topic, numbered(50, 50))
    archiver(spark, tmp_path / "lake", lake, topic, task_records=30).run()
    return tmp_path / "lake"


def replayer(
    spark: SparkSession,
    server: Server,
    folder: Path,
    id_: str,
    selection: ReplaySelection,
    **more: Any,
) -> Replayer:
    given = {"to": selection.to}
    replaying = ReplayOptions(str(folder), id_, selection, given, **more)
    return build(spark, Job({"servers": str(server.bulk)}, {}), replaying, lambda _line: None)


def published(server: Server, topic: str) -> list[tuple[int, list[tuple[str, bytes]]]]:
    table = read_arrow(str(server.bulk), topic, columns=["offset", "value", "headers"])
    return [
        (int(row["value"]), [(h["key"], h["value"]) for h in row["headers"] or []])
        for row in table.to_pylist()
    ]


def test_only_what_is_asked_for(
    spark: SparkSession, lake: Server, folder: Path, topic: str
) -> None:
    times = [row["timestamp"] for row in rows(folder)]
    selection = ReplaySelection(
        "{topic}-some", None, time_us(times[10]), time_us(times[90]), topic,
        "cast(value as string) like '%5'", 1000,
    )  # fmt: skip
    replayer(spark, lake, folder, f"some-{topic}", selection, rate=1e6).run()
    expected = [n for n, at in enumerate(times) if times[10] <= at < times[90] and n % 10 == 5]
    assert [n for n, _ in published(lake, topic + "-some")] == expected


def test_how_much_is_left(spark: SparkSession, lake: Server, folder: Path, topic: str) -> None:
    lines: list[str] = []
    selection = ReplaySelection("{topic}-left", epoch_records=40)
    replaying = ReplayOptions(str(folder), f"left-{topic}", selection, {"to": selection.to})
    job = Job({"servers": str(lake.bulk)}, {})
    stopped = build(spark, job, replaying, lines.append)
    stopped.stop.set()
    stopped.run()
    assert (lines, stopped.remaining) == ([], 100)
    build(spark, job, replaying, lines.append).run()
    assert [line.rpartition("lag ")[2] for line in lines] == ["60", "20", "0"]


def test_another_broker_is_another_replay(
    spark: SparkSession,
    lake: Server,
    broker_for: Callable[[dict[str, Any]], Server],
    folder: Path,
    topic: str,
) -> None:
    other = broker_for({**SYNCED, "server": {"name": "other"}})
    selection = ReplaySelection("{topic}-there")
    replayer(spark, lake, folder, f"there-{topic}", selection).run()
    with pytest.raises(JobError, match=f"started for another broker than {other.bulk}"):
        replayer(spark, other, folder, f"there-{topic}", selection).run()
    again = replayer(spark, lake, folder, f"there-{topic}", selection)
    again.run()
    assert (again.records, len(published(lake, topic + "-there"))) == (0, 100)


def test_a_condition_that_spark_does_not_understand(
    spark: SparkSession, lake: Server, folder: Path, topic: str
) -> None:
    with pytest.raises(JobError, match=r"--where: .*nonsense"):
        replayer(
            spark, lake, folder, f"bad-{topic}", ReplaySelection("x", where="nonsense = 1")
        ).run()
    with pytest.raises(JobError, match=r"--where: .*PARSE_SYNTAX_ERROR"):
        replayer(
            spark, lake, folder, f"bad-{topic}", ReplaySelection("x", where="offset = = 1")
        ).run()


def test_windows(spark: SparkSession, lake: Server, topic: str, tmp_path: Path) -> None:
    fill(lake, topic, numbered(30))
    servers, topics = {"servers": str(lake.bulk)}, {"subscribe": topic}
    job = Job(servers, topics, checkpoint=str(tmp_path / "state"))
    args = Windows(str(tmp_path / "out"), window_s=1, late_s=0)
    build_windows(spark, job, args).awaitTermination()
    # Written is a window when something younger has come.
    frame = spark.read.schema("start timestamp, subject string, records long").parquet(args.folder)
    before = sum(row.records for row in frame.collect())
    fill(lake, topic, numbered(1))
    build_windows(spark, job, args).awaitTermination()
    assert before <= sum(row.records for row in frame.collect()) <= 31
    with pytest.raises(JobError, match="--checkpoint"):
        build_windows(spark, Job(servers, topics), args)
