"""A server gives back what a burst has left free, and does no more than that."""

from __future__ import annotations

import asyncio
import errno
import mmap
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.config.load import load
from broker.server import limits, memory
from broker.server.memory import FreeMemory, resident_bytes
from broker.server.server import Server

PIECE_BYTES = 4000
SIZE_MIN = 40_000_000
WAIT_S = 30.0


class Burst:
    """Pieces that are allocated, and of which one in a hundred stays.

    They are forty megabytes, or an eighth of what other tests have left in the process: less than a
    certain share of all is not worth a trim.
    """

    def __init__(self) -> None:
        self.size = max(SIZE_MIN, resident_bytes() // 8)
        self.pieces: list[bytearray | None] = []

    def fill(self) -> int:
        """Allocate them; what is resident then."""
        self.pieces[:] = [bytearray(PIECE_BYTES) for _ in range(self.size // PIECE_BYTES)]
        return resident_bytes()

    def free(self) -> None:
        for number in range(len(self.pieces)):
            if number % 100:
                self.pieces[number] = None

    def happen(self) -> int:
        """Fill and free; what was resident between."""
        full = self.fill()
        self.free()
        return full


@pytest.fixture
def burst() -> Iterator[Burst]:
    made = Burst()
    yield made
    made.pieces.clear()


def looker() -> FreeMemory:
    """One that has looked at what other tests have left in the process."""
    free = FreeMemory(asyncio.get_running_loop(), WAIT_S)
    free.trim_if_useful()
    return free


class Looks:
    """The looks of every `FreeMemory` that have ended."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._ended = 0
        look = FreeMemory.trim_if_useful

        def counted(free: FreeMemory) -> float:
            try:
                return look(free)
            finally:
                self._ended += 1

        monkeypatch.setattr(FreeMemory, "trim_if_useful", counted)

    async def another(self) -> None:
        """Wait for a look that began after now: the next one to end may have begun before."""
        wanted = self._ended + 2
        async with asyncio.timeout(WAIT_S):
            while self._ended < wanted:  # noqa: ASYNC110 - they end on another thread
                await asyncio.sleep(0.001)


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Looks:
    return Looks(monkeypatch)


async def until_given_back(burst: Burst, looks: Looks) -> None:
    """Have a burst that a look sees when it is full, and wait until what it left is given back.

    Without that look, what is free afterwards may be no more than was free before the burst.
    """
    full = burst.fill()
    await looks.another()
    burst.free()
    async with asyncio.timeout(WAIT_S):
        while resident_bytes() > full - burst.size // 2:  # noqa: ASYNC110 - memory has no event
            await asyncio.sleep(0.01)


async def test_what_is_free_is_given_back_once(burst: Burst) -> None:
    """Looking again finds nothing: free pieces stay free, and each of them was looked at."""
    free = looker()
    times, full = free.times, burst.happen()
    free.trim_if_useful()
    assert free.times == times + 1
    assert resident_bytes() < full - burst.size // 2
    for _ in range(5):
        free.trim_if_useful()
    assert free.times == times + 1
    free.stop()


async def test_a_second_burst(burst: Burst) -> None:
    free = looker()
    burst.happen()
    free.trim_if_useful()
    burst.fill()
    free.trim_if_useful()
    times, full = free.times, resident_bytes()
    burst.free()
    free.trim_if_useful()
    assert free.times == times + 1
    assert resident_bytes() < full - burst.size // 2
    free.stop()


async def test_what_others_gave_back_since_does_not_count(burst: Burst) -> None:
    """Memory that is not of the heap comes and goes: a burst after it is found."""
    free = looker()
    size = 2 * burst.size
    with mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as other:
        for at in range(0, size, mmap.PAGESIZE):
            other[at] = 1
        free.trim_if_useful()
    free.trim_if_useful()
    full = burst.happen()
    free.trim_if_useful()
    assert resident_bytes() < full - burst.size // 2
    free.stop()


async def test_an_error_is_not_the_last_look(
    monkeypatch: pytest.MonkeyPatch, burst: Burst, looks: Looks
) -> None:
    problems = [OSError(errno.EMFILE, "Too many open files")]
    statm = Path("/proc/self/statm")

    class Statm:
        def read_bytes(self) -> bytes:
            if problems and threading.current_thread() is not threading.main_thread():
                raise problems.pop()
            return statm.read_bytes()

    monkeypatch.setattr(limits, "TRIM_REST", 0)
    monkeypatch.setattr(memory, "_STATM", Statm())
    free = FreeMemory(asyncio.get_running_loop(), 0.01)
    await until_given_back(burst, looks)
    assert not problems
    free.stop()


async def test_a_server_does_so_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, burst: Burst, looks: Looks
) -> None:
    monkeypatch.setattr(limits, "TRIM_REST", 0)
    monkeypatch.setattr(FreeMemory.__init__, "__defaults__", (0.01,))
    file = tmp_path / "t.toml"
    file.write_text(
        f'[server]\ndata = "{tmp_path}/data"\n[nats]\nlisten = "127.0.0.1:0"\n'
        '[nsq]\nlisten = ""\nhttp = ""\n[monitor]\nlisten = ""\n[bulk]\nlisten = "off"\n'
        '[console]\nlisten = "off"\n'
    )
    server = Server(load(file))
    await server.start()
    try:
        await until_given_back(burst, looks)
    finally:
        await server.stop()
