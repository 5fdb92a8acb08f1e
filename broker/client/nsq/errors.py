"""Exceptions of the NSQ client.

They are separate because all its modules raise them.
"""

from __future__ import annotations

import os
import ssl
from typing import Final


class NsqError(Exception):
    """Any error between this client and a server."""


class ConnectError(NsqError):
    """No connection, or the server refused the handshake."""


class ClosedError(NsqError):
    """The connection ended before the answer: it is unknown whether the server executed the
    command."""


class PendingFullError(NsqError):
    """Too many publishes wait for their answer."""


class ServerError(NsqError):
    """An error frame: `code` is its first word, the text is the whole error."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.code = text.partition(" ")[0]

    @property
    def fatal(self) -> bool:
        """Whether the server closes the connection after this error: True for all but three
        codes."""
        return self.code not in NOT_FATAL


NOT_FATAL: Final = frozenset({"E_FIN_FAILED", "E_REQ_FAILED", "E_TOUCH_FAILED"})


def reason_of(error: BaseException) -> str:
    """The text of an error, without the number and the address that Python and aiohttp add."""
    # aiohttp stores the original error in an attribute
    cause = getattr(error, "certificate_error", None) or getattr(error, "os_error", error)
    if isinstance(cause, ssl.SSLCertVerificationError):
        return f"the certificate is not trusted: {cause.verify_message}"
    if isinstance(cause, ssl.SSLError) and cause.reason:  # its number is not an errno
        return cause.reason.replace("_", " ").lower()
    if not isinstance(cause, OSError) or cause.errno is None:
        return str(cause) or type(cause).__name__
    # errors of name resolution have negative numbers, which are not errnos
    text = os.strerror(cause.errno) if cause.errno > 0 else cause.strerror or str(cause)
    return text[:1].lower() + text[1:]
