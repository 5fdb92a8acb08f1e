"""Contexts made from settings, tried on each other in memory."""

from __future__ import annotations

import asyncio
import hashlib
import ssl
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.x509.oid import NameOID
from support.authority import Authority, Pair

from broker.base.units import MS, SECOND
from broker.net import openssl
from broker.net.openssl import TlsError
from broker.protocols.nats import limits
from broker.protocols.nats import tls as tls_policy
from broker.protocols.nats.settings import Settings, Tls
from broker.protocols.nats.tls import (
    CIPHERS,
    RateLimit,
    TlsPolicy,
    client_context,
    key_fingerprint,
    peer_of,
    server_context,
)


@pytest.fixture
def tls(pair: Pair) -> Tls:
    return Tls(str(pair.certificate), str(pair.key))


def shake(
    server: ssl.SSLContext,
    client: ssl.SSLContext,
    name: str | None = "localhost",
    session: ssl.SSLSession | None = None,
) -> tuple[ssl.SSLObject, ssl.SSLObject]:
    """The two ends of a handshake in memory; SSLError of whoever refuses."""
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = server.wrap_bio(up, down, server_side=True)
    theirs = client.wrap_bio(down, up, server_hostname=name, session=session)
    left = [theirs, ours]
    while left:
        for link in list(left):
            try:
                link.do_handshake()
                left.remove(link)
            except ssl.SSLWantReadError:
                pass
    theirs.write(b"x")
    ours.write(b"y")
    theirs.read(1)
    ours.read(1)  # in TLS 1.3 the client's certificate is looked at behind its handshake
    return ours, theirs


def trusting(authority: Authority, **more: object) -> Tls:
    return replace(Tls(ca_file=str(authority.file)), **more)  # type: ignore[arg-type]


def showing(pair: Pair, authority: Authority) -> Tls:
    return Tls(str(pair.certificate), str(pair.key), ca_file=str(authority.file))


# --- connections we make


def test_whom_we_join_is_who_it_should_be(tls: Tls, authority: Authority) -> None:
    shake(server_context(tls), client_context(trusting(authority)))
    shake(server_context(tls), client_context(trusting(authority)), "127.0.0.1")


