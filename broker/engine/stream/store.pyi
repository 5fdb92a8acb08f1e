"""One stream: a log, the subject and size of each of its messages, its limits."""

import builtins
from typing import final

from broker.engine.engine import Engine
from broker.engine.log.interfaces import LogOwner
from broker.engine.log.log import Log
from broker.engine.stream.dedupe import Duplicates
from broker.engine.stream.filter import Filter
from broker.engine.stream.subjects import SubjectIndex
from broker.runtime.interfaces import Session

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

PURGE_POLL: float

class StreamOwner(Session): ...

@final
class StreamStore(LogOwner):
    log: Log
    subjects: SubjectIndex
    limits: StreamLimits
    last_seq: int
    bytes: int
    last_ns: int
    duplicates: Duplicates
    lost_messages: int
    lost_bytes: int
    def __init__(self, log: Log, limits: StreamLimits, id_header: builtins.bytes = b"") -> None: ...
    def message(
        self, seq: int
    ) -> tuple[int, int, builtins.bytes, builtins.bytes, builtins.bytes] | None: ...
    @property
    def first_ns(self) -> int: ...
    closed: bool
    def close(self) -> None: ...
    def set_limits(self, limits: StreamLimits) -> None: ...
    def apply_limits(self) -> None: ...
    def reuse_gap(self) -> None: ...
    @property
    def is_settling(self) -> bool: ...
    async def settle(self) -> None: ...
    async def delete(self, seq: int, erase: bool = False) -> bool: ...
    async def skip_to(self, seq: int) -> None: ...
    async def purge(self, subject: str | None = None, seq: int = 0, keep: int = 0) -> int: ...
    def newest(self, among: Filter | None, keep: int) -> int: ...
    def deleted(self, limit: int) -> list[int]: ...
    @property
    def num_deleted(self) -> int: ...

def open_store(
    engine: Engine,
    name: str,
    limits: StreamLimits,
    *,
    protocol: str | None = None,
    sync: str | float = "always",
    memory: bool = False,
    id_header: bytes = b"",
) -> StreamStore: ...
