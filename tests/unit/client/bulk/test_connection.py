"""What a connection asks, and what it does when the answer is late, cut short or a refusal."""

from __future__ import annotations

import gzip
import json
import pickle
import re
import socket
import ssl
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from support.authority import Authority
from support.bulk.fake import Answer, FakeBulkApi, Request, json_answer, script
from support.clients.frames import frame, record

from broker.client.bulk import (
    BeyondEnd,
    BulkError,
    Connection,
    Options,
    OtherIncarnation,
    Refused,
    Tls,
    Trimmed,
    Unauthorized,
    UnknownTopic,
    Unreachable,
    connect,
)
from broker.client.bulk.options import parse_server, parse_servers

FRAME = frame([record(1, b"x"), record(2)])
EMPTY_LIST = {"broker": "b", "broker_id": "i", "partition": 0, "topics": []}


def no_wait(_seconds: float) -> None:
    pass


def with_wait(wait: Callable[[float], None], address: str, **changes: Any) -> Connection:
    """A connection that calls this instead of sleeping."""
    connection = Connection(address, **changes)
    connection._wait = wait  # type: ignore[method-assign]
    return connection


def ask(fake: FakeBulkApi, **changes: Any) -> Connection:
    return with_wait(no_wait, fake.address, **changes)


def test_what_is_sent() -> None:
    with FakeBulkApi(script(json_answer(EMPTY_LIST))) as fake, ask(fake, token="s3cret") as bulk:
        bulk.topics(["a", "b/c"])
        bulk.topics(pattern="a+")
        bulk.topics()
        bulk.topics(["a,b", "c+"])
        assert [r.query for r in fake.requests] == [
            {"subscribe": "a,b/c"},
            {"pattern": "a+"},
            {},
            {"pattern": "a,b"},
            {"subscribe": "c+"},
        ]
        assert fake.requests[0].headers["authorization"] == "Bearer s3cret"
        assert fake.connections == 1


def test_more_names_than_a_line_has_room_for() -> None:
    """As an archive has them that goes on after it was killed in a batch of thousands of topics."""
    names = [f"some.department/{number:05d}" for number in range(5000)]
    torn = [f"a,{'.' * 150} {number}" for number in range(20)]

    def found(request: Request) -> Answer:
        asked = request.query.get("subscribe", "").split(",")
        listed = [name for name in names if name in set(asked)]
        if "pattern" in request.query:
            listed = [name for name in torn if re.fullmatch(request.query["pattern"], name)]
        assert len(request.query.get("pattern", "")) < 1000
        rows = [dict.fromkeys(("topic", "incarnation"), name) | numbers for name in listed]
        return json_answer(EMPTY_LIST | {"topics": rows})

    numbers = {"first": 1, "next": 2, "bytes": 3, "messages": 4}
    with FakeBulkApi(found) as fake, ask(fake) as bulk:
        listing = bulk.topics([*names, *torn, names[0]])
        assert all(len(urlencode(request.query)) < 40_000 for request in fake.requests)
        assert len(fake.requests) > 5
        assert bulk.topics([]).topics == ()
    assert sorted(topic.name for topic in listing.topics) == sorted([*names, *torn])


def test_topics() -> None:
    row = {"topic": "t", "incarnation": "ab", "first": 3, "next": 9, "bytes": 7, "messages": 6}
    rows = [row | {"held_from": 4}, row | {"topic": "u", "held_from": None}]
    with FakeBulkApi(script(json_answer(EMPTY_LIST | {"partition": 2, "topics": rows}))) as fake:
        listing = ask(fake).topics()
    assert (listing.broker, listing.broker_id, listing.partition) == ("b", "i", 2)
    found = listing.find("t")
    assert found is not None
    assert (found.first, found.next, found.held_from) == (3, 9, 4)
    assert listing.find("v") is None


