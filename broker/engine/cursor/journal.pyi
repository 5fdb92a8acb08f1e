"""What a cursor must not forget, as a file of its own."""

from typing import final

from broker.engine.state import EngineState
from broker.runtime.workers import JobOwner

@final
class Journal(JobOwner):
    path: str
    file_bytes: int
    snapshot_bytes: int
    unsynced: bool
    last_error: int
    handed: int
    done: int
    def __init__(self, shared: EngineState, path: str) -> None: ...
    def adopt(self, file_bytes: int) -> None: ...
    @property
    def mark(self) -> int: ...
    def close(self) -> None: ...
    def discard(self) -> None: ...

def read_journal(path: str) -> tuple[list[tuple[int, int, int, int]], int, int]: ...
def encode_journal(ops: list[tuple[int, int, int, int]]) -> bytes: ...
