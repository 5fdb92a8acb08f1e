"""Threads that serve ranges: what they do, and when the kernel lets them."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.engine import CALLS, Rig, numbered
from support.loops import DEADLINE_S, on_uvloop

from broker.base.units import KIB, MIB
from broker.engine.bulk.background import Background, Outgoing
from broker.engine.bulk.ranges import Range
from broker.runtime import vfs

ALL = 1 << 62
NICE = 5


@contextmanager
def working(size: int = 2, slice_bytes: int = 64 * KIB) -> Iterator[Background]:
    background = Background(size, NICE, slice_bytes)
    try:
        yield background
    finally:
        background.close()


@contextmanager
def pair(room: int) -> Iterator[tuple[socket.socket, socket.socket]]:
    """Two ends of a connection with little room between them."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, room)
        ours.setblocking(False)
        theirs.setblocking(False)
        yield ours, theirs


def segments_mapped() -> int:
    return Path("/proc/self/maps").read_text().count(".seg")


def threads_of(policy: int) -> list[int]:
    found = []
    for task in Path("/proc/self/task").iterdir():
        try:
            if os.sched_getscheduler(int(task.name)) == policy:
                found.append(int(task.name))
        except ProcessLookupError:
            continue
    return found


@on_uvloop
async def test_a_range_as_read_by_the_loop(tmp_path: Path) -> None:
    with Rig(tmp_path / "a") as rig, working() as background:
        log = rig.log()
        rig.publish(log, numbered(500))
        found, same = Range(log, 3, ALL, MIB), Range(log, 3, ALL, MIB)
        await background.read(found)
        same.read()
        assert found.joined() == same.joined()
        assert found.count == 498


@on_uvloop
async def test_a_long_range_lets_others_go_between_its_parts(tmp_path: Path) -> None:
    """By one thread it would be done first, if it were done at a stretch."""
    with Rig(tmp_path / "a", segment_bytes=32 * MIB) as rig, working(size=1) as background:
        log = rig.log()
        for _ in range(20):
            rig.publish(log, [os.urandom(MIB)])
        done: list[str] = []

        async def read(name: str, bytes_max: int) -> None:
            await background.read(Range(log, 1, ALL, bytes_max))
            done.append(name)

        async with asyncio.timeout(DEADLINE_S):
            while done[:2] != ["short", "long"]:  # another processor may be quicker than the loop
                done.clear()
                await asyncio.gather(read("long", 32 * MIB), read("short", KIB))


@on_uvloop
async def test_a_range_that_was_read_is_not_read_again(tmp_path: Path) -> None:
    with Rig(tmp_path / "a") as rig, working() as background:
        log = rig.log()
        rig.publish(log, numbered(50))
        found = Range(log, 1, ALL, MIB)
        await background.read(found)
        whole, parts = found.joined(), found.parts()
        rig.engine.delete_log("t")
        await background.read(found)
        assert b"".join(parts) == whole


@on_uvloop
async def test_a_range_of_a_file_that_is_gone(tmp_path: Path) -> None:
    with Rig(tmp_path / "a") as rig, working() as background:
        log = rig.log()
        rig.publish(log, numbered(5))
        found = Range(log, 1, ALL, MIB)
        rig.engine.delete_log("t")
        with pytest.raises(FileNotFoundError):
            await background.read(found)


@on_uvloop
async def test_all_parts_are_sent_in_order_as_far_as_there_is_room() -> None:
    parts = [b"head", os.urandom(300_000), b"", b"12345"]
    with working(slice_bytes=1_000) as background, pair(16 * KIB) as (ours, theirs):
        outgoing, received, halts = Outgoing(parts), b"", 0
        assert len(outgoing) == sum(map(len, parts))
        while not await background.send(ours, outgoing):
            halts += 1
            while len(received) < outgoing.sent:
                received += theirs.recv(65_536)
        while len(received) < len(outgoing):
            received += theirs.recv(65_536)
        assert received == b"".join(parts)
        assert halts > 1


@on_uvloop
async def test_nothing_is_sent_to_a_peer_that_has_gone() -> None:
    with working() as background, pair(16 * KIB) as (ours, theirs):
        theirs.close()
        with pytest.raises(BrokenPipeError):
            await background.send(ours, Outgoing([b"x"]))


def test_more_parts_than_there_is_room_for() -> None:
    with pytest.raises(ValueError, match="at most 4"):
        Outgoing([b"x"] * 5)


@on_uvloop
async def test_what_was_read_is_unmapped(tmp_path: Path) -> None:
    with Rig(tmp_path / "a") as rig, working(size=1) as background:
        log = rig.log()
        rig.publish(log, numbered(10))
        found = Range(log, 1, ALL, MIB)
        await background.read(found)
        before = segments_mapped()
        view = found.view()
        background.release(found)
        assert found.view() == view, "it is in use, and stays"
        view.release()
        background.release(found)
        await background.read(Range(log, 1, ALL, MIB))  # after it, by the same thread
        assert segments_mapped() == before - 1
        with pytest.raises(BufferError):
            found.view()


