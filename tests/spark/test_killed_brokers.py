"""A broker that is killed while Spark works on it, and comes back: nothing is lost or twice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support import Broker, Server
from support.archives import archiver, counted, keys, parquet_files
from support.fault_proxy import ANSWERED, ASKED, SENT, FaultProxy
from support.live.spark import SYNCED, fill, make_topic, numbered, save, stream

pytest.importorskip("pyarrow")

from broker.client.bulk.reading import read_arrow
from broker.spark.archive.replay import ReplaySelection
from broker.spark.jobs import archive, rollup, tasks, triage
from broker.spark.jobs.command import Job
from broker.spark.jobs.replay import ReplayOptions
from broker.spark.jobs.replay import build as build_replay
from broker.spark.jobs.rollup import RollupOptions
from broker.spark.jobs.triage import TriageOptions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RANGE, STAGE, COMMIT = "GET /bulk/v1/range/", "POST /bulk/v1/tx/.*[?]offset", "POST .*/commit "
PATIENT = {"fetchRetries": "60"}


def slow(*values: str) -> Any:
    """The same once more at another moment."""
    return pytest.param(*values, marks=pytest.mark.slow)


@pytest.fixture(scope="module")
def mortal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Broker(tmp_path_factory.mktemp("mortal"), SYNCED)
    yield server.start()
    server.close()


@pytest.fixture
def proxy(mortal: Server) -> Iterator[FaultProxy]:
    with FaultProxy(mortal) as proxy:
        yield proxy


@pytest.fixture
def die(mortal: Server) -> Callable[[], None]:
    def die() -> None:
        mortal.kill()
        mortal.start()

    return die


def published(server: Server, topic: str) -> list[Any]:
    table = read_arrow(str(server.bulk), topic, columns=["offset", "value"])
    assert table["offset"].to_pylist() == list(range(1, len(table) + 1))
    return list(table["value"].to_pylist())


def large(count: int, start: int = 0) -> list[bytes]:
    """So that a batch is many requests."""
    return [body + bytes(4000) for body in numbered(count, start)]


@pytest.mark.slow
def test_in_a_batch_of_a_stream(
    spark: SparkSession, mortal: Server, proxy: FaultProxy, topic: str, tmp_path: Path,
    die: Callable[[], None],
) -> None:  # fmt: skip
    """The query goes on through it, twice."""
    fill(mortal, topic, large(400))
    proxy.interrupt(RANGE, ANSWERED, die, after=5)
    options: dict[str, Any] = {"fetchBytes": "64k", "maxOffsetsPerTrigger": 250, **PATIENT}
    frame = stream(spark, proxy, topic, **options)  # type: ignore[arg-type]
    writer = frame.writeStream.format("parquet").option("checkpointLocation", tmp_path / "state")
    query = writer.trigger(processingTime="0 seconds").start(str(tmp_path / "out"))
    try:
        query.processAllAvailable()
        assert proxy.acted.is_set()
        proxy.interrupt("GET /bulk/v1/topics", ANSWERED, die)  # while it plans
        assert proxy.acted.wait(60)
        fill(mortal, topic, large(100, 400))
        query.processAllAvailable()
    finally:
        query.stop()
    rows = spark.read.parquet(str(tmp_path / "out")).select("offset", "value").collect()
    assert sorted(row.offset for row in rows) == list(range(1, 501))
    assert sorted(bytes(row.value) for row in rows) == sorted(large(500))


def test_in_a_batch_of_the_archive(
    spark: SparkSession, mortal: Server, proxy: FaultProxy, topic: str, tmp_path: Path,
    die: Callable[[], None], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(archive, "BROKER_RETRY_S", 0.05)
    fill(mortal, topic, numbered(1000))
    proxy.interrupt(RANGE, ANSWERED, die, after=3)
    said: list[str] = []
    folder = tmp_path / "lake"
    archiver(
        spark, folder, str(proxy.address), topic, said=said, batch_records=800,
        task_records=100, patience_s=60.0,
    ).run()  # fmt: skip
    assert proxy.acted.is_set()
    assert keys(folder) == [(topic, 0, n) for n in range(1, 1001)]
    assert parquet_files(folder) == counted(folder)


@pytest.mark.parametrize(
    ("request_", "moment"),
    [slow(STAGE, ANSWERED), slow(COMMIT, ASKED), slow(COMMIT, SENT), (COMMIT, ANSWERED)],
)
def test_while_the_sink_writes(
    spark: SparkSession, mortal: Server, proxy: FaultProxy, topic: str, die: Callable[[], None],
    request_: str, moment: str,
) -> None:  # fmt: skip
    proxy.interrupt(request_, moment, die)
    frame = spark.range(0, 10_000, 1, 4).selectExpr("cast(id as string) as value")
    save(frame, proxy, topic, **PATIENT)  # type: ignore[arg-type]
    assert proxy.acted.is_set()
    assert sorted(published(mortal, topic)) == sorted(numbered(10_000))


@pytest.mark.slow
def test_while_a_stream_commits(
    spark: SparkSession, mortal: Server, proxy: FaultProxy, topic: str, tmp_path: Path,
    die: Callable[[], None],
) -> None:  # fmt: skip
    """The answer is lost, and so is the query; the same batch runs again and is known."""
    fill(mortal, topic, numbered(50))
    make_topic(mortal, f"{topic}-to")
    frame = stream(spark, mortal, topic, maxOffsetsPerTrigger=20).select("value")
    writer = frame.writeStream.format("twinwire").trigger(availableNow=True)
    writer = writer.option("checkpointLocation", str(tmp_path / "state"))
    writer = writer.options(servers=str(proxy.address), topic=f"{topic}-to", fetchRetries="0")
    proxy.interrupt(COMMIT, ANSWERED, die, after=1)
    with pytest.raises(Exception, match="STREAM_FAILED"):
        writer.start().awaitTermination()
    assert proxy.acted.is_set()
    assert sorted(published(mortal, f"{topic}-to")) == sorted(numbered(40))
    writer.start().awaitTermination()
    assert sorted(published(mortal, f"{topic}-to")) == sorted(numbered(50))


@pytest.mark.slow
def test_while_windows_are_counted(
    spark: SparkSession, mortal: Server, proxy: FaultProxy, topic: str, tmp_path: Path,
    die: Callable[[], None], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(tasks, "TASK_RETRY_S", 0.05)
    fill(mortal, topic, large(300))
    servers = {"servers": str(proxy.address), "fetchBytes": "64k", "fetchRetries": "0"}
    job = Job(servers, {"subscribe": topic})
    proxy.interrupt(RANGE, ANSWERED, die, after=5)
    roller = rollup.build(spark, job, RollupOptions(str(tmp_path)), lambda _line: None)
    roller.run()
    assert proxy.acted.is_set()
    assert sum(row["records"] for row in roller.store.rows("topics")) == 300


@pytest.mark.slow
def test_while_dead_letters_go_back(
    spark: SparkSession, proxy: FaultProxy, mortal: Server, topic: str, tmp_path: Path,
    die: Callable[[], None],
) -> None:  # fmt: skip
    letter = (
        f"NATS/1.0\r\nTwinwire-Topic: {topic}\r\nTwinwire-Channel: ch\r\n"
        "Twinwire-Reason: timeout\r\nTwinwire-Attempts: 1\r\n\r\n"
    )
    make_topic(mortal, topic)
    fill(mortal, f"{topic}.dead", numbered(50), letter.encode())
    job = Job({"servers": str(proxy.address), **PATIENT}, {"subscribe": f"{topic}.dead"})
    triaging = TriageOptions(str(tmp_path / "triage.html"), requeue=("all",))
    proxy.interrupt(COMMIT, ANSWERED, die)
    triage.build(spark, job, triaging, lambda _line: None).run()
    assert proxy.acted.is_set()
    assert triage.build(spark, job, triaging, lambda _line: None).run().back == []
    assert published(mortal, topic) == numbered(50)


@pytest.mark.parametrize(
    ("request_", "moment"), [slow(STAGE, SENT), slow(COMMIT, SENT), (COMMIT, ANSWERED)]
)
def test_in_a_replay(
    spark: SparkSession, lake: Server, mortal: Server, proxy: FaultProxy, topic: str,
    tmp_path: Path, die: Callable[[], None], request_: str, moment: str,
) -> None:  # fmt: skip
    fill(lake, topic, numbered(100))
    folder = tmp_path / "lake"
    archiver(spark, folder, lake, topic).run()
    proxy.interrupt(request_, moment, die, after=1)
    selection = ReplaySelection("{topic}-again", epoch_records=40)
    job = Job({"servers": str(proxy.address), **PATIENT}, {})
    replaying = ReplayOptions(str(folder), topic, selection, {"to": selection.to})
    build_replay(spark, job, replaying, lambda _line: None).run()
    assert proxy.acted.is_set()
    assert published(mortal, f"{topic}-again") == numbered(100)
