"""Bodies and headers of all kinds: what comes out at the other end is, byte for byte, what went
in."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support import Server
from support.archives import SURPRISES, archiver
from support.live.spark import fill, load, make_topic, save, stream

pytest.importorskip("pyarrow")

from broker.client.bulk.reading import read_arrow
from broker.spark.archive.replay import ReplaySelection
from broker.spark.jobs.command import Job
from broker.spark.jobs.replay import ReplayOptions, build

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Content = list[tuple[bytes, list[tuple[str, bytes]]]]


@pytest.fixture
def strange(lake: Server, topic: str) -> str:
    make_topic(lake, topic)
    for body, headers in SURPRISES:
        fill(lake, topic, [body], headers)
    return topic


def content(server: Server, topic: str) -> Content:
    table = read_arrow(str(server.bulk), topic, columns=["value", "headers"])
    return [
        (row["value"], [(h["key"], h["value"]) for h in row["headers"] or []])
        for row in table.to_pylist()
    ]


def test_through_a_data_frame(spark: SparkSession, lake: Server, strange: str) -> None:
    sent = content(lake, strange)
    assert [body for body, _ in sent] == [body for body, _ in SURPRISES]
    assert [len(pairs) for _, pairs in sent] == [0, 0, 0, 200, 3, 2]
    frame = load(spark, lake, strange, includeHeaders="true").orderBy("offset")
    save(frame.select("value", "headers"), lake, f"{strange}-copy")
    assert content(lake, f"{strange}-copy") == sent


@pytest.mark.slow
def test_through_a_stream(spark: SparkSession, lake: Server, strange: str, tmp_path: Path) -> None:
    make_topic(lake, f"{strange}-copy")
    frame = stream(spark, lake, strange, includeHeaders="true").select("value", "headers")
    to: dict[str, Any] = {"servers": str(lake.bulk), "topic": f"{strange}-copy"}
    query = frame.writeStream.format("twinwire").options(**to).trigger(availableNow=True)
    query.option("checkpointLocation", str(tmp_path)).start().awaitTermination()
    assert content(lake, f"{strange}-copy") == content(lake, strange)


def test_through_an_archive(
    spark: SparkSession, lake: Server, strange: str, tmp_path: Path
) -> None:
    # No sink would write these, and anybody can publish them.
    fill(lake, strange, [b"bad"], b"NATS/1.0\r\nC : d\r\n E: f\r\nG: h\nI: j\r\nK: l\r\r\n\r\n")
    archiver(spark, tmp_path, lake, strange).run()
    selection = ReplaySelection("{topic}-again")
    job = Job({"servers": str(lake.bulk)}, {})
    build(spark, job, ReplayOptions(str(tmp_path), strange, selection), lambda _line: None).run()
    expected = [
        (body, [*pairs, ("Twinwire-Replay-Of", b"%s:0:%d" % (strange.encode(), seq))])
        for seq, (body, pairs) in enumerate(content(lake, strange), 1)
    ]
    assert content(lake, f"{strange}-again") == expected
    assert expected[-1][1][:4] == [("C ", b"d"), (" E", b"f"), ("G", b"h\nI: j"), ("K", b"l\r")]
