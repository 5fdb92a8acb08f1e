"""NATS Streaming meets the others: one message, published once, read with any protocol."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import pytest
from support import RawPeer, Server, nats_peer, nsq_peer
from support.clients.http import nsq_channel, nsq_topic, request
from support.programs import lookupd
from support.stan.client import StanClient
from support.stan.wire import FIRST

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import BrokerFor, StartBroker

pytestmark = pytest.mark.only_ours

ON = {"stan": {"enabled": True}}
GONE_S = 10.0


@pytest.fixture
def broker(broker_for: BrokerFor) -> Server:
    return broker_for(ON)


def client(server: Server) -> StanClient:
    return StanClient(server)  # type: ignore[arg-type]


def consumer(server: Server, topic: str, channel: str = "ch") -> RawPeer:
    peer = nsq_peer(server.nsq)
    peer.command(f"SUB {topic} {channel}")
    peer.expect_frame("response", b"OK")
    peer.command("RDY 100")
    return peer


def nsq_publish(server: Server, topic: str, body: bytes) -> None:
    with nsq_peer(server.nsq) as peer:
        peer.command(f"PUB {topic}", body)
        peer.expect_frame("response", b"OK")


def nats_publish(server: Server, subject: str, body: bytes) -> None:
    with nats_peer(server.nats) as peer:
        peer.send(f"PUB {subject} {len(body)}\r\n".encode() + body + b"\r\n")
        peer.ping()


def fields(message: dict[str, object]) -> tuple[object, ...]:
    return message["sequence"], message["subject"], message["data"]


def test_published_to_a_channel_read_everywhere(broker: Server, uniq: str) -> None:
    with client(broker) as stan, nats_peer(broker.nats) as live:
        live.send(f"SUB {uniq} 1\r\n".encode())
        live.ping()
        durable = stan.subscribe(uniq, durable="d")
        with consumer(broker, uniq) as nsq:
            assert stan.publish(uniq, b"hello", reply="answer.here") == ""
            live.expect(f"MSG {uniq} 1 answer.here 5\r\nhello\r\n".encode())
            frame = nsq.read_frame()
            assert (frame.body, frame.attempts) == (b"hello", 1)
            nsq.command(f"FIN {frame.message_id.decode()}")
        assert fields(durable.next(ack=True)) == (1, uniq, b"hello")


def test_a_durable_reads_what_the_others_publish(broker: Server, uniq: str) -> None:
    """Also while it is away."""
    with client(broker) as stan:
        durable = stan.subscribe(uniq, durable="d")
        nsq_publish(broker, uniq, b"nsq")
        nats_publish(broker, uniq, b"nats")
        assert [durable.next(ack=True)["data"] for _ in range(2)] == [b"nsq", b"nats"]
        assert durable.close() == ""
        nsq_publish(broker, uniq, b"nsq again")
        nats_publish(broker, uniq, b"nats again")
        durable = stan.subscribe(uniq, durable="d")
        messages = [durable.next(ack=True) for _ in range(2)]
        assert [m["data"] for m in messages] == [b"nsq again", b"nats again"]
        assert [m["sequence"] for m in messages] == [3, 4]
        assert not any(m["redelivered"] for m in messages)


def test_a_topic_becomes_a_channel_with_what_is_left_of_it(
    broker_for: BrokerFor, uniq: str
) -> None:
    broker = broker_for({"stan": {"enabled": True, "adopt_topics": [">"]}})
    nsq_publish(broker, uniq, b"before")
    with client(broker) as stan:
        assert stan.subscribe(uniq, start=FIRST).next()["data"] == b"before"
        assert stan.publish(uniq, b"after") == ""
        with consumer(broker, uniq) as nsq:
            assert [nsq.read_frame().body for _ in range(2)] == [b"before", b"after"]


def test_the_first_nsq_channel_gets_what_is_kept(broker: Server, uniq: str) -> None:
    """Those of NATS Streaming that were there before take nothing away from it."""
    with client(broker) as stan:
        durable = stan.subscribe(uniq, durable="d")
        stan.publish(uniq, b"1", b"2")
        assert durable.take(2, ack=True) == [1, 2]
        with consumer(broker, uniq, "first") as first:
            assert [first.read_frame().body for _ in range(2)] == [b"1", b"2"]
            with consumer(broker, uniq, "second") as second:
                stan.publish(uniq, b"3")
                assert second.read_frame().body == b"3"
                assert first.read_frame().body == b"3"


def test_nsq_does_not_take_messages_from_the_channel(broker: Server, uniq: str) -> None:
    with client(broker) as stan:
        assert stan.publish(uniq, b"kept") == ""
    with client(broker) as stan, consumer(broker, uniq) as nsq:
        nsq.command(f"FIN {nsq.read_frame().message_id.decode()}")
        assert nsq_channel(broker.nsq_http, uniq, "ch")["message_count"] == 1
        assert stan.subscribe(uniq, start=FIRST).next()["data"] == b"kept"


def test_nats_makes_no_channels(broker: Server, uniq: str) -> None:
    nats_publish(broker, uniq, b"unheard")
    with client(broker) as stan:
        durable = stan.subscribe(uniq, start=FIRST)
        stan.quiet(durable)


@pytest.mark.parametrize("on", [True, False], ids=["on", "off"])
def test_nats_to_stan(broker_for: BrokerFor, uniq: str, on: bool) -> None:
    server = broker_for({**ON, "bridge": {"nats_to_stan": on}})
    with client(server) as stan:
        durable = stan.subscribe(uniq, durable="d")
        nats_publish(server, uniq, b"nats")
        nsq_publish(server, uniq, b"nsq")
        stan.publish(uniq, b"own")
        found = [durable.next()["data"] for _ in range(3 if on else 2)]
        assert found == [b"nats", b"nsq", b"own"][0 if on else 1 :]
        stan.quiet(durable)


@pytest.mark.parametrize("on", [True, False], ids=["on", "off"])
def test_stan_to_nats(broker_for: BrokerFor, uniq: str, on: bool) -> None:
    server = broker_for({**ON, "bridge": {"stan_to_nats": on}})
    with client(server) as stan, nats_peer(server.nats) as live:
        live.send(f"SUB {uniq} 1\r\n".encode())
        live.ping()
        stan.publish(uniq, b"hello")
        nats_publish(server, uniq, b"end")
        if on:
            live.expect(f"MSG {uniq} 1 5\r\nhello\r\n".encode())
        live.expect(f"MSG {uniq} 1 3\r\nend\r\n".encode())


def test_the_switches_hold_after_a_restart(start_broker: StartBroker, uniq: str) -> None:
    """The topic in between is not a channel: for it the switches of NSQ hold."""
    off = {"nats_to_stan": False, "stan_to_nats": False}
    server = start_broker({**ON, "bridge": off})
    with client(server) as stan:
        stan.publish(uniq, b"1")
    server.restart()
    with client(server) as stan, nats_peer(server.nats) as live:
        live.send(f"SUB {uniq} 1\r\n".encode())
        live.ping()
        every = stan.subscribe(uniq, start=FIRST)
        nats_publish(server, uniq, b"unheard")
        live.expect(f"MSG {uniq} 1 7\r\nunheard\r\n".encode())
        stan.publish(uniq, b"2")
        assert [every.next()["data"] for _ in range(2)] == [b"1", b"2"]
        stan.quiet(every)
        live.ping()


def test_nsq_shows_none_of_its_cursors(broker: Server, uniq: str) -> None:
    with client(broker) as stan:
        stan.subscribe(uniq, durable="d")
        stan.subscribe(uniq)
        stan.subscribe(uniq, queue="q")
        assert nsq_topic(broker.nsq_http, uniq)["channels"] == []
        with consumer(broker, uniq):
            channels = nsq_topic(broker.nsq_http, uniq)["channels"]
            assert [channel["channel_name"] for channel in channels] == ["ch"]
        text = request(broker.nsq_http, "GET", "/stats", topic=uniq).body.decode()
        assert "stan:" not in text
        page = request(broker.nsq_http, "GET", "/v1/deadletters", topic=uniq).body.decode()
        assert "stan:" not in page


@pytest.mark.parametrize("act", ["delete", "empty", "pause"])
def test_nsq_cannot_touch_its_cursors(broker: Server, uniq: str, act: str) -> None:
    with client(broker) as stan:
        durable = stan.subscribe(uniq, durable="d")
        name = f"stan:d:{stan.client_id}:d"
        answer = request(broker.nsq_http, "POST", f"/channel/{act}", topic=uniq, channel=name)
        assert answer.status == 400
        for path in ("/v1/channel/rewind", "/v1/deadletters/set"):
            answer = request(broker.nsq_http, "POST", path, topic=uniq, channel=name)
            assert (answer.status, answer.json["message"]) == (404, "CHANNEL_NOT_FOUND")
        stan.publish(uniq, b"hello")
        assert durable.next()["data"] == b"hello"


def test_attempts_of_nsq_do_not_hold_for_it(start_broker: StartBroker, uniq: str) -> None:
    """It may be delivered any number of times, whatever dead letters topics have."""
    server = start_broker(
        '[stan]\nenabled = true\n[[storage.topic]]\npattern = "*"\nmax_attempts = 1\n'
    )
    with client(server) as stan:
        durable = stan.subscribe(uniq, durable="d", ack_wait=1)
        stan.publish(uniq, b"again")
        counts = [durable.next()["redelivery_count"] for _ in range(3)]
        assert counts == [0, 1, 2]
    assert nsq_topic(server.nsq_http, f"{uniq}.dead") is None


def test_nsqlookupd_hears_of_the_topic_only(
    start_broker: StartBroker, tmp_path: Path, uniq: str
) -> None:
    with lookupd(tmp_path, original=False) as registry:
        addresses = {"nsqlookupd_tcp_addresses": [str(registry.tcp)]}
        server = start_broker({**ON, "nsq": addresses})
        with client(server) as stan:
            durable = stan.subscribe(uniq, durable="d")
            stan.publish(uniq, b"hello")
            assert durable.next()["data"] == b"hello"
            deadline = time.monotonic() + GONE_S
            while time.monotonic() < deadline:
                with consumer(server, uniq):
                    page = json.loads(request(registry.http, "GET", "/debug").body)
                if f"topic:{uniq}:" in page and f"channel:{uniq}:ch" in page:
                    break
            assert f"topic:{uniq}:" in page
            assert not [key for key in page if "stan" in key]


def test_a_deleted_topic_is_a_deleted_channel(broker: Server, uniq: str) -> None:
    """Its durables go with it; a new one of the name begins at 1."""
    with client(broker) as stan:
        durable = stan.subscribe(uniq, durable="d")
        stan.publish(uniq, b"1", b"2")
        assert durable.take(2) == [1, 2]
        assert durable.close() == ""
        assert request(broker.nsq_http, "POST", "/topic/delete", topic=uniq).status == 200
        assert stan.subscribe(uniq, durable="d", start=FIRST).error == ""
        assert stan.publish(uniq, b"anew") == ""
        again = stan.subscribe(uniq, start=FIRST)
        message = again.next(ack=True)
        assert (message["sequence"], message["data"]) == (1, b"anew")
        assert not message["redelivered"]
        stan.quiet(again, durable)


def test_who_is_subscribed_when_the_topic_is_deleted_goes_on(broker: Server, uniq: str) -> None:
    """Nobody can tell them. What they had and acknowledge late is not taken for something new."""
    with client(broker) as stan:
        plain, durable = stan.subscribe(uniq), stan.subscribe(uniq, durable="d", ack_wait=1)
        group = [stan.subscribe(uniq, queue="q") for _ in range(2)]
        stan.publish(uniq, b"1", b"2")
        assert plain.take(2, ack=True) == durable.take(2) == [1, 2]
        assert request(broker.nsq_http, "POST", "/topic/delete", topic=uniq).status == 200
        assert stan.publish(uniq, b"3") == ""
        durable.ack(1, 2)
        for sub in (plain, durable):
            message = sub.next()
            assert (message["sequence"], message["data"]) == (3, b"3")
        assert durable.next()["redelivery_count"] == 1  # 3 is not what was acknowledged
        shares = [sequence for sub in group for sequence in sub.waiting()]
        assert sorted(shares) == [1, 2, 3]
        for sub in (plain, durable, *group):
            assert sub.unsubscribe() == ""


def test_a_paused_topic_is_a_paused_channel(broker: Server, uniq: str) -> None:
    with client(broker) as stan:
        durable = stan.subscribe(uniq, durable="d")
        assert request(broker.nsq_http, "POST", "/topic/pause", topic=uniq).status == 200
        assert stan.publish(uniq, b"1") == ""
        stan.quiet(durable)
        assert request(broker.nsq_http, "POST", "/topic/unpause", topic=uniq).status == 200
        assert durable.next(ack=True)["data"] == b"1"
