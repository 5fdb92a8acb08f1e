"""WebSocket clients by raw sockets: the handshake, and frames.

Each scenario runs against the original as well (TWINWIRE_TEST_TARGET=original), but for those
marked `only_ours`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from support import RawPeer
from support.clients.websocket import (
    ACCEPT,
    BINARY,
    CONTINUE,
    DEFLATE,
    FIN,
    PACKED,
    PING,
    PONG,
    TEXT,
    UNMASKED,
    Start,
    WebPeer,
    deflated,
    frame,
    inflated,
    request,
    servers,
    web_peer,
    websocket_of,
)
from support.nats_file import FileServer

from broker.net import errors

CHROME = {"User-Agent": "Mozilla/5.0 (X11; Linux x86_64) Chrome/130.0 Safari/537.36"}
SAFARI = {"User-Agent": "Mozilla/5.0 (Macintosh) Version/18.0 Safari/605.1.15"}


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    yield from servers(tmp_path_factory)


def handover(server: FileServer, data: bytes) -> RawPeer:
    peer = RawPeer(websocket_of(server.folder))
    peer.send(data)
    return peer


# --- the handshake


@pytest.mark.parametrize(
    ("first", "headers", "status", "reason"),
    [
        ("POST / HTTP/1.1", {"Content-Length": "0"}, "405 Method Not Allowed", "METHOD"),
        ("GET / HTTP/1.1", {"Upgrade": None}, "400 Bad Request", "UPGRADE"),
        ("GET / HTTP/1.1", {"Upgrade": "h2c"}, "400 Bad Request", "UPGRADE"),
        ("GET / HTTP/1.1", {"Connection": None}, "400 Bad Request", "CONNECTION"),
        ("GET / HTTP/1.1", {"Connection": "close"}, "400 Bad Request", "CONNECTION"),
        ("GET / HTTP/1.1", {"Sec-WebSocket-Key": None}, "400 Bad Request", "KEY"),
        ("GET / HTTP/1.1", {"Sec-WebSocket-Key": "dG9v"}, "400 Bad Request", "KEY_BAD"),
        ("GET / HTTP/1.1", {"Sec-WebSocket-Version": None}, "400 Bad Request", "VERSION"),
        ("GET / HTTP/1.1", {"Sec-WebSocket-Version": "8"}, "400 Bad Request", "VERSION"),
        ("GET / HTTP/1.0", {"Host": None}, "400 Bad Request", "HOST"),
    ],
)
def test_requests_that_are_none(
    start: Start, first: str, headers: dict[str, str | None], status: str, reason: str
) -> None:
    server = start()
    with handover(server, request(headers, first)) as peer:
        head = peer.read_until(b"\r\n\r\n").decode()
        text = status.partition(" ")[2] + "\n"
        assert peer.read_exact(len(text)) == text.encode()
    assert head.partition("\r\n")[0][:7] == "HTTP/1."
    assert head.partition("\r\n")[0][9:] == status
    for line in (
        "Content-Type: text/plain; charset=utf-8",
        "Sec-Websocket-Version: 13",
        "X-Content-Type-Options: nosniff",
        f"Content-Length: {len(text)}",
    ):
        assert f"\r\n{line}\r\n" in head
    server.await_log(f"websocket handshake error: {getattr(errors, 'WEBSOCKET_' + reason)}")


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (request({"Host": None}), errors.HTTP_NO_HOST),
        (request({"a\r\nHost": "2"}), errors.HTTP_BAD_REQUEST),
        (b"hello\r\n\r\n", errors.HTTP_BAD_REQUEST),
        (b"GET / HTTP/1.1\r\nx y\r\n\r\n", errors.HTTP_BAD_REQUEST),
    ],
)
def test_what_is_no_request(start: Start, data: bytes, text: str) -> None:
    with handover(start(), data) as peer:
        assert peer.read_to_eof().decode() == (
            f"HTTP/1.1 {text}\r\nContent-Type: text/plain; charset=utf-8\r\n"
            f"Connection: close\r\n\r\n{text}"
        )


def test_request_too_large(start: Start) -> None:
    with handover(start(), request({"X": "a" * (2 << 20)})) as peer:
        assert peer.read_until(b"\r\n") == b"HTTP/1.1 431 Request Header Fields Too Large\r\n"


def test_nothing_may_follow_before_the_answer(start: Start) -> None:
    server = start()
    with handover(server, request() + frame(FIN | BINARY, b"PING\r\n")) as peer:
        peer.expect_close()
    server.await_log(errors.WEBSOCKET_EARLY)


def test_the_answer(start: Start) -> None:
    both = {**DEFLATE, **UNMASKED, "Sec-WebSocket-Protocol": "nats"}
    with WebPeer(RawPeer(websocket_of(start().folder)), both) as peer:
        assert peer.answer == (
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Accept: {ACCEPT}\r\nNats-No-Masking: true\r\n\r\n"
        )
    with WebPeer(RawPeer(websocket_of(start("compression: true").folder)), both) as peer:
        assert (
            "\r\nSec-WebSocket-Extensions: permessage-deflate; server_no_context_takeover; "
            "client_no_context_takeover\r\nNats-No-Masking: true\r\n"
        ) in peer.answer


@pytest.mark.parametrize("first", ["GET /any/path?x=1 HTTP/1.1", "GET / HTTP/1.0"])
def test_any_path_is_a_client(start: Start, first: str) -> None:
    headers = {"Upgrade": "x, WebSocket", "Connection": "keep-alive, upgrade"}
    with handover(start(), request(headers, first)) as peer:
        assert peer.read_until(b"\r\n") == b"HTTP/1.1 101 Switching Protocols\r\n"


@pytest.mark.parametrize(
    ("listener", "host", "origin", "fine"),
    [
        ("", "a", "http://b", True),
        ("same_origin: true", "a", None, True),
        ("same_origin: true", "a", "http://a", True),
        ("same_origin: true", "a:81", "http://A:81", True),
        ("same_origin: true", "a:81", "http://a", False),
        ("same_origin: true", "a", "http://b", False),
        ("same_origin: true", "a", "http://a:0", False),
        ("same_origin: true", "a:81", "https://a:81", False),
        ("same_origin: true", "a", "ftp://a", False),
        ("same_origin: true", "a", "null", False),
        ('allowed_origins: ["http://b", "https://c:444"]', "a", "http://b:80", True),
        ('allowed_origins: ["http://b", "https://c:444"]', "a", "https://c:444", True),
        ('allowed_origins: ["http://b", "https://c:444"]', "a", "https://b", False),
        ('allowed_origins: ["http://b", "https://c:444"]', "a", "https://c", False),
        ('allowed_origins: ["http://b", "https://c:444"]', "a", "http://a", False),
        ('allowed_origins: ["http://b", "https://c:444"]', "a", None, True),
    ],
)
def test_origins(start: Start, listener: str, host: str, origin: str | None, fine: bool) -> None:
    for name in ("Origin", "Sec-WebSocket-Origin"):
        with handover(start(listener), request({"Host": host, name: origin})) as peer:
            want = b"101 Switching Protocols" if fine else b"403 Forbidden"
            assert peer.read_line() == b"HTTP/1.1 " + want + b"\r\n"


def test_half_a_request_has_its_time(start: Start) -> None:
    server = start('handshake_timeout: "500ms"')
    began = time.monotonic()
    with handover(server, request()[:-2]) as peer:
        assert peer.read_to_eof() == b""
    assert 0.4 < time.monotonic() - began < 5


def test_the_time_of_a_request_is_over_with_it(start: Start) -> None:
    with web_peer(websocket_of(start('handshake_timeout: "500ms"').folder)) as peer:
        assert not peer.raw.receive(0.7)
        peer.send(b"PING\r\n")
        assert peer.read_until(b"PONG\r\n") == b"PONG\r\n"


@pytest.mark.only_ours
@pytest.mark.parametrize("path", ["/mqtt", "/leafnode"])
def test_what_is_not_served(start: Start, path: str) -> None:
    with handover(start(), request(first=f"GET {path} HTTP/1.1")) as peer:
        assert peer.read_line() == b"HTTP/1.1 404 Not Found\r\n"


# --- frames


@pytest.mark.parametrize("opcode", [TEXT, BINARY])
@pytest.mark.parametrize("headers", [{}, UNMASKED])
def test_operations_in_any_frames(start: Start, opcode: int, headers: Mapping[str, str]) -> None:
    with web_peer(websocket_of(start().folder), headers) as peer:
        many = b"SUB a 1\r\nPUB a 1\r\nx\r\nPUB a 2\r\nyz\r\nPING\r\n"
        peer.send(many, FIN | opcode)
        want = b"MSG a 1 1\r\nx\r\nMSG a 1 2\r\nyz\r\nPONG\r\n"
        assert peer.read_until(b"PONG\r\n") == want
        for at in range(len(many)):
            peer.send(many[at : at + 1], FIN | opcode)
        assert len(peer.read_until(b"PONG\r\n")) >= len(want)


def test_fragments_with_a_ping_between(start: Start) -> None:
    with web_peer(websocket_of(start().folder)) as peer:
        peer.send(b"PI", BINARY)
        peer.send(b"now", FIN | PING)
        assert peer.read_frame() == (FIN | PONG, b"now")
        peer.send(b"", CONTINUE)
        peer.send(b"NG\r\n", FIN | CONTINUE)
        assert peer.read_until(b"PONG\r\n") == b"PONG\r\n"


def test_all_lengths(start: Start) -> None:
    with web_peer(websocket_of(start().folder)) as peer:
        peer.send(b"SUB big 1\r\n")
        for n in (0, 100, 200, 70_000, 1 << 20):
            body = b"x" * n
            whole = b"PUB big %d\r\n%b\r\n" % (n, body)
            peer.raw.send(frame(FIN | BINARY, whole, wide=8))
            want = b"MSG big 1 %d\r\n%b\r\n" % (n, body)
            assert peer.read_until(want) == want


@pytest.mark.parametrize(
    ("headers", "frames_max", "packed"),
    [
        ({}, 1 << 30, False),
        (CHROME, 4_096, False),
        (CHROME | DEFLATE, 4_096, True),
        (SAFARI | DEFLATE, 1 << 30, True),
    ],
)
def test_frames_of_browsers(
    start: Start, headers: Mapping[str, str], frames_max: int, packed: bool
) -> None:
    body = b"".join(b"%d " % (i * i * 7919 % 1_000_003) for i in range(10_000))
    with web_peer(websocket_of(start("compression: true").folder), headers) as peer:
        peer.send(b"SUB big 1\r\nPUB big %d\r\n%b\r\n" % (len(body), body))
        assert peer.read_until(body + b"\r\n").startswith(b"MSG big 1 ")
        sizes = [len(one.payload) for one in peer.frames]
        assert max(sizes) <= frames_max
        assert (max(sizes) > 4_096) == (frames_max > 4_096)
        assert any(one.first & PACKED for one in peer.frames) == packed


def test_compressed_both_ways(start: Start) -> None:
    with web_peer(websocket_of(start("compression: true").folder), DEFLATE) as peer:
        peer.send(deflated(b"SUB big 1\r\nPING\r\n"), FIN | PACKED | BINARY)
        assert peer.read_frame() == (FIN | BINARY, b"PONG\r\n")
        peer.stream.clear()
        body = b"the same again, " * 50_000
        packed = deflated(b"PUB big %d\r\n%b\r\n" % (len(body), body))
        third = len(packed) // 3
        peer.send(packed[:third], PACKED | BINARY)
        peer.send(packed[third : 2 * third], CONTINUE)
        peer.send(packed[2 * third :], FIN | CONTINUE)
        assert peer.read_until(body + b"\r\n") == b"MSG big 1 %d\r\n%b\r\n" % (len(body), body)
        came = [one for one in peer.frames if one.first & PACKED]
        assert came
        assert sum(len(one.payload) for one in came) < len(body) // 10
        assert inflated(came[0].payload)
        peer.send(b"PING\r\n")  # what is not compressed goes as well
        peer.send(deflated(b"PING\r\n", final=True), FIN | PACKED | BINARY)
        assert peer.read_until(b"PONG\r\nPONG\r\n")


def resident(server: FileServer) -> int:
    """Bytes of memory that the server has."""
    for line in Path(f"/proc/{server.child.pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) << 10
    raise AssertionError("no such process")


@pytest.mark.only_ours
def test_bombs_cost_no_memory(start: Start) -> None:
    server = start("compression: true")
    with web_peer(websocket_of(server.folder), DEFLATE) as peer:
        before = resident(server)
        peer.send(deflated(b"PONG\r\n" * (8 << 20)), FIN | PACKED | BINARY)
        peer.send(b"PING\r\n")
        peer.raw.deadline_s = 40
        said = peer.read_until(b"PONG\r\n")
        assert said.replace(b"PING\r\n", b"") == b"PONG\r\n"  # the server asks as well
        assert resident(server) - before < 8 << 20


@pytest.mark.only_ours
def test_ping_flood_of_a_peer_that_does_not_read(start: Start) -> None:
    server = start()
    with web_peer(websocket_of(server.folder)) as peer:
        peer.send(b"SUB big 1\r\n")
        whole = b"PUB big %d\r\n%b\r\n" % (1 << 20, b"x" * (1 << 20))
        for _ in range(12):  # fills what the kernel holds
            peer.send(whole)
        before = resident(server)
        flood = frame(FIN | PING, b"p" * 125) * 1_000
        for _ in range(300):
            peer.raw.send(flood)
        assert resident(server) - before < 16 << 20
        peer.send(b"last", FIN | PING)
        while (got := peer.read_frame()).payload != b"last":
            pass
        assert got.opcode == PONG
