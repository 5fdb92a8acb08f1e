"""What writes in bulk, on an engine of a test's own."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from support.bulk.rig import BulkRig
from support.engine import scratch

from broker.bulk.write.staging import Bounds
from broker.runtime import vfs


@pytest.fixture
def start() -> Iterator[Callable[..., Any]]:
    folder = scratch()

    @asynccontextmanager
    async def start(sync: str = "none", **bounds: int) -> AsyncIterator[BulkRig]:
        rig = BulkRig(folder, Bounds(**{"disk_reserve": 0, **bounds}), sync)
        await rig.writes.start(rig.engine)
        try:
            yield rig
        finally:
            vfs.heal()
            await rig.close()

    yield start
    shutil.rmtree(folder, ignore_errors=True)
