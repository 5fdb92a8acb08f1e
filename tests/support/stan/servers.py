"""Fixtures of the tests of NATS Streaming: a server in memory for all of a module."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support import PeerError
from support.stan.client import StanClient, StanServer

Join = Callable[..., StanClient]


@pytest.fixture(scope="module")
def stan(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StanServer]:
    """As it is by default, but for any number of channels."""
    server = StanServer(tmp_path_factory.mktemp("stan"), "-mc", "0")
    yield server
    server.stop()


@pytest.fixture
def join(stan: StanServer) -> Iterator[Join]:
    """Clients of it, gone at the end of the test."""
    clients: list[StanClient] = []

    def begin(client_id: str = "", **options: object) -> StanClient:
        clients.append(StanClient(stan, client_id, **options))
        return clients[-1]

    yield begin
    for client in clients:
        with contextlib.suppress(OSError, PeerError):  # the test may have cut it off
            client.close()
        client.peer.close()


@pytest.fixture
def start_stan(tmp_path: Path) -> Iterator[Callable[..., StanServer]]:
    """Servers of one's own."""
    servers: list[StanServer] = []

    def begin(*flags: str) -> StanServer:
        servers.append(StanServer(tmp_path / f"server{len(servers)}", *flags))
        return servers[-1]

    yield begin
    for server in servers:
        server.stop()
