"""Consuming."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from support import Server
from support.clients.http import nsq_channel
from support.clients.inbox import WAIT_S, Inbox, Open
from support.clients.lookup import eventually
from support.servers.nsqd import StartNsq

from broker.client.nsq import Message, NsqError, Reader, Writer


async def _publish(server: Server, topic: str, *bodies: bytes) -> None:
    async with Writer(str(server.nsq)) as writer:
        await writer.mpub(topic, bodies)


def _counts_become(server: Server, topic: str, wanted: tuple[int, int]) -> None:
    """(depth, in flight); FIN has no answer, so the server may read it after a request by HTTP."""

    def counts() -> tuple[int, int]:
        channel = nsq_channel(server.nsq_http, topic, "ch")
        return channel["depth"], channel["in_flight_count"]

    eventually(counts, wanted)


async def test_plain_handler(server: Server, opened: Open, uniq: str) -> None:
    bodies = [b"%d" % n * 50 for n in range(2000)]
    await _publish(server, uniq, *bodies)
    got: list[bytes] = []
    done = asyncio.Event()

    def handle(message: Message) -> bool:
        assert message.attempts == 1
        assert message.topic == uniq
        assert message.address == tuple(server.nsq)
        got.append(message.body)
        if len(got) == len(bodies):
            done.set()
        return True

    reader = await opened(server, uniq, handle, max_in_flight=100)
    await asyncio.wait_for(done.wait(), WAIT_S)
    assert sorted(got) == sorted(bodies)
    await reader.close()
    _counts_become(server, uniq, (0, 0))


async def test_async_handlers_are_bounded_by_max_in_flight(
    server: Server, opened: Open, uniq: str
) -> None:
    await _publish(server, uniq, *[b"x"] * 40)
    running = most = ended = 0
    full, go, done = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def handle(message: Message) -> None:
        nonlocal running, most, ended
        running += 1
        most = max(most, running)
        if running == 4:
            full.set()
        await go.wait()
        running -= 1
        ended += 1
        if ended == 40:
            done.set()

    await opened(server, uniq, handle, max_in_flight=4)
    await asyncio.wait_for(full.wait(), WAIT_S)
    go.set()
    await asyncio.wait_for(done.wait(), WAIT_S)
    assert most == 4


async def test_iterating(server: Server, uniq: str) -> None:
    await _publish(server, uniq, b"1", b"2", b"3")
    got = []
    async with Reader(uniq, "ch", nsqd=str(server.nsq), max_in_flight=3) as reader:
        async for message in reader:
            got.append(message.body)
            message.finish()
            if len(got) == 3:
                break
    assert sorted(got) == [b"1", b"2", b"3"]
    assert nsq_channel(server.nsq_http, uniq, "ch")["in_flight_count"] == 0


async def test_failures_come_again_until_given_up(server: Server, opened: Open, uniq: str) -> None:
    await _publish(server, uniq, b"bad")
    attempts: list[int] = []
    given_up: asyncio.Queue[Message] = asyncio.Queue()

    async def handle(message: Message) -> bool:
        attempts.append(message.attempts)
        if message.attempts == 1:
            raise RuntimeError("on purpose")
        return False

    reader = await opened(
        server,
        uniq,
        handle,
        max_attempts=3,
        requeue_s=0,
        backoff_s_max=0,
        on_giving_up=given_up.put_nowait,
    )
    message = await asyncio.wait_for(given_up.get(), WAIT_S)
    assert attempts == [1, 2, 3]
    assert (message.attempts, message.body) == (4, b"bad")
    await reader.close()
    channel = nsq_channel(server.nsq_http, uniq, "ch")
    assert (channel["depth"], channel["deferred_count"], channel["in_flight_count"]) == (0, 0, 0)
    assert channel["requeue_count"] == 3


async def test_a_message_not_answered_in_time_is_answered_too_late(
    server: Server, opened: Open, uniq: str
) -> None:
    """The late FIN is refused, reported, and harms nothing."""
    from broker.client.nsq import Options

    await _publish(server, uniq, b"slow")
    errors: asyncio.Queue[NsqError] = asyncio.Queue()
    first, second = Inbox(), Inbox()
    options = Options(msg_timeout_ms=1000)
    await opened(server, uniq, first, options=options, on_error=errors.put_nowait)
    held = await first.next()
    await opened(server, uniq, second, max_in_flight=5)
    again = first.messages.get(), second.messages.get()
    tasks = [asyncio.ensure_future(wait) for wait in again]
    done, rest = await asyncio.wait(tasks, timeout=WAIT_S, return_when="FIRST_COMPLETED")
    for task in rest:
        task.cancel()
    redelivered = next(iter(done)).result()
    assert (redelivered.id, redelivered.attempts) == (held.id, 2)
    redelivered.finish()
    await asyncio.sleep(0)
    held.finish()
    error = await asyncio.wait_for(errors.get(), WAIT_S)
    assert str(error).startswith("E_FIN_FAILED")
    await _publish(server, uniq, b"next")
    arrived = [asyncio.ensure_future(box.next()) for box in (first, second)]
    done, rest = await asyncio.wait(arrived, timeout=WAIT_S, return_when="FIRST_COMPLETED")
    for task in rest:
        task.cancel()
    message = next(iter(done)).result()
    assert message.body == b"next"
    message.finish()


async def test_touch(server: Server, opened: Open, uniq: str) -> None:
    inbox = Inbox()
    await _publish(server, uniq, b"x")
    await opened(server, uniq, inbox)
    message = await inbox.next()
    assert message.touch()
    assert message.finish()
    assert not message.touch()
    assert not message.finish()
    assert not message.requeue(0)


async def test_requeue_without_backoff(server: Server, opened: Open, uniq: str) -> None:
    inbox = Inbox()
    await _publish(server, uniq, b"x")
    reader = await opened(server, uniq, inbox)
    for attempt in range(1, 4):
        message = await inbox.next()
        assert message.attempts == attempt
        message.requeue(0, backoff=False)
        assert not reader.backing_off
    (await inbox.next()).finish()


async def test_heartbeats_are_answered(server: Server, opened: Open, uniq: str) -> None:
    """The server drops a client that misses two; this one outlives four of its own."""
    from broker.client.nsq import Options

    inbox, errors = Inbox(), []
    options = Options(heartbeat_interval_ms=1000)
    await opened(server, uniq, inbox, options=options, on_error=errors.append)
    async with Writer(str(server.nsq)) as writer:
        await writer.dpub(uniq, b"late", 4.2)
        (await inbox.next()).finish()
    assert errors == []


async def test_closing_lets_handlers_end(server: Server, opened: Open, uniq: str) -> None:
    await _publish(server, uniq, *[b"x"] * 5)
    begun, go = asyncio.Event(), asyncio.Event()

    async def handle(message: Message) -> None:
        begun.set()
        await go.wait()

    reader = await opened(server, uniq, handle, max_in_flight=1)
    await asyncio.wait_for(begun.wait(), WAIT_S)
    closing = asyncio.ensure_future(reader.close())
    await asyncio.sleep(0)
    assert not closing.done()
    go.set()
    await asyncio.wait_for(closing, WAIT_S)
    _counts_become(server, uniq, (4, 0))


async def test_closing_gives_up_on_a_handler_that_hangs(
    server: Server, opened: Open, uniq: str
) -> None:
    await _publish(server, uniq, b"x")
    inbox = Inbox()
    reader = await opened(server, uniq, inbox)
    await inbox.next()
    await asyncio.wait_for(reader.close(0.05), WAIT_S)


async def test_killed_in_mid_stream_and_started_again(
    start_nsq: StartNsq, opened: Open, uniq: str
) -> None:
    server = start_nsq()
    await _publish(server, uniq, *[b"%d" % n for n in range(500)])
    got: set[bytes] = set()
    some, all_of_them = asyncio.Event(), asyncio.Event()

    async def handle(message: Message) -> None:
        await asyncio.sleep(0)
        got.add(message.body)
        if len(got) == 100:
            some.set()
        if len(got) == 501:
            all_of_them.set()

    errors: list[NsqError] = []
    reader = await opened(
        server, uniq, handle, max_in_flight=20, reconnect_s=0.05, on_error=errors.append
    )
    await asyncio.wait_for(some.wait(), WAIT_S)
    server.kill() if target_keeps(server) else server.stop()
    server.start()
    await _publish(server, uniq, b"after")
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(all_of_them.wait(), WAIT_S)
    assert len(got) == 501
    assert errors
    assert reader.addresses == [tuple(server.nsq)]


def target_keeps(server: Server) -> bool:
    """Whether messages survive a kill: nsqd keeps them in memory."""
    return type(server).__name__ == "Broker"


async def test_refused_first_and_there_later(start_nsq: StartNsq, opened: Open, uniq: str) -> None:
    server = start_nsq()
    await _publish(server, uniq, b"x")
    server.stop()
    refused, inbox = asyncio.Event(), Inbox()
    await opened(server, uniq, inbox, reconnect_s=0.05, on_error=lambda _: refused.set())
    await asyncio.wait_for(refused.wait(), WAIT_S)
    server.start()
    (await inbox.next()).finish()


async def test_a_bad_channel_is_reported(server: Server, opened: Open, uniq: str) -> None:
    with pytest.raises(ValueError, match=r"invalid channel name 'not\*valid'"):
        await opened(server, uniq, Inbox(), channel="not*valid")


async def test_a_refused_subscription_is_reported(
    start_nsq: StartNsq, target: str, opened: Open, uniq: str
) -> None:
    if target == "original":
        pytest.skip("its limit of consumers is a flag the harness does not set")
    server = start_nsq({"nsq": {"max_channel_consumers": 1}})
    first, errors = Inbox(), asyncio.Queue[NsqError]()
    await opened(server, uniq, first)
    await _publish(server, uniq, b"x")
    (await first.next()).finish()
    await opened(server, uniq, Inbox(), on_error=errors.put_nowait)
    assert "E_SUB_FAILED" in str(await asyncio.wait_for(errors.get(), WAIT_S))
