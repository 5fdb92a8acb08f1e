"""`rollup` and `triage` as Spark runs them. What they count is tested in tests/raw, without it."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support import Server
from support.clients.http import request
from support.clients.nsq import MESSAGE, Wire
from support.live.spark import fill, make_topic, numbered

from broker.spark.jobs import rollup, triage
from broker.spark.jobs.command import Job
from broker.spark.jobs.errors import JobError
from broker.spark.jobs.rollup import RollupOptions
from broker.spark.jobs.tasks import spread
from broker.spark.jobs.triage import TriageOptions
from broker.spark.rollup.tasks import File, Since, Work, count

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EVENTS = "deliveries"


@pytest.fixture(scope="module")
def broker_with_events(broker_for: Callable[[dict[str, Any]], Server]) -> Server:
    return broker_for({
        "storage": {"sync": "none", "topic": [{"pattern": "sick", "max_attempts": 1}]},
        "events": {"topic": EVENTS, "linger": "off"},
    })  # fmt: skip


def deliver(server: Server, topic: str, count: int) -> None:
    """Finish every message but the tenths, which are given back."""
    with Wire(server.nsq) as wire:
        wire.send(b"SUB %s ch\nRDY 50\n" % topic.encode())
        while count:
            kind, data = wire.frame()
            if kind == MESSAGE:
                word = b"REQ %s 0\n" if int(data[26:]) % 10 == 0 else b"FIN %s\n"
                wire.send(word % data[10:26])
                count -= 1
        wire.send(b"CLS\n")
        while wire.frame()[1] != b"CLOSE_WAIT":
            pass


def quiet(_line: str) -> None:
    pass


def test_rollup_and_triage(spark: SparkSession, broker_with_events: Server, tmp_path: Path) -> None:
    make_topic(broker_with_events, "sick")
    request(broker_with_events.nsq_http, "POST", "/channel/create", topic="sick", channel="ch")
    fill(broker_with_events, "sick", numbered(500))
    deliver(broker_with_events, "sick", 500)
    job = Job({"servers": str(broker_with_events.bulk)}, {"subscribe": "sick"})
    rolling = rollup.build(spark, job, RollupOptions(str(tmp_path), events_topic=EVENTS), quiet)
    rolling.run()
    assert sum(row["records"] for row in rolling.store.rows("topics")) == 500
    rows = [row for row in rolling.store.rows("channels") if row["topic"] == "sick"]
    assert (sum(row["acked"] for row in rows), sum(row["dead"] for row in rows)) == (450, 50)
    letters = Job({"servers": str(broker_with_events.bulk)}, {})
    for expected in ([50], []):
        report = str(tmp_path / "triage.html")
        found = triage.build(spark, letters, TriageOptions(report, requeue=("all",)), quiet).run()
        assert [back.count for back in found.back] == expected
    for name in ("report.html", "triage.html"):
        ET.fromstring((tmp_path / name).read_text().partition("\n")[2])


def test_a_task_that_fails_is_reported_in_a_line(spark: SparkSession, tmp_path: Path) -> None:
    work = Work(1, Since(), None, files=(File(str(tmp_path / "none"), "t", 0, "x"),))
    with pytest.raises(JobError, match=r"a task failed: .*none"):
        spread(spark, count, [work], quiet)
    with pytest.raises(JobError, match=r"a task failed: .*'int' object has no attribute 'files'"):
        spread(spark, count, [17], quiet)
