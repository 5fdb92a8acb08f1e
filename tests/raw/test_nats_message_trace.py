"""Message traces: HPUB with Nats-Trace-Dest, here and on the original."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from support.clients.nats import Message, NatsClient

from broker.protocols.nats.limits import NATS_TRACE_HEADERS

if TYPE_CHECKING:
    from support.nats_file import StartServer

CONFIG = """
accounts {
  A {
    users: [
      {user: a, password: a, permissions: {publish: ["foo", "imp"], subscribe: ">"}}
      {user: d, password: d}
    ]
    imports: [
      {service: {account: B, subject: svc}, to: imp}
      {service: {account: B, subject: open}}
      {stream: {account: B, subject: "st.>"}}
    ]
    mappings: { "m1": "foo" }
  }
  B {
    users: [{user: b, password: b}]
    exports: [ {service: svc}, {service: open, allow_trace: true}, {stream: "st.>"} ]
  }
  D { users: [{user: e, password: e}], msg_trace: {dest: "tr.acc", sampling: "100%"} }
  X {
    users: [{user: x, password: x}, {user: y, password: y, permissions: {publish: "foo"}}]
    trace_dest: "tr.x"
  }
}
"""
PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-"


@pytest.fixture
def server(start_nats: StartServer) -> Any:
    return start_nats(CONFIG)


def headers(**fields: str) -> bytes:
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in fields.items())
    return f"NATS/1.0\r\n{lines}\r\n".encode()


def drain(client: NatsClient, count: int) -> dict[str, Message]:
    """The next messages by their subjects."""
    found = [client.message() for _ in range(count)]
    return {message.subject: message for message in found}


def events(message: Message) -> list[dict[str, Any]]:
    page = json.loads(message.data)
    assert list(page) == ["server", "request", "events"]
    return [{k: v for k, v in event.items() if k not in {"ts", "cid"}} for event in page["events"]]


def test_what_became_of_a_message(server: Any) -> None:
    with NatsClient(server.address, "d", name="me") as client:
        client.sub("foo")
        client.sub("foo", "q")
        client.sub("traces.*")
        client.pub("foo", b"hi", headers=headers(Nats_Trace_Dest="traces.1"))
        found = [client.message() for _ in range(3)]
    assert [message.data for message in found if message.subject == "foo"] == [b"hi", b"hi"]
    (trace,) = (message for message in found if message.subject == "traces.1")
    page = json.loads(trace.data)
    assert page["request"] == {"header": {"Nats-Trace-Dest": ["traces.1"]}, "msgsize": 41}
    assert events(trace) == [
        {"type": "in", "kind": 0, "name": "me", "acc": "A", "subj": "foo"},
        {"type": "eg", "kind": 0, "name": "me", "sub": "foo"},
        {"type": "eg", "kind": 0, "name": "me", "sub": "foo", "queue": "q"},
    ]


@pytest.mark.parametrize("asking", [0, 2, 3])
def test_one_of_equal_messages_asks_for_a_trace(server: Any, asking: int) -> None:
    """They come in one write, with the same line; elsewhere the header's text asks for nothing."""
    line = b"Nats-Trace-Dest: traces.1\r\n"
    asks, other = b"NATS/1.0\r\n" + line + b"\r\n", b"NATS/1.0\r\nA: x" + line[4:] + b"\r\n"
    value = b"NATS/1.0\r\nA:" + line[2:] + b"\r\n"
    assert len(asks) == len(other) == len(value)
    body = b"\r\n" + line
    blocks = [other, value, other, value]
    blocks[asking] = asks
    sizes = b"HPUB foo %d %d\r\n" % (len(asks), len(asks) + len(body))
    with NatsClient(server.address, "d", name="me") as client:
        client.sub("foo")
        client.sub("traces.*")
        client.send(b"".join(sizes + block + body + b"\r\n" for block in blocks))
        found = [client.message() for _ in range(5)]
        client.nothing()
    assert sorted(message.subject for message in found) == [*["foo"] * 4, "traces.1"]


@pytest.mark.parametrize(("word", "delivered"), [("true", 0), ("1", 0), ("on", 0), ("off", 1)])
def test_trace_only_delivers_nothing(server: Any, word: str, delivered: int) -> None:
    with NatsClient(server.address, "d", name="me") as client:
        client.sub("foo")
        client.sub("traces.*")
        asked = headers(Nats_Trace_Dest="traces.1", Nats_Trace_Only=word)
        client.pub("foo", b"hi", headers=asked)
        found = drain(client, 1 + delivered)
        assert set(found) == {"traces.1"} | ({"foo"} if delivered else set())
        assert [event["type"] for event in events(found["traces.1"])] == ["in", "eg"]
        client.ping()


@pytest.mark.only_ours
def test_headers_that_are_too_long_for_a_trace(server: Any) -> None:
    with NatsClient(server.address, "d") as client:
        client.sub("foo")
        client.sub("traces.*")
        short = headers(Nats_Trace_Dest="traces.1", x="y" * (NATS_TRACE_HEADERS - 44))
        assert len(short) == NATS_TRACE_HEADERS
        for head, count in ((short, 2), (short[:-4] + b"z" + short[-4:], 1)):
            client.pub("foo", b"hi", headers=head)
            found = drain(client, count)
            assert found["foo"].headers == head
            assert ("traces.1" in found) == (count == 2)
        client.ping()


