"""What goes wrong with a connection: which of it may pass by itself, and how it is told.

A broker that restarts, a network that is cut: later it may be well again. A certificate that is
not trusted, a port where something else listens: asking again changes nothing.
"""

from __future__ import annotations

import http.client
import ssl
from typing import Final

LOST: Final = (OSError, http.client.HTTPException, EOFError)
_HTTP: Final = "HTTP/"
_SHOWN: Final = 60  # characters of what answers there instead
# Reasons that OpenSSL gives when the other side talks no TLS, or does not like our certificate.
_NO_TLS: Final = frozenset({"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG"})
_NOT_OURS: Final = frozenset({
    "TLSV13_ALERT_CERTIFICATE_REQUIRED",
    "SSLV3_ALERT_BAD_CERTIFICATE",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN",
    "SSLV3_ALERT_HANDSHAKE_FAILURE",
    "TLSV1_ALERT_UNKNOWN_CA",
})  # fmt: skip


def is_lasting(error: BaseException) -> bool:
    """Whether another attempt would end like this one."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return True
    if isinstance(error, ssl.SSLError):
        return error.reason in _NO_TLS | _NOT_OURS
    return _speaks_else(error)


def said(error: BaseException, *, plain: bool = False) -> str:
    """In a line for people. `plain`: we have asked without TLS."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the certificate is not trusted: {error.verify_message}"
    if isinstance(error, ssl.SSLError) and error.reason in _NO_TLS:
        return "what answers there does not speak TLS"
    if isinstance(error, ssl.SSLError) and error.reason in _NOT_OURS:
        return f"our certificate is refused ({error.reason})"
    if _speaks_else(error):
        return f"what answers there does not speak HTTP: {_line(error)[:_SHOWN]!r}"
    if plain and isinstance(error, http.client.RemoteDisconnected):
        return f"{error} (a door with TLS wants https://)"
    return str(error) or type(error).__name__


def _speaks_else(error: BaseException) -> bool:
    """A status line that is none, and no beginning of one either: a lost connection tears them."""
    return (
        isinstance(error, http.client.BadStatusLine)
        and not isinstance(error, http.client.RemoteDisconnected)
        and not _HTTP.startswith(_line(error)[: len(_HTTP)])
    )


def _line(error: BaseException) -> str:
    return str(getattr(error, "line", ""))
