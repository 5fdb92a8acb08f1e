"""Server and client certificates of a listener, and the queue of TLS handshakes.

Each reload creates a new context, so open connections keep theirs and an invalid file changes
nothing. A handshake costs as much time as thousands of messages, so handshakes get a slice of each
turn of the loop: a thousand at once, after a network failure, do not delay open connections.
Sources: nsqd.go buildTLSConfig; Python's ssl.
"""

from __future__ import annotations

import ssl
import time
import warnings
from collections import deque
from typing import TYPE_CHECKING, Final, Literal

from broker.base.values import dataclass
from broker.net import limits
from broker.net.openssl import TlsError, accept_any_certificate, load_authorities, load_pair

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable

ClientCertificate = Literal["", "request", "require", "require-verify"]

VERSIONS: Final = {
    "tls1.0": ssl.TLSVersion.TLSv1,
    "tls1.1": ssl.TLSVersion.TLSv1_1,
    "tls1.2": ssl.TLSVersion.TLSv1_2,
    "tls1.3": ssl.TLSVersion.TLSv1_3,
}


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """The TLS settings of a server."""

    certificate: str
    key: str
    authorities: str = ""  # CAs of client certificates; empty: the system's
    client: ClientCertificate = ""
    min_version: str = "tls1.2"


def server_context(files: TlsFiles) -> ssl.SSLContext:
    """A context for accepting connections. TlsError: a file cannot be used."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
        context.minimum_version = VERSIONS[
            files.min_version
        ]  # old versions only if they are configured
    if context.minimum_version < ssl.TLSVersion.TLSv1_2:
        context.set_ciphers("DEFAULT:@SECLEVEL=0")  # otherwise OpenSSL refuses old versions
    load_pair(context, files.certificate, files.key)
    if files.client:
        context.verify_mode = ssl.CERT_REQUIRED
    if files.authorities:
        load_authorities(context, files.authorities)
    elif files.client == "require-verify":
        context.load_default_certs(ssl.Purpose.CLIENT_AUTH)
    if files.client == "require":
        accept_any_certificate(context)
    elif files.client == "request":
        context.verify_mode = ssl.CERT_OPTIONAL
        accept_any_certificate(context)
    return context


class Certificates:
    """The current context."""

    def __init__(self, files: TlsFiles) -> None:
        self.files = files
        self.context = server_context(files)

    def reload(self, log: logging.Logger) -> bool:
        """Read the files again, and log the result. False: an error, which changes nothing."""
        try:
            self.context = server_context(self.files)
        except TlsError as problem:
            log.error("certificates not reloaded: %s", problem)
            return False
        log.info("certificates reloaded")
        return True


def common_name(link: ssl.SSLObject | None) -> str:
    """The common name in the client's certificate, or nothing: the last of several, as in Go."""
    if link is None:
        return ""
    der = link.getpeercert(binary_form=True)  # whether or not it was verified
    if der is None:
        return ""
    # Few listeners ask clients for certificates.
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    try:
        subject = x509.load_der_x509_certificate(der).subject
    except (ValueError, x509.InvalidVersion):  # OpenSSL accepts more than can be read here
        return ""
    names = subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(names[-1].value) if names else ""


class Handshakes:
    """Number of steps that wait for their slice."""

    def __init__(
        self,
        call_soon: Callable[[Callable[[], None]], object],
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._call_soon = call_soon
        self._clock = clock
        self._steps: deque[Callable[[], None]] = deque()

    def add(self, step: Callable[[], None]) -> None:
        """Call `step`, which must not raise, in a later slice."""
        self._steps.append(step)
        if len(self._steps) == 1:
            self._call_soon(self._go)

    def _go(self) -> None:
        end = self._clock() + limits.HANDSHAKE_SLICE
        while True:
            self._steps[0]()
            self._steps.popleft()
            if not self._steps:
                return
            if self._clock() >= end:
                self._call_soon(self._go)
                return
