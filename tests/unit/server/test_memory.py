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
COUNT = 10_000
WAIT_S = 30.0


@pytest.fixture
def burst() -> Iterator[list[bytearray | None]]:
    """Forty megabytes, of which one piece in a hundred stays."""
    pieces: list[bytearray | None] = [bytearray(PIECE_BYTES) for _ in range(COUNT)]
    for number in range(COUNT):
        if number % 100:
            pieces[number] = None
    yield pieces
    pieces.clear()


async def until_below(most: int) -> None:
    async with asyncio.timeout(WAIT_S):
        while resident_bytes() > most:  # noqa: ASYNC110 - memory has no event
            await asyncio.sleep(0.01)


async def test_what_is_free_is_given_back_once(burst: list[bytearray | None]) -> None:
    """Looking again finds nothing: free pieces stay free, and each of them was looked at."""
    before = resident_bytes()
    free = FreeMemory(asyncio.get_running_loop(), WAIT_S)
    free.look()
    assert free.times == 1
    assert resident_bytes() < before - COUNT * PIECE_BYTES // 2
    for _ in range(5):
        free.look()
    assert free.times == 1
    free.stop()


async def test_a_second_burst(burst: list[bytearray | None]) -> None:
    free = FreeMemory(asyncio.get_running_loop(), WAIT_S)
    free.look()
    burst[:] = [bytearray(PIECE_BYTES) for _ in range(COUNT)]
    free.look()
    times, full = free.times, resident_bytes()
    burst[:] = [piece if number % 100 == 0 else None for number, piece in enumerate(burst)]
    free.look()
    assert free.times == times + 1
    assert resident_bytes() < full - COUNT * PIECE_BYTES // 2
    free.stop()


async def test_what_others_gave_back_since_does_not_count(burst: list[bytearray | None]) -> None:
    """Memory that is not of the heap comes and goes: a burst after it is found."""
    free = FreeMemory(asyncio.get_running_loop(), WAIT_S)
    free.look()
    size = 2 * COUNT * PIECE_BYTES
    with mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as other:
        for at in range(0, size, mmap.PAGESIZE):
            other[at] = 1
        free.look()
    free.look()
    burst[:] = [bytearray(PIECE_BYTES) for _ in range(COUNT)]
    full = resident_bytes()
    burst[:] = [piece if number % 100 == 0 else None for number, piece in enumerate(burst)]
    free.look()
    assert resident_bytes() < full - COUNT * PIECE_BYTES // 2
    free.stop()


async def test_an_error_is_not_the_last_look(
    monkeypatch: pytest.MonkeyPatch, burst: list[bytearray | None]
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
    before = resident_bytes()
    free = FreeMemory(asyncio.get_running_loop(), 0.01)
    await until_below(before - COUNT * PIECE_BYTES // 2)
    assert not problems
    free.stop()


async def test_a_server_does_so_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, burst: list[bytearray | None]
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
    before = resident_bytes()
    await server.start()
    try:
        await until_below(before - COUNT * PIECE_BYTES // 2)
    finally:
        await server.stop()
