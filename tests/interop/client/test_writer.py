"""Publishing."""

from __future__ import annotations

import asyncio

import pytest
from support import Server
from support.clients.http import nsq_topic
from support.servers.nsqd import StartNsq

from broker.client.nsq import ClosedError, ConnectError, PendingFullError, ServerError, Writer

WAIT_S = 20.0


async def test_all_ways_to_publish(server: Server, uniq: str) -> None:
    async with Writer(str(server.nsq)) as writer:
        await asyncio.gather(*[writer.pub(uniq, b"%d" % n) for n in range(500)])
        await writer.mpub(uniq, [b"a", b"b", b"c"])
        await writer.dpub(uniq, b"later", 60.0)
        await writer.send(uniq, b"quick")
    assert nsq_topic(server.nsq_http, uniq)["message_count"] == 505


async def test_answers_go_to_those_who_asked(server: Server, uniq: str) -> None:
    """Pipelined: what came before the refused one is answered OK, what came after is unknown."""
    async with Writer(str(server.nsq)) as writer:
        tasks = [writer.pub(uniq, body) for body in (b"x", b"x", b"", b"x")]
        first, second, third, fourth = await asyncio.gather(*tasks, return_exceptions=True)
        assert (first, second) == (None, None)
        assert isinstance(third, ServerError)
        assert third.code == "E_BAD_MESSAGE"
        assert "invalid message body size 0" in str(third)
        assert isinstance(fourth, ClosedError)
        await writer.pub(uniq, b"on a new connection")


async def test_all_waiters_fail_when_the_server_dies(start_nsq: StartNsq, uniq: str) -> None:
    server = start_nsq()
    writer = Writer(str(server.nsq))
    await writer.pub(uniq, b"safe")
    futures = [writer.send(uniq, b"x") for _ in range(100)]
    server.kill()
    results = await asyncio.wait_for(asyncio.gather(*futures, return_exceptions=True), WAIT_S)
    assert all(isinstance(result, ClosedError) for result in results)
    with pytest.raises(ConnectError):
        await writer.pub(uniq, b"nobody there")
    server.start()
    await writer.pub(uniq, b"back again")
    await writer.close()


async def test_several_servers_take_turns(start_nsq: StartNsq, uniq: str) -> None:
    one, two = start_nsq(), start_nsq()
    async with Writer([str(one.nsq), str(two.nsq)]) as writer:
        for _ in range(20):
            await writer.pub(uniq, b"x")
        assert [nsq_topic(s.nsq_http, uniq)["message_count"] for s in (one, two)] == [10, 10]
        one.kill()
        failed = 0
        for _ in range(20):
            try:
                await writer.pub(uniq, b"x")
            except ClosedError:
                failed += 1
        assert failed <= 1  # the one that was sent into the dying connection
        assert nsq_topic(two.nsq_http, uniq)["message_count"] >= 29


async def test_too_many_under_way_are_refused(server: Server, uniq: str) -> None:
    async with Writer(str(server.nsq), pending_max=3) as writer:
        futures = [writer.send(uniq, b"x") for _ in range(3)]
        with pytest.raises(PendingFullError):
            writer.send(uniq, b"x")
        await asyncio.gather(*futures)
        await writer.send(uniq, b"x")


async def test_closing_waits_for_answers(server: Server, uniq: str) -> None:
    writer = Writer(str(server.nsq))
    await writer.connect()
    futures = [writer.send(uniq, b"x" * 1000) for _ in range(1000)]
    await writer.close()
    assert await asyncio.gather(*futures) == [b"OK"] * 1000
    with pytest.raises(ClosedError):
        await writer.pub(uniq, b"x")


async def test_a_large_message_comes_whole(server: Server, uniq: str) -> None:
    async with Writer(str(server.nsq)) as writer:
        await writer.pub(uniq, b"z" * 1_000_000)
        with pytest.raises(ServerError) as caught:
            await writer.pub(uniq, b"z" * 2_000_000)
        assert caught.value.code == "E_BAD_MESSAGE"


async def test_nobody_listens() -> None:
    with pytest.raises(ConnectError):
        await Writer("127.0.0.1:1").connect()
