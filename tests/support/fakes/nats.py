"""A fake NATS server that records its requests, and one run of it."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable
from types import SimpleNamespace

import pytest

from broker.cli.dropin.nats_server.log import Log
from broker.cli.dropin.nats_server.run import Run
from broker.protocols.nats.settings import Settings

PLAIN = Settings(listen=("127.0.0.1", 0))


class Server:
    """Remembers."""

    def __init__(self, settings: Settings, failure: Exception | None = None) -> None:
        self.settings = settings
        self.failure = failure
        self.server_id = "NSERVER"
        self.server_name = settings.server_name or self.server_id
        self.ports: dict[str, tuple[str, int]] = {}
        self.asked: list[object] = []
        self.reread: Callable[[], Awaitable[str]] | None = None
        self.frontend = SimpleNamespace(tracer=None)
        self.away = asyncio.Event()  # set when the last client of a lame duck has gone

    async def start(self) -> None:
        if self.failure is not None:
            raise self.failure
        self.ports = {"nats": ("127.0.0.1", 4333)}
        for name in ("http", "websocket", "leafnodes"):
            if getattr(self.settings, name) is not None:
                self.ports[{"http": "monitor"}.get(name, name)] = ("127.0.0.1", 4444)

    async def stop(self) -> None:
        self.asked.append("stop")

    async def lame_duck(self) -> None:
        self.asked.append("lame duck")
        await self.away.wait()

    async def reload(self, settings: Settings) -> None:
        if self.failure is not None:
            raise self.failure
        self.asked.append(settings)


class Case:
    """A run that was begun."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self.caplog = caplog
        self.next = PLAIN
        self.failure: Exception | None = None
        self.run: Run
        self.task: asyncio.Task[int]

    async def begin(
        self, settings: Settings = PLAIN, *, file: str = "x.conf", server_log: Log | None = None
    ) -> Case:
        self.run = Run(
            settings,
            server_log or Log("x"),
            lambda wanted: Server(wanted, self.failure),
            file=file,
            read_again=lambda: self.next,
            program="prog",
            remarks=("--profile has no effect: x",),
        )
        self.task = asyncio.create_task(self.run.run())
        await self.until(lambda: self.task.done() or "Server is ready" in self.caplog.messages)
        return self

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(10):
            while not holds():  # noqa: ASYNC110
                await asyncio.sleep(0)

    @property
    def server(self) -> Server:
        assert isinstance(self.run.server, Server)
        return self.run.server

    async def reload(self, settings: Settings) -> str:
        self.next = settings
        self.caplog.clear()
        return await self.run.reload()

    async def end(self, number: signal.Signals = signal.SIGINT) -> int:
        self.run.on_signal(number)
        return await asyncio.wait_for(self.task, 10)
