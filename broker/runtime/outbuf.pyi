"""Bytes on their way out of one connection."""

from typing import final

from broker.runtime.interfaces import Task
from broker.runtime.turn import Turn

@final
class ChunkPool:
    small_bytes: int
    large_bytes: int
    pooled_max: int
    def __init__(self, small_bytes: int, large_bytes: int, pooled_max: int) -> None: ...

@final
class OutBuf:
    limit: int
    overflow: bool
    def __init__(self, owner: Task, turn: Turn, pool: ChunkPool, limit: int) -> None: ...
    def put_bytes(self, data: bytes) -> int: ...
