"""The queue of work for the system account, processed between turns of the loop."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

from broker.base.logs import fields
from broker.protocols.nats import limits

log = logging.getLogger("broker.protocols.nats.system_view")


class Timer(Protocol):
    """A scheduled callback."""

    def cancel(self) -> None: ...


class Clock(Protocol):
    """The part of an event loop that this module uses."""

    def call_soon(self, callback: Callable[[], None], /) -> object: ...
    def time(self) -> float: ...
    def call_later(self, delay: float, callback: Callable[[], None], /) -> Timer: ...


class Backlog:
    """A queue of jobs. The time for them in one turn of the loop is limited, because clients wait
    meanwhile."""

    def __init__(
        self,
        clock: Clock,
        *,
        waiting_max: int = limits.NATS_SYSTEM_WAITING,
        turn_ns: int = limits.NATS_SYSTEM_TURN,
        now_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.jobs: deque[Callable[[], None]] = deque()
        self.dropped = 0
        self._call_soon = clock.call_soon
        self._waiting_max = waiting_max
        self._turn_ns = turn_ns
        self._now_ns = now_ns
        self._scheduled = False

    def add(self, job: Callable[[], None]) -> bool:
        """Queue a job; False if too many wait already."""
        if len(self.jobs) >= self._waiting_max:
            if not self.dropped:
                log.warning("system events are dropped", extra=fields(waiting=len(self.jobs)))
            self.dropped += 1
            return False
        self.jobs.append(job)
        if not self._scheduled:
            self._scheduled = True
            self._call_soon(self._run)
        return True

    def _run(self) -> None:
        self._scheduled = False
        stop_ns = self._now_ns() + self._turn_ns
        while self.jobs:
            job = self.jobs.popleft()
            try:
                job()
            except Exception:
                log.exception("the system account failed")
            if self._now_ns() >= stop_ns:
                break
        if self.jobs:
            self._scheduled = True
            self._call_soon(self._run)
        elif self.dropped:
            log.warning("system events were dropped", extra=fields(count=self.dropped))
            self.dropped = 0

    def clear(self) -> None:
        self.jobs.clear()
