"""`rollup` on live brokers, without Spark's own machinery: counts against what was done."""

from __future__ import annotations

import time
import xml.etree.ElementTree as ET
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")

from click.testing import CliRunner
from support import Server
from support.clients.http import request
from support.clients.nsq import MESSAGE, Wire, body
from support.fakes.spark import FakeSpark

from broker.client.bulk.connection import Connection
from broker.spark.errors import BrokerDownError
from broker.spark.jobs import rollup
from broker.spark.jobs.archive import ArchiveOptions, Archiver
from broker.spark.jobs.command import Job
from broker.spark.jobs.rollup import Roller, RollupOptions

pytestmark = pytest.mark.only_ours

EVENTS = "deliveries"
CONFIG: dict[str, Any] = {
    "storage": {"sync": "none", "topic": [{"pattern": "sick.*", "max_attempts": 2}]},
    "events": {"topic": EVENTS, "linger": "off"},
}


@pytest.fixture(scope="module")
def broker_with_events(broker_for: Callable[[dict[str, Any]], Server]) -> Server:
    """A broker that writes delivery events."""
    return broker_for(CONFIG)


def publish(server: Server, topic: str, count: int, start: int = 0) -> None:
    for what, more in (("topic", {}), ("channel", {"channel": "ch"})):
        made = request(server.nsq_http, "POST", f"/{what}/create", topic=topic, **more)
        assert made.status == 200
    lines = b"\n".join(b"%d" % n for n in range(start, start + count))
    assert request(server.nsq_http, "POST", "/mpub", lines, topic=topic).status == 200


def consume(server: Server, topic: str, count: int) -> None:
    """Until so many are done with: a fifth is given back once, a tenth of `sick` for good."""
    sick = topic.startswith("sick.")
    done = 0
    with Wire(server.nsq) as wire:
        wire.send(b"SUB %s ch\nRDY 50\n" % topic.encode())
        while done < count:
            kind, data = wire.frame()
            if kind != MESSAGE:
                continue
            number, attempt = int(data[26:]), data[9]
            dies = sick and number % 10 == 0
            back = dies or (number % 5 == 0 and attempt == 1)
            wire.send((b"REQ %s 0\n" if back else b"FIN %s\n") % data[10:26])
            done += not back or (dies and attempt == 2)
        wire.send(b"CLS\n")
        while wire.frame()[1] != b"CLOSE_WAIT":
            pass


def job_of(server: Server | None, *topics: str) -> Job:
    servers = {} if server is None else {"servers": str(server.bulk)}
    return Job(servers, {"subscribe": ",".join(topics)})


def roller(folder: Path, server: Server | None, *topics: str, **more: Any) -> Roller:
    rolling = RollupOptions(str(folder), **{"events_topic": EVENTS, **more})
    return Roller(FakeSpark(), job_of(server, *topics), rolling, lambda _line: None)  # type: ignore[arg-type]


def sums(roller: Roller, kind: str, topic: str, *names: str) -> tuple[int, ...]:
    rows = [row for row in roller.store.rows(kind) if row["topic"] == topic]
    return tuple(sum(row[name] for row in rows) for name in names)


def page(folder: Path) -> str:
    root = ET.fromstring((folder / "report.html").read_text().partition("\n")[2])
    return "\n".join(root.itertext())


def later() -> int:
    """A time at which all windows are over, in us."""
    return int((datetime.now(UTC) + timedelta(days=2)).timestamp()) * 10**6


def test_records_and_deliveries(broker_with_events: Server, uniq: str, tmp_path: Path) -> None:
    topic = f"sick.{uniq}"
    publish(broker_with_events, topic, 300)
    consume(broker_with_events, topic, 300)
    counting = roller(tmp_path, broker_with_events, topic)
    assert counting.count() == ()
    assert sums(counting, "topics", topic, "records", "holes") == (300, 0)
    size = sum(len(str(n)) for n in range(300))
    assert sums(counting, "topics", topic, "bytes") == (size,)
    names = ("acked", "dead", "requeued", "timed_out", "closed", "lost")
    assert sums(counting, "channels", topic, *names) == (270, 30, 90, 0, 0, 0)
    (row,) = [r for r in counting.store.rows("channels") if r["topic"] == topic]
    assert row["attempts"] == {1: 240, 2: 30}
    assert 0 < row["latency_p50_ns"] <= row["latency_p99_ns"] <= row["latency_max_ns"]
    text = page(tmp_path)
    assert topic in text
    assert "10 %" in text


