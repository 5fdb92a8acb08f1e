"""What happens at the same time in NATS Streaming, or nearly so."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable

import pytest
from support import Server, nats_peer
from support.clients.http import request
from support.stan import wire
from support.stan.client import CLUSTER, StanClient

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
        request(server.monitor, "GET", "/streaming/channelsz")  # the first one takes longer
        deadline = time.monotonic() + 4 * GONE_S
        for channel in map("c{}".format, itertools.count()):
            if time.monotonic() > deadline:
                pytest.skip("this machine never let the test run for two seconds without a pause")
            client.fill(channel, 1)
            begun = published = time.monotonic()
            count = seen = 1
            # A pause this long, of a machine that does something else, would say nothing.
            while time.monotonic() - published < inactive_s / 2:
                if published - begun < 5 * inactive_s:
                    published = time.monotonic()
                    nats.send(f"PUB {channel} 1\r\nx\r\n".encode())
                    nats.ping()
                    count += 1
                    client.flush()
                    continue
                # The PONG does not wait for the log: ask until all of it is there.
                page = request(server.monitor, "GET", "/streaming/channelsz", channel=channel)
                if time.monotonic() - published >= inactive_s / 2:
                    break
                seen = page.json["last_seq"]
                if seen == count:
                    return
            assert seen <= count


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
