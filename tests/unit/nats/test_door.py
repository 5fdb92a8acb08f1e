"""The door with real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import wraps

import pytest
import uvloop

from broker.net.listener import Runtime
from broker.protocols.nats.door import NatsDoor
from broker.protocols.nats.server import NatsServer
from broker.protocols.nats.settings import Settings

DEADLINE_S = 10


def on_uvloop(test: Callable[[], Coroutine[None, None, None]]) -> Callable[[], None]:
    """Run an async test on the loop that the broker runs on."""

    @wraps(test)
    def run() -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(asyncio.wait_for(test(), DEADLINE_S))

    return run


async def dial(door: NatsDoor) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection(*door.address)
    assert (await reader.readline()).startswith(b"INFO ")
    return reader, writer


async def open_door() -> NatsDoor:
    server = NatsServer(Settings(listen=("127.0.0.1", 0)), Runtime())
    await server.start()
    assert server.door is not None
    return server.door


@on_uvloop
async def test_counts_and_drain() -> None:
    door = await open_door()
    assert door.address[1] != 0
    reader, writer = await dial(door)
    writer.write(b"SUB a 1\r\nPUB a 3\r\nabc\r\nPING\r\n")
    for line in (b"+OK", b"+OK", b"MSG a 1 3", b"abc", b"PONG"):
        assert await reader.readline() == line + b"\r\n"
    assert (door.connections, door.total_connections, len(door.sessions)) == (1, 1, 1)
    assert (door.in_msgs, door.in_bytes, door.out_msgs, door.out_bytes) == (1, 3, 1, 3)
    await door.drain()
    assert await reader.read() == b""
    assert (door.connections, door.total_connections) == (0, 1)
    assert (door.in_msgs, door.out_bytes) == (1, 3)
    with pytest.raises(OSError):  # noqa: PT011 - refused
        await dial(door)
    writer.close()


@on_uvloop
async def test_a_taken_address() -> None:
    door = await open_door()
    taken = NatsServer(Settings(listen=door.address), Runtime())
    with pytest.raises(OSError, match="in use"):
        await taken.start()
    await door.drain()


@on_uvloop
async def test_a_megabyte_there_and_back() -> None:
    door = await open_door()
    reader, writer = await dial(door)
    writer.write(b'CONNECT {"verbose":false}\r\nSUB a 1\r\n')
    body = bytes(range(256)) * 4096
    for _ in range(5):
        writer.write(b"PUB a %d\r\n%b\r\n" % (len(body), body))
        await writer.drain()
        assert await reader.readline() == b"MSG a 1 %d\r\n" % len(body)
        assert await reader.readexactly(len(body) + 2) == body + b"\r\n"
    writer.close()
    await door.drain()
