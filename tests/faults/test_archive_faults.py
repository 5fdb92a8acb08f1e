"""The archive when somebody is killed or something is gone: each record once, or a gap.

Tasks run in this process, with no Java; tests/spark has the same job on Spark.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")

from support import Server
from support.archives import SURPRISES, archiver, counted, keys, parquet_files, rows
from support.bulk.fake import FakeBulkApi, FakeLog
from support.clients.frames import record
from support.clients.http import request
from support.fakes.spark import FakeSpark, Tasks
from support.live.spark import SYNCED, fill, make_topic, numbered

from broker.client.bulk import Connection
from broker.spark.archive.manifest import Gap, Manifest
from broker.spark.errors import BrokerDownError
from broker.spark.jobs.errors import JobError

SPARK: Any = FakeSpark()
StartBroker = Callable[..., Server]


class Killed(BaseException):
    """Nothing of the job runs after this."""


def die(*_: object, **__: object) -> None:
    raise Killed


@pytest.fixture
def lake(broker_for: Callable[[Any], Server]) -> Server:
    return broker_for(SYNCED)


def expected(topic: str, count: int) -> list[tuple[str, int, int]]:
    return [(topic, 0, n) for n in range(1, count + 1)]


def test_killed_between_batches(lake: Server, uniq: str, tmp_path: Path) -> None:
    fill(lake, uniq, numbered(500))
    run = archiver(SPARK, tmp_path, lake, uniq, batch_records=200)
    run.reporter = lambda line: die() if "batch 2" in line else None
    with pytest.raises(Killed):
        run.run()
    assert keys(tmp_path) == expected(uniq, 400)
    fill(lake, uniq, numbered(100, 500))
    archiver(SPARK, tmp_path, lake, uniq).run()
    assert keys(tmp_path) == expected(uniq, 600)


def test_what_executors_wrote_elsewhere_does_not_count(
    lake: Server, uniq: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(lake, uniq, numbered(50))
    run = archiver(SPARK, tmp_path, lake, uniq)
    work = run._work

    def lost(*args: Any) -> Any:
        outcomes = work(*args)
        for path in parquet_files(tmp_path):
            (tmp_path / path).unlink()  # as if it lay on another machine
        return outcomes

    monkeypatch.setattr(run, "_work", lost)
    with pytest.raises(JobError, match="an executor reported this file as written"):
        run.run()
    assert Manifest(tmp_path).load().version == 0
    archiver(SPARK, tmp_path, lake, uniq).run()
    assert keys(tmp_path) == expected(uniq, 50)


def test_what_comes_after_the_first_run_is_archived(
    lake: Server, uniq: str, tmp_path: Path
) -> None:
    """That one finds nothing to do, as it is to leave alone what is there."""
    fill(lake, uniq, numbered(50))
    for more in (0, 30, 20):
        fill(lake, uniq, numbered(more))
        archiver(SPARK, tmp_path, lake, uniq, uniq + "-new", latest=True).run()
    fill(lake, uniq + "-new", numbered(5))
    archiver(SPARK, tmp_path, lake, uniq, uniq + "-new", latest=True).run()
    found = keys(tmp_path)
    assert [seq for topic, _, seq in found if topic == uniq] == list(range(51, 101))
    assert [seq for topic, _, seq in found if topic != uniq] == list(range(1, 6))


@pytest.mark.parametrize(
    ("name", "count", "resumed"), [("commit", 0, True), ("remove_saved", 300, False)]
)
def test_killed_around_the_manifest(
    lake: Server, uniq: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    name: str, count: int, resumed: bool,
) -> None:  # fmt: skip
    """All files are written, and the version that names them is not; or it is, and no more."""
    fill(lake, uniq, numbered(300))
    with monkeypatch.context() as patch:
        patch.setattr(Manifest, name, die)
        with pytest.raises(Killed):
            archiver(SPARK, tmp_path, lake, uniq, task_records=100).run()
    assert keys(tmp_path) == expected(uniq, count)
    left = parquet_files(tmp_path)
    assert len(left) == 3
    fill(lake, uniq, numbered(100, 300))
    said: list[str] = []
    archiver(SPARK, tmp_path, lake, uniq, said=said, task_records=333).run()
    assert any("unfinished batch" in line for line in said) == resumed
    assert keys(tmp_path) == expected(uniq, 400)
    assert left < parquet_files(tmp_path) == counted(tmp_path)


def test_killed_in_a_task(
    lake: Server, uniq: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(lake, uniq, numbered(300))
    map_ = Tasks.map

    def some(self: Tasks, function: Callable[[Any], Any]) -> Tasks:
        if len(self.items) < 3:  # the look whether the folder is shared
            return map_(self, function)
        map_(Tasks(self.items[:2], self.spark), function)
        (tmp_path / next(iter(parquet_files(tmp_path)))).with_name(".abc.tmp").write_bytes(b"PAR1")
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Tasks, "map", some)
        with pytest.raises(Killed):
            archiver(SPARK, tmp_path, lake, uniq, task_records=100).run()
    assert len(parquet_files(tmp_path)) == 3
    archiver(SPARK, tmp_path, lake, uniq).run()
    assert keys(tmp_path) == expected(uniq, 300)
    assert parquet_files(tmp_path) == counted(tmp_path)


def test_tasks_that_run_twice(
    lake: Server, uniq: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(lake, uniq, numbered(300))
    map_ = Tasks.map

    def twice(self: Tasks, function: Callable[[Any], Any]) -> Tasks:
        map_(self, function)
        return map_(self, function)

    monkeypatch.setattr(Tasks, "map", twice)
    archiver(SPARK, tmp_path, lake, uniq, task_records=100).run()
    assert keys(tmp_path) == expected(uniq, 300)
    assert parquet_files(tmp_path) == counted(tmp_path)


def test_a_broker_that_is_killed_in_a_batch(
    start_broker: StartBroker, uniq: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start_broker(SYNCED)
    fill(server, uniq, numbered(500))
    map_, killed = Tasks.map, []

    def some(self: Tasks, function: Callable[[Any], Any]) -> Tasks:
        first = map_(Tasks(self.items[:2], self.spark), function)
        if not killed and len(self.items) > 2:
            server.kill()
            killed.append(True)
        rest = map_(Tasks(self.items[2:], self.spark), function)
        return Tasks([*first.items, *rest.items], self.spark)

    monkeypatch.setattr(Tasks, "map", some)
    said: list[str] = []
    run = archiver(
        SPARK, tmp_path / "lake", server, uniq, said=said, task_records=100, patience_s=30.0
    )
    run.reporter = lambda line: (said.append(line), server.start()) if "wait" in line else None
    run.run()
    assert said[0].startswith("archive: 3 of 5 tasks wait")
    assert keys(tmp_path / "lake") == expected(uniq, 500)


def test_a_broker_that_does_not_come_back(
    start_broker: StartBroker, uniq: str, tmp_path: Path
) -> None:
    server = start_broker(SYNCED)
    fill(server, uniq, numbered(10))
    server.kill()
    with pytest.raises(BrokerDownError, match="not reached"):  # at once: it may be a wrong address
        archiver(SPARK, tmp_path / "lake", server, uniq, patience_s=1e9).run()
    again = archiver(SPARK, tmp_path / "lake", server, uniq)
    again.job = replace(again.job, every_s=0.0)
    with pytest.raises(JobError, match="retried for 0 s"):
        again.run()
    server.start()
    archiver(SPARK, tmp_path / "lake", server, uniq).run()
    assert keys(tmp_path / "lake") == expected(uniq, 10)


def test_trimmed_records_end_the_job_or_are_a_gap(tmp_path: Path) -> None:
    log = FakeLog({n: record(n, b"x") for n in range(1, 31)}, 21)
    with FakeBulkApi(log) as bulk:
        archiver(SPARK, tmp_path, bulk.address, "t").run()
        log.first, log.next = 26, 31
        with pytest.raises(JobError, match=r"records 21 to 25 were removed .* --on-loss gap"):
            archiver(SPARK, tmp_path, bulk.address, "t").run()
        said: list[str] = []
        archiver(SPARK, tmp_path, bulk.address, "t", said=said, gaps=True).run()
        archiver(SPARK, tmp_path, bulk.address, "t", said=said).run()
    state = Manifest(tmp_path).load()
    assert [gap[3:] for gap in state.gaps] == [(21, 26, "trimmed")]
    assert [offset for _, _, offset in keys(tmp_path)] == [*range(1, 21), *range(26, 31)]
    assert [one[3:] for one in state.ranges] == [(1, 31)]
    assert sum("records 21 to 25 were removed" in line for line in said) == 1


def test_records_that_are_trimmed_while_the_batch_is_read(tmp_path: Path) -> None:
    log = FakeLog({n: record(n, b"x") for n in range(1, 31)}, 31)

    def answer(asked: Any) -> Any:
        if asked.query.get("start") == "10":
            log.first = 15
        return log(asked)

    with FakeBulkApi(answer) as bulk:
        with pytest.raises(JobError, match="records 10 to 14 were removed"):
            archiver(SPARK, tmp_path, bulk.address, "t").run()
        assert keys(tmp_path) == []
        log.first = 1
        archiver(SPARK, tmp_path, bulk.address, "t", gaps=True).run()
    assert [gap[3:] for gap in Manifest(tmp_path).load().gaps] == [(10, 15, "trimmed")]
    assert [offset for _, _, offset in keys(tmp_path)] == [*range(1, 10), *range(15, 31)]


def test_a_damaged_segment_is_reported_and_written_down(
    start_broker: StartBroker, uniq: str, tmp_path: Path
) -> None:
    server = start_broker(SYNCED)
    fill(server, uniq, [b"%05d" % n * 20 for n in range(1000)])
    server.stop()
    segment = max(
        (path for path in server.data.rglob("*") if path.is_file()), key=lambda p: p.stat().st_size
    )
    data = bytearray(segment.read_bytes())
    at = data.find(b"00500" * 20)
    data[at : at + 40] = os.urandom(40)
    segment.write_bytes(data)
    server.start()
    said: list[str] = []
    archiver(SPARK, tmp_path / "lake", server, uniq, said=said).run()
    gaps = Manifest(tmp_path / "lake").load().gaps
    lost = {n for gap in gaps for n in range(gap.first, gap.next)}
    found = {offset for _, _, offset in keys(tmp_path / "lake")}
    assert 501 in lost
    assert not found & lost
    assert found | lost == set(range(1, 1001))
    assert any("damaged; this is in the manifest" in line for line in said)


def test_a_topic_that_is_deleted_and_made_anew(lake: Server, uniq: str, tmp_path: Path) -> None:
    fill(lake, uniq, numbered(20))
    archiver(SPARK, tmp_path, lake, uniq).run()
    assert request(lake.nsq_http, "POST", "/topic/delete", topic=uniq).status == 200
    with pytest.raises(JobError, match="was deleted; it is archived up to 21"):
        archiver(SPARK, tmp_path, lake, uniq).run()
    fill(lake, uniq, numbered(20, 100))
    with pytest.raises(JobError, match="deleted and recreated"):
        archiver(SPARK, tmp_path, lake, uniq).run()
    archiver(SPARK, tmp_path, lake, uniq, gaps=True).run()
    archiver(SPARK, tmp_path, lake, uniq).run()
    assert sorted(int(row["value"]) for row in rows(tmp_path)) == [*range(20), *range(100, 120)]
    (gap,) = Manifest(tmp_path).load().gaps
    assert isinstance(gap, Gap)
    assert (gap.first, gap.next, gap.reason) == (21, 21, "made anew")


def test_two_brokers_with_the_same_topic(
    start_broker: StartBroker, uniq: str, tmp_path: Path
) -> None:
    """And one of them is down for a while: the other is archived, and the job says so."""
    servers = [start_broker({**SYNCED, "bulk": {"partition": n}}) for n in range(2)]
    for server in servers:
        fill(server, uniq, numbered(30))
    addresses = ",".join(str(server.bulk) for server in servers)
    servers[1].kill()
    with pytest.raises(ConnectionError, match="not reached"):
        archiver(SPARK, tmp_path / "lake", addresses, uniq).run()
    assert {partition for _, partition, _ in keys(tmp_path / "lake")} == {0}
    servers[1].start()
    archiver(SPARK, tmp_path / "lake", addresses, uniq).run()
    assert keys(tmp_path / "lake") == [(uniq, p, n) for p in (0, 1) for n in range(1, 31)]


def test_bodies_and_headers_of_all_kinds(lake: Server, uniq: str, tmp_path: Path) -> None:
    make_topic(lake, uniq)
    for body, headers in SURPRISES:
        fill(lake, uniq, [body], headers)
    archiver(SPARK, tmp_path, lake, uniq, key_header="H7").run()
    found = rows(tmp_path)
    assert [row["value"] for row in found] == [body for body, _ in SURPRISES]
    assert [len(row["headers"] or []) for row in found] == [0, 0, 0, 200, 3, 2]
    assert found[3]["headers"][199] == {"key": "H199", "value": b"v199"}
    assert found[4]["headers"][0] == {"key": "A", "value": b"\xff\xfe"}
    assert [row["key"] for row in found] == [None, None, None, b"v7", None, None]
    assert {row["subject"] for row in found} == {uniq}


def test_brokers_keep_what_is_not_archived(lake: Server, uniq: str, tmp_path: Path) -> None:
    """The place moves with each version of the manifest."""
    fill(lake, uniq, numbered(20))
    run = archiver(SPARK, tmp_path, lake, uniq, hold=True, batch_records=10)
    places: list[Any] = []
    name = f"archive-{Manifest(tmp_path).id()}"

    def look(_line: str) -> None:
        with Connection(str(lake.bulk)) as connection:
            places.append(connection.readers(name))

    run.reporter = look
    run.run()
    look("")
    seqs = [place["readers"][0]["positions"][uniq]["seq"] for place in places]
    assert seqs == [1, 11, 21]
    assert all(place["readers"][0]["hold"] for place in places)