def test_without_subscribers_and_without_a_valid_destination(server: Any) -> None:
    with NatsClient(server.address, "d", no_responders=True) as client:
        client.sub("inbox")
        client.sub("traces.*")
        client.pub("none", b"", "inbox", headers(Nats_Trace_Dest="traces.1"))
        found = drain(client, 2)
        assert found["inbox"].headers.startswith(b"NATS/1.0 503\r\nNats-Subject: none")
        assert [event["type"] for event in events(found["traces.1"])] == ["in"]
        client.sub("foo")
        for dest in ("traces.>", "trace disabled"):
            client.pub("foo", b"hi", headers=headers(Nats_Trace_Dest=dest))
            assert client.message().data == b"hi"
        client.pub("foo", b"hi", headers=headers(nats_trace_dest="traces.1"))
        assert client.message().data == b"hi"
        client.ping()


def test_the_right_to_publish_to_the_destination(server: Any) -> None:
    with NatsClient(server.address, "a") as client:
        client.sub("foo")
        client.pub("foo", b"hi", headers=headers(Nats_Trace_Dest="traces.1"))
        client.expect(b"-ERR 'Permissions Violation for Publish to \"traces.1\"'\r\n")
        client.ping()


def test_a_compressed_trace(server: Any) -> None:
    with NatsClient(server.address, "d") as client:
        client.sub("traces.*")
        client.pub("foo", headers=headers(Accept_Encoding="gzip", Nats_Trace_Dest="traces.1"))
        trace = client.message()
    assert trace.headers == b"NATS/1.0\r\nContent-Encoding: gzip\r\n\r\n"
    assert trace.data[:2] == b"\x1f\x8b"


def test_services_of_other_accounts(server: Any) -> None:
    with NatsClient(server.address, "b", name="svc") as service:
        service.sub("svc")
        service.sub("open")
        with NatsClient(server.address, "d", name="me") as client:
            client.sub("traces.*")
            client.pub("imp", b"x", headers=headers(Nats_Trace_Dest="traces.1"))
            trace = events(client.message())
            assert service.message().data == b"x"
            client.pub("open", b"y", headers=headers(Nats_Trace_Dest="traces.2"))
            open_trace = events(client.message())
    entry = {"type": "in", "kind": 0, "name": "me", "acc": "A"}
    assert trace == [
        entry | {"subj": "imp"}, {"type": "si", "acc": "B", "from": "imp", "to": "svc"}
    ]  # fmt: skip
    assert open_trace == [
        entry | {"subj": "open"},
        {"type": "si", "acc": "B", "from": "open", "to": "open"},
        {"type": "eg", "kind": 0, "name": "svc", "acc": "B", "sub": "open"},
    ]


def test_traces_of_an_account(server: Any) -> None:
    for user, dest in (("e", "tr.acc"), ("x", "tr.x")):
        with NatsClient(server.address, user) as client:
            client.sub("foo")
            client.sub(dest)
            client.pub("foo", b"hi", headers=headers(traceparent=f"{PARENT}01"))
            found = drain(client, 2)
            assert [event["type"] for event in events(found[dest])] == ["in", "eg"]
            client.pub("foo", b"hi", headers=headers(traceparent=f"{PARENT}00"))
            assert client.message().subject == "foo"
            client.ping()


@pytest.mark.parametrize(
    ("name", "value", "traced"),
    [
        ("TraceParent", f"{PARENT}01", True),
        ("traceparent", f"{PARENT}81", False),
        ("traceparent", f"{PARENT}00\r\ntraceparent: {PARENT}03", True),
    ],
)
def test_the_header_of_an_accounts_traces(
    server: Any, name: str, value: str, *, traced: bool
) -> None:
    with NatsClient(server.address, "e") as client:
        client.sub("foo")
        client.sub("tr.acc")
        client.pub("foo", b"hi", headers=headers(**{name: value}))
        found = drain(client, 1 + traced)
        assert set(found) == ({"foo", "tr.acc"} if traced else {"foo"})
        client.ping()


def test_the_right_to_publish_to_the_destination_of_an_account(server: Any) -> None:
    with NatsClient(server.address, "y") as client:
        client.sub(">")
        client.pub("foo", b"hi", headers=headers(traceparent=f"{PARENT}01"))
        client.expect(b"-ERR 'Permissions Violation for Publish to \"tr.x\"'\r\n")
        client.ping()


@pytest.mark.parametrize("dest", ["traces.*", "a b", "traces.1\r\nNats-Trace-Origin-Account: A"])
def test_trace_only_without_a_valid_destination_delivers_nothing(server: Any, dest: str) -> None:
    with NatsClient(server.address, "d") as client:
        client.sub("foo")
        client.sub("traces.*")
        asked = headers(Nats_Trace_Dest=dest, Nats_Trace_Only="true")
        client.pub("foo", b"hi", headers=asked)
        client.pub("foo", b"after")
        assert client.message().data == b"after"
        client.ping()


