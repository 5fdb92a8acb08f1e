"""The records of a fetched range as buffers of Arrow columns."""

from collections.abc import Iterable
from typing import Any, Final, Self, final

from broker.client.bulk.errors import Gap

COLUMNS: Final[dict[str, int]]

@final
class Frame:
    count: int
    rows: int
    bad: int
    first: int
    next: int
    log_id: bytes
    gaps: tuple[Gap, ...]
    def __new__(
        cls,
        data: bytes | bytearray | memoryview,
        topic: bytes,
        key_header: bytes | None = None,
        subject_filter: bytes | None = None,
    ) -> Self: ...
    def take(
        self, columns: Iterable[str], max_rows: int, max_bytes: int
    ) -> tuple[int, dict[str, Any]] | None: ...
