"""The codec of records and file headers."""

from typing_extensions import Buffer

MAGIC: bytes

class FormatError(Exception): ...

def crc32c(data: Buffer, crc: int = 0) -> int: ...
def file_header(
    log_id: bytes,
    first_seq: int,
    created_ns: int,
    protocol: str | None = None,
    own: bool = False,
    sparse: bool = False,
) -> bytes: ...
def is_sparse(head: bytes) -> bool: ...
def header_facts(head: bytes) -> tuple[str | None, bool] | None: ...
def check_header(head: bytes, path: str | bytes) -> tuple[bytes, int] | None: ...
