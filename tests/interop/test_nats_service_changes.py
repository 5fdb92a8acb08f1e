"""Service imports that change while requests are under way, and those that cannot be.

Each scenario runs against the original as well (TWINWIRE_TEST_TARGET=original).
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.clients.nats import Message, NatsClient
from support.nats_file import FileServer
from support.servers.processes import ServerError

Start = Callable[[str], FileServer]

TEXT = """
accounts {
  E {
    users: [{user: e, password: e}]
    exports: [
      {service: "svc.*"}
      {service: "private", accounts: [A]}
      {service: "of.*.it", account_token_position: 2}
      {service: "to.*.*"}
      {service: "old"}
    ]
  }
  A {
    users: [{user: a, password: a}]
    imports: [
      {service: {account: E, subject: "svc.one"}, to: "ask"}
      {service: {account: E, subject: "old"}}
    ]
  }
}
"""


def test_what_was_asked_before_a_reload_is_answered(start_nats: Start) -> None:
    server = start_nats(TEXT)
    changed = TEXT.replace('{service: "old"}', '{service: "older"}').replace(
        '{service: {account: E, subject: "old"}}', '{service: {account: E, subject: "older"}}'
    )
    with NatsClient(server.address, "a") as a, NatsClient(server.address, "e") as e:
        a.sub("inbox")
        for service in ("svc.one", "old", "older"):
            e.sub(service)
        a.pub("ask", b"1", reply="inbox")
        a.pub("old", b"2", reply="inbox")
        replies = [e.message().reply, e.message().reply]
        server.reload(changed)
        server.await_log("Reloaded server configuration")
        for reply in replies:
            e.pub(reply, reply.encode())
        assert [a.message().data, a.message().data] == [reply.encode() for reply in replies]
        a.pub("old", b"3")
        a.pub("older", b"4")
        assert e.got() == ("older", b"4")
        a.pub("ask", b"5", reply="inbox")
        e.pub(e.message().reply, b"6")
        assert a.got() == ("inbox", b"6")


@pytest.mark.parametrize(
    "more",
    [
        'X {imports: [{service: {account: E, subject: "private"}}]}',
        'X {imports: [{service: {account: E, subject: "of.A.it"}}]}',
        'X {imports: [{service: {account: E, subject: "unknown"}}]}',
        'X {imports: [{service: {account: NONE, subject: "svc.one"}}]}',
        'X {imports: [{service: {account: E, subject: "to.*.*"}, to: "x.$1"}]}',
        """X {imports: [{service: {account: E, subject: "svc.a"}, to: x}
                        {service: {account: E, subject: "svc.b"}, to: x}]}""",
        """X {exports: [{service: "x"}], imports: [{service: {account: Y, subject: "x"}}]}
           Y {exports: [{service: "x"}], imports: [{service: {account: X, subject: "x"}}]}""",
    ],
)
def test_refused_at_the_start(start_nats: Start, more: str) -> None:
    with pytest.raises(ServerError):
        start_nats(TEXT.rstrip().removesuffix("}") + more + "}")


def test_a_circle_that_the_check_does_not_see(start_nats: Start) -> None:
    """Found while messages flow: each service hands a request on once."""
    server = start_nats("""
      accounts {
        A { users: [{user: a, password: a}], exports: [{service: x}]
            imports: [{service: {account: B, subject: y}, to: x}] }
        B { users: [{user: b, password: b}], exports: [{service: y}]
            imports: [{service: {account: C, subject: z}, to: y}] }
        C { users: [{user: c, password: c}], exports: [{service: z}]
            imports: [{service: {account: A, subject: x}, to: z}] }
      }""")
    with NatsClient(server.address, "a") as a, NatsClient(server.address, "c") as c:
        a.sub("x")
        c.sub("z")
        c.sub("inbox")
        c.pub("z", b"1", reply="inbox")
        got = [c.message(), c.message()]
        assert {m.subject for m in got} == {"z"}
        asked = a.message()
        assert isinstance(asked, Message)
        a.pub(asked.reply, b"2")
        assert c.got() == ("inbox", b"2")
        a.ping()
        c.nothing()
