"""How long a loop looks for the next event before it sleeps."""

from __future__ import annotations

import asyncio
import os
import select
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvloop

from broker.base.units import MINUTE, MS, SECOND, US
from broker.net import listener
from broker.net.listener import Runtime
from broker.runtime.busy_poll import BusyPoll
from broker.runtime.turn import Turn


class Loop:
    """A turn that is ended by hand, and one event."""

    def __init__(self) -> None:
        self.event = os.eventfd(0)
        self.epoll = select.epoll()
        self.epoll.register(self.event, select.EPOLLIN)
        self.turn = Turn(lambda _: None, lambda _due, _call: self)

    def cancel(self) -> None:
        """Of a timer; there is none."""

    def looks(self, wait_ns: int) -> BusyPoll:
        found = self.turn.busy_poll = BusyPoll(self.epoll.fileno(), wait_ns)
        return found

    def waited(self) -> int:
        """How long this turn looks."""
        assert self.turn.busy_poll is not None
        before = self.turn.busy_poll.waited_ns
        self.turn.end()
        return self.turn.busy_poll.waited_ns - before

    def end_turns(self, after_ns: int, count: int = 20) -> None:
        """End turns with an event each, whose gaps have this length."""
        os.eventfd_write(self.event, 1)
        for _ in range(count):
            now_ns = time.monotonic_ns() + after_ns
            self.turn.set_clock(now_ns, now_ns)
            self.turn.end()
        os.eventfd_read(self.event)


@pytest.fixture
def loop() -> Iterator[Loop]:
    found = Loop()
    yield found
    found.epoll.close()
    os.close(found.event)


def test_after_short_gaps_it_looks_for_so_long(loop: Loop) -> None:
    loop.looks(2 * MS)
    loop.end_turns(0)
    assert loop.waited() >= 2 * MS


def test_an_idle_loop_does_not_look(loop: Loop) -> None:
    loop.looks(2 * MS)
    loop.end_turns(0)
    loop.end_turns(SECOND)
    assert loop.waited() == 0


def test_an_event_that_is_there_costs_no_time(loop: Loop) -> None:
    found = loop.looks(MINUTE)
    loop.end_turns(0)
    assert found.waited_ns == 0


def test_an_event_ends_the_look(loop: Loop) -> None:
    """And a look leaves the interpreter to other threads."""
    loop.looks(MINUTE)
    for _ in range(30):
        loop.end_turns(0)
        comes = threading.Timer(0.01, os.eventfd_write, (loop.event, 1))
        comes.start()
        waited = loop.waited()
        comes.join()
        assert waited < MINUTE
        if waited:
            return
        os.eventfd_read(loop.event)  # on a loaded machine it can come before the look
    pytest.fail("it does not look")


def test_a_look_in_vain_is_followed_by_a_pause(loop: Loop) -> None:
    loop.looks(20 * US)
    loop.end_turns(0)
    for _ in range(30):  # each pause is twice as long, until it is a second
        deadline_ns = time.monotonic_ns() + 2 * MINUTE
        loop.end_turns(0)
        if not loop.waited():
            break
        assert time.monotonic_ns() < deadline_ns
    else:
        pytest.fail("there is no pause")


def test_a_sync_is_looked_for_beyond_that(loop: Loop) -> None:
    """As long as it usually takes, and a little more."""
    found = loop.looks(2 * MS)
    loop.end_turns(0)
    found.expect(6 * MS)
    assert loop.waited() >= 6 * MS


def test_a_sync_that_takes_long_is_not_looked_for(loop: Loop) -> None:
    found = loop.looks(2 * MS)
    loop.end_turns(0)
    found.expect(MINUTE)
    assert 0 < loop.waited() < MINUTE


def test_the_gap_until_a_sync_has_ended_is_short(loop: Loop) -> None:
    """Else the loop would sleep, because the gaps are long."""
    found = loop.looks(2 * MS)
    for _ in range(10):
        found.expect(12 * MS)
        loop.end_turns(5 * MS, 1)
    assert loop.waited() > 0


def test_the_gap_is_short_also_when_the_sync_ends_in_the_turn(loop: Loop) -> None:
    found = loop.looks(2 * MS)
    for _ in range(10):
        found.expect(12 * MS)
        threading.Event().wait(0.004)
        found.answered()
        loop.end_turns(0, 1)
    assert loop.waited() > 0


def test_a_sync_that_has_ended_is_not_looked_for(loop: Loop) -> None:
    found = loop.looks(2 * MS)
    loop.end_turns(0)
    found.expect(12 * MS)
    found.answered()
    assert 2 * MS <= loop.waited() < 12 * MS


def runtime(wait_ns: int) -> Runtime:
    async def made() -> Runtime:
        return Runtime(wait_ns)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(made())


def test_it_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "usable_processors", lambda: 2.0)
    assert runtime(0).turn.busy_poll is None
    found = runtime(30 * US).turn.busy_poll
    assert found is not None
    assert found.wait_ns == 30 * US


def test_it_needs_a_processor_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "usable_processors", lambda: 1.5)
    assert runtime(30 * US).turn.busy_poll is None


def test_uvloop_still_has_its_descriptor() -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        number = runner.get_loop()._get_backend_id()  # type: ignore[attr-defined]
        assert "eventpoll" in str(Path(f"/proc/self/fd/{number}").readlink())
