"""How much the bulk control does at once: places, the line for them, and turns of the loop."""

from __future__ import annotations

import asyncio
import contextlib
import random
import tracemalloc
import zlib

import cramjam
import pytest

from broker.base.units import MIB
from broker.bulk import errors
from broker.bulk.admission import GZIP, ZSTD, Admission, Bounds, compressed
from broker.bulk.errors import RefusedError

FOR_EVER = 10**12


class Guest:
    """A client that takes a place until the test ends it."""

    def __init__(self, admission: Admission, client: str = "a", size: int = 1) -> None:
        self.leave = asyncio.Event()
        self.inside = asyncio.Event()
        self.task = asyncio.create_task(self._stay(admission, client, size))

    async def _stay(self, admission: Admission, client: str, size: int) -> None:
        async with admission.slot(client, size):
            self.inside.set()
            await self.leave.wait()

    async def go(self) -> None:
        self.leave.set()
        await self.task


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def inside(guests: list[Guest]) -> list[bool]:
    return [guest.inside.is_set() for guest in guests]


def admission(**bounds: int) -> Admission:
    return Admission(Bounds(**{"wait_ns": FOR_EVER, **bounds}))


async def test_so_many_in_all() -> None:
    control = admission(ranges_max=2)
    guests = [Guest(control, str(number)) for number in range(4)]
    await settle()
    assert inside(guests) == [True, True, False, False]
    assert (control.active, control.waiting) == (2, 2)
    await guests[1].go()
    await settle()
    assert inside(guests) == [True, True, True, False], "in order"
    for guest in guests:
        await guest.go()
    assert (control.active, control.bytes, control.waiting) == (0, 0, 0)


async def test_one_client_does_not_hold_up_the_others() -> None:
    control = admission(ranges_max=3, client_max=1)
    guests = [Guest(control, client) for client in "aaab"]
    await settle()
    assert inside(guests) == [True, False, False, True]
    await guests[0].go()
    await settle()
    assert inside(guests) == [True, True, False, True]


async def test_so_many_bytes() -> None:
    control = admission(bytes_max=10)
    guests = [Guest(control, "a", size) for size in (6, 6, 1)]
    await settle()
    assert inside(guests) == [True, False, False], "a large one is not passed for ever"
    await guests[0].go()
    await settle()
    assert inside(guests) == [True, True, True]
    assert control.bytes == 7


async def test_one_that_is_larger_than_all_is_let_in_alone() -> None:
    control = admission(bytes_max=10)
    guests = [Guest(control, "a", 20), Guest(control, "a", 1)]
    await settle()
    assert inside(guests) == [True, False]


async def test_who_waits_too_long_is_refused() -> None:
    control = admission(ranges_max=1, wait_ns=1_000_000)
    first, second = Guest(control), Guest(control)
    with pytest.raises(RefusedError) as caught:
        await second.task
    assert caught.value.status == errors.BULK_BUSY.status == 429
    assert (control.refused, control.waiting, control.active) == (1, 0, 1)
    await first.go()
    third = Guest(control)
    await settle()
    assert third.inside.is_set()


async def test_a_line_that_is_too_long() -> None:
    control = admission(ranges_max=1, waiting_max=1)
    guests = [Guest(control) for _ in range(3)]
    await settle()
    with pytest.raises(RefusedError):
        await guests[2].task
    assert (control.refused, control.waiting) == (1, 1)


async def test_who_goes_from_the_line_leaves_no_trace() -> None:
    control = admission(ranges_max=1)
    guests = [Guest(control) for _ in range(3)]
    await settle()
    guests[1].task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await guests[1].task
    await guests[0].go()
    await settle()
    assert inside(guests) == [True, False, True]
    guests[2].task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await guests[2].task
    assert (control.active, control.bytes, control.waiting) == (0, 0, 0)


async def test_who_goes_at_the_moment_of_being_let_in() -> None:
    control = admission(ranges_max=1)
    guests = [Guest(control) for _ in range(3)]
    await settle()
    guests[0].leave.set()
    await asyncio.sleep(0)  # its place is free, and the next one's
    guests[1].task.cancel()
    await settle()
    assert inside(guests)[2]
    assert control.active == 1


async def test_one_slice_in_each_turn_of_the_loop() -> None:
    control = admission()
    taken: list[int] = []

    async def send(number: int) -> None:
        for _ in range(3):
            await control.turn()
            taken.append(number)

    senders = [asyncio.create_task(send(number)) for number in range(4)]
    most, turns = 0, 0
    while not all(sender.done() for sender in senders):
        before = len(taken)
        await asyncio.sleep(0)
        most, turns = max(most, len(taken) - before), turns + 1
    assert most == 1
    assert turns < 30
    assert sorted(taken) == sorted(list(range(4)) * 3)
    assert set(taken[:4]) == {0, 1, 2, 3}, "everybody in turn"


# --- compression


class Whole:
    """A frame of random bytes: it is as long when it is compressed."""

    def __init__(self) -> None:
        self.data = random.Random("frame").randbytes(4 * MIB + 1)

    def joined(self) -> bytes:
        return self.data


@pytest.mark.parametrize(("encoding", "frames"), [(ZSTD, 0.5), (GZIP, 1.6)])
def test_a_frame_is_compressed_without_further_copies(encoding: str, frames: float) -> None:
    """A copy of a large frame holds up the loop. `frames`: what Python allocates at most; zstd
    has memory of its own."""
    whole = Whole()
    compressed(encoding, Whole())  # type: ignore[arg-type]  # imports what it needs
    tracemalloc.start()
    try:
        packed = compressed(encoding, whole)  # type: ignore[arg-type]
        assert tracemalloc.get_traced_memory()[1] < frames * len(whole.data)
    finally:
        tracemalloc.stop()
    plain = zlib.decompress(packed, 31) if encoding == GZIP else cramjam.zstd.decompress(packed)
    assert bytes(plain) == whole.data
