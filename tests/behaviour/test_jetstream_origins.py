"""Mirrors and sources over real connections: what they copy, and what stops them."""

from __future__ import annotations

import base64
import json
import time
import urllib.request
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from support.clients.nats import Message, NatsClient

if TYPE_CHECKING:
    from conftest import StartBroker
    from support import Server

pytestmark = pytest.mark.only_ours

Row = tuple[int, str, bytes, bytes]  # seq, subject, headers, body
DEADLINE_S = 20.0


class Api:
    """A client that asks one request at a time."""

    def __init__(self, server: Server) -> None:
        self.client = NatsClient(server.nats, no_responders=True)
        self.client.sub("_INBOX.api")

    def ask(self, subject: str, data: bytes = b"", headers: bytes = b"") -> Message:
        self.client.pub(subject, data, "_INBOX.api", headers)
        return self.client.message()

    def api(self, verb: str, body: Any = None) -> dict[str, Any]:
        data = b"" if body is None else json.dumps(body).encode()
        answer: dict[str, Any] = json.loads(self.ask(f"$JS.API.{verb}", data).data)
        return answer

    def make(self, **config: Any) -> dict[str, Any]:
        answer = self.api(f"STREAM.CREATE.{config['name']}", config)
        assert "error" not in answer, answer
        return answer

    def update(self, **config: Any) -> dict[str, Any]:
        return self.api(f"STREAM.UPDATE.{config['name']}", config)

    def publish(self, subject: str, data: bytes = b"x", headers: str = "") -> dict[str, Any]:
        block = f"NATS/1.0\r\n{headers}\r\n\r\n".encode() if headers else b""
        answer: dict[str, Any] = json.loads(self.ask(subject, data, block).data)
        return answer

    def info(self, name: str) -> dict[str, Any]:
        return self.api(f"STREAM.INFO.{name}")

    def settled(self, name: str, last: int, lag: int = 0) -> dict[str, Any]:
        """The stream when it has that last sequence, and `lag` messages of its origins are left.
        Each answer is an event of the server."""
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            found = self.info(name)
            origins = [*found.get("sources", ()), *([found["mirror"]] if "mirror" in found else ())]
            left = sum(each["lag"] for each in origins)
            if (found["state"]["last_seq"], left) == (last, lag):
                return found
        raise AssertionError(found)

    def rows(self, name: str) -> list[Row]:
        state = self.info(name)["state"]
        return list(self._rows(name, range(state["first_seq"], state["last_seq"] + 1)))

    def _rows(self, name: str, seqs: range) -> Iterator[Row]:
        for seq in seqs:
            message = self.api(f"STREAM.MSG.GET.{name}", {"seq": seq}).get("message")
            if message is not None:
                headers = base64.b64decode(message.get("hdrs", ""))
                body = base64.b64decode(message.get("data", ""))
                yield message["seq"], message["subject"], headers, body


def source_of(row: Row) -> bytes:
    lines = row[2].split(b"\r\n")
    return next(line[20:] for line in lines if line.startswith(b"Nats-Stream-Source: "))


def test_a_mirror_has_the_same_sequences_times_and_messages(start_broker: StartBroker) -> None:
    api = Api(start_broker())
    api.make(name="A", subjects=["a.>"], first_seq=10)
    api.publish("a.1", b"one", "Nats-Expected-Last-Sequence: 9\r\nX: y")
    api.publish("a.2", b"two", "Nats-Expected-Stream: A")
    made = api.make(name="M", mirror={"name": "A"})
    assert made["mirror"] == {"name": "A", "lag": 0, "active": -1}
    api.settled("M", 11)
    api.publish("a.3", b"three")
    found = api.settled("M", 12)
    assert found["mirror"]["lag"] == 0
    assert found["mirror"]["active"] >= 0
    assert api.rows("M") == [
        (10, "a.1", b"NATS/1.0\r\nX: y\r\n\r\n", b"one"),
        (11, "a.2", b"", b"two"),
        (12, "a.3", b"", b"three"),
    ]
    for seq in range(10, 13):
        pair = [api.api(f"STREAM.MSG.GET.{name}", {"seq": seq})["message"] for name in ("A", "M")]
        assert pair[0]["time"] == pair[1]["time"]


