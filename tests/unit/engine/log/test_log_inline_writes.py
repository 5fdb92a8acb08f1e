"""Which writes of a log are done on the loop, and which ones by the writer thread."""

from __future__ import annotations

import errno
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.engine import WRITE, Rig, numbered, readable_bodies

from broker.engine.log.publish import append
from broker.runtime import vfs

SHORT, LONG, LONGEST = 1 << 14, 1 << 16, 1 << 18
MS = 1_000_000
LIMITS: dict[str, Any] = {
    "sync": "always",
    "inline_bytes": SHORT,
    "inline_long_bytes": 2 * LONG,
    "inline_long_ns": 50 * MS,  # far above what a write takes, also on a loaded machine
    "inline_stall_ns": 999 * MS,
}


@pytest.fixture(autouse=True)
def _heal() -> Iterator[None]:
    yield
    vfs.heal()


def inline(rig: Rig, size: int) -> bool:
    """Whether one write of about so many bytes was done on the loop."""
    shared = rig.engine.shared
    before = shared.inline_writes
    assert rig.publish(rig.log(), [bytes(size)]) == [1]
    rig.settle()
    return shared.inline_writes > before


@pytest.mark.parametrize("sync", ["always", "none", 1.0])
def test_those_up_to_a_length_whatever_the_policy(tmp_path: Path, sync: str | float) -> None:
    with Rig(tmp_path, **{**LIMITS, "sync": sync}) as rig:
        assert inline(rig, 100)
        assert inline(rig, LONG)
        assert not inline(rig, LONGEST)


@pytest.mark.parametrize("short", [True, False])
def test_short_ones_have_a_rule_of_their_own(tmp_path: Path, short: bool) -> None:
    own = {"inline_bytes": SHORT * short, "inline_long_bytes": 0}
    with Rig(tmp_path, **{**LIMITS, **own}) as rig:
        assert inline(rig, 100) is short


def test_long_ones_go_to_the_writer_while_they_would_take_too_long(tmp_path: Path) -> None:
    with Rig(tmp_path, **{**LIMITS, "inline_long_ns": 5 * MS}) as rig:
        vfs.slow(WRITE, 60 * MS)
        assert inline(rig, LONG), "nothing is known about the disk"
        assert not inline(rig, LONG), "one slow write is enough"
        assert inline(rig, 100)
        vfs.slow(WRITE, 0)
        for _ in range(200):
            if inline(rig, LONG):
                break
        else:
            pytest.fail("the disk became quick, and the loop does not hear of it")


def test_the_long_ones_of_a_turn_share_the_time(tmp_path: Path) -> None:
    """However many logs have one: other clients wait for the turn."""
    with Rig(tmp_path, **{**LIMITS, "inline_long_ns": MS // 10}) as rig:
        shared = rig.engine.shared
        logs = [rig.log(f"t{number}") for number in range(20)]
        for log in logs:
            assert append(log, bytes(LONG))
        rig.settle()
        assert 1 <= shared.inline_writes <= 10  # each counts as 20 us before one was timed
        assert [log.next_seq for log in logs] == [2] * 20


def test_a_long_one_that_fails_is_not_stored(tmp_path: Path) -> None:
    with Rig(tmp_path, **LIMITS) as rig:
        log = rig.log()
        assert rig.publish(log, [b"before"]) == [1]
        vfs.fail(WRITE, errno.ENOSPC, partial=LONG // 2)
        assert rig.publish(log, [bytes(LONG)]) == [-1]
        assert rig.engine.shared.inline_writes == 2
        rig.advance(2)
        assert rig.publish(log, [b"after"]) == [1]
        assert readable_bodies(rig, log) == [b"before", b"after"]


def test_after_one_that_took_very_long_all_go_to_the_writer(tmp_path: Path) -> None:
    now_ns = time.monotonic_ns()  # writes are timed by the real clock
    with Rig(tmp_path, **{**LIMITS, "inline_stall_ns": 100 * MS}, clock=(now_ns, now_ns)) as rig:
        vfs.slow(WRITE, 150 * MS)
        assert inline(rig, 100)
        vfs.slow(WRITE, 0)
        assert rig.engine.shared.inline_stalls == 1
        assert not inline(rig, 100)
        rig.advance(10)
        assert inline(rig, 100)


def test_a_long_one_that_took_very_long_sends_the_long_ones_to_the_writer(tmp_path: Path) -> None:
    now_ns = time.monotonic_ns()
    limits = {**LIMITS, "inline_long_ns": 10**18, "inline_stall_ns": 100 * MS}
    with Rig(tmp_path, **limits, clock=(now_ns, now_ns)) as rig:
        vfs.slow(WRITE, 150 * MS)
        assert inline(rig, LONG)
        vfs.slow(WRITE, 0)
        assert rig.engine.shared.inline_stalls == 1
        assert inline(rig, 100)
        assert not inline(rig, LONG)
        rig.advance(10)
        assert inline(rig, LONG)


@pytest.mark.parametrize(("size", "on_loop"), [(100, True), (LONG, True), (LONGEST, False)])
def test_what_is_written_is_the_same(tmp_path: Path, size: int, on_loop: bool) -> None:
    bodies = numbered(20, size=size)
    with Rig(tmp_path / "a", **LIMITS) as rig:
        for body in bodies:
            assert rig.publish(rig.log(), [body]) == [1]
        assert (rig.engine.shared.inline_writes == len(bodies)) is on_loop
        rig.crash(tmp_path / "b")
    with Rig(tmp_path / "b", **LIMITS) as rig:
        assert rig.engine.problems == []
        assert readable_bodies(rig, rig.log()) == bodies
