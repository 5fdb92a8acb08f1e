"""Direct get, as nats-server 2.15.2 answers."""

from __future__ import annotations

import errno
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.engine import OPEN, Rig

from broker.base.units import MIB
from broker.engine.stream.store import StreamLimits, open_store
from broker.protocols.jetstream.publish.stream import Stream
from broker.protocols.jetstream.structs import MsgGetRequest, StreamConfig
from broker.protocols.nats.accounts.account import Account, CurrentPublisher, Message
from broker.runtime import vfs

WALL = 1_795_646_345_958_437_836
SECOND = 10**9
Found = tuple[str, list[str], bytes]


class Case:
    """A stream D with five messages, one each second: d.a d.a d.a d.b d.c.d."""

    def __init__(self, rig: Rig, *, memory: bool = True) -> None:
        self.rig = rig
        self.account = Account("$G", rig.turn, CurrentPublisher(), rig.router)
        self.heard: list[Message] = []
        self.now = rig.loop.now_ns
        self.account.listen(b"reply", self.heard.append)
        limits = StreamLimits()
        store = open_store(rig.engine, "js.$G/D", limits, protocol="jetstream", memory=memory)
        config = StreamConfig(name="D", subjects=["d.>"], allow_direct=True, max_msg_size=-1)
        self.stream = Stream(self.account, store, config, 0, "hub")
        self.stream.start()
        for subject, data in (("d.a", b"a1"), ("d.a", b"a2"), ("d.a", b"a3")):
            self.send(subject, data)
        self.send("d.b", b"b1", b"NATS/1.0\r\nX: y\r\n\r\n")
        self.send("d.c.d", b"")

    def send(self, subject: str, data: bytes, headers: bytes = b"") -> None:
        self.account.publish(subject.encode(), data, b"", headers)
        self.rig.settle()
        self.now += SECOND
        self.rig.turn.set_clock(self.now, WALL + self.now)

    def get(
        self, body: Any = b"", key: str = "", *, head: str = "$JS.API", headers: bytes = b""
    ) -> list[Found]:
        """First line, other headers and data of each answer."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        subject = f"{head}.DIRECT.GET.D{'.' if key else ''}{key}".encode()
        self.heard.clear()
        assert self.account.publish(subject, data, b"reply", headers) == 1
        self.rig.settle()
        found = []
        for message in self.heard:
            first, *rest = message.headers.decode().split("\r\n")[:-2] or [""]
            found.append((first, rest, message.data))
        return found

    def one(self, body: Any = b"", key: str = "", **more: Any) -> Found:
        (found,) = self.get(body, key, **more)
        return found


@pytest.fixture
def case() -> Iterator[Case]:
    with Rig(None) as rig:
        yield Case(rig)


def seqs(found: list[Found]) -> list[int]:
    return [
        int(line.split()[1])
        for _, lines, _ in found
        for line in lines
        if line.startswith("Nats-Sequence: ")
    ]


def test_a_message_with_its_place(case: Case) -> None:
    first, lines, data = case.one({"seq": 4})
    assert (first, data) == ("NATS/1.0", b"b1")
    assert lines[:4] == ["X: y", "Nats-Stream: D", "Nats-Subject: d.b", "Nats-Sequence: 4"]
    assert re.fullmatch(r"Nats-Time-Stamp: \d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", lines[4])
    assert len(lines) == 5


@pytest.mark.parametrize(
    ("body", "seq"),
    [
        ({"seq": 2}, 2), ({"last_by_subj": "d.a"}, 3), ({"last_by_subj": "d.>"}, 5),
        ({"last_by_subj": "d.*"}, 4), ({"next_by_subj": "d.b"}, 4),
        ({"next_by_subj": "d.a", "seq": 2}, 2), ({"next_by_subj": "d.>", "seq": 4}, 4),
        ({"seq": 1, "bogus": 1}, 1), ({"seq": 1, "up_to_seq": 3}, 1),
        ({"seq": 1, "max_bytes": 9}, 1),
        ({"start_time": "2020-01-01T00:00:00Z"}, 1),
        ({"start_time": "2020-01-01T00:00:00Z", "next_by_subj": "d.b"}, 4),
    ],
)  # fmt: skip
def test_one_message(case: Case, body: dict[str, Any], seq: int) -> None:
    assert seqs(case.get(body)) == [seq]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", "408 Empty Request"), ({}, "408 Empty Request"), ({"bogus": 1}, "408 Empty Request"),
        ({"batch": 3}, "408 Empty Request"), ({"multi_last": []}, "408 Empty Request"),
        ({"up_to_seq": 3}, "408 Empty Request"),
        (b"junk", "408 Malformed Request"), (b"[1]", "408 Malformed Request"),
        ({"seq": "x"}, "408 Malformed Request"), ({"start_time": "x"}, "408 Malformed Request"),
        ({"seq": 1, "last_by_subj": "d.a"}, "408 Bad Request"),
        ({"last_by_subj": "d.a", "next_by_subj": "d.a"}, "408 Bad Request"),
        ({"start_time": "2020-01-01T00:00:00Z", "seq": 2}, "408 Bad Request"),
        ({"batch": 2, "last_by_subj": "d.a"}, "408 Bad Request"),
        ({"multi_last": ["d.>"], "last_by_subj": "d.a"}, "408 Bad Request"),
        ({"multi_last": ["d.>"], "next_by_subj": "d.a"}, "408 Bad Request"),
        ({"multi_last": ["d.>"], "up_to_seq": 3, "up_to_time": "2040-01-01T00:00:00Z"},
         "408 Bad Request"),
        ({"seq": 2, "up_to_seq": 3, "up_to_time": "2040-01-01T00:00:00Z"}, "408 Bad Request"),
        ({"seq": 99}, "404 Message Not Found"), ({"last_by_subj": "no"}, "404 Message Not Found"),
        ({"next_by_subj": "d.a", "seq": 9}, "404 Message Not Found"),
        ({"start_time": "2099-01-01T00:00:00Z"}, "404 Message Not Found"),
        ({"seq": 9, "batch": 2}, "404 Message Not Found"),
        ({"multi_last": ["x"]}, "404 No Results"),
        ({"multi_last": ["d.>"], "up_to_time": "2020-01-01T00:00:00Z"}, "404 No Results"),
    ],
)  # fmt: skip
def test_statuses(case: Case, body: Any, status: str) -> None:
    assert case.one(body) == (f"NATS/1.0 {status}", [], b"")


def test_the_body_alone(case: Case) -> None:
    assert case.one({"seq": 4, "no_hdr": True}) == ("", [], b"b1")
    assert case.one({"no_hdr": True}, "d.a") == ("", [], b"a3")
    assert case.one({"no_hdr": True, "max_bytes": 1}, "d.a") == ("", [], b"a3")  # no limit of one


def test_the_last_message_of_a_subject(case: Case) -> None:
    assert seqs(case.get(b"", "d.a")) == [3]
    assert seqs(case.get(b"", "d.*")) == [4]
    assert seqs(case.get(b"{}", "d.a")) == [3]
    assert case.one(b"", "d.x")[0] == "NATS/1.0 404 Message Not Found"
    assert case.one({"seq": 2}, "d.a")[0] == "NATS/1.0 408 Bad Request"
    assert case.one(b"junk", "d.a")[0] == "NATS/1.0 408 Malformed Request"


def test_a_request_sees_what_was_published_before_in_the_turn(case: Case) -> None:
    case.account.publish(b"d.a", b"a4", b"", b"")
    assert seqs(case.get(b"", "d.a")) == [6]


def test_messages_since_a_time(case: Case) -> None:
    times = [case.one({"seq": seq})[1] for seq in (1, 2, 3)]
    for seq, lines in enumerate(times, 1):
        (stamp,) = (line.partition(": ")[2] for line in lines if line.startswith("Nats-Time"))
        assert seqs(case.get({"start_time": stamp})) == [seq]


def test_a_domain_has_subjects_of_its_own(case: Case) -> None:
    assert seqs(case.get({"seq": 1}, head="$JS.hub.API")) == [1]
    assert seqs(case.get(b"", "d.a", head="$JS.hub.API")) == [3]


def test_a_level_that_the_server_does_not_have(case: Case) -> None:
    for level in (b"9", b"x"):
        headers = b"NATS/1.0\r\nNats-Required-Api-Level: %s\r\n\r\n" % level
        assert case.one({"seq": 1}, headers=headers)[0] == "NATS/1.0 412 Required Api Level"


def test_nobody_answers_when_it_is_not_allowed(case: Case) -> None:
    case.stream.configure(StreamConfig(name="D", subjects=["d.>"]))
    assert case.account.publish(b"$JS.API.DIRECT.GET.D", b'{"seq":1}', b"reply") == 0
    assert case.account.publish(b"$JS.API.DIRECT.GET.D.d.a", b"", b"reply") == 0
    case.stream.configure(StreamConfig(name="D", subjects=["d.>"], allow_direct=True))
    assert seqs(case.get({"seq": 1})) == [1]


# --- batches


def tail(found: list[Found]) -> list[list[str]]:
    """Of each answer what follows the time."""
    return [
        [line.removeprefix("Nats-") for line in lines if "Num-" in line or "Last-" in line]
        for _, lines, _ in found
    ]


def test_a_batch(case: Case) -> None:
    found = case.get({"seq": 1, "batch": 2})
    assert seqs(found) == [1, 2]
    assert found[-1][::2] == ("NATS/1.0 204 EOB", b"")
    assert tail(found) == [
        ["Num-Pending: 4", "Last-Sequence: 0"],
        ["Num-Pending: 3", "Last-Sequence: 1"],
        ["Num-Pending: 3", "Last-Sequence: 2"],
    ]


def test_a_batch_beyond_the_end(case: Case) -> None:
    found = case.get({"seq": 4, "batch": 9})
    assert seqs(found) == [4, 5]
    assert tail(found)[-1] == ["Num-Pending: 0", "Last-Sequence: 5"]


def test_a_batch_of_a_subject(case: Case) -> None:
    found = case.get({"seq": 2, "batch": 5, "next_by_subj": "d.a"})
    assert seqs(found) == [2, 3]
    assert tail(found) == [
        ["Num-Pending: 1", "Last-Sequence: 0"],
        ["Num-Pending: 0", "Last-Sequence: 2"],
        ["Num-Pending: 0", "Last-Sequence: 3"],
    ]
    assert seqs(case.get({"batch": 2, "next_by_subj": "d.a"})) == [1, 2]
    assert seqs(case.get({"batch": 2, "start_time": "2020-01-01T00:00:00Z"})) == [1, 2]


@pytest.mark.parametrize(("most", "count"), [(1, 1), (5, 1), (6, 2), (10, 2), (11, 3)])
def test_a_batch_ends_with_its_bytes(case: Case, most: int, count: int) -> None:
    """A message counts with its subject, headers and body; one is sent in any case."""
    assert len(seqs(case.get({"seq": 1, "batch": 9, "max_bytes": most}))) == count


def test_a_batch_of_bodies(case: Case) -> None:
    found = case.get({"seq": 1, "batch": 2, "no_hdr": True})
    assert [data for _, _, data in found] == [b"a1", b"a2", b""]
    assert found[:2] == [("", [], b"a1"), ("", [], b"a2")]
    assert tail(found)[-1] == ["Num-Pending: 5", "Last-Sequence: 2"]


def test_a_batch_of_less_than_none(case: Case) -> None:
    assert tail(case.get({"seq": 1, "batch": -1})) == [["Num-Pending: 5", "Last-Sequence: 0"]]


def test_a_long_batch_takes_several_turns(case: Case) -> None:
    for i in range(2000):
        case.account.publish(b"d.n", b"%d" % i)
    case.rig.settle()
    assert seqs(case.get({"seq": 1, "batch": 5000})) == list(range(1, 2006))


def test_many_batches_do_not_fill_one_turn(case: Case) -> None:
    """Other clients wait for a turn. Each batch is complete all the same."""
    count, batches = 600, 200
    for i in range(count):
        case.account.publish(b"d.n", b"%d" % i)
    case.rig.settle()
    for _ in range(batches):
        case.account.publish(
            b"$JS.API.DIRECT.GET.D", b'{"seq":1,"batch":600,"no_hdr":true}', b"reply"
        )
    case.rig.turn.end()
    case.rig.turn.end()  # reports what was sent in the first one
    assert 0 < len(case.heard) < 20_000
    case.rig.settle()
    assert len(case.heard) == (count + 1) * batches


def test_requests_for_one_message_do_not_wait_for_batches(case: Case) -> None:
    for i in range(600):
        case.account.publish(b"d.n", b"%d" % i)
    case.rig.settle()
    got: list[Message] = []
    case.account.listen(b"one", got.append)
    for _ in range(1500):
        case.account.publish(b"$JS.API.DIRECT.GET.D", b'{"seq":1,"batch":600}', b"reply")
    case.account.publish(b"$JS.API.DIRECT.GET.D", b'{"seq":7}', b"one")
    while not got:
        case.rig.turn.end()
    assert got[0].data == b"1"
    assert sum(each.headers.startswith(b"NATS/1.0 204 EOB") for each in case.heard) < 300


def test_waiting_requests_are_limited_in_bytes(case: Case) -> None:
    """They wait for several turns, and a client may send them faster."""
    case.account.publish(b"d.n", b"x")
    case.rig.settle()
    request = b'{"seq":1,"other":"%s"}' % (b"x" * MIB)
    for _ in range(100):
        case.account.publish(b"$JS.API.DIRECT.GET.D", request, b"reply")
    case.rig.settle()
    assert len(case.heard) == 63


def test_a_batch_ends_when_its_client_is_gone(case: Case) -> None:
    """One that would go on unheard holds up others."""
    for i in range(3000):
        case.account.publish(b"d.n", b"%d" % i)
    case.rig.settle()
    heard: list[Message] = []
    listener = case.account.listen(b"once", heard.append)
    case.account.publish(b"$JS.API.DIRECT.GET.D", b'{"seq":1,"batch":3000}', b"once")
    case.rig.turn.end()
    case.rig.turn.end()  # reports what was sent in the first one
    listener.close()
    case.rig.turn.end()
    case.account.listen(b"once", heard.append)
    before = len(heard)
    case.rig.settle()
    assert 0 < before == len(heard) < 3000


# --- the last of each subject


def test_the_last_of_each_subject(case: Case) -> None:
    found = case.get({"multi_last": ["d.a", "d.b"]})
    assert seqs(found) == [3, 4]
    assert tail(found) == [
        ["Num-Pending: 1", "Last-Sequence: 0"],
        ["Num-Pending: 0", "Last-Sequence: 3"],
        ["Num-Pending: 0", "Last-Sequence: 4"],
    ]
    assert found[-1][0] == "NATS/1.0 204 EOB"
    assert found[-1][1][-1] == "Nats-UpTo-Sequence: 5"


def test_the_last_of_each_subject_at_a_time(case: Case) -> None:
    found = case.get({"multi_last": ["d.>"], "up_to_seq": 3})
    assert seqs(found) == [3]
    assert found[-1][1][-1] == "Nats-UpTo-Sequence: 3"
    assert seqs(case.get({"multi_last": ["d.>"], "up_to_seq": 2})) == [2]
    assert seqs(case.get({"multi_last": ["d.>"], "up_to_time": "2099-01-01T00:00:00Z"})) == [
        3, 4, 5,
    ]  # fmt: skip


def test_a_message_of_exactly_that_time_is_not_in_the_answer(case: Case) -> None:
    def time_of(seq: int) -> str:
        _, lines, _ = case.one({"seq": seq})
        (time,) = [line for line in lines if line.startswith("Nats-Time-Stamp: ")]
        return time.partition(": ")[2]

    found = case.get({"multi_last": ["d.>"], "up_to_time": time_of(3)})
    assert seqs(found) == [2]
    assert found[-1][1][-1] == "Nats-UpTo-Sequence: 2"
    first, _, _ = case.one({"multi_last": ["d.>"], "up_to_time": time_of(1)})
    assert first == "NATS/1.0 404 No Results"


def test_pages_of_the_last_of_each_subject(case: Case) -> None:
    found = case.get({"multi_last": ["d.>"], "batch": 1})
    assert seqs(found) == [3]
    assert found[-1][1] == [
        "Nats-Num-Pending: 2", "Nats-Last-Sequence: 3", "Nats-UpTo-Sequence: 5",
    ]  # fmt: skip
    found = case.get({"multi_last": ["d.>"], "batch": 1, "seq": 4, "up_to_seq": 5})
    assert seqs(found) == [4]
    assert tail(found) == [
        ["Num-Pending: 1", "Last-Sequence: 0"], ["Num-Pending: 1", "Last-Sequence: 4"],
    ]  # fmt: skip
    found = case.get({"multi_last": ["d.>"], "seq": 9})
    assert tail(found) == [["Num-Pending: 0", "Last-Sequence: 0"]]
    assert seqs(case.get({"multi_last": ["d.>"], "max_bytes": 1})) == [3]


def test_the_last_of_too_many_subjects(case: Case) -> None:
    for i in range(1024):
        case.account.publish(b"d.n.%d" % i, b"")
    case.rig.settle()
    assert case.one({"multi_last": ["d.>"]})[0] == "NATS/1.0 413 Too Many Results"
    assert len(seqs(case.get({"multi_last": ["d.n.>"]}))) == 1024


def test_a_message_that_cannot_be_read_is_not_taken_for_a_missing_one(tmp_path: Path) -> None:
    """Else an application would find that a key has no value."""
    with Rig(tmp_path, segment_bytes=1 << 12) as rig:
        case = Case(rig, memory=False)
        for number in range(20):
            case.send("d.later", b"%d" % number * 500)
        vfs.fail(OPEN, errno.EMFILE, times=9)
        assert case.one(b"", "d.b")[0] == "NATS/1.0 500 Message Cannot Be Read"
        assert case.stream.lookup.get(MsgGetRequest(seq=4)) is None
        assert case.stream.lookup.is_stored(MsgGetRequest(seq=4))
        assert case.one({"seq": 99})[0] == "NATS/1.0 404 Message Not Found"
        assert not case.stream.lookup.is_stored(MsgGetRequest(seq=99))
        vfs.heal()
        assert case.one(b"", "d.b")[2] == b"b1"


@pytest.mark.parametrize(
    "body",
    [
        {"multi_last": ["d.*.x"]},
        {"next_by_subj": "d.*.x", "seq": 1, "batch": 9},
        {"next_by_subj": "d.*.x", "seq": 1},
        {"last_by_subj": "d.*.x"},
    ],
)
def test_a_new_wildcard_does_not_fill_one_turn(case: Case, body: dict[str, Any]) -> None:
    """It is compared with all subjects. Other clients wait for a turn."""
    for i in range(70_000):
        case.account.publish(b"d.n.%d" % i, b"")
        if i % 1000 == 0:
            case.rig.settle()
    case.send("d.7.x", b"x")
    got: list[Message] = []
    case.account.listen(b"one", got.append)
    case.heard.clear()
    case.account.publish(b"$JS.API.DIRECT.GET.D", json.dumps(body).encode(), b"reply")
    case.account.publish(b"$JS.API.DIRECT.GET.D", b'{"seq":1}', b"one")
    while not got:
        case.rig.turn.end()
    assert ([each.data for each in got], case.heard) == ([b"a1"], [])
    case.rig.settle()
    assert case.heard[0].data == b"x"
    assert seqs(case.get(body)) == [70_006]


def test_a_stream_is_closed_while_a_wildcard_is_compared(case: Case) -> None:
    for i in range(70_000):
        case.account.publish(b"d.n.%d" % i, b"")
        if i % 1000 == 0:
            case.rig.settle()
    case.heard.clear()
    case.account.publish(b"$JS.API.DIRECT.GET.D", b'{"multi_last":["d.*.x"]}', b"reply")
    case.rig.turn.end()
    case.stream.serve_direct(served=False)
    case.rig.settle()
    assert case.heard == []
