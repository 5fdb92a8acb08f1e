"""Looking for the next event for a moment before the loop sleeps."""

from typing import final

@final
class BusyPoll:
    wait_ns: int
    waited_ns: int
    def __init__(self, fd: int, wait_ns: int) -> None: ...
    def expect(self, usual_ns: int) -> None: ...
    def answered(self) -> None: ...
