"""Clients behind a load balancer that says their addresses, here and on the original."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from support import RawPeer
from support.authority import Authority
from support.clients.http import request
from support.clients.lookup import eventually
from support.nats_file import FileServer, secure

if TYPE_CHECKING:
    from pathlib import Path

    from support.nats_file import StartServer

SIGNATURE = b"\r\n\r\n\x00\r\nQUIT\n"
CONNECT = b'CONNECT {"verbose":false,"protocol":1}\r\nPING\r\n'
LINE = b"PROXY TCP4 192.0.2.9 198.51.100.7 51514 4222\r\n"


def binary(command: int = 0x21, family: int = 0x11, body: bytes = b"", size: int = -1) -> bytes:
    length = len(body) if size < 0 else size
    return SIGNATURE + struct.pack(">BBH", command, family, length) + body


INET = bytes((192, 0, 2, 9, 198, 51, 100, 7)) + struct.pack(">HH", 51514, 4222)
INET6 = (
    bytes.fromhex("20010db8000000000000000000000009")
    + bytes.fromhex("20010db8000000000000000000000007")
    + struct.pack(">HH", 51514, 4222)
)
MAPPED = bytes.fromhex("00000000000000000000ffffc0000209" * 2) + struct.pack(">HH", 51514, 4222)

SAID = {
    "v1": (LINE, "192.0.2.9"),
    "v1 of IPv6": (b"PROXY TCP6 2001:db8::9 2001:db8::7 51514 4222\r\n", "2001:db8::9"),
    "v1 of IPv4 as IPv6": (b"PROXY TCP6 ::ffff:192.0.2.9 ::1 51514 4222\r\n", "192.0.2.9"),
    "v2": (binary(body=INET), "192.0.2.9"),
    "v2 with more behind the addresses": (binary(body=INET + b"\x04\x00\x01x"), "192.0.2.9"),
    "v2 of IPv6": (binary(family=0x21, body=INET6), "2001:db8::9"),
    "v2 of IPv4 as IPv6": (binary(family=0x21, body=MAPPED), "192.0.2.9"),
}
UNSAID = {
    "no header": b"",
    "v1 of nobody": b"PROXY UNKNOWN\r\n",
    "v1 of nobody with words": b"PROXY UNKNOWN ffff::1 ffff::2 1 2\r\n",
    "v2 of the proxy itself": binary(0x20, 0x00),
    "v2 of the proxy itself with bytes": binary(0x20, 0x11, INET),
    "v2 of no family": binary(0x21, 0x01, b"abc"),
}
REFUSED = {
    "v1 too long": (b"PROXY " + b"x" * 120, "v1 line too long"),
    "v1 short": (b"PROXY TCP4 192.0.2.9\r\n", "invalid v1 format"),
    "v1 empty": (b"PROXY \r\n", "invalid v1 format"),
    "v1 no address": (b"PROXY TCP4 a.b.c.d 198.51.100.7 1 2\r\n", "invalid address"),
    "v1 with a zone": (b"PROXY TCP6 fe80::1%eth0 ::1 1 2\r\n", "invalid address"),
    "v1 another family": (b"PROXY TCP4 ::1 ::1 1 2\r\n", "TCP4 with IPv6 address"),
    "v1 the other family": (
        b"PROXY TCP6 192.0.2.9 198.51.100.7 1 2\r\n",
        "TCP6 with IPv4 address",
    ),
    "v1 another protocol": (b"PROXY UDP4 192.0.2.9 198.51.100.7 1 2\r\n", "invalid protocol UDP4"),
    "v1 a port too high": (b"PROXY TCP4 192.0.2.9 198.51.100.7 65536 2\r\n", "source port"),
    "v1 no port": (b"PROXY TCP4 192.0.2.9 198.51.100.7 1 x\r\n", "dest port"),
    "v2 another signature": (b"\r\n\r\n\x00\rxxxxxxxxxxxx", "invalid signature"),
    "v2 another version": (binary(0x11, body=INET), "invalid version 0x10"),
    "v2 another command": (binary(0x22, body=INET), "unknown PROXY protocol command: 0x02"),
    "v2 datagrams": (binary(family=0x12, body=INET), "only STREAM protocol supported"),
    "v2 unix": (binary(family=0x31, body=bytes(216)), "unsupported address family 0x30"),
    "v2 short": (binary(body=INET[:8]), "IPv4 address data too short: 8 bytes"),
    "v2 short of IPv6": (binary(family=0x21, body=INET), "IPv6 address data too short: 12 bytes"),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FileServer]:
    started = FileServer(tmp_path_factory.mktemp("server"), "proxy_protocol: true\n")
    yield started
    started.close()


def shown(server: FileServer, cid: int) -> dict[str, Any]:
    """A connection in /connz, open or closed."""
    (one,) = request(server.monitor, "GET", "/connz", cid=cid, state="any").json["connections"]
    found: dict[str, Any] = one
    return found


def connected(peer: RawPeer) -> dict[str, Any]:
    """The INFO that follows the answer to the first PING."""
    assert peer.read_line() == b"PONG\r\n"
    found: dict[str, Any] = json.loads(peer.read_line()[5:])
    assert found["connect_info"]
    return found


@pytest.mark.parametrize("name", SAID)
def test_the_address_is_that_of_the_header(server: FileServer, name: str) -> None:
    header, host = SAID[name]
    with RawPeer(server.address) as peer:
        info = json.loads(peer.read_line()[5:])
        assert "client_ip" not in info
        peer.send(header + CONNECT)
        assert connected(peer)["client_ip"] == host
        one = shown(server, info["client_id"])
        assert (one["ip"], one["port"]) == (host, 51514)


@pytest.mark.parametrize("name", UNSAID)
def test_the_address_is_that_of_the_connection(server: FileServer, name: str) -> None:
    with RawPeer(server.address) as peer:
        info = json.loads(peer.read_line()[5:])
        assert "client_ip" not in info
        peer.send(UNSAID[name] + CONNECT)
        assert connected(peer)["client_ip"] == "127.0.0.1"
        one = shown(server, info["client_id"])
        assert (one["ip"], one["port"]) == peer.socket.getsockname()


@pytest.mark.parametrize("name", REFUSED)
def test_a_header_that_is_none_ends_the_connection(server: FileServer, name: str) -> None:
    header, reason = REFUSED[name]
    line = "Error reading PROXY protocol header from 127.0.0.1:"
    before, reasons = server.said().count(line), server.said().count(reason)
    with RawPeer(server.address) as peer:
        cid = json.loads(peer.read_line()[5:])["client_id"]
        peer.send(header + CONNECT)
        assert peer.read_to_eof() == b""
    server.await_log(line, before + 1)
    server.await_log(reason, reasons + 1)
    eventually(lambda: shown(server, cid).get("reason"), "Protocol Violation")


def test_a_header_in_single_bytes(server: FileServer) -> None:
    with RawPeer(server.address) as peer:
        peer.read_line()
        for byte in binary(body=INET) + CONNECT:
            peer.send(bytes((byte,)))
        assert connected(peer)["client_ip"] == "192.0.2.9"


def test_a_silent_connection_is_closed_in_time(server: FileServer) -> None:
    line = "Error reading PROXY protocol header from 127.0.0.1:"
    before = server.said().count(line)
    with RawPeer(server.address) as peer:
        peer.read_line()
        assert peer.read_to_eof() == b""
    server.await_log(line, before + 1)


def test_the_header_comes_before_tls(start_nats: StartServer, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    files = authority.issue("server")
    pair = f'cert_file: "{files.certificate}", key_file: "{files.key}"'
    for how in ("false", "true", "auto"):
        first = f"tls {{ {pair}, handshake_first: {how} }}"
        server = start_nats(f"{first}\nproxy_protocol: true\n")
        with RawPeer(server.address) as peer:
            if how == "false":
                assert "client_ip" not in json.loads(peer.read_line()[5:])
            peer.send(LINE)
            secure(peer, authority.client())
            if how != "false":
                assert json.loads(peer.read_line()[5:])["client_ip"] == "192.0.2.9"
            peer.send(CONNECT)
            assert connected(peer)["client_ip"] == "192.0.2.9"


def test_without_the_setting_a_header_is_an_unknown_operation(start_nats: StartServer) -> None:
    server = start_nats("")
    with RawPeer(server.address) as peer:
        peer.read_line()
        peer.send(LINE + CONNECT)
        assert peer.read_to_eof() == b"-ERR 'Unknown Protocol Operation'\r\n"