def test_a_mirror_leaves_out_what_its_filter_does(start_broker: StartBroker) -> None:
    api = Api(start_broker())
    api.make(name="A", subjects=["a.*"])
    for number in range(1, 7):
        api.publish(f"a.{number % 2}", b"%d" % number)
    moved = [{"src": "a.1", "dest": "b.1"}]
    api.make(name="F", mirror={"name": "A", "filter_subject": "a.1"})
    api.make(name="T", mirror={"name": "A", "subject_transforms": moved, "opt_start_seq": 3})
    assert api.settled("F", 5)["mirror"]["filter_subject"] == "a.1"
    assert [(row[0], row[1]) for row in api.rows("F")] == [(1, "a.1"), (3, "a.1"), (5, "a.1")]
    assert api.settled("T", 5)["mirror"]["subject_transforms"] == moved
    assert [(row[0], row[1]) for row in api.rows("T")] == [(3, "b.1"), (5, "b.1")]


def test_the_transform_of_the_stream_itself_comes_after_that_of_its_origin(
    start_broker: StartBroker,
) -> None:
    server = start_broker({})
    api = Api(server)
    api.make(name="O", subjects=["o.*"])
    for name in ("1", "2"):
        api.publish(f"o.{name}")
    own = {"src": "o.*", "dest": "z.$1"}
    api.make(name="M", mirror={"name": "O"}, subject_transform=own)
    api.make(name="S", sources=[{"name": "O"}], subject_transform=own)
    moved = {"name": "O", "subject_transforms": [{"src": "o.*", "dest": "y.$1"}]}
    api.make(name="T", sources=[moved], subject_transform={"src": "y.*", "dest": "z.$1"})
    for name in "MST":
        api.settled(name, 2)
        assert [row[1] for row in api.rows(name)] == ["z.1", "z.2"], name


def test_blanks_inside_of_a_transform_change_nothing(start_broker: StartBroker) -> None:
    server = start_broker({})
    api = Api(server)
    api.make(name="O", subjects=["o.*"])
    api.publish("o.1")
    for name, token in (("A", "{{ wildcard(1) }}"), ("B", "{{partition(1, 1)}}")):
        source = {"name": "O", "subject_transforms": [{"src": "o.*", "dest": f"x.{token}"}]}
        api.make(name=name, sources=[source])
    api.make(name="C", mirror={"name": "O", "subject_transforms": [
        {"src": "o.*", "dest": "x.{{Wildcard( 1 )}}"}
    ]})  # fmt: skip
    for name, subject in (("A", "x.1"), ("B", "x.0"), ("C", "x.1")):
        api.settled(name, 1)
        assert [row[1] for row in api.rows(name)] == [subject]
    # what is copied once is not copied again, as the header of a message says how far that went
    api.client.close()
    server.kill()
    server.start()
    api = Api(server)
    api.publish("o.2")
    for name in "ABC":
        api.settled(name, 2)


def test_messages_older_than_the_start_are_left_out(start_broker: StartBroker) -> None:
    api = Api(start_broker())
    api.make(name="A", subjects=["a"])
    for _ in range(3):
        api.publish("a")
    moment = api.api("STREAM.MSG.GET.A", {"seq": 3})["message"]["time"]
    api.make(name="M", mirror={"name": "A", "opt_start_time": moment})
    assert api.settled("M", 3)["state"]["first_seq"] == 3


def test_sources_have_their_own_sequences(start_broker: StartBroker) -> None:
    api = Api(start_broker())
    api.make(name="A", subjects=["a.*"])
    api.make(name="B", subjects=["b"])
    api.publish("a.1", b"1", "Nats-Expected-Last-Sequence: 0\r\nX: y")
    api.publish("a.2", b"2")
    transforms = [{"src": "a.*", "dest": "from.{{wildcard(1)}}"}]
    made = api.make(
        name="S", subjects=["s"],
        sources=[{"name": "A", "subject_transforms": transforms}, {"name": "B"}],
    )  # fmt: skip
    assert [each["active"] for each in made["sources"]] == [-1, -1]
    api.settled("S", 2)
    api.publish("b", b"3")
    api.settled("S", 3)
    assert api.publish("s", b"4")["seq"] == 4
    assert [(row[1], row[3]) for row in api.rows("S")] == [
        ("from.1", b"1"), ("from.2", b"2"), ("b", b"3"), ("s", b"4"),
    ]  # fmt: skip
    rows = api.rows("S")
    assert rows[0][2].startswith(b"NATS/1.0\r\nX: y\r\nNats-Stream-Source: ")
    assert source_of(rows[0]) == b"A 1 a.* from.{{wildcard(1)}} a.1"
    assert source_of(rows[2]) == b"B 1 > > b"
    infos = api.info("S")["sources"]
    assert [(each["name"], each["seq"]) for each in infos] == [("A", 2), ("B", 1)]
    refused = api.publish("s", b"5", "Nats-Stream-Source: A 1000 > > a.1")
    assert refused["error"]["err_code"] == 10227


