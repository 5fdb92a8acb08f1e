"""What a connection was is freed when it ends, without the garbage collector: it comes rarely."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvloop

from broker.config.load import load
from broker.server.server import Server

NATS = """
listen: "127.0.0.1:-1"
http: "127.0.0.1:-1"
leafnodes { listen: "127.0.0.1:-1" }
websocket { listen: "127.0.0.1:-1", no_tls: true }
"""
TEXT = """
[server]
data = "{folder}/data"
[nats]
listen = "127.0.0.1:0"
config_file = "{folder}/nats.conf"
[monitor]
listen = "127.0.0.1:0"
[nsq]
listen = "127.0.0.1:0"
http = "127.0.0.1:0"
[nsqlookupd]
enabled = true
listen = "127.0.0.1:0"
http = "127.0.0.1:0"
[bulk]
listen = "127.0.0.1:0"
"""
SAID = {
    "nats": b'CONNECT {"verbose":true}\r\nSUB x 1\r\nPUB x 1\r\na\r\nPING\r\n',
    "leafnodes": b"CONNECT {}\r\n",
    "nsq": b"  V2SUB t c\nRDY 1\nPUB t\n\0\0\0\1x",
    "nsqlookupd": b"  V1PING\n",
}
AIOHTTP = ("bulk", "monitor")  # what its requests were is in cycles of its own
HTTP = b"GET /ping HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.fixture
def saving() -> Iterator[None]:
    """What the garbage collector finds is kept, to be looked at."""
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    yield
    gc.set_debug(0)
    gc.garbage.clear()
    gc.enable()


async def talk(address: tuple[str, int], said: bytes) -> None:
    """Say something, hear something, go."""
    reader, writer = await asyncio.open_connection(*address)
    writer.write(said)
    await reader.read(1)
    writer.transport.abort()


def of_ours() -> set[str]:
    """Types of what only the garbage collector could free."""
    gc.collect()
    found = {f"{type(one).__module__}.{type(one).__name__}" for one in gc.garbage}
    gc.garbage.clear()
    return {name for name in found if name.startswith(("broker.", "uvloop."))}


async def stays(folder: Path) -> dict[str, set[str]]:
    """What is left of a connection, by listener."""
    (folder / "nats.conf").write_text(NATS)
    (folder / "twinwire.toml").write_text(TEXT.format(folder=folder))
    server = Server(load(folder / "twinwire.toml"))
    await server.start()
    found: dict[str, set[str]] = {}
    try:
        for name, address in server.ports.items():
            if name in AIOHTTP:
                continue
            said = SAID.get(name, HTTP)
            await talk(address, said)  # makes what is made once
            for _ in range(20):
                await asyncio.sleep(0)
            of_ours()
            await talk(address, said)
            await ended(server)
            found[name] = of_ours()
    finally:
        await server.stop()
    return found


async def ended(server: Server) -> None:
    """Until no connection is left; not all listeners count theirs, so a few turns more."""
    end = asyncio.get_running_loop().time() + 20
    turns = 50
    while turns and asyncio.get_running_loop().time() < end:
        await asyncio.sleep(0)
        turns -= not any(listener.connections for listener in server.stats())


def test_nothing_of_a_connection_waits_for_the_garbage_collector(
    tmp_path: Path, saving: None
) -> None:
    found = uvloop.run(stays(tmp_path))
    assert set(found) >= {"nats", "leafnodes", "websocket", "nsq", "nsqlookupd"}
    assert {name: types for name, types in found.items() if types} == {}