def test_it_may_run_as_often_as_one_likes(
    broker_with_events: Server, uniq: str, tmp_path: Path
) -> None:
    topic = f"sick.{uniq}"
    publish(broker_with_events, topic, 50)
    consume(broker_with_events, topic, 50)
    for _ in range(2):
        counting = roller(tmp_path, broker_with_events, topic)
        counting.count()
        assert sums(counting, "topics", topic, "records") == (50,)
    publish(broker_with_events, topic, 25, 100)
    consume(broker_with_events, topic, 25)
    counting = roller(tmp_path, broker_with_events, topic)
    counting.count(later())  # by now they are over
    assert sums(counting, "topics", topic, "records") == (75,)
    acked, dead = sums(counting, "channels", topic, "acked", "dead")
    assert acked + dead == 75
    rows = [row for row in counting.store.rows("topics") if row["topic"] == topic]
    assert {row["state"] for row in rows} == {"whole"}
    # what is over is not read again
    publish(broker_with_events, topic, 5, 500)
    assert counting.store.resume_times("topics")[topic] > rows[-1]["window_start"]


def test_an_archive_gives_the_same(broker_with_events: Server, uniq: str, tmp_path: Path) -> None:
    topic = f"sick.{uniq}"
    publish(broker_with_events, topic, 200)
    consume(broker_with_events, topic, 200)
    live = roller(tmp_path / "live", broker_with_events, topic)
    live.count()
    quiet: Any = lambda _line: None  # noqa: E731
    job = job_of(broker_with_events, topic, EVENTS)
    Archiver(FakeSpark(), job, ArchiveOptions(str(tmp_path / "lake"), hold=False), quiet).run()  # type: ignore[arg-type]
    archived = roller(tmp_path / "kept", None, topic, archive=str(tmp_path / "lake"))
    archived.count()
    for kind in ("topics", "channels"):
        rows, same = ([row for row in one.store.rows(kind) if row["topic"] == topic]
                      for one in (archived, live))  # fmt: skip
        assert rows == same
        assert rows


def test_only_the_windows_that_are_asked_for(
    broker_with_events: Server, uniq: str, tmp_path: Path
) -> None:
    publish(broker_with_events, uniq, 10)
    now = datetime.now(UTC)
    nothing = roller(tmp_path, broker_with_events, uniq, since=now + timedelta(hours=3))
    nothing.count()
    assert nothing.store.rows("topics") == []
    nothing = roller(tmp_path, broker_with_events, uniq, until=now - timedelta(hours=3))
    nothing.count()
    assert nothing.store.rows("topics") == []
    some = roller(tmp_path, broker_with_events, uniq, since=now - timedelta(hours=3), until=now)
    some.count()
    assert sums(some, "topics", uniq, "records") == (10,)


def test_without_events(broker_with_events: Server, uniq: str, tmp_path: Path) -> None:
    publish(broker_with_events, uniq, 10)
    counting = roller(tmp_path, broker_with_events, uniq, events_topic="", window_s=60)
    counting.run()
    assert sums(counting, "topics", uniq, "records") == (10,)
    assert counting.store.rows("channels") == []
    assert "--events" in page(tmp_path)


