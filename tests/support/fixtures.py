"""Fixtures of tests in several folders; tests/conftest.py offers them to all."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.aio.client import Client

from support.authority import Authority, Pair
from support.engine import scratch
from support.fakes.nsq import FakeNsq, MakeNsq
from support.nats_file import FileServer, StartServer
from support.page_cache import PAGE, leave
from support.servers.processes import Server

Connect = Callable[..., Awaitable[Client]]


@pytest.fixture
def memory_path() -> Iterator[Path]:
    """Same as tmp_path, but in memory, where syncs are fast: for tests with hundreds of them."""
    path = scratch()
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    """A folder on a file system whose pages can be dropped from the page cache."""
    file = tmp_path / "probe"
    file.write_bytes(bytes(PAGE))
    if not leave(file):
        pytest.skip("this file system keeps everything in memory")
    return tmp_path / "logs"


@pytest.fixture
def make_nsq() -> Iterator[MakeNsq]:
    """Creates NSQ frontends without sockets, which are closed at the end of the test."""
    made: list[FakeNsq] = []

    def make(**settings: object) -> FakeNsq:
        made.append(FakeNsq(**settings))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for nsq in made:
        nsq.close()


@pytest.fixture
def nsq(make_nsq: MakeNsq) -> FakeNsq:
    """An NSQ frontend with the default settings."""
    return make_nsq()


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """A certificate authority."""
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def pair(authority: Authority) -> Pair:
    """A server's certificate and key."""
    return authority.issue("server")


@pytest.fixture
def start_nats(tmp_path: Path) -> Iterator[StartServer]:
    """Starts servers with a configuration in nats-server's language; they are stopped at the end of
    the test."""
    servers: list[FileServer] = []

    def start(text: str) -> FileServer:
        servers.append(FileServer(tmp_path / f"nats{len(servers)}", text))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


@pytest.fixture
async def connect() -> AsyncIterator[Connect]:
    """Opens connections of nats-py, which are closed at the end of the test."""
    clients: list[Client] = []

    async def open_one(server: Server, **options: Any) -> Client:
        client = await nats.connect(
            server.nats_url, connect_timeout=5, allow_reconnect=False, **options
        )
        clients.append(client)
        return client

    yield open_one
    for client in clients:
        if not client.is_closed:
            await client.close()
