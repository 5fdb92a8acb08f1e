"""HTTP listeners on real sockets: time limits, how many connections, who is refused."""

from __future__ import annotations

import asyncio
import errno
import itertools
import logging
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from support.authority import Authority
from support.loops import on_uvloop
from support.open_files import few_left

from broker.base import units
from broker.base.logs import message_of
from broker.base.units import HOUR, MIB, MS
from broker.net import limits
from broker.net.http.application import Application
from broker.net.http.config import HttpConfig
from broker.net.http.connections import IDLE, HttpConnection, HttpConnections
from broker.net.http.pages import Pages
from broker.net.http.requests import continue_until_left

SECOND = units.SECOND
ASK = b"GET /ping HTTP/1.1\r\nHost: localhost\r\n\r\n"


class Listener:
    """One with a clock that the test moves. /wait answers when it may, /body with its length."""

    def __init__(self, settings: HttpConfig, context: ssl.SSLContext | None = None) -> None:
        self.now_ns = SECOND
        self.reached, self.may = asyncio.Event(), asyncio.Event()
        app = web.Application()
        app.router.add_get("/ping", self.ping)
        app.router.add_get("/wait", self.wait)
        app.router.add_post("/body", self.body)
        app.router.add_get("/long", self.long)
        app.router.add_get("/endless", self.endless)
        app.router.add_get("/left", self.left)
        self.pages = Pages(lambda: app, context, settings)
        self.pages.connections = HttpConnections(settings, lambda: self.now_ns)

    async def ping(self, _request: web.Request) -> web.Response:
        return web.Response(text="pong")

    async def wait(self, _request: web.Request) -> web.Response:
        self.reached.set()
        await self.may.wait()
        return web.Response(text="done")

    async def body(self, request: web.Request) -> web.Response:
        self.reached.set()
        return web.Response(text=str(len(await request.read())))

    async def endless(self, request: web.Request) -> web.StreamResponse:
        continue_until_left(request)
        response = web.StreamResponse()
        await response.prepare(request)
        self.reached.set()
        await self.may.wait()
        return response

    async def left(self, request: web.Request) -> web.StreamResponse:
        """In the middle of it the connection breaks, which is reported later."""
        response = web.StreamResponse()
        await response.prepare(request)
        assert request.transport is not None
        request.transport.abort()
        await response.write(b"more")
        raise AssertionError("this was written")

    async def long(self, _request: web.Request) -> web.Response:
        return web.Response(body=bytes(64 * MIB))

    async def dial(self, data: bytes = b"") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        connections = self.pages.connections
        before = len(connections.open) + connections.dropped
        reader, writer = await asyncio.open_connection(*self.pages.address)
        writer.write(data)
        while len(connections.open) + connections.dropped == before:  # noqa: ASYNC110 - no bell
            await asyncio.sleep(0)
        return reader, writer

    async def loaded(self) -> Application:
        """What answers, once the first client has connected."""
        while self.pages.application is None:  # noqa: ASYNC110 - no bell
            await asyncio.sleep(0)
        return self.pages.application

    def pass_time(self, ns: int) -> None:
        self.now_ns += ns
        self.pages.connections.close_late()


@asynccontextmanager
async def opened(context: ssl.SSLContext | None = None, **settings: Any) -> AsyncIterator[Listener]:
    listener = Listener(HttpConfig(**settings), context)
    await listener.pages.open(("127.0.0.1", 0))
    try:
        yield listener
    finally:
        listener.may.set()
        await listener.pages.close()


async def ended(reader: asyncio.StreamReader) -> bytes:
    """What came until the end."""
    try:
        return await reader.read()
    except ConnectionError:
        return b""


@pytest.mark.parametrize("begun", [b"", ASK[:-2]])
@on_uvloop
async def test_a_header_that_does_not_come(begun: bytes) -> None:
    async with opened(header_timeout_ns=SECOND) as listener:
        reader, _writer = await listener.dial(begun)
        listener.pass_time(SECOND - 1)
        assert len(listener.pages.connections.open) == 1
        listener.pass_time(1)
        assert await ended(reader) == b""
        assert listener.pages.connections.open == {}


