"""Busy polling: the loop polls for the next event for a moment before it sleeps."""

from typing import final

@final
class BusyPoll:
    wait_ns: int
    waited_ns: int
    def __init__(self, fd: int, wait_ns: int) -> None: ...
    def expect(self, usual_ns: int) -> None: ...
    def answered(self) -> None: ...
