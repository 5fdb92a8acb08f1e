"""The ids of messages that a stream got lately."""

from typing import final

from broker.engine.recent_ids import RecentIds

@final
class Duplicates(RecentIds):
    def __init__(self, window_ns: int, header: bytes, ids_max: int) -> None: ...
