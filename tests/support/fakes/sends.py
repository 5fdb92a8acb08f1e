"""As much of a loop as its Sender uses, and a thread that no core has time for."""

from __future__ import annotations

import os
import select
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from broker.runtime.sender import Sender

WAIT_S = 30.0


class SenderLoop:
    """`sender` believes that the loop has input to read until `has_input(False)`."""

    def __init__(self) -> None:
        self.epoll = select.epoll()
        self.input = os.eventfd(0)
        self.epoll.register(self.input, select.EPOLLIN)
        self.readers: dict[int, Callable[[], None]] = {}
        self.sender = Sender(self, self.epoll.fileno())
        self.has_input(True)

    def has_input(self, has: bool) -> None:
        os.eventfd_write(self.input, 1) if has else os.eventfd_read(self.input)

    def add_reader(self, fd: int, callback: Callable[[], None], /) -> None:
        self.readers[fd] = callback

    def remove_reader(self, fd: int, /) -> None:
        del self.readers[fd]

    def until(self, reached: Callable[[], bool]) -> None:
        """Run the callbacks of readable descriptors until then."""
        while not reached():
            readable, _, _ = select.select(list(self.readers), [], [], WAIT_S)
            assert readable, "the thread reports nothing"
            for fd in readable:
                self.readers[fd]()

    def close(self) -> None:
        self.sender.stop()
        assert self.readers == {}
        self.epoll.close()
        os.close(self.input)


def never_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread of a Sender does not begin with anything."""
    monkeypatch.setattr(
        "broker.runtime.sender.threading",
        SimpleNamespace(Thread=lambda **_: SimpleNamespace(start=bool, join=bool)),
    )
