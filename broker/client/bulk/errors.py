"""What the bulk client raises."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

DAMAGED: Final = 1
MISSING: Final = 2
_REASONS: Final = {DAMAGED: "damaged", MISSING: "missing"}


class Gap(NamedTuple):
    """Records that cannot be had: seqs of [first, next)."""

    first: int
    next: int
    reason: int  # DAMAGED: their bytes do not read; MISSING: no file has them

    def __str__(self) -> str:
        return f"{self.first}-{self.next - 1} {_REASONS.get(self.reason, f'({self.reason})')}"


class BulkError(Exception):
    """Anything that goes wrong between this client and a broker."""


class Unreachable(BulkError):
    """No answer, also after the retries: nothing is known of what was asked for."""


class WrongDoor(Unreachable):
    """Asking again is no use: a certificate that is not trusted, or no bulk door at all."""


def is_passing(error: BaseException) -> bool:
    """Whether trying again in a while may help."""
    return isinstance(error, Unreachable) and not isinstance(error, WrongDoor)


class Refused(BulkError):
    """The broker does not do this: HTTP's status, and what the answer says besides the error."""

    def __init__(
        self, text: str, status: int = 400, answer: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(text)
        self.status = status
        self.answer = dict(answer or {})

    def __reduce__(self) -> tuple[type[Refused], tuple[str, int, dict[str, Any]]]:
        return type(self), (str(self), self.status, self.answer)


class Unauthorized(Refused):
    """No token, or one without this right."""


class UnknownTopic(Refused):
    """The broker has no log of this name."""


class Trimmed(Refused):
    """The records are no longer kept."""

    @property
    def first(self) -> int:
        """The oldest record there is."""
        return int(self.answer.get("first", 0))


class BeyondEnd(Refused):
    """The start is behind what the log durably has."""

    @property
    def next(self) -> int:
        """The seq the next record will have."""
        return int(self.answer.get("next", 0))


class OtherIncarnation(Refused):
    """The log was deleted and made anew: its seqs mean other records."""

    @property
    def incarnation(self) -> str:
        """Of the log that has the name now."""
        return str(self.answer.get("incarnation", ""))


class Damaged(BulkError):
    """Records that do not read (`gaps`), or an answer that is none (no gaps)."""

    def __init__(self, text: str, gaps: tuple[Gap, ...] = ()) -> None:
        super().__init__(text)
        self.gaps = gaps

    def __reduce__(self) -> tuple[type[Damaged], tuple[str, tuple[Gap, ...]]]:
        return type(self), (str(self), self.gaps)


class Unstorable(BulkError, ValueError):
    """A row that cannot become a record."""
