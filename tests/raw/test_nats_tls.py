"""TLS of NATS clients by raw sockets: what comes in plain, what does not, and when.

Each scenario runs against the original as well (TWINWIRE_TEST_TARGET=original).
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Iterator

import pytest
from support import RawPeer
from support.authority import Authority, Pair
from support.clients.http import request
from support.nats_file import FileServer, plain_info, secure, secure_peer

HELLO_HALF = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"
CONNECT = b'CONNECT {"verbose":false}\r\n'
TIMEOUT_S = 0.6
FAST = f"timeout: {TIMEOUT_S}"
Start = Callable[..., FileServer]


@pytest.fixture(scope="module")
def start(pair: Pair, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """A server with TLS; shared by all of this file who ask for the same."""
    servers: dict[tuple[str, str], FileServer] = {}

    def get(tls: str = FAST, more: str = "") -> FileServer:
        if (tls, more) not in servers:
            text = (
                f'tls {{\ncert_file: "{pair.certificate}"\nkey_file: "{pair.key}"\n{tls}\n}}\n'
                f"{more}\n"
            )
            servers[tls, more] = FileServer(tmp_path_factory.mktemp("server"), text)
        return servers[tls, more]

    yield get
    for server in servers.values():
        server.close()


def _seconds_to_eof(peer: RawPeer) -> float:
    began = time.monotonic()
    assert peer.read_to_eof() == b""
    return time.monotonic() - began


def _works(peer: RawPeer) -> None:
    peer.send(CONNECT + b"SUB a 1\r\nPUB a 2\r\nhi\r\nPING\r\n")
    peer.expect(b"MSG a 1 2\r\nhi\r\nPONG\r\n")


@pytest.mark.parametrize(
    ("tls", "more", "want"),
    [
        (FAST, "", {"tls_required": True}),
        (
            f"{FAST}\nverify: true\nca_file: AUTHORITY",
            "",
            {"tls_required": True, "tls_verify": True},
        ),
        (FAST, "allow_non_tls: true", {"tls_available": True}),
        (f"{FAST}\nhandshake_first: auto", "", {"tls_required": True}),
        (f"{FAST}\nhandshake_first: auto", "allow_non_tls: true", {"tls_available": True}),
    ],
)
def test_info_in_plain(
    start: Start, authority: Authority, tls: str, more: str, want: dict[str, bool]
) -> None:
    server = start(tls.replace("AUTHORITY", f'"{authority.file}"'), more)
    with RawPeer(server.address) as peer:
        info = plain_info(peer)
    assert {name: info[name] for name in info if name.startswith("tls_")} == want


@pytest.mark.parametrize("more", ["", "allow_non_tls: true"])
def test_info_behind_the_handshake(start: Start, authority: Authority, more: str) -> None:
    server = start(f"{FAST}\nhandshake_first: true", more)
    with RawPeer(server.address) as peer:
        secure(peer, authority.client())
        info = plain_info(peer)
        assert {name: info[name] for name in info if name.startswith("tls_")} == {
            "tls_required": True,
            **({"tls_available": True} if more else {}),
        }
        _works(peer)


def test_a_silent_peer_is_cut_in_time_without_a_word(start: Start) -> None:
    with RawPeer(start().address) as peer:
        peer.read_line()
        assert TIMEOUT_S * 0.8 < _seconds_to_eof(peer) < TIMEOUT_S + 2


def test_half_a_hello_is_cut_in_time(start: Start) -> None:
    with RawPeer(start().address) as peer:
        peer.read_line()
        peer.send(HELLO_HALF)
        assert TIMEOUT_S * 0.8 < _seconds_to_eof(peer) < TIMEOUT_S + 2


def test_a_byte_now_and_then_gains_no_time(start: Start, authority: Authority) -> None:
    """Each byte is a valid one of a hello; the time counts from its beginning."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    link = authority.client().wrap_bio(incoming, outgoing, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        link.do_handshake()
    hello = outgoing.read()
    with RawPeer(start().address) as peer:
        peer.read_line()
        began = time.monotonic()
        for byte in hello:
            peer.send(bytes([byte]))
            if not peer.receive(0.02) and peer.closed:
                break
        assert peer.closed
        assert not peer.pending
        assert time.monotonic() - began < TIMEOUT_S + 2


@pytest.mark.parametrize(
    "said", [CONNECT + b"PING\r\n", b"GET / HTTP/1.0\r\n\r\n", b"PUB a 1\r\nx\r\n" + HELLO_HALF]
)
def test_plain_text_where_tls_is_required(start: Start, said: bytes) -> None:
    """No alert, no -ERR: the end."""
    with RawPeer(start().address) as peer:
        peer.read_line()
        peer.send(said)
        assert _seconds_to_eof(peer) < TIMEOUT_S * 0.8


