"""Blocks of records that writers upload, and records of commits."""

from collections.abc import Iterable
from typing import final

from broker.engine.bulk.dedupe import Window
from broker.engine.log.log import Log

MAGIC: bytes
BLOCK_HEAD_BYTES: int
COMMIT_ID_LEN: int
GOOD: int
SHORT: int
NO_BLOCK: int
WRONG_LENGTH: int
WRONG_SUM: int
WRONG_RECORD: int
WRONG_SUBJECT: int
WRONG_HEADERS: int

@final
class Appender:
    number: int
    records: int
    duplicates: int
    last_ticket: int
    first_seq: int
    last_seq: int
    def __init__(
        self,
        log: Log,
        commit_id: bytes = b"",
        have: Iterable[tuple[int, int]] = (),
        window: Window | None = None,
    ) -> None: ...
    def load(self, block: bytes | bytearray | memoryview) -> None: ...
    def step(self, bytes_max: int) -> int: ...
    def stored(self) -> None: ...
    @property
    def failed(self) -> int: ...

def check_block(
    data: bytes | bytearray | memoryview, name: bytes, head: bytes
) -> tuple[int, int]: ...
def block_bytes(head: bytes) -> int: ...
def write_at(path: bytes, offset: int, data: bytes | bytearray | memoryview) -> int: ...
def replace_file(path: bytes, data: bytes, folder: bytes) -> int: ...
def sync_path(path: bytes) -> int: ...
def remove_file(path: bytes) -> int: ...
def find_staged(
    path: bytes,
    log_id: bytes,
    first_seq: int,
    next_seq: int,
    commit_id: bytes,
    size_max: int = ...,
) -> tuple[list[tuple[int, int]], int, int]: ...
