"""Service imports on a real server: how a request gets there and which answers come back.

Each scenario runs against the original as well (TWINWIRE_TEST_TARGET=original).
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator

import nats
import pytest
from support.clients.nats import NatsClient
from support.nats_file import FileServer

TOKEN = re.compile(r"_R_\.[0-9A-Za-z]{6}\.[0-9A-Za-z]{6}")

TEXT = """
server_name: here
accounts {
  E {
    users: [{user: e, password: e}]
    exports: [
      {service: "svc.*"}
      {service: "many.>", response: stream}
      {service: "chunks", response: chunked}
      {service: "quick", response: stream, threshold: "150ms"}
      {service: "private", accounts: [A]}
      {service: "of.*.it", account_token_position: 2}
      {service: "to.*.*"}
      {service: "old"}
      {stream: "svc.>"}
    ]
    mappings { "old": "new" }
  }
  A {
    users: [{user: a, password: a}]
    imports: [
      {service: {account: E, subject: "svc.one"}, to: "ask"}
      {service: {account: E, subject: "svc.shared"}, to: "ask.shared", share: true}
      {service: {account: E, subject: "svc.*"}}
      {service: {account: E, subject: "many.>"}}
      {service: {account: E, subject: "chunks"}}
      {service: {account: E, subject: "quick"}}
      {service: {account: E, subject: "private"}}
      {service: {account: E, subject: "of.A.it"}}
      {service: {account: E, subject: "to.*.*"}, to: "from.$2.$1"}
      {service: {account: E, subject: "old"}}
    ]
    exports: [{service: "ask"}, {service: "ask.shared"}]
  }
  B {
    users: [{user: b, password: b}]
    imports: [
      {service: {account: A, subject: "ask"}, to: "please"}
      {service: {account: A, subject: "ask.shared"}, to: "please.shared"}
      {stream: {account: E, subject: "svc.>"}, prefix: heard}
    ]
  }
}
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FileServer]:
    server = FileServer(tmp_path_factory.mktemp("services"), TEXT)
    yield server
    server.close()


@pytest.fixture
def e(server: FileServer) -> Iterator[NatsClient]:
    with NatsClient(server.address, "e") as client:
        yield client


@pytest.fixture
def a(server: FileServer) -> Iterator[NatsClient]:
    with NatsClient(server.address, "a", no_responders=True, name="asker") as client:
        client.sub("inbox.*")
        yield client


def test_a_request_and_its_answer(a: NatsClient, e: NatsClient) -> None:
    e.sub("svc.*")
    a.pub("ask", b"hello", reply="inbox.1")
    asked = e.message()
    assert (asked.subject, asked.data) == ("svc.one", b"hello")
    assert TOKEN.fullmatch(asked.reply)
    assert asked.headers.startswith(b"NATS/1.0\r\nNats-Request-Info: {")
    assert asked.headers.endswith(b"}\r\n\r\n")
    assert list(asked.info) == ["acc", "rtt"]
    assert asked.info["acc"] == "A"
    e.pub(asked.reply, b"answer")
    assert a.got() == ("inbox.1", b"answer")
    e.pub(asked.reply, b"a second one")
    e.ping()
    a.nothing()


def test_requests_have_replies_of_their_own(a: NatsClient, e: NatsClient) -> None:
    e.sub("svc.one")
    a.pub("ask", b"1", reply="inbox.1")
    a.pub("ask", b"2", reply="inbox.2")
    asked = [e.message(), e.message()]
    assert asked[0].reply != asked[1].reply
    assert asked[0].reply[:11] == asked[1].reply[:11]
    for question in reversed(asked):
        e.pub(question.reply, question.data)
    assert [a.got(), a.got()] == [("inbox.2", b"2"), ("inbox.1", b"1")]


def test_headers_are_kept(a: NatsClient, e: NatsClient) -> None:
    e.sub("svc.one")
    block = b"NATS/1.0\r\nA: b\r\nNats-Request-Info: {}\r\nC: d\r\n\r\n"
    a.pub("ask", b"x", reply="inbox.1", headers=block)
    asked = e.message()
    lines = asked.headers.split(b"\r\n")
    assert [line for line in lines if not line.startswith(b"Nats-Request-Info: {")] == [
        b"NATS/1.0", b"A: b", b"C: d", b"", b""
    ]  # fmt: skip
    assert len(lines) == 6
    assert asked.data == b"x"
    e.pub(asked.reply, b"y", headers=b"NATS/1.0\r\nE: f\r\n\r\n")
    assert a.message() == ("inbox.1", "1", "", b"NATS/1.0\r\nE: f\r\n\r\n", b"y")


