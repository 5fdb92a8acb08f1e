"""Messages of atomic batches, which wait for their commit in memory."""

from typing import final

from broker.protocols.jetstream.errors import ApiError, ErrorRow

class BatchError(ApiError):
    reason: str
    def __init__(self, row: ErrorRow, reason: str, **parts: object) -> None: ...

@final
class Batch:
    id: bytes
    messages: list[tuple[bytes, bytes, int]]
    bytes: int
    due_ns: int
    def __init__(self, key: bytes) -> None: ...

@final
class Batches:
    open: dict[bytes, Batch]
    def __init__(self) -> None: ...