def test_what_was_trimmed(broker_for: Callable[..., Server], uniq: str, tmp_path: Path) -> None:
    server = broker_for({
        "storage": {"sync": "none", "segment_size": "16KiB",
                    "topic": [{"pattern": "short", "max_bytes": "64KiB"}]},
    })  # fmt: skip
    for at in range(0, 2000, 50):
        block = b"\n".join(b"%d" % n + b"x" * 200 for n in range(at, at + 50))
        assert request(server.nsq_http, "POST", "/mpub", block, topic="short").status == 200
    with Connection(str(server.bulk)) as bulk:
        deadline = time.monotonic() + 20
        while bulk.topics(["short"]).topics[0].bytes > 64 * 1024:  # segment by segment
            assert time.monotonic() < deadline
    counting = roller(tmp_path, server, "short", events_topic="")
    counting.count(later())
    (row,) = counting.store.rows("topics")
    assert row["state"] == "cut"
    assert row["last"] == 2000
    assert row["records"] == 2001 - row["first"] < 2000


def test_what_is_not_counted_yet_is_held(
    start_broker: Callable[..., Server], tmp_path: Path
) -> None:
    """Although every channel is done with it, and its window is counted a second time."""
    server = start_broker({"storage": {"sync": "none", "segment_size": "16KiB"}})

    def turn(number: int) -> int:
        publish(server, "t", 500, number * 500)
        consume(server, "t", 500)
        counting = roller(tmp_path, server, "t", events_topic="")
        counting.count()
        return sums(counting, "topics", "t", "records")[0]

    first = turn(0)  # of these the first may be gone before anybody counts them
    assert first <= 500
    assert turn(1) == first + 500
    assert turn(2) == first + 1000
    with Connection(str(server.bulk)) as bulk:
        (reader,) = bulk.readers()["readers"]
    assert "rollup-" in str(reader)


def test_a_broker_that_is_down(broker_with_events: Server, uniq: str, tmp_path: Path) -> None:
    publish(broker_with_events, uniq, 10)
    servers = {"servers": f"{broker_with_events.bulk},127.0.0.1:1", "fetchRetries": "0"}
    job = Job(servers, {"subscribe": uniq})
    counting = Roller(FakeSpark(), job, RollupOptions(str(tmp_path)), lambda _line: None)  # type: ignore[arg-type]
    with pytest.raises(BrokerDownError, match=r"127\.0\.0\.1:1"):
        counting.run()
    assert sums(counting, "topics", uniq, "records") == (10,)  # of those that are up


def test_foreign_records_among_the_events(
    broker_for: Callable[..., Server], uniq: str, tmp_path: Path
) -> None:
    server = broker_for({**CONFIG, "server": {"name": "foreign"}})
    publish(server, uniq, 10)
    consume(server, uniq, 10)
    with Wire(server.nsq) as wire:
        for text in (b"no events", b"TWEVENT1" + b"\xff" * 24):
            wire.send(body(b"PUB " + EVENTS.encode(), text))
            assert wire.frame()[1] == b"OK"
    counting = roller(tmp_path, server, uniq)
    counting.count()
    assert sums(counting, "channels", uniq, "acked") == (10,)
    assert "2 records of the events topic are not delivery events" in page(tmp_path)


def test_the_command(
    broker_with_events: Server, uniq: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rollup, "session", lambda *_: FakeSpark())
    publish(broker_with_events, uniq, 10)
    folder = tmp_path / "out"
    arguments = [
        str(folder),
        "--servers",
        str(broker_with_events.bulk),
        "--topics",
        uniq,
        "--window",
        "5m",
    ]
    found = CliRunner().invoke(rollup.command, [*arguments, "--report", str(tmp_path / "r.html")])
    assert found.exit_code == 0, found.output
    assert (tmp_path / "r.html").exists()
    assert list((folder / "topics" / "window=300s").glob("*.parquet"))
    for wrong, text in (
        (["--topics", "t"], "give --servers"),
        (["--servers", "a:1", "--topics", "t", "--window", "0.1s"], "between"),
        (["--servers", "a:1", "--topics", "t", "--since", "soon"], "invalid time"),
    ):
        refused = CliRunner().invoke(rollup.command, [str(folder), *wrong])
        assert refused.exit_code == 2
        assert text in refused.output
