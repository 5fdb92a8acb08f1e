"""Limits of count, bytes and age that hold for single records."""

from typing import final

from broker.engine.log.log import Log
from broker.runtime.interfaces import Task

@final
class Limiter(Task):
    msgs_max: int
    bytes_max: int
    age_max_ns: int
    @property
    def bytes(self) -> int: ...
    def __init__(
        self, log: Log, msgs_max: int = 0, bytes_max: int = 0, age_max_ns: int = 0
    ) -> None: ...
    def set_limits(self, msgs_max: int, bytes_max: int, age_max_ns: int) -> None: ...
    def close(self) -> None: ...

def limit(log: Log, msgs_max: int = 0, bytes_max: int = 0, age_max_ns: int = 0) -> Limiter: ...
