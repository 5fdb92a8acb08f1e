"""`triage` on live brokers, without Spark's own machinery: groups, and each letter back once."""

from __future__ import annotations

import json
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")

from click.testing import CliRunner
from support import Server
from support.clients.http import request
from support.clients.nats import NatsClient
from support.clients.nsq import MESSAGE, Wire
from support.fakes.spark import FakeSpark

from broker.client.bulk import iter_arrow
from broker.client.bulk.connection import Connection
from broker.client.bulk.errors import Unreachable
from broker.spark.jobs import triage
from broker.spark.jobs.command import Job
from broker.spark.jobs.errors import JobError
from broker.spark.jobs.triage import Triage, TriageOptions
from broker.spark.triage.tasks import Found

pytestmark = pytest.mark.only_ours

CONFIG: dict[str, Any] = {
    "storage": {"sync": "none", "topic": [{"pattern": "sick.*", "max_attempts": 1}]}
}


@pytest.fixture(scope="module")
def sick(broker_for: Callable[[dict[str, Any]], Server]) -> Server:
    """A broker with topics whose messages die at once."""
    return broker_for(CONFIG)


def publish(server: Server, topic: str, bodies: list[bytes], headers: bytes = b"") -> None:
    assert request(server.nsq_http, "POST", "/topic/create", topic=topic).status == 200
    made = request(server.nsq_http, "POST", "/channel/create", topic=topic, channel="ch")
    assert made.status == 200
    client = NatsClient(server.nats)
    for text in bodies:
        client.pub(topic, text, headers=headers)
    client.ping()
    client.close()


def dead(server: Server, topic: str) -> int:
    """How many have arrived among the dead letters."""
    page = request(server.nsq_http, "GET", "/v1/deadletters", topic=topic).json
    return sum(int(channel["dead_letters"]) for channel in page["channels"])


def kill(server: Server, topic: str, count: int) -> None:
    """Give so many back, which is once too often, and wait until they are dead letters."""
    wanted = dead(server, topic) + count
    deadline = time.monotonic() + 20
    with Wire(server.nsq) as wire:
        wire.send(b"SUB %s ch\nRDY 50\n" % topic.encode())
        while count:
            kind, data = wire.frame()
            if kind == MESSAGE:
                wire.send(b"REQ %s 0\n" % data[10:26])
                count -= 1
        wire.send(b"CLS\n")
        while wire.frame()[1] != b"CLOSE_WAIT":
            pass
    while dead(server, topic) < wanted:
        assert time.monotonic() < deadline


def records(server: Server, topic: str) -> list[dict[str, Any]]:
    """All there is in a topic's log."""
    columns = ["offset", "value", "headers"]
    return [row for batch in iter_arrow(str(server.bulk), topic, columns=columns)
            for row in batch.to_pylist()]  # fmt: skip


def run(server: Server, topic: str, tmp_path: Path, *requeue: str, **more: Any) -> Found:
    job = Job({"servers": str(server.bulk)}, {"subscribe": f"{topic}.dead"})
    options = TriageOptions(str(tmp_path / "t.html"), requeue=requeue, **more)
    return Triage(FakeSpark(), job, options, lambda _line: None).run()  # type: ignore[arg-type]


def page(tmp_path: Path) -> str:
    root = ET.fromstring((tmp_path / "t.html").read_text().partition("\n")[2])
    return "\n".join(root.itertext())


def test_groups(sick: Server, uniq: str, tmp_path: Path) -> None:
    topic = f"sick.{uniq}"
    bodies = [b'{"id": %d}' % n for n in range(20)] + [b"\xff%d" % n for n in range(5)]
    publish(sick, topic, [*bodies, b'{"name": "<script>alert(1)</script>"}'])
    kill(sick, topic, 26)
    found = run(sick, topic, tmp_path)
    shapes = {key.shape: group.count for key, group in found.groups.items()}
    assert shapes == {'{"id": number}': 20, "binary": 5, '{"name": string}': 1}
    for key, group in found.groups.items():
        assert key[:4] == (f"{topic}.dead", "requeue", topic, "ch")
        assert group.attempts_most == 1
        assert len(group.samples) == min(group.count, 3)
        assert all(sample.published_us is not None for sample in group.samples)
    assert sum(found.hours.values()) == 26
    text = page(tmp_path)
    assert "<script>alert(1)</script>" in text  # as text: the page has no such element
    assert all(key.id in text for key in found.groups)
    run(sick, topic, tmp_path, samples=False)
    assert "<script>" not in page(tmp_path)


