"""A commit that begins anew after a power cut took what lay before it."""

from __future__ import annotations

import asyncio
import errno
import shutil
from pathlib import Path

import pytest
from support.bulk.rig import BulkRig
from support.engine import SYNC, WRITE, scratch

from broker.bulk import limits
from broker.bulk.errors import RefusedError
from broker.bulk.write.intents import load_intents
from broker.bulk.write.staging import Bounds
from broker.engine.log.publish import publish
from broker.runtime import vfs

ROWS = [b"%d " % number + b"." * 100 for number in range(1000)]
BEFORE = 3000


async def started(folder: Path) -> BulkRig:
    rig = BulkRig(folder, Bounds(disk_reserve=0), "none")
    await rig.writes.start(rig.engine)
    return rig


async def test_seqs_that_come_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The records before the commit are lost, so its own get lower seqs than it began with; the
    process ends once more when they are there."""
    monkeypatch.setattr(limits, "COMMIT_RETRY", 10**12)
    folder = scratch()
    try:
        rig = await started(folder)
        await publish(rig.engine.open_log("t"), [b"."] * BEFORE)
        named = await rig.stage(0, "t", 0, ROWS)
        vfs.fail(WRITE, errno.EIO, 1)  # the first is the intent's
        with pytest.raises(RefusedError):
            await rig.commit(0, {"t": [named]})
        vfs.heal()
        await rig.close()
        ((intent,), _) = load_intents(folder / "staged")
        assert intent.topics["t"].first == BEFORE + 1
        first, *others = sorted((folder / "logs/t").glob("*.seg"))
        for path in others:
            path.unlink()
        with first.open("r+b") as file:
            file.truncate(64)

        rig = BulkRig(folder, Bounds(disk_reserve=0), "none")
        vfs.fail(SYNC, errno.EIO, 2, times=100)  # behind those of the intent: nothing is answered
        await rig.writes.start(rig.engine)
        await asyncio.gather(*rig.writes.commits._tasks)
        vfs.heal()
        await rig.close()
        assert load_intents(folder / "staged")[0]
        assert rig.rows("t") == ROWS

        rig = await started(folder)
        found = await rig.commit(0, {"t": [named]})
        assert found["t"] == {"records": 1000, "first": 1, "last": 1000, "state": "already"}
        assert rig.rows("t") == ROWS
        await rig.close()
    finally:
        vfs.heal()
        shutil.rmtree(folder, ignore_errors=True)
