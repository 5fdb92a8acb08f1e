"""Channels of NATS Streaming and topics of NSQ that have one name: shared, apart, or refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import RawPeer, Server, nats_peer, nsq_peer
from support.clients.bulk import BulkClient
from support.clients.http import request
from support.servers.processes import ServerError
from support.stan import wire
from support.stan.client import StanClient

pytestmark = pytest.mark.only_ours

Start = Callable[..., Server]
APART = {"stan_to_nsq": False, "nsq_to_stan": False}


def config(*, apart: bool = False, **stan: Any) -> dict[str, Any]:
    return {"stan": {"enabled": True, **stan}, **({"bridge": APART} if apart else {})}


def publish(server: Server, topic: str, *bodies: bytes) -> None:
    with nsq_peer(server.nsq) as peer:
        for body in bodies:
            peer.command(f"PUB {topic}", body)
            peer.expect_frame("response", b"OK")


def reader(server: Server, topic: str, ready: int = 2500) -> RawPeer:
    peer = nsq_peer(server.nsq)
    peer.command(f"SUB {topic} billing")
    peer.expect_frame("response", b"OK")
    if ready:
        peer.command(f"RDY {ready}")
    return peer


def finished(peer: RawPeer, count: int) -> list[bytes]:
    """The next messages, each finished."""
    found = []
    for _ in range(count):
        frame = peer.read_frame()
        peer.command(f"FIN {frame.message_id.decode()}")
        found.append(frame.body)
    return found


def topics(server: Server) -> list[str]:
    page = request(server.nsq_http, "GET", "/stats", format="json").json
    return [topic["topic_name"] for topic in page["topics"]]


IS_TOPIC = "stan: invalid subject: orders is an NSQ topic (see adopt_topics)"


# --- a topic is not taken


def test_a_topic_does_not_become_a_channel_by_being_named(start_broker: Start) -> None:
    server = start_broker(config(max_msgs=10))
    with reader(server, "orders", ready=0) as nsq, StanClient(server) as client:
        publish(server, "orders", *(b"%d" % n for n in range(100)))
        assert client.subscribe("orders").error == IS_TOPIC
        assert client.publish("orders", b"x") == IS_TOPIC
        nsq.command("RDY 2500")
        assert finished(nsq, 100) == [b"%d" % n for n in range(100)]
    meta = json.loads((server.data / "logs" / "orders" / "meta.json").read_text())
    assert "face" not in meta


def test_a_topic_that_only_has_messages_stays_one(start_broker: Start) -> None:
    server = start_broker(config(max_msgs=10))
    publish(server, "orders", b"1", b"2")
    with StanClient(server) as client:
        assert client.publish("orders", b"x") == IS_TOPIC
    with reader(server, "orders") as nsq:
        assert finished(nsq, 2) == [b"1", b"2"]


def test_a_topic_that_owes_nothing_becomes_a_channel(start_broker: Start) -> None:
    server = start_broker(config())
    assert request(server.nsq_http, "POST", "/topic/create", topic="orders").status == 200
    with StanClient(server) as client:
        assert client.publish("orders", b"x") == ""


def test_an_operator_lets_a_topic_become_a_channel(start_broker: Start) -> None:
    """What NSQ is owed stays beyond the limits, until it is finished."""
    server = start_broker(config(max_msgs=10, adopt_topics=["orders"]))
    bodies = [b"%d" % n for n in range(100)]
    with reader(server, "orders", ready=0) as nsq, StanClient(server) as client:
        publish(server, "orders", *bodies)
        assert client.publish("orders", b"x") == ""
        assert client.subscribe("orders", start=wire.FIRST).take(1) == [1]
        server.kill()
        server.start()
    with reader(server, "orders") as nsq, StanClient(server) as client:
        assert finished(nsq, 101) == [*bodies, b"x"]
        assert client.publish("orders", b"y") == ""
        assert finished(nsq, 1) == [b"y"]
        query = {"channel": "orders"}
        while request(server.monitor, "GET", "/streaming/channelsz", **query).json["msgs"] > 10:
            client.flush()  # the limits hold once nothing is owed any more


def test_limits_leave_what_an_nsq_channel_of_a_channel_has_not_finished(
    start_broker: Start,
) -> None:
    server = start_broker(config(max_msgs=5))
    with StanClient(server) as client:
        client.fill("orders", 1)
        with reader(server, "orders", ready=0) as nsq:
            client.fill("orders", 20)
            nsq.command("RDY 100")
            assert len(finished(nsq, 21)) == 21


# --- apart


def test_apart_neither_reads_nor_writes_the_other(start_broker: Start) -> None:
    server = start_broker(config(apart=True))
    publish(server, "orders", b"of NSQ")
    with StanClient(server) as client, reader(server, "orders") as nsq:
        assert finished(nsq, 1) == [b"of NSQ"]
        assert client.publish("orders", b"of STAN") == ""
        sub = client.subscribe("orders", start=wire.FIRST)
        assert sub.next()["data"] == b"of STAN"
        publish(server, "orders", b"more of NSQ")
        assert finished(nsq, 1) == [b"more of NSQ"]
        client.quiet(sub)
    assert topics(server) == ["orders"]
    assert sorted(path.name for path in (server.data / "logs").iterdir()) == [
        "orders",
        "stan%2Forders",
        "stan%2Fquiet.barrier",
    ]


def test_apart_nats_reaches_both_by_their_own_switches(start_broker: Start) -> None:
    server = start_broker(config(apart=True))
    assert request(server.nsq_http, "POST", "/topic/create", topic="orders").status == 200
    with StanClient(server) as client, nats_peer(server.nats) as nats:
        sub = client.subscribe("orders")
        nats.send(b"SUB orders 1\r\nPUB orders 1\r\nx\r\n")
        nats.expect(b"MSG orders 1 1\r\nx\r\n")
        assert sub.next()["data"] == b"x"
        with reader(server, "orders") as nsq:
            assert finished(nsq, 1) == [b"x"]
            publish(server, "orders", b"y")
            nats.expect(b"MSG orders 1 1\r\ny\r\n")
            assert finished(nsq, 1) == [b"y"]
            assert client.publish("orders", b"z") == ""
            nats.expect(b"MSG orders 1 1\r\nz\r\n")
            assert sub.next()["data"] == b"z"  # and not `y` before it
            publish(server, "orders", b"end")
            assert finished(nsq, 1) == [b"end"]  # and not `z`


def test_auth_keeps_channels_apart_unless_it_is_said(start_broker: Start) -> None:
    """A client of NATS Streaming has no secret."""
    auth = {"auth_http_addresses": ["127.0.0.1:1"]}
    server = start_broker({**config(), "nsq": auth})
    assert request(server.nsq_http, "POST", "/pub", b"secret", topic="orders").status == 200
    with StanClient(server) as client:
        assert client.publish("orders", b"x") == ""
        assert client.subscribe("orders", start=wire.FIRST).next()["data"] == b"x"
    page = request(server.nsq_http, "GET", "/stats", format="json", topic="orders").json
    assert page["topics"][0]["message_count"] == 1
    shared = {"stan_to_nsq": True, "nsq_to_stan": True}
    server = start_broker({**config(), "nsq": auth, "bridge": shared})
    with StanClient(server) as client:
        assert client.publish("orders", b"x") == ""
    assert topics(server) == ["orders"]


def test_apart_is_readable_by_its_own_name_for_pipelines(start_broker: Start) -> None:
    server = start_broker(config(apart=True, sync="always"))
    with StanClient(server) as client:
        client.fill("orders", 3)
    with BulkClient(server.bulk) as bulk:
        assert bulk.range("stan/orders", start=1).bodies == [b"1", b"2", b"3"]


# --- one direction only


def changes(topic: str) -> list[tuple[str, str, dict[str, str]]]:
    """Requests for the topic as a whole."""
    return [
        ("POST", "/topic/empty", {"topic": topic}),
        ("POST", "/topic/pause", {"topic": topic}),
        ("POST", "/topic/unpause", {"topic": topic}),
        ("PUT", "/v1/topic/settings", {"topic": topic}),
        ("DELETE", "/v1/topic/settings", {"topic": topic}),
        ("POST", "/v1/topic/claim", {"topic": topic}),
        ("POST", "/topic/delete", {"topic": topic}),
    ]


def reads(topic: str) -> list[tuple[str, str, dict[str, str]]]:
    """Requests for its messages, and for a channel `billing`."""
    channel = {"topic": topic, "channel": "billing"}
    return [
        ("GET", "/v1/topic/messages", {"topic": topic}),
        ("POST", "/channel/create", channel),
        ("GET", "/v1/channel/messages", channel),
        ("POST", "/v1/channel/rewind", {**channel, "to": "oldest"}),
        ("POST", "/v1/deadletters/set", {**channel, "max_attempts": "3"}),
        ("POST", "/v1/deadletters/unset", channel),
        ("POST", "/v1/deadletters/requeue", channel),
        ("POST", "/channel/pause", channel),
        ("POST", "/channel/unpause", channel),
        ("POST", "/channel/empty", channel),
    ]


def statuses(server: Server, asked: list[tuple[str, str, dict[str, str]]]) -> dict[str, int]:
    return {
        f"{method} {path}": request(server.nsq_http, method, path, b"{}", **query).status
        for method, path, query in asked
    }


@pytest.mark.parametrize("to_nsq", [True, False])
def test_one_direction_is_one_direction_over_http_too(
    start_broker: Start, tmp_path: Path, to_nsq: bool
) -> None:
    server = start_broker(config(), tmp_path)
    with StanClient(server) as client:
        client.fill("orders", 3)
    reader(server, "orders", ready=0).close()  # a channel of NSQ from before
    server.stop()
    bridge = {"stan_to_nsq": to_nsq, "nsq_to_stan": not to_nsq}
    server = start_broker({**config(), "bridge": bridge}, tmp_path)
    with StanClient(server) as client:
        assert set(statuses(server, changes("orders")).values()) == {403}
        assert set(statuses(server, reads("orders")).values()) == {200 if to_nsq else 403}
        channel = {"topic": "orders", "channel": "billing"}
        assert statuses(server, [("POST", "/pub", {"topic": "orders"})]) == {
            "POST /pub": 403 if to_nsq else 200
        }
        assert client.subscribe("orders", start=wire.FIRST).take(3) == [1, 2, 3]
        found = request(server.nsq_http, "POST", "/channel/delete", **channel)
        assert found.status == 200
    request(server.nsq_http, "POST", "/topic/create", topic="plain")
    assert set(statuses(server, reads("plain") + changes("plain")).values()) == {200}


# --- from one to the other


def test_channels_keep_everything_when_they_are_set_apart(
    start_broker: Start, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    server = start_broker(config(), data)
    publish(server, "plain", b"x")
    with StanClient(server, "me") as client:
        sub = client.subscribe("orders.eu", durable="d")
        client.fill("orders.eu", 3)
        assert sub.take(2, ack=True) == [1, 2]
        client.flush()
        client.close()
    server.kill()
    for apart in (True, True, False, True):
        server = start_broker(config(apart=apart), data)
        with StanClient(server, "me") as client:
            sub = client.subscribe("orders.eu", durable="d")
            assert sub.take(1) == [3]
            assert client.subscribe("orders.eu", start=wire.FIRST).take(3) == [1, 2, 3]
            client.close()
        assert topics(server) == (["plain"] if apart else ["orders.eu", "plain"])
        server.kill()


def test_a_channel_with_nsq_channels_is_not_set_apart(start_broker: Start, tmp_path: Path) -> None:
    """They would be cut off from what they are owed."""
    data = tmp_path / "data"
    server = start_broker(config(), data)
    with StanClient(server) as client:
        client.fill("orders", 1)
    reader(server, "orders", ready=0).close()
    server.stop()
    with pytest.raises(ServerError, match=r"orders has NSQ channels \(billing\) too"):
        start_broker(config(apart=True), data)
    server = start_broker(config(), data)
    query = {"topic": "orders", "channel": "billing"}
    assert request(server.nsq_http, "POST", "/channel/delete", **query).status == 200
    server.stop()
    server = start_broker(config(apart=True), data)
    with StanClient(server) as client:
        assert client.subscribe("orders", start=wire.FIRST).take(1) == [1]


def test_a_topic_and_a_channel_of_one_name_are_not_thrown_together(
    start_broker: Start, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    server = start_broker(config(apart=True), data)
    publish(server, "orders", b"x")
    with StanClient(server) as client:
        client.fill("orders", 1)
    server.stop()
    with pytest.raises(ServerError, match="of NATS Streaming are both called orders"):
        start_broker(config(), data)
    assert sorted(path.name for path in (data / "logs").iterdir() if path.is_dir()) == [
        "orders",
        "stan%2Forders",
    ]
