"""Our server with the accounts of `system_account.CONFIG`, in this process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import wraps
from types import TracebackType
from typing import Any, Self

import uvloop

from broker.net.listener import Runtime
from broker.protocols.nats.conf.reader import read_text
from broker.protocols.nats.server import NatsServer
from support.system_account import CONFIG

DEADLINE_S = 30
SETTINGS, _ = read_text(CONFIG, {})


def on_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run an async test on the loop that the broker runs on."""

    @wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(asyncio.wait_for(test(*args, **kwargs), DEADLINE_S))

    return run


class SystemServer:
    """Started and stopped by `async with`."""

    def __init__(self) -> None:
        self.reloads = 0

    async def __aenter__(self) -> Self:
        self.server = NatsServer(SETTINGS, Runtime())
        self.server.reread = self._reread
        await self.server.start()
        return self

    async def _reread(self) -> str:
        self.reloads += 1
        await self.server.reload(SETTINGS)
        return ""

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.server.stop()

    @property
    def address(self) -> tuple[str, int]:
        return self.server.ports["nats"]
