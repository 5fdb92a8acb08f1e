"""Servers connected as hub and leaf: Twinwire in this process, the originals as processes."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any, Self

import nats
import pytest
import uvloop
from nats.aio.client import Client

from broker.net.listener import Runtime
from broker.protocols.nats.conf.reader import read_text
from broker.protocols.nats.server import NatsServer
from support.servers.originals import nats_server_on_path

DEADLINE_S = 20.0
POLL_S = 0.01

needs_original = pytest.mark.skipif(
    not nats_server_on_path(), reason="no nats-server that tests can compare with"
)


def on_uvloop(test: Callable[..., Coroutine[None, None, None]]) -> Callable[..., None]:
    """Run an async test on the loop that the broker runs on."""

    @wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(asyncio.wait_for(test(*args, **kwargs), 2 * DEADLINE_S))

    return run


@dataclass
class Node:
    """One server: where its clients and its leafs go."""

    client: tuple[str, int]
    leaf: tuple[str, int] | None
    server: NatsServer | None = None  # ours
    process: asyncio.subprocess.Process | None = None  # the original
    log: Path | None = None

    @property
    def url(self) -> str:
        return f"nats://{self.client[0]}:{self.client[1]}"

    def leaf_url(self, user: str = "") -> str:
        assert self.leaf is not None
        return f"nats-leaf://{user}{'@' * bool(user)}{self.leaf[0]}:{self.leaf[1]}"

    def said(self) -> str:
        assert self.log is not None
        return self.log.read_text()

    async def dial(self, **options: Any) -> Client:
        return await nats.connect(self.url, max_reconnect_attempts=0, **options)


@asynccontextmanager
async def ours(config: str = "") -> AsyncIterator[Node]:
    """Our server with this configuration."""
    text = f'listen: "127.0.0.1:-1"\n{config}'
    settings, _ = read_text(text, {})
    server = NatsServer(settings, Runtime())
    await server.start()
    try:
        yield Node(server.ports["nats"], server.ports.get("leafnodes"), server)
    finally:
        await server.stop()


@asynccontextmanager
async def original(folder: Path, config: str = "", name: str = "original") -> AsyncIterator[Node]:
    """The original with this configuration."""
    home = folder / name
    home.mkdir()
    path = home / "server.conf"
    path.write_text(f'listen: "127.0.0.1:-1"\nports_file_dir: "{home}"\n{config}\n')
    log = home / "log"
    with log.open("wb") as out:
        process = await asyncio.create_subprocess_exec(
            "nats-server", "-DV", "-c", str(path), stdout=out, stderr=out
        )
    try:
        ports: dict[str, list[str]] = {}

        def found() -> bool:
            with contextlib.suppress(OSError, ValueError):
                ports.update(json.loads((home / f"nats-server_{process.pid}.ports").read_text()))
            return bool(ports) or process.returncode is not None

        await until(found)
        assert ports, log.read_text()
        leaf = ports.get("leafnodes") or [_leaf_port(log.read_text())]
        yield Node(_address(ports["nats"][0]), _address(leaf[0]), process=process, log=log)
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()


def _leaf_port(log: str) -> str:
    mark = "Listening for leafnode connections on "
    return log.partition(mark)[2].partition("\n")[0]


def _address(text: str) -> tuple[str, int] | Any:
    host, _, port = text.rpartition("/")[2].rpartition(":")
    return (host, int(port)) if port else None


async def until(true: Callable[[], object], what: str = "it") -> None:
    """Poll a condition that has no event."""
    deadline = asyncio.get_running_loop().time() + DEADLINE_S
    while not true():
        if asyncio.get_running_loop().time() > deadline:
            raise AssertionError(f"{what} did not happen in {DEADLINE_S} s")
        await asyncio.sleep(POLL_S)


async def is_wanted(client: Client, subject: str) -> bool:
    """Whether a request reaches a subscriber, local or over a leaf connection (no 503)."""
    inbox = client.new_inbox()
    sub = await client.subscribe(inbox)
    await client.publish(subject, b"probe", reply=inbox)
    await client.flush()
    try:
        answer = await sub.next_msg(timeout=0.05)
    except TimeoutError:
        return True
    finally:
        await sub.unsubscribe()
    return (answer.headers or {}).get("Status") != "503"


async def interest(client: Client, subject: str, *, wanted: bool = True) -> None:
    """Wait until a subscription of the other side is known."""
    deadline = asyncio.get_running_loop().time() + DEADLINE_S
    while await is_wanted(client, subject) is not wanted:
        if asyncio.get_running_loop().time() > deadline:
            raise AssertionError(f"{subject} is {'not ' * wanted}wanted")
        await asyncio.sleep(POLL_S)


async def no_interest(client: Client, subject: str) -> None:
    """Wait until no subscription of the other side is known."""
    await interest(client, subject, wanted=False)


async def reached(client: Client, subject: str, *who: Callable[[], object]) -> None:
    """Probe until each of these got one: a leaf connection announces each queue group."""

    async def probe() -> None:
        while not all(heard() for heard in who):
            await client.publish(subject, b"probe")
            await client.flush()
            await asyncio.sleep(POLL_S)

    await asyncio.wait_for(probe(), DEADLINE_S)


HUB = 'leafnodes { listen: "127.0.0.1:-1", compression: off %s }\n%s'
LOOP = b"LS+ $LDS."


TARGETS = ["ours", pytest.param("original", marks=needs_original)]


def serve(
    target: str, folder: Path, leafnodes: str = "", rest: str = "server_name: hub\n"
) -> AbstractAsyncContextManager[Node]:
    """A hub with this in its block for leafs, and the rest of its configuration."""
    config = HUB % (leafnodes, rest)
    return ours(config) if target == "ours" else original(folder, config)


def plain(lines: list[bytes]) -> list[bytes]:
    """Without what servers ask for themselves."""
    return sorted(line for line in lines if b" $" not in line and b" _R_" not in line)


class Raw:
    """A peer made of bytes: it understands nothing on its own, but for PINGs it passes over."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.info: dict[str, Any] = {}

    @classmethod
    async def dial(cls, address: tuple[str, int]) -> Self:
        """INFO is read."""
        peer = cls(*await asyncio.open_connection(*address, limit=1 << 22))
        peer.info = json.loads((await peer.line()).removeprefix(b"INFO "))
        return peer

    @classmethod
    async def join(cls, node: Node, **fields: Any) -> Self:
        """A leaf after its handshake: `wants` has the hub's initial subscriptions."""
        assert node.leaf is not None
        peer = await cls.dial(node.leaf)
        peer.connect(**fields)
        peer.info = json.loads((await peer.line()).removeprefix(b"INFO "))
        peer.wants = await peer.lines_until_pong()
        return peer

    wants: list[bytes]

    def connect(self, **fields: Any) -> None:
        said = {"name": "raw", "version": "2.10.22", "headers": True, **fields}
        self.send(b"CONNECT " + json.dumps(said).encode() + b"\r\n")

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def line(self) -> bytes:
        while True:
            line = await asyncio.wait_for(self.reader.readline(), DEADLINE_S)
            if line != b"PING\r\n":
                return line.removesuffix(b"\r\n")

    async def lines_until_pong(self) -> list[bytes]:
        """All that is said before the answer to a PING."""
        self.send(b"PING\r\n")
        lines = []
        while (line := await self.line()) != b"PONG":
            assert line, "closed"
            lines.append(line)
        return lines

    async def expect(self, *lines: bytes) -> None:
        got = [await self.line() for _ in lines]
        if got != list(lines):
            raise AssertionError(f"expected {list(lines)}, got {got}")

    async def end(self) -> bytes:
        """The bytes received until the other side closes."""
        rest = await asyncio.wait_for(self.reader.read(), DEADLINE_S)
        return rest.replace(b"PING\r\n", b"")

    def close(self) -> None:
        self.writer.close()
