"""Makes a log durable, and handles disk errors."""

from typing import final

@final
class Sync:
    period_ns: int
    under_way: int
    failed: int
    unsynced: bool
    last_error: int
    @property
    def durable_next(self) -> int: ...
    def now(self) -> None: ...
    async def synced(self) -> None: ...
    async def created(self) -> None: ...
