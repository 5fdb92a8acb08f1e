"""The objects that the handlers of the bulk API share: the engine, the identity, threads for the
disk, admission control. All handlers import it; `app` imports the handlers."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

from broker.base.values import NamedTuple
from broker.bulk import errors, limits
from broker.bulk.admission import Admission
from broker.bulk.errors import RefusedError
from broker.engine.bulk.background import Background

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aiohttp import web

    from broker.bulk.access import Identity
    from broker.engine.engine import Engine
    from broker.engine.log.log import Log

T = TypeVar("T")


def bounds(log: Log) -> tuple[int, int]:
    """The first seq that can be read, and the seq after the last one."""
    next_seq = log.sync.durable_next
    if log.owner is not None:
        return min(log.owner.first_seq, next_seq), next_seq
    first = log.retention.readable_from
    return first, max(first, next_seq)


def readable_logs(engine: Engine) -> dict[str, Log]:
    """The logs by name, including those of streams."""
    streams = {name: log for name, log in engine.owned.items() if log.owner is not None}
    return {**engine.logs, **streams}


class BulkRoute(NamedTuple):
    """One route below /bulk/v1; `{name}` in its path is one percent-decoded segment."""

    method: str
    path: str
    handler: Callable[[web.Request], Awaitable[web.StreamResponse]]


class BulkContext:
    """The engine, the identity, admission control and threads."""

    def __init__(self, engine: Engine, identity: Identity) -> None:
        self.engine = engine
        self.identity = identity
        self.admission = Admission()
        self.background = Background(limits.BULK_THREADS, limits.BULK_NICE, limits.BULK_SLICE_BYTES)
        self._threads = ThreadPoolExecutor(limits.BULK_THREADS, "bulk", initializer=lower_priority)

    def log(self, name: str) -> Log:
        """The log of that name, which may be that of a stream. RefusedError."""
        found = self.engine.readable(name)
        if found is None:
            self.refuse_quarantined(name)
            raise RefusedError(errors.BULK_NO_TOPIC, topic=name)
        return found

    def refuse_quarantined(self, name: str) -> None:
        """RefusedError if the log is quarantined: a client must not take it for a deleted one."""
        if self.is_quarantined(name):
            raise RefusedError(errors.BULK_QUARANTINED, topic=name)

    def is_quarantined(self, name: str) -> bool:
        """Whether a log exists and could not be opened, or is that of a stream that cannot be
        served."""
        return name in self.engine.quarantined or (
            name in self.engine.owned and self.engine.readable(name) is None
        )

    async def in_thread(self, work: Callable[..., T], *arguments: object) -> T:
        """Run work that waits for a disk or takes long, on one of the threads."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, work, *arguments)

    async def close(self) -> None:
        """End the threads; work that has not begun is cancelled."""
        self._threads.shutdown(wait=True, cancel_futures=True)
        self.background.stop()
        await asyncio.to_thread(self.background.join)
        self.background.close()


def lower_priority() -> None:
    """Give this thread a lower priority than that of the loop."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), limits.BULK_NICE)
