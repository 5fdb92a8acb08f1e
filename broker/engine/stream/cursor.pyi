"""The cursor of a consumer in a stream, and all cursors of one stream."""

from collections.abc import Callable, Iterable, Sequence

from typing_extensions import disjoint_base

from broker.engine.log.interfaces import LogReader
from broker.engine.log.log import Log
from broker.engine.state import EngineState
from broker.engine.stream.interfaces import StreamReader
from broker.engine.stream.store import StreamStore
from broker.runtime.interfaces import Session

POLICIES: dict[str, int]
RETENTIONS: dict[str, int]

_Start = int | Sequence[int]

class CursorOwner(Session): ...

@disjoint_base
class FilterGroup: ...

@disjoint_base
class StreamCursors(StreamReader):
    store: StreamStore
    shared: EngineState
    retention: int
    cursors: dict[str, StreamCursor]
    def __init__(self, store: StreamStore, retention: str = "limits") -> None: ...
    def set_retention(self, retention: str) -> None: ...
    retention_suspended: bool
    def suspend_retention(self) -> None: ...
    def sweep(self) -> None: ...
    @property
    def sweeping(self) -> bool: ...

@disjoint_base
class StreamCursor(LogReader):
    all: StreamCursors
    store: StreamStore
    shared: EngineState
    log: Log
    filters: tuple[str, ...]
    ack_policy: int
    ack_wait_ns: int
    max_deliver: int
    max_ack_pending: int
    closed: bool
    paused_until_ns: int
    last_delivered_ns: int
    last_acked_ns: int
    firsts: int
    timeouts: int
    def __init__(
        self,
        among: StreamCursors,
        name: str,
        start: _Start | Callable[[], _Start],
        *,
        journal: str | None = None,
        ack_policy: str = "explicit",
        ack_wait_ns: int = ...,
        backoff_ns: Sequence[int] = (),
        max_deliver: int = 0,
        max_ack_pending: int = 0,
        filters: Iterable[str] = (),
    ) -> None: ...
    def update(
        self,
        *,
        ack_wait_ns: int,
        backoff_ns: Sequence[int] = (),
        max_deliver: int = 0,
        max_ack_pending: int = 0,
        filters: Iterable[str] = (),
    ) -> None: ...
    def set_waits(self, ack_wait_ns: int, backoff_ns: Sequence[int]) -> None: ...
    def set_filters(self, filters: tuple[str, ...]) -> None: ...
    def pause_until(self, wall_ns: int) -> None: ...
    def reset(self, seq: int) -> int: ...
    def return_all(self) -> None: ...
    async def synced(self) -> None: ...
    @property
    def num_pending(self) -> int: ...
    @property
    def num_ack_pending(self) -> int: ...
    @property
    def deferred_count(self) -> int: ...
    @property
    def again_count(self) -> int: ...
    @property
    def num_redelivered(self) -> int: ...
    @property
    def exhausted_count(self) -> int: ...
    @property
    def delivered(self) -> tuple[int, int]: ...
    @property
    def ack_floor(self) -> tuple[int, int]: ...
    def pending(self) -> list[tuple[int, int, int, int]]: ...
    @property
    def backoff_ns(self) -> tuple[int, ...]: ...
    def close(self, delete: bool = False, keep_unmatched: bool = False) -> None: ...
