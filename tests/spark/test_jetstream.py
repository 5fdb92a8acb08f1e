"""Streams of JetStream as sources of Spark, of the archive and of `export`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nats
import pyarrow.parquet as pq
from click.testing import CliRunner
from nats.js.client import JetStreamContext
from support import Server
from support.archives import archiver, rows
from support.live.spark import load, numbered, run, stream, values, written

from broker.cli.tools.export import export
from broker.client.bulk import read_arrow
from broker.spark.archive.manifest import Manifest
from broker.spark.archive.replay import ReplaySelection
from broker.spark.jobs.command import Job
from broker.spark.jobs.replay import ReplayOptions, build

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def ask(server: Server, act: Callable[[JetStreamContext], Coroutine[Any, Any, None]]) -> None:
    """Do something with JetStream."""

    async def done() -> None:
        client = await nats.connect(server.nats_url, connect_timeout=5)
        await act(client.jetstream(timeout=20))
        await client.close()

    asyncio.run(done())


def fill(server: Server, name: str, count: int, start: int = 0) -> None:
    """Messages on the subjects NAME.0 to NAME.3, in a stream of that name."""

    async def act(js: JetStreamContext) -> None:
        await js.add_stream(name=name, subjects=[f"{name}.*"])
        for number in range(start, start + count):
            await js.publish(f"{name}.{number % 4}", b"%d" % number, headers={"N": str(number)})

    ask(server, act)


def delete(server: Server, name: str, *seqs: int) -> None:
    async def act(js: JetStreamContext) -> None:
        for seq in seqs:
            await js.delete_msg(name, seq)

    ask(server, act)


def test_a_batch_query(spark: SparkSession, lake: Server, topic: str) -> None:
    fill(lake, topic, 40)
    delete(lake, topic, 1, 2, 20, 40)
    frame = load(spark, lake, f"js.$G/{topic}", includeHeaders="true", minPartitions="3")
    found = sorted(frame.collect(), key=lambda row: row.offset)
    assert [row.offset for row in found] == [n for n in range(3, 40) if n != 20]
    for row in found:
        number = row.offset - 1
        assert (row.topic, row.subject) == (f"js.$G/{topic}", f"{topic}.{number % 4}")
        assert bytes(row.value) == b"%d" % number
        assert [(pair.key, bytes(pair.value)) for pair in row.headers] == [("N", row.value)]
    some = load(spark, lake, f"js.$G/{topic}", subjectFilter=f"{topic}.1")
    assert values(some) == sorted(b"%d" % n for n in range(2, 39) if n % 4 == 1)


def test_a_streaming_query_does_not_mind_deletes(
    spark: SparkSession, lake: Server, topic: str, tmp_path: Path
) -> None:
    """Neither of messages that it has read, nor of those that it would read next."""
    fill(lake, topic, 30)
    run(stream(spark, lake, f"js.$G/{topic}", maxOffsetsPerTrigger=7), tmp_path)
    fill(lake, topic, 30, 30)
    delete(lake, topic, *range(1, 36), 50)  # its first message is one that the query has not read
    run(stream(spark, lake, f"js.$G/{topic}"), tmp_path)
    run(stream(spark, lake, f"js.$G/{topic}"), tmp_path)  # nothing new
    wanted = [*numbered(30), *(b"%d" % n for n in range(35, 60) if n != 49)]
    assert values(written(spark, tmp_path)) == sorted(wanted)


def test_archived_and_published_as_a_topic(
    spark: SparkSession, lake: Server, topic: str, tmp_path: Path
) -> None:
    fill(lake, topic, 100)
    delete(lake, topic, *range(10, 90, 3))
    archiver(spark, tmp_path, lake, f"js.$G/{topic}", task_records=30).run()
    fill(lake, topic, 10, 100)
    archiver(spark, tmp_path, lake, f"js.$G/{topic}", task_records=30).run()
    kept = [n for n in range(1, 111) if n not in range(10, 90, 3)]
    found = rows(tmp_path)
    assert [row["offset"] for row in found] == kept
    assert [int(row["value"]) for row in found] == [n - 1 for n in kept]
    assert [row["subject"] for row in found[:2]] == [f"{topic}.0", f"{topic}.1"]
    selection = ReplaySelection(to=f"{topic}-again")
    replaying = ReplayOptions(str(tmp_path), "again", selection, {"to": selection.to})
    build(spark, Job({"servers": str(lake.bulk)}, {}), replaying, lambda _line: None).run()
    again = read_arrow(str(lake.bulk), f"{topic}-again", columns=["value"])
    assert [int(value) for value in again["value"].to_pylist()] == [n - 1 for n in kept]
    fill(lake, topic, 10, 110)
    delete(lake, topic, *(n for n in range(1, 116) if n in kept or n > 110))
    archiver(spark, tmp_path, lake, f"js.$G/{topic}").run()
    assert [row["offset"] for row in rows(tmp_path)] == [*kept, *range(116, 121)]
    assert not Manifest(tmp_path).load().gaps


def test_exported(lake: Server, topic: str, tmp_path: Path) -> None:
    fill(lake, topic, 20)
    delete(lake, topic, 1, 10)
    given = [f"js.$G/{topic}", "--out", str(tmp_path), "--bulk-address", str(lake.bulk)]
    ended = CliRunner().invoke(export, given)
    assert ended.exit_code == 0, ended.output
    (path,) = tmp_path.rglob("*.parquet")
    assert pq.read_table(path)["offset"].to_pylist() == [n for n in range(2, 21) if n != 10]