@on_uvloop
async def test_a_frame_stays_mapped_while_it_is_sent(tmp_path: Path) -> None:
    with Rig(tmp_path / "a") as rig, working() as background, pair(4 * KIB) as (ours, theirs):
        log = rig.log()
        rig.publish(log, [os.urandom(60_000)])
        found = Range(log, 1, ALL, MIB)
        await background.read(found)
        whole, outgoing = found.joined(), Outgoing(found.parts())
        sending = background.send(ours, outgoing)
        background.release(found)
        received = b""
        while not await sending:
            while len(received) < outgoing.sent:
                received += theirs.recv(65_536)
            sending = background.send(ours, outgoing)
        while len(received) < len(whole):
            received += theirs.recv(65_536)
        assert received == whole


@on_uvloop
async def test_close_cancels_what_is_not_done(tmp_path: Path) -> None:
    with Rig(tmp_path / "a") as rig:
        log = rig.log()
        rig.publish(log, numbered(5))
        background = Background(1, NICE, 64 * KIB)
        vfs.hold(CALLS["open"])
        try:
            first = background.read(Range(log, 1, ALL, MIB))
            while not vfs.held(CALLS["open"]):  # noqa: ASYNC110 - a thread, no bell
                await asyncio.sleep(0)
            dropped = background.read(Range(log, 1, ALL, MIB))
            unwanted = background.read(Range(log, 1, ALL, MIB))
            unwanted.cancel()
            background.stop()
        finally:
            vfs.release(CALLS["open"])
        background.close()
        assert first.done(), "or cancelled: its second part may have begun or not"
        assert dropped.cancelled()
        with pytest.raises(RuntimeError, match="have ended"):
            background.read(Range(log, 1, ALL, MIB))
        background.close()


@on_uvloop
async def test_no_room_in_the_poller_is_no_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_more(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    loop = asyncio.get_running_loop()
    with Rig(tmp_path / "a") as rig, working() as background:
        log = rig.log()
        rig.publish(log, numbered(5))
        full = SimpleNamespace(add_reader=no_more, remove_reader=loop.remove_reader)
        with monkeypatch.context() as patch:
            patch.setattr(asyncio, "get_running_loop", lambda: full)
            with pytest.raises(OSError, match="No space left"):
                background.read(Range(log, 1, ALL, MIB))
        await background.read(Range(log, 1, ALL, MIB))


@on_uvloop
async def test_no_descriptor_for_the_threads_is_no_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_more(*_: object) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with Rig(tmp_path / "a") as rig, working() as background:
        log = rig.log()
        rig.publish(log, numbered(5))
        with monkeypatch.context() as patch:
            patch.setattr(os, "eventfd", no_more)
            with pytest.raises(OSError, match="Too many open files"):
                background.read(Range(log, 1, ALL, MIB))
        await background.read(Range(log, 1, ALL, MIB))


@on_uvloop
async def test_live_traffic_goes_first(tmp_path: Path) -> None:
    with Rig(tmp_path / "a") as rig, working() as background:
        log = rig.log()
        rig.publish(log, numbered(5))
        before = threads_of(os.SCHED_IDLE)
        await background.read(Range(log, 1, ALL, MIB))
        assert set(threads_of(os.SCHED_IDLE)) - set(before)
        assert not background.is_relieved


@contextmanager
def busy(processor: int) -> Iterator[None]:
    """A process that never leaves this processor idle."""
    code = f"import os; os.sched_setaffinity(0, {{{processor}}}); print(flush=True)\nwhile 1: pass"
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None
        child.stdout.readline()
        yield
    finally:
        child.kill()
        child.communicate()


def turns_of(thread: int) -> int:
    """How often the thread has been given a processor."""
    return int(Path(f"/proc/self/task/{thread}/schedstat").read_text().split()[2])


@pytest.mark.parametrize("size", [1 * KIB, 2 * MIB])
@on_uvloop
async def test_other_threads_help_where_processors_are_never_idle(
    tmp_path: Path, size: int
) -> None:
    """Jobs that are too short to be interrupted, and long ones."""
    processor = min(os.sched_getaffinity(0))
    with Rig(tmp_path / "a") as rig, working(size=1) as background:
        log = rig.log()
        for _ in range(2_000):
            rig.publish(log, [os.urandom(1_000)])
        before, others = threads_of(os.SCHED_IDLE), set(threads_of(os.SCHED_OTHER))
        await background.read(Range(log, 1, ALL, MIB))
        (starved,) = set(threads_of(os.SCHED_IDLE)) - set(before)
        with busy(processor):
            os.sched_setaffinity(starved, {processor})
            async with asyncio.timeout(DEADLINE_S):
                while not background.is_relieved:
                    await background.read(Range(log, 1, ALL, size))
            (helper,) = set(threads_of(os.SCHED_OTHER)) - others
            assert os.getpriority(os.PRIO_PROCESS, helper) == NICE
            found = Range(log, 1, ALL, size)
            await background.read(found)
            outgoing, turns = Outgoing(found.parts()), turns_of(helper)
            with pair(16 * KIB) as (ours, _theirs):
                await background.send(ours, outgoing)
            assert turns_of(helper) > turns, "it sent, which COPYING threads do otherwise"
