"""WebSocket frames between a transport and a session."""

from collections.abc import Callable
from typing import final

from broker.net.filters import Filter

CLOSE_NORMAL: int
CLOSE_GOING_AWAY: int
CLOSE_PROTOCOL: int
CLOSE_POLICY: int
CLOSE_TOO_BIG: int
CLOSE_INTERNAL: int

@final
class WebSocket(Filter):
    status: Callable[[], tuple[int, str]] | None
    def __init__(
        self,
        *,
        compression: bool = False,
        masked: bool = True,
        masks: bool = False,
        frame_max: int = 0,
    ) -> None: ...

def accept_key(key: str) -> str: ...