def test_a_group_goes_back_once(sick: Server, uniq: str, tmp_path: Path) -> None:
    topic = f"sick.{uniq}"
    headers = b"NATS/1.0\r\nTrace: a1\r\n\r\n"
    publish(sick, topic, [b'{"id": %d}' % n for n in range(10)], headers)
    publish(sick, topic, [b"text %d" % n for n in range(5)])
    kill(sick, topic, 15)
    (group,) = [key.id for key in run(sick, topic, tmp_path).groups if key.shape == "text"]
    (back,) = run(sick, topic, tmp_path, group).back
    assert (back.count, back.first, back.last) == (5, 16, 20)
    assert [row["value"] for row in records(sick, topic)[15:]] == [b"text %d" % n for n in range(5)]
    assert run(sick, topic, tmp_path, group).back == []
    (back,) = run(sick, topic, tmp_path, "all").back  # the other one
    assert back.count == 10
    assert run(sick, topic, tmp_path, "all").back == []
    rows = records(sick, topic)[20:]
    assert [row["value"] for row in rows] == [b'{"id": %d}' % n for n in range(10)]
    for row in rows:
        by_key = {pair["key"]: pair["value"] for pair in row["headers"]}
        assert by_key["Trace"] == b"a1"
        assert not {"Twinwire-Topic", "Twinwire-Reason"} & set(by_key)
    assert "all" in page(tmp_path)


def test_what_dies_again_goes_back_again(sick: Server, uniq: str, tmp_path: Path) -> None:
    topic = f"sick.{uniq}"
    publish(sick, topic, [b"a", b"b"])
    kill(sick, topic, 2)
    assert run(sick, topic, tmp_path, "all").back[0].count == 2
    kill(sick, topic, 2)
    publish(sick, topic, [b"c"])
    kill(sick, topic, 1)
    assert run(sick, topic, tmp_path, "all").back[0].count == 3
    assert [row["value"] for row in records(sick, topic)] == [b"a", b"b", b"a", b"b", b"c", b"a",
                                                              b"b", b"c"]  # fmt: skip


@pytest.mark.parametrize("done", [False, True])
def test_a_run_that_was_killed_at_the_commit(
    sick: Server, uniq: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, done: bool
) -> None:
    """Before it, or after it and before the answer: the next run puts it right."""
    topic = f"sick.{uniq}"
    publish(sick, topic, [b"a%d" % n for n in range(7)])
    kill(sick, topic, 7)
    commit = Connection.commit

    def lost(self: Connection, *arguments: Any) -> Any:
        if done:
            commit(self, *arguments)
        raise Unreachable("cut off")

    monkeypatch.setattr(Connection, "commit", lost)
    with pytest.raises(Unreachable):
        run(sick, topic, tmp_path, "all")
    monkeypatch.undo()
    back = run(sick, topic, tmp_path, "all").back
    assert [one.count for one in back] == ([] if done else [7])
    assert len(records(sick, topic)) == 14


def test_a_broker_that_is_killed_in_between(
    start_broker: Callable[..., Server], tmp_path: Path
) -> None:
    server = start_broker(CONFIG)
    publish(server, "sick.a", [b"a%d" % n for n in range(50)])
    kill(server, "sick.a", 50)
    assert run(server, "sick.a", tmp_path, "all").back[0].count == 50
    server.kill()
    server.start()
    assert run(server, "sick.a", tmp_path, "all").back == []
    assert len(records(server, "sick.a")) == 100


def test_large_letters_in_their_order(sick: Server, uniq: str, tmp_path: Path) -> None:
    topic = f"sick.{uniq}"
    bodies = [b"%02d" % n + b"x" * 700_000 for n in range(12)]  # more than one block
    publish(sick, topic, bodies)
    kill(sick, topic, 12)
    died = [row["value"] for row in records(sick, f"{topic}.dead")]
    assert sorted(died) == bodies
    assert run(sick, topic, tmp_path, "all").back[0].count == 12
    # those that died may have been dropped from the log meanwhile
    back = [row["value"] for row in records(sick, topic) if row["offset"] > len(bodies)]
    assert back == died


