"""The archive on Spark: its tasks are Spark's. What may go wrong is in tests/faults."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from click.testing import CliRunner
from support import Server
from support.archives import archiver, keys, rows
from support.live.spark import fill, numbered

from broker.cli.pipeline import pipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_all_records_and_then_only_new_ones(
    spark: SparkSession, lake: Server, topic: str, tmp_path: Path
) -> None:
    fill(lake, topic, numbered(1000))
    archiver(spark, tmp_path, lake, topic, batch_records=700, task_records=200).run()
    fill(lake, topic, numbered(50, 1000))
    archiver(spark, tmp_path, lake, topic).run()
    found = rows(tmp_path)
    assert [int(row["value"]) for row in found] == list(range(1050))
    assert keys(tmp_path) == [(topic, 0, n) for n in range(1, 1051)]


def test_a_format_that_spark_does_not_have(spark: SparkSession, tmp_path: Path) -> None:
    """One line says so, whoever raises it."""
    assert spark.getActiveSession() is not None  # it is taken by the command
    given = ["archive", str(tmp_path), "--servers", "127.0.0.1:1", "--topics", "t"]
    more = ["--format", "nonsense", "--checkpoint", str(tmp_path / "state")]
    ended = CliRunner().invoke(pipeline, [*given, *more])
    assert ended.exit_code == 1
    last = ended.output.strip().splitlines()[-1]
    assert last.startswith("Error: [DATA_SOURCE_NOT_FOUND] Failed to find the data source: non")


def test_spark_reads_what_was_written(
    spark: SparkSession, lake: Server, topic: str, tmp_path: Path
) -> None:
    fill(lake, topic, numbered(10), b"NATS/1.0\r\nA: b\r\n\r\n")
    archiver(spark, tmp_path, lake, topic).run()
    frame = spark.read.parquet(str(tmp_path))
    assert dict(frame.dtypes) == {
        "partition": "int",
        "offset": "bigint",
        "timestamp": "timestamp",
        "subject": "string",
        "value": "binary",
        "headers": "array<struct<key:string,value:binary>>",
        "notBefore": "timestamp",
        "topic": "string",
        "date": "date",
        "hour": "int",
    }
    one = frame.orderBy("offset").first()
    assert one is not None
    assert (one.topic, one.offset, one.value) == (topic, 1, b"0")
    assert one.headers[0].key == "A"


def test_a_topic_that_does_not_exist(
    spark: SparkSession, lake: Server, topic: str, tmp_path: Path
) -> None:
    fill(lake, topic, numbered(5))
    given = ["archive", str(tmp_path / "lake"), "--servers", str(lake.bulk), "--no-hold"]
    given += ["--topics", f"{topic},ordres"]
    ended = CliRunner().invoke(pipeline, given)
    assert ended.exit_code == 1
    assert "archive: 5 records" in ended.output
    assert ended.output.splitlines()[-1] == (
        "Error: no broker has a topic 'ordres', or it may not be read with this token: check"
        " --topics, or give --allow-missing"
    )
    assert CliRunner().invoke(pipeline, [*given, "--allow-missing"]).exit_code == 0
