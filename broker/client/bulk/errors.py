"""Exceptions of the client of the bulk API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

DAMAGED: Final = 1
MISSING: Final = 2
_REASONS: Final = {DAMAGED: "damaged", MISSING: "missing"}


class Gap(NamedTuple):
    """Records that cannot be read: seqs of [first, next)."""

    first: int
    next: int
    reason: int  # DAMAGED: the bytes of the records are damaged; MISSING: no file has them

    def __str__(self) -> str:
        return f"{self.first}-{self.next - 1} {_REASONS.get(self.reason, f'({self.reason})')}"


class BulkError(Exception):
    """Any error between this client and a broker."""


class Unreachable(BulkError):
    """No response, even after retries: it is unknown whether the request was carried out."""


class WrongServer(Unreachable):
    """A retry fails too: the certificate is not trusted, or the server does not use HTTP or TLS."""


WrongDoor = WrongServer  # the name in earlier versions


def is_passing(error: BaseException) -> bool:
    """Whether a later retry may succeed."""
    return isinstance(error, Unreachable) and not isinstance(error, WrongDoor)


class Refused(BulkError):
    """The broker rejected the request. `status` is the HTTP status, `answer` the other fields of
    the response."""

    def __init__(
        self, text: str, status: int = 400, answer: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(text)
        self.status = status
        self.answer = dict(answer or {})

    def __reduce__(self) -> tuple[type[Refused], tuple[str, int, dict[str, Any]]]:
        return type(self), (str(self), self.status, self.answer)


class Unauthorized(Refused):
    """The request has no valid token, or a token without the permission."""


class UnknownTopic(Refused):
    """The broker has no log of this name."""


class Trimmed(Refused):
    """The first of the requested records was dropped."""

    @property
    def first(self) -> int:
        """The oldest record that can be read."""
        return int(self.answer.get("first", 0))


class BeyondEnd(Refused):
    """The start is after the end of the log's durable records."""

    @property
    def next(self) -> int:
        """The seq of the next record."""
        return int(self.answer.get("next", 0))


class OtherIncarnation(Refused):
    """The log was deleted and recreated: its seqs belong to other records."""

    @property
    def incarnation(self) -> str:
        """The incarnation of the current log."""
        return str(self.answer.get("incarnation", ""))


class Damaged(BulkError):
    """Damaged records (`gaps`), or an invalid response (no gaps)."""

    def __init__(self, text: str, gaps: tuple[Gap, ...] = ()) -> None:
        super().__init__(text)
        self.gaps = gaps

    def __reduce__(self) -> tuple[type[Damaged], tuple[str, tuple[Gap, ...]]]:
        return type(self), (str(self), self.gaps)


class Unstorable(BulkError, ValueError):
    """A row that cannot become a record."""
