"""Exceptions of the NSQ client.

They stand alone because all its modules raise them, and each owner's errors have a file.
"""

from __future__ import annotations

from typing import Final


class NsqError(Exception):
    """Anything that goes wrong between this client and a server."""


class ConnectError(NsqError):
    """No connection, or the server refused the hand-shake."""


class ClosedError(NsqError):
    """The connection ended before the answer came: whether it was done is not known."""


class PendingFullError(NsqError):
    """Too many publishes wait for their answer."""


class ServerError(NsqError):
    """An error frame: `code` is its first word, the text is all of it."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.code = text.partition(" ")[0]

    @property
    def fatal(self) -> bool:
        """The server closes the connection after all errors but three."""
        return self.code not in NOT_FATAL


NOT_FATAL: Final = frozenset({"E_FIN_FAILED", "E_REQ_FAILED", "E_TOUCH_FAILED"})
