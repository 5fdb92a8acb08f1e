"""What the end of a turn does, and what it leaves for another one."""

from __future__ import annotations

from support.fakes.loop import FakeLoop
from support.native.turns import Output, Restless, Sharing


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


def test_tasks_share_the_time_of_turns_in_turn() -> None:
    """The one that runs first in each turn would otherwise use up all of it."""
    loop = FakeLoop()
    tasks = [Sharing(loop.turn) for _ in range(3)]
    for _ in range(30):
        loop.turn.end()
    assert [task.runs for task in tasks] == [30] * 3
    assert all(task.with_time >= 5 for task in tasks)
