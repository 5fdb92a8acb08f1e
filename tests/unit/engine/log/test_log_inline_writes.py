"""Which writes of a log are done on the loop, and which ones by the writer thread."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.engine import WRITE, Rig, numbered

from broker.runtime import vfs

SHORT, LONG, LONGEST = 1 << 12, 1 << 16, 1 << 18
MS = 1_000_000
LIMITS: dict[str, Any] = {
    "sync": "always",
    "inline_bytes": SHORT,
    "inline_synced_bytes": 2 * LONG,
    "inline_synced_ns": 50 * MS,  # far above what a write takes, also on a loaded machine
    "inline_stall_ns": 100 * MS,
}


@pytest.fixture(autouse=True)
def _heal() -> Iterator[None]:
    yield
    vfs.heal()


def inline(rig: Rig, size: int) -> bool:
    """Whether one write of so many bytes was done on the loop."""
    shared = rig.engine.shared
    before = shared.inline_writes
    assert rig.publish(rig.log(), [bytes(size)]) == [1]
    rig.settle()
    return shared.inline_writes > before


@pytest.mark.parametrize("sync", ["always", "none", 1.0])
def test_short_ones_always_and_long_ones_when_they_are_to_be_synced(
    tmp_path: Path, sync: str | float
) -> None:
    with Rig(tmp_path, **{**LIMITS, "sync": sync}) as rig:
        assert inline(rig, SHORT // 2)
        assert inline(rig, LONG) is (sync == "always")
        assert not inline(rig, LONGEST)


def test_long_ones_go_to_the_writer_while_they_would_take_too_long(tmp_path: Path) -> None:
    slow = {"inline_synced_ns": 5 * MS, "inline_stall_ns": 999 * MS}
    with Rig(tmp_path, **{**LIMITS, **slow}) as rig:
        vfs.slow(WRITE, 60 * MS)
        assert inline(rig, LONG), "nothing is known about the disk"
        assert not inline(rig, LONG)
        assert inline(rig, SHORT // 2), "short ones have a rule of their own"
        vfs.slow(WRITE, 0)
        for _ in range(100):
            if inline(rig, LONG):
                break
        else:
            pytest.fail("the disk became quick, and the loop does not hear of it")


def test_after_one_that_took_very_long_all_go_to_the_writer(tmp_path: Path) -> None:
    now_ns = time.monotonic_ns()  # writes are timed by the real clock
    with Rig(tmp_path, **LIMITS, clock=(now_ns, now_ns)) as rig:
        vfs.slow(WRITE, 150 * MS)
        assert inline(rig, SHORT // 2)
        vfs.slow(WRITE, 0)
        assert rig.engine.shared.inline_stalls == 1
        assert not inline(rig, SHORT // 2)
        rig.advance(10)
        assert inline(rig, SHORT // 2)


@pytest.mark.parametrize("size", [SHORT // 2, LONG, LONGEST])
def test_what_is_written_is_the_same(tmp_path: Path, size: int) -> None:
    bodies = numbered(20, size=size)
    with Rig(tmp_path / "a", **LIMITS) as rig:
        assert set(rig.publish(rig.log(), bodies)) == {1}
        rig.crash(tmp_path / "b")
    with Rig(tmp_path / "b", **LIMITS) as rig:
        assert rig.engine.problems == []
        assert rig.log().next_seq == len(bodies) + 1