def test_range() -> None:
    with FakeBulkApi(script(Answer(200, FRAME))) as fake, ask(fake, fetch_bytes=77) as bulk:
        got = bulk.range("a/\u00e9 b", 5, 9, incarnation="ab")
        assert bytes(got) == FRAME
        bulk.range("t", 5, max_bytes=99)
    first, second = fake.requests
    assert first.path == "/bulk/v1/range/a/\u00e9 b"
    assert first.query == {"start": "5", "end": "9", "max_bytes": "77", "inc": "ab"}
    assert second.query == {"start": "5", "max_bytes": "99"}


def test_compression() -> None:
    packed = Answer(200, gzip.compress(FRAME), {"Content-Encoding": "gzip"})
    with FakeBulkApi(script(packed)) as fake, ask(fake, compress="gzip") as bulk:
        assert bytes(bulk.range("t", 1)) == FRAME
        assert bytes(bulk.range("t", 1)) == FRAME
        assert fake.connections == 1
        assert fake.requests[0].headers["accept-encoding"] == "gzip"


def test_zstd() -> None:
    pa = pytest.importorskip("pyarrow")
    body = pa.compress(FRAME, "zstd", asbytes=True)
    packed = Answer(200, body, {"Content-Encoding": "zstd"})
    with FakeBulkApi(script(packed)) as fake, ask(fake, compress="zstd") as bulk:
        assert bytes(bulk.range("t", 1)) == FRAME
        assert bytes(bulk.range("t", 1)) == FRAME
        assert fake.connections == 1


def test_a_compressed_frame_cut_short() -> None:
    body = gzip.compress(FRAME)
    answers = [body[:-20], gzip.compress(FRAME[:-1]), b"no gzip at all", body]
    made = script(*(Answer(200, b, {"Content-Encoding": "gzip"}) for b in answers))
    with FakeBulkApi(made) as fake, ask(fake) as bulk:
        assert bytes(bulk.range("t", 1)) == FRAME
        assert len(fake.requests) == 4


@pytest.mark.parametrize(
    "fault",
    [
        Answer(drop=True),
        Answer(200, FRAME, cut=100),
        Answer(200, FRAME, cut=0),
        Answer(200, FRAME[:-8]),
        Answer(200, b"<html>"),
    ],
)
def test_what_is_lost_is_asked_for_again(fault: Answer) -> None:
    with FakeBulkApi(script(fault, fault, Answer(200, FRAME))) as fake, ask(fake) as bulk:
        assert bytes(bulk.range("t", 1)) == FRAME
        assert [r.query["start"] for r in fake.requests] == ["1"] * 3


def test_the_wait_grows_and_ends() -> None:
    waits: list[float] = []
    with FakeBulkApi(script(Answer(drop=True))) as fake:
        bulk = with_wait(waits.append, fake.address, retries=3)
        with pytest.raises(Unreachable, match=fake.address):
            bulk.range("t", 1)
        assert len(fake.requests) == 4
    assert len(waits) == 3
    assert 0.05 <= waits[0] <= 0.1
    assert 0.2 <= waits[2] <= 0.4


def test_nobody_listens() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        with pytest.raises(Unreachable, match=f"127.0.0.1:{port}"):
            with_wait(no_wait, f"127.0.0.1:{port}", retries=1).topics()


def test_nobody_answers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        address = f"127.0.0.1:{mute.getsockname()[1]}"
        bulk = Connection(address, timeout_s=0.05, retries=0)
        with pytest.raises(Unreachable, match="timed out"):
            bulk.topics()


def test_a_busy_broker_is_waited_for() -> None:
    waits: list[float] = []
    busy = json_answer({"error": "busy"}, 429, Retry_After="2")
    with FakeBulkApi(script(busy, busy, Answer(200, FRAME))) as fake:
        bulk = with_wait(waits.append, fake.address)
        assert bytes(bulk.range("t", 1)) == FRAME
        assert waits == [2.0, 2.0]
        assert fake.connections == 1


def test_a_broker_that_stays_busy() -> None:
    waits: list[float] = []
    with FakeBulkApi(script(json_answer({"error": "busy"}, 429, Retry_After="9"))) as fake:
        bulk = with_wait(waits.append, fake.address, timeout_s=10, retries=2)
        with pytest.raises(Refused, match="busy") as raised:
            bulk.range("t", 1)
    assert raised.value.status == 429
    assert waits == [9.0, 9.0]


