"""A broker with NATS Streaming in a thread of this process, so that file calls can fail."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import uvloop

from broker.config.load import load
from broker.runtime import vfs
from broker.server.server import Server as Whole
from support.configuration import NATS
from support.servers.processes import Address

START_S = 30.0
Result = TypeVar("Result")

TEXT = (
    NATS
    + """\
[bulk]
listen = "off"
[stan]
enabled = true
hb_interval = "100ms"
hb_timeout = "50ms"
hb_fail_count = 1
"""
)


class LiveBroker:
    """A broker of this process, on a thread: its file calls can be made to fail."""

    def __init__(self, folder: Path, text: str = TEXT) -> None:
        file = folder / "twinwire.toml"
        file.write_text(text.format(data=folder / "data"))
        self.server = Whole(load(file))
        self.loop: asyncio.AbstractEventLoop
        self.over: asyncio.Event
        self.ready = threading.Event()
        self.problem: BaseException | None = None
        self.thread = threading.Thread(target=lambda: uvloop.run(self.live()), daemon=True)
        self.thread.start()
        assert self.ready.wait(START_S)
        if self.problem is not None:
            raise self.problem

    async def live(self) -> None:
        self.loop, self.over = asyncio.get_running_loop(), asyncio.Event()
        try:
            await self.server.start()
        except BaseException as problem:
            self.problem = problem
            return
        finally:
            self.ready.set()
        await self.over.wait()
        await self.server.stop()

    @property
    def nats(self) -> Address:
        return Address(*self.server.ports["nats"])

    def ask(self, act: Callable[[], Result]) -> Result:
        """Do this on the broker's thread."""

        async def run() -> Result:
            return act()

        return asyncio.run_coroutine_threadsafe(run(), self.loop).result(START_S)

    def close(self) -> None:
        vfs.heal()
        self.loop.call_soon_threadsafe(self.over.set)
        self.thread.join(START_S)
