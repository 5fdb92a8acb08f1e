"""The body of a range on its way into a socket, past the loop."""

from __future__ import annotations

import asyncio
import gc
import random
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from support.authority import Authority
from support.loops import DEADLINE_S, on_uvloop

from broker.base.units import MIB, MS, SECOND
from broker.bulk import limits
from broker.bulk.read.sending import duplicate_socket, send_in_thread
from broker.engine.bulk.background import Background, Outgoing
from broker.net.http.config import HttpConfig
from broker.net.http.pages import Pages

ASK = b"GET /body HTTP/1.1\r\nHost: localhost\r\n\r\n"
BODY = random.Random(1).randbytes(8 * MIB)
HEAD = b"head of the frame"


class Sender:
    """/body answers with HEAD and BODY; how that ended, and the descriptor it used."""

    def __init__(self) -> None:
        self.ended: asyncio.Future[BaseException | None] = asyncio.Future()
        self.descriptor = -1
        self.background = Background(2, 5, limits.BULK_SLICE_BYTES)

    async def body(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        response.content_length = len(HEAD) + len(BODY)
        await response.prepare(request)
        problem: BaseException | None = None
        try:
            await response.write(HEAD)
            sock = await duplicate_socket(request)
            if sock is None:
                await response.write(BODY)
            else:
                self.descriptor = sock.fileno()
                await send_in_thread(sock, Outgoing([BODY]), self.background.send)
            await response.write_eof()
        except BaseException as found:
            problem = found
            raise
        finally:
            if not self.ended.done():
                self.ended.set_result(problem)
        return response

    def is_open(self) -> bool:
        return "socket:" in _link(self.descriptor)

    async def released(self) -> None:
        while self.is_open():  # noqa: ASYNC110 - no bell
            await asyncio.sleep(0)


def _link(number: int) -> str:
    try:
        return str(Path(f"/proc/self/fd/{number}").readlink())
    except OSError:
        return ""


@asynccontextmanager
async def opened(context: Any = None) -> AsyncIterator[tuple[Sender, tuple[str, int]]]:
    sender = Sender()
    app = web.Application()
    app.router.add_get("/body", sender.body)
    pages = Pages(lambda: app, context, HttpConfig())
    await pages.open(("127.0.0.1", 0))
    try:
        yield sender, pages.address
    finally:
        await pages.close()
        sender.background.close()


def dial(address: tuple[str, int]) -> socket.socket:
    """A client with little room, so that the sender has to wait for it."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 32_768)
    sock.connect(address)
    sock.setblocking(False)
    return sock


async def answer(sock: socket.socket) -> bytes:
    loop = asyncio.get_running_loop()
    found = bytearray()
    wanted = len(HEAD) + len(BODY)
    while b"\r\n\r\n" not in found or len(found.partition(b"\r\n\r\n")[2]) < wanted:
        part = await loop.sock_recv(sock, 65_536)
        assert part
        found += part
    return bytes(found.partition(b"\r\n\r\n")[2])


@on_uvloop
async def test_a_body_comes_whole_and_in_order() -> None:
    async with opened() as (sender, address):
        with dial(address) as client:
            for _ in range(2):  # the connection can be used again
                await asyncio.get_running_loop().sock_sendall(client, ASK)
                assert await answer(client) == HEAD + BODY
        assert await sender.ended is None
        await sender.released()


@on_uvloop
async def test_a_connection_that_encrypts_is_left_to_the_transport(tmp_path: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*Authority(tmp_path).issue("server"))
    unverified = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    unverified.check_hostname, unverified.verify_mode = False, ssl.CERT_NONE
    async with opened(context) as (sender, address):
        reader, writer = await asyncio.open_connection(*address, ssl=unverified)
        writer.write(ASK)
        await reader.readuntil(b"\r\n\r\n")
        assert await reader.readexactly(len(HEAD) + len(BODY)) == HEAD + BODY
        writer.close()
        assert await sender.ended is None
        assert sender.descriptor == -1


@on_uvloop
async def test_a_client_that_reads_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "BULK_STALL", 50 * MS)
    async with opened() as (sender, address):
        with dial(address) as client:
            await asyncio.get_running_loop().sock_sendall(client, ASK)
            assert isinstance(await sender.ended, TimeoutError)
        assert not sender.is_open()


@on_uvloop
async def test_a_client_that_goes_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "BULK_STALL", DEADLINE_S * SECOND)
    async with opened() as (sender, address):
        with dial(address) as client:
            await asyncio.get_running_loop().sock_sendall(client, ASK)
            await asyncio.get_running_loop().sock_recv(client, 1)
        found = await sender.ended
        assert isinstance(found, ConnectionError | asyncio.CancelledError)
        await sender.released()


@on_uvloop
async def test_a_body_does_not_wait_for_the_garbage_collector() -> None:
    """A client that goes away would leave up to 64 MiB in memory."""
    background = Background(1, 5, limits.BULK_SLICE_BYTES)
    body = bytearray(MIB)
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.close()
    gc.disable()
    try:
        with suppress(ConnectionError):
            await send_in_thread(ours, Outgoing([body]), background.send)
        await asyncio.sleep(0)  # what the loop has just run holds it until then
        body.clear()  # BufferError: it is still in use
    finally:
        gc.enable()
        background.close()


@on_uvloop
async def test_a_descriptor_stays_open_while_a_thread_sends() -> None:
    """Closed earlier, its number could be that of another connection, which would get the rest."""
    loop = asyncio.get_running_loop()
    begun, sending = asyncio.Event(), loop.create_future()

    def send(_sock: socket.socket, _outgoing: Outgoing) -> asyncio.Future[bool]:
        begun.set()
        return sending

    ours, theirs = socket.socketpair()
    number = ours.fileno()
    task = asyncio.ensure_future(send_in_thread(ours, Outgoing([b"x"]), send))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert "socket:" in _link(number)
    sending.set_result(True)
    with theirs:
        theirs.setblocking(False)
        assert await loop.sock_recv(theirs, 1_000) == b""  # it was closed
