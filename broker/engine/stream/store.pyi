"""One stream: a log, the subject and size of each of its messages, its limits."""

from typing import final

from broker.engine.engine import Engine
from broker.engine.log.interfaces import LogOwner
from broker.engine.log.log import Log
from broker.engine.stream.subjects import SubjectIndex

@final
class StreamLimits:
    max_msgs: int
    max_bytes: int
    max_msgs_per_subject: int
    max_age_ns: int
    discard_new: bool
    discard_new_per_subject: bool
    duplicate_window_ns: int
    def __init__(
        self,
        *,
        max_msgs: int = 0,
        max_bytes: int = 0,
        max_msgs_per_subject: int = 0,
        max_age_ns: int = 0,
        discard_new: bool = False,
        discard_new_per_subject: bool = False,
        duplicate_window_ns: int = 0,
    ) -> None: ...

@final
class StreamStore(LogOwner):
    log: Log
    subjects: SubjectIndex
    limits: StreamLimits
    first_seq: int
    last_seq: int
    messages: int
    bytes: int
    last_ns: int
    lost_messages: int
    lost_bytes: int
    def __init__(self, log: Log, limits: StreamLimits) -> None: ...
    def message(self, seq: int) -> tuple[int, int, bytes, bytes, bytes] | None: ...
    @property
    def first_ns(self) -> int: ...
    def close(self) -> None: ...

def open_store(
    engine: Engine,
    name: str,
    limits: StreamLimits,
    *,
    protocol: str | None = None,
    sync: str | float = "always",
    memory: bool = False,
) -> StreamStore: ...