REFUSALS: list[tuple[int, dict[str, Any], type[Refused], str, Any]] = [
    (401, {}, Unauthorized, "status", 401),
    (403, {}, Unauthorized, "status", 403),
    (404, {}, UnknownTopic, "status", 404),
    (409, {"incarnation": "cd"}, OtherIncarnation, "incarnation", "cd"),
    (410, {"first": 7}, Trimmed, "first", 7),
    (416, {"next": 9}, BeyondEnd, "next", 9),
    (400, {}, Refused, "status", 400),
    (500, {}, Refused, "status", 500),
]


@pytest.mark.parametrize(("status", "more", "kind", "name", "value"), REFUSALS)
def test_refusals(
    status: int, more: dict[str, Any], kind: type[Refused], name: str, value: Any
) -> None:
    answer = json_answer({"error": "it says why", **more}, status)
    with FakeBulkApi(script(answer)) as fake, ask(fake) as bulk:
        with pytest.raises(kind, match="it says why") as raised:
            bulk.range("t", 1)
        assert len(fake.requests) == 1
    assert type(raised.value) is kind
    copied = pickle.loads(pickle.dumps(raised.value))
    assert (type(copied), str(copied)) == (kind, str(raised.value))
    assert getattr(copied, name) == value


def test_a_refusal_that_is_no_json() -> None:
    refused = pytest.raises(Refused, match="HTTP status 502")
    with FakeBulkApi(script(Answer(502, b"<html>"))) as fake, refused:
        ask(fake).range("t", 1)


@pytest.mark.parametrize("answer", [b"", b"[]", b"{}", b'{"topics": 3}', b'{"topics": [{}]}'])
def test_an_answer_that_is_none(answer: bytes) -> None:
    refused = pytest.raises(BulkError, match="invalid response")
    with FakeBulkApi(script(Answer(200, answer))) as fake, refused:
        ask(fake).topics()


def test_offsets_and_readers() -> None:
    answer = json_answer({"topics": {"t": {"seq": 4, "incarnation": "ab", "exact": False}}})
    with FakeBulkApi(script(answer)) as fake, ask(fake) as bulk:
        found = bulk.offsets({"t": 10**18 + 1})["t"]
        assert (found.seq, found.incarnation, found.exact) == (4, "ab", False)
        bulk.put_reader("job/1", {"t": (4, "ab"), "u": None}, ttl_s=60, hold=True)
        bulk.put_reader("job/1", {})
        bulk.delete_reader("job/1")
    asked, put, renewed, deleted = fake.requests
    assert json.loads(renewed.body) == {"positions": {}}
    assert json.loads(asked.body) == {"topics": {"t": {"time_ns": 10**18 + 1}}}
    assert (put.method, put.path) == ("PUT", "/bulk/v1/readers/job/1")
    positions = {"t": {"seq": 4, "incarnation": "ab"}, "u": None}
    assert json.loads(put.body) == {"ttl_s": 60, "hold": True, "positions": positions}
    assert (deleted.method, deleted.path) == ("DELETE", "/bulk/v1/readers/job/1")


def test_writing() -> None:
    done = {"t": {"records": 2, "first": 5, "last": 6, "state": "committed"}, "u": None}
    done["u"] = {"state": "already"}
    with (
        FakeBulkApi(
            script(json_answer({}), json_answer({"offset": 15}), json_answer({"topics": done}))
        ) as fake,
        ask(fake) as bulk,
    ):
        bulk.append("t", b"block", dedupe=True)
        assert bulk.stage("w", 3, "t", 0, "a1", memoryview(b"block"), 10) == 15
        committed = bulk.commit("w", 3, {"t": [(0, "a1", 15)]})
    append, stage, commit = fake.requests
    assert (append.path, append.query, append.body) == (
        "/bulk/v1/append/t",
        {"dedupe": "1"},
        b"block",
    )
    assert (stage.path, stage.query) == ("/bulk/v1/tx/w/3/t/0/a1", {"offset": "10"})
    assert stage.body == b"block"
    assert json.loads(commit.body) == {"topics": {"t": [[0, "a1", 15]]}}
    assert committed["t"].last == 6
    assert committed["u"].already


