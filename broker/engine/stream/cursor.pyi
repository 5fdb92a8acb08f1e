"""A consumer's place in a stream."""

from collections.abc import Sequence

from broker.engine.log.interfaces import LogReader
from broker.engine.log.log import Log
from broker.runtime.interfaces import Session

POLICIES: dict[str, int]

class CursorOwner(Session): ...

class StreamCursor(LogReader):
    log: Log
    ack_policy: int
    ack_wait_ns: int
    max_deliver: int
    max_ack_pending: int
    closed: bool
    paused_until_ns: int
    last_delivered_ns: int
    last_acked_ns: int
    def __init__(
        self,
        log: Log,
        name: str,
        start: int,
        *,
        ack_policy: str = "explicit",
        ack_wait_ns: int = ...,
        backoff_ns: Sequence[int] = (),
        max_deliver: int = 0,
        max_ack_pending: int = 0,
    ) -> None: ...
    def update(
        self,
        *,
        ack_wait_ns: int,
        backoff_ns: Sequence[int] = (),
        max_deliver: int = 0,
        max_ack_pending: int = 0,
    ) -> None: ...
    @property
    def num_pending(self) -> int: ...
    @property
    def num_ack_pending(self) -> int: ...
    @property
    def num_redelivered(self) -> int: ...
    @property
    def delivered(self) -> tuple[int, int]: ...
    @property
    def ack_floor(self) -> tuple[int, int]: ...
    def close(self, delete: bool = False) -> None: ...
