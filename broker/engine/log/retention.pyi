"""What a log may drop: segments that every cursor has finished, and what exceeds its limits."""

from typing import final

from broker.runtime.interfaces import Task

@final
class Retention:
    limits: tuple[int, int, int] | None
    keep_ns: int
    keep_bytes: int
    limiter: Limiter | None
    def configure(
        self, limits: tuple[int, int, int], keep_ns: int = 0, keep_bytes: int = 0
    ) -> None: ...
    def retain_from(self, seq: int | None) -> None: ...
    @property
    def retained_from(self) -> int | None: ...
    @property
    def readable_from(self) -> int: ...
    def bytes(self) -> int: ...

@final
class Limiter(Task):
    msgs_max: int
    bytes_max: int
    age_max_ns: int
    @property
    def bytes(self) -> int: ...
    def __init__(
        self, retention: Retention, msgs_max: int = 0, bytes_max: int = 0, age_max_ns: int = 0
    ) -> None: ...
    def start(self) -> None: ...
    def set_limits(self, msgs_max: int, bytes_max: int, age_max_ns: int) -> None: ...
    def close(self) -> None: ...