@pytest.mark.parametrize(
    ("lines", "reached"),
    [
        ("Nats-Trace-Dest:\r\nNats-Trace-Only: true", {"foo"}),
        ("Nats-Trace-Dest:\r\ntraceparent: " + PARENT + "01", {"foo", "tr.acc"}),
        ("Nats-Trace-Dest: \r\nNats-Trace-Dest: \ttr.1\t", {"foo", "tr.1"}),
        ("Nats-Trace-Dest: tr.1\r\nNats-Trace-Only:\r\nNats-Trace-Only:\t1", {"tr.1"}),
        ("Nats-Trace-Dest: tr.1\r\nNats-Trace-Dest: trace disabled", {"foo", "tr.1"}),
        ("Nats-Trace-Dest: trace disabled\r\nNats-Trace-Dest: tr.1", {"foo"}),
        ("Nats-Trace-Origin-Account: D\r\ntraceparent: " + PARENT + "01", {"foo"}),
    ],
)
def test_the_values_that_count(server: Any, lines: str, reached: set[str]) -> None:
    with NatsClient(server.address, "e") as client:
        client.sub("foo")
        client.sub("tr.*")
        client.pub("foo", b"hi", headers=f"NATS/1.0\r\n{lines}\r\n\r\n".encode())
        assert set(drain(client, len(reached))) == reached
        client.ping()


def test_headers_with_a_status_ask_for_no_trace(server: Any) -> None:
    with NatsClient(server.address, "d") as client:
        client.sub("foo")
        client.sub("traces.*")
        client.pub("foo", b"hi", headers=b"NATS/1.0 503\r\nNats-Trace-Dest: traces.1\r\n\r\n")
        assert client.message().subject == "foo"
        client.ping()


def test_a_service_without_listeners_answers_at_once(server: Any) -> None:
    with NatsClient(server.address, "d", no_responders=True) as client:
        client.sub("inbox")
        client.pub("imp", b"", "inbox")
        assert client.message().headers == b"NATS/1.0 503\r\nNats-Subject: imp\r\n\r\n"


STREAMS = """
jetstream: enabled
accounts { A { jetstream: enabled, users: [{user: a, password: a}] } }
"""


def create_stream(client: NatsClient, **config: object) -> None:
    body = {"name": "S", "subjects": ["s.>"], "num_replicas": 1, "storage": "memory"} | config
    client.pub("$JS.API.STREAM.CREATE.S", json.dumps(body).encode(), reply="in")
    assert "error" not in json.loads(client.message().data)


def stored(client: NatsClient) -> int:
    client.pub("$JS.API.STREAM.INFO.S", b"", reply="in")
    messages = json.loads(client.message().data)["state"]["messages"]
    assert isinstance(messages, int)
    return messages


@pytest.mark.parametrize("only", [False, True])
def test_what_a_stream_does_with_a_message(start_nats: StartServer, only: bool) -> None:
    more = {"Nats_Trace_Only": "true"} if only else {}
    asks = headers(Nats_Trace_Dest="traces.1", **more)
    wrong = headers(Nats_Trace_Dest="traces.1", Nats_Expected_Last_Msg_Id="x", **more)
    with NatsClient(start_nats(STREAMS).address, "a") as client:
        client.sub("in")
        client.sub("traces.*")
        create_stream(client, subject_transform={"src": "s.*", "dest": "s.to.{{wildcard(1)}}"})
        client.pub("s.a", b"x", headers=asks)
        trace = client.message()
        assert events(trace)[1:] == [{"type": "js", "stream": "S", "subject": "s.to.a"}]
        assert stored(client) == (0 if only else 1)
        client.pub("s.a", b"x", headers=wrong)
        (refused,) = events(client.message())[1:]
        assert refused.pop("error")
        assert refused == {"type": "js", "stream": "S"}
        assert stored(client) == (0 if only else 1)


def test_a_stream_without_interest_and_a_message_it_has(start_nats: StartServer) -> None:
    again = headers(Nats_Trace_Dest="traces.1", Nats_Msg_Id="1")
    with NatsClient(start_nats(STREAMS).address, "a") as client:
        client.sub("in")
        client.sub("traces.*")
        create_stream(client, retention="interest")
        client.pub("s.a", b"x", headers=again)
        assert events(client.message())[1:] == [
            {"type": "js", "stream": "S", "subject": "s.a", "nointerest": True}
        ]
        client.pub("s.a", b"x", headers=again)
        assert events(client.message())[1:] == [
            {"type": "js", "stream": "S", "error": "msgid is duplicate"}
        ]


def test_a_stored_message_is_not_traced_again(start_nats: StartServer) -> None:
    with NatsClient(start_nats(STREAMS).address, "a") as client:
        client.sub("in")
        client.sub("traces.*")
        create_stream(client, allow_direct=True)
        client.pub("s.a", b"x", headers=headers(Nats_Trace_Dest="traces.1"))
        client.message()
        client.pub("$JS.API.DIRECT.GET.S.s.a", b"", reply="in")
        assert b"Nats-Trace-Dest: trace disabled\r\n" in client.message().headers
