"""Stream imports on a real server: who gets what under which subject, until when.

Each scenario runs against the original as well (TWINWIRE_TEST_TARGET=original).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import nats
import pytest
from support.clients.nats import NatsClient
from support.nats_file import FileServer
from support.servers.processes import ServerError

Start = Callable[[str], FileServer]

EXPORTS = """
  E {
    users: [{user: e, password: e}]
    exports: [
      {stream: "ev.>"}
      {stream: "abc.*.*"}
      {stream: "one.two"}
      {stream: "private.x", accounts: [A]}
      {stream: "for.*.x", account_token_position: 2}
    ]
  }
"""


def accounts(imports: str, more: str = "") -> str:
    return f"""
accounts {{
  {EXPORTS}
  A {{
    users: [{{user: a, password: a}}]
    imports: [{imports}]
  }}
  {more}
}}
"""


@pytest.fixture(scope="module")
def prefixed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FileServer]:
    server = FileServer(
        tmp_path_factory.mktemp("prefixed"),
        accounts('{stream: {account: E, subject: "ev.>"}, prefix: in}'),
    )
    yield server
    server.close()


def stream(subject: str, more: str = "") -> str:
    return accounts(f'{{stream: {{account: E, subject: "{subject}"}}{more}}}')


def test_a_prefix(prefixed: FileServer) -> None:
    with NatsClient(prefixed.address, "a") as a, NatsClient(prefixed.address, "e") as e:
        a.sub("in.ev.*")
        e.pub("ev.x", b"1", reply="back.to.me")
        message = a.message()
        assert (message.subject, message.reply, message.data) == ("in.ev.x", "back.to.me", b"1")
        e.pub("ev.x.y", b"2")
        e.ping()
        a.nothing()
        a.pub("in.ev.local", b"3")
        assert a.got() == ("in.ev.local", b"3")
        a.pub("ev.x", b"not exported backwards")
        a.ping()
        e.nothing()


@pytest.mark.parametrize(
    ("subject", "published", "got"),
    [
        (">", "ev.x.y", True),
        ("in.>", "ev.x.y", True),
        ("in.ev.>", "ev.x.y", True),
        ("*.*.*", "ev.x", True),
        ("*.ev.x.*", "ev.x.y", True),
        ("in.*.x", "ev.x", True),
        ("*.*.x.>", "ev.x.y.z", True),
        ("in.ev.x", "ev.x", True),
        ("in.ev.y", "ev.x", False),
        ("ev.>", "ev.x", False),
        ("out.>", "ev.x", False),
        ("in.*", "ev.x", False),
        ("in.other.>", "ev.x", False),
    ],
)
def test_which_subscriptions(prefixed: FileServer, subject: str, published: str, got: bool) -> None:
    with NatsClient(prefixed.address, "a") as a, NatsClient(prefixed.address, "e") as e:
        a.sub(subject)
        e.pub(published, b"x")
        e.ping()
        if got:
            assert a.got() == (f"in.{published}", b"x")
        a.nothing()


def test_wildcards_in_another_order(start_nats: Start) -> None:
    server = start_nats(stream("abc.*.*", ', to: "my.$2.events.$1"'))
    with NatsClient(server.address, "a") as a, NatsClient(server.address, "e") as e:
        a.sub("my.>")
        a.sub("my.b.events.*")
        a.sub("my.x.events.*")
        e.pub("abc.a.b", b"1")
        assert sorted([a.message()[:2], a.message()[:2]]) == [
            ("my.b.events.a", "1"),
            ("my.b.events.a", "2"),
        ]
        e.ping()
        a.nothing()


def test_a_literal_under_another_name(start_nats: Start) -> None:
    server = start_nats(stream("one.two", ", to: uno"))
    with NatsClient(server.address, "a") as a, NatsClient(server.address, "e") as e:
        a.sub("uno")
        a.sub("one.two")
        e.pub("one.two", b"1")
        assert a.message()[:2] == ("uno", "1")
        e.ping()
        a.nothing()


def test_under_the_same_name(start_nats: Start) -> None:
    server = start_nats(stream("ev.>"))
    with NatsClient(server.address, "a") as a, NatsClient(server.address, "e") as e:
        a.sub("ev.x")
        a.sub("*.x")
        e.pub("ev.x", b"1")
        assert {a.message()[:2], a.message()[:2]} == {("ev.x", "1"), ("ev.x", "2")}


def test_part_of_an_export(start_nats: Start) -> None:
    server = start_nats(stream("ev.some.*", ", to: part.*"))
    with NatsClient(server.address, "a") as a, NatsClient(server.address, "e") as e:
        a.sub("part.>")
        e.pub("ev.other.1", b"1")
        e.pub("ev.some.2", b"2")
        assert a.got() == ("part.2", b"2")


def test_headers_and_clients_without(prefixed: FileServer) -> None:
    block = b"NATS/1.0\r\nA: b\r\n\r\n"
    address = prefixed.address
    with NatsClient(address, "a") as a, NatsClient(address, "a", headers=False) as old:
        a.sub("in.>")
        old.sub("in.>")
        with NatsClient(address, "e") as e:
            e.pub("ev.x", b"1", headers=block)
            assert a.message() == ("in.ev.x", "1", "", block, b"1")
            assert old.message() == ("in.ev.x", "1", "", b"", b"1")


def test_one_queue_group_over_both_accounts(prefixed: FileServer) -> None:
    address = prefixed.address
    with (
        NatsClient(address, "a") as a,
        NatsClient(address, "a") as b,
        NatsClient(address, "e") as e,
        NatsClient(address, "e") as f,
    ):
        for client, subject in ((a, "in.ev.q"), (b, "in.>"), (e, "ev.q")):
            client.sub(subject, "workers")
        count = 120
        for _ in range(count):
            f.pub("ev.q", b"1")
        f.ping()
        got = []
        for client, subject in ((a, "in.ev.q"), (b, "in.ev.q"), (e, "ev.q")):
            client.send(b"PING\r\n")
            taken = 0
            while (line := client.read_line()) != b"PONG\r\n":
                assert line.split()[1] == subject.encode()
                client.read_line()
                taken += 1
            got.append(taken)
        assert sum(got) == count
        assert all(got)


def test_unsubscribed(prefixed: FileServer) -> None:
    with NatsClient(prefixed.address, "a") as a, NatsClient(prefixed.address, "e") as e:
        sid = a.sub("in.>")
        other = a.sub("in.ev.x")
        a.unsub(sid)
        e.pub("ev.x", b"1")
        assert a.message().sid == other
        e.ping()
        a.nothing()


def test_a_session_that_is_gone(prefixed: FileServer) -> None:
    with NatsClient(prefixed.address, "e", no_responders=True) as e:
        inbox = e.sub("inbox")
        with NatsClient(prefixed.address, "a") as a:
            a.sub("in.>")
            e.pub("ev.x", b"1", reply="inbox")
            assert a.got() == ("in.ev.x", b"1")
            e.nothing()
        while True:
            e.pub("ev.x", b"1", reply="inbox")
            e.send(b"PING\r\n")
            line = e.read_line()
            if line != b"PONG\r\n":
                break
        assert line.startswith(f"HMSG inbox {inbox} 36 36".encode())  # a 503


@pytest.mark.only_ours
def test_a_subscription_that_runs_out(prefixed: FileServer) -> None:
    """The original counts what came by an import apart and never ends there."""
    with NatsClient(prefixed.address, "a") as a, NatsClient(prefixed.address, "e") as e:
        sid = a.sub("in.ev.x")
        a.unsub(sid, 3)
        a.pub("in.ev.x", b"local")
        assert a.got() == ("in.ev.x", b"local")
        for _ in range(5):
            e.pub("ev.x", b"1")
        e.ping()
        assert [a.got(), a.got()] == [("in.ev.x", b"1")] * 2
        a.nothing()


def test_private_to_an_account(start_nats: Start) -> None:
    server = start_nats(stream("private.x"))
    with NatsClient(server.address, "a") as a, NatsClient(server.address, "e") as e:
        a.sub("private.x")
        e.pub("private.x", b"1")
        assert a.got() == ("private.x", b"1")


def test_our_name_at_its_place(start_nats: Start) -> None:
    server = start_nats(stream("for.A.x"))
    with NatsClient(server.address, "a") as a, NatsClient(server.address, "e") as e:
        a.sub("for.*.x")
        e.pub("for.A.x", b"1")
        e.pub("for.B.x", b"2")
        assert a.got() == ("for.A.x", b"1")
        e.ping()
        a.nothing()


@pytest.mark.parametrize(
    "imports",
    [
        'X {imports: [{stream: {account: E, subject: "private.x"}}]}',
        'X {imports: [{stream: {account: E, subject: "for.A.x"}}]}',
        'X {imports: [{stream: {account: E, subject: "for.*.x"}}]}',
        'X {imports: [{stream: {account: E, subject: "unknown"}}]}',
        'X {imports: [{stream: {account: NONE, subject: "ev.>"}}]}',
        'X {imports: [{stream: {account: E, subject: "ev.>"}, prefix: "a.*"}]}',
        'X {imports: [{stream: {account: E, subject: "abc.*.*"}, to: "x.$1"}]}',
        'X {imports: [{stream: {account: E, subject: "abc.*.*"}, to: "x.$1.{{split(2,-)}}"}]}',
        """X {exports: [{stream: "x.>"}], imports: [{stream: {account: Y, subject: "x.>"}}]}
           Y {exports: [{stream: "x.>"}], imports: [{stream: {account: X, subject: "x.>"}}]}""",
    ],
)
def test_refused_at_the_start(start_nats: Start, imports: str) -> None:
    with pytest.raises(ServerError):
        start_nats(accounts("", imports))


def test_streams_are_not_handed_on(start_nats: Start) -> None:
    server = start_nats(
        accounts(
            '{stream: {account: M, subject: "mid.>"}}',
            """M {
              users: [{user: m, password: m}]
              exports: [{stream: "mid.>"}]
              imports: [{stream: {account: E, subject: "ev.>"}, prefix: mid}]
            }""",
        )
    )
    address = server.address
    with NatsClient(address, "a") as a, NatsClient(address, "m") as m:
        a.sub("mid.>")
        m.sub("mid.>")
        with NatsClient(address, "e") as e:
            e.pub("ev.x", b"1")
            assert m.got() == ("mid.ev.x", b"1")
            e.ping()
        a.nothing()


def test_a_reload_brings_and_takes_imports(start_nats: Start) -> None:
    server = start_nats(accounts(""))
    imported = stream("ev.>", ", prefix: in")
    with NatsClient(server.address, "a") as a, NatsClient(server.address, "e") as e:
        sid = a.sub("in.>")
        a.sub("*.ev.q", "workers")
        e.pub("ev.x", b"0")
        e.ping()
        a.nothing()
        server.reload(imported)
        server.await_log("Reloaded server configuration")
        e.pub("ev.x", b"1")
        assert a.message()[:2] == ("in.ev.x", sid)
        e.pub("ev.q", b"1")
        assert sorted([a.message().sid, a.message().sid]) == ["1", "2"]
        server.reload(imported + "# nothing new\n")
        server.await_log("Reloaded server configuration", 2)
        e.pub("ev.x", b"2")
        assert a.got() == ("in.ev.x", b"2")
        e.ping()
        a.nothing()
        server.reload(accounts(""))
        server.await_log("Reloaded server configuration", 3)
        e.pub("ev.x", b"3")
        e.ping()
        a.nothing()


async def test_with_the_python_client(prefixed: FileServer) -> None:
    url = f"nats://{prefixed.address}"
    a = await nats.connect(url, user="a", password="a")
    e = await nats.connect(url, user="e", password="e")
    try:
        sub = await a.subscribe("in.ev.>")
        await a.flush()
        await e.publish("ev.x", b"1", headers={"A": "b"})
        message = await sub.next_msg(5)
        assert (message.subject, message.data, message.headers) == ("in.ev.x", b"1", {"A": "b"})
        await sub.unsubscribe()
    finally:
        await a.close()
        await e.close()
