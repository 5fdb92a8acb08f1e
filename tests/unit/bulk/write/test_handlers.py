"""The pages for those who write, with limits of a test's own."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web
from support.bulk.rig import BulkRig
from support.engine import scratch

from broker.base.units import SECOND
from broker.bulk import limits
from broker.bulk.access import Access, Identity
from broker.bulk.app import BulkApp
from broker.bulk.context import BulkContext
from broker.bulk.read.readers import Readers
from broker.bulk.write.staging import Bounds

Ask = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@contextlib.asynccontextmanager
async def opened() -> AsyncIterator[tuple[BulkRig, int]]:
    """A bulk API of its own, and its port."""
    folder = scratch()
    rig = BulkRig(folder, Bounds(disk_reserve=0), "none")
    await rig.writes.start(rig.engine)
    context = BulkContext(rig.engine, Identity("b", "0" * 32, 0))
    readers = Readers(rig.engine, folder / "readers", context.in_thread)
    readers.load()
    app = BulkApp(context, Access(None), readers, rig.writes.routes(context))
    runner = web.AppRunner(app.build(), shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield rig, runner.addresses[0][1]
    finally:
        await runner.cleanup()
        await readers.end()
        await context.close()
        await rig.close()
        shutil.rmtree(folder, ignore_errors=True)


async def posted(port: int, path: str, body: Any) -> tuple[int, Any]:
    data = json.dumps(body).encode()
    reader, writer = await begun(port, path, len(data))
    writer.write(data)
    found = await answer(reader)
    writer.close()
    return found


async def begun(port: int, path: str, size: int) -> Ask:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"POST /bulk/v1/{path} HTTP/1.1\r\nHost: b\r\nContent-Length: {size}\r\n\r\n"
    writer.write(head.encode())
    return reader, writer


async def answer(reader: asyncio.StreamReader) -> tuple[int, Any]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    length = int(head.partition("content-length: ")[2].split()[0])
    return int(head.split()[1]), json.loads(await reader.readexactly(length))


async def test_a_commit_of_nothing_makes_no_writer_too_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with opened() as (rig, port):
        assert (await posted(port, "tx/one/0/commit", {"topics": {"t": []}}))[0] == 200
        monkeypatch.setattr(limits, "WRITERS_MAX", 1)
        status, page = await posted(port, "tx/two/0/commit", {"topics": {"t": []}})
        assert (status, page["error"]) == (
            507,
            "no more blocks can be staged: the limit of 1 writers is reached",
        )
        assert (await posted(port, "tx/one/1/commit", {"topics": {"t": []}}))[0] == 200
        assert not (rig.folder / "staged" / "two").exists()


async def test_commits_of_very_many_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    """More than other JSON may have; and there is an end."""
    monkeypatch.setattr(limits, "BULK_BODY_BYTES_MAX", 1000)
    monkeypatch.setattr(limits, "COMMIT_ATTEMPTS_MAX", 200)
    async with opened() as (_, port):
        named = {f"t{topic}": [[part, "a" * 32, 0] for part in range(50)] for topic in range(4)}
        status, page = await posted(port, "tx/w/0/commit", {"topics": named})
        assert status == 200, page
        named["more"] = [[0, "a", 0]]
        status, page = await posted(port, "tx/w/1/commit", {"topics": named})
        assert (status, page["error"]) == (400, "topics: more than 200 attempts")
        for wrong in ([["x", "a", 0]], [[0, "a"]], {}, [[2**31, "a", 0]], [[0, "a", -1]]):
            status, _ = await posted(port, "tx/w/1/commit", {"topics": {"t": wrong}})
            assert status == 400


async def test_a_block_that_comes_in_drops_does_not_keep_its_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """There are few, and others wait for them."""
    monkeypatch.setattr(limits, "BULK_BODY_WAIT", SECOND // 20)
    monkeypatch.setattr(limits, "BULK_BODY_RATE", 1 << 40)
    async with opened() as (_, port), asyncio.timeout(20):
        reader, writer = await begun(port, "append/t", 1 << 20)
        answering = asyncio.create_task(answer(reader))
        for _ in range(1 << 19):
            if answering.done():
                break
            writer.write(b".")
            await asyncio.sleep(0)
        status, page = await answering
        assert (status, page["error"]) == (408, "the body was not received within 0 s")
        writer.close()
