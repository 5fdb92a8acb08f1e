"""The door with real sockets and files: acknowledgements, failed writes, drain, HTTP."""

from __future__ import annotations

import asyncio
import errno
import functools
import os
import struct
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import uvloop
from aiohttp import web
from fakes_nsq import ERROR, OK, Frame, mpub, pub, shown, sized

from broker.config import Config, NsqConfig
from broker.core import vfs
from broker.core.engine import Engine
from broker.core.router import Router
from broker.net.listener import Runtime
from broker.protocols.nsq.api import NsqApi
from broker.protocols.nsq.door import NsqDoor
from broker.server import engine_limits

DEADLINE_S = 20
CALL_OPEN, CALL_WRITE = 0, 1


def on_uvloop(
    test: Callable[[Path], Coroutine[None, None, None]],
) -> Callable[[Path], None]:
    """Run an async test on the loop that the broker runs on."""

    @functools.wraps(test)
    def run(tmp_path: Path) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(asyncio.wait_for(test(tmp_path), DEADLINE_S))

    return run


@pytest.fixture(autouse=True)
def healed() -> AsyncIterator[None]:
    yield  # type: ignore[misc]
    vfs.heal()


class Client:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def dial(cls, door: NsqDoor) -> Client:
        client = cls(*await asyncio.open_connection(*door.address))
        client.writer.write(b"  V2")
        return client

    async def frame(self) -> Frame:
        size, kind = struct.unpack(">ii", await self.reader.readexactly(8))
        return kind, await self.reader.readexactly(size - 4)

    async def ask(self, data: bytes) -> Frame:
        self.writer.write(data)
        return await self.frame()


@asynccontextmanager
async def opened(
    folder: Path, sync: str = "none", settings: dict[str, Any] | None = None
) -> AsyncIterator[NsqDoor]:
    """A door on a folder of logs."""
    runtime = Runtime()
    knobs = {**engine_limits(Config()), "retry_ns": 0}
    engine = Engine(
        runtime.turn, Router(), str(folder), knobs, lambda _name: sync, lambda *_a, **_k: None
    )
    engine.open(runtime.loop)
    config = replace(NsqConfig(), listen=("127.0.0.1", 0), **(settings or {}))
    door = NsqDoor(config, runtime, engine)
    await door.open()
    try:
        yield door
    finally:
        await door.drain()
        await engine.close()


def segment_bytes(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(folder.rglob("*.seg")))


@on_uvloop
async def test_ok_means_that_the_record_is_in_the_file(tmp_path: Path) -> None:
    for sync in ("none", "always"):
        async with opened(tmp_path / sync, sync) as door:
            client = await Client.dial(door)
            assert await client.ask(pub(b"t", b"a body to look for")) == OK
            assert b"a body to look for" in segment_bytes(tmp_path / sync)
            assert await client.ask(mpub(b"t", b"one of two", b"two of two")) == OK
            assert b"two of two" in segment_bytes(tmp_path / sync)


@on_uvloop
async def test_messages_outlive_the_process(tmp_path: Path) -> None:
    async with opened(tmp_path) as door:
        client = await Client.dial(door)
        assert await client.ask(b"SUB t c\n") == OK
        assert await client.ask(mpub(b"t", b"a", b"b")) == OK
        assert shown(await client.ask(b"RDY 1\n"))[2] == b"a"
        assert shown(await client.ask(b"FIN 0000000000000001\n"))[2] == b"b"
    async with opened(tmp_path) as door:
        client = await Client.dial(door)
        assert await client.ask(b"SUB t c\n") == OK
        assert shown(await client.ask(b"RDY 5\n")) == (2, 2, b"b")


@on_uvloop
async def test_a_failed_write_fails_the_publish(tmp_path: Path) -> None:
    async with opened(tmp_path) as door:
        before = await Client.dial(door)
        assert await before.ask(pub(b"t", b"good")) == OK
        client = await Client.dial(door)
        vfs.fail(CALL_WRITE, errno.ENOSPC)
        kind, text = await client.ask(pub(b"t", b"lost") * 3)
        reason = os.strerror(errno.ENOSPC).encode()
        assert (kind, text) == (ERROR, b"E_PUB_FAILED PUB failed " + reason)
        assert await client.reader.read() == b""
        assert await before.ask(mpub(b"t", b"after", b"wards")) == OK
        assert await before.ask(b"SUB t c\n") == OK
        assert shown(await before.ask(b"RDY 9\n"))[2] == b"good"
        assert [shown(await before.frame())[2] for _ in range(2)] == [b"after", b"wards"]


@on_uvloop
async def test_a_topic_that_cannot_be_made(tmp_path: Path) -> None:
    async with opened(tmp_path) as door:
        client = await Client.dial(door)
        vfs.fail(CALL_OPEN, errno.EMFILE)
        kind, text = await client.ask(pub(b"t", b"a"))
        assert kind == ERROR
        assert text.startswith(b"E_PUB_FAILED PUB failed ")
        other = await Client.dial(door)
        assert await other.ask(pub(b"t", b"a")) == OK


