"""The two worlds meet: published with one protocol, received with the other."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import nats
import nats.errors
import pytest
from support import RawPeer, Server, nats_peer, nsq_peer
from support.clients.http import nsq_channel, nsq_topic, request
from support.clients.peer import sized

if TYPE_CHECKING:
    from conftest import BrokerFor, StartBroker

pytestmark = pytest.mark.only_ours
WAIT_S = 10.0


async def _nats(server: Server) -> Any:
    return await nats.connect(server.nats_url, connect_timeout=5)


async def _subscribe(client: Any, subject: str, **options: Any) -> Any:
    """A subscription the server knows of."""
    sub = await client.subscribe(subject, **options)
    mark = await client.subscribe(inbox := client.new_inbox())
    await client.publish(inbox, b"")
    await mark.next_msg(WAIT_S)
    return sub


def _publish(server: Server, topic: str, *bodies: bytes) -> None:
    with nsq_peer(server.nsq) as peer:
        for body in bodies:
            peer.command(f"PUB {topic}", body)
            peer.expect_frame("response", b"OK")


def _consumer(server: Server, topic: str, channel: str = "ch", rdy: int = 100) -> RawPeer:
    peer = nsq_peer(server.nsq)
    peer.command(f"SUB {topic} {channel}")
    peer.expect_frame("response", b"OK")
    peer.command(f"RDY {rdy}")
    return peer


async def test_nsq_to_nats(broker: Server, uniq: str) -> None:
    client = await _nats(broker)
    sub = await _subscribe(client, uniq)
    _publish(broker, uniq, b"one", b"two")
    first, second = await sub.next_msg(WAIT_S), await sub.next_msg(WAIT_S)
    assert (first.subject, first.data, first.reply) == (uniq, b"one", "")
    assert second.data == b"two"
    await client.close()


async def test_nsq_to_nats_wildcards(broker: Server, uniq: str) -> None:
    client = await _nats(broker)
    star = await _subscribe(client, f"{uniq}.*")
    rest = await _subscribe(client, f"{uniq}.>")
    _publish(broker, f"{uniq}.eu", b"a")
    _publish(broker, f"{uniq}.eu.de", b"b")
    message = await star.next_msg(WAIT_S)
    assert (message.subject, message.data) == (f"{uniq}.eu", b"a")
    got = [await rest.next_msg(WAIT_S) for _ in range(2)]
    assert [m.subject for m in got] == [f"{uniq}.eu", f"{uniq}.eu.de"]
    await client.close()


async def test_nsq_to_a_nats_queue_group(broker: Server, uniq: str) -> None:
    client = await _nats(broker)
    members = [await _subscribe(client, uniq, queue="q") for _ in range(2)]
    plain = await _subscribe(client, uniq)
    _publish(broker, uniq, *[b"%d" % number for number in range(20)], b"end")
    while (await plain.next_msg(WAIT_S)).data != b"end":
        pass
    await _subscribe(client, f"{uniq}.settle")
    assert sum(member.pending_msgs for member in members) == 21
    await client.close()


async def test_every_way_to_publish_reaches_nats(broker: Server, uniq: str) -> None:
    client = await _nats(broker)
    sub = await _subscribe(client, uniq)
    with nsq_peer(broker.nsq) as peer:
        peer.command(f"MPUB {uniq}", b"\0\0\0\2" + sized(b"mpub1") + sized(b"mpub2"))
        peer.expect_frame("response", b"OK")
    request(broker.nsq_http, "POST", "/pub", b"http", topic=uniq)
    request(broker.nsq_http, "POST", "/mpub", b"line1\nline2", topic=uniq)
    got = [(await sub.next_msg(WAIT_S)).data for _ in range(5)]
    assert got == [b"mpub1", b"mpub2", b"http", b"line1", b"line2"]
    await client.close()


async def test_nats_to_nsq(broker: Server, uniq: str) -> None:
    """Each channel of a topic that exists gets its copy, the body only."""
    with _consumer(broker, uniq, "one") as one, _consumer(broker, uniq, "two") as two:
        client = await _nats(broker)
        await client.publish(uniq, b"hello")
        await client.publish(uniq, b"with headers", headers={"A": "b"}, reply="r.x")
        await client.publish(uniq, b"last")
        await _subscribe(client, f"{uniq}.settle")
        for consumer in (one, two):
            frames = [consumer.read_frame() for _ in range(3)]
            assert [f.body for f in frames] == [b"hello", b"with headers", b"last"]
            assert [f.attempts for f in frames] == [1, 1, 1]
            assert len({f.message_id for f in frames}) == 3
        await client.close()


async def test_nats_to_nsq_is_kept_until_finished(broker: Server, uniq: str) -> None:
    """With nobody there it waits in the channel like any other message."""
    with _consumer(broker, uniq, rdy=0):
        pass
    with nats_peer(broker.nats) as publisher:
        publisher.send(f"PUB {uniq} 4\r\nkept\r\n".encode())
        publisher.ping()
    assert nsq_channel(broker.nsq_http, uniq, "ch")["depth"] == 1
    with _consumer(broker, uniq) as consumer:
        frame = consumer.read_frame()
        assert frame.body == b"kept"
        consumer.command(f"REQ {frame.message_id.decode()} 0")
        again = consumer.read_frame()
        assert (again.message_id, again.attempts) == (frame.message_id, 2)
        consumer.command(f"FIN {frame.message_id.decode()}")


async def test_nats_makes_no_topics(broker: Server, uniq: str) -> None:
    with nats_peer(broker.nats) as publisher:
        publisher.send(f"PUB {uniq} 2\r\nhi\r\n".encode())
        publisher.ping()
    assert nsq_topic(broker.nsq_http, uniq) is None


async def test_nothing_comes_round_again(broker: Server, uniq: str) -> None:
    """Published once on either side, a message is seen once on each."""
    client = await _nats(broker)
    sub = await _subscribe(client, uniq)
    with _consumer(broker, uniq) as consumer:
        _publish(broker, uniq, b"from nsq")
        await client.publish(uniq, b"from nats")
        await client.publish(uniq, b"end")
        got = [(await sub.next_msg(WAIT_S)).data for _ in range(3)]
        assert got == [b"from nsq", b"from nats", b"end"]
        assert [consumer.read_frame().body for _ in range(3)] == got
    assert nsq_topic(broker.nsq_http, uniq)["message_count"] == 3
    await client.close()


async def test_a_request_reaches_a_topic_once(broker: Server, uniq: str) -> None:
    """Whether a topic counts as a responder is not said here; that it got the request is."""
    with _consumer(broker, uniq) as consumer:
        client = await _nats(broker)
        with contextlib.suppress(nats.errors.NoRespondersError, nats.errors.TimeoutError):
            await client.request(uniq, b"ask", timeout=0.2)
        assert consumer.read_frame().body == b"ask"
        await client.close()
    assert nsq_topic(broker.nsq_http, uniq)["message_count"] == 1


async def test_a_responder_for_nsq_is_a_plain_subscriber(broker: Server, uniq: str) -> None:
    """What NSQ publishes has no reply and no headers."""
    with nats_peer(broker.nats, {"no_responders": True}) as peer:
        peer.send(f"SUB {uniq} 7\r\n".encode())
        peer.ping()
        _publish(broker, uniq, b"\x00\r\n\xff")
        peer.expect(f"MSG {uniq} 7 4\r\n".encode() + b"\x00\r\n\xff\r\n")


async def test_the_crossing_survives_a_restart(start_broker: StartBroker, uniq: str) -> None:
    server = start_broker()
    with _consumer(server, uniq, rdy=0):
        pass
    server.restart()
    with nats_peer(server.nats) as publisher:
        publisher.send(f"PUB {uniq} 5\r\nafter\r\n".encode())
        publisher.ping()
    with _consumer(server, uniq) as consumer:
        assert consumer.read_frame().body == b"after"


async def test_nsq_to_nats_switched_off(broker_for: BrokerFor, uniq: str) -> None:
    server = broker_for({"bridge": {"nsq_to_nats": False}})
    with nats_peer(server.nats) as peer, _consumer(server, uniq) as consumer:
        peer.send(f"SUB {uniq} 1\r\n".encode())
        peer.ping()
        _publish(server, uniq, b"hidden")
        assert consumer.read_frame().body == b"hidden"
        peer.ping()
        peer.send(f"PUB {uniq} 4\r\nseen\r\n".encode())
        peer.expect(f"MSG {uniq} 1 4\r\nseen\r\n".encode())
        assert consumer.read_frame().body == b"seen"


async def test_nats_to_nsq_switched_off(broker_for: BrokerFor, uniq: str) -> None:
    server = broker_for({"bridge": {"nats_to_nsq": False}})
    with nats_peer(server.nats) as peer, _consumer(server, uniq) as consumer:
        peer.send(f"SUB {uniq} 1\r\nPUB {uniq} 6\r\nhidden\r\n".encode())
        peer.expect(f"MSG {uniq} 1 6\r\nhidden\r\n".encode())
        peer.ping()
        _publish(server, uniq, b"seen")
        assert consumer.read_frame().body == b"seen"
        peer.expect(f"MSG {uniq} 1 4\r\nseen\r\n".encode())
    assert nsq_topic(server.nsq_http, uniq)["message_count"] == 1
