"""The policy of a log."""

from collections.abc import Iterable
from typing import Final, final

ACKED: Final[str]
LIMITS: Final[str]
OWNED: Final[str]

@final
class LogPolicy:
    subjects: tuple[str, ...] | None
    def __init__(
        self,
        sync: str | float = "none",
        retention: str = ...,
        subjects: Iterable[str] | None = None,
    ) -> None: ...
    @property
    def sync(self) -> str | float: ...
    @property
    def retention(self) -> str: ...

def plain_policy(sync: str | float, retention: str) -> LogPolicy: ...
def implied_retention(protocol: str | None) -> str: ...
