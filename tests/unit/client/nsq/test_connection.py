"""The hand-shake and the cutting of frames, against a server that says what a test wants."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import orjson
import pytest

from broker.client.nsq import ClosedError, ConnectError, NsqError, Options
from broker.client.nsq.clock import LoopClock
from broker.client.nsq.codec import Deflate, Snappy
from broker.client.nsq.connection import Connection

WAIT_S = 20.0


def frame(kind: int, payload: bytes) -> bytes:
    return struct.pack(">ii", len(payload) + 4, kind) + payload


class Server:
    """One connection at a time; gathers what the client says."""

    def __init__(self, features: bytes) -> None:
        self.features = features
        self.writer: asyncio.StreamWriter | None = None
        self.said: asyncio.Queue[bytes] = asyncio.Queue()
        self.address = ("127.0.0.1", 0)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writer = writer
        assert await reader.readexactly(4) == b"  V2"
        try:
            while line := await reader.readline():
                body = b""
                if line in {b"IDENTIFY\n", b"AUTH\n"}:
                    size = int.from_bytes(await reader.readexactly(4), "big")
                    body = await reader.readexactly(size)
                    answer = self.features if line == b"IDENTIFY\n" else b'{"identity":"me"}'
                    if answer:
                        writer.write(frame(0, answer))
                self.said.put_nowait(line + body)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass

    async def next(self) -> bytes:
        return await asyncio.wait_for(self.said.get(), WAIT_S)


@asynccontextmanager
async def serving(features: bytes = b"{}") -> AsyncIterator[Server]:
    server = Server(features)
    listener = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    server.address = listener.sockets[0].getsockname()
    yield server
    listener.close()
    if server.writer is not None:
        server.writer.close()


def connect(
    server: Server, lost: Callable[[NsqError], None], options: Options | None = None, **more: object
) -> Connection:
    return Connection(server.address, options or Options(), LoopClock(), on_lost=lost, **more)  # type: ignore[arg-type]


async def test_what_identify_says() -> None:
    async with serving(b'{"max_rdy_count":7}') as server:
        connection = connect(server, lambda _: None, Options(client_id="me", msg_timeout_ms=5000))
        await connection.open()
        said = orjson.loads((await server.next()).partition(b"\n")[2])
        assert said["client_id"] == "me"
        assert said["msg_timeout"] == 5000
        assert said["feature_negotiation"] is True
        assert connection.features == {"max_rdy_count": 7}
        connection.close()


async def test_auth_when_it_is_required() -> None:
    async with serving(b'{"auth_required":true}') as server:
        connection = connect(server, lambda _: None, Options(auth_secret="secret"))
        await connection.open()
        await server.next()
        assert await server.next() == b"AUTH\nsecret"
        assert connection.identity == {"identity": "me"}
        connection.close()


async def test_auth_required_and_no_secret() -> None:
    async with serving(b'{"auth_required":true}') as server:
        with pytest.raises(ConnectError, match="AUTH"):
            await connect(server, lambda _: None).open()


async def test_a_server_that_knows_no_features() -> None:
    async with serving(b"OK") as server:
        connection = connect(server, lambda _: None)
        await connection.open()
        assert connection.features == {}
        connection.close()


@pytest.mark.parametrize("step", [1, 3, 7, 1000])
async def test_frames_cut_anywhere(step: int) -> None:
    got: asyncio.Queue[tuple[bytes, int, int, bytes]] = asyncio.Queue()
    async with serving() as server:
        connection = connect(
            server, lambda _: None, on_message=lambda *parts: got.put_nowait(parts)
        )
        await connection.open()
        head = struct.pack(">qH", 5, 2) + b"0123456789abcdef"
        stream = b"".join(
            frame(2, head + b"x" * size) + frame(0, b"_heartbeat_") for size in (0, 1, 9, 500)
        )
        for start in range(0, len(stream), step):
            connection.data_received(stream[start : start + step])
        bodies = [await asyncio.wait_for(got.get(), WAIT_S) for _ in range(4)]
        assert [len(body) for *_, body in bodies] == [0, 1, 9, 500]
        assert bodies[0] == (b"0123456789abcdef", 5, 2, b"")
        await server.next()
        assert [await server.next() for _ in range(4)] == [b"NOP\n"] * 4
        connection.close()


@pytest.mark.parametrize(
    "garbage",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        struct.pack(">ii", 3, 0),
        struct.pack(">ii", -1, 0),
        frame(9, b"?"),
    ],
)
async def test_garbage_ends_the_connection(garbage: bytes) -> None:
    lost: asyncio.Queue[NsqError] = asyncio.Queue()
    async with serving() as server:
        connection = connect(server, lost.put_nowait)
        await connection.open()
        waiting = connection.ask(b"PUB t\n")
        connection.data_received(garbage)
        assert "invalid" in str(await asyncio.wait_for(lost.get(), WAIT_S))
        with pytest.raises(ClosedError):
            await waiting
        with pytest.raises(NsqError):
            await connection.ask(b"PUB t\n")
        assert lost.empty()


async def test_a_server_that_says_nothing() -> None:
    kept: list[asyncio.StreamWriter] = []  # one that nobody has is closed
    listener = await asyncio.start_server(lambda _, writer: kept.append(writer), "127.0.0.1", 0)
    address = listener.sockets[0].getsockname()
    options = Options(connect_timeout_s=0.05)
    with pytest.raises(ConnectError, match="no answer in time"):
        await Connection(address, options, LoopClock(), on_lost=lambda _: None).open()
    listener.close()


@pytest.mark.parametrize("codec", ["snappy", "deflate"])
@pytest.mark.parametrize("cuts", [(), (0,), (0, 3), (5, 20)])
async def test_compression_begins_exactly_behind_the_answer(
    codec: str, cuts: tuple[int, ...]
) -> None:
    """The server's first compressed bytes may come before the client has looked at the answer."""
    async with serving(b"") as server:
        connection = connect(server, lambda _: None, Options(**{codec: True}))
        opening = asyncio.ensure_future(connection.open())
        await server.next()
        compressed = (Snappy() if codec == "snappy" else Deflate(6)).encode(frame(0, b"OK"))
        plain = frame(0, b'{"%b":true}' % codec.encode())
        stream, begin = plain + compressed, 0
        for cut in cuts:
            connection.data_received(stream[begin : len(plain) + cut])
            begin = len(plain) + cut
        connection.data_received(stream[begin:])
        await asyncio.wait_for(opening, WAIT_S)
        connection.close()


