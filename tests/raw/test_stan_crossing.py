"""NATS Streaming, NATS and NSQ in one broker: what one publishes the others read."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from support import RawPeer, Server, nats_peer, nsq_peer
from support.clients.http import request
from support.stan import wire
from support.stan.client import StanClient, StanServer

pytestmark = pytest.mark.only_ours

Start = Callable[..., Server]
ON = {"stan": {"enabled": True}}


def reader(server: Server, topic: str, channel: str = "c") -> RawPeer:
    peer = nsq_peer(server.nsq)
    peer.command(f"SUB {topic} {channel}")
    peer.expect_frame("response", b"OK")
    peer.command("RDY 100")
    return peer


def test_it_is_off_unless_asked_for(start_broker: Start) -> None:
    with StanClient(start_broker(), register=False) as client:
        assert client.request("_STAN.discover.test-cluster", b"") == b""
        assert client.headers.startswith(b"NATS/1.0 503\r\nNats-Subject: _STAN.")


def test_what_is_published_to_a_channel_reaches_all(start_broker: Start) -> None:
    server = start_broker(ON)
    with StanClient(server) as client, nats_peer(server.nats) as nats:
        nats.send(b"SUB orders.* 1\r\n")
        nats.ping()
        sub = client.subscribe("orders.eu")
        client.publish("orders.eu", b"tea")
        assert sub.next()["data"] == b"tea"
        nats.expect(b"MSG orders.eu 1 3\r\ntea\r\n")
        with reader(server, "orders.eu") as nsq:
            assert nsq.read_frame().body == b"tea"


def test_what_nats_and_nsq_publish_reaches_the_channel(start_broker: Start) -> None:
    server = start_broker(ON)
    with StanClient(server) as client, nats_peer(server.nats) as nats:
        sub = client.subscribe("orders.eu", start=wire.FIRST)
        nats.send(b"PUB orders.eu back.to 4\r\nmilk\r\n")
        nats.ping()
        found = sub.next(ack=True)
        assert (found["sequence"], found["data"], found["reply"]) == (1, b"milk", "back.to")
        with nsq_peer(server.nsq) as nsq:
            nsq.command("PUB orders.eu", b"rum")
            nsq.expect_frame("response", b"OK")
        found = sub.next(ack=True)
        assert (found["sequence"], found["data"]) == (2, b"rum")


@pytest.mark.parametrize("way", ["stan_to_nats", "nats_to_stan"])
def test_each_way_can_be_switched_off(start_broker: Start, way: str) -> None:
    server = start_broker({**ON, "bridge": {way: False}})
    with StanClient(server) as client, nats_peer(server.nats) as nats:
        nats.send(b"SUB orders.* 1\r\n")
        sub = client.subscribe("orders.eu")
        client.publish("orders.eu", b"tea")
        assert sub.take(1) == [1]
        if way == "stan_to_nats":
            nats.ping()
        else:
            nats.expect(b"MSG orders.eu 1 3\r\ntea\r\n")
        nats.send(b"UNSUB 1\r\nPUB orders.eu 4\r\nmilk\r\n")
        nats.ping()
        client.publish("orders.eu", b"end")
        expected = [b"milk", b"end"] if way == "stan_to_nats" else [b"end"]
        assert [sub.next()["data"] for _ in expected] == expected


def test_channels_and_clients_survive_a_restart(start_broker: Start) -> None:
    server = start_broker(ON)
    with StanClient(server, "me") as client:
        sub = client.subscribe("orders.eu", durable="d")
        client.fill("orders.eu", 3)
        assert sub.take(2, ack=True) == [1, 2]
        client.quiet()
        assert client.close() == ""
    server.kill()
    server.start()
    with StanClient(server, "me") as client:
        assert client.subscribe("orders.eu", durable="d").take(1) == [3]


def test_settings_of_the_file_hold(start_broker: Start) -> None:
    server = start_broker(
        {
            "stan": {
                "enabled": True,
                "cluster_id": "other",
                "max_msgs": 3,
                "channel": [{"pattern": "big.>", "max_msgs": 0}],
            }
        }
    )
    with StanClient(server, cluster="other") as client:
        client.fill("small", 5)
        client.fill("big.one", 5)
        assert client.subscribe("small", start=wire.FIRST).take(1) == [3]
        assert client.subscribe("big.one", start=wire.FIRST).take(1) == [1]


def test_channels_in_memory_are_bounded_by_their_own_limits(start_broker: Start) -> None:
    server = start_broker(
        {
            "stan": {"enabled": True, "store": "memory", "max_msgs": 30},
            "storage": {"memory_topic_max": "1MiB"},  # of #ephemeral topics
        }
    )
    with StanClient(server) as client:
        bodies = [b"x" * 100_000] * 40
        assert {client.publish("big", data) for data in bodies} == {""}
        assert client.subscribe("big", start=wire.FIRST).take(1) == [11]


def test_the_pages_and_the_metrics_are_there(start_broker: Start) -> None:
    server = start_broker(ON)
    with StanClient(server, "me") as client:
        client.fill("orders.eu", 2)
        page = request(server.monitor, "GET", "/streaming/serverz").json
        assert (page["clients"], page["channels"], page["total_msgs"]) == (1, 1, 2)
        metrics = request(server.monitor, "GET", "/metrics").body.decode()
        assert 'nss_chan_msgs_total{channel="orders.eu"' in metrics
        assert "twinwire_stan_messages_received_total 2.0" in metrics
    plain = start_broker()
    assert request(plain.monitor, "GET", "/streaming/serverz").status == 404
    assert "twinwire_stan" not in request(plain.monitor, "GET", "/metrics").body.decode()


def test_the_metrics_name_nsq_channels_only(start_broker: Start) -> None:
    """Subscriptions of NATS Streaming come and go, each under a name that never comes back."""
    server = start_broker(ON)
    with StanClient(server, "me") as client, reader(server, "orders.eu"):
        client.subscribe("orders.eu")
        client.subscribe("orders.eu", durable="d")
        metrics = request(server.monitor, "GET", "/metrics").body.decode()
        found = [line for line in metrics.splitlines() if line.startswith("twinwire_channel_cons")]
        assert found == ['twinwire_channel_consumers{channel="c",topic="orders.eu"} 1.0']


def test_the_data_of_the_drop_in_can_be_served(start_broker: Start, tmp_path: Path) -> None:
    data = tmp_path / "data"
    server = StanServer(tmp_path / "first", "-st", "FILE", "-dir", str(data))
    with StanClient(server) as client:
        client.fill("orders.eu", 4)
    assert server.stop() == 0
    broker = start_broker(ON, data)
    with StanClient(broker) as client:
        assert client.subscribe("orders.eu", start=wire.LAST).take(1) == [4]
    pages = request(broker.nsq_http, "GET", "/stats", format="json")
    assert "orders.eu" in json.dumps(pages.json)
