"""A cursor: one reader's place in a log."""

from typing import final

from broker.engine.cursor.acks import AckSet
from broker.engine.cursor.deadletter import DeadLetters
from broker.engine.cursor.inflight import Inflight
from broker.engine.cursor.journal import Journal
from broker.engine.cursor.latency import AckLatency
from broker.engine.log.log import Log
from broker.engine.state import Shared
from broker.runtime.workers import JobOwner

@final
class Cursor(JobOwner):
    shared: Shared
    log: Log
    name: str
    ephemeral: bool
    paused: bool
    deleted: bool
    next_seq: int
    acks: AckSet
    inflight: Inflight
    journal: Journal | None
    consumers: int
    requeue_count: int
    timeout_count: int
    latency: AckLatency | None
    dead: DeadLetters | None
    def __init__(self, log: Log, name: str, start: int, journal: Journal | None = None) -> None: ...
    def pause(self) -> None: ...
    def unpause(self) -> None: ...
    def empty(self) -> None: ...
    def close(self, delete: bool = False) -> None: ...
    @property
    def depth(self) -> int: ...
    @property
    def in_flight_count(self) -> int: ...
    @property
    def deferred_count(self) -> int: ...
    @property
    def nearness_counts(self) -> tuple[int, int, int]: ...
    @property
    def message_count(self) -> int: ...
