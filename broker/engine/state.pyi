"""What all logs of one engine share."""

from collections.abc import Callable
from typing import Any, final

from broker.engine.health import Health
from broker.engine.limits import EngineLimits
from broker.routing.router import Router
from broker.runtime.turn import Turn
from broker.runtime.workers import Worker

SYNC_BUCKETS: tuple[float, ...]

@final
class EngineState:
    turn: Turn
    writer: Worker
    syncer: Worker
    second_syncer: Worker
    loader: Worker
    router: Router
    root: str | None
    root_known: bool
    report: Callable[..., object]
    segment_bytes: int
    append_bytes_max: int
    memory_bytes_max: int
    memory_segment_bytes: int
    load_bytes: int
    journal_bytes_min: int
    reclaim_bytes: int
    deliver_bytes_max: int
    inline_bytes: int
    inline_long_bytes: int
    inline_long_ns: int
    inline_stall_ns: int
    inline_pause_ns: int
    inline_pause_max_ns: int
    inline_writes: int
    inline_stalls: int
    retry_ns: int
    entries_max: int
    deferred_max: int
    deferred: int
    window_max: int
    ack_latency_ns: int
    settle_poll: float
    to_live: bool
    from_live: bool
    health: Health
    watchers: list[Callable[[str, str | None, bool], object]]
    touched: set[Any]
    private_subjects: tuple[bytes, ...]
    make_cursor: Callable[..., Any]
    new_cursor: Callable[[Any], object] | None
    bytes_written: int
    write_errors: int
    sync_errors: int
    torn_bytes: int
    quarantined_bytes: int
    quarantined_ranges: int
    syncs: int
    sync_seconds: float
    sync_buckets: list[int]
    def __init__(
        self,
        turn: Turn,
        router: Router,
        root: str | None,
        report: Callable[..., object],
        limits: EngineLimits,
    ) -> None: ...
    @property
    def workers(self) -> tuple[Worker, Worker, Worker]: ...
