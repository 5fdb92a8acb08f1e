"""Our client's tests run against our server and against the original where it is installed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support import Server
from support.clients.inbox import Open
from support.servers.nsqd import TARGETS, StartNsq, has, make

from broker.client.nsq import Reader


@pytest.fixture(scope="session", params=TARGETS)
def target(request: pytest.FixtureRequest) -> str:
    name = str(request.param)
    if not has(name):
        pytest.skip("nsqd is not on PATH")
    return name


@pytest.fixture(scope="session")
def server(target: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server shared by the tests that harm nobody."""
    made = make(target, tmp_path_factory.mktemp(f"client-{target}")).start()
    yield made
    made.close()


@pytest.fixture
def start_nsq(target: str, tmp_path: Path) -> Iterator[StartNsq]:
    """Servers of one's own."""
    servers: list[Server] = []

    def start(config: Any = None) -> Server:
        servers.append(make(target, tmp_path / f"nsq{len(servers)}", config))
        return servers[-1].start()

    yield start
    for made in servers:
        made.close()


@pytest.fixture
async def opened() -> AsyncIterator[Open]:
    """Start readers that are closed with the test."""
    readers: list[Reader] = []

    async def make_reader(server: Server, topic: str, handler: Any, **options: Any) -> Reader:
        options.setdefault("nsqd", str(server.nsq))
        readers.append(Reader(topic, options.pop("channel", "ch"), handler, **options))
        await readers[-1].start()
        return readers[-1]

    yield make_reader
    for reader in readers:
        await reader.close(1)


Run = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def tool() -> Iterator[Run]:
    """Start `twinwire ARGUMENTS`; what still runs is killed with the test."""
    running: list[subprocess.Popen[bytes]] = []

    def start(*arguments: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "broker", *arguments]
        pipe = subprocess.PIPE
        running.append(subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe))
        return running[-1]

    yield start
    for process in running:
        if process.poll() is None:
            process.kill()
        process.communicate()