@pytest.mark.parametrize(
    "garbage", [b"\x16\x03\x01\x00\x05hello", b"\x16\x03\x01\xff\xff" + b"x" * 100]
)
@pytest.mark.parametrize("more", ["", "allow_non_tls: true"])
def test_garbage_in_a_record_gets_an_alert(start: Start, garbage: bytes, more: str) -> None:
    with RawPeer(start(FAST, more).address) as peer:
        peer.read_line()
        peer.send(garbage)
        said = peer.read_to_eof()
        assert said[:1] == b"\x15"
        assert len(said) == 7  # one fatal alert
        assert said[5] == 2


def test_nothing_is_harmed_by_those_that_fail(start: Start, authority: Authority) -> None:
    server = start()
    with secure_peer(server.address, authority.client()) as steady:
        _works(steady)
        failing = [RawPeer(server.address) for _ in range(20)]
        for number, peer in enumerate(failing):
            peer.read_line()
            peer.send((HELLO_HALF, b"\x16\x03\x01\x00\x05hello", b"", b"x" * 1000)[number % 4])
        for peer in failing:
            peer.read_to_eof()
            peer.close()
        steady.send(b"PING\r\n")
        steady.expect(b"PONG\r\n")


def test_what_comes_with_the_end_of_the_handshake_is_not_lost(
    start: Start, authority: Authority
) -> None:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    link = authority.client().wrap_bio(incoming, outgoing, server_hostname="localhost")
    with RawPeer(start().address) as peer:
        peer.read_line()
        while True:
            try:
                link.do_handshake()
                break
            except ssl.SSLWantReadError:
                peer.send(outgoing.read())
                assert peer.receive(peer.deadline_s)
                incoming.write(bytes(peer.pending))
                peer.pending.clear()
        link.write(CONNECT + b"PING\r\n")
        peer.send(outgoing.read())  # Finished and CONNECT in one
        got = b""
        while not got.endswith(b"PONG\r\n"):
            assert peer.receive(peer.deadline_s)
            incoming.write(bytes(peer.pending))
            peer.pending.clear()
            try:
                while True:
                    got += link.read()
            except ssl.SSLWantReadError:
                pass
        assert got == b"PONG\r\n"


def test_a_large_message_goes_through_whole(start: Start, authority: Authority) -> None:
    body = bytes(range(256)) * 3000
    with secure_peer(start().address, authority.client()) as peer:
        peer.send(CONNECT + b"SUB big 1\r\nPUB big %d\r\n%b\r\nPING\r\n" % (len(body), body))
        peer.expect(b"MSG big 1 %d\r\n%b\r\nPONG\r\n" % (len(body), body))


def test_what_monitoring_shows(start: Start, authority: Authority, pair: Pair) -> None:
    """Those who are there with their TLS, those who failed with the reason.

    By their own ports: the machine may have others who try this address.
    """
    server = start(f'timeout: 5\nverify: true\nca_file: "{authority.file}"')
    with RawPeer(server.address) as failing:
        failed_port = failing.socket.getsockname()[1]
        failing.read_line()
        failing.send(b"PING\r\n")
        failing.expect_close()
    with secure_peer(server.address, authority.client(authority.issue("client"))) as peer:
        port = peer.socket.getsockname()[1]
        peer.send(CONNECT + b"PING\r\n")
        peer.expect(b"PONG\r\n")
        open_ = request(server.monitor, "GET", "/connz?auth=true").json["connections"]
        gone = request(server.monitor, "GET", "/connz?state=closed").json["connections"]
    (there,) = [one for one in open_ if one["port"] == port]
    assert (there["tls_version"], there["tls_cipher_suite"]) == ("1.3", "TLS_AES_128_GCM_SHA256")
    assert [one["subject"] for one in there["tls_peer_certs"]] == ["CN=client", "CN=authority"]
    (reason,) = [one["reason"] for one in gone if one["port"] == failed_port]
    assert reason == "TLS Handshake Failure", gone


# --- both on one port


def test_plain_and_tls_on_one_port(start: Start, authority: Authority) -> None:
    server = start(FAST, "allow_non_tls: true")
    with RawPeer(server.address) as plain, secure_peer(server.address, authority.client()) as tls:
        plain.read_line()
        _works(plain)
        _works(tls)


