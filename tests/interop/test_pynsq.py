"""The classic NSQ client on tornado, over plain TCP; topics are logs, and streams of JetStream."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import nats
import nsq
import pytest
from support import Server
from support.clients.http import nsq_channel

WAIT_S = 15.0


class _Writer(nsq.Writer):  # type: ignore[misc]
    """A Writer that tells when it is connected and when a heartbeat came."""

    def __init__(self, server: Server, **options: Any) -> None:
        self.ready = asyncio.Event()
        self.heartbeats: asyncio.Queue[None] = asyncio.Queue()
        super().__init__([str(server.nsq)], **options)

    def _on_connection_ready(self, conn: Any, **rest: Any) -> None:
        super()._on_connection_ready(conn, **rest)
        self.ready.set()

    def heartbeat(self, conn: Any) -> None:
        self.heartbeats.put_nowait(None)

    async def say(self, command: str, topic: str, *arguments: Any) -> Any:
        """Publish and wait for the answer."""
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        publish = getattr(self, command)
        publish(topic, *arguments, callback=lambda _, data: answer.set_result(data))
        return await asyncio.wait_for(answer, WAIT_S)


class _Reader(nsq.Reader):  # type: ignore[misc]
    """A Reader whose messages are put in a queue and answered by the test."""

    def __init__(self, server: Server, topic: str, channel: str = "ch", **options: Any) -> None:
        self.messages: asyncio.Queue[Any] = asyncio.Queue()
        self.heartbeats: asyncio.Queue[None] = asyncio.Queue()
        self.subscribed = asyncio.Event()
        options.setdefault("message_handler", self._take)
        super().__init__(topic, channel, nsqd_tcp_addresses=[str(server.nsq)], **options)

    def _take(self, message: Any) -> None:
        message.enable_async()
        self.messages.put_nowait(message)

    def _on_connection_ready(self, conn: Any, **rest: Any) -> None:
        super()._on_connection_ready(conn, **rest)
        self.subscribed.set()

    def heartbeat(self, conn: Any) -> None:
        self.heartbeats.put_nowait(None)

    async def next(self) -> Any:
        return await asyncio.wait_for(self.messages.get(), WAIT_S)


@pytest.fixture
async def opened(broker: Server) -> AsyncIterator[Callable[..., Any]]:
    """Make readers and writers on the shared server; they are closed with the test."""
    made: list[Any] = []

    def make(kind: type, *arguments: Any, **options: Any) -> Any:
        made.append(kind(broker, *arguments, **options))
        return made[-1]

    yield make
    for client in made:
        for conn in list(client.conns.values()):
            conn.off("close", client._on_connection_close)  # else it reconnects after the test
            conn.close()
        if isinstance(client, nsq.Reader):
            client.close()


@pytest.fixture(params=["log", pytest.param("stream", marks=pytest.mark.only_ours)])
async def topic(request: pytest.FixtureRequest, broker: Server, uniq: str) -> str:
    """A topic that is a log, or a stream of JetStream."""
    if request.param == "stream":
        client = await nats.connect(broker.nats_url, connect_timeout=5)
        await client.jetstream().add_stream(
            name=uniq, subjects=[uniq], metadata={"twinwire.nsq_topic": uniq}
        )
        await client.close()
    return uniq


async def _writer(opened: Callable[..., Any], **options: Any) -> Any:
    writer = opened(_Writer, **options)
    await asyncio.wait_for(writer.ready.wait(), WAIT_S)
    return writer


async def test_publish_and_read(opened: Callable[..., Any], broker: Server, topic: str) -> None:
    writer = await _writer(opened)
    for number in range(50):
        assert await writer.say("pub", topic, b"%d" % number) == b"OK"
    reader = opened(_Reader, topic, max_in_flight=10)
    for number in range(50):
        message = await reader.next()
        assert (message.body, message.attempts) == (b"%d" % number, 1)
        message.finish()


async def test_a_handler_that_returns_true_finishes(
    opened: Callable[..., Any], broker: Server, topic: str
) -> None:
    writer = await _writer(opened)
    got: asyncio.Queue[bytes] = asyncio.Queue()

    def handle(message: Any) -> bool:
        got.put_nowait(message.body)
        return True

    opened(_Reader, topic, message_handler=handle, max_in_flight=5)
    bodies = [b"%d" % number for number in range(200)]
    assert await writer.say("mpub", topic, bodies) == b"OK"
    assert [await asyncio.wait_for(got.get(), WAIT_S) for _ in bodies] == bodies


async def test_multi_publish(opened: Callable[..., Any], topic: str) -> None:
    writer = await _writer(opened)
    bodies = [b"%d" % number * 100 for number in range(500)]
    assert await writer.say("mpub", topic, bodies) == b"OK"
    reader = opened(_Reader, topic, max_in_flight=500)
    for body in bodies:
        message = await reader.next()
        assert message.body == body
        message.finish()


async def test_deferred_publish(opened: Callable[..., Any], uniq: str) -> None:
    writer = await _writer(opened)
    reader = opened(_Reader, uniq, max_in_flight=2)
    await asyncio.wait_for(reader.subscribed.wait(), WAIT_S)
    started = time.monotonic()
    assert await writer.say("dpub", uniq, 600, b"later") == b"OK"
    assert await writer.say("pub", uniq, b"now") == b"OK"
    first = await reader.next()
    first.finish()
    second = await reader.next()
    second.finish()
    assert (first.body, second.body) == (b"now", b"later")
    assert time.monotonic() - started > 0.59


async def test_a_bad_topic_is_reported(opened: Callable[..., Any]) -> None:
    writer = await _writer(opened)
    answer = await writer.say("pub", "not*valid", b"x")
    assert isinstance(answer, nsq.Error)
    assert "E_BAD_TOPIC" in str(answer)


async def test_requeue_at_once(opened: Callable[..., Any], broker: Server, topic: str) -> None:
    writer = await _writer(opened)
    reader = opened(_Reader, topic)
    assert await writer.say("pub", topic, b"again") == b"OK"
    for attempt in range(1, 5):
        message = await reader.next()
        assert (message.body, message.attempts) == (b"again", attempt)
        if attempt < 4:
            message.requeue(backoff=False, time_ms=0)
        else:
            message.finish()
    assert nsq_channel(broker.nsq_http, topic, "ch")["requeue_count"] == 3


async def test_requeue_with_a_delay(opened: Callable[..., Any], topic: str) -> None:
    writer = await _writer(opened)
    reader = opened(_Reader, topic)
    assert await writer.say("pub", topic, b"again") == b"OK"
    message = await reader.next()
    started = time.monotonic()
    message.requeue(backoff=False, time_ms=500)
    message = await reader.next()
    assert message.attempts == 2
    assert time.monotonic() - started > 0.49
    message.finish()


async def test_backing_off_after_a_failure(opened: Callable[..., Any], topic: str) -> None:
    """The reader drops RDY to 0, tests the water with one message, and goes on."""
    writer = await _writer(opened)
    reader = opened(_Reader, topic, max_in_flight=5, max_backoff_duration=1)
    assert await writer.say("mpub", topic, [b"%d" % number for number in range(10)]) == b"OK"
    first = await reader.next()
    first.requeue(time_ms=0)
    bodies: set[bytes] = set()
    while len(bodies) < 10:
        message = await reader.next()
        bodies.add(message.body)
        message.finish()
    assert bodies == {b"%d" % number for number in range(10)}


async def test_a_message_not_answered_comes_again(opened: Callable[..., Any], topic: str) -> None:
    writer = await _writer(opened)
    reader = opened(_Reader, topic, msg_timeout=1)
    started = time.monotonic()
    assert await writer.say("pub", topic, b"slow") == b"OK"
    first = await reader.next()
    second = await reader.next()
    assert (second.id, second.attempts) == (first.id, 2)
    assert time.monotonic() - started > 0.9
    second.finish()


async def test_touch_keeps_a_message(
    opened: Callable[..., Any], broker: Server, topic: str
) -> None:
    """Touched at every heartbeat for longer than its timeout."""
    writer = await _writer(opened)
    reader = opened(_Reader, topic, msg_timeout=3, heartbeat_interval=1)
    assert await writer.say("pub", topic, b"long") == b"OK"
    message = await reader.next()
    for _ in range(5):
        await asyncio.wait_for(reader.heartbeats.get(), WAIT_S)
        message.touch()
    assert reader.messages.empty()
    message.finish()
    await asyncio.wait_for(reader.heartbeats.get(), WAIT_S)
    channel = nsq_channel(broker.nsq_http, topic, "ch")
    assert (channel["timeout_count"], channel["in_flight_count"], channel["depth"]) == (0, 0, 0)


async def test_heartbeats_keep_both_ends(opened: Callable[..., Any], topic: str) -> None:
    writer = await _writer(opened, heartbeat_interval=1)
    reader = opened(_Reader, topic, heartbeat_interval=1)
    for _ in range(3):
        await asyncio.wait_for(writer.heartbeats.get(), WAIT_S)
        await asyncio.wait_for(reader.heartbeats.get(), WAIT_S)
    assert await writer.say("pub", topic, b"still here") == b"OK"
    message = await reader.next()
    assert message.body == b"still here"
    message.finish()


async def test_two_readers_share_and_two_channels_copy(
    opened: Callable[..., Any], topic: str
) -> None:
    writer = await _writer(opened)
    shared = [opened(_Reader, topic, "shared") for _ in range(2)]
    alone = opened(_Reader, topic, "alone", max_in_flight=100)
    for reader in (*shared, alone):
        await asyncio.wait_for(reader.subscribed.wait(), WAIT_S)
    bodies = [b"%d" % number for number in range(100)]
    got: list[bytes] = []

    async def work(reader: Any) -> None:
        while len(got) < len(bodies):
            message = await reader.next()
            got.append(message.body)
            message.finish()

    workers = [asyncio.create_task(work(reader)) for reader in shared]
    assert await writer.say("mpub", topic, bodies) == b"OK"
    await asyncio.wait(workers, return_when=asyncio.FIRST_COMPLETED, timeout=WAIT_S)
    for worker in workers:
        worker.cancel()
    assert sorted(got) == sorted(bodies)
    for body in bodies:
        message = await alone.next()
        assert message.body == body
        message.finish()


async def test_max_in_flight_is_kept(
    opened: Callable[..., Any], broker: Server, topic: str
) -> None:
    writer = await _writer(opened)
    assert await writer.say("mpub", topic, [b"%d" % number for number in range(30)]) == b"OK"
    reader = opened(_Reader, topic, max_in_flight=7)
    held = [await reader.next() for _ in range(7)]
    assert nsq_channel(broker.nsq_http, topic, "ch")["in_flight_count"] == 7
    assert reader.messages.empty()
    for message in held:
        message.finish()
    for _ in range(23):
        (await reader.next()).finish()


async def test_sampling_everything(opened: Callable[..., Any], topic: str) -> None:
    writer = await _writer(opened)
    reader = opened(_Reader, topic, sample_rate=99, max_in_flight=20)
    assert await writer.say("mpub", topic, [b"%d" % number for number in range(20)]) == b"OK"
    for _ in range(20):
        (await reader.next()).finish()


async def test_compression_not_granted_stays_plain(opened: Callable[..., Any], topic: str) -> None:
    """A client that asks for TLS from a server without certificates carries on in the clear."""
    writer = await _writer(opened, tls_v1=True)
    assert await writer.say("pub", topic, b"plain") == b"OK"
