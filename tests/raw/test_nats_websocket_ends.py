"""WebSocket clients by raw sockets: how connections end, who they are, and TLS.

Each scenario runs against the original as well (TWINWIRE_TEST_TARGET=original), but for those
marked `only_ours`.
"""

from __future__ import annotations

import signal
import ssl
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import PeerError, RawPeer
from support.authority import Authority
from support.clients.websocket import (
    BINARY,
    CLOSE,
    CONTINUE,
    FIN,
    PACKED,
    PING,
    Start,
    WebPeer,
    deflated,
    frame,
    request,
    servers,
    web_peer,
    websocket_of,
)
from support.nats_file import FileServer, secure

from broker.net import errors


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    yield from servers(tmp_path_factory)


@pytest.mark.parametrize(
    ("sent", "answer"),
    [
        (b"\x03\xe8bye", (1000, "bye")),
        (b"\x03\xe9", (1001, "")),
        (b"\x03\xe8\xff", (1007, "invalid utf8 body in close frame")),
        (b"\x0f\xa0own", (4000, "own")),
    ],
)
def test_close_is_answered(start: Start, sent: bytes, answer: tuple[int, str]) -> None:
    with web_peer(websocket_of(start().folder)) as peer:
        peer.send(sent, FIN | CLOSE)
        assert peer.read_close() == answer


@pytest.mark.only_ours
def test_close_without_a_code(start: Start) -> None:
    with web_peer(websocket_of(start().folder)) as peer:
        peer.send(b"", FIN | CLOSE)
        assert peer.read_frame() == (FIN | CLOSE, b"")
        peer.raw.expect_close()


@pytest.mark.parametrize(
    ("sent", "code", "reason"),
    [
        (b"FOO\r\n", 1002, "Protocol Violation"),
        (b"PUB a 9999999\r\n", 1009, "Maximum Message Payload Exceeded"),
        (b"PUB " + b"a" * 5_000, 1008, "Maximum Control Line Exceeded"),
    ],
)
def test_codes_of_errors(start: Start, sent: bytes, code: int, reason: str) -> None:
    with web_peer(websocket_of(start().folder)) as peer:
        peer.send(sent)
        assert peer.read_close() == (code, reason)
        assert peer.stream.startswith(b"-ERR ")


@pytest.mark.only_ours  # the original closes the connection, often before it has said why
@pytest.mark.parametrize(
    ("wire", "reason"),
    [
        (frame(FIN | BINARY, b"PING\r\n", mask=None), errors.WEBSOCKET_UNMASKED),
        (frame(FIN | PING, b"x" * 126), errors.WEBSOCKET_CONTROL_LONG),
        (frame(PING), errors.WEBSOCKET_CONTROL_PART),
        (frame(FIN | 3), errors.WEBSOCKET_OPCODE.format(3)),
        (frame(BINARY) + frame(FIN | BINARY), errors.WEBSOCKET_INSIDE),
        (frame(FIN | CONTINUE), errors.WEBSOCKET_CONTINUED),
        (frame(FIN | PACKED | BINARY, deflated(b"PING\r\n")), errors.WEBSOCKET_PACKED),
    ],
)
def test_frames_against_the_rules(start: Start, wire: bytes, reason: str) -> None:
    with web_peer(websocket_of(start().folder)) as peer:
        peer.raw.send(wire)
        assert peer.read_close() == (1002, reason)


ACCOUNTS = (
    "accounts { A { users: [{user: a, password: a}] }, B { users: [{user: b, password: b}] } }"
)


@pytest.mark.parametrize(
    ("listener", "more", "connect", "code", "reason"),
    [
        ("", "authorization { user: a, password: b }", {}, 1008, "Authentication Failure"),
        ("authorization { token: t }", "", {}, 1008, "Authentication Failure"),
        ("authorization { token: t }", "", {"auth_token": "t"}, 0, ""),
        ("authorization { user: u, password: p }", "", {"user": "u", "pass": "p"}, 0, ""),
        ("no_auth_user: b", ACCOUNTS, {}, 0, ""),
        ("no_auth_user: b", ACCOUNTS, {"user": "a", "pass": "x"}, 1008, "Authentication Failure"),
    ],
)
def test_logins(
    start: Start, listener: str, more: str, connect: dict[str, str], code: int, reason: str
) -> None:
    address = websocket_of(start(listener, more).folder)
    if not code:
        web_peer(address, connect=connect).raw.close()
        return
    with WebPeer(RawPeer(address)) as peer:
        peer.info()
        text = ",".join(f'"{key}":"{value}"' for key, value in connect.items())
        peer.send(b"CONNECT {%b}\r\nPING\r\n" % text.encode())
        assert peer.read_close() == (code, reason)
        assert peer.stream == b"-ERR 'Authorization Violation'\r\n"


