"""What is queued for the end of a turn."""

from typing import final

from broker.routing.router import Router
from broker.runtime.interfaces import Sink, Task
from broker.runtime.turn import Turn

@final
class Output(Sink):
    flushed: list[tuple[int, int]]
    def __init__(self, turn: Turn, router: Router | None = None, subject: bytes = b"") -> None: ...
    def put(self) -> None: ...

@final
class Restless(Task):
    runs: int
    def __init__(self, turn: Turn) -> None: ...

@final
class Sharing(Task):
    runs: int
    with_time: int
    def __init__(self, turn: Turn) -> None: ...
