"""NATS Streaming in the name of a NATS client: no more than the client may do itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import Server, nats_peer
from support.stan import wire
from support.stan.client import StanClient

pytestmark = pytest.mark.only_ours

Start = Callable[..., Server]

PUBLISH = "stan: invalid publish request"
SUBSCRIBE = "stan: invalid subscription request"
SUBJECT = "stan: invalid subject"
CONNECT = "stan: invalid connection request"
UNKNOWN = "stan: unknown clientID"
REGISTERED = "stan: clientID already registered"

USERS = """
authorization { users: [
  {user: boss, password: p}
  {user: low, password: p, permissions: {
    publish: {allow: ["_STAN.>", "_INBOX.>", "_T.>", "orders.>"],
              deny: ["payments.>", "_STAN.pub.test-cluster.secret"]}
    subscribe: {allow: ["_INBOX.>", "_T.>", "orders.>", "read.only"]}}}
  {user: other, password: p}
] }
"""
LOW = {"user": "low", "pass": "p"}
BOSS = {"user": "boss", "pass": "p"}
OTHER = {"user": "other", "pass": "p"}


@pytest.fixture
def server(start_broker: Start, tmp_path: Path) -> Server:
    return start(start_broker, tmp_path)


def start(start_broker: Start, folder: Path, **bridge: bool) -> Server:
    conf = folder / "users.conf"
    conf.write_text(USERS)
    return start_broker(
        {"stan": {"enabled": True}, "nats": {"config_file": str(conf)}, "bridge": bridge}
    )


def client(server: Server, user: dict[str, str], **options: Any) -> StanClient:
    return StanClient(server, **options, **user)


def test_a_channel_of_a_denied_subject_cannot_be_published_to(server: Server) -> None:
    with client(server, LOW) as low, nats_peer(server.nats, BOSS) as nats:
        nats.send(b"SUB payments.> 1\r\n")
        nats.ping()
        assert low.publish("payments.x", b"forged") == PUBLISH
        assert low.publish("elsewhere", b"not allowed either") == PUBLISH
        assert low.publish("orders.x", b"tea") == ""
        nats.ping()  # nothing has come
    with client(server, BOSS) as boss:
        assert boss.publish("payments.x", b"true") == ""
        sub = boss.subscribe("payments.x", start=wire.FIRST)
        assert sub.next()["data"] == b"true"


def test_the_channel_counts_and_not_the_subject_it_was_sent_to(
    start_broker: Start, tmp_path: Path
) -> None:
    server = start(start_broker, tmp_path, stan_to_nats=False, nats_to_stan=False)
    with client(server, LOW) as low:
        assert low.publish("secret", b"x", to="orders.x") == PUBLISH
        assert low.publish("other", b"x", to="orders.x") == ""


def test_a_denied_subject_cannot_be_read_as_a_channel(server: Server) -> None:
    with client(server, BOSS) as boss, client(server, LOW) as low:
        assert boss.publish("payments.x", b"true") == ""
        assert low.subscribe("payments.x", start=wire.FIRST).error == SUBJECT
        assert low.subscribe("made.by.nobody").error == SUBJECT
        assert low.subscribe("orders.x").error == ""


def test_permissions_are_of_subjects_and_do_not_count_for_channels_apart_from_them(
    start_broker: Start, tmp_path: Path
) -> None:
    server = start(start_broker, tmp_path, stan_to_nats=False, nats_to_stan=False)
    with client(server, LOW) as low:
        assert low.publish("payments.x", b"a channel, no subject") == ""
        assert low.subscribe("payments.x", start=wire.FIRST).take(1) == [1]


@pytest.mark.parametrize("inbox", ["payments.any", "read.only", "elsewhere"])
def test_messages_are_not_sent_where_the_client_may_not_publish(server: Server, inbox: str) -> None:
    with client(server, LOW) as low, nats_peer(server.nats, BOSS) as nats:
        nats.send(f"SUB {inbox} 1\r\n".encode())
        nats.ping()
        assert low.publish("orders.x", b"tea") == ""
        assert low.subscribe("orders.x", start=wire.FIRST, inbox=inbox).error == SUBSCRIBE
        assert low.register(client_id="new", heartbeat_inbox=inbox)["error"] == CONNECT
        nats.ping()
        assert low.subscribe("orders.x", start=wire.FIRST).take(1) == [1]


@pytest.mark.parametrize(
    "inbox", ["_STAN.pub.test-cluster.x", "_STAN.sub.test-cluster", "_STAN.discover.test-cluster"]
)
def test_the_subjects_of_the_service_are_no_inboxes(server: Server, inbox: str) -> None:
    with client(server, BOSS) as boss:
        assert boss.subscribe("orders.x", inbox=inbox).error == SUBSCRIBE
        assert boss.register(client_id="new", heartbeat_inbox=inbox)["error"] == CONNECT


@pytest.mark.parametrize("data", [b"", wire.encode(wire.PUB, client_id="nobody", guid="forged")])
@pytest.mark.parametrize("to", ["_STAN.pub.test-cluster.orders.x", "_STAN.sub.test-cluster"])
def test_answers_are_not_sent_where_the_client_may_not_publish(
    server: Server, to: str, data: bytes
) -> None:
    with client(server, LOW) as low, nats_peer(server.nats, BOSS) as nats:
        nats.send(b"SUB payments.> 1\r\nSUB _INBOX.> 2\r\nSUB _STAN.acks.> 3\r\n")
        nats.ping()
        low.pub(to, data, "payments.orders")
        low.pub(to, data, "_STAN.acks.mine")
        low.pub(to, data, "_INBOX.mine")
        low.flush()
        assert nats.read_line().startswith(b"MSG _STAN.acks.mine 3 ")
        assert low.publish("orders.x", b"tea") == ""


def test_another_user_can_do_nothing_with_a_client(server: Server) -> None:
    with client(server, BOSS) as boss, client(server, OTHER) as other:
        sub = boss.subscribe("orders.x", durable="d", max_in_flight=1)
        mine = {"client_id": boss.client_id, "conn_id": boss.conn_id}
        assert other.publish("orders.x", b"x", **mine) == PUBLISH
        assert other.publish("orders.x", b"x", client_id=boss.client_id, conn_id=b"") == PUBLISH
        assert other.subscribe("orders.x", client_id=boss.client_id).error == UNKNOWN
        for path in ("unsub_requests", "sub_close_requests"):
            found = other.leave(path, "orders.x", sub.ack_inbox, client_id=boss.client_id)
            assert found == UNKNOWN
        assert other.close(client_id=boss.client_id) == UNKNOWN
        boss.fill("orders.x", 2)
        assert sub.take(1) == [1]
        other.pub(sub.ack_inbox, wire.encode(wire.ACK, subject="orders.x", sequence=1))
        other.flush()
        boss.quiet(sub)  # 2 does not come: nothing was acknowledged
        sub.ack(1)
        assert sub.take(1) == [2]
        boss.answers = False
        assert other.register(client_id=boss.client_id)["error"] == REGISTERED
        boss.answers = True
        assert boss.publish("orders.x", b"x") == ""


def test_a_client_belongs_to_its_user_after_a_restart(server: Server) -> None:
    with client(server, BOSS, client_id="one") as boss:
        conn_id = boss.conn_id
    server.kill()
    server.start()
    with client(server, OTHER) as other, client(server, BOSS, register=False) as boss:
        assert other.publish("orders.x", b"x", client_id="one", conn_id=conn_id) == PUBLISH
        assert boss.publish("orders.x", b"x", client_id="one", conn_id=conn_id) == ""


# --- loops


def test_a_channel_is_no_inbox(server: Server) -> None:
    with client(server, BOSS) as boss:
        assert boss.publish("orders.x", b"x") == ""
        assert boss.subscribe("orders.x", inbox="orders.x").error == SUBSCRIBE
        assert boss.subscribe("orders.y", inbox="orders.x").error == SUBSCRIBE
        assert boss.register(client_id="new", heartbeat_inbox="orders.x")["error"] == CONNECT


def test_deliveries_do_not_feed_channels(server: Server) -> None:
    """Neither those of two channels that name each other before they are there."""
    with client(server, BOSS) as boss:
        for one, other in (("a", "b"), ("b", "a")):
            sub = boss.subscribe(one, inbox=other, start=wire.FIRST)
            if one == "a":
                assert sub.error == ""
            else:
                assert sub.error == SUBSCRIBE  # by now `a` is a channel
        assert boss.publish("b", b"x") == ""  # a channel, whose name is the inbox of `a`
        assert boss.publish("a", b"1", b"2", b"3") == ""
        barrier = boss.subscribe("a", start=wire.FIRST)
        assert barrier.take(3) == [1, 2, 3]
        assert boss.publish("b", b"y") == ""
        found = boss.subscribe("b", start=wire.FIRST)
        assert [found.next()["data"] for _ in range(2)] == [b"x", b"y"]
        boss.quiet(found, barrier)


def test_answers_do_not_feed_channels(server: Server) -> None:
    """Whoever publishes chooses where the answer goes, and the text of it in part."""
    with client(server, BOSS) as boss:
        assert boss.publish("a", b"x") == ""
        fields = {"client_id": boss.client_id, "guid": "anything", "subject": "a", "data": b"y"}
        boss.pub("_STAN.pub.test-cluster.a", wire.encode(wire.PUB, **fields), "a")
        found = boss.subscribe("a", start=wire.FIRST)
        assert [found.next()["data"] for _ in range(2)] == [b"x", b"y"]
        boss.quiet(found)
