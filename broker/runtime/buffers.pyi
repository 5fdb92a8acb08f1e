"""Bytes on their way into and out of one connection."""

import sys
from typing import Self, final

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

@final
class InBuf:
    def __new__(cls, cap: int) -> Self: ...
    def __len__(self) -> int: ...
    if sys.version_info >= (3, 12):
        def __buffer__(self, flags: int, /) -> memoryview: ...
