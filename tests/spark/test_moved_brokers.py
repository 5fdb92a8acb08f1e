"""A broker that moves to another host with its data: places kept elsewhere go on where they were.

What names a record is (topic, number of the broker, seq) and the incarnation of the log, all of
which lie in the data folder; addresses are only where it is found today.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support import Address, Broker, Server
from support.archives import archiver, rows
from support.live.spark import SYNCED, fill, numbered, run, save, stream, written

pytest.importorskip("pyarrow")

from broker.client.bulk.reading import read_arrow
from broker.spark.jobs.errors import JobError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ELSEWHERE = "127.0.0.2"


class Pair:
    """Two brokers with a topic of the same name; one of them may move."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        configs: list[dict[str, Any]] = [{**SYNCED, "bulk": {"partition": n}} for n in (1, 0)]
        self.servers: list[Server] = [
            Broker(folder / f"server{n}", config) for n, config in enumerate(configs)
        ]

    @property
    def bulk(self) -> str:
        return ",".join(str(server.bulk) for server in self.servers)

    def move(self) -> None:
        """The first, data and all, to another address; it is named last from then on.

        What says its number is in the data, not in the configuration there.
        """
        old = self.servers.pop(0)
        old.stop()
        data = self.folder / "moved"
        shutil.copytree(old.data, data)
        new = Broker(self.folder / "server2", SYNCED, data)
        new.addresses["bulk"] = Address(ELSEWHERE, 0)
        self.servers.append(new.start())


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    pair = Pair(tmp_path)
    for server in pair.servers:
        server.start()
    yield pair
    for server in pair.servers:
        server.close()


@pytest.mark.slow  # tests/faults/test_moved.py is quick
def test_all_go_on_where_they_were(
    spark: SparkSession, pair: Pair, topic: str, tmp_path: Path
) -> None:
    """The checkpoint of a stream, the manifest of an archive, and what a writer has committed."""
    first, second = pair.servers
    fill(first, topic, numbered(30))
    fill(second, topic, numbered(20, 1000))
    frame = spark.range(100).selectExpr("cast(id as string) as value").coalesce(1)
    lake, target = tmp_path / "lake", f"{topic}-to"
    done: dict[str, Any] = {"writerId": topic, "epoch": 7}

    def once() -> None:
        run(stream(spark, pair, topic), tmp_path / "stream")  # type: ignore[arg-type]
        archiver(spark, lake, pair.bulk, topic).run()
        save(frame, first, target, **done)

    once()
    pair.move()
    second, first = pair.servers
    assert first.bulk.host == ELSEWHERE
    fill(first, topic, numbered(30, 30))
    once()
    expected = [(0, n + 1, b"%d" % (1000 + n)) for n in range(20)]
    expected += [(1, n + 1, b"%d" % n) for n in range(60)]
    found = written(spark, tmp_path / "stream").select("partition", "offset", "value").collect()
    assert sorted((row.partition, row.offset, bytes(row.value)) for row in found) == expected
    kept = [(row["partition"], row["offset"], row["value"]) for row in rows(lake)]
    assert kept == expected
    assert read_arrow(str(first.bulk), target)["value"].to_pylist() == numbered(100)


@pytest.mark.slow
def test_another_broker_at_the_old_address(
    spark: SparkSession, lake: Server, topic: str, tmp_path: Path, start_broker: Any
) -> None:
    """It has the same number and a topic of that name: it is not taken for the one that was."""
    other = start_broker(SYNCED)
    fill(lake, topic, numbered(20))
    fill(other, topic, numbered(40, 100))
    run(stream(spark, lake, topic), tmp_path)
    archiver(spark, tmp_path / "lake", lake, topic).run()
    with pytest.raises(Exception, match="was deleted and recreated"):
        run(stream(spark, other, topic), tmp_path)
    with pytest.raises(JobError, match="deleted and recreated"):
        archiver(spark, tmp_path / "lake", other, topic).run()
    run(stream(spark, lake, topic), tmp_path)  # nothing has gone wrong for good
    assert sorted(row.offset for row in written(spark, tmp_path).collect()) == list(range(1, 21))
    assert len(rows(tmp_path / "lake")) == 20
