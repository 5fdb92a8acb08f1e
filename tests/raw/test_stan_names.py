"""Names that NATS has no way to write, given where NATS Streaming takes any text.

What a client writes into a message must never be taken for protocol by somebody else.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support import Server, nats_peer
from support.stan import wire
from support.stan.client import StanClient

pytestmark = pytest.mark.only_ours

Start = Callable[..., Server]
ON = {"stan": {"enabled": True}}
FORGED = "x 3\r\nabc\r\nMSG forged 1 3\r\nabc\r\nMSG more 1 "
BAD = [FORGED, "two words", "tab\there", "end\n", "nul\0", "long" * 2000]


@pytest.mark.parametrize("reply", BAD)
def test_a_reply_forges_nothing(start_broker: Start, reply: str) -> None:
    """Streaming subscribers get it as it is, others a message without one."""
    server = start_broker(ON)
    with StanClient(server) as client, nats_peer(server.nats) as nats:
        nats.send(b"SUB orders.* 1\r\n")
        nats.ping()
        sub = client.subscribe("orders.eu")
        assert client.publish("orders.eu", b"tea", reply=reply) == ""
        assert client.publish("orders.eu", b"milk", reply="good") == ""
        assert sub.next()["reply"] == reply
        nats.expect(b"MSG orders.eu 1 3\r\ntea\r\nMSG orders.eu 1 good 4\r\nmilk\r\n")


@pytest.mark.parametrize("name", BAD[:-1])
def test_the_name_of_a_channel_forges_nothing(start_broker: Start, name: str) -> None:
    """It works, but nothing of it reaches NATS."""
    server = start_broker(ON)
    channel = f"orders.{name.replace('.', '')}"
    with StanClient(server) as client, nats_peer(server.nats) as nats:
        nats.send(b"SUB orders.> 1\r\n")
        nats.ping()
        assert client.publish(channel, b"tea", to="any") == ""
        assert client.publish("orders.eu", b"milk") == ""
        assert client.subscribe(channel, start=wire.FIRST).next()["subject"] == channel
        nats.expect(b"MSG orders.eu 1 4\r\nmilk\r\n")


@pytest.mark.parametrize("name", BAD)
def test_inboxes_forge_nothing(start_broker: Start, name: str) -> None:
    server = start_broker(ON)
    with StanClient(server) as client, nats_peer(server.nats) as nats:
        nats.send(b"SUB spy.> 1\r\n")
        nats.ping()
        assert client.subscribe("c", inbox=f"spy.{name}").error == (
            "stan: invalid subscription request"
        )
        answer = client.register(client_id="two", conn_id=b"2", heartbeat_inbox=f"spy.{name}")
        assert answer["error"] == "stan: invalid connection request"
        assert client.publish("c", b"x") == ""
        nats.send(b"PUB spy.end 0\r\n\r\n")
        nats.expect(b"MSG spy.end 1 0\r\n\r\n")


@pytest.mark.parametrize("store", ["memory", "file"])
def test_a_name_is_no_longer_than_a_subject(start_broker: Start, store: str) -> None:
    server = start_broker({"stan": {"enabled": True, "store": store}})
    with StanClient(server) as client:
        name = "x" * 70_000  # lengths of subjects have 16 bits
        assert client.publish(name, b"tea", to="any") == "stan: invalid publish request"
        assert client.subscribe(name).error == "stan: invalid subject"
