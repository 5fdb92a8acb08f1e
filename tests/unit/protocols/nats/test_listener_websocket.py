"""TLS of the WebSocket listener, with real sockets: who is known by a certificate, and reloads."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import uvloop
from support.authority import Authority, Pair

from broker.base.units import SECOND
from broker.net.listener import Runtime
from broker.net.openssl import TlsError
from broker.protocols.nats.server import NatsServer
from broker.protocols.nats.settings import Settings, Tls, Websocket
from broker.protocols.nats.tls import key_fingerprint

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

DEADLINE_S = 20
UPGRADE = (
    b"GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)


def on_uvloop(
    test: Callable[[Path], Coroutine[None, None, None]],
) -> Callable[[Path], None]:
    """Run an async test on the loop that the broker runs on."""

    @wraps(test)
    def run(tmp_path: Path) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(asyncio.wait_for(test(tmp_path), DEADLINE_S))

    return run


def der(pair: Pair) -> bytes:
    return ssl.PEM_cert_to_DER_cert(pair.certificate.read_text())


def settings(pair: Pair, **more: object) -> Settings:
    tls = replace(Tls(str(pair.certificate), str(pair.key)), **more)  # type: ignore[arg-type]
    listener = Websocket(listen=("127.0.0.1", 0), tls=tls)
    return Settings(listen=("127.0.0.1", 0), websocket=listener)


class Visit:
    """One client of the listener."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def pay(cls, server: NatsServer, context: ssl.SSLContext) -> Visit:
        streams = await asyncio.open_connection(
            *server.ports["websocket"], ssl=context, server_hostname="localhost"
        )
        visit = cls(*streams)
        visit.writer.write(UPGRADE)
        return visit

    async def status(self) -> int:
        """Of the answer; 0: there is none."""
        line = await self.reader.readline()
        return int(line.split()[1]) if line else 0

    def shown(self) -> bytes:
        found: bytes = self.writer.get_extra_info("ssl_object").getpeercert(True)
        return found


@on_uvloop
async def test_the_session_knows_the_certificate(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    known, unknown = authority.issue("known"), authority.issue("unknown")
    pins = frozenset({key_fingerprint(der(known))})
    asked = settings(
        authority.issue("server"), verify=True, ca_file=str(authority.file), pinned_certs=pins
    )
    server = NatsServer(asked, Runtime())
    await server.start()
    visit = await Visit.pay(server, authority.client(known))
    assert await visit.status() == 101
    await visit.reader.readuntil(b"} \r\n")
    (session,) = server.sessions
    assert session.tls_peer is not None
    assert session.tls_peer.der == der(known)
    assert (session.tls_peer.version, session.tls_peer.cipher) == ("1.3", "TLS_AES_128_GCM_SHA256")
    refused = await Visit.pay(server, authority.client(unknown))
    assert await refused.status() == 403
    with contextlib.suppress(ssl.SSLError, ConnectionError):
        assert await (await Visit.pay(server, authority.client())).status() == 0
    for one in (visit, refused):
        one.writer.close()
    await server.stop()


@on_uvloop
async def test_a_reload_changes_what_is_shown(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    first, second = authority.issue("first"), authority.issue("second")
    server = NatsServer(settings(first), Runtime())
    await server.start()
    steady = await Visit.pay(server, authority.client())
    assert steady.shown() == der(first)
    await steady.reader.readuntil(b"} \r\n")
    await server.reload(settings(second))
    fresh = await Visit.pay(server, authority.client())
    assert fresh.shown() == der(second)
    with pytest.raises(TlsError):
        await server.reload(settings(second, ca_file="absent", verify=True))
    again = await Visit.pay(server, authority.client())
    assert again.shown() == der(second)
    steady.writer.write(b"\x81\x86\0\0\0\0PING\r\n")  # it is still there
    assert (await steady.reader.readuntil(b"PONG\r\n"))[-6:] == b"PONG\r\n"
    for one in (steady, fresh, again):
        one.writer.close()
    await server.stop()


@on_uvloop
async def test_handshakes_have_their_slices_and_their_rate(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    runtime = Runtime()
    steps: list[object] = []
    add = runtime.handshakes.add

    def count(step: Callable[[], None]) -> None:
        steps.append(step)
        add(step)

    runtime.handshakes.add = count  # type: ignore[method-assign]
    server = NatsServer(settings(authority.issue("server"), connection_rate_limit=2), runtime)
    await server.start()
    visits = [await Visit.pay(server, authority.client()) for _ in range(2)]
    for visit in visits:
        assert await visit.status() == 101
    assert len(steps) >= 2
    with pytest.raises((ssl.SSLError, ConnectionError)):
        await Visit.pay(server, authority.client())
    for visit in visits:
        visit.writer.close()
    await server.stop()


@on_uvloop
async def test_half_a_handshake_has_its_time(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    asked = settings(authority.issue("server"))
    assert asked.websocket is not None
    listener = replace(asked.websocket, handshake_timeout_ns=SECOND // 10)
    server = NatsServer(replace(asked, websocket=listener), Runtime())
    await server.start()
    reader, writer = await asyncio.open_connection(*server.ports["websocket"])
    writer.write(b"\x16\x03\x01\x02\x00\x01")
    assert await reader.read() == b""
    context = authority.client()
    reader, writer = await asyncio.open_connection(
        *server.ports["websocket"], ssl=context, server_hostname="localhost"
    )
    writer.write(b"GET /")  # nor may the request behind it take longer
    assert await reader.read() == b""
    writer.close()
    await server.stop()
