"""A log: segments in order, appended to at one end, trimmed at the other, read by cursors."""

from collections.abc import Callable
from typing import Any, final

from broker.engine.cursor.cursor import Cursor
from broker.engine.log.limiter import Limiter
from broker.engine.log.segment import Segment
from broker.engine.state import Shared
from broker.runtime.workers import JobOwner

@final
class Log(JobOwner):
    shared: Shared
    name: str
    folder: str | None
    ephemeral: bool
    paused: bool
    held: bool
    deleted: bool
    log_id: bytes
    created_ns: int
    sync_period_ns: int
    segments: list[Segment]
    next_seq: int
    visible: int
    frontier: int
    cursors: dict[str, Cursor]
    waiting_bytes: int
    unsynced: bool
    unclaimed: bool
    durable_only: bool
    failed_syncs: int
    syncs: int
    last_error: int
    stalled: list[Any]
    message_count: int
    message_bytes: int
    dropped_live: int
    keep_ns: int
    keep_bytes: int
    settings: dict[str, Any]
    retention: tuple[int, int, int] | None
    face: str | None
    limiter: Limiter | None
    held_from: int
    to_live: bool
    on_unused: Callable[[str], object] | None
    def __init__(
        self,
        shared: Shared,
        name: str,
        folder: str | None,
        log_id: bytes,
        policy: str | float,
        ephemeral: bool = False,
    ) -> None: ...
    def set_policy(self, policy: str | float) -> None: ...
    def memory_bytes(self) -> int: ...
    def skip_to(self, seq: int) -> None: ...
    def open_cursor(self, name: str, ephemeral: bool = False, start: int = 0) -> Cursor: ...
    def delete_cursor(self, name: str) -> None: ...
    def stall(self, link: Any) -> None: ...
    async def publish(self, bodies: list[bytes], not_before_ns: int = 0) -> None: ...
    def pause(self) -> None: ...
    def unpause(self) -> None: ...
    def empty(self) -> None: ...
    def save(self, durable: bool = False) -> None: ...
    def deliver_durable(self) -> None: ...
    def restamp(self) -> None: ...
    def claim(self) -> None: ...
    def close(self, delete: bool = False) -> None: ...
    @property
    def refusal(self) -> str: ...
    def connect(self, to_live: bool, from_live: bool) -> None: ...
    @property
    def hears_live(self) -> bool: ...
    @property
    def backlog_seq(self) -> int: ...
    @property
    def depth(self) -> int: ...
    @property
    def backend_depth(self) -> int: ...
    @property
    def first_seq(self) -> int: ...
    @property
    def disk_bytes(self) -> int: ...
