"""A replay publishes each record once, in order, whoever is killed in between.

Tasks run in this process, with no Java; tests/spark has the same job on Spark.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")

from support import Server
from support.archives import archiver
from support.fakes.spark import FakeSpark
from support.live.spark import SYNCED, fill, numbered

from broker.client.bulk import BulkError, read_arrow
from broker.spark.archive.manifest import Manifest
from broker.spark.archive.replay import ReplaySelection
from broker.spark.jobs.command import Job
from broker.spark.jobs.compact import Compacter, CompactOptions
from broker.spark.jobs.errors import JobError
from broker.spark.jobs.replay import Replayer, ReplayOptions, build

SPARK: Any = FakeSpark()


class Killed(BaseException):
    """Nothing of the job runs after this."""


@pytest.fixture
def lake(broker_for: Callable[[Any], Server]) -> Server:
    return broker_for(SYNCED)


@pytest.fixture
def folder(lake: Server, uniq: str, tmp_path: Path) -> Path:
    """An archive of 100 records, the first 50 with a header."""
    fill(lake, uniq, numbered(50), b"NATS/1.0\r\nA: b\r\n\r\n")
    fill(lake, uniq, numbered(50, 50))
    archiver(SPARK, tmp_path / "lake", lake, uniq, task_records=30).run()
    return tmp_path / "lake"


def replayer(
    server: Server, folder: Path, id_: str, selection: ReplaySelection, **more: Any
) -> Replayer:
    replaying = ReplayOptions(str(folder), id_, selection, {"to": selection.to}, **more)
    job = Job({"servers": str(server.bulk), "fetchRetries": "1"}, {})
    return build(SPARK, job, replaying, lambda _line: None)


def published(server: Server, topic: str) -> list[tuple[int, list[tuple[str, bytes]]]]:
    table = read_arrow(str(server.bulk), topic, columns=["offset", "value", "headers"])
    return [
        (int(row["value"]), [(h["key"], h["value"]) for h in row["headers"] or []])
        for row in table.to_pylist()
    ]


def test_all_of_it_in_order_and_only_once(
    lake: Server, folder: Path, uniq: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And `compact` comes in between, and the job is killed after a commit that it did not save."""
    selection = ReplaySelection(uniq + "-again", epoch_records=40)
    save = Manifest.save

    def die(self: Manifest, name: str, value: Any) -> None:
        if name.endswith(".done.json") and value["epoch"] == 2:
            raise Killed
        save(self, name, value)

    with monkeypatch.context() as patch:
        patch.setattr(Manifest, "save", die)
        with pytest.raises(Killed):
            replayer(lake, folder, f"all-{uniq}", selection).run()
    assert len(published(lake, uniq + "-again")) == 80
    tomorrow = datetime.now(UTC) + timedelta(days=2)
    Compacter(SPARK, CompactOptions(str(folder)), lambda _line: None).run(tomorrow)
    assert len(Manifest(folder).load().files) == 1
    for _ in range(2):
        replayer(lake, folder, f"all-{uniq}", selection).run()
    found = published(lake, uniq + "-again")
    assert [n for n, _ in found] == list(range(100))
    first, last = found[0][1], found[-1][1]
    assert first == [("A", b"b"), ("Twinwire-Replay-Of", f"{uniq}:0:1".encode())]
    assert last == [("Twinwire-Replay-Of", f"{uniq}:0:100".encode())]
    with pytest.raises(JobError, match="started with other options: --to"):
        replayer(lake, folder, f"all-{uniq}", ReplaySelection("elsewhere")).run()


def test_the_same_id_for_another_archive(
    lake: Server, folder: Path, uniq: str, tmp_path: Path
) -> None:
    """The broker knows the epochs of the first one by then."""
    other = tmp_path / "other"
    archiver(SPARK, other, lake, uniq, task_records=30).run()
    for number, source in enumerate((folder, other)):
        replayer(lake, source, f"same-{uniq}", ReplaySelection(f"{uniq}-again")).run()
        assert len(published(lake, f"{uniq}-again")) == 100 * (number + 1)


def test_a_broker_that_is_killed_in_a_replay(
    start_broker: Callable[..., Server], lake: Server, folder: Path, uniq: str
) -> None:
    server = start_broker(SYNCED)
    selection = ReplaySelection("{topic}-again", epoch_records=30)
    run = replayer(server, folder, "x", selection)
    run.reporter = lambda line: server.kill() if "batch 2" in line else None
    with pytest.raises((JobError, BulkError)):
        run.run()
    server.start()
    replayer(server, folder, "x", selection).run()
    assert [n for n, _ in published(server, f"{uniq}-again")] == list(range(100))


def test_the_rate(lake: Server, folder: Path, uniq: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits are asked for, not waited for."""
    run = replayer(
        lake, folder, uniq, ReplaySelection("{topic}-slowly", epoch_records=20), rate=0.1
    )
    waits: list[float] = []
    monkeypatch.setattr(run.stop, "wait", waits.append)
    run.run()
    assert [round(wait) for wait in waits] == pytest.approx([200, 400, 600, 800, 1000], abs=60)


@pytest.mark.parametrize(
    ("id_", "selection", "text"),
    [
        ("a b", ReplaySelection("x"), "--replay-id"),
        ("x", ReplaySelection("x", subject="a..b"), "--subject"),
        ("x", ReplaySelection("x", topics=("none",)), "has no records of these"),
    ],
)
def test_what_cannot_be_meant(
    lake: Server, folder: Path, id_: str, selection: ReplaySelection, text: str
) -> None:
    with pytest.raises(JobError, match=text):
        replayer(lake, folder, id_, selection).run()
