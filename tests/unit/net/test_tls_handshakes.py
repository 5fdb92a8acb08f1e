"""Handshakes by slices of a turn."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import pytest

from broker.net import limits
from broker.net.tls import Handshakes


class Loop:
    """Turns are made by hand."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.calls: deque[Callable[[], None]] = deque()
        self.handshakes = Handshakes(self.calls.append, lambda: self.now_ns)

    def turn(self) -> None:
        for _ in range(len(self.calls)):
            self.calls.popleft()()


@pytest.fixture
def loop() -> Loop:
    return Loop()


def test_a_turn_ends_with_its_slice_and_the_order_is_kept(loop: Loop) -> None:
    steps, done = loop.handshakes, []

    def step(number: int) -> Callable[[], None]:
        def go() -> None:
            loop.now_ns += limits.HANDSHAKE_SLICE // 2
            done.append(number)

        return go

    for number in range(5):
        steps.add(step(number))
    for count in (2, 4, 5):
        assert len(loop.calls) == 1
        loop.turn()
        assert done == list(range(count))
    assert not loop.calls
    steps.add(step(5))
    loop.turn()
    assert done[-1] == 5


def test_a_step_that_takes_long_is_the_only_one_of_its_turn(loop: Loop) -> None:
    steps, done = loop.handshakes, []

    def go() -> None:
        loop.now_ns += 10 * limits.HANDSHAKE_SLICE
        done.append(1)

    steps.add(go)
    steps.add(go)
    loop.turn()
    assert len(done) == 1
    loop.turn()
    assert len(done) == 2


def test_a_step_that_makes_another_one(loop: Loop) -> None:
    steps, done = loop.handshakes, []

    def again() -> None:
        done.append("first")
        steps.add(lambda: done.append("second"))

    steps.add(again)
    loop.turn()
    loop.turn()
    assert done == ["first", "second"]