@on_uvloop
async def test_drain_answers_first(tmp_path: Path) -> None:
    async with opened(tmp_path, "always") as door:
        client = await Client.dial(door)
        client.writer.write(pub(b"t", b"x" * 1000) * 500)
        assert await client.frame() == OK
        await door.drain()
        rest = await client.reader.read()
        oks, left = divmod(len(rest), 10)
        assert left == 0
        assert oks + 1 == door.engine.log("t").message_count
        assert (door.connections, door.total_connections) == (0, 1)


@on_uvloop
async def test_a_half_closed_client_gets_its_answers(tmp_path: Path) -> None:
    async with opened(tmp_path, "always") as door:
        client = await Client.dial(door)
        client.writer.write(pub(b"t", b"x") * 50)
        client.writer.write_eof()
        assert len(await client.reader.read()) == 500


@on_uvloop
async def test_many_publishers_and_consumers_lose_nothing(tmp_path: Path) -> None:
    async with opened(tmp_path) as door:

        async def publish(number: int) -> None:
            client = await Client.dial(door)
            for start in range(0, 1000, 50):
                client.writer.write(
                    b"".join(pub(b"t", b"%d.%d" % (number, start + i)) for i in range(50))
                )
                for _ in range(50):
                    assert await client.frame() == OK

        async def consume(seen: set[bytes], done: asyncio.Event) -> None:
            client = await Client.dial(door)
            assert await client.ask(b"SUB t c\n") == OK
            client.writer.write(b"RDY 100\n")
            while True:
                kind, payload = await client.frame()
                assert kind == 2
                assert payload[26:] not in seen
                seen.add(payload[26:])
                client.writer.write(b"FIN %s\n" % payload[10:26])
                if len(seen) == 3000:
                    done.set()

        seen: set[bytes] = set()
        done = asyncio.Event()
        consumers = [asyncio.create_task(consume(seen, done)) for _ in range(3)]
        await asyncio.gather(*map(publish, range(3)))
        finished = asyncio.create_task(done.wait())
        await asyncio.wait([finished, *consumers], return_when=asyncio.FIRST_COMPLETED)
        assert len(seen) == 3000
        for task in consumers:
            task.cancel()


# --- HTTP


