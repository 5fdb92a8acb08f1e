"""The policy of a log."""

from typing import Final, final

ACKED: Final[str]
LIMITS: Final[str]

@final
class LogPolicy:
    def __init__(self, sync: str | float = "none", retention: str = ...) -> None: ...
    @property
    def sync(self) -> str | float: ...
    @property
    def retention(self) -> str: ...

def implied_retention(protocol: str | None) -> str: ...
