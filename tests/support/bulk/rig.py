"""The writers of the bulk API with an engine, on the event loop of the test."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from broker.bulk.errors import RefusedError
from broker.bulk.write.service import Writes
from broker.bulk.write.staging import Bounds
from broker.engine.engine import Engine
from broker.routing.router import Router
from broker.runtime.turn import Turn
from support.clients.upload import block
from support.engine import LIMITS
from support.native.logs import scan_records

Named = dict[str, list[tuple[int, str, int]]]


class BulkRig:
    """An engine on the test's loop, and the writers of the bulk API."""

    def __init__(self, folder: Path, bounds: Bounds, sync: str) -> None:
        loop = asyncio.get_running_loop()
        self.folder = folder
        turn = Turn(loop.call_soon, lambda due, call: loop.call_at(due / 1e9, call))
        self.writes = Writes(folder, folder / "logs", bounds)
        self.writes.find_intents()
        limits = replace(LIMITS, segment_bytes=1 << 14, retry_ns=1)
        report: Callable[..., None] = lambda *_, **__: None  # noqa: E731
        logs = str(folder / "logs")
        self.engine = Engine(turn, Router(), logs, limits, lambda _: sync, report)
        self.engine.open(loop)

    async def stage(self, epoch: int, topic: str, part: int, rows: list[bytes]) -> Any:
        data = bytearray(block(rows))
        await self.writes.staging.stage("w", epoch, (topic, part, "a"), 0, data)
        return part, "a", len(data)

    async def stage_for(self, writer: str, epoch: int, topic: str, rows: list[bytes]) -> Any:
        """Stage a part of another writer."""
        data = bytearray(block(rows))
        await self.writes.staging.stage(writer, epoch, (topic, 0, "a"), 0, data)
        return 0, "a", len(data)

    async def commit(self, epoch: int, topics: Named) -> Any:
        return await self.writes.commits.commit("w", epoch, topics)

    async def publish(self, epoch: int, topic: str, rows: list[bytes]) -> Any:
        """Stage and commit all rows as one part."""
        named = await self.stage(epoch, topic, 0, rows)
        return (await self.commit(epoch, {topic: [named]}))[topic]

    def rows(self, topic: str) -> list[bytes]:
        """The bodies in the files of a log."""
        log = self.engine.log(topic)
        found = []
        paths = sorted((self.folder / "logs" / topic).glob("*.seg"))
        ends = [int(path.stem) for path in paths[1:]] + [log.visible]
        for path, end in zip(paths, ends, strict=False):
            records, _, _ = scan_records(path.read_bytes()[64:], log.log_id, int(path.stem))
            # what is not below the next file's first seq has been refused
            found += [record[4] for record in records if record[0] < end]
        return found

    async def close(self) -> None:
        await self.writes.stop()
        await self.engine.close()


async def refused(work: Any) -> RefusedError:
    with pytest.raises(RefusedError) as caught:
        await work
    return caught.value


async def stands(rig: BulkRig, epoch: int, named: Any) -> bool:
    """Commit. False: the disk has refused it; the log is then repaired as the housekeeping does."""
    try:
        await rig.commit(epoch, {"t": [named]})
    except RefusedError as refusal:
        log = rig.engine.log("t")
        if log is not None and log.last_error:
            rig.engine.maintain()
            await rig.engine.settle()
        if refusal.status not in (503, 507):
            raise
        return False
    return True
