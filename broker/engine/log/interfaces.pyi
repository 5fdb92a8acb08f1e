"""What the parts of a log may know of it, and what a log knows of its readers."""

from typing_extensions import disjoint_base

from broker.engine.cursor.acks import AckSet
from broker.engine.cursor.journal import Journal
from broker.engine.log.policy import LogPolicy
from broker.engine.log.segment import Segment
from broker.engine.state import EngineState
from broker.runtime.interfaces import Session
from broker.runtime.workers import JobOwner

@disjoint_base
class LogReader(JobOwner):
    name: str
    ephemeral: bool
    next_seq: int
    acks: AckSet
    journal: Journal | None

@disjoint_base
class LogOwner(Session):
    first_seq: int
    messages: int
    erasing: int
    erasures: int
    def count_from(self, seq: int) -> int: ...

@disjoint_base
class LogBase(JobOwner):
    shared: EngineState
    name: str
    folder: str | None
    deleted: bool
    log_id: bytes
    segments: list[Segment]
    next_seq: int
    visible: int
    frontier: int
    waiting_bytes: int
    unclaimed: bool
    policy: LogPolicy
    protocol: str | None
