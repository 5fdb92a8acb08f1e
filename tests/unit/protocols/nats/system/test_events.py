"""Events of the system account: published to subscribers, free when there are none."""

from __future__ import annotations

import re

import orjson
import pytest
from support.fakes.system import SERVER_ID, VARZ, FakeClock, FakeServer, FakeSession

from broker.base.units import MS, SECOND
from broker.protocols.nats import errors
from broker.protocols.nats.auth.authenticator import Identity
from broker.protocols.nats.system.backlog import Backlog
from broker.protocols.nats.system.envelope import EventIds
from broker.protocols.nats.system.events import client_block
from broker.routing.local import publish

STATSZ = f"$SYS.SERVER.{SERVER_ID}.STATSZ"
AUTH_ERROR = f"$SYS.SERVER.{SERVER_ID}.CLIENT.AUTH.ERR"
CONNS = ("$SYS.SERVER.ACCOUNT.A.CONNS", "$SYS.ACCOUNT.A.SERVER.CONNS")


@pytest.fixture
def server() -> FakeServer:
    return FakeServer()


def join(server: FakeServer, account: str = "A", **options: str) -> FakeSession:
    session = FakeSession(server.accounts[account], **options)
    server.system.connected(session)
    server.clock.run()
    return session


def leave(server: FakeServer, session: FakeSession, reason: str) -> None:
    assert session.account is not None
    session.account.sessions.discard(session)
    server.system.disconnected(session, reason)
    server.clock.run()


def test_nothing_is_built_for_nobody(server: FakeServer) -> None:
    session = join(server)
    leave(server, session, errors.NATS_CLOSED_CLIENT)
    server.system.refused(FakeSession(None))
    server.clock.advance(100)
    assert server.pages.asked == []
    assert server.system.envelope.sequence == 0
    assert all(account.published == [] for account in server.accounts.values())


def test_connect(server: FakeServer) -> None:
    server.system_account.watch("$SYS.ACCOUNT.*.CONNECT")
    join(server, user="a", name="alice", lang="go", version="1.2")
    (event,) = server.system_account.events("$SYS.ACCOUNT.A.CONNECT")
    assert list(event) == ["type", "id", "timestamp", "server", "client"]
    assert event["type"] == "io.nats.server.advisory.v1.client_connect"
    assert re.fullmatch(r"[0-9A-Za-z]{22}", event["id"])
    assert list(event["server"]) == [
        "name", "host", "id", "ver", "tags", "feature_flags", "jetstream", "flags", "seq", "time",
    ]  # fmt: skip
    assert event["server"]["tags"] == ["az:1", "big"]
    assert list(event["client"].items()) == [
        ("start", "2023-11-14T22:13:20Z"),
        ("host", "127.0.0.1"),
        ("id", 7),
        ("acc", "A"),
        ("user", "a"),
        ("name", "alice"),
        ("lang", "go"),
        ("ver", "1.2"),
        ("name_tag", "A"),
        ("kind", "Client"),
        ("client_type", "nats"),
    ]


def test_disconnect(server: FakeServer) -> None:
    server.system_account.watch("$SYS.ACCOUNT.A.DISCONNECT")
    leave(server, join(server), errors.NATS_CLOSED_STALE)
    (event,) = server.system_account.events("$SYS.ACCOUNT.A.DISCONNECT")
    assert list(event)[4:] == ["client", "sent", "received", "reason"]
    assert event["sent"] == {"msgs": 3, "bytes": 30}  # what the client sent
    assert event["received"] == {"msgs": 4, "bytes": 40}
    assert event["reason"] == "Stale Connection"
    assert event["client"]["rtt"] == 371_000
    assert event["client"]["stop"] == event["timestamp"]


def test_the_global_account_is_not_named(server: FakeServer) -> None:
    server.system_account.watch(">")
    leave(server, join(server, "$G"), errors.NATS_CLOSED_CLIENT)
    assert server.system_account.published == []


def test_a_session_that_never_logged_in(server: FakeServer) -> None:
    server.system_account.watch(">")
    server.system.disconnected(FakeSession(None), errors.NATS_CLOSED_AUTH_TIMEOUT)
    server.clock.run()
    assert server.system_account.published == []


