"""TLS of one listener or of one leaf link: the policy and the handshake.

A reload replaces the policy: open connections keep their context, and unusable files raise TlsError
before anything is changed. Ciphers and curves have Go's names. Revocation of certificates is not
checked; the original checks it by OCSP if configured. Sources: nats-server opts.go GenTLSConfig,
ciphersuites.go, auth.go matchesPinnedCert, rate_counter.go.

Steps of a connection before its first operation:

    INFO, handshake                        tls
    INFO, first byte, maybe handshake      allow_non_tls: 0x16 begins TLS, anything else is plain
    handshake, INFO                        handshake_first
    wait; handshake, INFO                  handshake_first with a delay, the client began in time
    wait, INFO, then as without it         ... it did not

Unencrypted bytes never count as received through TLS: as soon as a handshake is the next step, all
input goes to it. Source: nats-server server.go createClientEx.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import ssl
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar

from broker.base.errors import WireError
from broker.base.patterns import lazy_pattern
from broker.base.units import SECOND
from broker.net import errors as net_errors
from broker.net.openssl import (
    TlsError,
    keep_no_sessions,
    load_authorities,
    load_pair,
    set_groups,
    set_suites,
)
from broker.protocols.nats import errors, limits
from broker.protocols.nats.auth.authenticator import TlsPeer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from broker.protocols.nats.settings import Settings, Tls

LOG = logging.getLogger("broker.nats")

# Up to TLS 1.2, by Go's names. OpenSSL usually no longer has the last five.
CIPHERS: Final = {
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256": "ECDHE-ECDSA-AES128-GCM-SHA256",
    "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256": "ECDHE-RSA-AES128-GCM-SHA256",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305": "ECDHE-ECDSA-CHACHA20-POLY1305",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305": "ECDHE-RSA-CHACHA20-POLY1305",
    "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384": "ECDHE-ECDSA-AES256-GCM-SHA384",
    "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384": "ECDHE-RSA-AES256-GCM-SHA384",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA256": "ECDHE-ECDSA-AES128-SHA256",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256": "ECDHE-RSA-AES128-SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA": "ECDHE-ECDSA-AES128-SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA": "ECDHE-RSA-AES128-SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA": "ECDHE-ECDSA-AES256-SHA",
    "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA": "ECDHE-RSA-AES256-SHA",
    "TLS_RSA_WITH_AES_128_CBC_SHA256": "AES128-SHA256",
    "TLS_RSA_WITH_AES_128_CBC_SHA": "AES128-SHA",
    "TLS_RSA_WITH_AES_256_CBC_SHA": "AES256-SHA",
    "TLS_RSA_WITH_AES_128_GCM_SHA256": "AES128-GCM-SHA256",
    "TLS_RSA_WITH_AES_256_GCM_SHA384": "AES256-GCM-SHA384",
    "TLS_ECDHE_RSA_WITH_3DES_EDE_CBC_SHA": "ECDHE-RSA-DES-CBC3-SHA",
    "TLS_RSA_WITH_3DES_EDE_CBC_SHA": "DES-CBC3-SHA",
    "TLS_ECDHE_ECDSA_WITH_RC4_128_SHA": "ECDHE-ECDSA-RC4-SHA",
    "TLS_ECDHE_RSA_WITH_RC4_128_SHA": "ECDHE-RSA-RC4-SHA",
    "TLS_RSA_WITH_RC4_128_SHA": "RC4-SHA",
    # as Go calls two of the first ones since 1.14
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-ECDSA-CHACHA20-POLY1305",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-RSA-CHACHA20-POLY1305",
}
# Go's InsecureCipherSuites: without forward secrecy, RC4, 3DES, CBC with SHA-256.
INSECURE_CIPHERS: Final = frozenset(
    name
    for name in CIPHERS
    if name.startswith("TLS_RSA_") or "RC4" in name or "3DES" in name or "CBC_SHA256" in name
)
CIPHERS_DEFAULT: Final = tuple(CIPHERS)[:6]
# As in Go, all ciphers of TLS 1.3 are offered regardless of the configuration.
SUITES: Final = (
    "TLS_AES_128_GCM_SHA256",
    "TLS_AES_256_GCM_SHA384",
    "TLS_CHACHA20_POLY1305_SHA256",
)
CURVES: Final = {
    "X25519": "X25519",
    "CurveP256": "P-256",
    "CurveP384": "P-384",
    "CurveP521": "P-521",
}
_ECDH_NAMES: Final = {"CurveP256": "prime256v1", "CurveP384": "secp384r1", "CurveP521": "secp521r1"}
_VERSIONS: Final = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}
_OP_PRIORITIZE_CHACHA: Final = 1 << 21  # for clients without AES hardware
# OpenSSL's errors for plain text, and for alerts of the peer.
_NO_TLS: Final = {"tls: https proxy request", "tls: http request", "tls: wrong version number"}
_ALERT: Final = lazy_pattern(r"tls: (?:sslv3|tlsv1|tlsv13) alert (.*)")
HANDSHAKE: Final = 0x16  # first byte of TLS


def server_context(tls: Tls) -> ssl.SSLContext:
    """A context for accepted connections; TlsError if it cannot be created."""
    pairs = _pairs(tls)
    if not pairs:
        raise TlsError("a server needs 'cert_file' and 'key_file' in its TLS configuration")
    contexts = []
    for pair in pairs:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.options |= ssl.OP_CIPHER_SERVER_PREFERENCE | _OP_PRIORITIZE_CHACHA
        _prepare(context, tls, pair)
        keep_no_sessions(context)
        if tls.verify or tls.verify_and_map:
            context.verify_mode = ssl.CERT_REQUIRED
            _trust(context, tls, ssl.Purpose.CLIENT_AUTH)
            # no session resumption: the certificate may have expired meanwhile
            context.options |= ssl.OP_NO_TICKET
            context.num_tickets = 0
        contexts.append(context)
    if len(pairs) > 1:
        _choose_by_name(contexts, [_names(certificate) for certificate, _key in pairs])
    return contexts[0]


def _choose_by_name(contexts: list[ssl.SSLContext], names: list[frozenset[str]]) -> None:
    """Select the first certificate for the requested name, or else the first one."""

    def choose(link: ssl.SSLObject, name: str | None, _context: ssl.SSLContext) -> None:
        name = (name or "").lower()
        wanted = {name, f"*.{name.partition('.')[2]}"}
        for context, known in zip(contexts, names, strict=True):
            if known & wanted:
                link.context = context
                return

    contexts[0].sni_callback = choose


def _names(file: str) -> frozenset[str]:
    """The host names in a certificate."""
    from cryptography import x509

    certificate = x509.load_pem_x509_certificate(Path(file).read_bytes())
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return frozenset()
    return frozenset(name.lower() for name in names.get_values_for_type(x509.DNSName))


def _pairs(tls: Tls) -> tuple[tuple[str, str], ...]:
    if tls.cert_file and not tls.key_file:
        raise TlsError("missing 'key_file' in TLS configuration")
    if tls.key_file and not tls.cert_file:
        raise TlsError("missing 'cert_file' in TLS configuration")
    return ((tls.cert_file, tls.key_file),) if tls.cert_file else tls.certificates


def client_context(tls: Tls) -> ssl.SSLContext:
    """A context for outgoing connections, which checks the name of the peer."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.hostname_checks_common_name = False
    _prepare(context, tls, next(iter(_pairs(tls)), None))
    if tls.insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    else:
        _trust(context, tls, ssl.Purpose.SERVER_AUTH)
    return context