def test_the_requestor_is_in_the_latency_if_it_is_shared(a: NatsClient, e: NatsClient) -> None:
    e.sub("svc.shared")
    a.pub("ask.shared", b"x", reply="inbox.1")
    info = e.message().info
    assert list(info) == [
        "start", "host", "id", "acc", "user", "name", "rtt", "server", "kind", "client_type",
    ]  # fmt: skip
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", info.pop("start"))
    assert info.pop("id") > 0
    assert info.pop("rtt") > 0
    assert info == {
        "host": "127.0.0.1",
        "acc": "A",
        "user": "a",
        "name": "asker",
        "server": "here",
        "kind": "Client",
        "client_type": "nats",
    }


def test_a_message_without_reply(a: NatsClient, e: NatsClient) -> None:
    e.sub("svc.one")
    a.pub("ask", b"x")
    asked = e.message()
    assert (asked.reply, asked.data, asked.info["acc"]) == ("", b"x", "A")


def test_a_responder_without_headers(a: NatsClient, server: FileServer) -> None:
    with NatsClient(server.address, "e", headers=False) as old:
        old.sub("svc.one")
        a.pub("ask", b"x", reply="inbox.1")
        asked = old.message()
        assert (asked.headers, asked.data) == (b"", b"x")


def test_wildcards(a: NatsClient, e: NatsClient) -> None:
    e.sub("svc.>")
    e.sub("to.>")
    a.pub("svc.something", b"1")
    assert e.got() == ("svc.something", b"1")
    a.pub("from.x.y", b"2")
    assert e.got() == ("to.y.x", b"2")
    a.pub("svc.a.b", b"3")
    a.pub("from.x", b"4")
    a.ping()
    e.nothing()


def test_private_ones(a: NatsClient, e: NatsClient) -> None:
    e.sub("private")
    e.sub("of.>")
    a.pub("private", b"1")
    a.pub("of.A.it", b"2")
    a.pub("of.B.it", b"3")
    assert [e.got(), e.got()] == [("private", b"1"), ("of.A.it", b"2")]
    a.ping()
    e.nothing()


def test_the_exporters_mappings(a: NatsClient, e: NatsClient) -> None:
    e.sub("new")
    e.sub("old")
    a.pub("old", b"1")
    assert e.got() == ("new", b"1")
    a.ping()
    e.nothing()


def test_one_of_a_queue_group_answers(a: NatsClient, server: FileServer) -> None:
    with NatsClient(server.address, "e") as e, NatsClient(server.address, "e") as f:
        for client in (e, f):
            client.sub("svc.one", "group")
        for number in range(40):
            a.pub("ask", b"x", reply=f"inbox.{number}")
        a.ping()
        taken = 0
        for client in (e, f):
            client.send(b"PING\r\n")
            while (line := client.read_line()) != b"PONG\r\n":
                client.read_exact(int(line.split()[-1]) + 2)
                taken += 1
        assert taken == 40


def test_a_local_subscriber_gets_it_too(a: NatsClient, e: NatsClient) -> None:
    e.sub("svc.one")
    sid = a.sub("ask")
    a.pub("ask", b"x", reply="inbox.1")
    local = a.message()
    assert (local.subject, local.sid, local.reply, local.headers) == ("ask", sid, "inbox.1", b"")
    assert TOKEN.fullmatch(e.message().reply)


def test_nobody_there(a: NatsClient) -> None:
    a.pub("ask", b"x", reply="inbox.1")
    assert a.message().headers == b"NATS/1.0 503\r\nNats-Subject: ask\r\n\r\n"
    a.pub("not.imported", b"x", reply="inbox.1")
    assert a.message().headers.startswith(b"NATS/1.0 503")


@pytest.mark.parametrize("service", ["many.of.them", "chunks"])
def test_many_answers_until_an_empty_one(a: NatsClient, e: NatsClient, service: str) -> None:
    e.sub(service)
    a.pub(service, b"x", reply="inbox.1")
    reply = e.message().reply
    for number in range(5):
        e.pub(reply, b"%d" % number)
    e.pub(reply, headers=b"NATS/1.0\r\n\r\n")
    e.pub(reply, b"")
    e.pub(reply, b"too late")
    e.ping()
    assert [a.message().data for _ in range(7)] == [b"0", b"1", b"2", b"3", b"4", b"", b""]
    a.nothing()


