"""One file of a log."""

from typing import final

@final
class Segment:
    first_seq: int
    next_seq: int
    id: int
    path: bytes | None
    size: int
    planned: int
    active: bool
    quarantined: list[tuple[int, int]] | None
