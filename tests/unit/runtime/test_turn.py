"""What the end of a turn does, and what it leaves for another one."""

from __future__ import annotations

from support.fakes.loop import FakeLoop
from support.native.turns import Output, Restless


def test_what_never_ends_its_flushes_lets_others_go_on() -> None:
    loop = FakeLoop()
    restless = Restless(loop.turn)
    loop.run_once()
    once = restless.runs
    assert once < 100
    output = Output(loop.turn)
    output.put()
    loop.run_once()
    assert restless.runs == 2 * once
    ((_, sent),) = output.flushed
    assert sent == 1
