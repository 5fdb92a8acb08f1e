"""Plain or TLS by the first byte, and the handshake before INFO."""

from __future__ import annotations

import pytest
from support.authority import Authority, Pair
from support.fakes.tls import Secure, Server

from broker.base import units
from broker.base.units import MS
from broker.protocols.nats import limits
from broker.protocols.nats.client.handshake import NoLogin

SECOND = units.SECOND
CONNECT = b'CONNECT {"verbose":false}\r\n'


# --- by the first byte


@pytest.mark.parametrize("cut", [0, 1, 3])
def test_plain_by_its_first_byte(pair: Pair, cut: int) -> None:
    peer = Server(pair, allow_non_tls=True).arrive()
    assert b'"tls_available":true' in peer.take()
    assert peer.talk(CONNECT + b"PING\r\n", [cut]) == b"PONG\r\n"
    assert peer.session.tls_peer is None


@pytest.mark.parametrize("bytewise", [False, True])
def test_tls_by_its_first_byte(pair: Pair, authority: Authority, bytewise: bool) -> None:
    peer = Server(pair, allow_non_tls=True).arrive()
    peer.take()
    client = Secure(peer, authority.client())
    client.shake(bytewise=bytewise)
    assert client.talk(CONNECT + b"PING\r\n") == b"PONG\r\n"


def test_a_hello_behind_plain_bytes_is_no_hello(pair: Pair, authority: Authority) -> None:
    peer = Server(pair, allow_non_tls=True).arrive()
    peer.take()
    hello = Secure(peer, authority.client()).next()
    assert peer.talk(b"PING\r\n" + hello).startswith(b"PONG\r\n-ERR 'Unknown Protocol")


def test_time_for_the_first_byte(pair: Pair) -> None:
    """It belongs to the handshake; credentials have their own from there on."""
    server = Server(pair, allow_non_tls=True)

    class Strict(NoLogin):
        required = must_connect = True

        def requires_login(self, kind: str) -> bool:
            return True

    server.handshake.authenticator = Strict()
    server.handshake.login_timeout_ns = 3 * SECOND
    peer = server.arrive()
    peer.take()
    server.loop.advance(limits.NATS_TLS_TIMEOUT + 3 * SECOND - 1)
    assert not peer.closed
    server.loop.advance(1)
    assert peer.closed
    assert peer.take() == b"-ERR 'Authentication Timeout'\r\n"


def test_no_ping_into_a_handshake(pair: Pair) -> None:
    server = Server(pair, timeout_ns=3600 * SECOND)
    peer = server.arrive()
    peer.take()
    server.loop.advance(1000 * SECOND)
    assert peer.take() == b""
    assert not peer.closed


# --- the handshake first


@pytest.mark.parametrize("allow_non_tls", [False, True])
def test_first(pair: Pair, authority: Authority, allow_non_tls: bool) -> None:
    peer = Server(pair, handshake_first=True, allow_non_tls=allow_non_tls).arrive()
    assert peer.take() == b""
    client = Secure(peer, authority.client())
    client.shake()
    info = client.read()
    assert info.startswith(b"INFO {")
    assert info.count(b'"tls_required":true') == 1
    assert client.talk(CONNECT + b"PING\r\n") == b"PONG\r\n"


def test_first_within_the_delay(pair: Pair, authority: Authority) -> None:
    server = Server(pair, handshake_first=True, handshake_first_wait_ns=50 * MS)
    peer = server.arrive()
    server.loop.advance(49 * MS)
    assert peer.take() == b""
    client = Secure(peer, authority.client())
    peer.send(client.next())  # it has begun: from here on it has the time of a handshake
    server.loop.advance(SECOND)
    client.incoming.write(peer.take())
    client.shake()
    assert client.read().startswith(b"INFO {")


@pytest.mark.parametrize("allow_non_tls", [False, True])
def test_behind_the_delay(pair: Pair, authority: Authority, allow_non_tls: bool) -> None:
    server = Server(
        pair,
        handshake_first=True,
        handshake_first_wait_ns=50 * MS,
        allow_non_tls=allow_non_tls,
    )
    peer = server.arrive()
    server.loop.advance(50 * MS)
    word = b'"tls_available":true' if allow_non_tls else b'"tls_required":true'
    assert word in peer.take()
    client = Secure(peer, authority.client())
    client.shake()
    assert client.talk(CONNECT + b"PING\r\n") == b"PONG\r\n"


def test_plain_bytes_within_the_delay_are_a_bad_handshake(pair: Pair) -> None:
    server = Server(pair, handshake_first=True, handshake_first_wait_ns=SECOND, allow_non_tls=True)
    peer = server.arrive()
    peer.send(b"PING\r\n")
    assert peer.closed
    assert peer.take() == b""
