"""The end of a loop turn, and the timers: work that is done once for many events."""

from collections.abc import Callable
from typing import Protocol, final

from broker.runtime.busy_poll import BusyPoll
from broker.runtime.sender import Sender

class _Handle(Protocol):
    def cancel(self) -> object: ...

@final
class Turn:
    now_ns: int
    wall_ns: int
    sender: Sender | None
    busy_poll: BusyPoll | None
    def __init__(
        self,
        call_soon: Callable[[Callable[[], None]], object],
        call_at_ns: Callable[[int, Callable[[], None]], _Handle],
    ) -> None: ...
    def start_early(self) -> None: ...
    def end(self) -> None: ...
    def run_timers(self) -> None: ...
    def set_clock(self, now_ns: int, wall_ns: int) -> None: ...