@asynccontextmanager
async def browser(door: NsqDoor, health: str | None = None) -> AsyncIterator[aiohttp.ClientSession]:
    api = NsqApi(door, lambda: health)
    runner = web.AppRunner(api.app(), access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    api.http_port = runner.addresses[0][1]
    try:
        async with aiohttp.ClientSession(f"http://127.0.0.1:{api.http_port}") as session:
            yield session
    finally:
        await runner.cleanup()


BINARY = struct.pack(">i", 2) + sized(b"a") + sized(b"b")
# method, path, body, status, answer: text, or the code of an error
REQUESTS: list[tuple[str, str, bytes, int, str]] = [
    ("GET", "/ping", b"", 200, "OK"),
    ("POST", "/ping", b"", 405, "METHOD_NOT_ALLOWED"),
    ("GET", "/none", b"", 404, "NOT_FOUND"),
    ("GET", "/pub/", b"", 404, "NOT_FOUND"),
    ("POST", "/pub?topic=t", b"x", 200, "OK"),
    ("POST", "/pub?topic=t&topic=*", b"x", 200, "OK"),
    ("POST", "/pub?topic=t&defer=%2B5", b"x", 200, "OK"),
    ("POST", "/pub?topic=t", b"", 400, "MSG_EMPTY"),
    ("POST", "/pub?x=%zz", b"", 400, "MSG_EMPTY"),
    ("POST", "/pub?topic=t&x=%zz", b"x", 400, "INVALID_REQUEST"),
    ("POST", "/pub?a;b", b"x", 400, "INVALID_REQUEST"),
    ("POST", "/pub", b"x", 400, "MISSING_ARG_TOPIC"),
    ("POST", "/pub?topic=", b"x", 400, "INVALID_TOPIC"),
    ("POST", "/pub?topic=t%0a", b"x", 400, "INVALID_TOPIC"),
    ("POST", "/pub?topic=bad_defer&defer=-1", b"x", 400, "INVALID_DEFER"),
    ("POST", "/pub?topic=t&defer=1.5", b"x", 400, "INVALID_DEFER"),
    ("POST", "/pub?topic=t&defer=3600001", b"x", 400, "INVALID_DEFER"),
    ("POST", "/pub?topic=t&defer=9223372036854775808", b"x", 400, "INVALID_DEFER"),
    ("POST", "/pub", b"x" * 101, 413, "MSG_TOO_BIG"),
    ("POST", "/pub?topic=t", b"x" * 100, 200, "OK"),
    ("POST", "/mpub?topic=m", b"a\n\nb\r\nc", 200, "OK"),
    ("POST", "/mpub?topic=m", b"", 200, "OK"),
    ("POST", "/mpub?topic=m", b"x" * 101 + b"\n", 413, "MSG_TOO_BIG"),
    ("POST", "/mpub", b"x" * 201, 413, "BODY_TOO_BIG"),
    ("POST", "/mpub?topic=m&binary=true", BINARY + b"junk", 200, "OK"),
    ("POST", "/mpub?topic=m&binary=", BINARY, 200, "OK"),
    ("POST", "/mpub?topic=m&binary=0", b"text", 200, "OK"),
    ("POST", "/mpub?topic=m&binary=1", b"", 413, "BAD_BODY"),
    ("POST", "/mpub?topic=m&binary=1", b"\0\0\0\0", 413, "BAD_BODY"),
    ("POST", "/mpub?topic=m&binary=1", b"\0\0\0\x28", 413, "BAD_BODY"),
    ("POST", "/mpub?topic=m&binary=1", BINARY[:-1], 413, "BAD_MESSAGE"),
    ("POST", "/mpub?topic=m&binary=1", b"\0\0\0\1\xff\xff\xff\xff", 413, "BAD_MESSAGE"),
    ("POST", "/topic/create?topic=n", b"", 200, ""),
    ("POST", "/topic/create", b"", 400, "MISSING_ARG_TOPIC"),
    ("POST", "/topic/create?topic=*", b"", 400, "INVALID_TOPIC"),
    ("POST", "/topic/empty?topic=*", b"", 400, "INVALID_TOPIC"),
    ("POST", "/topic/pause?topic=*", b"", 404, "TOPIC_NOT_FOUND"),
    ("POST", "/topic/delete?topic=none", b"", 404, "TOPIC_NOT_FOUND"),
    ("POST", "/channel/create?topic=none&channel=c", b"", 404, "TOPIC_NOT_FOUND"),
    ("POST", "/channel/create?topic=*&channel=c", b"", 400, "INVALID_ARG_TOPIC"),
    ("POST", "/channel/create?topic=n", b"", 400, "MISSING_ARG_CHANNEL"),
    ("POST", "/channel/create?topic=n&channel=*", b"", 400, "INVALID_ARG_CHANNEL"),
    ("POST", "/channel/empty?topic=n&channel=c", b"", 404, "CHANNEL_NOT_FOUND"),
    ("POST", "/channel/create?topic=n&channel=c", b"", 200, ""),
    ("POST", "/channel/pause?topic=n&channel=c", b"", 200, ""),
    ("POST", "/channel/unpause?topic=n&channel=c", b"", 200, ""),
    ("POST", "/channel/empty?topic=n&channel=c", b"", 200, ""),
    ("POST", "/topic/pause?topic=n", b"", 200, ""),
    ("POST", "/topic/unpause?topic=n", b"", 200, ""),
    ("POST", "/topic/empty?topic=n", b"", 200, ""),
    ("POST", "/channel/delete?topic=n&channel=c", b"", 200, ""),
    ("POST", "/topic/delete?topic=n", b"", 200, ""),
]


@on_uvloop
async def test_http_requests(tmp_path: Path) -> None:
    limits = {"max_msg_size": 100, "max_body_size": 200}
    async with opened(tmp_path, settings=limits) as door, browser(door) as http:
        from yarl import URL

        for method, path, body, status, answer in REQUESTS:
            url = URL(path, encoded=True)
            async with http.request(method, url, data=body, allow_redirects=False) as reply:
                text = await reply.text()
                assert (path, reply.status) == (path, status)
                assert text == (answer if status == 200 else f'{{"message":"{answer}"}}')
                plain = path == "/ping" and status == 200
                assert ("X-Nsq-Content-Type" in reply.headers) is not plain
                assert "Server" not in reply.headers
                assert ("Content-Type" in reply.headers) is bool(text)
        logs = door.engine.logs
        assert (logs["t"].message_count, logs["m"].message_count) == (4, 8)
        assert logs["bad_defer"].message_count == 0
        assert sorted(logs) == ["bad_defer", "m", "t"]


@on_uvloop
async def test_http_redirects_and_options(tmp_path: Path) -> None:
    async with opened(tmp_path) as door, browser(door) as http:
        for method, path, status, location in (
            ("GET", "/info/?a=b", 301, "/info?a=b"),
            ("GET", "/STATS", 301, "/stats"),
            ("POST", "/Pub/?topic=t", 307, "/pub?topic=t"),
        ):
            async with http.request(method, path, allow_redirects=False) as reply:
                assert (reply.status, reply.headers["Location"]) == (status, location)
        async with http.options("/pub") as reply:
            assert (reply.status, reply.headers["Allow"]) == (200, "OPTIONS, POST")
        async with http.head("/ping") as reply:
            assert (reply.status, reply.headers["Allow"]) == (405, "GET, OPTIONS")


@on_uvloop
async def test_http_health(tmp_path: Path) -> None:
    async with opened(tmp_path) as door, browser(door, "no space") as http:
        async with http.get("/ping") as reply:
            assert (reply.status, await reply.text()) == (500, "NOK - no space")
        async with http.get("/stats?format=json") as reply:
            assert (await reply.json())["health"] == "NOK - no space"


@on_uvloop
async def test_http_failed_write(tmp_path: Path) -> None:
    async with opened(tmp_path) as door, browser(door) as http:
        vfs.fail(CALL_WRITE, errno.EIO, after=1)
        async with http.post("/pub?topic=t", data=b"x") as reply:
            assert (reply.status, await reply.json()) == (503, {"message": "EXITING"})
        async with http.post("/pub?topic=t", data=b"x") as reply:
            assert reply.status == 200


@on_uvloop
async def test_stats(tmp_path: Path) -> None:
    async with opened(tmp_path) as door, browser(door) as http:
        publisher, consumer = await Client.dial(door), await Client.dial(door)
        assert await publisher.ask(pub(b"t", b"abc")) == OK
        assert await publisher.ask(pub(b"u", b"d")) == OK
        who = b'{"client_id":"me","hostname":"here","user_agent":"test/1"}'
        assert await consumer.ask(b"IDENTIFY\n" + sized(who)) == OK
        assert await consumer.ask(b"SUB t c\n") == OK
        assert shown(await consumer.ask(b"RDY 3\n")) == (1, 1, b"abc")
        async with http.get("/stats?format=json") as reply:
            page = await reply.json()
        assert list(page) == ["version", "health", "start_time", "topics", "memory", "producers"]
        assert len(page["memory"]) == 9
        topic, other = page["topics"]
        assert (topic["topic_name"], topic["depth"], topic["message_count"]) == ("t", 0, 1)
        assert (topic["message_bytes"], other["depth"], other["channels"]) == (3, 1, [])
        (channel,) = topic["channels"]
        assert (channel["in_flight_count"], channel["depth"]) == (1, 0)
        (client,) = channel["clients"]
        assert client["remote_address"].startswith("127.0.0.1:")
        expected = {"client_id": "me", "hostname": "here", "user_agent": "test/1", "state": 3}
        assert {**client, **expected, "ready_count": 3} == client
        (producer,) = page["producers"]
        assert producer["pub_counts"] == [{"topic": "t", "count": 1}]
        for query, topics in (
            ("topic=none", None),
            ("topic=t&channel=none", []),
            ("channel=c", ["t"]),
            ("topic=u", ["u"]),
        ):
            async with http.get(f"/stats?format=json&include_mem=0&{query}") as reply:
                page = await reply.json()
            assert "memory" not in page
            assert topics == (page["topics"] and [t["topic_name"] for t in page["topics"]])
        async with http.get("/stats?format=json&include_clients=false") as reply:
            page = await reply.json()
        assert page["producers"] is None
        assert page["topics"][0]["channels"][0]["clients"] is None
        async with http.get("/stats?include_mem=false") as reply:
            lines = (await reply.text()).split("\n")
        port = client["remote_address"].rpartition(":")[2]
        name = f"here:{port} test/1"
        assert lines[3:8] == [
            "",
            "Health: OK",
            "",
            "Topics:",
            "   [t              ] depth: 0     be-depth: 0     msgs: 1        e2e%: ",
        ]
        columns = "[c                        ] depth: 0     be-depth: 0     inflt: 1    def: 0"
        assert lines[8].startswith(f"      {columns}")
        assert lines[9].startswith(f"        [V2 {name:<21}] state: 3 inflt: 1    rdy: 3    fin: 0")
        assert lines[13] == "Producers:"
        assert " topics: t=1 connected: " in lines[14]


@on_uvloop
async def test_deleting_cuts_consumers_off(tmp_path: Path) -> None:
    async with opened(tmp_path) as door, browser(door) as http:
        first, second, third = [await Client.dial(door) for _ in range(3)]
        assert await first.ask(b"SUB t c\n") == OK
        assert await second.ask(b"SUB t d\n") == OK
        assert await third.ask(pub(b"t", b"x")) == OK
        async with http.post("/channel/delete?topic=t&channel=c") as reply:
            assert reply.status == 200
        assert await first.reader.read() == b""
        assert list(door.engine.log("t").cursors) == ["d"]
        async with http.post("/topic/delete?topic=t") as reply:
            assert reply.status == 200
        assert await second.reader.read() == b""
        assert await third.ask(pub(b"t", b"y")) == OK
