"""Certificates of NATS servers and clients: who is let in, who is not, and what a reload changes.

Each scenario runs against the original as well (TWINWIRE_TEST_TARGET=original).
"""

from __future__ import annotations

import hashlib
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nats
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from nats.aio.client import Client
from support import PeerError, RawPeer
from support.authority import Authority, Pair
from support.nats_file import FileServer, secure, secure_peer

CONNECT = b'CONNECT {"verbose":false}\r\n'
Start = Callable[..., FileServer]


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def pair(authority: Authority) -> Pair:
    return authority.issue("server")


@pytest.fixture
def start(pair: Pair, tmp_path: Path) -> Iterator[Start]:
    """Servers that end with the test."""
    servers: list[FileServer] = []

    def get(tls: str = "", more: str = "") -> FileServer:
        server = FileServer(tmp_path / f"server{len(servers)}", text(pair, tls, more))
        servers.append(server)
        return server

    yield get
    for server in servers:
        server.close()


def text(pair: Pair, tls: str = "", more: str = "") -> str:
    files = f'cert_file: "{pair.certificate}"\nkey_file: "{pair.key}"'
    return f"tls {{\ntimeout: 10\n{files}\n{tls}\n}}\n{more}\n"


def verify(authority: Authority) -> str:
    return f'verify: true\nca_file: "{authority.file}"'


def pin(pair: Pair) -> str:
    """What cryptography makes of the key, in its own way."""
    key = x509.load_pem_x509_certificate(pair.certificate.read_bytes()).public_key()
    return hashlib.sha256(
        key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    ).hexdigest()


def works(server: FileServer, context: ssl.SSLContext) -> bool:
    """Whether a client gets in; in TLS 1.3 it may learn only later that it does not."""
    try:
        with secure_peer(server.address, context) as peer:
            peer.send(CONNECT + b"PING\r\n")
            peer.expect(b"PONG\r\n")
        return True
    except (ssl.SSLError, PeerError, ConnectionError):
        return False


def shown(server: FileServer, context: ssl.SSLContext) -> bytes:
    """The certificate that the server shows."""
    with secure_peer(server.address, context) as peer:
        assert isinstance(peer.socket, ssl.SSLSocket)
        der = peer.socket.getpeercert(binary_form=True)
        assert der is not None
        return der


def der_of(pair: Pair) -> bytes:
    return x509.load_pem_x509_certificate(pair.certificate.read_bytes()).public_bytes(Encoding.DER)


async def connect(server: FileServer, context: ssl.SSLContext, **options: Any) -> Client:
    return await nats.connect(
        f"tls://localhost:{server.address.port}",
        tls=context,
        connect_timeout=10,
        max_reconnect_attempts=0,
        allow_reconnect=False,
        **options,
    )


async def ask(client: Client) -> bytes:
    async def answer(msg: Any) -> None:
        await msg.respond(b"yes: " + msg.data)

    await client.subscribe("q", cb=answer)
    reply = await client.request("q", b"x" * 100_000, timeout=10)
    return reply.data[:6]


@pytest.mark.parametrize(
    ("tls", "more", "options"),
    [
        ("", "", {}),
        ("handshake_first: true", "", {"tls_handshake_first": True}),
        ("handshake_first: auto", "", {}),
        ("handshake_first: 3s", "", {"tls_handshake_first": True}),
        ('min_version: "1.3"', "", {}),
    ],
)
async def test_the_python_client(
    start: Start, authority: Authority, tls: str, more: str, options: dict[str, Any]
) -> None:
    client = await connect(start(tls, more), authority.client(), **options)
    assert await ask(client) == b"yes: x"
    await client.close()


async def test_the_python_client_in_plain_beside_tls(start: Start) -> None:
    server = start("", "allow_non_tls: true")
    client = await nats.connect(f"nats://127.0.0.1:{server.address.port}")
    assert await ask(client) == b"yes: x"
    await client.close()


async def test_the_python_client_with_a_certificate(start: Start, authority: Authority) -> None:
    server = start(verify(authority))
    client = await connect(server, authority.client(authority.issue("client")))
    assert await ask(client) == b"yes: x"
    await client.close()


# --- certificates of clients