@pytest.mark.parametrize(
    ("greeting", "text"),
    [
        (b'INFO {"server_id":"x"}\r\n', "this is a NATS server, not an nsqd"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "this is an HTTP server; nsqd's TCP port is 4150"),
        (b"\x15\x03\x01\x00\x02\x02\x46", "this server requires TLS from the first byte"),
        (b"\0\0\0\x0eE_BAD_PROTOCOL", "this is an nsqlookupd: give lookupd_http_addresses its"),
        (b"-ERR unknown command\r\n", "this is a Redis server, not an nsqd"),
        (b"220 mail ready\r\n", r"this is not an nsqd: it sent b'220 mail ready\r\n'"),
    ],
)
async def test_a_port_of_another_server(greeting: bytes, text: str) -> None:
    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(greeting)
        with contextlib.suppress(ConnectionError):
            await reader.read()
        writer.close()  # since Python 3.12 the listener waits for that

    async with await asyncio.start_server(greet, "127.0.0.1", 0) as listener:
        address = listener.sockets[0].getsockname()
        lost: list[NsqError] = []
        with pytest.raises(ConnectError) as caught:
            await Connection(address, Options(), LoopClock(), on_lost=lost.append).open()
        assert str(caught.value).startswith(f"127.0.0.1:{address[1]}: {text}")
        assert lost == []
