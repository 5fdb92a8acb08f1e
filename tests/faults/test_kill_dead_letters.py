"""kill -9 while messages become dead letters, and while they go back: none is lost."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

import pytest
from support.clients.http import request

if TYPE_CHECKING:
    from conftest import StartBroker
    from support import Server

pytestmark = pytest.mark.only_ours

ROUNDS = 4
COUNT = 400
MESSAGE = 2
WEEK_MS = 7 * 24 * 3600 * 1000

CONFIG = """
[storage]
sync = "{sync}"
segment_size = "16KiB"
[[storage.topic]]
pattern = "work"
max_attempts = 2
"""


class Link:
    """One NSQ connection; a broken one raises."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def open(cls, server: Server, hello: bytes = b"") -> Link:
        reader, writer = await asyncio.open_connection(*server.nsq)
        writer.write(b"  V2" + hello)
        link = cls(reader, writer)
        if hello:
            assert await link.frame() == (0, b"OK")
        return link

    async def frame(self) -> tuple[int, bytes]:
        size = int.from_bytes(await self.reader.readexactly(4), "big")
        payload = await self.reader.readexactly(size)
        return int.from_bytes(payload[:4], "big"), payload[4:]

    async def message(self) -> bytes:
        while True:
            kind, payload = await self.frame()
            if kind == MESSAGE:
                return payload


async def fail_until_killed(server: Server, enough: int, event: asyncio.Event) -> None:
    """A consumer that gives everything back."""
    try:
        link = await Link.open(server, b"SUB work ch\nRDY 20\n")
        while True:
            message = await link.message()
            assert message[8:10] in {b"\0\1", b"\0\2"}, "delivered more often than allowed"
            link.writer.write(b"REQ %s 0\n" % message[10:26])
            enough -= 1
            if enough == 0:
                event.set()
    except (OSError, asyncio.IncompleteReadError):
        return
    finally:
        event.set()


async def take_all(server: Server, topic: str, channel: str, wanted: set[int]) -> dict[int, bytes]:
    """Finish what comes until all that is wanted has come; body -> its last frame."""
    link = await Link.open(server, f"SUB {topic} {channel}\nRDY 50\n".encode())
    found: dict[int, bytes] = {}
    while not wanted <= set(found):
        message = await asyncio.wait_for(link.message(), 20)
        found[int(message[26:])] = message
        link.writer.write(b"FIN %s\n" % message[10:26])
    link.writer.close()
    return found


def post(server: Server, path: str, **query: object) -> bytes:
    answer = request(server.nsq_http, "POST", path, **query)
    assert answer.status == 200, answer.body
    return answer.body


@pytest.mark.parametrize("sync", ["1s", "always"])
async def test_there_and_back(start_broker: StartBroker, sync: str) -> None:
    rng = random.Random(11)
    server = start_broker(CONFIG.format(sync=sync))
    post(server, "/topic/create", topic="work")
    post(server, "/channel/create", topic="work", channel="ch")
    post(server, "/channel/create", topic="work", channel="other")
    lines = b"\n".join(b"%d" % number for number in range(COUNT))
    assert request(server.nsq_http, "POST", "/mpub", lines, topic="work").status == 200
    wanted = set(range(COUNT))
    for _ in range(ROUNDS):
        event = asyncio.Event()
        failing = asyncio.create_task(fail_until_killed(server, rng.randrange(30, 150), event))
        await event.wait()
        server.kill()
        await failing
        server.start()
    failing = asyncio.create_task(fail_until_killed(server, COUNT * 2, asyncio.Event()))
    assert set(await take_all(server, "work.dead", "look", wanted)) == wanted
    failing.cancel()
    assert set(await take_all(server, "work", "other", wanted)) == wanted
    server.stop()


async def test_killed_on_the_way_back(start_broker: StartBroker) -> None:
    server = start_broker(CONFIG.format(sync="1s"))
    post(server, "/topic/create", topic="work")
    post(server, "/channel/create", topic="work", channel="ch")
    post(server, "/channel/create", topic="work", channel="other")
    lines = b"\n".join(b"%d" % number for number in range(COUNT))
    assert request(server.nsq_http, "POST", "/mpub", lines, topic="work").status == 200
    wanted = set(range(COUNT))
    assert set(await take_all(server, "work", "other", wanted)) == wanted
    failing = asyncio.create_task(fail_until_killed(server, COUNT * 2, asyncio.Event()))
    link = await Link.open(server, b"SUB work.dead requeue\nRDY 1\n")
    await link.message()  # there is one
    link.writer.close()
    failing.cancel()
    back = asyncio.create_task(
        asyncio.to_thread(
            request, server.nsq_http, "POST", "/v1/deadletters/requeue", topic="work.dead"
        )
    )
    consumer = await Link.open(server, b"SUB work ch\nRDY 50\n")
    await consumer.message()
    server.kill()
    await asyncio.gather(back, return_exceptions=True)
    server.start()
    post(server, "/v1/deadletters/requeue", topic="work.dead")
    assert set(await take_all(server, "work", "ch", wanted)) == wanted
    page = request(server.nsq_http, "GET", "/stats", format="json", topic="work").json
    depths = {c["channel_name"]: c["depth"] for c in page["topics"][0]["channels"]}
    assert depths["other"] == 0
    server.stop()


async def test_a_delay_of_a_week(start_broker: StartBroker) -> None:
    """Its segment is kept when all around it is done, and so is its due time."""
    server = start_broker('[nsq]\nmax_defer = "7d"\n[storage]\nsegment_size = "4KiB"\n')
    post(server, "/topic/create", topic="work")
    post(server, "/channel/create", topic="work", channel="ch")
    link = await Link.open(server)
    link.writer.write(b"DPUB work %d\n\0\0\0\4week" % WEEK_MS)
    link.writer.write(b"DPUB work %d\n\0\0\0\3now" % 1)
    assert [await link.frame() for _ in range(2)] == [(0, b"OK")] * 2
    lines = b"\n".join(b"%04d" % number for number in range(COUNT))
    assert request(server.nsq_http, "POST", "/mpub", lines, topic="work").status == 200
    consumer = await Link.open(server, b"SUB work ch\nRDY 50\n")
    for _ in range(COUNT + 1):
        message = await consumer.message()
        assert message[26:] != b"week"
        consumer.writer.write(b"FIN %s\n" % message[10:26])
    consumer.writer.write(b"PUB mark\n\0\0\0\1x")
    assert await consumer.frame() == (0, b"OK")
    for _ in range(2):
        server.kill()
        server.start()
        page = request(server.nsq_http, "GET", "/stats", format="json", topic="work").json
        (channel,) = page["topics"][0]["channels"]
        assert (channel["deferred_count"], channel["depth"]) == (1, 0)
    server.stop()
