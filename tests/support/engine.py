"""An engine on a clock that the test moves: turns end and time passes on its command.

Real threads write real files; `settle` waits for their event descriptors.
"""

from __future__ import annotations

import asyncio
import select
import shutil
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from broker.engine.cursor.local import LocalConsumer
from broker.engine.engine import Engine
from broker.engine.limits import EngineLimits
from broker.engine.log.log import Log
from broker.engine.log.publish import append, outcome
from broker.engine.log.retention import Limiter
from broker.routing.router import Router
from broker.runtime import vfs
from support.fakes.loop import FakeLoop

WAIT_MS = 20_000
SECOND = 10**9

T = TypeVar("T")

OPEN, WRITE, SYNC, TRUNCATE, RENAME, UNLINK, SYNC_PATH, CREATE, FILL = range(9)  # vfs.pxd FileCall
CALLS = {"open": OPEN, "write": WRITE, "sync": SYNC, "rename": RENAME, "truncate": TRUNCATE}

LIMITS = EngineLimits(
    segment_bytes=1 << 20,
    append_bytes_max=16 << 20,
    memory_bytes_max=1 << 20,
    memory_segment_bytes=4096,
    load_bytes=4096,
    journal_bytes_min=1 << 20,
    reclaim_bytes=1 << 20,
    deliver_bytes_max=4 << 20,
    backlog_bytes_max=4 << 20,
    live_ns=0,
    inline_bytes=0,
    inline_long_bytes=0,
    inline_long_ns=SECOND,
    inline_stall_ns=SECOND,
    inline_pause_ns=SECOND,
    inline_pause_max_ns=SECOND,
    retry_ns=SECOND,
    entries_max=1 << 24,
    deferred_max=1 << 24,
    window_max=1 << 28,
    to_live=True,
    from_live=True,
    settle_poll=0.001,
)


def limit(log: Log, msgs_max: int = 0, bytes_max: int = 0, age_max_ns: int = 0) -> Limiter:
    """A Limiter of single records that counts headers and bodies."""
    limiter = Limiter(log.retention, msgs_max, bytes_max, age_max_ns)
    limiter.start()
    return limiter


def scratch() -> Path:
    """A new folder in memory if possible, where syncs are fast: for tests with many steps."""
    memory = Path("/dev/shm")
    return Path(tempfile.mkdtemp(prefix="twinwire-", dir=memory if memory.is_dir() else None))


class EngineLoop(FakeLoop):
    """A FakeLoop with the other methods of an event loop that an engine calls."""

    def __init__(self) -> None:
        super().__init__()
        self.readers: dict[int, Callable[[], None]] = {}

    def add_reader(self, fd: int, call: Callable[[], None]) -> None:
        self.readers[fd] = call

    def remove_reader(self, fd: int) -> None:
        self.readers.pop(fd, None)

    def call_later(self, seconds: float, call: Callable[[], None], /) -> Any:
        return self._call_at_ns(self.now_ns + int(seconds * 1e9), call)

    def serve(self, wait_ms: int) -> None:
        """Process what the workers have finished. If nothing has, wait up to `wait_ms` for it."""
        poll = select.poll()
        for fd in self.readers:
            poll.register(fd, select.POLLIN)
        for fd, _ in poll.poll(wait_ms):
            if fd in self.readers:
                self.readers[fd]()


