"""The NATS client for asyncio, as a program would use it."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Any

import nats
import nats.errors
import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg
from support import Server

if TYPE_CHECKING:
    from conftest import StartBroker

WAIT_S = 10.0
Connect = Callable[..., Awaitable[Client]]


@pytest.fixture
async def connect(broker: Server) -> AsyncIterator[Connect]:
    """Connections to the shared server, closed with the test."""
    clients: list[Client] = []

    async def open_one(url: str = broker.nats_url, **options: Any) -> Client:
        client = await nats.connect(url, connect_timeout=5, **options)
        clients.append(client)
        return client

    yield open_one
    for client in clients:
        if not client.is_closed:
            await client.close()


async def _settle(*clients: Client) -> None:
    """Come back when the server has handled all that the clients said before.

    Their own flush() is no such barrier: its PING overtakes what waits to be sent."""
    for client in clients:
        subject = client.new_inbox()
        mark = await client.subscribe(subject)
        await client.publish(subject, b"")
        await mark.next_msg(WAIT_S)
        await mark.unsubscribe()


async def test_publish_and_subscribe_in_order(connect: Connect, uniq: str) -> None:
    subscriber, publisher = await connect(), await connect()
    sub = await subscriber.subscribe(uniq)
    await _settle(subscriber)
    for number in range(2000):
        await publisher.publish(uniq, b"%d" % number)
    await _settle(publisher)
    got = [int((await sub.next_msg(WAIT_S)).data) for _ in range(2000)]
    assert got == list(range(2000))


async def test_what_the_client_learns_of_the_server(connect: Connect) -> None:
    client = await connect()
    assert client.is_connected
    assert client.max_payload == 1 << 20
    assert (client.connected_server_version.major, client.connected_server_version.minor) == (2, 14)
    assert await client.rtt() >= 0


async def test_wildcards(connect: Connect, uniq: str) -> None:
    client = await connect()
    one = await client.subscribe(f"{uniq}.*.created")
    rest = await client.subscribe(f"{uniq}.>")
    for subject in ("a.created", "b.created", "a.b.created", "a.deleted"):
        await client.publish(f"{uniq}.{subject}", subject.encode())
    got = [(await one.next_msg(WAIT_S)).data for _ in range(2)]
    assert got == [b"a.created", b"b.created"]
    got = [(await rest.next_msg(WAIT_S)).data for _ in range(4)]
    assert got == [b"a.created", b"b.created", b"a.b.created", b"a.deleted"]
    await _settle(client)
    assert (one.pending_msgs, rest.pending_msgs) == (0, 0)


async def test_queue_group_shares_and_repeats_nothing(connect: Connect, uniq: str) -> None:
    done = asyncio.Event()
    got: dict[int, list[int]] = {0: [], 1: [], 2: []}

    def handler(member: int) -> Callable[[Msg], Awaitable[None]]:
        async def take(message: Msg) -> None:
            got[member].append(int(message.data))
            if sum(map(len, got.values())) == 300:
                done.set()

        return take

    for member in got:
        client = await connect()
        await client.subscribe(uniq, queue="workers", cb=handler(member))
        await _settle(client)
    publisher = await connect()
    for number in range(300):
        await publisher.publish(uniq, b"%d" % number)
    await asyncio.wait_for(done.wait(), WAIT_S)
    assert sorted(itertools.chain(*got.values())) == list(range(300))
    assert all(len(numbers) > 40 for numbers in got.values())
    assert all(numbers == sorted(numbers) for numbers in got.values())


async def test_queue_group_beside_a_plain_subscription(connect: Connect, uniq: str) -> None:
    client = await connect()
    plain = await client.subscribe(uniq)
    members = [await client.subscribe(uniq, queue="q") for _ in range(2)]
    for number in range(20):
        await client.publish(uniq, b"%d" % number)
    await _settle(client)
    assert plain.pending_msgs == 20
    assert sum(member.pending_msgs for member in members) == 20


async def test_request_and_reply(connect: Connect, uniq: str) -> None:
    server, client = await connect(), await connect()

    async def answer(message: Msg) -> None:
        await message.respond(message.data.upper())

    await server.subscribe(uniq, cb=answer)
    await _settle(server)
    reply = await client.request(uniq, b"hello", timeout=WAIT_S)
    assert reply.data == b"HELLO"
    requests = [client.request(uniq, b"n%d" % n, timeout=WAIT_S) for n in range(200)]
    replies = await asyncio.gather(*requests)
    assert [r.data for r in replies] == [b"N%d" % n for n in range(200)]


async def test_old_style_request(connect: Connect, uniq: str) -> None:
    client = await connect()

    async def answer(message: Msg) -> None:
        await message.respond(b"yes")

    await client.subscribe(uniq, cb=answer)
    reply = await client.request(uniq, b"?", timeout=WAIT_S, old_style=True)
    assert reply.data == b"yes"


async def test_no_responders(connect: Connect, uniq: str) -> None:
    client = await connect()
    with pytest.raises(nats.errors.NoRespondersError):
        await client.request(uniq, b"anyone?", timeout=WAIT_S)


async def test_a_responder_that_says_nothing_times_out(connect: Connect, uniq: str) -> None:
    client = await connect()
    await client.subscribe(uniq)
    with pytest.raises(nats.errors.TimeoutError):
        await client.request(uniq, b"?", timeout=0.2)


async def test_headers(connect: Connect, uniq: str) -> None:
    client = await connect()
    sub = await client.subscribe(uniq)
    headers = {"Trace": "a b:c", "Empty": "", "Greeting": "schön"}
    await client.publish(uniq, b"body", headers=headers)
    await client.publish(uniq, b"", headers={"Only": "header"})
    await client.publish(uniq, b"plain")
    first, second, third = [await sub.next_msg(WAIT_S) for _ in range(3)]
    assert first.data == b"body"
    assert first.headers is not None
    assert first.headers["Trace"] == "a b:c"
    assert first.headers["Greeting"] == "schön"
    assert (second.data, second.headers) == (b"", {"Only": "header"})
    assert (third.data, third.headers) == (b"plain", None)


async def test_request_with_headers(connect: Connect, uniq: str) -> None:
    client = await connect()

    async def answer(message: Msg) -> None:
        assert message.headers is not None
        await client.publish(message.reply, b"", headers={"Echo": message.headers["Say"]})

    await client.subscribe(uniq, cb=answer)
    reply = await client.request(uniq, b"", timeout=WAIT_S, headers={"Say": "hi"})
    assert reply.headers == {"Echo": "hi"}


async def test_unsubscribe_after_some(connect: Connect, uniq: str) -> None:
    client = await connect()
    sub = await client.subscribe(uniq)
    await sub.unsubscribe(limit=3)
    for number in range(5):
        await client.publish(uniq, b"%d" % number)
    assert [(await sub.next_msg(WAIT_S)).data for _ in range(3)] == [b"0", b"1", b"2"]
    await _settle(client)
    assert sub.pending_msgs == 0


async def test_unsubscribe_stops_delivery(connect: Connect, uniq: str) -> None:
    client = await connect(no_echo=False)
    other = await connect()
    sub = await client.subscribe(uniq)
    await sub.unsubscribe()
    await _settle(client)
    with pytest.raises(nats.errors.NoRespondersError):
        await other.request(uniq, b"", timeout=WAIT_S)


async def test_no_echo(connect: Connect, uniq: str) -> None:
    quiet, other = await connect(no_echo=True), await connect()
    there = await other.subscribe(uniq)
    await _settle(other)
    sub = await quiet.subscribe(uniq)
    await quiet.publish(uniq, b"own")
    assert (await there.next_msg(WAIT_S)).data == b"own"
    await other.publish(uniq, b"other")
    assert (await sub.next_msg(WAIT_S)).data == b"other"


async def test_verbose_and_pedantic_client(connect: Connect, uniq: str) -> None:
    client = await connect(verbose=True, pedantic=True)
    sub = await client.subscribe(uniq)
    await client.publish(uniq, b"hi")
    assert (await sub.next_msg(WAIT_S)).data == b"hi"
    assert client.last_error is None


async def test_drain_a_subscription(connect: Connect, uniq: str) -> None:
    """Everything sent before the drain is handled, nothing sent after it."""
    client, publisher = await connect(), await connect()
    got: list[bytes] = []

    async def take(message: Msg) -> None:
        await asyncio.sleep(0)
        got.append(message.data)

    sub = await client.subscribe(uniq, cb=take)
    await _settle(client)
    for number in range(500):
        await publisher.publish(uniq, b"%d" % number)
    await _settle(publisher)
    await sub.drain()
    assert got == [b"%d" % number for number in range(500)]
    await _settle(client)  # its UNSUB may still wait to be sent
    with pytest.raises(nats.errors.NoRespondersError):
        await publisher.request(uniq, b"late", timeout=WAIT_S)
    assert len(got) == 500


async def test_drain_a_connection(connect: Connect, uniq: str) -> None:
    closed = asyncio.Event()

    async def on_close() -> None:
        closed.set()

    client, publisher = await connect(closed_cb=on_close), await connect()
    replies = await publisher.subscribe(f"{uniq}.reply")

    async def answer(message: Msg) -> None:
        await client.publish(f"{uniq}.reply", message.data)

    await client.subscribe(uniq, queue="q", cb=answer)
    await _settle(client)
    for number in range(100):
        await publisher.publish(uniq, b"%d" % number)
    await _settle(publisher)
    await client.drain()
    await asyncio.wait_for(closed.wait(), WAIT_S)
    got = [(await replies.next_msg(WAIT_S)).data for _ in range(100)]
    assert got == [b"%d" % number for number in range(100)]


async def test_the_largest_payload(connect: Connect, uniq: str) -> None:
    client, publisher = await connect(), await connect()
    sub = await client.subscribe(uniq)
    await _settle(client)
    body = bytes(range(256)) * 4096
    assert len(body) == publisher.max_payload
    for _ in range(3):
        await publisher.publish(uniq, body)
    await _settle(publisher)
    for _ in range(3):
        assert (await sub.next_msg(WAIT_S)).data == body


async def test_a_payload_too_large(connect: Connect, uniq: str) -> None:
    client = await connect()
    with pytest.raises(nats.errors.MaxPayloadError):
        await client.publish(uniq, b"x" * (client.max_payload + 1))


async def test_the_server_refuses_a_payload_too_large(connect: Connect, uniq: str) -> None:
    """A client that does not look at the limit is cut off; the others do not notice."""
    gone = asyncio.Event()

    async def on_end() -> None:
        gone.set()

    async def on_error(_: Exception) -> None:
        """The violation, or a reset if that came while still writing."""

    client = await connect(error_cb=on_error, disconnected_cb=on_end, closed_cb=on_end)
    witness = await connect()
    sub = await witness.subscribe(uniq)
    await _settle(witness)
    client._max_payload = 1 << 30
    await client.publish(uniq, b"x" * ((1 << 20) + 1))
    await asyncio.wait_for(gone.wait(), WAIT_S)
    await witness.publish(uniq, b"smaller")
    assert (await sub.next_msg(WAIT_S)).data == b"smaller"


async def test_many_subscriptions(connect: Connect, uniq: str) -> None:
    client = await connect()
    subs = [await client.subscribe(f"{uniq}.{number}") for number in range(500)]
    everything = await client.subscribe(f"{uniq}.*")
    for number in range(500):
        await client.publish(f"{uniq}.{number}", b"%d" % number)
    await _settle(client)
    assert everything.pending_msgs == 500
    for number, sub in enumerate(subs):
        assert (await sub.next_msg(WAIT_S)).data == b"%d" % number
        assert sub.pending_msgs == 0


async def test_two_clients_talk_through_many_subjects(connect: Connect, uniq: str) -> None:
    left, right = await connect(), await connect()

    async def bounce(message: Msg) -> None:
        count = int(message.data)
        if count < 100:
            await right.publish(message.subject.replace("ping", "pong"), b"%d" % (count + 1))

    done = asyncio.Event()

    async def back(message: Msg) -> None:
        count = int(message.data)
        if count >= 99:
            done.set()
        else:
            await left.publish(message.subject.replace("pong", "ping"), b"%d" % (count + 1))

    await right.subscribe(f"{uniq}.ping.*", cb=bounce)
    await left.subscribe(f"{uniq}.pong.*", cb=back)
    await _settle(left, right)
    await left.publish(f"{uniq}.ping.x", b"0")
    await asyncio.wait_for(done.wait(), WAIT_S)


@pytest.mark.parametrize("end", ["stop", "kill"])
async def test_reconnect_after_the_server_came_back(
    start_broker: StartBroker, uniq: str, end: str
) -> None:
    """Subscriptions are back and what was published meanwhile from the buffer arrives."""
    server = start_broker()
    gone, back = asyncio.Event(), asyncio.Event()

    async def on_gone() -> None:
        gone.set()

    async def on_back() -> None:
        back.set()

    client = await nats.connect(
        server.nats_url,
        disconnected_cb=on_gone,
        reconnected_cb=on_back,
        reconnect_time_wait=0.05,
        max_reconnect_attempts=-1,
    )
    try:
        sub = await client.subscribe(f"{uniq}.*")
        await _settle(client)
        await asyncio.to_thread(server.stop if end == "stop" else server.kill)
        await asyncio.wait_for(gone.wait(), WAIT_S)
        await client.publish(f"{uniq}.early", b"buffered")
        await asyncio.to_thread(server.restart)
        await asyncio.wait_for(back.wait(), WAIT_S)
        await client.publish(f"{uniq}.late", b"after")
        got = [(await sub.next_msg(WAIT_S)).data for _ in range(2)]
        assert got == [b"buffered", b"after"]
    finally:
        await client.close()


async def test_server_pings_keep_a_quiet_client(start_broker: StartBroker, uniq: str) -> None:
    """Three intervals without a word from the program; the client answers on its own."""
    server = start_broker({"nats": {"ping_interval": "500ms", "ping_max": 2}})
    client = await nats.connect(server.nats_url, allow_reconnect=False)
    witness, ticks = await asyncio.open_connection(*server.nats)
    ticks.write(b'CONNECT {"verbose":false}\r\n')
    rest = await asyncio.wait_for(witness.read(), WAIT_S)  # never answers, so it is cut off
    assert rest.count(b"PING\r\n") == 2
    assert rest.endswith(b"-ERR 'Stale Connection'\r\n")
    ticks.close()
    assert client.is_connected
    sub = await client.subscribe(uniq)
    await client.publish(uniq, b"still here")
    assert (await sub.next_msg(WAIT_S)).data == b"still here"
    await client.close()
