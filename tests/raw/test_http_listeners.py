"""What every HTTP listener refuses, and connections that begin and never go on."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import BrokerFor
from support import Address, Server
from support.clients.http import nsq_topic, request
from support.open_files import few_left
from support.programs import nsqd

from broker.base.settings import Address as LookupAddress
from broker.base.units import MS
from broker.protocols.nsq import limits as nsq_limits
from broker.protocols.nsq.lookup.config import LookupConfig
from broker.protocols.nsq.lookup.server import LookupServer

pytestmark = pytest.mark.only_ours

TIMEOUT_S = 20.0
OPEN_FILES = 128
EVIL = {"Origin": "http://evil.example", "Content-Type": "text/plain"}
IMAGE = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "image"}
PAGES = {
    "nsq_http": "/stats",
    "monitor": "/varz",
    "bulk": "/bulk/v1/range/orders?start=1",
    "nsqlookupd_http": "/lookup?topic=orders",
}


@pytest.fixture
def server(broker_for: BrokerFor) -> Server:
    found = broker_for(
        {
            "nsqlookupd": {"enabled": True, "listen": "127.0.0.1:0", "http": "127.0.0.1:0"},
            "http": {"header_timeout": "100ms", "allowed_origins": ["https://dash.example"]},
        }
    )
    assert request(found.nsq_http, "POST", "/pub", b"secret", topic="orders").status == 200
    ports = json.loads((found.folder / "ports.json").read_text())
    found.addresses["nsqlookupd_http"] = address = Address.parse(ports["nsqlookupd_http"])
    found.addresses["nsqlookupd"] = Address.parse(ports["nsqlookupd"])
    assert request(address, "POST", "/topic/create", topic="orders").status == 200
    return found


def ask(address: Address, path: str, method: str = "GET", **headers: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(*address, timeout=TIMEOUT_S)
    connection.request(method, path, headers=headers)
    response = connection.getresponse()
    found = response.status, response.read()
    connection.close()
    return found


@pytest.mark.parametrize("listener", PAGES)
def test_pages_of_other_sites(server: Server, listener: str) -> None:
    address, path = server.addresses[listener], PAGES[listener]
    for headers, status in (
        ({}, 200),
        ({"Host": "evil.example:4151"}, 421),
        ({"Host": f"localhost:{address.port}"}, 200),
        (EVIL, 403),
        (IMAGE, 403),
        ({"Origin": f"http://{address}"}, 200),
        ({"Origin": "https://dash.example", "Sec-Fetch-Site": "cross-site"}, 200),
    ):
        found, body = ask(address, path, **headers)
        assert found == status, (headers, body)
        if status != 200:
            assert b"secret" not in body
            assert set(json.loads(body)) == {"message", "error"}


def test_a_page_changes_nothing(server: Server) -> None:
    for path in ("/pub?topic=new", "/topic/delete?topic=orders", "/debug/freememory"):
        assert ask(server.nsq_http, path, "POST", **EVIL)[0] == 403
    assert nsq_topic(server.nsq_http, "orders") is not None
    assert nsq_topic(server.nsq_http, "new") is None


@pytest.mark.parametrize("listener", PAGES)
@pytest.mark.parametrize("begun", [b"", b"GET / HTTP/1.1\r\nHost: local"])
def test_half_a_request(server: Server, listener: str, begun: bytes) -> None:
    with socket.create_connection(server.addresses[listener], TIMEOUT_S) as peer:
        peer.sendall(begun)
        assert peer.recv(1) == b""


def test_a_connection_of_the_quick_way_to_lookups_rests_too(server: Server) -> None:
    connection = http.client.HTTPConnection(*server.addresses["nsqlookupd_http"])
    for _ in range(3):
        connection.request("GET", "/lookup?topic=orders", headers={"Accept": "*/*"})
        assert connection.getresponse().read().startswith(b'{"channels"')
    connection.close()


@pytest.fixture
def everywhere(tmp_path: Path) -> Iterator[Address]:
    program = nsqd(tmp_path)
    program.http = Address("0.0.0.0", 0)
    with program:
        yield Address("127.0.0.1", program.http.port)


def test_a_drop_in_that_listens_everywhere_goes_by_any_name(everywhere: Address) -> None:
    assert ask(everywhere, "/ping", Host="any.example") == (200, b"OK")
    assert ask(everywhere, "/ping", Host="any.example", **EVIL)[0] == 403


def test_a_drop_in_takes_names_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TWINWIRE_HTTP_ALLOWED_HOSTS", "broker.example")
    with nsqd(tmp_path) as program:
        assert ask(program.http, "/ping", Host="any.example")[0] == 421
        assert ask(program.http, "/ping", Host="broker.example") == (200, b"OK")


IDENTITY = json.dumps(
    {"broadcast_address": "b", "tcp_port": 1, "http_port": 2, "version": "v"}
).encode()
IDENTIFY = b"IDENTIFY\n" + len(IDENTITY).to_bytes(4, "big") + IDENTITY


@pytest.mark.parametrize("begun", [b"", b"  V", b"  V1", b"  V1IDENT", b"  V1PING\n"])
def test_a_peer_of_nsqlookupd_that_never_says_who_it_is(
    monkeypatch: pytest.MonkeyPatch, begun: bytes
) -> None:
    monkeypatch.setattr(nsq_limits, "NSQ_GREETING", 50 * MS)

    async def meet() -> None:
        server = LookupServer(LookupConfig(listen=LookupAddress("127.0.0.1", 0), http=None))
        await server.start()
        try:
            reader, writer = await asyncio.open_connection(*server.ports["tcp"])
            writer.write(begun)
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == (b"\0\0\0\2OK" if b"PING" in begun else b"")
        finally:
            await server.stop()

    asyncio.run(asyncio.wait_for(meet(), TIMEOUT_S))


async def answered(reader: asyncio.StreamReader) -> bytes:
    return await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))


def test_a_peer_of_nsqlookupd_that_falls_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nsq_limits, "NSQ_GREETING", 50 * MS)

    async def meet() -> None:
        now_ns = 0
        config = LookupConfig(listen=LookupAddress("127.0.0.1", 0), http=None)
        server = LookupServer(config, lambda: now_ns)
        await server.start()
        try:
            reader, writer = await asyncio.open_connection(*server.ports["tcp"])
            writer.write(b"  V1" + IDENTIFY)
            assert b"broadcast_address" in await answered(reader)
            (peer,) = server.peers.connections
            for _ in range(3):
                now_ns += 2 * config.inactive_producer_timeout_ns - 1
                peer._check_silence()  # it may be silent for one more
                writer.write(b"PING\n")
                assert await answered(reader) == b"OK"
            now_ns += 2 * config.inactive_producer_timeout_ns
            peer._check_silence()
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
            while server.peers.connections:  # noqa: ASYNC110 - no bell
                await asyncio.sleep(0)
        finally:
            await server.stop()

    asyncio.run(asyncio.wait_for(meet(), TIMEOUT_S))


def test_the_loop_looks_for_silent_peers_of_nsqlookupd(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nsq_limits, "NSQ_LOOKUP_SILENCE_MIN", 20 * MS)

    async def meet() -> None:
        listen = LookupAddress("127.0.0.1", 0)
        server = LookupServer(
            LookupConfig(listen=listen, http=None, inactive_producer_timeout_ns=MS)
        )
        await server.start()
        try:
            reader, writer = await asyncio.open_connection(*server.ports["tcp"])
            writer.write(b"  V1" + IDENTIFY)
            with contextlib.suppress(ConnectionError):
                assert b"broadcast_address" in await reader.read()
        finally:
            await server.stop()

    asyncio.run(asyncio.wait_for(meet(), TIMEOUT_S))


def test_other_clients_leave_files_to_http(tmp_path: Path) -> None:
    """Otherwise probes would fail and have the broker restarted."""
    program = nsqd(tmp_path)
    program.command = ["prlimit", f"--nofile={OPEN_FILES}:{OPEN_FILES}", *program.command]
    with program, contextlib.ExitStack() as stack:
        answer = b"?"
        while answer:
            one = stack.enter_context(socket.create_connection(program.tcp, TIMEOUT_S))
            answer = b""
            with contextlib.suppress(ConnectionError):
                one.sendall(b"  V2IDENTIFY\n\0\0\0\2{}")
                answer = one.recv(64)
        assert ask(program.http, "/ping") == (200, b"OK")
        with contextlib.suppress(ConnectionError):
            other = stack.enter_context(socket.create_connection(program.tcp, TIMEOUT_S))
            other.sendall(b"  V2")
            assert other.recv(64) == b""


def test_a_peer_of_nsqlookupd_does_not_take_the_last_files() -> None:
    async def meet() -> None:
        server = LookupServer(LookupConfig(listen=LookupAddress("127.0.0.1", 0), http=None))
        await server.start()
        try:
            with few_left():
                reader, writer = await asyncio.open_connection(*server.ports["tcp"])
                writer.write(b"  V1PING\n")
                with contextlib.suppress(ConnectionError):
                    assert await reader.read() == b""
                assert not server.peers.connections
        finally:
            await server.stop()

    asyncio.run(asyncio.wait_for(meet(), TIMEOUT_S))
