"""What is remembered of ids: bounded by its memory, and one window for each topic in use."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.bulk.rig import BulkRig
from support.clients.upload import record, sealed
from support.engine import scratch

from broker.bulk import limits
from broker.bulk.write.handlers import AppendHandlers, RecentIds
from broker.bulk.write.staging import Bounds


@pytest.fixture
def folder() -> Iterator[Path]:
    made = scratch()
    yield made
    shutil.rmtree(made, ignore_errors=True)


def with_id(one: object) -> bytearray:
    head = b"NATS/1.0\r\nNats-Msg-Id: %a\r\n\r\n" % (one,)
    return bytearray(sealed(1, record(b"x", headers=head)))


async def started(folder: Path) -> tuple[BulkRig, Any]:
    rig = BulkRig(folder, Bounds(disk_reserve=0), "none")
    await rig.writes.start(rig.engine)
    context: Any = None
    return rig, AppendHandlers(context, rig.writes.staging, rig.engine.open_log)


async def test_many_topics_with_few_ids(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One id takes the memory of a thousand; topics come and go."""
    monkeypatch.setattr(limits, "DEDUPE_IDS_ALL_MAX", 4 * limits.DEDUPE_IDS_MIN)
    rig, pages = await started(folder)
    for _ in range(2):
        for number in range(10):
            await pages._dedupe(rig.engine.open_log(f"t{number}"), with_id(number))
    assert list(pages._known) == ["t6", "t7", "t8", "t9"]
    assert [rig.rows(f"t{number}") for number in range(10)] == [[b"x"]] * 10, "read from the log"
    await rig.close()


async def test_what_somebody_is_at_is_not_forgotten(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who waits for the lock has a window: another one would let the same id pass."""
    rig, pages = await started(folder)
    log = rig.engine.open_log("t")
    await pages._dedupe(log, with_id(1))
    known = pages._known["t"]
    async with known.lock:
        waiting = asyncio.create_task(pages._dedupe(log, with_id(1)))
        await asyncio.sleep(0)
    monkeypatch.setattr(limits, "DEDUPE_IDS_ALL_MAX", 0)
    pages._bound(RecentIds())
    assert pages._known == {"t": known}
    await waiting
    assert rig.rows("t") == [b"x"]
    assert pages._known == {}
    await rig.close()
