"""Commits that are tried again: how often, by whom, and what is looked at."""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path
from typing import Any

import pytest
from support.bulk.rig import BulkRig, refused, stands
from support.engine import WRITE

from broker.bulk import limits
from broker.bulk.write import intents
from broker.engine.bulk.blocks import find_staged
from broker.runtime import vfs

ROWS = [b"%d" % number for number in range(50)]


async def test_one_try_at_a_time_while_the_disk_is_full(
    start: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver that asks again and again for hours must not leave a timer for each time."""
    monkeypatch.setattr(limits, "COMMIT_RETRY", 10**12)
    async with start("always") as rig:
        await rig.publish(0, "t", ROWS)
        named = await rig.stage(1, "t", 0, ROWS)
        vfs.fail(WRITE, errno.ENOSPC, 1, times=1000)  # the first is the intent's
        timers = []
        for _ in range(3):
            assert (await refused(rig.commit(1, {"t": [named]}))).status == 507
            timers.append(rig.writes.commits.writers["w"].retry)
        assert [timer.cancelled() for timer in timers] == [True, True, False]
        vfs.heal()
        assert await stands_at_last(rig, 1, named)


async def stands_at_last(rig: BulkRig, epoch: int, named: Any) -> bool:
    for _ in range(100):
        if await stands(rig, epoch, named):
            return True
    return False


async def test_of_a_log_that_is_open_no_more_is_looked_at_than_it_has(
    start: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files of busy logs have zeros behind that, which are cut off at any moment."""
    looked: list[tuple[int, int]] = []

    def spy(path: bytes, *rest: Any) -> Any:
        looked.append((int(Path(os.fsdecode(path)).stem), rest[-1]))
        return find_staged(path, *rest)

    monkeypatch.setattr(intents, "find_staged", spy)
    monkeypatch.setattr(limits, "COMMIT_RETRY", 10**12)
    async with start("always") as rig:
        await rig.publish(0, "t", ROWS)
        named = await rig.stage(1, "t", 0, ROWS)
        vfs.fail(WRITE, errno.ENOSPC, 1)
        await refused(rig.commit(1, {"t": [named]}))
        ends = {one.first_seq: one.planned for one in rig.engine.log("t").segments}
        assert await stands_at_last(rig, 1, named)
        assert looked
        assert all(ends[first] == size for first, size in looked)


async def test_an_intent_that_is_not_saved_at_the_start_is_finished_all_the_same(
    start: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its driver may never ask again."""
    monkeypatch.setattr(limits, "COMMIT_RETRY", 10**12)
    async with start("always") as rig:
        await rig.publish(0, "t", ROWS)
        named = await rig.stage(1, "t", 0, ROWS)
        vfs.fail(WRITE, errno.EIO, 1)
        await refused(rig.commit(1, {"t": [named]}))
    async with start("always") as rig:
        (writer,) = rig.writes.commits.writers.values()
        assert writer.intent is not None
        vfs.fail(WRITE, errno.EIO, 0)
        await asyncio.gather(*rig.writes.commits._tasks)
        assert writer.intent is not None, "not yet"
        writer.retry.cancel()
        assert await stands_at_last(rig, 1, named)
        assert rig.rows("t") == ROWS * 2


async def test_a_writer_in_use_is_the_only_one_of_its_name(
    start: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when many others come by meanwhile: two of them would commit the same epoch twice."""
    monkeypatch.setattr(limits, "WRITERS_KEPT", 1)
    async with start() as rig:
        commits = rig.writes.commits
        mine, _, again = await asyncio.gather(
            commits.writer("w"), commits.writer("x"), commits.writer("w")
        )
        assert mine is again
        for name in ("y", "z"):
            await commits.writer(name)
        assert "w" not in commits.writers
        assert await commits.writer("w") is mine