@pytest.mark.parametrize(
    ("listener", "more"),
    [
        ("authorization { token: t, timeout: 0.5 }", ""),
        ("", "authorization { token: t, timeout: 0.5 }"),
        ("authorization { token: t, timeout: 0.5 }", "authorization { timeout: 50 }"),
    ],
)
def test_time_to_log_in(start: Start, listener: str, more: str) -> None:
    began = time.monotonic()
    with WebPeer(RawPeer(websocket_of(start(listener, more).folder))) as peer:
        assert peer.info()["auth_required"] is True
        assert peer.read_close() == (1008, "Authentication Timeout")
        assert peer.stream == b"-ERR 'Authentication Timeout'\r\n"
    assert time.monotonic() - began > 0.4


def test_too_many_connections(start: Start) -> None:
    address = websocket_of(start("", "max_connections: 1").folder)
    with web_peer(address), WebPeer(RawPeer(address)) as second:
        assert second.read_close() == (1008, "Maximum Connections Exceeded")


@pytest.mark.only_ours  # the original says 1006, which nobody may send
def test_stale_connections(start: Start) -> None:
    server = start("", 'ping_interval: "200ms"\nping_max: 1')
    with web_peer(websocket_of(server.folder)) as peer:
        assert peer.read_close() == (1001, "Stale Connection")


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGUSR2])
def test_shutdown_and_lame_duck(start: Start, how: signal.Signals) -> None:
    more = 'lame_duck_grace_period: "100ms"\nlame_duck_duration: "30s"'
    server = start("", more, own=True)
    address = websocket_of(server.folder)
    with web_peer(address, connect={"protocol": 1}) as peer:
        server.child.send_signal(how)
        assert peer.read_close() == (1001, "Server Shutdown")
        ldm = b'"ldm":true' in peer.stream
        assert ldm == (how == signal.SIGUSR2)
    server.child.wait(10)
    with pytest.raises(OSError, match="refused"):
        RawPeer(address)


# --- who it is


def test_forwarded_for_is_no_address_of_its_own(start: Start) -> None:
    """Anybody can write that header: rights that depend on an address must not follow it."""
    server = start("", "debug: true")
    with WebPeer(RawPeer(websocket_of(server.folder)), {"X-Forwarded-For": "192.0.2.7"}) as peer:
        assert peer.info()["client_ip"] == "127.0.0.1"
        port = peer.raw.socket.getsockname()[1]
    server.await_log(f"192.0.2.7/127.0.0.1:{port} - wid:")


def test_info_names_this_listener(start: Start) -> None:
    address = websocket_of(start().folder)
    with WebPeer(RawPeer(address)) as peer:
        info = peer.info()
    assert (info["host"], info["port"]) == tuple(address)
    assert "tls_required" not in info


# --- TLS


def tls_text(authority: Authority, name: str, more: str = "") -> str:
    pair = authority.issue(name)
    files = f'cert_file: "{pair.certificate}", key_file: "{pair.key}"'
    return f'websocket {{ listen: "127.0.0.1:-1", tls {{ {files}, timeout: 1 }}\n{more} }}\n'


def common_name(peer: RawPeer) -> str:
    assert isinstance(peer.socket, ssl.SSLSocket)
    shown = peer.socket.getpeercert()
    assert shown is not None
    return dict(pair for part in shown["subject"] for pair in part)["commonName"]


def test_wss_and_its_reload(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    server = FileServer(tmp_path / "server", tls_text(authority, "one"))
    try:
        address = websocket_of(server.folder)
        first = RawPeer(address)
        secure(first, authority.client())
        assert common_name(first) == "one"
        with WebPeer(first) as peer:
            info = peer.info()
            assert info["tls_required"] is True
            peer.send(b"CONNECT {}\r\nSUB a 1\r\n")
            peer.send(b"PING\r\n")
            peer.read_until(b"PONG\r\n")
            server.reload(tls_text(authority, "two"))
            server.await_log("Reloaded server configuration")
            second = RawPeer(address)
            secure(second, authority.client())
            assert common_name(second) == "two"
            with WebPeer(second) as other:
                body = b"x" * 200_000
                other.send(b"CONNECT {}\r\nPUB a %d\r\n%b\r\n" % (len(body), body))
                assert peer.read_until(body + b"\r\n")
    finally:
        server.close()


def test_wss_handshakes_have_their_time(tmp_path: Path) -> None:
    text = tls_text(Authority(tmp_path), "one", 'handshake_timeout: "500ms"')
    server = FileServer(tmp_path / "server", text)
    try:
        with RawPeer(websocket_of(server.folder)) as peer:
            peer.read_to_eof()
        with RawPeer(websocket_of(server.folder)) as peer:
            peer.send(request())  # in plain
            with pytest.raises((PeerError, AssertionError)):
                peer.read_until(b"101 Switching")
    finally:
        server.close()
