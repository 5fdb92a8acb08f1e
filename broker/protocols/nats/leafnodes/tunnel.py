"""A TCP connection to a server through an HTTP proxy, by a CONNECT request (RFC 9110, 9.3.6).

    dialled -> (TLS with the proxy) -> CONNECT HOST:PORT -> 200 -> the bytes of the server

The returned socket has only the bytes of the server. With TLS to the proxy, it is one end of a pair
of sockets, and a task copies bytes between the other end and the proxy until one of them is closed.
"""

from __future__ import annotations

import asyncio
import base64
import socket
import ssl
from typing import TYPE_CHECKING

from broker.base.units import SECOND
from broker.base.values import dataclass
from broker.net import limits as net_limits
from broker.net.upgrade import HEAD_END, NotHttp, read_answer
from broker.protocols.nats.leafnodes import limits

if TYPE_CHECKING:
    Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class TunnelError(OSError):
    """The proxy cannot be reached, or refuses; the text has no secrets."""


@dataclass(frozen=True, slots=True)
class Proxy:
    """The address of a proxy, and the settings for its connections."""

    address: tuple[str, int]
    login: tuple[str, str] | None  # user and password
    context: ssl.SSLContext | None  # None: no TLS
    timeout_ns: int  # to connect, and again for the answer
    tls_timeout_ns: int


@dataclass(frozen=True, slots=True)
class Tunnel:
    """A connection through a proxy."""

    sock: socket.socket
    relay: asyncio.Task[None] | None  # copies the bytes; ends with the connection


async def open_tunnel(proxy: Proxy, target: str) -> Tunnel:
    """Connect to the HOST:PORT through a proxy. TunnelError, TimeoutError."""
    request = _request(target, proxy.login)
    if proxy.context is None:
        return Tunnel(await _plain(proxy, request), None)
    return await _secured(proxy, proxy.context, request)


def _request(target: str, login: tuple[str, str] | None) -> bytes:
    lines = [f"CONNECT {target} HTTP/1.1", f"Host: {target}"]
    if login is not None:
        token = base64.b64encode(":".join(login).encode()).decode()
        lines.append(f"Proxy-Authorization: Basic {token}")
    return "\r\n".join([*lines, "", ""]).encode()


def _check(head: bytes) -> None:
    """Check the head of the answer."""
    try:
        answer = read_answer(head.removesuffix(HEAD_END))
    except NotHttp as problem:
        raise TunnelError(f"failed to read proxy response: {problem}") from None
    if answer.status != 200:
        status = head.partition(b"\r\n")[0].partition(b" ")[2].decode("latin-1")
        raise TunnelError(f"proxy CONNECT failed: {status}")


async def _plain(proxy: Proxy, request: bytes) -> socket.socket:
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(proxy.timeout_ns / SECOND):
        sock = await _dial(proxy.address)
    try:
        async with asyncio.timeout(proxy.timeout_ns / SECOND):
            await loop.sock_sendall(sock, request)
            head = bytearray()
            while not head.endswith(HEAD_END):
                # Byte by byte, because the bytes after the head are for the owner of the socket.
                byte = await loop.sock_recv(sock, 1)
                if not byte or len(head) >= net_limits.WEBSOCKET_REQUEST_MAX:
                    raise TunnelError("failed to read proxy response: unexpected EOF")
                head += byte
        _check(bytes(head))
    except BaseException:
        sock.close()
        raise
    return sock


async def _dial(address: tuple[str, int]) -> socket.socket:
    """A connection to the first address of the host that accepts one."""
    loop = asyncio.get_running_loop()
    failed: OSError | None = None
    try:
        found = await loop.getaddrinfo(*address, type=socket.SOCK_STREAM)
    except OSError as problem:
        raise _unreachable(problem) from problem
    for family, kind, protocol, _, sockaddr in found:
        sock = socket.socket(family, kind, protocol)
        try:
            sock.setblocking(False)
            await loop.sock_connect(sock, sockaddr)
        except OSError as problem:
            sock.close()
            failed = problem
        except BaseException:
            sock.close()
            raise
        else:
            return sock
    assert failed is not None
    raise _unreachable(failed) from failed


def _unreachable(problem: OSError) -> TunnelError:
    return TunnelError(f"failed to connect to proxy: {problem.strerror or problem}")


async def _secured(proxy: Proxy, context: ssl.SSLContext, request: bytes) -> Tunnel:
    try:
        async with asyncio.timeout((proxy.timeout_ns + proxy.tls_timeout_ns) / SECOND):
            reader, writer = await asyncio.open_connection(
                *proxy.address,
                ssl=context,
                server_hostname=proxy.address[0],
                ssl_handshake_timeout=proxy.tls_timeout_ns / SECOND,
            )
    except TimeoutError:
        raise
    except ssl.SSLError as problem:
        raise TunnelError(f"proxy TLS handshake failed: {problem.reason}") from problem
    except OSError as problem:
        raise _unreachable(problem) from problem
    try:
        async with asyncio.timeout(proxy.timeout_ns / SECOND):
            writer.write(request)
            try:
                head = await reader.readuntil(HEAD_END)
            except (asyncio.IncompleteReadError, asyncio.LimitOverrunError):
                raise TunnelError("failed to read proxy response: unexpected EOF") from None
        _check(head)
        ours, theirs = socket.socketpair()
        try:
            ours.setblocking(False)
            inner = await asyncio.open_connection(sock=theirs)
        except BaseException:
            ours.close()
            theirs.close()
            raise
    except BaseException:
        writer.close()
        raise
    relays = _relay_both((reader, writer), inner)
    return Tunnel(ours, asyncio.get_running_loop().create_task(relays))


async def _relay_both(one: Streams, other: Streams) -> None:
    """Copy bytes between two connections until one of them is closed; then close both."""
    relays = [
        asyncio.ensure_future(_relay(one[0], other[1])),
        asyncio.ensure_future(_relay(other[0], one[1])),
    ]
    try:
        await asyncio.wait(relays, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for relay in relays:
            relay.cancel()
        await asyncio.gather(*relays, return_exceptions=True)
        one[1].close()
        other[1].close()


async def _relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(limits.NATS_LEAF_TUNNEL_BLOCK):
        writer.write(data)
        await writer.drain()
