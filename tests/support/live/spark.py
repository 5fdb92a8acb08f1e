"""Helpers of Spark tests for a broker and a session."""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from support import Server
from support.clients.http import request
from support.clients.nats import NatsClient

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

ROOT = Path(__file__).parents[3]
DEADLINE_S = 60
SYNCED = {"storage": {"sync": "none"}}  # what is written can be read at once


def environment() -> dict[str, str]:
    """What Spark and the Python processes it starts need to find this source tree."""
    paths = [str(ROOT), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")]
    return {
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_HOSTNAME": "localhost",
        # A session of a test ends long before the second compiler has paid for itself.
        "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    }


SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.session.timeZone": "UTC",
    "spark.driver.memory": "1g",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.streaming.pollingDelay": "10ms",
    "spark.log.level": "ERROR",
    "spark.python.authenticate.socketTimeout": "120s",  # of workers, on a machine that is busy
}


def make_session(folder: Path, master: str = "local[2]") -> SparkSession:
    from pyspark.sql import SparkSession

    os.environ.update(environment())
    builder = SparkSession.builder.master(master).appName("tests")
    settings = {**SETTINGS, "spark.sql.warehouse.dir": str(folder / "warehouse")}
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def make_topic(server: Server, topic: str) -> None:
    assert request(server.nsq_http, "POST", "/topic/create", topic=topic).status == 200


def fill(
    server: Server, topic: str, bodies: list[bytes], headers: bytes = b"", token: str = ""
) -> None:
    """Publish, and wait until the bulk API has all messages."""
    from broker.client.bulk.connection import Connection

    make_topic(server, topic)
    with Connection(str(server.bulk), token=token) as bulk:

        def behind() -> int:
            log = bulk.topics([topic]).find(topic)
            assert log is not None
            return log.next

        wanted, deadline = behind() + len(bodies), time.monotonic() + DEADLINE_S
        client = NatsClient(server.nats)
        for body in bodies:
            client.pub(topic, body, headers=headers)
        client.ping()
        client.close()
        while behind() < wanted:
            assert time.monotonic() < deadline


def damage(server: Server, topic: str, body: bytes, before: int = 0) -> None:
    """Change a byte of a body in the file of a log, and so many bytes before it."""
    server.stop()
    (path,) = (server.data / "logs" / topic).glob("*.seg")
    data = bytearray(path.read_bytes())
    at = data.index(body)
    for place in range(at - before, at + 1):
        data[place] ^= 0xFF
    path.write_bytes(data)
    server.start()


def trim(server: Server) -> None:
    """Publish until the oldest records of topic `trimmed` are dropped, once a second."""
    from broker.client.bulk.connection import Connection

    with Connection(str(server.bulk)) as bulk:

        def first() -> int:
            return bulk.topics(["trimmed"]).topics[0].first

        before, deadline = first(), time.monotonic() + DEADLINE_S
        fill(server, "trimmed", [b"%d" % n + bytes(1000) for n in range(600)])
        while first() == before:
            assert time.monotonic() < deadline
            threading.Event().wait(0.05)


def numbered(count: int, start: int = 0) -> list[bytes]:
    return [b"%d" % n for n in range(start, start + count)]


def values(frame: DataFrame) -> list[bytes]:
    return sorted(bytes(row.value) for row in frame.select("value").collect())


def load(
    spark: SparkSession,
    server: Server,
    topic: str | None,
    *,
    schema: str | None = None,
    **options: object,
) -> DataFrame:
    """A batch query."""
    reader = spark.read.format("twinwire").options(servers=str(server.bulk))
    if topic is not None:
        reader = reader.option("subscribe", topic)
    if schema is not None:
        reader = reader.schema(schema)
    return reader.options(**options).load()


def save(frame: DataFrame, server: Server, topic: str | None = None, **options: object) -> None:
    """A batch write."""
    writer = frame.write.format("twinwire").mode("append").options(servers=str(server.bulk))
    if topic is not None:
        writer = writer.option("topic", topic)
    writer.options(**options).save()


def stream_options(plan: dict[str, str]) -> dict[str, str]:
    """Of the source of a copy from one topic to another."""
    given = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "20", "minPartitions": "2"}
    return {"servers": plan["servers"], "subscribe": plan["from"], **given}


def stream(spark: SparkSession, server: Server, topic: str | None, **options: object) -> DataFrame:
    """A streaming query from the first record on, if nothing else is said."""
    given = {"servers": str(server.bulk), "startingOffsets": "earliest"}
    if topic is not None:
        given["subscribe"] = topic
    return spark.readStream.format("twinwire").options(**{**given, **options}).load()


def run(frame: DataFrame, folder: Path, **trigger: object) -> StreamingQuery:
    """Write all messages to Parquet below `folder`, resuming its checkpoint."""
    writer = frame.writeStream.format("parquet").option("checkpointLocation", str(folder / "state"))
    query = writer.trigger(**(trigger or {"availableNow": True})).start(str(folder / "out"))
    query.awaitTermination()
    return query


def written(spark: SparkSession, folder: Path) -> DataFrame:
    """What `run` has written."""
    return spark.read.parquet(str(folder / "out"))


def batches_of(query: StreamingQuery) -> list[int]:
    """Rows of each batch that had any."""
    return [p.numInputRows for p in query.recentProgress if p.numInputRows]