def test_a_block_that_does_not_fit() -> None:
    with (
        FakeBulkApi(script(json_answer({"error": "no", "offset": 15}, 409))) as fake,
        ask(fake) as bulk,
    ):
        with pytest.raises(Refused) as raised:
            bulk.stage("w", 3, "t", 0, 1, b"block", 20)
        assert raised.value.answer == {"offset": 15}


def test_a_token_file_is_read_again_when_refused(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("old\n")

    def answer(request: Request) -> Answer:
        if request.headers["authorization"] == "Bearer new":
            return json_answer(EMPTY_LIST)
        file.write_text(" new \n")
        return json_answer({"error": "unknown token"}, 401)

    with FakeBulkApi(answer) as fake, ask(fake, token_file=str(file)) as bulk:
        bulk.topics()
        bulk.topics()
        assert len(fake.requests) == 3


def test_a_token_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(BulkError, match=r"token file .*gone"):
        Connection("h", token_file=str(tmp_path / "gone")).topics()


@pytest.mark.parametrize("mutual", [False, True])
def test_tls(tmp_path: Path, mutual: bool) -> None:
    authority = Authority(tmp_path)
    server, client = authority.issue("server"), authority.issue("client")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(server.certificate, server.key)
    if mutual:
        context.load_verify_locations(authority.file)
        context.verify_mode = ssl.CERT_REQUIRED
    tls = Tls(ca_file=str(authority.file))
    own = replace(tls, cert_file=str(client.certificate), key_file=str(client.key))
    with FakeBulkApi(script(json_answer(EMPTY_LIST)), context) as fake:
        ask(fake, tls=own).topics()
        ask(fake, tls=replace(own, server_name="localhost")).topics()
        ask(fake, tls=replace(own, ca_file="", insecure=True)).topics()
        for wrong in (replace(own, server_name="example.com"), replace(own, ca_file="")):
            with pytest.raises(Unreachable, match="certificate"):
                ask(fake, tls=wrong, retries=0).topics()
        if mutual:
            with pytest.raises(Unreachable):
                ask(fake, tls=tls, retries=0).topics()
    with pytest.raises(BulkError, match=r"TLS files: .*gone: No such file"):
        ask(fake, tls=Tls(ca_file=str(tmp_path / "gone")))


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("h", ("h", 4171, False)),
        ("h:1", ("h", 1, False)),
        ("https://h.example/", ("h.example", 4171, True)),
        ("http://[::1]:99", ("::1", 99, False)),
        ("[fe80::1%eth0]", ("fe80::1%eth0", 4171, False)),
    ],
)
def test_addresses(text: str, parsed: tuple[str, int, bool]) -> None:
    assert parse_server(text) == parsed


@pytest.mark.parametrize("text", ["", "h:0", "h:65536", "h:x", "ftp://h", "h/path", "::1", "a b"])
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(ValueError, match=r"invalid address|at least one server"):
        parse_servers(text)


def test_several_servers() -> None:
    assert parse_servers(" a:1, b:2,a:1,") == ("a:1", "b:2")
    connections = connect(["a:1", "https://b:2"], token="x")
    assert [bulk.server for bulk in connections] == ["a:1", "https://b:2"]
    assert connections[0].options.token == "x"


def test_options() -> None:
    options = Options(token="secret", tls=Tls(ca_file="f"), compress="gzip")
    assert pickle.loads(pickle.dumps(options)) == options
    assert "secret" not in repr(options)
    for wrong in ({"token": "a", "token_file": "b"}, {"compress": "br"}, {"timeout_s": 0}):
        with pytest.raises(ValueError, match=r"token|compress|timeout"):
            Options(**wrong)
