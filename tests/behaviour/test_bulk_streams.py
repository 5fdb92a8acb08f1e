"""Streams of JetStream in the bulk API: read like topics, without what was deleted."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nats
import pytest
from nats.aio.client import Client
from nats.js.client import JetStreamContext
from support import Server
from support.clients.bulk import DAMAGED, BulkClient, Frame
from support.clients.http import request

if TYPE_CHECKING:
    from conftest import StartBroker

pytestmark = pytest.mark.only_ours

SMALL = {"storage": {"segment_size": "64KiB"}}
NAME = "js.$G/S"
Connect = Callable[[Server], Awaitable[JetStreamContext]]


@pytest.fixture
async def connect() -> AsyncIterator[Connect]:
    """JetStream of a broker."""
    clients: list[Client] = []

    async def open_one(server: Server) -> JetStreamContext:
        clients.append(await nats.connect(server.nats_url, connect_timeout=5))
        return clients[-1].jetstream(timeout=20)

    yield open_one
    for client in clients:
        await client.close()


async def fill(js: JetStreamContext, count: int, size: int = 0, **config: Any) -> None:
    """Messages 1 .. count of a stream, whose bodies are their numbers."""
    await js.add_stream(name="S", subjects=["s.*"], **config)
    for number in range(1, count + 1):
        await js.publish(f"s.{number % 10}", b"%d" % number + bytes(size))


def read(server: Server, name: str = NAME, start: int = 1, **query: Any) -> list[Frame]:
    with BulkClient(server.bulk) as bulk:
        return bulk.all_of(name, start, bulk.topic(name)["next"], **query)


def seqs(frames: list[Frame]) -> list[int]:
    return [record.seq for frame in frames for record in frame.records]


@pytest.mark.parametrize("storage", ["file", "memory"])
async def test_what_is_deleted_is_left_out(
    start_broker: StartBroker, connect: Connect, storage: str
) -> None:
    server = start_broker(SMALL)
    js = await connect(server)
    await fill(js, 600, size=300, storage=storage)
    gone = {n for n in range(1, 601) if n % 3 == 0 or n % 10 == 7}
    await js.purge_stream("S", subject="s.7")
    for number in range(3, 601, 3):
        if number % 10 != 7:
            await js.delete_msg("S", number)
    with BulkClient(server.bulk) as bulk:
        page = bulk.topic(NAME)
    assert (page["first"], page["next"], page["messages"]) == (1, 601, 600 - len(gone))
    for query in ({}, {"max_bytes": 5_000}, {"max_bytes": 1}):
        frames = read(server, **query)
        assert seqs(frames) == [n for n in range(1, 601) if n not in gone]
        assert [f.gaps for f in frames if f.gaps] == []
        for record in (record for frame in frames for record in frame.records):
            assert record.subject == b"s.%d" % (record.seq % 10)
            assert record.body == b"%d" % record.seq + bytes(300)
    # nothing of what was deleted is sent, although it may still be in the file
    with BulkClient(server.bulk) as bulk:
        answer = bulk.ask("GET", f"range/{NAME.replace('/', '%2F')}", start=1, max_bytes=1 << 20)
    assert b"s.1" in answer.body
    assert b"s.7" not in answer.body
    if storage == "file":
        server.kill()
        server.start()
        assert seqs(read(server)) == [n for n in range(1, 601) if n not in gone]


async def test_a_deleted_beginning_is_no_loss(start_broker: StartBroker, connect: Connect) -> None:
    """Of a bucket the oldest messages go all the time."""
    server = start_broker()
    js = await connect(server)
    bucket = await js.create_key_value(bucket="b", history=2)
    for number in range(60):
        await bucket.put(f"k{number % 5}", b"%d" % number)
    frames = read(server, "js.$G/KV_b")
    assert seqs(frames) == list(range(51, 61))
    assert [record.subject for record in frames[0].records[:2]] == [b"$KV.b.k0", b"$KV.b.k1"]
    await js.purge_stream("KV_b")
    (frame,) = read(server, "js.$G/KV_b", start=51)
    assert (frame.records, frame.gaps, frame.next) == ([], [], 61)


async def test_a_stream_with_very_many_messages(
    start_broker: StartBroker, connect: Connect
) -> None:
    server = start_broker()
    js = await connect(server)
    await js.add_stream(name="S", subjects=["s"])
    client, count = js._nc, 70_000
    for _ in range(count - 1):
        await client.publish("s", b"x")
    await js.publish("s", b"last")
    frames = read(server, max_bytes=64 << 20)
    assert len(frames) == 3
    assert seqs(frames) == list(range(1, count + 1))


async def test_a_subject_that_is_the_name_of_the_stream(
    start_broker: StartBroker, connect: Connect
) -> None:
    pytest.importorskip("pyarrow")
    from broker.client.bulk.reading import read_arrow

    server = start_broker()
    js = await connect(server)
    await js.add_stream(name="S", subjects=["S"])
    await js.publish("S", b"x")
    table = await asyncio.to_thread(read_arrow, str(server.bulk), NAME)
    assert table["subject"].to_pylist() == ["S"]
    assert table["topic"].to_pylist() == [NAME]


async def test_places_by_time(start_broker: StartBroker, connect: Connect) -> None:
    server = start_broker()
    js = await connect(server)
    await fill(js, 20)
    times = {r.seq: r.timestamp_ns for frame in read(server) for r in frame.records}
    await js.delete_msg("S", 10)
    with BulkClient(server.bulk) as bulk:
        body = {"topics": {NAME: {"time_ns": times[11]}}}
        assert bulk.ask("POST", "offsets", body).json["topics"][NAME]["seq"] == 11
    assert seqs(read(server, start=10)) == list(range(11, 21))


async def test_a_reader_holds_nothing(start_broker: StartBroker, connect: Connect) -> None:
    server = start_broker()
    js = await connect(server)
    await fill(js, 20)
    with BulkClient(server.bulk) as bulk:
        place = {NAME: {"seq": 5, "incarnation": bulk.topic(NAME)["incarnation"]}}
        page = bulk.ask("PUT", "readers/r", {"hold": True, "positions": place}).json
        assert page["positions"][NAME] == {**place[NAME], "state": "stream", "lag": 16}
        await js.delete_msg("S", 10)
        await js.purge_stream("S", seq=8)
        (page,) = bulk.ask("GET", "readers", name="r").json["readers"]
        assert page["positions"][NAME]["lag"] == 12


async def test_streams_are_not_written_to(start_broker: StartBroker, connect: Connect) -> None:
    """A record that no stream knows would take the place of a message."""
    server = start_broker()
    js = await connect(server)
    await fill(js, 2)
    with BulkClient(server.bulk) as bulk:
        for name in ("js.$G%2FS", "js.$G%2FNEW", "a%2Fb"):
            answer = bulk.ask("POST", f"append/{name}", b"block")
            assert answer.status == 400, answer.body
            assert b"invalid name of a topic" in answer.body
    await js.publish("s.3", b"3")
    assert seqs(read(server)) == [1, 2, 3]


async def test_what_is_written_to_a_topic_is_stored(
    start_broker: StartBroker, connect: Connect
) -> None:
    """At once or by a commit, if the topic is a subject of the stream."""
    pa = pytest.importorskip("pyarrow")
    from broker.client.bulk import Connection
    from broker.client.bulk.encode import blocks

    server = start_broker()
    js = await connect(server)
    await js.add_stream(name="S", subjects=["s.*"])
    ((_, block),) = blocks(pa.record_batch({"value": [b"1", b"2"]}), topic="s.1")

    def write() -> None:
        with Connection(str(server.bulk)) as bulk:
            bulk.append("s.1", block)
            bulk.stage("writer", 1, "s.1", 0, "attempt", block, 0)
            bulk.commit("writer", 1, {"s.1": [(0, "attempt", len(block))]})

    await asyncio.to_thread(write)
    async with asyncio.timeout(20):
        bodies = [(await js.get_msg("S", seq)).data for seq in await stored(js, 4)]
    assert bodies == [b"1", b"2", b"1", b"2"]


async def stored(js: JetStreamContext, count: int) -> range:
    """The seqs of a stream, as soon as there are so many."""
    while (await js.stream_info("S")).state.messages < count:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    return range(1, count + 1)


async def test_a_stream_that_is_created_again(start_broker: StartBroker, connect: Connect) -> None:
    server = start_broker()
    js = await connect(server)
    await fill(js, 2)
    with BulkClient(server.bulk) as bulk:
        before = bulk.topic(NAME)["incarnation"]
        await js.delete_stream("S")
        assert bulk.ask("GET", "topics", subscribe=NAME).json["topics"] == []
        await fill(js, 1)
        answer = bulk.ask("GET", "range/js.$G%2FS", start=1, inc=before)
        assert answer.status == 409
        assert answer.json["incarnation"] != before


def segments(server: Server) -> list[Path]:
    return sorted((server.data / "logs").glob("js.*S/*.seg"))


async def test_a_damaged_message(start_broker: StartBroker, connect: Connect) -> None:
    server = start_broker()
    js = await connect(server)
    await fill(js, 30, size=100)
    for number in (14, 16, 17):
        await js.delete_msg("S", number)
    (path,) = segments(server)
    data = path.read_bytes()
    at = data.index(b"15" + bytes(100))
    with path.open("r+b") as file:
        file.seek(at)
        file.write(b"#")
    frames = read(server)
    assert seqs(frames) == [n for n in range(1, 31) if n not in (14, 15, 16, 17)]
    assert [gap for frame in frames for gap in frame.gaps] == [(15, 16, DAMAGED)]


async def test_a_stream_that_is_offline_is_not_taken_for_a_deleted_one(
    start_broker: StartBroker, connect: Connect
) -> None:
    server = start_broker()
    js = await connect(server)
    await fill(js, 2)
    await js._nc.close()
    server.stop()
    (file,) = (server.data / "jetstream").rglob("stream.json")
    file.write_bytes(b"damaged")
    server.start()
    with BulkClient(server.bulk) as bulk:
        assert bulk.ask("GET", "topics", subscribe=NAME).status == 503
        assert bulk.ask("GET", "range/js.$G%2FS", start=1).status == 503


async def test_reading_while_messages_are_erased(
    start_broker: StartBroker, connect: Connect
) -> None:
    """What is being overwritten is not taken for damage."""
    server = start_broker(SMALL)
    js = await connect(server)
    await fill(js, 300, size=1000)
    ended = threading.Event()
    problems: list[Any] = []

    def look() -> None:
        with closing(BulkClient(server.bulk)) as bulk:
            while not ended.is_set():
                frames = bulk.all_of(NAME, 1, 301, max_bytes=20_000)
                problems.extend(gap for frame in frames for gap in frame.gaps)

    reading = asyncio.create_task(asyncio.to_thread(look))
    for number in range(1, 301, 2):
        await js.delete_msg("S", number)  # erases by default
    ended.set()
    await reading
    assert problems == []
    assert seqs(read(server)) == list(range(2, 301, 2))
    text = request(server.monitor, "GET", "/metrics").body.decode()
    assert "twinwire_bulk_damaged_bytes_total 0" in text
