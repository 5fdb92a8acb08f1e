"""What is shown about how long exported services take.

Each scenario runs against the original as well (TWINWIRE_TEST_TARGET=original).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from support.clients.nats import NatsClient
from support.nats_file import FileServer

TEXT = """
server_name: here
accounts {
  E {
    users: [{user: e, password: e}]
    exports: [
      {service: "timed.*", latency: {sampling: 100, subject: "lat.timed"}}
      {service: "traced", latency: {sampling: headers, subject: "lat.traced"}}
      {service: "slow", latency: "lat.slow", threshold: "100ms"}
      {service: "plain"}
    ]
  }
  A {
    users: [{user: a, password: a}]
    imports: [
      {service: {account: E, subject: "timed.a"}}
      {service: {account: E, subject: "timed.b"}, share: true}
      {service: {account: E, subject: "traced"}}
      {service: {account: E, subject: "slow"}}
      {service: {account: E, subject: "plain"}}
    ]
  }
}
"""
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?Z")
REPLY = re.compile(r"_R_\.\w{6}\.\w{6}\.\w{8}\.T")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FileServer]:
    server = FileServer(tmp_path_factory.mktemp("latency"), TEXT)
    yield server
    server.close()


@pytest.fixture
def e(server: FileServer) -> Iterator[NatsClient]:
    with NatsClient(server.address, "e", name="worker", lang="x") as client:
        yield client


@pytest.fixture
def a(server: FileServer) -> Iterator[NatsClient]:
    with NatsClient(server.address, "a", name="asker") as client:
        yield client


@pytest.fixture
def subscription(server: FileServer) -> Iterator[NatsClient]:
    """Listens to what is measured."""
    with NatsClient(server.address, "e") as client:
        client.sub("lat.>")
        yield client


def event(subscription: NatsClient) -> dict[str, Any]:
    """The next measurement, what differs each time checked and taken out of it."""
    found: dict[str, Any] = json.loads(subscription.message().data)
    assert found.pop("type") == "io.nats.server.metric.v1.service_latency"
    assert re.fullmatch(r"\w{22}", found.pop("id"))
    assert TIME.fullmatch(found.pop("timestamp"))
    assert TIME.fullmatch(found.pop("start"))
    for name in ("requestor", "responder"):
        assert found.get(name, {}).pop("rtt", 1) > 0
    return found


def fields(client: NatsClient, account: str, user: str, **more: object) -> dict[str, object]:
    """What is shown of a client in full."""
    return {
        "host": "127.0.0.1",
        "id": client.info["client_id"],
        "acc": account,
        "user": user,
        "server": "here",
        "kind": "Client",
        "client_type": "nats",
        **more,
    }


def test_an_answer(a: NatsClient, e: NatsClient, subscription: NatsClient) -> None:
    e.sub("timed.*")
    a.sub("inbox")
    a.pub("timed.a", b"x", reply="inbox")
    asked = e.message()
    assert REPLY.fullmatch(asked.reply)
    e.pub(asked.reply, b"y")
    assert a.got() == ("inbox", b"y")
    found = event(subscription)
    assert TIME.fullmatch(found["responder"].pop("start"))
    service, system, total = (found.pop(name) for name in ("service", "system", "total"))
    assert 0 <= service <= total
    assert 0 <= system <= total
    assert found == {
        "status": 200,
        "requestor": {"acc": "A"},
        "responder": fields(e, "E", "e", name="worker", lang="x"),
    }


def test_who_shares_is_named(a: NatsClient, e: NatsClient, subscription: NatsClient) -> None:
    e.sub("timed.b")
    a.sub("inbox")
    a.pub("timed.b", b"x", reply="inbox")
    e.pub(e.message().reply, b"y")
    found = event(subscription)
    assert TIME.fullmatch(found["requestor"].pop("start"))
    assert found["requestor"] == fields(a, "A", "a", name="asker")


def test_a_request_without_reply(a: NatsClient, e: NatsClient, subscription: NatsClient) -> None:
    e.sub("timed.a")
    a.pub("timed.a", b"x")
    assert e.message().reply == ""
    assert event(subscription) == {
        "status": 400,
        "description": "Bad Request",
        "requestor": {"acc": "A"},
        "service": 0,
        "system": 0,
        "total": 0,
    }


def test_nobody_there(a: NatsClient, subscription: NatsClient) -> None:
    a.sub("inbox")
    a.pub("timed.a", b"x", reply="inbox")
    found = event(subscription)
    assert (found["status"], found["description"]) == (503, "Service Unavailable")


def test_too_late(a: NatsClient, e: NatsClient, subscription: NatsClient) -> None:
    e.sub("slow")
    a.sub("inbox")
    a.pub("slow", b"x", reply="inbox")
    reply = e.message().reply
    found = event(subscription)
    assert (found["status"], found["description"]) == (504, "Service Timeout")
    e.pub(reply, b"late")
    e.ping()
    a.nothing()


@pytest.mark.parametrize("listens_to", ["inbox.a", "inbox.*", "*.*", ">"])
def test_nobody_waits_for_the_answer(
    a: NatsClient, e: NatsClient, subscription: NatsClient, listens_to: str
) -> None:
    e.sub("timed.a")
    sid = a.sub(listens_to)
    other = a.sub("inbox.a")
    a.pub("timed.a", b"x", reply="inbox.a")
    if listens_to in {"*.*", ">"}:
        a.message()
    reply = e.message().reply
    a.unsub(other)
    subscription.nothing()
    a.unsub(sid)
    found = event(subscription)
    assert (found["status"], found["description"]) == (408, "Request Timeout")
    a.sub("inbox.a")
    e.pub(reply, b"late")
    e.ping()
    a.nothing()


def test_a_requester_that_is_gone(
    e: NatsClient, subscription: NatsClient, server: FileServer
) -> None:
    e.sub("timed.a")
    with NatsClient(server.address, "a") as a:
        a.sub("inbox")
        a.pub("timed.a", b"x", reply="inbox")
        e.message()
    assert event(subscription)["status"] == 408


B3 = {"X-B3-TraceId": "1", "X-B3-Sampled": "1", "X-B3-SpanId": "2", "X-B3-ParentSpanId": "3"}


@pytest.mark.parametrize(
    ("headers", "shown"),
    [
        ({"Uber-Trace-Id": "a:b:c:1"}, {"Uber-Trace-Id": ["a:b:c:1"]}),
        (
            {"uber-trace-id": "a:b:c:13", "uberctx-x": "y", "z": "z"},
            {"Uber-Trace-Id": ["a:b:c:13"], "Uberctx-X": ["y"]},
        ),
        ({"Uber-Trace-Id": "a:b:c:2"}, None),
        ({"Uber-Trace-Id": "a:b:c:x"}, None),
        ({"Uber-Trace-Id": "a:b:1"}, None),
        (
            B3,
            {
                "X-B3-Parentspanid": ["3"],
                "X-B3-Sampled": ["1"],
                "X-B3-Spanid": ["2"],
                "X-B3-Traceid": ["1"],
            },
        ),
        ({"X-B3-TraceId": "1"}, {"X-B3-Traceid": ["1"]}),
        (B3 | {"X-B3-Sampled": "0"}, None),
        ({"B3": "a-b-1-c"}, {"B3": ["a-b-1-c"]}),
        ({"B3": "a-b-0-c"}, None),
        ({"B3": "0"}, None),
        (
            {"traceparent": "00-a-b-01", "tracestate": "s"},
            {"Traceparent": ["00-a-b-01"], "Tracestate": ["s"]},
        ),
        ({"traceparent": "00-a-b-00"}, None),
        ({"other": "1"}, None),
        ({}, None),
    ],
)
def test_what_headers_ask_for(
    a: NatsClient,
    e: NatsClient,
    subscription: NatsClient,
    headers: dict[str, str],
    shown: dict[str, list[str]] | None,
) -> None:
    e.sub("traced")
    a.sub("inbox")
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    block = f"NATS/1.0\r\n{lines}\r\n".encode() if headers else b""
    a.pub("traced", b"x", reply="inbox", headers=block)
    e.pub(e.message().reply, b"y")
    assert a.got() == ("inbox", b"y")
    if shown is None:
        e.ping()
        subscription.nothing()
    else:
        assert event(subscription)["header"] == shown
