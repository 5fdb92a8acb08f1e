"""Asking auth servers: real ones, lying ones, and the order in which they are asked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web
from support.servers.authd import grant, row

from broker.base.units import DURATION_MAX, MS, SECOND
from broker.protocols.nsq import limits
from broker.protocols.nsq.auth import AuthError, Authority, Grant, Peer, secure_endpoint
from broker.protocols.nsq.config import NsqConfig

WAIT_S = 15.0
PEER = Peer("192.0.2.7")
GOOD = grant(row())
HEAD = b"HTTP/1.1 200 OK\r\n"

Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
Serve = Callable[[Answer], Awaitable[str]]
Ask = Callable[..., Awaitable[Grant | None]]


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    """Starts raw servers that answer a request as the test likes; gives their addresses."""
    servers: list[asyncio.Server] = []

    async def start(answer: Answer) -> str:
        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                await reader.readuntil(b"\r\n\r\n")
                await answer(reader, writer)
            except (OSError, asyncio.IncompleteReadError):
                pass  # the other end has had enough
            finally:
                writer.close()

        servers.append(await asyncio.start_server(connected, "127.0.0.1", 0))
        host, port = servers[-1].sockets[0].getsockname()
        return f"{host}:{port}"

    yield start
    for server in servers:
        server.close()


@pytest.fixture
async def ask() -> AsyncIterator[Ask]:
    """Asks the given addresses, the first of them first."""
    made: list[Authority] = []

    async def ask(*addresses: str, **settings: Any) -> Grant | None:
        config = replace(NsqConfig(), auth_http_addresses=addresses, **settings)
        made.append(Authority(config, choose=lambda _count: 0))
        return await asyncio.wait_for(made[-1].query(PEER, b"secret"), WAIT_S)

    yield ask
    for authority in made:
        await authority.close()


def _says(data: bytes) -> Answer:
    async def answer(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(data)
        await writer.drain()

    return answer


def _reply(body: bytes, *headers: bytes, status: bytes = HEAD) -> Answer:
    lines = b"".join(line + b"\r\n" for line in headers)
    return _says(status + lines + b"Content-Length: %d\r\n\r\n" % len(body) + body)


def _endless(head: bytes, piece: bytes) -> Answer:
    """Goes on for as long as somebody listens."""

    async def answer(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(head)
        while True:
            writer.write(piece)
            await writer.drain()

    return answer


async def test_a_good_answer(serve: Serve, ask: Ask) -> None:
    found = await ask(await serve(_reply(GOOD)))
    assert found is not None
    assert (found.ttl_ns, found.identity) == (60 * SECOND, "me")


LIARS = {
    "nothing": _says(b""),
    "no HTTP": _says(b"hello\r\n\r\n"),
    "half a body": _says(HEAD + b"Content-Length: 1000\r\n\r\n{"),
    "junk": _reply(b"\x00\xff{"),
    "deep": _reply(b"[" * 100_000),
    "another status": _reply(GOOD, status=b"HTTP/1.1 201 Created\r\n"),
    "a large body": _reply(b" " * limits.NSQ_AUTH_REPLY_MAX + GOOD),
    "an endless body": _endless(HEAD + b"\r\n", b" " * 65_536),
    "endless chunks": _endless(
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"1000\r\n" + b" " * 4096 + b"\r\n"
    ),
    "endless headers": _endless(HEAD, b"X-More: and more\r\n" * 100),
    "an endless header": _endless(HEAD + b"X-Long: ", b"x" * 65_536),
    "to itself": _reply(b"", b"Location: /auth", status=b"HTTP/1.1 302 Found\r\n"),
    "to a file": _reply(b"", b"Location: file:///etc/passwd", status=b"HTTP/1.1 302 Found\r\n"),
    "TLS wanted, nowhere": _reply(b"{}", status=b"HTTP/1.1 403 Forbidden\r\n"),
    "TLS wanted, junk": _reply(b"[", status=b"HTTP/1.1 403 Forbidden\r\n"),
    "a row too large": _reply(grant(row("(a{1000}){5}"))),
    "rows too large": _reply(grant(*[row("a{1000}")] * 60)),
}


@pytest.mark.parametrize("what", LIARS)
async def test_a_lying_server_is_passed_over(what: str, serve: Serve, ask: Ask) -> None:
    """It is no answer; the next server is asked and its answer counts."""
    liar = await serve(LIARS[what])
    assert await ask(liar) is None
    assert await ask(liar, await serve(_reply(GOOD))) is not None


async def test_one_that_never_answers(serve: Serve, ask: Ask) -> None:
    async def silent(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        await reader.read()

    quick = {"http_client_request_timeout_ns": 100 * MS}
    address = await serve(silent)
    assert await ask(address, **quick) is None
    assert await ask(address, await serve(_reply(GOOD)), **quick) is not None


async def test_a_redirect_is_followed(serve: Serve, ask: Ask) -> None:
    there = await serve(_reply(GOOD))
    location = b"Location: http://%s/x" % there.encode()
    found = await ask(await serve(_reply(b"", location, status=b"HTTP/1.1 302 Found\r\n")))
    assert found is not None


async def test_the_first_one_is_chosen_then_the_next(serve: Serve) -> None:
    asked: list[int] = []

    def refuses(number: int) -> Answer:
        async def answer(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            asked.append(number)
            writer.write(b"HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n")

        return answer

    addresses = tuple([await serve(refuses(number)) for number in range(3)])
    authority = Authority(
        replace(NsqConfig(), auth_http_addresses=addresses), choose=lambda count: count - 1
    )
    assert await authority.query(PEER, b"x") is None
    await authority.close()
    assert asked == [2, 0, 1]


async def test_an_aiohttp_server_gets_bytes_of_any_kind() -> None:
    """A secret need not be text."""
    seen: list[str] = []

    async def handle(request: web.Request) -> web.Response:
        seen.append(request.raw_path)
        return web.Response(body=GOOD)

    app = web.Application()
    app.router.add_get("/auth", handle)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    authority = Authority(replace(NsqConfig(), auth_http_addresses=(f"{host}:{port}",)))
    assert await authority.query(Peer("::1", tls=True, common_name="a b"), b"\xff\0&") is not None
    await authority.close()
    await runner.cleanup()
    assert seen == ["/auth?common_name=a+b&remote_ip=%3A%3A1&secret=%FF%00%26&tls=true"]


async def test_closing_gives_up_what_is_asked(serve: Serve) -> None:
    asked = asyncio.Event()

    async def silent(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        asked.set()
        await reader.read()

    authority = Authority(replace(NsqConfig(), auth_http_addresses=(await serve(silent),)))
    answers: list[Grant | None] = []
    task = authority.ask(PEER, b"x", answers.append)
    await asyncio.wait_for(asked.wait(), WAIT_S)
    await authority.close()
    assert task.cancelled()
    assert answers == []


def test_where_a_server_that_wants_tls_is_asked() -> None:
    asked = secure_endpoint("http://h:1/auth?x=%20", b'{"https_port": 4152}')
    assert asked == "https://h:4152/auth?x=%20"
    for body in (b"", b"[]", b'{"https_port": "x"}', b'{"https_port": 70000}'):
        with pytest.raises(AuthError):
            secure_endpoint("http://h:1/auth", body)


def test_a_long_ttl_is_bounded() -> None:
    assert Grant.read(grant(row(), ttl=2**62)).ttl_ns == DURATION_MAX
