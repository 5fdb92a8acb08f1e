"""A server gives back what a burst has left free, and does no more than that."""

from __future__ import annotations

import asyncio
import contextlib
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
COUNT = 10_000
WAIT_S = 30.0
AGAIN_S = 2.0


class Burst:
    """Forty megabytes that are allocated, and of which one piece in a hundred stays."""

    def __init__(self) -> None:
        self.pieces: list[bytearray | None] = []

    def fill(self) -> int:
        """Allocate them; what is resident then."""
        self.pieces[:] = [bytearray(PIECE_BYTES) for _ in range(COUNT)]
        return resident_bytes()

    def free(self) -> None:
        for number in range(COUNT):
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
    free.look()
    return free


async def until_given_back(burst: Burst) -> None:
    """Have bursts until one is given back: the first may come before the first look."""
    async with asyncio.timeout(WAIT_S):
        while True:
            full = burst.happen()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(AGAIN_S):
                    await until_below(full - COUNT * PIECE_BYTES // 2)
                    return


async def until_below(most: int) -> None:
    async with asyncio.timeout(WAIT_S):
        while resident_bytes() > most:  # noqa: ASYNC110 - memory has no event
            await asyncio.sleep(0.01)


async def test_what_is_free_is_given_back_once(burst: Burst) -> None:
    """Looking again finds nothing: free pieces stay free, and each of them was looked at."""
    free = looker()
    times, full = free.times, burst.happen()
    free.look()
    assert free.times == times + 1
    assert resident_bytes() < full - COUNT * PIECE_BYTES // 2
    for _ in range(5):
        free.look()
    assert free.times == times + 1
    free.stop()


async def test_a_second_burst(burst: Burst) -> None:
    free = looker()
    burst.happen()
    free.look()
    burst.fill()
    free.look()
    times, full = free.times, resident_bytes()
    burst.free()
    free.look()
    assert free.times == times + 1
    assert resident_bytes() < full - COUNT * PIECE_BYTES // 2
    free.stop()


async def test_what_others_gave_back_since_does_not_count(burst: Burst) -> None:
    """Memory that is not of the heap comes and goes: a burst after it is found."""
    free = looker()
    size = 2 * COUNT * PIECE_BYTES
    with mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as other:
        for at in range(0, size, mmap.PAGESIZE):
            other[at] = 1
        free.look()
    free.look()
    full = burst.happen()
    free.look()
    assert resident_bytes() < full - COUNT * PIECE_BYTES // 2
    free.stop()


async def test_an_error_is_not_the_last_look(monkeypatch: pytest.MonkeyPatch, burst: Burst) -> None:
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
    await until_given_back(burst)
    assert not problems
    free.stop()


async def test_a_server_does_so_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, burst: Burst
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
        await until_given_back(burst)
    finally:
        await server.stop()