@pytest.mark.parametrize("wrong", ["name", "address", "authority", "expired", "own", "system"])
def test_whom_we_join_is_someone_else(
    tls: Tls, authority: Authority, tmp_path: Path, wrong: str
) -> None:
    name, trusted = "localhost", trusting(authority)
    if wrong == "name":
        name = "elsewhere.example"
    elif wrong == "address":
        name = "127.0.0.2"
    elif wrong == "authority":
        trusted = trusting(Authority(tmp_path, "other"))
    elif wrong == "expired":
        old = authority.issue("old", days=-1)
        tls = Tls(str(old.certificate), str(old.key))
    elif wrong == "own":
        other = Authority(tmp_path, "other")
        key = tmp_path / "other.key"
        key.write_bytes(
            other.key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        tls = Tls(str(other.file), str(key))
    else:
        trusted = Tls()  # the system knows nothing of this authority
    with pytest.raises(ssl.SSLCertVerificationError):
        shake(server_context(tls), client_context(trusted), name)
    shake(server_context(tls), client_context(replace(trusted, insecure=True)), name)


def test_a_common_name_is_no_host(authority: Authority) -> None:
    pair = authority.issue("host.example", names=[x509.DNSName("other.example")])
    context = server_context(Tls(str(pair.certificate), str(pair.key)))
    shake(context, client_context(trusting(authority)), "other.example")
    with pytest.raises(ssl.SSLCertVerificationError):
        shake(context, client_context(trusting(authority)), "host.example")


def test_we_show_a_certificate_when_we_are_asked(tls: Tls, authority: Authority) -> None:
    server = server_context(replace(tls, verify=True, ca_file=str(authority.file)))
    ours, _ = shake(server, client_context(showing(authority.issue("leaf"), authority)))
    assert ours.getpeercert(binary_form=True)
    with pytest.raises(ssl.SSLError):
        shake(server, client_context(trusting(authority)))


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("verify", [False, True])
def test_a_certificate_is_looked_at_each_time(
    tls: Tls, authority: Authority, version: ssl.TLSVersion, verify: bool
) -> None:
    """A session that is taken up again would go on when its certificate has expired."""
    server = server_context(replace(tls, verify=verify, ca_file=str(authority.file)))
    client = client_context(showing(authority.issue("again"), authority))
    client.maximum_version = version
    _, first = shake(server, client)
    ticket = first.session
    ours, _ = shake(server, client, session=ticket)
    assert ours.session_reused is not verify


# --- what is chosen


def test_suites_of_tls_13_in_gos_order(tls: Tls, authority: Authority) -> None:
    ours, _ = shake(server_context(tls), client_context(trusting(authority)))
    assert ours.cipher() == ("TLS_AES_128_GCM_SHA256", "TLSv1.3", 128)


@pytest.mark.parametrize("name", [*CIPHERS][:3])
def test_a_cipher_of_tls_12(tls: Tls, authority: Authority, name: str) -> None:
    if "_RSA_" in name:
        with pytest.raises(ssl.SSLError):
            shake(server_context(replace(tls, cipher_suites=(name,))), _old(authority))
        return
    ours, _ = shake(server_context(replace(tls, cipher_suites=(name,))), _old(authority))
    cipher = ours.cipher()
    assert cipher is not None
    assert cipher[0] == CIPHERS[name]


def _old(authority: Authority) -> ssl.SSLContext:
    context = client_context(trusting(authority))
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    return context


def test_only_suites_of_tls_13(tls: Tls, authority: Authority) -> None:
    server = server_context(replace(tls, cipher_suites=("TLS_AES_256_GCM_SHA384",)))
    shake(server, client_context(trusting(authority)))
    with pytest.raises(ssl.SSLError):
        shake(server, _old(authority))


def test_the_ciphers_that_openssl_should_have() -> None:
    names = {cipher["name"] for cipher in _with("ALL").get_ciphers()}
    assert set(list(CIPHERS.values())[:6]) <= names


def _with(ciphers: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_ciphers(ciphers)
    return context


@pytest.mark.parametrize("curve", ["X25519", "CurveP256", "CurveP384", "CurveP521"])
def test_curves(tls: Tls, authority: Authority, curve: str) -> None:
    server = server_context(replace(tls, curve_preferences=(curve,)))
    shake(server, client_context(trusting(authority, curve_preferences=(curve,))))
    other = "CurveP521" if curve != "CurveP521" else "X25519"
    with pytest.raises(ssl.SSLError):
        shake(server, client_context(trusting(authority, curve_preferences=(other,))))


def test_a_python_that_keeps_openssl_elsewhere(
    tls: Tls, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(openssl, "_reach", lambda _context: None)
    shake(server_context(tls), client_context(trusting(authority)))
    one = server_context(replace(tls, curve_preferences=("CurveP384",)))
    client = client_context(trusting(authority))
    client.set_ecdh_curve("prime256v1")
    with pytest.raises(ssl.SSLError):
        shake(one, client)
    for several in (("CurveP384", "CurveP256"), ("X25519",)):
        with pytest.raises(TlsError, match="curves"):
            server_context(replace(tls, curve_preferences=several))


def test_a_certificate_for_each_name(authority: Authority) -> None:
    pairs = [
        authority.issue(name, names=[x509.DNSName(name)])
        for name in ("one.example", "two.example", "*.three.example")
    ]
    files = tuple((str(pair.certificate), str(pair.key)) for pair in pairs)
    server = server_context(Tls(certificates=files))
    wanted = [ssl.PEM_cert_to_DER_cert(pair.certificate.read_text()) for pair in pairs]
    for name, der in zip(("one.example", "TWO.example", "a.three.example"), wanted, strict=True):
        _, theirs = shake(server, client_context(trusting(authority)), name)
        assert theirs.getpeercert(binary_form=True) == der
    for stranger in ("nobody.example", "a.b.three.example", None):
        _, theirs = shake(server, client_context(Tls(insecure=True)), stranger)
        assert theirs.getpeercert(binary_form=True) == wanted[0]


# --- what cannot be used


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"cert_file": "", "key_file": ""}, "needs 'cert_file'"),
        ({"key_file": ""}, "missing 'key_file'"),
        ({"cert_file": ""}, "missing 'cert_file'"),
        ({"cert_file": "absent.pem"}, "certificate absent.pem.*No such file"),
        ({"ca_file": "absent.pem", "verify": True}, "authorities absent.pem: No such file"),
        ({"min_version": "1.1"}, "unsupported minimum TLS version: 1.1"),
        ({"cipher_suites": ("TLS_MINE",)}, "unrecognized cipher TLS_MINE"),
        ({"cipher_suites": ("TLS_RSA_WITH_RC4_128_SHA",)}, "none of the ciphers TLS_RSA_WITH_RC4"),
        ({"curve_preferences": ("CurveP1",)}, "unrecognized curve preference CurveP1"),
    ],
)
def test_settings_that_are_refused(tls: Tls, change: dict[str, object], said: str) -> None:
    with pytest.raises(TlsError, match=said):
        server_context(replace(tls, **change))  # type: ignore[arg-type]