def test_certificates_of_clients(start: Start, authority: Authority, tmp_path: Path) -> None:
    server = start(verify(authority))
    assert works(server, authority.client(authority.issue("good")))
    assert not works(server, authority.client())
    assert not works(server, authority.client(authority.issue("expired", days=-1)))
    other = Authority(tmp_path, "other")
    assert not works(server, authority.client(other.issue("stranger")))
    own = Pair(other.file, tmp_path / "own.key")
    own.key.write_bytes(_pem(other))
    assert not works(server, authority.client(own))  # signed by itself
    server.await_log("TLS handshake error", 4)
    assert server.said().count("TLS handshake error") == 4  # once each
    assert works(server, authority.client(authority.issue("good")))


def _pem(authority: Authority) -> bytes:
    from cryptography.hazmat.primitives.serialization import NoEncryption, PrivateFormat

    return authority.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


@pytest.mark.only_ours
def test_the_log_says_what_is_wrong_with_a_certificate(start: Start, authority: Authority) -> None:
    server = start(verify(authority))
    assert not works(server, authority.client(authority.issue("expired", days=-1)))
    server.await_log("certificate verify failed: certificate has expired")
    assert not works(server, authority.client())
    server.await_log("peer did not return a certificate")


def test_a_chain_with_an_authority_between(
    start: Start, authority: Authority, tmp_path: Path
) -> None:
    middle = Authority(tmp_path, "middle", signed_by=authority)
    server = start(verify(authority))
    assert works(server, authority.client(middle.issue("whole", with_chain=True)))
    assert not works(server, authority.client(middle.issue("gap")))


def test_an_authority_between_may_be_the_one_that_is_trusted(
    start: Start, authority: Authority, tmp_path: Path
) -> None:
    middle = Authority(tmp_path, "middle", signed_by=authority)
    server = start(verify(middle))
    assert works(server, authority.client(middle.issue("below")))
    assert not works(server, authority.client(authority.issue("above")))


def test_the_servers_own_chain(authority: Authority, tmp_path: Path, start: Start) -> None:
    middle = Authority(tmp_path, "middle", signed_by=authority)
    server = start("", "")
    server.reload(text(middle.issue("renewed", with_chain=True)))
    server.await_log("Reloaded")
    assert works(server, authority.client())


def test_pinned_keys(start: Start, authority: Authority) -> None:
    known, unknown = authority.issue("known"), authority.issue("unknown")
    server = start(f'{verify(authority)}\npinned_certs: ["{pin(known)}"]')
    assert works(server, authority.client(known))
    assert not works(server, authority.client(unknown))
    server.await_log("not pinned")


def test_pinned_keys_without_verify_let_nobody_in(start: Start, authority: Authority) -> None:
    known = authority.issue("known")
    server = start(f'pinned_certs: ["{pin(known)}"]')
    assert not works(server, authority.client(known))
    server.await_log("not pinned")


# --- versions, ciphers, curves


def _only(authority: Authority, version: ssl.TLSVersion) -> ssl.SSLContext:
    context = authority.client()
    context.minimum_version = context.maximum_version = version
    return context


def test_versions(start: Start, authority: Authority) -> None:
    old, new = (_only(authority, v) for v in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3))
    server = start()
    assert works(server, old)
    assert works(server, new)
    server = start('min_version: "1.3"')
    assert not works(server, old)
    assert works(server, new)


def _cipher(server: FileServer, context: ssl.SSLContext) -> str:
    with secure_peer(server.address, context) as peer:
        assert isinstance(peer.socket, ssl.SSLSocket)
        cipher = peer.socket.cipher()
        assert cipher is not None
        return cipher[0]


def test_ciphers(start: Start, authority: Authority) -> None:
    old = _only(authority, ssl.TLSVersion.TLSv1_2)
    names = '["TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305"]'
    server = start(f"cipher_suites: {names}")
    assert _cipher(server, old) == "ECDHE-ECDSA-CHACHA20-POLY1305"
    old.set_ciphers("ECDHE-ECDSA-AES128-GCM-SHA256")
    assert not works(server, old)
    assert _cipher(server, authority.client()).startswith("TLS_")  # 1.3 has its own
    assert _cipher(start(), authority.client()) == "TLS_AES_128_GCM_SHA256"


def test_curves(start: Start, authority: Authority) -> None:
    server = start('curve_preferences: ["CurveP384"]')
    context = authority.client()
    context.set_ecdh_curve("secp384r1")
    assert works(server, context)
    context = authority.client()
    context.set_ecdh_curve("prime256v1")
    assert not works(server, context)