@pytest.mark.parametrize("first", [b"P", b"C"])
def test_a_first_byte_by_itself_is_not_lost(start: Start, first: bytes) -> None:
    whole = CONNECT + b"PING\r\n" if first == b"C" else b"PING\r\n"
    with RawPeer(start(FAST, "allow_non_tls: true").address) as peer:
        peer.read_line()
        peer.send(whole[:1])
        assert not peer.receive(0.05)
        peer.send(whole[1:])
        peer.read_until(b"PONG\r\n")


def test_a_hello_whose_first_byte_comes_alone(start: Start, authority: Authority) -> None:
    server = start("timeout: 5", "allow_non_tls: true")

    with RawPeer(server.address) as peer:
        peer.read_line()
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        link = authority.client().wrap_bio(incoming, outgoing, server_hostname="localhost")
        with pytest.raises(ssl.SSLWantReadError):
            link.do_handshake()
        hello = outgoing.read()
        peer.send(hello[:1])
        assert not peer.receive(0.05)
        peer.send(hello[1:])
        assert peer.receive(peer.deadline_s)
        assert peer.pending[0] == 0x16  # its hello


def test_who_says_nothing_for_the_tls_timeout_is_plain(start: Start) -> None:
    """From there on TLS is garbage: the choice was made."""
    with RawPeer(start(FAST, "allow_non_tls: true").address) as peer:
        peer.read_line()
        assert not peer.receive(TIMEOUT_S + 0.4)
        assert not peer.closed
        peer.send(HELLO_HALF)
        assert peer.read_to_eof() == b"-ERR 'Unknown Protocol Operation'\r\n"


# --- the handshake first


def test_no_info_before_the_handshake(start: Start) -> None:
    with RawPeer(start(f"{FAST}\nhandshake_first: true").address) as peer:
        assert _seconds_to_eof(peer) < TIMEOUT_S + 2


def test_plain_text_where_the_handshake_comes_first(start: Start) -> None:
    with RawPeer(start(f"{FAST}\nhandshake_first: true").address) as peer:
        peer.send(CONNECT + b"PING\r\n")
        assert _seconds_to_eof(peer) < TIMEOUT_S * 0.8


@pytest.mark.parametrize("more", ["", "allow_non_tls: true"])
def test_first_or_not_as_the_client_likes(start: Start, authority: Authority, more: str) -> None:
    server = start("timeout: 5\nhandshake_first: 300ms", more)
    with secure_peer(server.address, authority.client(), first=True) as peer:
        _works(peer)
    began = time.monotonic()
    with RawPeer(server.address) as peer:
        peer.read_line()
        assert time.monotonic() - began > 0.2
        secure(peer, authority.client())
        _works(peer)


def test_plain_behind_the_delay(start: Start) -> None:
    server = start(f"{FAST}\nhandshake_first: auto", "allow_non_tls: true")
    with RawPeer(server.address) as peer:
        peer.read_line()
        _works(peer)


def test_anything_within_the_delay_is_taken_for_tls(start: Start) -> None:
    server = start("timeout: 5\nhandshake_first: 2s", "allow_non_tls: true")
    with RawPeer(server.address) as peer:
        peer.send(b"PING\r\n")
        assert _seconds_to_eof(peer) < 1.5


# --- limits of number and time


def test_so_many_handshakes_per_second(start: Start, authority: Authority) -> None:
    server = start("timeout: 5\nconnection_rate_limit: 2")
    with RawPeer(server.address) as one, RawPeer(server.address) as two:
        one.read_line()
        two.read_line()
        with RawPeer(server.address) as three:
            three.read_line()
            three.expect(b"-ERR 'Connection throttling is active. Please try again later.'\r\n")
            three.expect_close()
        secure(two, authority.client())
        _works(two)
    server.await_log("Rejected 1 connections due to TLS rate limiting")


def test_time_for_credentials_begins_behind_the_handshake(
    start: Start, authority: Authority
) -> None:
    """A second more than the handshake may take."""
    server = start("timeout: 1", "authorization { user: u, password: p }")
    with RawPeer(server.address) as peer:
        peer.read_line()
        assert not peer.receive(0.5)
        secure(peer, authority.client())
        began = time.monotonic()
        assert peer.read_to_eof() == b"-ERR 'Authentication Timeout'\r\n"
        assert 1.6 < time.monotonic() - began < 4


def test_too_many_connections_are_reported_in_plain(start: Start, authority: Authority) -> None:
    server = start("timeout: 5", "max_connections: 1")
    with secure_peer(server.address, authority.client()), RawPeer(server.address) as two:
        two.read_line()
        two.expect(b"-ERR 'maximum connections exceeded'\r\n")
        two.expect_close()