def _trust(context: ssl.SSLContext, tls: Tls, purpose: ssl.Purpose) -> None:
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # trust each certificate in the file
    if tls.ca_file:
        load_authorities(context, tls.ca_file)
    else:
        context.load_default_certs(purpose)


def _prepare(context: ssl.SSLContext, tls: Tls, pair: tuple[str, str] | None) -> None:
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    if tls.min_version not in _VERSIONS:
        raise TlsError(f"unsupported minimum TLS version: {tls.min_version}")
    context.minimum_version = _VERSIONS[tls.min_version]
    _choose_ciphers(context, tls.cipher_suites or CIPHERS_DEFAULT)
    _choose_curves(context, tls.curve_preferences)
    if pair is not None:
        load_pair(context, *pair)


def _choose_ciphers(context: ssl.SSLContext, names: Iterable[str]) -> None:
    old = []
    for name in names:
        if name in CIPHERS:
            old.append(CIPHERS[name])
        elif name not in SUITES:
            raise TlsError(f"unrecognized cipher {name}")
    set_suites(context, SUITES)  # if impossible, OpenSSL's order is used
    if not old:
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        return
    try:
        context.set_ciphers(":".join(old))
    except ssl.SSLError:
        raise TlsError(f"OpenSSL has none of the ciphers {', '.join(names)}") from None


