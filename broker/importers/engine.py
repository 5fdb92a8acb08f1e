"""The engine of an importer: it writes logs in a folder that no broker has open."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING

from broker.base.durable import make_folder
from broker.engine import limits
from broker.engine.cursor.cursor import cursors_of
from broker.engine.engine import Engine
from broker.engine.log.publish import check_appends
from broker.net.listener import Runtime
from broker.routing.router import Router
from broker.server.engine import engine_options, report

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from broker.config.config import Config


@contextlib.asynccontextmanager
async def import_engine(config: Config, folder: Path) -> AsyncIterator[Engine]:
    """An engine on the logs in this folder, which is made if necessary. It syncs nothing, and
    passes nothing between NSQ topics and NATS subjects. OSError when it is closed: a record or a
    cursor is not in its file."""
    runtime = Runtime()
    bounds = replace(engine_options(config), to_live=False, from_live=False)
    router = Router(limits.ROUTER_CACHE_SUBJECTS, limits.ROUTER_CACHE_REFS)
    make_folder(folder)
    engine = Engine(runtime.turn, router, str(folder), bounds, lambda _: "none", report)
    engine.open(runtime.loop)
    try:
        yield engine
        await _check_written(engine)
    finally:
        await engine.close()


async def _check_written(engine: Engine) -> None:
    await engine.settle()
    for log in engine.all_logs():
        check_appends(log)
        for cursor in cursors_of(log).values():
            await cursor.synced()
