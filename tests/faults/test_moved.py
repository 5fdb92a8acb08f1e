"""A broker at another address, with its data: a stream and an archive go on where they were.

With no Java; tests/spark/test_moved_brokers.py has the same on Spark.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")

from support import Server
from support.archives import archiver, keys
from support.fakes.spark import FakeSpark
from support.live.spark import SYNCED, fill, numbered
from support.spark.data_source import Query

from broker.spark.errors import DataLossError
from broker.spark.jobs.errors import JobError

SPARK: Any = FakeSpark()


def test_its_data_say_who_it_is(
    start_broker: Callable[..., Server], uniq: str, tmp_path: Path
) -> None:
    old, lake = start_broker({**SYNCED, "bulk": {"partition": 3}}), tmp_path / "lake"
    fill(old, uniq, numbered(30))
    query = Query(servers=old.bulk, subscribe=uniq)
    query.batch()
    archiver(SPARK, lake, old, uniq).run()
    old.stop()
    new = start_broker(SYNCED, shutil.copytree(old.data, tmp_path / "moved"))
    assert new.bulk != old.bulk
    fill(new, uniq, numbered(30, 30))
    query.start(servers=new.bulk)
    query.batch()
    assert [(row["partition"], int(row["value"])) for row in query.rows] == [
        (3, n) for n in range(60)
    ]
    archiver(SPARK, lake, new, uniq).run()
    assert keys(lake) == [(uniq, 3, n) for n in range(1, 61)]

    other = start_broker({**SYNCED, "bulk": {"partition": 3}})  # another one, of that number
    fill(other, uniq, numbered(90))
    query.start(servers=other.bulk)
    with pytest.raises(DataLossError, match="was deleted and recreated"):
        query.batch()
    with pytest.raises(JobError, match="deleted and recreated"):
        archiver(SPARK, lake, other, uniq).run()
    third = start_broker(SYNCED)  # and one of another number: nobody has moved there
    fill(third, uniq, numbered(90))
    query.start(servers=third.bulk)
    with pytest.raises(DataLossError, match="was deleted; it was read up to 61"):
        query.batch()
    with pytest.raises(JobError, match="was deleted; it is archived up to 61"):
        archiver(SPARK, lake, third, uniq).run()
