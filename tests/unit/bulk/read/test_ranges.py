"""A range whose rest cannot be sent: its client hears of it at once."""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

import pytest
from aiohttp import web
from support.loops import on_uvloop

from broker.base.units import KIB, MIB
from broker.bulk.admission import Admission
from broker.bulk.context import BulkContext
from broker.bulk.read.ranges import RangeHandlers
from broker.bulk.responses import errors_as_json
from broker.net.http.config import HttpConfig
from broker.net.http.pages import Pages

ASK = b"GET /range HTTP/1.1\r\nHost: localhost\r\n\r\n"


class Context:
    """Of a server whose threads cannot send."""

    def __init__(self, problem: OSError) -> None:
        self.problem = problem
        self.admission = Admission()
        self.background = self

    def send(self, *_: object) -> asyncio.Future[bool]:
        sending: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        sending.set_exception(self.problem)
        return sending


@asynccontextmanager
async def serving(problem: OSError) -> AsyncIterator[tuple[str, int]]:
    handlers = RangeHandlers(cast(BulkContext, Context(problem)))

    async def range_of(request: web.Request) -> web.StreamResponse:
        return await handlers._send(request, [bytes(KIB), memoryview(bytes(MIB))], {})

    app = web.Application(middlewares=[errors_as_json])
    app.router.add_get("/range", range_of)
    pages = Pages(lambda: app, None, HttpConfig())
    await pages.open(("127.0.0.1", 0))
    try:
        yield pages.address
    finally:
        await pages.close()


@pytest.mark.parametrize(
    ("problem", "reported"),
    [
        (OSError(errno.EFAULT, "Bad address"), True),  # a page does not read
        (OSError(errno.EMFILE, "Too many open files"), True),
        (BrokenPipeError(), False),
        (ConnectionResetError(), False),
    ],
)
@on_uvloop
async def test_the_connection_ends(
    caplog: pytest.LogCaptureFixture, problem: OSError, reported: bool
) -> None:
    caplog.set_level(logging.ERROR)
    async with serving(problem) as address:
        reader, writer = await asyncio.open_connection(*address)
        writer.write(ASK)
        try:
            answer = await reader.read()
        except ConnectionResetError:
            answer = b""
        assert len(answer) < MIB
        assert answer.count(b"HTTP/1.1") <= 1, "no second answer comes after half of the first"
        writer.close()
    assert ("request failed: GET /range" in caplog.text) is reported
    assert "Error handling request" not in caplog.text