def test_sources_obey_limits_and_know_duplicates(start_broker: StartBroker) -> None:
    api = Api(start_broker())
    api.make(name="A", subjects=["a.*"])
    api.make(name="B", subjects=["b"])
    for subject in ("a.1", "a.2", "b"):
        api.publish(subject, b"x", "Nats-Msg-Id: same")
        api.publish(subject, b"y", f"Nats-Msg-Id: {subject}")
    both = [{"name": "A"}, {"name": "B"}]
    api.make(name="D", sources=both, duplicate_window=60_000_000_000)
    api.settled("D", 4)
    api.make(name="ALL", sources=both)
    api.settled("ALL", 5)
    api.make(name="ONE", sources=both, max_msgs_per_subject=1)
    assert api.settled("ONE", 5)["state"]["messages"] == 3
    api.make(
        name="KEEP", sources=both, max_msgs_per_subject=1, discard="new",
        discard_new_per_subject=True,
    )  # fmt: skip
    api.settled("KEEP", 3)


def test_a_full_stream_goes_on_when_it_has_room_and_harms_nobody(
    start_broker: StartBroker,
) -> None:
    api = Api(start_broker())
    api.make(name="A", subjects=["a"])
    api.make(name="FULL", sources=[{"name": "A"}], max_msgs=2, discard="new")
    api.make(name="LOST", sources=[{"name": "NOBODY"}])
    api.make(name="M", mirror={"name": "A"})
    for number in range(5):
        assert api.publish("a", b"%d" % number)["seq"] == number + 1
    api.settled("M", 5)
    [stopped] = api.settled("FULL", 2, 3)["sources"]
    assert stopped["seq"] == 2
    assert stopped["error"]["description"] == "maximum messages exceeded"
    [lost] = api.info("LOST")["sources"]
    assert lost["error"] == {"code": 404, "err_code": 10059, "description": "stream not found"}
    for last, lag in ((4, 1), (5, 0)):
        assert api.api("STREAM.PURGE.FULL")["success"]
        api.settled("FULL", last, lag)
    assert [row[3] for row in api.rows("FULL")] == [b"4"]


def test_an_origin_may_come_later_and_go(start_broker: StartBroker) -> None:
    api = Api(start_broker())
    api.make(name="M", mirror={"name": "A"})
    api.make(name="S", sources=[{"name": "A"}])
    api.make(name="A", subjects=["a"])
    api.publish("a", b"1")
    api.publish("a", b"2")
    api.settled("M", 2)
    api.settled("S", 2)
    assert api.api("STREAM.DELETE.A")["success"]
    assert api.info("M")["mirror"]["error"]["err_code"] == 10059
    api.make(name="A", subjects=["a"])
    for body in (b"new 1", b"new 2", b"3"):
        api.publish("a", body)
    assert [row[3] for row in (api.settled("S", 3), api.rows("S"))[1]] == [b"1", b"2", b"3"]
    api.settled("M", 3)
    assert [row[3] for row in api.rows("M")] == [b"1", b"2", b"3"]


