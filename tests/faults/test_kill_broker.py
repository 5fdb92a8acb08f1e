"""kill -9 of a broker under load, again and again: what was promised is kept.

A publisher counts its OKs. A consumer finishes what it gets, and now and then publishes a mark on
the same connection: when the mark is answered, every FIN before it has been taken.
"""

from __future__ import annotations

import asyncio
import json
import random
from typing import TYPE_CHECKING

import pytest
from support.clients.nsq import read_frame

if TYPE_CHECKING:
    from conftest import StartBroker
    from support import Server

pytestmark = pytest.mark.only_ours

ROUNDS = 5
WINDOW = 100
MARK_EVERY = 40
MESSAGE = 2


class Link:
    """One NSQ connection over asyncio streams; a broken one raises."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def open(cls, server: Server) -> Link:
        reader, writer = await asyncio.open_connection(*server.nsq)
        writer.write(b"  V2")
        return cls(reader, writer)

    async def frame(self) -> tuple[int, bytes]:
        """Type and payload; heartbeats are answered and passed over."""
        return await read_frame(self.reader, self.writer.write)

    async def ok(self) -> None:
        kind, payload = await self.frame()
        assert (kind, payload) == (0, b"OK")


def publish(topic: str, body: bytes) -> bytes:
    return b"PUB %s\n%s%s" % (topic.encode(), len(body).to_bytes(4, "big"), body)


async def publish_until_killed(
    server: Server, topic: str, first: int, acked: set[int], enough: tuple[int, asyncio.Event]
) -> int:
    """Numbered messages, a window of them on the way; returns the number behind the last sent.

    The event of `enough` is set when that many more have been answered.
    """
    link = await Link.open(server)
    sent = answered = first
    try:
        while True:
            while sent - answered < WINDOW:
                link.writer.write(publish(topic, b"%d" % sent))
                sent += 1
            await link.ok()
            acked.add(answered)
            answered += 1
            if answered - first == enough[0]:
                enough[1].set()
    except (OSError, asyncio.IncompleteReadError):
        return sent


async def consume_until_killed(server: Server, topic: str, seen: set[int], done: set[int]) -> None:
    """Finish everything; `done` are those whose FIN is known to have been taken."""
    link = await Link.open(server)
    link.writer.write(b"SUB %s ch\nRDY 50\n" % topic.encode())
    finished: list[int] = []
    marks: list[int] = []  # how many were finished when each mark was sent
    try:
        await link.ok()
        while True:
            kind, payload = await link.frame()
            if kind != MESSAGE:
                assert payload == b"OK"
                done.update(finished[: marks.pop(0)])
                continue
            number = int(payload[26:])
            assert number not in done, "a message came back whose FIN was taken"
            seen.add(number)
            link.writer.write(b"FIN %s\n" % payload[10:26])
            finished.append(number)
            if len(finished) % MARK_EVERY == 0:
                link.writer.write(publish(f"{topic}.marks", b"."))
                marks.append(len(finished))
    except (OSError, asyncio.IncompleteReadError):
        return


async def drain(server: Server, topic: str, seen: set[int], done: set[int]) -> None:
    """Take what is left, until nothing waits and nothing is in flight."""
    link = await Link.open(server)
    link.writer.write(b"SUB %s ch\nRDY 100\n" % topic.encode())
    await link.ok()
    while True:
        frame = asyncio.create_task(link.frame())
        while not (await asyncio.wait({frame}, timeout=0.2))[0]:
            if await left(server, topic) == 0:
                frame.cancel()
                return
        _, payload = frame.result()
        number = int(payload[26:])
        assert number not in done, "a message came back whose FIN was taken"
        seen.add(number)
        link.writer.write(b"FIN %s\n" % payload[10:26])


async def left(server: Server, topic: str) -> int:
    """Messages the channel still has, wherever they are."""
    reader, writer = await asyncio.open_connection(*server.nsq_http)
    writer.write(b"GET /stats?format=json&topic=%s HTTP/1.0\r\n\r\n" % topic.encode())
    page = json.loads((await reader.read()).partition(b"\r\n\r\n")[2])
    writer.close()
    (channel,) = page["topics"][0]["channels"]
    return int(channel["depth"] + channel["in_flight_count"] + channel["deferred_count"])


@pytest.mark.parametrize("sync", ["1s", "always"])
async def test_what_was_promised_survives(start_broker: StartBroker, uniq: str, sync: str) -> None:
    rng = random.Random(7)
    server = start_broker({"storage": {"sync": sync, "segment_size": "256KiB"}})
    acked: set[int] = set()
    seen: set[int] = set()
    done: set[int] = set()
    sent = 0
    for _ in range(ROUNDS):
        enough = asyncio.Event()
        publisher = asyncio.create_task(
            publish_until_killed(server, uniq, sent, acked, (rng.randrange(50, 3000), enough))
        )
        consumer = asyncio.create_task(consume_until_killed(server, uniq, seen, done))
        await enough.wait()
        server.kill()
        sent = await publisher
        await consumer
        server.start()
    await drain(server, uniq, seen, done)
    assert acked <= seen, f"lost {len(acked - seen)} of {len(acked)}"
    assert seen <= set(range(sent))
    assert done, "no FIN was ever confirmed: the test shows nothing"
    assert server.stop() == 0


async def test_delays_and_attempts_survive(start_broker: StartBroker, uniq: str) -> None:
    server = start_broker()
    link = await Link.open(server)
    link.writer.write(b"SUB %s ch\nRDY 1\n" % uniq.encode() + publish(uniq, b"again"))
    await link.ok()
    answers = [await link.frame() for _ in range(2)]  # the OK and the message, in some order
    message = next(payload for kind, payload in answers if kind == MESSAGE)
    assert message[8:10] == b"\x00\x01"
    link.writer.write(b"REQ %s 0\n" % message[10:26])
    _, message = await link.frame()
    assert message[8:10] == b"\x00\x02"
    link.writer.write(b"REQ %s 0\n" % message[10:26])
    _, message = await link.frame()
    assert message[8:10] == b"\x00\x03"
    link.writer.write(b"DPUB %s 3600000\n\x00\x00\x00\x05later" % uniq.encode())
    await link.ok()
    server.kill()
    server.start()
    link = await Link.open(server)
    link.writer.write(b"SUB %s ch\nRDY 5\n" % uniq.encode())
    await link.ok()
    _, message = await link.frame()
    assert message[26:] == b"again"
    assert message[8:10] == b"\x00\x04"
    link.writer.write(b"FIN %s\n" % message[10:26] + publish(f"{uniq}.mark", b"."))
    await link.ok()
    assert await left(server, uniq) == 1  # the delayed one, still delayed


async def test_a_clean_stop_answers_what_it_took(start_broker: StartBroker, uniq: str) -> None:
    server = start_broker()
    link = await Link.open(server)
    count = 500
    for number in range(count):
        link.writer.write(publish(uniq, b"%d" % number))
    await link.ok()
    stopping = asyncio.create_task(asyncio.to_thread(server.stop))
    answered = 1
    try:
        while True:
            await link.ok()
            answered += 1
    except (OSError, asyncio.IncompleteReadError):
        pass
    assert await stopping == 0
    server.start()
    link = await Link.open(server)
    link.writer.write(b"SUB %s ch\nRDY 100\n" % uniq.encode())
    await link.ok()
    got = set()
    while len(got) < answered:
        _, payload = await link.frame()
        got.add(int(payload[26:]))
        link.writer.write(b"FIN %s\n" % payload[10:26])
    assert set(range(answered)) <= got
