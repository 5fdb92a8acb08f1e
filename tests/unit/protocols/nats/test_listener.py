"""The listener with real sockets."""

from __future__ import annotations

import asyncio
import os
import resource
from collections.abc import Callable, Coroutine
from functools import wraps
from pathlib import Path

import pytest
import uvloop

from broker.base.service import ListenerStats
from broker.base.units import MS
from broker.net import limits
from broker.net.listener import Runtime
from broker.protocols.nats.listener import NatsListener
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


async def dial(listener: NatsListener) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection(*listener.address)
    assert (await reader.readline()).startswith(b"INFO ")
    return reader, writer


async def open_listener() -> NatsListener:
    server = NatsServer(Settings(listen=("127.0.0.1", 0)), Runtime())
    await server.start()
    assert server.listener is not None
    return server.listener


@on_uvloop
async def test_counts_and_drain() -> None:
    listener = await open_listener()
    assert listener.address[1] != 0
    reader, writer = await dial(listener)
    writer.write(b"SUB a 1\r\nPUB a 3\r\nabc\r\nPING\r\n")
    for line in (b"+OK", b"+OK", b"MSG a 1 3", b"abc", b"PONG"):
        assert await reader.readline() == line + b"\r\n"
    assert (listener.connections, listener.total_connections, len(listener.sessions)) == (1, 1, 1)
    expected = {"connections": 1, "total_connections": 1, "in_msgs": 1, "in_bytes": 3}
    stats = ListenerStats("nats", **expected, out_msgs=1, out_bytes=3)
    assert listener.stats("nats") == stats
    await listener.drain()
    assert await reader.read() == b""
    assert (listener.connections, listener.total_connections) == (0, 1)
    assert listener.stats("nats") == ListenerStats(
        "nats", **{**expected, "connections": 0}, out_msgs=1, out_bytes=3
    )
    with pytest.raises(OSError):  # noqa: PT011 - refused
        await dial(listener)
    writer.close()


@on_uvloop
async def test_a_taken_address() -> None:
    listener = await open_listener()
    taken = NatsServer(Settings(listen=listener.address), Runtime())
    with pytest.raises(OSError, match="in use"):
        await taken.start()
    await listener.drain()


@on_uvloop
async def test_a_megabyte_there_and_back() -> None:
    listener = await open_listener()
    reader, writer = await dial(listener)
    writer.write(b'CONNECT {"verbose":false}\r\nSUB a 1\r\n')
    body = bytes(range(256)) * 4096
    for _ in range(5):
        writer.write(b"PUB a %d\r\n%b\r\n" % (len(body), body))
        await writer.drain()
        assert await reader.readline() == b"MSG a 1 %d\r\n" % len(body)
        assert await reader.readexactly(len(body) + 2) == body + b"\r\n"
    writer.close()
    await listener.drain()


def highest_descriptor() -> int:
    """The lowest free one says nothing: others above it may be in use."""
    return max(int(path.name) for path in Path("/proc/self/fd").iterdir())


@on_uvloop
async def test_connections_leave_files_to_the_log() -> None:
    """Clients that only connect take the files of a process, but not its last ones."""
    listener = await open_listener()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    room = limits.OPEN_FILES_KEPT_MIN + 20
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest_descriptor() + room, hard))
    there = []
    try:
        while True:
            reader, writer = await asyncio.open_connection(*listener.address)
            there.append((reader, writer))
            writer.write(b"PING\r\n")
            try:
                lines = [await reader.readline() for _ in range(2)]
                if lines[1] not in {b"PONG\r\n", b"+OK\r\n"}:
                    break
            except ConnectionResetError:
                break
        files = [os.open(os.devnull, os.O_RDONLY) for _ in range(limits.OPEN_FILES_KEPT_MIN // 2)]
        for file in files:
            os.close(file)
        reader, writer = there[0]
        writer.write(b"PING\r\n")
        assert await reader.readline() == b"PONG\r\n"
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    for _, writer in there:
        writer.close()
    await listener.drain()


@on_uvloop
async def test_half_a_line_does_not_keep_a_connection() -> None:
    """Nobody logs in here, so there is no time limit for CONNECT: the pings end it."""
    settings = Settings(listen=("127.0.0.1", 0), ping_interval_ns=50 * MS, ping_max=1)
    server = NatsServer(settings, Runtime())
    await server.start()
    assert server.listener is not None
    for beginning in (b"", b"CONN", b"PUB foo 10\r\nabc", b"SUB "):
        reader, writer = await dial(server.listener)
        writer.write(beginning)
        assert (await reader.read()).endswith(b"-ERR 'Stale Connection'\r\n")
        writer.close()
    await server.stop()