def test_leafs_and_websockets(server: FakeServer) -> None:
    server.system_account.watch("$SYS.ACCOUNT.A.CONNECT")
    for kind in ("LEAFNODE", "WEBSOCKET"):
        session = FakeSession(server.accounts["A"])
        session.kind = kind
        server.system.connected(session)
    server.clock.run()
    leaf, websocket = server.system_account.events("$SYS.ACCOUNT.A.CONNECT")
    assert leaf["client"]["kind"] == "Leafnode"
    assert "client_type" not in leaf["client"]
    assert websocket["client"]["kind"] == "Client"
    assert websocket["client"]["client_type"] == "websocket"


def test_what_the_token_says_of_its_user(server: FakeServer) -> None:
    server.system_account.watch("$SYS.ACCOUNT.A.CONNECT")
    session = FakeSession(server.accounts["A"], jwt="e30.e30.sig")
    session.identity = Identity(
        "A", user="UKEY", jwt="e30.e30.sig", issuer_key="AKEY", name_tag="bob", tags=("x", "y")
    )
    server.system.connected(session)
    server.clock.run()
    (event,) = server.system_account.events("$SYS.ACCOUNT.A.CONNECT")
    assert list(event["client"].items())[4:] == [
        ("user", "UKEY"),
        ("jwt", "e30.e30.sig"),
        ("issuer_key", "AKEY"),
        ("name_tag", "bob"),
        ("tags", ["x", "y"]),
        ("kind", "Client"),
        ("client_type", "nats"),
    ]


def test_a_token_that_may_be_a_bearers_is_a_secret(server: FakeServer) -> None:
    """Whoever has its text could log in with it."""
    server.system_account.watch(">")
    session = FakeSession(server.accounts["A"], jwt="e30.e30.sig")
    session.identity = Identity("A", user="UKEY", key="jwt:UKEY")
    server.system.connected(session)
    server.clock.run()
    assert "jwt" not in server.system_account.events("$SYS.ACCOUNT.A.CONNECT")[0]["client"]
    session.identity = None
    assert client_block(session, "A")["jwt"] == "[REDACTED]"


def test_a_name_that_nobody_checked_is_not_shown(server: FakeServer) -> None:
    session = FakeSession(server.accounts["A"], jwt="e30.e30.sig", user="root", nkey="UROOT")
    session.identity = Identity("A", user="UKEY", key="jwt:UKEY")
    assert client_block(session, "A")["user"] == "UKEY"


def test_a_shared_token_is_a_secret(server: FakeServer) -> None:
    server.system_account.watch("$SYS.>")
    session = join(server, token="s3cret")
    leave(server, session, errors.NATS_CLOSED_CLIENT)
    server.system.refused(session)
    server.clock.run()
    sent = b"".join(body for _, _, body in server.system_account.published)
    assert sent.count(b'"user":"[REDACTED]"') == 3
    assert b"s3cret" not in sent


def test_names_that_are_no_text(server: FakeServer) -> None:
    """Half a character in JSON that a client sent; marks of HTML are escaped as Go does."""
    server.system_account.watch("$SYS.ACCOUNT.A.CONNECT")
    join(server, name="a\ud800<b>")
    (event,) = server.system_account.events("$SYS.ACCOUNT.A.CONNECT")
    assert event["client"]["name"] == "a?<b>"
    assert rb"\u003cb\u003e" in server.system_account.published[-1][2]


def test_refused_logins(server: FakeServer) -> None:
    server.system_account.watch(AUTH_ERROR)
    server.accounts["$G"].watch("$SYS.ACCOUNT.CLIENT.AUTH.ERR")
    server.system.refused(FakeSession(None, user="eve"))
    server.clock.run()
    (event,) = server.system_account.events(AUTH_ERROR)
    assert event["type"] == "io.nats.server.advisory.v1.client_disconnect"
    assert event["client"]["user"] == "eve"
    assert event["client"]["acc"] == "$G"
    assert event["reason"] == "Authentication Failure"
    (same,) = server.accounts["$G"].events("$SYS.ACCOUNT.CLIENT.AUTH.ERR")
    assert same["id"] != event["id"]


def test_who_else_hears_of_refused_logins(server: FakeServer) -> None:
    server.accounts["B"].watch("$SYS.ACCOUNT.CLIENT.AUTH.ERR")
    server.system.refused(FakeSession(None), "Auth Callout Failed", server.accounts["B"])
    server.clock.run()
    (event,) = server.accounts["B"].events("$SYS.ACCOUNT.CLIENT.AUTH.ERR")
    assert (event["client"]["acc"], event["reason"]) == ("B", "Auth Callout Failed")


