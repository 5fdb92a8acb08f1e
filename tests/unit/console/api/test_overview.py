"""The overview: its health is that of /healthz."""

from __future__ import annotations

import contextlib
import errno
from pathlib import Path
from typing import Any

from support.console import Console, console

from broker.runtime import vfs

WRITE = 1  # see broker/runtime/vfs.pxd


async def is_ok(broker: Console) -> bool:
    await broker.get("/v1/session")
    broker.app.context.listing.sweep = None  # count all topics again
    page: dict[str, Any] = await broker.get("/v1/overview")
    return bool(page["health"]["ok"])


async def test_health_is_that_of_the_broker(tmp_path: Path) -> None:
    """A log that cannot be written makes the broker unhealthy."""
    async with console(tmp_path) as broker:
        await broker.publish("a", b"x")
        await broker.publish("b", b"x")
        assert await is_ok(broker)
        vfs.fail(WRITE, errno.ENOSPC, times=1 << 20)
        try:
            with contextlib.suppress(OSError):
                await broker.publish("b", b"y")
            assert broker.server.health() is not None
            assert not await is_ok(broker)
        finally:
            vfs.heal()
