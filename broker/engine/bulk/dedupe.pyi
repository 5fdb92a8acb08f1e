"""The ids of recent messages of a log."""

from typing import final

from broker.engine.bulk.ranges import View
from broker.engine.log.log import Log
from broker.engine.recent_ids import RecentIds

_Plan = tuple[list[View], int, int, int]

@final
class Window(RecentIds):
    log_id: bytes | None
    next_seq: int
    def __init__(self, name: bytes, window_ns: int, ids_max: int) -> None: ...
    def reset(self, log: Log | None) -> None: ...
    def unread_views(self, log: Log, bytes_max: int) -> _Plan | None: ...
    def read(self, plan: _Plan) -> None: ...