def test_who_is_turned_away_for_other_reasons(server: FakeServer) -> None:
    """An account that is full is no failed login; it is known when the session has ended."""
    server.system_account.watch(AUTH_ERROR)
    session = FakeSession(None)
    server.system.refused(session)
    session.closed_because = errors.NATS_CLOSED_ACCOUNT_CONNECTIONS
    server.clock.run()
    assert server.system_account.published == []


def test_a_client_that_never_said_connect(server: FakeServer) -> None:
    server.system_account.watch("$SYS.ACCOUNT.A.DISCONNECT")
    session = FakeSession(server.accounts["A"])
    session.options, session.identity = None, Identity("A", user="anybody")
    leave(server, session, errors.NATS_CLOSED_CLIENT)
    (event,) = server.system_account.events("$SYS.ACCOUNT.A.DISCONNECT")
    assert event["client"]["user"] == "anybody"


# --- an account's connections -----------------------------------------------------------------


def test_connections_are_reported_on_both_subjects(server: FakeServer) -> None:
    server.system_account.watch("$SYS.>")
    join(server)
    sent = [server.system_account.events(subject) for subject in CONNS]
    (old,), (new,) = sent
    assert list(old)[:5] == ["type", "id", "timestamp", "server", "acc"]
    assert old["id"] == new["id"]
    assert new["server"]["seq"] == old["server"]["seq"] + 1
    assert (new["acc"], new["conns"]) == ("A", 1)
    subjects = [subject for subject, _, _ in server.system_account.published]
    assert subjects == [*CONNS, "$SYS.ACCOUNT.A.CONNECT"]


def test_many_changes_at_once_are_reported_once(server: FakeServer) -> None:
    server.system_account.watch(CONNS[1])
    for number in range(1000):
        server.system.connected(FakeSession(server.accounts["A"], number))
    server.clock.run()
    (event,) = server.system_account.events(CONNS[1])
    assert event["conns"] == 1000
    join(server)
    assert len(server.system_account.events(CONNS[1])) == 2


def test_connections_are_reported_again_every_30_seconds(server: FakeServer) -> None:
    server.system_account.watch(CONNS[1])
    session = join(server)
    server.clock.advance(29.9)
    assert len(server.system_account.events(CONNS[1])) == 1
    server.clock.advance(0.2)
    assert len(server.system_account.events(CONNS[1])) == 2
    server.clock.advance(30)
    assert len(server.system_account.events(CONNS[1])) == 3
    leave(server, session, errors.NATS_CLOSED_CLIENT)
    assert server.system_account.events(CONNS[1])[-1]["conns"] == 0
    server.clock.advance(100)
    assert len(server.system_account.events(CONNS[1])) == 4


def test_each_account_has_its_own_beat(server: FakeServer) -> None:
    server.system_account.watch("$SYS.ACCOUNT.*.SERVER.CONNS")
    join(server, "A")
    server.clock.advance(20)
    join(server, "B")
    server.clock.advance(20)
    assert len(server.system_account.events(CONNS[1])) == 2
    assert len(server.system_account.events("$SYS.ACCOUNT.B.SERVER.CONNS")) == 1


# --- statistics ---------------------------------------------------------------------------------


def test_when_statistics_are_published(server: FakeServer) -> None:
    server.system_account.watch(STATSZ)
    began, sent, count = server.clock.now, [], 0
    for _ in range(800):
        server.clock.advance(0.05)
        if len(server.system_account.events(STATSZ)) > count:
            count += 1
            sent.append(round(server.clock.now - began, 2))
    assert sent == pytest.approx([0.25, 1.25, 3.25, 7.25, 15.25, 25.25, 35.25], abs=0.06)


def test_statistics(server: FakeServer) -> None:
    join(server)
    server.system_account.watch(STATSZ)
    server.clock.advance(0.3)
    (message,) = server.system_account.events(STATSZ)
    assert list(message) == ["server", "statsz"]
    assert list(message["statsz"].items()) == [
        ("start", "2026-01-01T00:00:00Z"),
        ("mem", 1),
        ("cores", 2),
        ("cpu", 0.5),
        ("connections", 3),
        ("total_connections", 4),
        ("active_accounts", 1),
        ("subscriptions", 5),
        ("sent", {"msgs": 6, "bytes": 7}),
        ("sent_to_clients", {"msgs": 4, "bytes": 5}),
        ("received", {"msgs": 8, "bytes": 9}),
        ("received_from_clients", {"msgs": 6, "bytes": 7}),
        ("slow_consumers", 0),
        ("active_servers", 1),
        ("gomaxprocs", 1),
    ]


