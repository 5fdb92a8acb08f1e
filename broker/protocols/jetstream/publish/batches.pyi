"""Messages of atomic batches, which wait for their commit in memory."""

import builtins
from typing import final

from broker.protocols.jetstream.errors import ApiError, ErrorRow

class BatchError(ApiError):
    reason: str
    def __init__(self, row: ErrorRow, reason: str, **parts: object) -> None: ...

@final
class Batch:
    id: builtins.bytes
    messages: list[tuple[builtins.bytes, builtins.bytes, int]]
    bytes: int
    due_ns: int
    def __init__(self, key: builtins.bytes) -> None: ...

@final
class Batches:
    open: dict[bytes, Batch]
    def __init__(self) -> None: ...
