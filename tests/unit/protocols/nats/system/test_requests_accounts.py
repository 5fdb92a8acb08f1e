"""Requests about accounts and users, and those that any account may make."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest
from support.fakes.system import SERVER_ID, FakeAccount, FakeServer, FakeSession

from broker.base.units import HOUR, MINUTE, SECOND
from broker.protocols.nats.auth.authenticator import Identity
from broker.protocols.nats.settings import Import, Permissions, ResponseRule, Rules, SubjectRule
from broker.protocols.nats.system.requests import covers

PING = "$SYS.REQ.SERVER.PING"
ME = f"$SYS.REQ.SERVER.{SERVER_ID}"


@pytest.fixture
def server() -> FakeServer:
    return FakeServer()


# --- of an account --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "option"), [("SUBSZ", "account"), ("CONNZ", "acc"), ("LEAFZ", "account")]
)
def test_pages_of_an_account(server: FakeServer, name: str, option: str) -> None:
    answer = server.ask_one(f"$SYS.REQ.ACCOUNT.A.{name}", b'{"acc":"B","account":"B"}')
    assert answer["data"] == {"page": name}
    ((_, options),) = server.pages.asked
    assert options[option] == "A"
    assert name != "SUBSZ" or options["subscriptions"]


def test_jetstream_of_an_account(server: FakeServer) -> None:
    answer = server.ask_one("$SYS.REQ.ACCOUNT.A.JSZ")
    assert answer["data"] is None
    assert answer["error"] == {"code": 500, "description": "jetstream not enabled"}


def test_what_an_account_is(server: FakeServer) -> None:
    assert server.ask_one("$SYS.REQ.ACCOUNT.A.INFO")["data"] == {"page": "INFO"}
    assert server.pages.asked == [("INFO", {"account": "A"})]


def test_statistics_of_an_account(server: FakeServer) -> None:
    assert server.ask("$SYS.REQ.ACCOUNT.A.STATZ") == []  # nobody is connected
    answer = server.ask_one("$SYS.REQ.ACCOUNT.A.STATZ", b'{"include_unused":true}')
    assert [stat["acc"] for stat in answer["data"]["account_statz"]] == ["A"]
    FakeSession(server.accounts["A"])
    answer = server.ask_one("$SYS.REQ.ACCOUNT.A.STATZ", b'{"accounts":["B"]}')
    assert [stat["acc"] for stat in answer["data"]["account_statz"]] == ["A"]


def test_statistics_of_all_accounts(server: FakeServer) -> None:
    assert server.ask("$SYS.REQ.ACCOUNT.PING.STATZ") == []
    answer = server.ask_one("$SYS.REQ.ACCOUNT.PING.STATZ", b'{"include_unused":true}')
    names = [stat["acc"] for stat in answer["data"]["account_statz"]]
    assert names == ["SYS", "A", "B", "$G"]


def test_connections_of_an_account(server: FakeServer) -> None:
    assert server.ask("$SYS.REQ.ACCOUNT.A.CONNS") == []
    assert server.ask("$SYS.REQ.ACCOUNT.NOPE.CONNS") == []
    FakeSession(server.accounts["A"])
    answer = server.ask_one("$SYS.REQ.ACCOUNT.A.CONNS", b'{"acc":"A"}')
    assert list(answer)[:4] == ["type", "id", "timestamp", "server"]
    assert (answer["acc"], answer["conns"]) == ("A", 1)
    assert server.ask("$SYS.REQ.ACCOUNT.A.CONNS", b'{"acc":"B"}') == []
    assert server.ask("$SYS.REQ.ACCOUNT.A.CONNS", b"{") == []


# --- asked from other accounts --------------------------------------------------------------------


@pytest.mark.parametrize("subject", ["$SYS.REQ.ACCOUNT.PING.CONNZ", "$SYS.REQ.SERVER.PING.CONNZ"])
def test_an_account_sees_its_own_connections(server: FakeServer, subject: str) -> None:
    answer = server.ask_one(subject, b'{"acc":"B","auth":true}', account="A")
    assert answer["data"] == {"page": "CONNZ"}
    ((_, options),) = server.pages.asked
    assert (options["acc"], options["auth"]) == ("A", True)


def test_an_account_sees_its_own_statistics(server: FakeServer) -> None:
    FakeSession(server.accounts["A"])
    answer = server.ask_one("$SYS.REQ.ACCOUNT.PING.STATZ", account="A")
    assert [stat["acc"] for stat in answer["data"]["account_statz"]] == ["A"]


@pytest.mark.parametrize(
    "subject",
    [PING, f"{PING}.VARZ", f"{ME}.KICK", "$SYS.REQ.ACCOUNT.A.INFO", "$SYS.REQ.ACCOUNT.A.CONNZ"],
)
def test_the_rest_is_not_for_other_accounts(server: FakeServer, subject: str) -> None:
    assert server.ask(subject, account="A") == []
    assert server.ask(subject, account="$G") == []


def test_an_account_that_comes_later(server: FakeServer) -> None:
    late = server.accounts["late"] = FakeAccount("late")
    assert server.ask("$SYS.REQ.SERVER.PING.CONNZ", account="late") == []
    server.system.adopt(late)
    server.system.adopt(late)  # once
    server.system.adopt(server.system_account)  # it has them already
    assert len(server.ask("$SYS.REQ.SERVER.PING.CONNZ", account="late")) == 1
    server.system.forget(late)
    assert server.ask("$SYS.REQ.SERVER.PING.CONNZ", account="late") == []
    assert late.router.size == 0


def test_a_configured_import_comes_first() -> None:
    server = FakeServer()
    own = Import("SYS", "$SYS.REQ.ACCOUNT.A.CONNZ", True, to="$SYS.REQ.SERVER.PING.CONNZ")
    late = server.accounts["late"] = FakeAccount("late", SimpleNamespace(imports=(own,)))
    server.system.adopt(late)
    assert server.ask("$SYS.REQ.SERVER.PING.CONNZ", account="late") == []
    assert len(server.ask("$SYS.REQ.ACCOUNT.PING.CONNZ", account="late")) == 1
    late.config = SimpleNamespace(imports=())
    server.system.adopt(late)
    assert len(server.ask("$SYS.REQ.SERVER.PING.CONNZ", account="late")) == 1
    late.config = SimpleNamespace(imports=(own,))
    server.system.adopt(late)
    assert server.ask("$SYS.REQ.SERVER.PING.CONNZ", account="late") == []


# --- users ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("account", ["SYS", "A", "$G"])
def test_user_info(server: FakeServer, account: str) -> None:
    session = FakeSession(server.accounts[account], user="bob")
    answer = server.ask_one("$SYS.REQ.USER.INFO", account=account, session=session)
    assert list(answer) == ["server", "data"]
    assert list(answer["data"].items()) == [
        ("user", "bob"), ("account", account), ("account_name", account)
    ]  # fmt: skip


def test_user_info_with_rights(server: FakeServer) -> None:
    session = FakeSession(server.accounts["A"], user="bob")
    in_an_hour_ns = time.time_ns() + HOUR + SECOND // 2
    session.identity = Identity(
        "A",
        permissions=Permissions(
            Rules((SubjectRule("a.>"),), (SubjectRule("a.b"),)),
            Rules((SubjectRule("q", "workers"),)),
            ResponseRule(),
        ),
        expires_ns=in_an_hour_ns,
    )
    data = server.ask_one("$SYS.REQ.USER.INFO", account="A", session=session)["data"]
    assert list(data) == ["user", "account", "account_name", "permissions", "expires"]
    assert data["permissions"] == {
        "publish": {"allow": ["a.>"], "deny": ["a.b"]},
        "subscribe": {"allow": ["q"]},
        "responses": {"max": 1, "ttl": 2 * MINUTE},
    }
    assert data["expires"] == HOUR


def test_user_info_asked_for_others(server: FakeServer) -> None:
    answer = server.ask_one("$SYS.REQ.USER.A.INFO", session=FakeSession(server.accounts["SYS"]))
    assert answer["data"] == {"user": "", "account": ""}


# --- who subscribes -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "count"),
    [(b"", 0), (b"foo.bar", 0), (b" foo.bar g", 0), (b"foo.*", 0), (b"nobody", 0)],
)
def test_subscribers_without_clients(server: FakeServer, body: bytes, count: int) -> None:
    """Listeners of the server's own do not count."""
    server.system_account.watch("foo.bar")
    assert server.ask_one("$SYS.DEBUG.SUBSCRIBERS", body) == count