def _choose_curves(context: ssl.SSLContext, names: tuple[str, ...]) -> None:
    for name in names:
        if name not in CURVES:
            raise TlsError(f"unrecognized curve preference {name}")
    if set_groups(context, [CURVES[name] for name in names or CURVES]) or not names:
        return
    if len(names) > 1 or names[0] not in _ECDH_NAMES:
        raise TlsError("this Python does not let the curves be chosen")
    context.set_ecdh_curve(_ECDH_NAMES[names[0]])


def key_fingerprint(der: bytes) -> str:
    """The SHA-256 of a certificate's encoded public key, in lower-case hex."""
    at = _open(der, _open(der, 0))  # Certificate, TBSCertificate
    if der[at] == 0xA0:  # the version, missing in the oldest certificates
        at = _skip(der, at)
    for _ in range(5):  # serial number, algorithm, issuer, validity, subject
        at = _skip(der, at)
    return hashlib.sha256(der[at : _skip(der, at)]).hexdigest()


def _open(der: bytes, at: int) -> int:
    """The offset of the contents of the DER value at `at`."""
    length = der[at + 1]
    return at + 2 + (length & 0x7F if length & 0x80 else 0)


def _skip(der: bytes, at: int) -> int:
    """The offset after the DER value at `at`."""
    start = _open(der, at)
    length = der[at + 1]
    return start + (int.from_bytes(der[at + 2 : start], "big") if length & 0x80 else length)


def is_known(pinned: frozenset[str], der: bytes | None) -> bool:
    """Whether the key of this certificate is pinned, or none is."""
    return not pinned or (der is not None and key_fingerprint(der) in pinned)