def test_statistics_of_jetstream(server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    server.system.envelope.has_jetstream = lambda: True
    block = {"config": {"max_memory": 1, "store_dir": "/js"}, "stats": {"memory": 2}}
    monkeypatch.setitem(VARZ, "jetstream", block)
    server.system_account.watch(STATSZ)
    server.clock.advance(0.3)
    (message,) = server.system_account.events(STATSZ)
    assert (message["server"]["jetstream"], message["server"]["flags"]) == (True, 7)
    assert list(message["statsz"])[-2:] == ["jetstream", "gomaxprocs"]
    assert message["statsz"]["jetstream"] == {"config": {"max_memory": 1}, "stats": {"memory": 2}}


# --- the end --------------------------------------------------------------------------------------


def test_leaving(server: FakeServer) -> None:
    server.system_account.watch("$SYS.SERVER.>")
    server.system.lame_duck()
    server.system.shutdown()
    subjects = [subject for subject, _, _ in server.system_account.published]
    assert subjects == [f"$SYS.SERVER.{SERVER_ID}.{what}" for what in ("LAMEDUCK", "SHUTDOWN")]
    blocks = [orjson.loads(body) for _, _, body in server.system_account.published]
    assert [block["seq"] for block in blocks] == [1, 2]
    assert blocks[0]["name"] == "twin"


def test_after_the_end_nothing_is_said(server: FakeServer) -> None:
    server.system_account.watch("$SYS.>")
    server.system.shutdown()
    server.system_account.published.clear()
    join(server)
    server.system.refused(FakeSession(None))
    server.system.lame_duck()
    server.clock.advance(100)
    assert server.system_account.published == []
    assert all(account.listeners == [] for account in server.accounts.values())
    assert server.accounts["A"].router.size == 0


# --- the backlog ----------------------------------------------------------------------------------


class Slow:
    """Each job takes so long."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.done = 0

    def job(self) -> None:
        self.now_ns += MS
        self.done += 1

    def now(self) -> int:
        return self.now_ns


def test_work_of_a_turn_is_bounded() -> None:
    clock, slow = FakeClock(), Slow()
    backlog = Backlog(clock, turn_ns=2 * MS, now_ns=slow.now)
    for _ in range(10_000):
        assert backlog.add(slow.job)
    turns = 0
    while clock.soon:
        before = slow.done
        ready, clock.soon[:] = clock.soon[:], []
        for call in ready:
            call()
        assert 0 < slow.done - before <= 2
        turns += 1
    assert (slow.done, turns) == (10_000, 5_000)


def test_what_waits_is_bounded(caplog: pytest.LogCaptureFixture) -> None:
    clock, slow = FakeClock(), Slow()
    backlog = Backlog(clock, waiting_max=3, turn_ns=SECOND, now_ns=slow.now)
    assert [backlog.add(slow.job) for _ in range(5)] == [True] * 3 + [False] * 2
    clock.run()
    assert slow.done == 3
    assert [record.getMessage() for record in caplog.records] == [
        "system events are dropped",
        "system events were dropped",
    ]
    assert backlog.add(slow.job)


def test_a_job_that_fails_does_not_stop_the_others(caplog: pytest.LogCaptureFixture) -> None:
    clock, slow = FakeClock(), Slow()
    backlog = Backlog(clock)

    def fail() -> None:
        raise RuntimeError("planted")

    backlog.add(fail)
    backlog.add(slow.job)
    clock.run()
    assert slow.done == 1
    assert "planted" in caplog.text


def test_events_go_out_after_the_message_that_caused_them(server: FakeServer) -> None:
    server.system_account.watch("$SYS.ACCOUNT.A.CONNECT")
    server.system.connected(FakeSession(server.accounts["A"]))
    assert server.system_account.published == []
    publish(server.system_account.router, b"other")
    server.clock.run()
    assert len(server.system_account.published) == 1


def test_ids_differ() -> None:
    ids = EventIds()
    found = [ids.next() for _ in range(1000)]
    assert len(set(found)) == 1000
    ids.number = 62**10
    assert ids.next()[:12] != found[0][:12]