def test_a_key_with_a_password_asks_nobody(tls: Tls, tmp_path: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    file = tmp_path / "locked.key"
    file.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )
    with pytest.raises(TlsError, match="the key is encrypted"):
        server_context(replace(tls, key_file=str(file)))


# --- keys that are known


@pytest.mark.parametrize("kind", ["ec", "rsa", "ed25519"])
def test_fingerprints(kind: str) -> None:
    key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey | ed25519.Ed25519PrivateKey
    if kind == "ec":
        key = ec.generate_private_key(ec.SECP384R1())
    elif kind == "rsa":
        key = rsa.generate_private_key(65537, 2048)
    else:
        key = ed25519.Ed25519PrivateKey.generate()
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "n" * 60)])
    now = datetime.now(UTC)
    signed = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now)
        .not_valid_after(now)
        .sign(key, None if kind == "ed25519" else hashes.SHA256())
    )
    public = key.public_key().public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    der = signed.public_bytes(serialization.Encoding.DER)
    assert key_fingerprint(der) == hashlib.sha256(public).hexdigest()


def test_pins(tls: Tls, pair: Pair) -> None:
    der = ssl.PEM_cert_to_DER_cert(pair.certificate.read_text())
    anybody = TlsPolicy(tls)
    assert anybody.admits(None)
    assert anybody.admits(der)
    known = TlsPolicy(replace(tls, pinned_certs=frozenset({key_fingerprint(der)})))
    assert known.admits(der)
    assert not known.admits(None)
    assert not TlsPolicy(replace(tls, pinned_certs=frozenset({"0" * 64}))).admits(der)


# --- how many at a time


class Clock:
    """Stands still unless it is moved."""

    def __init__(self) -> None:
        self.now_ns = 10**15

    def __call__(self) -> int:
        return self.now_ns


async def test_a_full_bucket_and_then_an_even_flow(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    rate = RateLimit(4, clock)
    assert [rate.allow() for _ in range(6)] == [True] * 4 + [False] * 2
    clock.now_ns += SECOND // 4
    assert [rate.allow() for _ in range(2)] == [True, False]
    clock.now_ns += 100 * SECOND
    assert [rate.allow() for _ in range(5)] == [True] * 4 + [False]
    assert rate.blocked == 4


async def test_refusals_are_reported_once_a_while(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "NATS_TLS_RATE_WINDOW", 20 * MS)
    clock = Clock()
    rate = RateLimit(1, clock)
    warned = asyncio.Event()
    warn = tls_policy.LOG.warning
    monkeypatch.setattr(tls_policy.LOG, "warning", lambda *it: (warn(*it), warned.set()))
    for _ in range(8):
        rate.allow()
    await warned.wait()
    assert caplog.messages == ["Rejected 7 connections due to TLS rate limiting"]
    assert rate.blocked == 0


def test_a_reload_does_not_fill_the_bucket(tls: Tls) -> None:
    limited = replace(tls, connection_rate_limit=5)
    first = TlsPolicy(limited)
    assert first.rate is not None
    assert TlsPolicy(limited, former=first).rate is first.rate
    assert TlsPolicy(replace(limited, connection_rate_limit=6), former=first).rate is not first.rate
    assert TlsPolicy(tls, former=first).rate is None


# --- what is reported


def test_what_info_says(tls: Tls, authority: Authority) -> None:
    assert TlsPolicy.of(Settings()) is None
    required = TlsPolicy.of(Settings(tls=tls))
    assert required is not None
    assert required.info() == {"tls_required": True}
    strict = replace(tls, verify_and_map=True, ca_file=str(authority.file))
    both = TlsPolicy.of(Settings(tls=strict, allow_non_tls=True))
    assert both is not None
    assert both.info() == {"tls_verify": True, "tls_available": True}


@pytest.mark.parametrize(
    ("security", "version", "cipher"),
    [
        (("TLS_AES_128_GCM_SHA256", "TLS1.3", ""), "1.3", "TLS_AES_128_GCM_SHA256"),
        (("TLS_CHACHA20_POLY1305_SHA256", "TLS1.3", ""), "1.3", "TLS_CHACHA20_POLY1305_SHA256"),
        (
            ("TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256", "TLS1.2", ""),
            "1.2",
            "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305",
        ),
    ],
)
def test_words_of_the_original(security: tuple[str, str, str], version: str, cipher: str) -> None:
    peer = peer_of(security, b"der")
    assert (peer.version, peer.cipher, peer.der) == (version, cipher, b"der")
