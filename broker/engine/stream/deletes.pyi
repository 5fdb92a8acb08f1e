"""Which messages of a stream were deleted, as a journal beside its log."""

from typing import final

from broker.engine.cursor.journal import Journal
from broker.engine.log.interfaces import LogBase
from broker.engine.stream.subjects import SubjectIndex

FILE: str

@final
class DeadRuns:
    floor: int
    next_seq: int

@final
class Deletes:
    journal: Journal | None
    def __init__(self, log: LogBase, subjects: SubjectIndex) -> None: ...
    async def durable(self) -> None: ...
    def close(self) -> None: ...