@pytest.mark.parametrize("asked", [ASK, ASK.replace(b"ping", b"none"), b"\0no request\r\n\r\n"])
@on_uvloop
async def test_answers_name_no_versions(asked: bytes) -> None:
    async with opened() as listener:
        reader, writer = await listener.dial(asked)
        head = await reader.readuntil(b"\r\n\r\n")
        writer.close()
    assert head.startswith(b"HTTP/1.")
    assert b"aiohttp" not in head
    assert b"Python" not in head


INVALID = (
    ASK[:-2] + b"Cookie: twinwire=s3cr3t\x01\r\n\r\n",
    ASK[:-2] + b"Authorization: Bearer s3cr3t\r\n more\r\n\r\n",
    ASK[:-2] + b"Transfer-Encoding: s3cr3t\r\n\r\n",
    b"GET /ping?token=s3cr3t\x01 HTTP/1.1\r\n\r\n",
    b"s3cr3t /ping HTTP/1.1\r\n\r\n",
    b"POST /body HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\ns3cr3t\r\n",
)


@on_uvloop
async def test_requests_that_are_no_http_are_only_counted(caplog: pytest.LogCaptureFixture) -> None:
    """Their headers may be secrets, and anyone can send many of them."""
    caplog.set_level(logging.DEBUG)
    now_ns = SECOND
    async with opened() as listener:
        await listener.dial(ASK)
        application = await listener.loaded()
        application.log.now_ns = lambda: now_ns
        for _ in range(2):
            for data in INVALID:
                reader, writer = await listener.dial(data)
                assert await ended(reader) != b""
                writer.close()
            now_ns += limits.HTTP_INVALID_APART
    lines = [record for record in caplog.records if record.name != "asyncio"]
    assert [message_of(record) for record in lines] == [
        "requests are no valid HTTP count=1",
        f"requests are no valid HTTP count={len(INVALID)}",
    ]
    assert not any(record.exc_info for record in lines)
    assert "s3cr3t" not in caplog.text


