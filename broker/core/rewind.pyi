"""Putting a cursor to another place of its log."""

from typing import final

from broker.core.cursor import Cursor
from broker.core.log import Log

def rewind(cursor: Cursor, seq: int) -> int: ...
async def saved(cursor: Cursor) -> int: ...

@final
class TimeSearch:
    def __init__(self, log: Log) -> None: ...
    def find(self, time_ns: int) -> int: ...
