"""nsqd's side of nsqlookupd, with nsqlookupds that work and others that do not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from support.clients.peer import sized
from support.live.nsq import Client, on_uvloop, opened

from broker.base import units
from broker.base.settings import Address
from broker.protocols.nsq.listener import NsqListener
from broker.protocols.nsq.lookup.client import LookupPeers, LookupTimes
from broker.protocols.nsq.lookup.config import LookupConfig
from broker.protocols.nsq.lookup.server import LookupServer

WAIT_S = 10
MS = units.MS
QUICK = LookupTimes(io_ns=200 * MS, ping_ns=50 * MS, retry_ns=5 * MS)
HERE = "127.0.0.1"
Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not condition():  # noqa: ASYNC110 - what it looks at rings no bell
            await asyncio.sleep(0)


@asynccontextmanager
async def lookup(port: int = 0) -> AsyncIterator[LookupServer]:
    config = LookupConfig(listen=Address(HERE, port), http=Address(HERE, 0), broadcast_address=HERE)
    server = LookupServer(config)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


def address(server: LookupServer) -> str:
    return f"{HERE}:{server.ports['tcp'][1]}"


@asynccontextmanager
async def telling(listener: NsqListener, *addresses: str) -> AsyncIterator[LookupPeers]:
    peers = LookupPeers(listener.config, listener.engine, QUICK)  # type: ignore[arg-type]
    peers.start(listener.address[1], 4151, addresses)
    try:
        yield peers
    finally:
        await peers.stop()


@asynccontextmanager
async def fake(talk: Talk) -> AsyncIterator[str]:
    """Something that listens and talks as the test says."""
    server = await asyncio.start_server(talk, HERE, 0)
    try:
        yield f"{HERE}:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


def topics(server: LookupServer) -> dict[str, list[str]]:
    """Topics that somebody is registered for, with such channels."""
    registry = server.registry
    return {
        topic: sorted(c for c, e in registry.channels.get(topic, {}).items() if e.producers)
        for topic, entry in registry.topics.items()
        if entry.producers
    }


@on_uvloop
async def test_what_there_is_and_what_comes_and_goes_is_registered(tmp_path: Path) -> None:
    async with opened(tmp_path) as listener, lookup() as one, lookup() as two:
        listener.engine.open_log("old").open_cursor("c")
        async with telling(listener, address(one), address(two)):
            for server in (one, two):
                await until(lambda s=server: topics(s) == {"old": ["c"]})
                fields = next(iter(server.registry.clients.producers)).fields
                assert fields["tcp_port"] == listener.address[1]
            log = listener.engine.open_log("new")
            await until(lambda: topics(two) == {"old": ["c"], "new": []})
            log.open_cursor("d")
            await until(lambda: topics(two) == {"old": ["c"], "new": ["d"]})
            log.delete_cursor("d")
            listener.engine.delete_log("old")
            for server in (one, two):
                await until(lambda s=server: topics(s) == {"new": []})
        for server in (one, two):
            await until(lambda s=server: not s.registry.clients.producers)


@on_uvloop
async def test_a_topic_made_anew_loses_its_tombstone(tmp_path: Path) -> None:
    async with opened(tmp_path) as listener, lookup() as one, telling(listener, address(one)):
        listener.engine.open_log("t")
        await until(lambda: "t" in topics(one))
        producer = next(iter(one.registry.clients.producers))
        one.registry.tombstone("t", producer.node, one.now_ns())
        assert one.registry.producers("t", one.now_ns()) == []
        listener.engine.delete_log("t")
        listener.engine.open_log("t")  # before anything could be sent about the first
        await until(lambda: one.registry.producers("t", one.now_ns()))


@on_uvloop
async def test_pings_keep_a_producer_alive(tmp_path: Path) -> None:
    async with opened(tmp_path) as listener, lookup() as one, telling(listener, address(one)):
        await until(lambda: one.registry.clients.producers)
        producer = next(iter(one.registry.clients.producers))
        first = producer.seen_ns
        await until(lambda: producer.seen_ns > first)


@on_uvloop
async def test_a_nsqlookupd_that_restarts_gets_everything_again(tmp_path: Path) -> None:
    async with opened(tmp_path) as listener:
        async with lookup() as one:
            port = one.ports["tcp"][1]
            peers = LookupPeers(listener.config, listener.engine, QUICK)  # type: ignore[arg-type]
            peers.start(1, 2, [address(one)])
            listener.engine.open_log("t").open_cursor("c")
            await until(lambda: topics(one) == {"t": ["c"]})
        listener.engine.open_log("made.meanwhile")
        async with lookup(port) as again:
            await until(lambda: topics(again) == {"t": ["c"], "made.meanwhile": []})
            await peers.stop()


@on_uvloop
async def test_addresses_change_while_it_runs(tmp_path: Path) -> None:
    async with opened(tmp_path) as listener, lookup() as one, lookup() as two:
        listener.engine.open_log("t")
        async with telling(listener, address(one)) as peers:
            await until(lambda: topics(one) == {"t": []})
            stays = next(iter(one.registry.clients.producers))
            peers.set_addresses([address(one), address(two)])
            await until(lambda: topics(two) == {"t": []})
            assert stays in one.registry.clients.producers
            peers.set_addresses([address(two)])
            await until(lambda: not one.registry.clients.producers)
            assert peers.addresses == [address(two)]


async def _says(data: bytes, reader: Any, writer: asyncio.StreamWriter) -> None:
    writer.write(data)
    await reader.read()  # until the other side has had enough
    writer.close()


async def _hangs_up(_reader: Any, writer: asyncio.StreamWriter) -> None:
    writer.close()


JUNK: dict[str, Talk] = {
    "silence": lambda r, w: _says(b"", r, w),
    "hangs up": _hangs_up,
    "not sized": lambda r, w: _says(b"HTTP/1.1 400 Bad Request\r\n\r\n", r, w),
    "negative size": lambda r, w: _says(b"\xff\xff\xff\xff", r, w),
    "endless": lambda r, w: _says(sized(b"{}") * 100_000, r, w),
    "error": lambda r, w: _says(sized(b"E_INVALID go away"), r, w),
    "not an object": lambda r, w: _says(sized(b"[1]"), r, w),
    "wrong types": lambda r, w: _says(sized(b'{"broadcast_address":1,"http_port":"x"}'), r, w),
    "half a reply": lambda r, w: _says(b"\0\0\0\x10{", r, w),
    "no http there": lambda r, w: _says(
        sized(b'{"broadcast_address":"127.0.0.1","http_port":1}') + sized(b"OK") * 2, r, w
    ),
}


@pytest.mark.parametrize("kind", JUNK)
def test_a_bad_nsqlookupd_harms_neither_clients_nor_the_good_one(kind: str, tmp_path: Path) -> None:
    tries = 0

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal tries
        tries += 1
        await JUNK[kind](reader, writer)

    @on_uvloop
    async def run(folder: Path) -> None:
        async with (
            opened(folder) as listener,
            lookup() as good,
            fake(talk) as bad,
            telling(listener, bad, address(good)),
        ):
            client = await Client.dial(listener)
            assert await client.ask(b"PUB t\n" + sized(b"m")) == (0, b"OK")
            assert await client.ask(b"SUB t c\n") == (0, b"OK")
            client.writer.write(b"RDY 1\n")
            assert (await client.frame())[1].endswith(b"m")
            await until(lambda: topics(good) == {"t": ["c"]})
            await until(lambda: tries >= 2)  # it does not give up
            client.writer.close()

    run(tmp_path)


@on_uvloop
async def test_a_nsqlookupd_that_is_down_is_tried_again(tmp_path: Path) -> None:
    async with lookup() as gone:
        port = gone.ports["tcp"][1]
    async with opened(tmp_path) as listener, telling(listener, f"{HERE}:{port}"):
        listener.engine.open_log("t")
        async with lookup(port) as back:
            await until(lambda: topics(back) == {"t": []})


@on_uvloop
async def test_a_new_topic_gets_the_channels_that_others_have(tmp_path: Path) -> None:
    async with opened(tmp_path) as listener, lookup() as one, lookup() as two:
        one.registry.add("t", "a")
        two.registry.add("t", "b")
        two.registry.add("t", "tail#ephemeral")
        async with telling(listener, address(one), address(two)) as peers:
            await until(lambda: all(link.connected.is_set() for link in peers.links.values()))
            client = await Client.dial(listener)
            assert await client.ask(b"PUB t\n" + sized(b"m")) == (0, b"OK")
            log = listener.engine.log("t")
            assert log is not None
            await until(lambda: sorted(log.cursors) == ["a", "b"] and not log.delivery_paused)
            for channel in (b"a", b"b"):
                reader = await Client.dial(listener)
                assert await reader.ask(b"SUB t %b\n" % channel) == (0, b"OK")
                reader.writer.write(b"RDY 1\n")
                assert (await reader.frame())[1].endswith(b"m")
                reader.writer.close()
            client.writer.close()


@on_uvloop
async def test_no_message_is_missed_by_a_channel_that_is_made_late(tmp_path: Path) -> None:
    """A consumer makes the topic and reads at once; the answer about channels comes later."""
    asked, answer = asyncio.Event(), asyncio.Event()

    async def slow(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.set()
        await answer.wait()
        body = b'{"channels":["late"]}'
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
        await writer.drain()
        writer.close()

    async with opened(tmp_path) as listener, lookup() as one, fake(slow) as http:
        one.ports["http"] = (HERE, int(http.rpartition(":")[2]))
        async with telling(listener, address(one)) as peers:
            await until(lambda: all(link.connected.is_set() for link in peers.links.values()))
            early = await Client.dial(listener)
            assert await early.ask(b"SUB t early\n") == (0, b"OK")
            early.writer.write(b"RDY 1\n")
            writer = await Client.dial(listener)
            assert await writer.ask(b"PUB t\n" + sized(b"first")) == (0, b"OK")
            await asyncio.wait_for(asked.wait(), WAIT_S)
            log = listener.engine.log("t")
            assert log is not None
            assert log.delivery_paused
            answer.set()
            assert (await early.frame())[1].endswith(b"first")
            late = await Client.dial(listener)
            assert await late.ask(b"SUB t late\n") == (0, b"OK")
            late.writer.write(b"RDY 1\n")
            assert (await late.frame())[1].endswith(b"first")
            for client in (early, late, writer):
                client.writer.close()
