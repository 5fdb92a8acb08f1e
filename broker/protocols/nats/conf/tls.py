"""A `tls` block of a configuration; its files are opened, so that errors are reported early."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING, Final

from broker.base.patterns import lazy_pattern
from broker.net.openssl import TlsError, load_authorities
from broker.protocols.nats import limits
from broker.protocols.nats.conf.fields import INT32, Block, go_duration
from broker.protocols.nats.settings import Tls
from broker.protocols.nats.tls import (
    CIPHERS,
    CURVES,
    INSECURE_CIPHERS,
    SUITES,
    client_context,
    server_context,
)

if TYPE_CHECKING:
    from collections.abc import Collection

    from broker.protocols.nats.conf.text import Value

_PIN: Final = lazy_pattern(r"[0-9a-f]{64}")
_VERSIONS: Final = ("1.0", "1.1", "1.2", "1.3")


def tls(block: Block, server: bool) -> Tls | None:
    """A block for a listener (`server`), which needs a certificate, or for outgoing connections."""
    if not isinstance(block.value.it, dict):
        return None
    before = len(block.mistakes.errors)
    _refuse_unsupported(block)
    certificates = _certificates(block)
    verify_and_map = block.flag("verify_and_map")
    first, wait_ns = _handshake_first(block)
    result = Tls(
        cert_file=block.text("cert_file"),
        key_file=block.text("key_file"),
        certificates=certificates,
        ca_file=block.text("ca_file"),
        verify=block.flag("verify") or verify_and_map,
        verify_and_map=verify_and_map,
        insecure=block.flag("insecure"),
        timeout_ns=block.duration("timeout", default=limits.NATS_TLS_TIMEOUT, seconds="fraction"),
        cipher_suites=_ciphers(block),
        curve_preferences=_names(block, "curve_preferences", CURVES),
        pinned_certs=_pins(block),
        connection_rate_limit=block.number("connection_rate_limit", low=0, high=INT32),
        handshake_first=first,
        handshake_first_wait_ns=wait_ns,
        min_version=_min_version(block),
    )
    block.done(variables=False)
    if len(block.mistakes.errors) == before:
        _check_files(block, result, server)
    return result


def optional_tls(block: Block, *names: str, server: bool = True) -> Tls | None:
    """The block, if present."""
    inner = block.block(*(names or ("tls",)))
    return None if inner is None else tls(inner, server)


def _refuse_unsupported(block: Block) -> None:
    key = "verify_cert_and_check_known_urls"
    if block.flag(key):
        block.wrong(f"{key}: only for routes and gateways", key)
    for key in ("cert_store", "cert_match_by", "cert_match"):
        if block.has(key):
            block.wrong(f"{key}: only on Windows", key)
            block.take(key)
    peer = block.take("ocsp_peer")
    enabled = peer is not None and peer.it is not False
    if peer is not None and isinstance(peer.it, dict):
        verify = peer.it.get("verify")
        enabled = verify is not None and verify.it is not False
    if peer is not None and enabled:
        block.mistakes.add(peer, "ocsp_peer: revocation is not looked up here")


def _certificates(block: Block) -> tuple[tuple[str, str], ...]:
    if block.has("certs", "certificates") and block.has("cert_file"):
        block.wrong("certs: cannot be combined with cert_file", "certs", "certificates")
    found = []
    for inner in block.blocks("certs", "certificates", what="a pair of certificate and key"):
        pair = inner.text("cert_file"), inner.text("key_file")
        inner.done(variables=False)
        if not all(pair):
            inner.wrong("certs: a cert_file and a key_file are needed")
        found.append(pair)
    return tuple(found)


def _check_files(block: Block, found: Tls, server: bool) -> None:
    """Check that certificates and keys exist, are readable, and belong together."""
    try:
        if found.ca_file:
            load_authorities(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), found.ca_file)
    except TlsError as problem:
        return block.wrong(f"tls: {problem}", "ca_file")
    try:
        server_context(found) if server else client_context(found)
    except TlsError as problem:
        block.wrong(f"tls: {problem}", "certs", "certificates", "key_file", "cert_file")
    return None


def _names(block: Block, key: str, known: Collection[str]) -> tuple[str, ...]:
    if not block.has(key):
        return ()
    position = block.peek(key)
    found = []
    for text, value in block.each_text(key, only_array=True):
        found.append(text)
        if text not in known:
            block.mistakes.add(value, f"{key}: {text!r} is unknown")
    if position is not None and position.it == []:
        block.mistakes.add(position, f"{key}: must not be empty")
    return tuple(found)


def _ciphers(block: Block) -> tuple[str, ...]:
    found = _names(block, "cipher_suites", (*CIPHERS, *SUITES))
    insecure = [name for name in found if name in INSECURE_CIPHERS]
    if not block.flag("allow_insecure_cipher_suites") and insecure:
        reason = "insecure cipher suites configured without 'allow_insecure_cipher_suites'"
        block.wrong(f"{reason} option set: {', '.join(insecure)}", "cipher_suites")
    return found


def _pins(block: Block) -> frozenset[str]:
    found = set()
    for text, value in block.each_text("pinned_certs", only_array=True):
        found.add(text.lower())
        if not _PIN.fullmatch(text.lower()):
            block.mistakes.add(value, "pinned_certs: expected the SHA-256 of a public key in hex")
    return frozenset(found)


def _handshake_first(block: Block) -> tuple[bool, int]:
    names = ("handshake_first", "first", "immediate")
    entry: Value | None = block.take(*names)
    if entry is None:
        return False, 0
    if isinstance(entry.it, bool):
        return entry.it, 0
    word = entry.it.lower() if isinstance(entry.it, str) else ""
    if word in ("true", "on", "false", "off"):
        return word in ("true", "on"), 0
    if word in ("auto", "auto_fallback"):
        return True, limits.NATS_HANDSHAKE_FIRST_WAIT
    try:
        return True, max(go_duration(word), 0)
    except ValueError:
        reason = 'handshake_first: expected true, false, "auto" or a duration'
        block.mistakes.add(entry, reason)
    return False, 0


def _min_version(block: Block) -> str:
    text = block.text("min_version", default="1.2")
    if text not in ("1.2", "1.3"):
        known = "is too old" if text in _VERSIONS else "is unknown"
        block.wrong(f"min_version: TLS {text} {known}", "min_version")
        return "1.2"
    return text
