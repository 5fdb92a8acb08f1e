"""From accept to the first operation, without sockets: the clock and the bytes are ours."""

from __future__ import annotations

import contextlib
import ssl

import pytest
from support.authority import Authority, Pair
from support.fakes.loop import FakeNats
from support.fakes.tls import Secure, Server

from broker.base import units
from broker.protocols.nats import errors, limits
from broker.protocols.nats.settings import Tls
from broker.protocols.nats.tls import RateLimit, TlsPolicy, client_context, plainly, server_context

SECOND = units.SECOND
CONNECT = b'CONNECT {"verbose":false}\r\n'


@pytest.mark.parametrize("bytewise", [False, True])
def test_info_and_then_the_handshake(pair: Pair, authority: Authority, bytewise: bool) -> None:
    peer = Server(pair).arrive()
    assert b'"tls_required":true' in peer.take()
    client = Secure(peer, authority.client())
    client.shake(bytewise=bytewise)
    assert client.talk(CONNECT + b"SUB a 1\r\nPUB a 1\r\nx\r\nPING\r\n") == (
        b"MSG a 1 1\r\nx\r\nPONG\r\n"
    )
    found = peer.session.tls_peer
    assert (found.version, found.cipher, found.der) == ("1.3", "TLS_AES_128_GCM_SHA256", None)
    assert peer.session.tls_handshake is None


def test_the_session_knows_the_certificate(pair: Pair, authority: Authority) -> None:
    server = Server(pair, verify=True, ca_file=str(authority.file))
    mine = authority.issue("mine")
    peer = server.arrive()
    peer.take()
    client = Secure(peer, authority.client(mine))
    client.shake()
    assert client.talk(CONNECT + b"PING\r\n") == b"PONG\r\n"
    shown = ssl.PEM_cert_to_DER_cert(mine.certificate.read_text())
    assert peer.session.tls_peer.der == shown
    assert "der" not in repr(peer.session.tls_peer)


