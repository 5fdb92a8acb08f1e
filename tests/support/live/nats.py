"""A NATS server in a thread of the test process, from the text of its configuration file."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

import uvloop

from broker.net.listener import Runtime
from broker.protocols.nats.conf.reader import read_text
from broker.protocols.nats.server import NatsServer
from support import Address

START_S = 30.0
Result = TypeVar("Result")
Page = Callable[[NatsServer], Any]
HEAD = 'listen: "127.0.0.1:-1"\nhttp: "127.0.0.1:-1"\n'


class LiveNats:
    """Its addresses are `nats` and `monitor`."""

    def __init__(
        self, text: str = "", *, settings: Mapping[str, Any] | None = None, **more: Page
    ) -> None:
        """`settings`: what the text does not say. `more`: pages by name, made from the server."""
        read, mistakes = read_text(HEAD + text, {}, "server.conf")
        assert mistakes == []
        self.settings = replace(read, **(settings or {}))
        self.more = more
        self.loop: asyncio.AbstractEventLoop
        self.server: NatsServer
        self._ready = threading.Event()
        self._problem: BaseException | None = None
        self._over: asyncio.Event
        self.thread = threading.Thread(target=lambda: uvloop.run(self._live()), daemon=True)
        self.thread.start()
        assert self._ready.wait(START_S)
        if self._problem is not None:
            raise self._problem

    async def _live(self) -> None:
        self.loop, self._over = asyncio.get_running_loop(), asyncio.Event()
        try:
            self.server = NatsServer(self.settings, Runtime())
            pages = {f"/{name}": make(self.server) for name, make in self.more.items()}
            self.server.monitor.more = lambda: pages
            await self.server.start()
        except BaseException as problem:
            self._problem = problem
            return
        finally:
            self._ready.set()
        await self._over.wait()
        await self.server.stop()

    @property
    def nats(self) -> Address:
        return Address(*self.server.ports["nats"])

    @property
    def monitor(self) -> Address:
        return Address(*self.server.ports["monitor"])

    def ask(self, act: Callable[[NatsServer], Result]) -> Result:
        """Do this on the server's thread."""

        async def run() -> Result:
            return act(self.server)

        return asyncio.run_coroutine_threadsafe(run(), self.loop).result(START_S)

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self._over.set)
        self.thread.join(START_S)

    def __enter__(self) -> LiveNats:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()
