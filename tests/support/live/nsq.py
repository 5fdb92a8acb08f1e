"""An NSQ listener on a folder of logs, in the test process, and a client for it."""

from __future__ import annotations

import asyncio
import functools
import struct
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import uvloop

from broker.config.config import Config
from broker.engine.engine import Engine
from broker.net.listener import Runtime
from broker.protocols.nsq.config import NsqConfig
from broker.protocols.nsq.listener import NsqListener
from broker.routing.router import Router
from broker.server.engine import engine_options
from support.fakes.nsq import Frame

DEADLINE_S = 20


def on_uvloop(
    test: Callable[[Path], Coroutine[None, None, None]],
) -> Callable[[Path], None]:
    """Run an async test on the loop that the broker runs on."""

    @functools.wraps(test)
    def run(tmp_path: Path) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(asyncio.wait_for(test(tmp_path), DEADLINE_S))

    return run


class Client:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def dial(cls, listener: NsqListener) -> Client:
        client = cls(*await asyncio.open_connection(*listener.address))
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
    folder: Path,
    sync: str = "none",
    settings: dict[str, Any] | None = None,
    knobs: dict[str, Any] | None = None,
) -> AsyncIterator[NsqListener]:
    """An NSQ listener on a folder of logs."""
    runtime = Runtime()
    numbers = replace(engine_options(Config()), **{"retry_ns": 0, **(knobs or {})})
    engine = Engine(
        runtime.turn, Router(), str(folder), numbers, lambda _name: sync, lambda *_a, **_k: None
    )
    engine.open(runtime.loop)
    config = replace(NsqConfig(), listen=("127.0.0.1", 0), **(settings or {}))
    listener = NsqListener(config, runtime, engine)
    await listener.open()
    try:
        yield listener
    finally:
        await listener.drain()
        await engine.close()