def test_headers_that_nobody_should_write(sick: Server, uniq: str, tmp_path: Path) -> None:
    topic = f"sick.{uniq}"
    publish(sick, topic, [b"x"], b"NATS/1.0\r\nC : d\r\nG: h\nI: j\r\n\r\n")
    kill(sick, topic, 1)
    assert run(sick, topic, tmp_path, "all").back[0].count == 1
    headers = [(pair["key"], pair["value"]) for pair in records(sick, topic)[-1]["headers"]]
    assert headers[-2:] == [("C ", b"d"), ("G", b"h\nI: j")]


LETTER = (
    b"NATS/1.0\r\nTwinwire-Topic: %s\r\nTwinwire-Channel: ch\r\nTwinwire-Reason: %s\r\n"
    b"Twinwire-Attempts: %s\r\nTwinwire-Timestamp: %s\r\n\r\n"
)


def test_letters_that_somebody_made_up(sick: Server, uniq: str, tmp_path: Path) -> None:
    topic = f"sick.{uniq}"
    publish(sick, f"{topic}.dead", [b"no headers"])
    odd = LETTER % (b"nowhere", b"<b>%s{0}" + b"y" * 500, b"-1", b"9" * 30)
    publish(sick, f"{topic}.dead", [b"x"], odd)
    publish(sick, f"{topic}.dead", [b"x"], LETTER % (b"t" * 400, b"r", b"1", b"9" * 18))
    far = LETTER % (topic.encode(), b"timeout", b"1", b"9" * 19)  # the year 2286
    publish(sick, f"{topic}.dead", [b"x"], far)
    found = run(sick, topic, tmp_path)
    by_origin = {key.origin: key for key in found.groups}
    assert set(by_origin) == {"", "nowhere", topic}
    assert not by_origin[""].can_go_back
    assert len(by_origin["nowhere"].reason) == 64
    page(tmp_path)
    with pytest.raises(JobError, match="'nowhere', which broker 0 does not have"):
        run(sick, topic, tmp_path, by_origin["nowhere"].id)
    with pytest.raises(JobError, match="carry no origin"):
        run(sick, topic, tmp_path, by_origin[""].id)
    with pytest.raises(JobError, match="unknown group 123"):
        run(sick, topic, tmp_path, "123")


def test_old_letters_stay(
    sick: Server, uniq: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By then the broker may have forgotten that it sent them."""
    topic = f"sick.{uniq}"
    publish(sick, topic, [b"a"])
    kill(sick, topic, 1)
    monkeypatch.setattr(triage, "REMEMBERED_S", -60)
    found = run(sick, topic, tmp_path, "all")
    assert (found.back, found.skipped) == ([], 1)
    assert run(sick, topic, tmp_path, "all", older=True).back[0].count == 1


def test_no_letters(sick: Server, uniq: str, tmp_path: Path) -> None:
    found = run(sick, uniq, tmp_path, "all")
    assert found.groups == {}
    assert "There are no dead letters." in page(tmp_path)


def test_the_command(
    sick: Server, uniq: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(triage, "session", lambda *_: FakeSpark())
    topic = f"sick.{uniq}"
    publish(sick, topic, [b"a"])
    kill(sick, topic, 1)
    arguments = ["--servers", str(sick.bulk), "--report", str(tmp_path / "t.html"), "--json"]
    found = CliRunner().invoke(triage.command, arguments)  # the pattern is .*\.dead
    assert found.exit_code == 0, found.output
    lines = [json.loads(line) for line in found.stdout.splitlines()]
    (mine,) = [line for line in lines if line["origin"] == topic]
    assert (mine["count"], mine["can_go_back"], mine["sent_up_to"]) == (1, True, {})
    again = CliRunner().invoke(triage.command, [*arguments, "--requeue", mine["group"]])
    assert again.exit_code == 0, again.output
    refused = CliRunner().invoke(triage.command, [*arguments, "--requeue", "nothing"])
    assert refused.exit_code == 1
    assert "unknown group nothing" in refused.output