class Rig:
    """An engine on a folder; None = in memory. `limits` replace those of LIMITS."""

    def __init__(
        self,
        root: Path | None,
        *,
        sync: str | float = "none",
        clock: tuple[int, int] | None = None,
        **limits: Any,
    ) -> None:
        self.root = root
        self.sync = sync
        self.limits = limits
        self.reports: list[tuple[str, str, dict[str, Any]]] = []
        self.loop = EngineLoop()
        self.turn = self.loop.turn
        if clock is not None:
            self.loop._set_clock(clock[0])
        self.router = Router()
        self.engine = Engine(
            self.turn,
            self.router,
            None if root is None else str(root),
            replace(LIMITS, **limits),
            lambda _name: self.sync,
            self._report,
        )
        self.closed = False
        try:
            self.engine.open(self.loop)
        except BaseException:
            self.abandon()
            raise
        self.settle()

    def _report(self, level: str, text: str, **fields: Any) -> None:
        self.reports.append((level, text, fields))

    # --- doing

    def settle(self) -> None:
        """Run turns until no work of the engine is in progress."""
        self.loop.run()
        while self.engine.behind:
            before = self.progress()
            self.loop.serve(WAIT_MS)
            self.loop.run()
            assert self.progress() != before or not self.engine.behind, "a worker does not answer"
        self.loop.run()

    def until(self, reached: Callable[[], bool]) -> None:
        """Run turns until the condition is true."""
        deadline = time.monotonic() + WAIT_MS / 1000
        while not reached():
            assert time.monotonic() < deadline, "it does not come to that"
            self.loop.serve(1)
            self.loop.run()

    def progress(self) -> int:
        return sum(worker.reaped for worker in self.engine.shared.workers)

    def advance(self, seconds: float) -> None:
        """Move the clock and run the timers that are due."""
        self.loop.advance(int(seconds * 1e9))
        self.settle()

    def log(self, name: str = "t", *, ephemeral: bool = False) -> Any:
        return self.engine.open_log(name, ephemeral)

    def publish(self, log: Any, bodies: Iterable[bytes], **more: Any) -> list[int]:
        """Append all bodies in one turn, and settle. Returns for each: 1 = stored, -1 = failed,
        0 = refused."""
        tickets = [append(log, body, **more) for body in bodies]
        self.settle()
        return [outcome(log, ticket) if ticket else 0 for ticket in tickets]

    # --- ending

    def close(self) -> None:
        """Close the engine as a server does."""

        async def closing() -> None:
            task = asyncio.create_task(self.engine.close())
            while not task.done():
                self.loop.serve(1)
                self.loop.run()
                await asyncio.sleep(0)
            await task

        if not self.closed:
            self.closed = True
            asyncio.run(closing())

    def abandon(self) -> None:
        """Stop the worker threads. Jobs that were not submitted are lost."""
        if not self.closed:
            self.closed = True
            for worker in self.engine.shared.workers:
                worker.stop()
                worker.reap()
            self.engine.finish_workers()

    def crash(self, to: Path) -> None:
        """Copy the files as they are now to `to`, as after kill -9, and abandon the engine."""
        assert self.root is not None
        shutil.copytree(self.root, to, ignore=shutil.ignore_patterns(".deleted*", "*.dropped"))
        self.abandon()

    def __enter__(self) -> Rig:
        return self

    def __exit__(self, *_: object) -> None:
        vfs.heal()
        self.abandon()


def readable_bodies(rig: Rig, log: Any) -> list[bytes]:
    """The bodies that a new cursor delivers, from the oldest record on."""
    cursor = log.open_cursor("new", ephemeral=True, start=log.first_seq)
    consumer = LocalConsumer(cursor, 1 << 30)
    rig.settle()
    rig.until(lambda: not cursor.depth)  # older files are read in the background
    found = bodies_of(consumer)
    consumer.leave()
    return found


def bodies_of(consumer: Any) -> list[bytes]:
    """The bodies that were delivered since the last call."""
    records, consumer.records = consumer.records, []
    return [record[3] for record in records]


def finish_all(consumer: Any) -> list[bytes]:
    """Finish the messages that were delivered since the last call. Returns their bodies."""
    records, consumer.records = consumer.records, []
    for seq, *_ in records:
        assert consumer.finish(seq) == 0
    return [record[3] for record in records]


def wait(rig: Rig, work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that waits for the engine, and return its result."""

    async def run() -> T:
        task = asyncio.ensure_future(work)
        for _ in range(10_000):
            if task.done():
                break
            await asyncio.sleep(0)
            rig.loop.serve(1)
            rig.loop.run()
        return await asyncio.wait_for(task, 1)

    return asyncio.run(run())


def segment_files(root: Path, name: str = "t") -> list[Path]:
    return sorted((root / name).glob("*.seg"))


def numbered(count: int, start: int = 0, size: int = 24) -> list[bytes]:
    """Bodies of `size` bytes that contain their number."""
    return [(b"%d:" % i).ljust(size, b"x") for i in range(start, start + count)]


def flip_bit(path: Path, offset: int, bit: int = 0) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1 << bit
    path.write_bytes(data)


def drain(rig: Rig, consumer: Any, turns: int = 50) -> Sequence[bytes]:
    """The bodies of all messages that the cursor delivers to this consumer in `turns` turns."""
    found: list[bytes] = []
    for _ in range(turns):
        rig.settle()
        found += bodies_of(consumer)
    return found


def make_log(root: Path, bodies: list[bytes], **limits: Any) -> None:
    """Write a log `t` with these bodies, and a cursor `c` that has finished nothing."""
    with Rig(root, **limits) as rig:
        log = rig.log()
        log.open_cursor("c")
        assert rig.publish(log, bodies) == [1] * len(bodies)
        rig.close()


def read_log(root: Path, more: bytes | None = None, **limits: Any) -> tuple[list[bytes], Rig]:
    """Read all messages of log `t` with cursor `c`, and append `more`. Returns the bodies that were
    read, and the closed rig."""
    with Rig(root, **limits) as rig:
        log = rig.engine.log("t")
        consumer = LocalConsumer(log.open_cursor("c"), 1 << 30)
        found = drain(rig, consumer)
        if more is not None:
            assert rig.publish(log, [more]) == [1]
            assert bodies_of(consumer) == [more]
        rig.close()
    return list(found), rig
