"""Listeners that cannot be opened: the error names them."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from aiohttp import web

from broker.net import limits
from broker.net.http.pages import Pages
from broker.net.listener import Runtime
from broker.net.sockets import ListenError, join
from broker.protocols.nats.server import NatsServer
from broker.protocols.nats.settings import Settings, Websocket


def address(listener: socket.socket) -> tuple[str, int]:
    host, port = listener.getsockname()
    return host, port


def test_join() -> None:
    assert join("h", 1) == "h:1"
    assert join("::1", 1) == "[::1]:1"


async def test_pages() -> None:
    with socket.create_server(("127.0.0.1", 0)) as somebody:
        pages = Pages(web.Application)
        with pytest.raises(ListenError) as failure:
            await pages.open(address(somebody))
        await pages.close()
        assert str(failure.value) == f"{join(*address(somebody))}: Address already in use"
        assert failure.value.listen == address(somebody)


@pytest.mark.parametrize("listener", ["nats", "websocket"])
async def test_each_listener(listener: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as somebody:
        taken = address(somebody)
        free = ("127.0.0.1", 0)
        server = NatsServer(
            Settings(
                listen=taken if listener == "nats" else free,
                websocket=Websocket(taken if listener == "websocket" else free),
            ),
            Runtime(),
        )
        with pytest.raises(ListenError) as failure:
            await server.start()
        await server.stop()
        assert str(failure.value) == f"{join(*taken)}: Address already in use"


async def test_an_unknown_host() -> None:
    pages = Pages(web.Application)
    with pytest.raises(ListenError) as failure:
        await pages.open(("nowhere.invalid", 1))
    await pages.close()
    assert failure.value.unknown_host


async def test_a_unix_socket(tmp_path: Path) -> None:
    path = str(tmp_path / "missing" / "socket")
    pages = Pages(web.Application)
    with pytest.raises(ListenError) as failure:
        await pages.open((path, limits.UNIX_SOCKET_PORT))
    await pages.close()
    assert str(failure.value) == f"{path}: No such file or directory"