class RateLimit:
    """A limit of handshakes per second: a token bucket that is full at first."""

    def __init__(self, per_second: int, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self.per_second = per_second
        self.blocked = 0  # since the last report
        self._clock = clock
        self._step_ns = limits.NATS_TLS_RATE_WINDOW // per_second
        self._full_ns = clock()  # when the bucket will be full again

    def allow(self) -> bool:
        """Take one token; False if none is left."""
        now = self._clock()
        full = max(self._full_ns, now) + self._step_ns
        if full > now + limits.NATS_TLS_RATE_WINDOW:
            if not self.blocked:
                wait = limits.NATS_TLS_RATE_WINDOW / SECOND
                asyncio.get_running_loop().call_later(wait, self._log_rejected)
            self.blocked += 1
            return False
        self._full_ns = full
        return True

    def _log_rejected(self) -> None:
        LOG.warning("Rejected %d connections due to TLS rate limiting", self.blocked)
        self.blocked = 0


class TlsPolicy:
    """The TLS policy of a listener: the context of new connections, and when they use it."""

    def __init__(
        self, tls: Tls, *, allow_non_tls: bool = False, former: TlsPolicy | None = None
    ) -> None:
        """`former`: the policy in force until now; TlsError if files cannot be used."""
        self.context = server_context(tls)
        self.timeout_ns = tls.timeout_ns
        self.optional = allow_non_tls
        self.verify = tls.verify or tls.verify_and_map
        self.first = tls.handshake_first
        self.first_wait_ns = tls.handshake_first_wait_ns
        self.pinned = tls.pinned_certs
        self.rate: RateLimit | None = None
        if tls.connection_rate_limit > 0:
            kept = former.rate if former is not None else None
            if kept is None or kept.per_second != tls.connection_rate_limit:
                kept = RateLimit(tls.connection_rate_limit)
            self.rate = kept

    @classmethod
    def of(cls, settings: Settings, former: TlsPolicy | None = None) -> TlsPolicy | None:
        """The policy of the client listener; None without TLS."""
        if settings.tls is None:
            return None
        return cls(settings.tls, allow_non_tls=settings.allow_non_tls, former=former)

    def info(self) -> dict[str, bool]:
        """The TLS fields of INFO. After a handshake before INFO, TLS is required anyway."""
        fields = {
            "tls_required": not self.optional,
            "tls_verify": self.verify,
            "tls_available": self.optional,
        }
        return {name: value for name, value in fields.items() if value}

    def admits(self, der: bytes | None) -> bool:
        """Whether a client with this certificate is admitted."""
        return is_known(self.pinned, der)


def peer_of(security: tuple[str, str, str] | None, der: bytes | None) -> TlsPeer:
    """The TLS facts about a peer, with the original's names."""
    cipher, version, _protocol = security or ("", "", "")
    if "CHACHA20" in cipher and cipher not in SUITES:
        cipher = cipher.removesuffix("_SHA256")
    return TlsPeer(der, version.removeprefix("TLS"), cipher)


class Link(Protocol):
    """The part of net.conn.Conn that this module uses."""

    @property
    def peer(self) -> object: ...
    @property
    def security(self) -> tuple[str, str, str] | None: ...
    @property
    def certificate(self) -> bytes | None: ...
    @property
    def chain(self) -> tuple[bytes, ...]: ...
    def peek(self, timeout_ns: int) -> None: ...
    def secure(self, context: ssl.SSLContext, timeout_ns: int) -> None: ...


class Guarded(Protocol):
    """A session that begins after the handshake."""

    @property
    def link(self) -> Link: ...
    @property
    def client_id(self) -> int: ...
    def end(self, error: WireError | None, why: str) -> None: ...


SessionT = TypeVar("SessionT", bound=Guarded)


class TlsHandshake(Generic[SessionT]):
    """The handshake of one connection, until its session begins.

    The session forwards its calls of `begun` and `secured`.
    """

    __slots__ = ("after_info", "begin", "greet", "handshaking", "policy", "session")

    def __init__(
        self,
        policy: TlsPolicy,
        session: SessionT,
        greet: Callable[[SessionT, bool], None],
        begin: Callable[[SessionT, TlsPeer | None], None],
    ) -> None:
        """`greet` puts INFO into the output; its argument: the handshake came before INFO.

        Operations may follow `begin`, which gets None on a plain connection.
        """
        self.policy = policy
        self.session = session
        self.greet = greet
        self.begin = begin
        self.after_info = False
        self.handshaking = False

    def opened(self) -> None:
        """Begin with a new connection."""
        if not self.policy.first:
            self._greet()
        elif self.policy.first_wait_ns:
            self.session.link.peek(self.policy.first_wait_ns)
        else:
            self._secure()

    def begun(self, first: int) -> None:
        """Handle the first byte of input; -1: none arrived in time."""
        if not self.after_info:
            if first < 0:
                self._greet()
            else:
                self._secure()
        elif first == HANDSHAKE:
            self._secure()
        else:
            self.begin(self.session, None)

    def _greet(self) -> None:
        self.after_info = True
        self.greet(self.session, False)
        if self.policy.optional:
            self.session.link.peek(self.policy.timeout_ns)
        else:
            self._secure()

    def _secure(self) -> None:
        rate = self.policy.rate
        if rate is not None and not rate.allow():
            self.session.end(errors.NATS_TLS_THROTTLED, errors.NATS_CLOSED_CONNECTIONS)
            return
        self.handshaking = True
        self.session.link.secure(self.policy.context, self.policy.timeout_ns)

    def secured(self, cause: str | None) -> None:
        """Handle the end of the handshake; `cause`: the failure, if any."""
        self.handshaking = False
        link = self.session.link
        peer = None if cause is not None else peer_of(link.security, link.certificate)
        if peer is not None and self.policy.admits(peer.der):
            peer.chain = link.chain
            if not self.after_info:
                self.greet(self.session, True)
            self.begin(self.session, peer)
            return
        self._failed(cause or "certificate not pinned")
        self.session.end(None, errors.NATS_CLOSED_TLS)

    def lost(self) -> str:
        """Handle the end of the connection; returns the reason for monitoring."""
        if not self.handshaking:
            return errors.NATS_CLOSED_CLIENT
        self._failed("EOF")
        return errors.NATS_CLOSED_TLS

    def _failed(self, cause: str) -> None:
        peer = self.session.link.peer
        where = f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else str(peer)
        if cause == net_errors.TLS_TIMED_OUT:
            LOG.error("%s - cid:%d - TLS handshake timeout", where, self.session.client_id)
        else:
            cause = plainly(cause)
            LOG.error("%s - cid:%d - TLS handshake error: %s", where, self.session.client_id, cause)


def plainly(cause: str) -> str:
    """OpenSSL's reason in clearer words: it mistakes CONNECT of NATS for HTTP."""
    if cause in _NO_TLS:
        return "tls: first record does not look like a TLS handshake"
    if match := _ALERT.fullmatch(cause):
        return f"remote error: tls: {match[1]}"
    return cause
