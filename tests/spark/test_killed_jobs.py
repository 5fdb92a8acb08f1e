"""Jobs whose driver is killed with kill -9, Java and all, and that are started again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support import Server
from support.archives import archiver, counted, keys, parquet_files, rows
from support.fault_proxy import ANSWERED, FaultProxy
from support.live.spark import environment, fill, numbered

pytest.importorskip("pyarrow")

from broker.client.bulk.reading import read_arrow
from broker.spark.archive.manifest import Manifest
from broker.spark.jobs.compact import Compacter, CompactOptions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

VICTIM = Path(__file__).parents[1] / "support" / "spark" / "crashing_job.py"
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]  # each run is a session of Spark
Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def start(topic: str, tmp_path: Path) -> Start:
    """Start a job on the archive in `lake`, in a process group of its own."""

    def start(job: str, servers: object, at: str = "") -> subprocess.Popen[bytes]:
        plan = {"job": job, "at": at, "servers": str(servers), "topic": topic,
                "folder": str(tmp_path / "lake")}  # fmt: skip
        command = [sys.executable, str(VICTIM), json.dumps(plan)]
        with (tmp_path / f"{job}-{at}.log").open("wb") as log:
            return subprocess.Popen(
                command, env={**os.environ, **environment()}, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip

    return start


def killed(victim: subprocess.Popen[bytes]) -> bool:
    return victim.wait(300) == -signal.SIGKILL


def expected(topic: str, count: int) -> list[tuple[str, int, int]]:
    return [(topic, 0, n) for n in range(1, count + 1)]


def test_archive(
    spark: SparkSession, lake: Server, topic: str, tmp_path: Path, start: Start
) -> None:
    """In its tasks, before and after the manifest, and between two batches."""
    folder = tmp_path / "lake"
    fill(lake, topic, numbered(1000))
    with FaultProxy(lake) as proxy:
        victim = start("archive", proxy.address)
        proxy.interrupt("GET /bulk/v1/range/", ANSWERED, lambda: os.killpg(victim.pid, 9), after=5)
        assert killed(victim)
    found = keys(folder)
    assert found == expected(topic, 400)  # one batch, and some tasks of the next
    for place in ("saved", "end", "manifest"):  # then with other sizes
        assert killed(start("archive", lake.bulk, place)), place
        found = keys(folder)
        assert found == expected(topic, len(found)), place
        fill(lake, topic, numbered(1000, len(found)))
    archiver(spark, folder, lake, topic).run()
    assert keys(folder) == expected(topic, 4000)
    assert parquet_files(folder) == counted(folder)
    assert Manifest(folder).saved("pending.json") is None


def test_compact(
    spark: SparkSession, lake: Server, topic: str, tmp_path: Path, start: Start
) -> None:
    folder = tmp_path / "lake"
    fill(lake, topic, numbered(1000))
    archiver(spark, folder, lake, topic, batch_records=300, task_records=100).run()
    before = rows(folder)
    for place, files in (("swap", 10), ("remove", 1)):
        assert killed(start("compact", lake.bulk, place)), place
        assert rows(folder) == before
        assert len(counted(folder)) == files
    Compacter(spark, CompactOptions(str(folder))).run(datetime.now(UTC) + timedelta(days=4))
    assert rows(folder) == before
    assert parquet_files(folder) == counted(folder)


def test_replay(
    spark: SparkSession, lake: Server, topic: str, tmp_path: Path, start: Start
) -> None:
    fill(lake, topic, numbered(200))
    archiver(spark, tmp_path / "lake", lake, topic).run()
    for place, count in (("commit", 40), ("committed", 120)):
        assert killed(start("replay", lake.bulk, place)), place
        assert read_arrow(str(lake.bulk), f"{topic}-again").num_rows == count
    assert start("replay", lake.bulk).wait(300) == 0
    table = read_arrow(str(lake.bulk), f"{topic}-again")
    assert table["value"].to_pylist() == numbered(200)
