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

_Record = tuple[int, bytes, bytes, bytes, bytes]

def scan_records(
    data: bytes, log_id: bytes, first_seq: int = 1
) -> tuple[list[_Record], int, int]: ...
def locate_record(data: bytes, log_id: bytes, seq: int, first_seq: int = 1) -> int | None: ...