@on_uvloop
async def test_a_header_that_is_too_long() -> None:
    async with opened() as listener:
        reader, writer = await listener.dial(ASK)
        assert await reader.readuntil(b"pong")
        line = b"X: " + bytes(b"a" * 60_000) + b"\r\n"
        fits = line * (limits.HTTP_HEAD_MAX // len(line) - 1)
        writer.write(ASK[:-2] + fits + b"\r\n")
        assert await reader.readuntil(b"pong")  # each header counts for itself
        writer.write(ASK[:-2] + fits + line * 3)
        assert (await ended(reader)).startswith(b"HTTP/1.1 431 Request Header Fields Too Large\r\n")
        while listener.pages.connections.open:  # noqa: ASYNC110 - no bell
            await asyncio.sleep(0)


@on_uvloop
async def test_a_long_body_is_no_header() -> None:
    async with opened() as listener:
        size = limits.HTTP_HEAD_MAX + 1
        head = b"POST /body HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % size
        reader, _writer = await listener.dial(head + bytes(size))
        assert b"413" in await reader.readline()  # by aiohttp, which has read the header


@on_uvloop
async def test_bytes_that_trickle_do_not_help() -> None:
    async with opened(header_timeout_ns=SECOND) as listener:
        reader, writer = await listener.dial(ASK[:4])
        listener.pass_time(SECOND // 2)
        writer.write(ASK[4:-2])
        listener.pass_time(SECOND // 2)
        assert await ended(reader) == b""


@on_uvloop
async def test_the_loop_looks_by_itself() -> None:
    settings = HttpConfig(header_timeout_ns=MS)
    pages = Pages(web.Application, None, settings)
    await pages.open(("127.0.0.1", 0))
    reader, _writer = await asyncio.open_connection(*pages.address)
    assert await ended(reader) == b""
    await pages.close()


@on_uvloop
async def test_an_application_that_cannot_be_loaded_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The client waits; nothing is left of the first try."""
    monkeypatch.setattr(limits, "HTTP_LOAD_AGAIN", MS)
    tries: list[web.Application] = []

    async def ping(_request: web.Request) -> web.Response:
        return web.Response(text="pong")

    def make() -> web.Application:
        if not tries:
            tries.append(web.Application())
            raise OSError(errno.EMFILE, "Too many open files")
        app = web.Application()
        app.router.add_get("/ping", ping)
        return app

    pages = Pages(make)
    await pages.open(("127.0.0.1", 0))
    reader, writer = await asyncio.open_connection(*pages.address)
    writer.write(ASK)
    assert await reader.readuntil(b"pong")
    assert "cannot be loaded now" in caplog.text
    await pages.close()


@on_uvloop
async def test_the_end_while_an_application_cannot_be_loaded() -> None:
    """Its client is not left waiting."""
    failed = asyncio.Event()

    def make() -> web.Application:
        failed.set()
        raise OSError(errno.EMFILE, "Too many open files")

    pages = Pages(make)
    await pages.open(("127.0.0.1", 0))
    reader, _writer = await asyncio.open_connection(*pages.address)
    await failed.wait()
    await pages.close()
    assert await ended(reader) == b""


@on_uvloop
async def test_between_requests() -> None:
    async with opened(header_timeout_ns=SECOND, idle_timeout_ns=60 * SECOND) as listener:
        reader, writer = await listener.dial()
        for _ in range(2):
            writer.write(ASK)
            assert await reader.readuntil(b"pong")
            listener.pass_time(60 * SECOND - 1)
        writer.write(b"G")  # from here on it is the header's time
        (connection,) = listener.pages.connections.open
        while connection.state != 0:  # noqa: ASYNC110 - no bell
            await asyncio.sleep(0)
        listener.pass_time(SECOND)
        assert await ended(reader) == b""


@on_uvloop
async def test_idle_for_too_long() -> None:
    async with opened(idle_timeout_ns=60 * SECOND) as listener:
        reader, writer = await listener.dial()
        writer.write(ASK)
        assert await reader.readuntil(b"pong")
        listener.pass_time(60 * SECOND)
        assert await ended(reader) == b""


@on_uvloop
async def test_a_handler_may_take_its_time() -> None:
    async with opened() as listener:
        reader, _writer = await listener.dial(ASK.replace(b"ping", b"wait"))
        await listener.reached.wait()
        listener.pass_time(HOUR)
        listener.may.set()
        assert await reader.readuntil(b"done")


@on_uvloop
async def test_a_body_that_does_not_come() -> None:
    async with opened() as listener:
        head = b"POST /body HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n"
        reader, writer = await listener.dial(head)
        await listener.reached.wait()
        listener.pass_time(limits.HTTP_BODY_GRACE)
        (connection,) = listener.pages.connections.open
        writer.write(bytes(limits.HTTP_BODY_RATE))
        while not connection._received:  # noqa: ASYNC110 - no bell
            await asyncio.sleep(0)
        listener.pass_time(SECOND)  # paid for
        assert len(listener.pages.connections.open) == 1
        listener.pass_time(SECOND)
        assert await ended(reader) == b""


@on_uvloop
async def test_a_client_that_leaves_within_a_body_is_no_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with opened() as listener:
        begun = b"POST /body HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\nxxx"
        _reader, writer = await listener.dial(begun)
        await listener.reached.wait()
        writer.transport.abort()
        while listener.pages.connections.open:  # noqa: ASYNC110 - no bell
            await asyncio.sleep(0)
    assert caplog.records == []


@on_uvloop
async def test_a_client_that_leaves_within_an_answer_is_no_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with opened() as listener:
        reader, _writer = await listener.dial(ASK.replace(b"/ping", b"/left"))
        await ended(reader)
        while listener.pages.connections.open:  # noqa: ASYNC110 - no bell
            await asyncio.sleep(0)
    assert caplog.records == []


@pytest.mark.parametrize("requests", [1, 3])
@on_uvloop
async def test_requests_of_a_client_that_has_ended_its_side(requests: int) -> None:
    async with opened() as listener:
        body = b"POST /body HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n123456789"
        reader, writer = await listener.dial(body * requests)
        writer.write_eof()
        answers = await reader.read()
        assert answers.count(b"HTTP/1.1 200 OK\r\n") == answers.count(b"\r\n\r\n9") == requests
        assert listener.pages.connections.open == {}


@on_uvloop
async def test_a_client_ends_its_side_while_it_waits() -> None:
    async with opened() as listener:
        reader, writer = await listener.dial(ASK.replace(b"ping", b"wait"))
        await listener.reached.wait()
        writer.write_eof()
        (connection,) = listener.pages.connections.open
        while not connection._ended_ns:  # noqa: ASYNC110 - no bell
            await asyncio.sleep(0)
        listener.pass_time(limits.HTTP_ENDED_GRACE - 1)
        listener.may.set()
        assert (await reader.read()).endswith(b"done")


@on_uvloop
async def test_a_client_that_has_left_is_not_answered_for_long() -> None:
    async with opened() as listener:
        reader, writer = await listener.dial(ASK.replace(b"ping", b"wait"))
        await listener.reached.wait()
        writer.write_eof()
        (connection,) = listener.pages.connections.open
        while not connection._ended_ns:  # noqa: ASYNC110 - no bell
            await asyncio.sleep(0)
        listener.pass_time(limits.HTTP_ENDED_GRACE)
        assert await ended(reader) == b""
        assert listener.pages.connections.open == {}


@on_uvloop
async def test_an_answer_without_end_stops_when_the_client_ends_its_side() -> None:
    async with opened() as listener:
        reader, writer = await listener.dial(ASK.replace(b"ping", b"endless"))
        await listener.reached.wait()
        writer.write_eof()
        assert (await reader.read()).startswith(b"HTTP/1.1 200 OK\r\n")
        assert listener.pages.connections.open == {}


@pytest.mark.parametrize(
    "begun",
    [
        b"",
        ASK[:-2],
        b"POST /body HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\nxxx",
        ASK + b"POST /body HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\nxxx",
    ],
)
@on_uvloop
async def test_a_client_that_ends_its_side_within_a_request(begun: bytes) -> None:
    async with opened() as listener:
        reader, writer = await listener.dial(begun)
        writer.write_eof()
        assert b"xxx" not in await ended(reader)
        while listener.pages.connections.open:  # noqa: ASYNC110 - no bell
            await asyncio.sleep(0)


@pytest.mark.parametrize("begun", [b"", ASK[:-2], ASK])
@on_uvloop
async def test_a_client_that_ends_its_side_before_it_is_accepted(begun: bytes) -> None:
    """As health checks of load balancers that only open a connection."""
    async with opened() as listener:
        reader, _writer = await listener.dial(ASK)
        assert await reader.readuntil(b"pong")  # the application is loaded
        with socket.create_connection(listener.pages.address) as client:
            client.sendall(begun)
            client.shutdown(socket.SHUT_WR)
            client.setblocking(False)
            got = b""
            while more := await asyncio.get_running_loop().sock_recv(client, 1 << 16):
                got += more
        assert got.endswith(b"pong" if begun == ASK else b"")
        assert len(listener.pages.connections.open) == 1
        assert listener.pages.connections.dropped == 0


@on_uvloop
async def test_an_answer_that_is_not_taken() -> None:
    async with opened() as listener:
        reader, _writer = await listener.dial(ASK.replace(b"ping", b"long"))
        (connection,) = listener.pages.connections.open
        while not connection._stuck_ns:  # noqa: ASYNC110 - no bell
            await asyncio.sleep(0)
        previous = -1
        while connection._unsent != previous:  # until the kernel takes no more
            previous = connection._unsent
            await asyncio.sleep(0.01)
            listener.pass_time(1)
        listener.pass_time(limits.HTTP_WRITE_TIMEOUT)
        assert listener.pages.connections.open == {}
        await ended(reader)


@on_uvloop
async def test_who_asks_nothing_makes_room() -> None:
    async with opened(max_connections=2) as listener:
        busy, _busy = await listener.dial(ASK.replace(b"ping", b"wait"))
        await listener.reached.wait()
        quiet, _quiet = await listener.dial()
        listener.now_ns += 1
        asking, writer = await listener.dial()
        assert await ended(quiet) == b""
        writer.write(ASK)
        assert await asking.readuntil(b"pong")
        listener.may.set()
        assert await busy.readuntil(b"done")


@on_uvloop
async def test_the_one_that_has_asked_nothing_for_the_longest_makes_room() -> None:
    async with opened(max_connections=3) as listener:
        reader, writer = await listener.dial()
        first, _first = await listener.dial()
        second, _second = await listener.dial()
        writer.write(ASK)  # it came first, and has asked since
        assert await reader.readuntil(b"pong")
        _third = await listener.dial()
        assert await ended(first) == b""
        begun, _begun = await listener.dial(ASK[:4])
        assert await ended(second) == b""
        writer.write(ASK)
        assert await reader.readuntil(b"pong")
        connections = listener.pages.connections
        assert len(connections._quiet) == len(connections.open) == 3
        for connection in list(connections.open):
            connection.abort()
        assert await ended(begun) == b""
        assert not connections._quiet


@on_uvloop
async def test_making_room_looks_at_no_other_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    looked = 0

    def counted(connection: HttpConnection, name: str) -> Any:
        nonlocal looked
        looked += name in ("state", "since_ns")
        return object.__getattribute__(connection, name)

    monkeypatch.setattr(limits, "HTTP_LOOK", HOUR)  # the timer looks at all of them
    async with opened(max_connections=20) as listener:
        with monkeypatch.context() as patch:
            patch.setattr(HttpConnection, "__getattribute__", counted)
            peers = [await listener.dial() for _ in range(60)]
        connections = listener.pages.connections
        assert (len(connections.open), connections.dropped) == (20, 40)
        assert looked == 0
        for _reader, writer in peers:
            writer.close()


@on_uvloop
async def test_an_answer_that_is_being_written_does_not_make_room() -> None:
    async with opened(max_connections=2) as listener:
        slow, _slow = await listener.dial(ASK.replace(b"ping", b"long"))
        (connection,) = listener.pages.connections.open
        while connection.state != IDLE or not connection._stuck_ns:  # noqa: ASYNC110 - no bell
            await asyncio.sleep(0)
        quiet, _quiet = await listener.dial()
        asking, writer = await listener.dial(ASK)
        assert await ended(quiet) == b""
        assert await asking.readuntil(b"pong")
        head = await slow.readuntil(b"\r\n\r\n")
        assert b" 200 " in head
        assert await slow.readexactly(64 * MIB) == bytes(64 * MIB)
        writer.close()


@on_uvloop
async def test_no_room_where_all_are_busy() -> None:
    async with opened(max_connections=1) as listener:
        busy, _busy = await listener.dial(ASK.replace(b"ping", b"wait"))
        await listener.reached.wait()
        late, _late = await listener.dial(ASK)
        assert await ended(late) == b""
        listener.may.set()
        assert await busy.readuntil(b"done")
        assert listener.pages.connections.dropped == 1


@on_uvloop
async def test_tls_that_is_not_shaken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HTTP_TLS_TIMEOUT", 50 * MS)
    cert, key = Authority(tmp_path).issue("server")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    async with opened(context) as listener:
        reader, _writer = await asyncio.open_connection(*listener.pages.address)
        assert await ended(reader) == b""


@on_uvloop
async def test_a_request_is_looked_at_whatever_it_came_by() -> None:
    async with opened() as listener:
        await asyncio.open_connection(*listener.pages.address)
        application = await listener.loaded()
        site = web.TCPSite(application.runner, "127.0.0.1", 0)  # without what counts connections
        await site.start()
        address = application.runner.addresses[-1]
        for header, status in ((b"", b"200"), (b"Origin: http://evil.example\r\n", b"403")):
            reader, writer = await asyncio.open_connection(*address)
            writer.write(ASK[:-2] + header + b"\r\n")
            assert (await reader.readline()).split()[1] == status
            writer.close()


def tls_of(tmp_path: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*Authority(tmp_path).issue("server"))
    return context


def unverified() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


@on_uvloop
async def test_who_does_not_shake_hands_counts_and_makes_room(tmp_path: Path) -> None:
    async with opened(tls_of(tmp_path), max_connections=2) as listener:
        first, _first = await listener.dial()
        second, _second = await listener.dial(b"\x16\x03\x01")  # a handshake that is begun
        assert len(listener.pages.connections.open) == 2
        address = listener.pages.address
        reader, writer = await asyncio.open_connection(*address, ssl=unverified())
        assert await ended(first) == b""
        for _ in range(2):
            writer.write(ASK)
            assert await reader.readuntil(b"pong")
        assert len(listener.pages.connections.open) == 2
        writer.close()
        _second.close()
        while listener.pages.connections.open:  # noqa: ASYNC110 - no bell
            await asyncio.sleep(0)
        await ended(second)


@on_uvloop
async def test_a_handshake_that_fails_is_counted_no_more(tmp_path: Path) -> None:
    async with opened(tls_of(tmp_path)) as listener:
        reader, _writer = await listener.dial(ASK)  # no TLS at all
        await ended(reader)
        while listener.pages.connections.open:  # noqa: ASYNC110 - no bell
            await asyncio.sleep(0)


@on_uvloop
async def test_a_request_in_the_same_breath_as_the_end_of_the_handshake(tmp_path: Path) -> None:
    async with opened(tls_of(tmp_path)) as listener:
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = unverified().wrap_bio(incoming, outgoing)
        reader, writer = await asyncio.open_connection(*listener.pages.address)
        while True:
            try:
                tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                writer.write(outgoing.read())
                incoming.write(await reader.read(65_536))
        tls.write(ASK)
        writer.write(outgoing.read())  # Finished, and the request behind it
        answer = b""
        while b"pong" not in answer:
            try:
                answer += tls.read()
            except ssl.SSLWantReadError:
                incoming.write(await reader.read(65_536))
        writer.close()


@on_uvloop
async def test_handshakes_end_with_the_listener(tmp_path: Path) -> None:
    async with opened(tls_of(tmp_path)) as listener:
        reader, _writer = await listener.dial()
    assert await ended(reader) == b""


@on_uvloop
async def test_the_last_files_are_not_taken() -> None:
    """With few files left a listener has no more connections than before."""
    async with opened() as listener:
        quiet, _quiet = await listener.dial()
        with few_left():
            busy, _busy = await listener.dial(ASK.replace(b"ping", b"wait"))
            assert await ended(quiet) == b""
            await listener.reached.wait()
            late, _late = await listener.dial(ASK)
            assert await ended(late) == b""
            listener.may.set()
            assert await busy.readuntil(b"done")


@pytest.mark.parametrize(
    ("header", "status"),
    [
        (b"Host: evil.example", 421),
        (b"Host: localhost\r\nOrigin: http://evil.example", 403),
        (b"Host: localhost\r\nSec-Fetch-Site: cross-site", 403),
        (b"Host: localhost", 200),
    ],
)
@on_uvloop
async def test_requests_of_other_sites(header: bytes, status: int) -> None:
    async with opened() as listener:
        reader, writer = await listener.dial()
        writer.write(b"GET /ping HTTP/1.1\r\n" + header + b"\r\n\r\n")
        assert (await reader.readline()).split()[1] == str(status).encode()


class Slow(asyncio.Protocol):
    """Something behind a connection that parses."""

    def __init__(self) -> None:
        self.got = b""
        self._reading_paused = False

    def data_received(self, data: bytes) -> None:
        self.got += data


class Wire(asyncio.Transport):
    """The socket of a connection, which is read or not."""

    reading = True

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def is_closing(self) -> bool:
        return False


@on_uvloop
async def test_input_that_takes_long_is_parsed_in_several_turns() -> None:
    ticks = itertools.count(0, limits.HTTP_TURN)
    connections = HttpConnections(HttpConfig(), lambda: next(ticks))
    slow, wire = Slow(), Wire()
    connection = HttpConnection(connections, slow)
    connection.connection_made(wire)
    sent = b"".join(b"%07d\n" % n for n in range(10 * limits.HTTP_PIECE // 8)) + b"rest"
    connection.data_received(sent)
    assert slow.got == sent[: limits.HTTP_PIECE]
    assert not wire.reading
    wire.reading = True  # the parser has resumed it, and more arrives
    connection.data_received(b"more")
    turns = 0
    while not wire.reading:
        assert len(slow.got) <= (turns + 1) * limits.HTTP_PIECE
        await asyncio.sleep(0)
        turns += 1
    assert (turns, slow.got) == (10, sent + b"more")
    slow._reading_paused = True
    connection.data_received(sent)
    while len(slow.got) < 2 * len(sent) + 4:  # noqa: ASYNC110 - no bell
        await asyncio.sleep(0)
    assert not wire.reading  # until the parser resumes it
    connection.data_received(b"x")
    assert slow.got.endswith(b"restx")
    connection.connection_lost(None)


@on_uvloop
async def test_a_body_in_chunks_of_a_byte() -> None:
    async with opened() as listener:
        ticks = itertools.count(SECOND, limits.HTTP_TURN)
        listener.pages.connections.now_ns = lambda: next(ticks)
        head = b"POST /body HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
        reader, writer = await listener.dial(head + b"1\r\nx\r\n" * 40_000 + b"0\r\n\r\n" + ASK)
        assert await reader.readuntil(b"40000")
        assert await reader.readuntil(b"pong")
        writer.close()
