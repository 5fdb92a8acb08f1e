"""The overview: its health is that of /healthz."""

from __future__ import annotations

import asyncio
import contextlib
import errno
from pathlib import Path
from typing import Any

import pytest
from support.console import BROKER, Console, console
from support.servers.leafs import on_uvloop

from broker.console import limits
from broker.console.api.nats import nats_of
from broker.runtime import vfs

SLOW = BROKER.replace("[nats]\n", '[nats]\nmax_payload = "64KiB"\nmax_pending = "64KiB"\n')
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


@on_uvloop
async def test_clients_that_do_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "DISK_FREE_PERCENT", 0)
    async with console(tmp_path, base=SLOW) as broker:
        assert (await broker.get("/v1/overview"))["attention"] == []
        place = broker.server.ports["nats"][:2]
        _, silent = await asyncio.open_connection(*place, limit=1)  # reads next to nothing
        silent.write(b'CONNECT {"verbose": false}\r\nSUB a 1\r\n')
        _, busy = await asyncio.open_connection(*place)
        busy.write(b'CONNECT {"verbose": false}\r\n')
        nats = nats_of(broker.app.context)
        assert nats is not None
        body = bytes(60_000)

        def is_closed() -> bool:
            busy.write(b"PUB a %d\r\n%s\r\n" % (len(body), body))
            return nats.frontend.slow_consumers == 1

        await broker.wait(is_closed)
        (item,) = (await broker.get("/v1/overview"))["attention"]
        assert item["text"].startswith("1 NATS client in ten minutes that did not read")
        silent.close()
        busy.close()


async def test_a_problem_is_listed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "DISK_FREE_PERCENT", 0)
    async with console(tmp_path) as broker:
        await broker.publish("a", b"x")
        health = broker.server.engine.shared.health
        health.add("log", "a", "is broken")
        health.add("file", "other", "cannot be used")
        page = await broker.get("/v1/overview")
        assert [(one["text"], one["topic"]) for one in page["attention"]] == [
            ("log a: is broken", "a"), ("file other: cannot be used", None),
        ]  # fmt: skip
        assert [one["name"] for one in page["health"]["problems"]] == ["a", "other"]