async def test_a_threshold(server: FileServer) -> None:
    """An answer too late is dropped; each answer of a stream begins the time anew."""
    url = f"nats://{server.address}"
    a = await nats.connect(url, user="a", password="a")
    e = await nats.connect(url, user="e", password="e")
    try:
        asked = await e.subscribe("quick")
        answers = await a.subscribe("inbox.t")
        await asyncio.gather(a.flush(), e.flush())
        await a.publish("quick", b"x", reply="inbox.t")
        question = await asked.next_msg(5)
        await question.respond(b"1")
        assert (await answers.next_msg(5)).data == b"1"
        late = False
        while not late:  # until the server has forgotten it: that is after 0.15 to 0.3 s
            await asyncio.sleep(0.35)
            await question.respond(b"late")
            await e.flush()
            await a.flush()
            late = answers.pending_msgs == 0
            if not late:
                await answers.next_msg(5)
    finally:
        await a.close()
        await e.close()


def test_a_chain_of_imports(server: FileServer, e: NatsClient) -> None:
    e.sub("svc.*")
    with NatsClient(server.address, "b") as b:
        b.sub("inbox")
        b.pub("please", b"x", reply="inbox")
        asked = e.message()
        assert (asked.subject, asked.info["acc"], asked.info["svc"]) == ("svc.one", "B", "A")
        e.pub(asked.reply, b"y")
        assert b.got() == ("inbox", b"y")
        b.pub("please.shared", b"x", reply="inbox")
        info = e.message().info
        assert info["acc"] == "B"
        assert info["svc"] == "A"
        assert info["server"] == "here"
        assert "user" not in info


def test_requests_are_no_part_of_exported_streams(a: NatsClient, server: FileServer) -> None:
    with NatsClient(server.address, "b") as b, NatsClient(server.address, "e") as e:
        b.sub("heard.>")
        a.pub("svc.imported", b"1")
        a.ping()
        e.pub("svc.own", b"2")
        assert b.got() == ("heard.svc.own", b"2")


def test_both_sides_go_on_talking(a: NatsClient, e: NatsClient) -> None:
    """An answer may ask for an answer in turn."""
    e.sub("svc.one")
    e.sub("more")
    a.pub("ask", b"1", reply="inbox.1")
    e.pub(e.message().reply, b"2", reply="more")
    back = a.message()
    assert TOKEN.fullmatch(back.reply)
    a.pub(back.reply, b"3")
    assert e.got() == ("more", b"3")


def test_forged_replies(a: NatsClient, e: NatsClient) -> None:
    e.sub("svc.one")
    a.pub("ask", b"1", reply="inbox.1")
    reply = e.message().reply
    for forged in (reply[:-1], reply + "x", reply[:-1] + "-", reply[:11] + "AAAAAA", reply + ".T"):
        e.pub(forged, b"forged")
    a.pub(reply, b"from another account")
    e.ping()
    a.nothing()
    e.pub(reply, b"true")
    assert a.got() == ("inbox.1", b"true")


def test_clients_cannot_ask_for_such_replies(a: NatsClient) -> None:
    a.pub("ask", b"1", reply="_R_.abcdef.ghijkl")
    line = a.read_line()
    assert line == (
        b"-ERR 'Permissions Violation for Publish with Reply of \"_R_.abcdef.ghijkl\"'\r\n"
    )


def test_no_echo_of_an_import(server: FileServer, e: NatsClient) -> None:
    """echo: false keeps from a client what it published, also by way of another account."""
    with NatsClient(server.address, "a", echo=False) as quiet:
        quiet.sub("inbox.q")
        e.sub("svc.one")
        quiet.pub("ask", b"1", reply="inbox.q")
        e.pub(e.message().reply, b"2")
        assert quiet.got() == ("inbox.q", b"2")


async def test_with_the_python_client(server: FileServer) -> None:
    url = f"nats://{server.address}"
    a = await nats.connect(url, user="a", password="a")
    e = await nats.connect(url, user="e", password="e")
    try:

        async def answer(message: nats.aio.msg.Msg) -> None:
            await message.respond(message.data + b"!")

        await e.subscribe("svc.one", cb=answer)
        await e.flush()
        answers = await asyncio.gather(*(a.request("ask", b"%d" % n, 5) for n in range(50)))
        assert [message.data for message in answers] == [b"%d!" % n for n in range(50)]
    finally:
        await a.close()
        await e.close()
