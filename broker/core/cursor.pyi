"""A cursor: one reader's place in a log."""

from typing import final

from broker.core.acks import AckSet
from broker.core.deadletter import DeadLetters
from broker.core.inflight import Inflight
from broker.core.jobs import JobOwner
from broker.core.journal import Journal
from broker.core.latency import AckLatency
from broker.core.log import Log
from broker.core.shared import Shared

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