def test_subscribers(server: FakeServer) -> None:
    home = server.accounts["A"]
    home.watch("foo.*", "foo.bar")
    home.listen(b"foo.bar", print, b"g")
    home.sessions.update([*home.subscriptions.values(), home.listeners[-1].subscription])  # type: ignore[list-item]
    caller = FakeSession(home)
    for body, count in ((b"foo.bar", 3), (b"foo.bar g", 1), (b"foo.*", 3), (b"foo.* g", 1)):
        assert server.ask_one("$SYS.DEBUG.SUBSCRIBERS", body, session=caller) == count
    asked = b'{"acc":"A","subject":"foo.bar"}'
    assert server.ask_one("$SYS.REQ.ACCOUNT.NSUBS", asked) == 3
    assert server.ask("$SYS.REQ.ACCOUNT.NSUBS", b"{") == []


@pytest.mark.parametrize(
    ("pattern", "subject", "found"),
    [
        (b">", b"a.b", True),
        (b"a.>", b"a.b.c", True),
        (b"a.>", b"a", False),
        (b"a.*", b"a.*", True),
        (b"a.*", b"a.>", False),
        (b"a.b", b"a.*", False),
        (b"*.*", b"a.b", True),
        (b"*", b"a.b", False),
        (b"a.b.c", b"a.b", False),
    ],
)
def test_which_subjects_a_pattern_covers(pattern: bytes, subject: bytes, found: bool) -> None:
    assert covers(pattern, subject) is found
