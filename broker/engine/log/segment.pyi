"""One file of a log."""

from typing import final

from typing_extensions import Buffer

MAGIC: bytes

class FormatError(Exception): ...

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

def crc32c(data: Buffer, crc: int = 0) -> int: ...
def file_header(
    log_id: bytes, first_seq: int, created_ns: int, face: str | None = None, own: bool = False
) -> bytes: ...
def header_facts(head: bytes) -> tuple[str | None, bool] | None: ...
def check_header(head: bytes, path: str | bytes) -> tuple[bytes, int] | None: ...

_Record = tuple[int, bytes, bytes, bytes, bytes]

def scan_records(
    data: bytes, log_id: bytes, first_seq: int = 1
) -> tuple[list[_Record], int, int]: ...
def locate_record(data: bytes, log_id: bytes, seq: int, first_seq: int = 1) -> int | None: ...
