"""Looking at records without taking them."""

from collections.abc import Container
from typing import Any, final

from broker.engine.cursor.cursor import Cursor
from broker.engine.log.log import Log

WAITING: str
DEFERRED: str
IN_FLIGHT: str

_Record = tuple[int, int, bytes, bytes, bytes, bytes, bool]

@final
class Peek:
    found: list[list[Any]]
    next_seq: int | None
    reader: str
    def __init__(
        self, log: Log, found: list[list[Any]], next_seq: int | None, reader: str = ""
    ) -> None: ...
    def read(self, bytes_max: int) -> dict[int, _Record]: ...

def peek_cursor(cursor: Cursor, states: Container[str], from_seq: int, limit: int) -> Peek: ...
def peek_log(log: Log, from_seq: int, limit: int) -> Peek: ...
def seq_of(row: list[Any]) -> int: ...
