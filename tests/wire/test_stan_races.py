"""What happens at the same time in NATS Streaming, or nearly so."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from harness import Server, nats_peer
from harness import stan_wire as wire
from harness.http import request
from harness.stan import CLUSTER, StanClient

pytestmark = pytest.mark.only_ours

Start = Callable[..., Server]
ON = {"stan": {"enabled": True}}
GONE_S = 10.0


def asking(client: StanClient, client_id: str) -> str:
    """Ask for a client id without waiting; where the answer comes."""
    inbox = client.inbox()
    fields = {"client_id": client_id, "heartbeat_inbox": client.hb_inbox, "conn_id": inbox.encode()}
    client.pub(f"_STAN.discover.{CLUSTER}", wire.encode(wire.CONNECT, **fields), inbox)
    return inbox


def test_an_id_that_comes_free_while_its_owner_is_asked_has_one_new_owner(
    start_broker: Start,
) -> None:
    server = start_broker(ON)
    with (
        StanClient(server, "wanted") as silent,
        StanClient(server, register=False) as late,
        StanClient(server, "wanted", register=False) as quick,
    ):
        silent.answers = False
        inbox = asking(late, "wanted")
        silent.take(silent.hb_inbox)  # it is being asked
        assert silent.close() == ""
        assert quick.register()["error"] == ""
        answer = b""
        while not answer:  # until the one who was there first is found to answer
            quick.publish("c", b"x")
            late.flush()
            answer = late.queues[inbox].popleft() if late.queues[inbox] else b""
        assert wire.decode(wire.CONNECTED, answer)["error"] == "stan: clientID already registered"
        assert quick.ping() == b""
        assert quick.subscribe("c", durable="d").error == ""


def test_a_channel_that_others_publish_to_is_not_inactive(start_broker: Start) -> None:
    inactive_s = 0.4
    server = start_broker({"stan": {"enabled": True, "max_inactivity": f"{inactive_s}s"}})
    with StanClient(server) as client, nats_peer(server.nats) as nats:
        client.fill("c", 1)
        count, over = 1, time.monotonic() + 5 * inactive_s
        while time.monotonic() < over:
            nats.send(b"PUB c 1\r\nx\r\n")
            nats.ping()
            count += 1
            client.flush()
        page = request(server.monitor, "GET", "/streaming/channelsz", channel="c")
        assert page.json["last_seq"] == count


@pytest.mark.parametrize("what", ["publish", "subscribe"])
def test_a_deleted_channel_can_be_made_anew_at_once(start_broker: Start, what: str) -> None:
    server = start_broker(ON)
    with StanClient(server) as client:
        for _ in range(20):
            client.fill("c", 1)
            assert request(server.nsq_http, "POST", "/topic/delete", topic="c").status == 200
            if what == "publish":
                assert client.publish("c", b"anew") == ""
            else:
                assert client.subscribe("c", start=wire.FIRST).error == ""


def test_what_a_kill_left_of_a_subscription_goes(start_broker: Start) -> None:
    """Its cursor, but not its record: nobody reads there any more, so the channel is unused."""
    server = start_broker({"stan": {"enabled": True, "max_inactivity": "300ms"}})
    with StanClient(server, "me") as client:
        client.subscribe("c")
        client.subscribe("kept", durable="d")
        client.fill("c", 1)
        server.kill()
    file = server.data / "stan" / "clients.state"
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(line for line in lines if b'"channel":"c"' not in line))
    server.start()
    deadline = time.monotonic() + GONE_S
    while request(server.monitor, "GET", "/streaming/channelsz", channel="c").status != 404:
        assert time.monotonic() < deadline
    page = request(server.monitor, "GET", "/streaming/channelsz", channel="kept", subs="1")
    assert len(page.json["subscriptions"]) == 1