@pytest.mark.parametrize("said", [b"", b"\x16", b"\x16\x03\x01\x02\x00\x01"])
def test_a_handshake_that_does_not_end(
    pair: Pair, said: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    server = Server(pair)
    peer = server.arrive()
    peer.take()
    peer.send(said)
    server.loop.advance(limits.NATS_TLS_TIMEOUT - 1)
    assert not peer.closed
    server.loop.advance(1)
    assert peer.closed
    assert peer.take() == b""
    assert peer.session.closed_because == errors.NATS_CLOSED_TLS
    assert caplog.messages == ["192.0.2.7:40000 - cid:1 - TLS handshake timeout"]
    assert not server.frontend.sessions


@pytest.mark.parametrize(
    ("said", "alert"),
    [
        (b"CONNECT {}\r\n", False),
        (b"\x15\x03\x01\x00\x02\x01\x00", False),
        (b"\x16\x03\x01\x00\x05hello", True),
    ],
)
def test_garbage(pair: Pair, said: bytes, alert: bool, caplog: pytest.LogCaptureFixture) -> None:
    peer = Server(pair).arrive()
    peer.take()
    peer.send(said)
    assert peer.closed
    assert peer.take()[:1] == (b"\x15" if alert else b"")
    assert peer.session.closed_because == errors.NATS_CLOSED_TLS
    assert len(caplog.messages) == 1
    assert "TLS handshake error: tls: " in caplog.messages[0]


def test_who_leaves_in_the_handshake(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    peer = Server(pair).arrive()
    peer.leave()
    assert peer.session.closed_because == errors.NATS_CLOSED_TLS
    assert caplog.messages == ["192.0.2.7:40000 - cid:1 - TLS handshake error: EOF"]


def test_who_leaves_before_or_behind_it(
    pair: Pair, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    undecided = Server(pair, allow_non_tls=True).arrive()
    undecided.leave()
    peer = Server(pair).arrive()
    peer.take()
    Secure(peer, authority.client()).shake()
    peer.leave()
    for gone in (undecided, peer):
        assert gone.session.closed_because == errors.NATS_CLOSED_CLIENT
    assert caplog.messages == []


def test_a_key_that_is_not_pinned(
    pair: Pair, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    pins = frozenset({"0" * 64})
    server = Server(pair, verify=True, ca_file=str(authority.file), pinned_certs=pins)
    peer = server.arrive()
    peer.take()
    client = Secure(peer, authority.client(authority.issue("unknown")))
    client.shake()
    assert peer.closed
    assert client.read() == b""  # the end is said inside
    assert peer.session.closed_because == errors.NATS_CLOSED_TLS
    assert caplog.messages == [
        "192.0.2.7:40000 - cid:1 - TLS handshake error: certificate not pinned"
    ]


def test_operations_with_the_last_bytes_of_the_handshake(pair: Pair, authority: Authority) -> None:
    peer = Server(pair).arrive()
    peer.take()
    client = Secure(peer, authority.client())
    peer.send(client.next())
    client.incoming.write(peer.take())
    finished = client.next()
    client.link.write(CONNECT + b"PING\r\n")
    peer.send(finished + client.outgoing.read())
    assert client.read() == b"PONG\r\n"


def test_a_handshake_waits_for_its_slice_of_a_turn(pair: Pair, authority: Authority) -> None:
    """Meanwhile nothing more is read, so that nothing piles up."""
    server = Server(pair)
    peer = server.arrive()
    peer.take()
    peer.read(Secure(peer, authority.client()).next())
    assert peer.take() == b""
    assert not peer.transport.reading
    server.loop.run()
    assert peer.take()[:1] == b"\x16"
    assert peer.transport.reading


def test_who_is_gone_when_its_slice_comes(pair: Pair, authority: Authority) -> None:
    server = Server(pair)
    late, gone = server.arrive(), server.arrive()
    for peer in (late, gone):
        peer.take()
        peer.read(Secure(peer, authority.client()).next())
    gone.leave()
    assert gone.session.closed_because == errors.NATS_CLOSED_TLS
    assert late.take()[:1] == b"\x16"


# --- the other way round


class Joined:
    """Stands where a session's handshake stands: hears how the handshake ended."""

    def __init__(self) -> None:
        self.causes: list[str | None] = []

    def opened(self) -> None: ...

    def secured(self, cause: str | None) -> None:
        self.causes.append(cause)

    def lost(self) -> str:
        return errors.NATS_CLOSED_CLIENT


@pytest.mark.parametrize("name", ["localhost", "elsewhere.example"])
def test_a_connection_of_ours_is_the_client(pair: Pair, authority: Authority, name: str) -> None:
    nats = FakeNats()
    peer = nats.dial()
    handshake = Joined()
    peer.session.start_tls(handshake)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    far = server_context(Tls(str(pair.certificate), str(pair.key))).wrap_bio(
        incoming, outgoing, server_side=True
    )
    peer.conn.secure(client_context(Tls(ca_file=str(authority.file))), SECOND, name)
    nats.loop.run()
    for _ in range(2):
        incoming.write(peer.take())  # it speaks first
        with contextlib.suppress(ssl.SSLWantReadError):
            far.do_handshake()
        peer.send(outgoing.read())
        if handshake.causes:
            break
    if name == "localhost":
        assert handshake.causes == [None]
        incoming.write(peer.take())
        far.do_handshake()
        far.write(b"PING\r\n")
        peer.send(outgoing.read())
        incoming.write(peer.take())
        assert far.read() == b"PONG\r\n"
        return
    (cause,) = handshake.causes
    assert cause is not None
    assert cause.startswith("tls: certificate verify failed: Hostname mismatch")
    incoming.write(peer.take())
    with pytest.raises(ssl.SSLError, match="ALERT"):
        far.do_handshake()


# --- refused


def test_too_many_handshakes(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(pair)
    monkeypatch.setattr(RateLimit, "allow", lambda _self: False)
    server.policy.rate = RateLimit(1)
    peer = server.arrive()
    assert peer.closed
    assert peer.take().endswith(
        b"-ERR 'Connection throttling is active. Please try again later.'\r\n"
    )
    assert peer.session.closed_because == errors.NATS_CLOSED_CONNECTIONS


def test_a_fault_of_ours_lets_nobody_in(
    pair: Pair, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server(pair)
    peer = server.arrive()
    peer.take()
    monkeypatch.setattr(TlsPolicy, "admits", lambda _self, _der: 1 / 0)
    client = Secure(peer, authority.client())
    client.shake()
    assert peer.closed


def test_a_closing_server_does_not_wait_for_handshakes(pair: Pair) -> None:
    peer = Server(pair).arrive()
    peer.conn.close()
    peer.loop.run()
    assert peer.closed


@pytest.mark.parametrize(
    ("reason", "shown"),
    [
        ("tls: https proxy request", "tls: first record does not look like a TLS handshake"),
        ("tls: http request", "tls: first record does not look like a TLS handshake"),
        ("tls: wrong version number", "tls: first record does not look like a TLS handshake"),
        ("tls: sslv3 alert bad certificate", "remote error: tls: bad certificate"),
        ("tls: tlsv1 alert unknown ca", "remote error: tls: unknown ca"),
        ("tls: tlsv13 alert certificate required", "remote error: tls: certificate required"),
        ("tls: no shared cipher", "tls: no shared cipher"),
        ("EOF", "EOF"),
    ],
)
def test_reasons_are_plain(reason: str, shown: str) -> None:
    assert plainly(reason) == shown
