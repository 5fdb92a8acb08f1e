"""Tests that run on the loop that the broker uses."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Any, Final

import uvloop

DEADLINE_S: Final = 20


def on_uvloop(test: Callable[..., Coroutine[None, None, None]]) -> Callable[..., None]:
    """Run a test on uvloop, for at most DEADLINE_S."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(asyncio.wait_for(test(*args, **kwargs), DEADLINE_S))

    return run