def test_a_mirror_becomes_a_stream_and_sources_come_back(start_broker: StartBroker) -> None:
    api = Api(start_broker())
    api.make(name="A", subjects=["a"])
    api.publish("a", b"1")
    api.make(name="M", mirror={"name": "A"})
    api.make(name="S", subjects=["s"], sources=[{"name": "A"}])
    api.settled("M", 1)
    api.settled("S", 1)
    assert api.update(name="M", mirror={"name": "B"})["error"]["err_code"] == 10055
    assert api.update(name="S", mirror={"name": "A"})["error"]["err_code"] == 10055
    assert "error" not in api.update(name="M", subjects=["m"])
    assert "error" not in api.update(name="S", subjects=["s"])
    assert "sources" not in api.info("S")
    api.publish("a", b"2")
    assert api.publish("m", b"own")["seq"] == 2
    assert "error" not in api.update(name="S", subjects=["s"], sources=[{"name": "A"}])
    api.settled("S", 2)
    assert [source_of(row) for row in api.rows("S")] == [b"A 1 > > a", b"A 2 > > a"]
    assert [row[3] for row in api.rows("M")] == [b"1", b"own"]


def test_a_long_origin_is_copied_in_slices(start_broker: StartBroker) -> None:
    server = start_broker()
    api = Api(server)
    api.make(name="A", subjects=["a.*"])
    for number in range(19_999):
        api.client.pub(f"a.{number % 7}", b"%d" % number)
    assert api.publish("a.last")["seq"] == 20_000
    api.make(name="M", mirror={"name": "A"})
    api.make(name="MEM", mirror={"name": "A"}, storage="memory")
    api.make(name="S", sources=[{"name": "A", "filter_subject": "a.3"}])
    for name in ("M", "MEM"):
        assert api.settled(name, 20_000)["state"]["messages"] == 20_000
    assert api.settled("S", 2_857)["sources"][0]["lag"] == 0
    with urllib.request.urlopen(f"http://{server.monitor}/jsz?streams=true", timeout=10) as page:
        details = json.load(page)["account_details"][0]["stream_detail"]
    found = {each["name"]: each for each in details}
    assert found["M"]["mirror"]["name"] == "A"
    assert found["S"]["sources"][0]["seq"] == 19_996


def test_positions_outlive_messages(start_broker: StartBroker) -> None:
    """After a restart a source goes on where it was, also if its messages are gone."""
    server = start_broker()
    api = Api(server)
    api.make(name="A", subjects=["a"])
    api.make(name="S", sources=[{"name": "A"}])
    api.make(name="M", mirror={"name": "A", "filter_subject": "a"})
    for number in range(5):
        api.publish("a", b"%d" % number)
    for name in ("M", "S"):
        api.settled(name, 5)
    assert api.api("STREAM.PURGE.S")["purged"] == 5
    api.client.close()
    server.stop()
    server.start()
    api = Api(server)
    api.publish("a", b"5")
    api.settled("S", 6)
    assert [row[3] for row in api.rows("S")] == [b"5"]
    api.settled("M", 6)


def test_positions_are_saved_when_the_disk_works_again(start_broker: StartBroker) -> None:
    server = start_broker()
    api = Api(server)
    api.make(name="O", subjects=["o"])
    api.make(name="S", sources=[{"name": "O"}])
    (folder,) = (path for path in server.data.rglob("S") if (path / "stream.json").exists())
    in_the_way = folder / "sources.json.new"
    in_the_way.mkdir()
    api.publish("o", b"0")
    api.settled("S", 1)
    server.await_log("the positions of sources of stream 'S'")
    in_the_way.rmdir()
    deadline = time.monotonic() + DEADLINE_S
    while not (folder / "sources.json").exists():
        assert time.monotonic() < deadline
        api.info("S")
    api.api("STREAM.PURGE.S")
    server.kill()
    server.start()
    api = Api(server)
    api.publish("o", b"1")
    assert api.settled("S", 2)["state"]["messages"] == 1


def test_a_source_comes_back_after_a_restart(start_broker: StartBroker) -> None:
    server = start_broker()
    api = Api(server)
    api.make(name="A", subjects=["a"])
    api.make(name="S", subjects=["s"], sources=[{"name": "A"}])
    api.publish("a", b"1")
    api.settled("S", 1)
    assert "error" not in api.update(name="S", subjects=["s"])
    assert api.api("STREAM.PURGE.S")["purged"] == 1
    api.client.close()
    server.stop()
    server.start()
    api = Api(server)
    api.publish("a", b"2")
    assert "error" not in api.update(name="S", subjects=["s"], sources=[{"name": "A"}])
    api.settled("S", 2)
    assert [row[3] for row in api.rows("S")] == [b"2"]