# --- reload


def test_a_new_certificate_while_clients_are_there(start: Start, authority: Authority) -> None:
    server = start()
    first = shown(server, authority.client())
    with secure_peer(server.address, authority.client()) as steady:
        steady.send(CONNECT + b"SUB a 1\r\nPING\r\n")
        steady.expect(b"PONG\r\n")
        renewed = authority.issue("renewed")
        server.reload(text(renewed))
        server.await_log("Reloaded server configuration")
        assert shown(server, authority.client()) == der_of(renewed) != first
        steady.send(b"PUB a 1\r\nx\r\nPING\r\n")
        steady.expect(b"MSG a 1 1\r\nx\r\nPONG\r\n")
        # the same names, other contents
        again = authority.issue("renewed")
        server.reload()
        server.await_log("Reloaded server configuration", 2)
        assert shown(server, authority.client()) == der_of(again)


@pytest.mark.parametrize("broken", ["certificate", "key", "other key", "authorities", "missing"])
def test_files_that_cannot_be_used_change_nothing(
    start: Start, authority: Authority, tmp_path: Path, broken: str
) -> None:
    server = start()
    first = shown(server, authority.client())
    bad = authority.issue("bad")
    more = ""
    if broken == "certificate":
        bad.certificate.write_text("nothing")
    elif broken == "key":
        bad.key.write_text("nothing")
    elif broken == "other key":
        bad.key.write_bytes(authority.issue("another").key.read_bytes())
    elif broken == "missing":
        bad.key.unlink()
    else:
        (tmp_path / "empty.pem").write_text("")
        more = f'verify: true\nca_file: "{tmp_path / "empty.pem"}"'
    with secure_peer(server.address, authority.client()) as steady:
        server.reload(text(bad, more))
        server.await_log("Failed to reload server configuration")
        assert shown(server, authority.client()) == first
        steady.send(CONNECT + b"PING\r\n")
        steady.expect(b"PONG\r\n")


def test_verify_from_a_reload_on(start: Start, authority: Authority, pair: Pair) -> None:
    server = start()
    with secure_peer(server.address, authority.client()) as steady:
        server.reload(text(pair, verify(authority)))
        server.await_log("Reloaded server configuration")
        assert not works(server, authority.client())
        assert works(server, authority.client(authority.issue("client")))
        steady.send(CONNECT + b"PING\r\n")
        steady.expect(b"PONG\r\n")  # it was there before


def test_a_tls_session_of_before_the_reload_gives_no_access(
    start: Start, authority: Authority, pair: Pair
) -> None:
    """A ticket of the time when nobody was asked for a certificate is worth nothing now."""
    server = start()
    context = _only(authority, ssl.TLSVersion.TLSv1_2)
    with RawPeer(server.address) as peer:
        peer.read_line()
        secure(peer, context)
        assert isinstance(peer.socket, ssl.SSLSocket)
        ticket = peer.socket.session
    server.reload(text(pair, verify(authority)))
    server.await_log("Reloaded server configuration")
    with RawPeer(server.address) as peer:
        peer.read_line()
        peer.socket.settimeout(peer.deadline_s)
        with pytest.raises((ssl.SSLError, ConnectionError)):
            context.wrap_socket(peer.socket, server_hostname="127.0.0.1", session=ticket)


@pytest.mark.only_ours
def test_who_is_pinned_no_more_is_cut(start: Start, authority: Authority, pair: Pair) -> None:
    """The original looks at the former list, and cuts nobody."""
    one, two = authority.issue("one"), authority.issue("two")
    pins = f'pinned_certs: ["{pin(one)}", "{pin(two)}"]'
    server = start(f"{verify(authority)}\n{pins}")
    with (
        secure_peer(server.address, authority.client(one)) as stays,
        secure_peer(server.address, authority.client(two)) as goes,
    ):
        for peer in (stays, goes):
            peer.send(CONNECT + b"PING\r\n")
            peer.expect(b"PONG\r\n")
        server.reload(text(pair, f'{verify(authority)}\npinned_certs: ["{pin(one)}"]'))
        goes.expect_close()
        stays.send(b"PING\r\n")
        stays.expect(b"PONG\r\n")
