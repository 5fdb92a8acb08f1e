"""Long sends of connections on a second thread."""

from collections.abc import Callable
from typing import Protocol, final

class _Loop(Protocol):
    def add_reader(self, fd: int, callback: Callable[[], None], /) -> object: ...
    def remove_reader(self, fd: int, /) -> object: ...

@final
class Sender:
    offered: int
    withdrawn: int
    def __init__(self, loop: _Loop, poll_fd: int) -> None: ...
    def stop(self) -> None: ...
