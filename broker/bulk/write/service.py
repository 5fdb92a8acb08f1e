"""The write API: created before the logs are opened, started after.

writes = Writes(data, logs)
writes.find_intents()         commits that an earlier process has begun
engine.open(...)
await writes.start(engine)    finish them in the background
... writes.routes(context) ...
await writes.stop()           before the engine is closed
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Final

from broker.base.logs import fields
from broker.base.units import SECOND
from broker.bulk import errors, limits
from broker.bulk.config import STAGED_FOLDER
from broker.bulk.errors import RefusedError
from broker.bulk.holds import RetentionHolds
from broker.bulk.write.commits import Commits
from broker.bulk.write.intents import Intent, survey
from broker.bulk.write.staging import Bounds, Staging
from broker.engine.names import is_ephemeral

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from broker.bulk.context import BulkContext, BulkRoute
    from broker.bulk.stats import BulkStats
    from broker.engine.engine import Engine
    from broker.engine.log.log import Log

log = logging.getLogger("broker.bulk")

WRITER_PROBLEM: Final = "writer"  # a kind of problem on /healthz


class Writes:
    """Staged blocks and commits of one data folder."""

    def __init__(self, data: Path, logs: Path, bounds: Bounds | None = None) -> None:
        self.logs = logs
        self.staging = Staging(data / STAGED_FOLDER, bounds)
        self.holds = RetentionHolds()
        self._intents: list[Intent] = []
        self.unknown: dict[str, str] = {}  # writers whose commits wait for an operator, and why
        self._uncertain: set[str] = set()
        self._engine: Engine | None = None
        self._commits: Commits | None = None
        self._open_log: Callable[[str], Log] | None = None
        self._housekeeper: asyncio.Task[None] | None = None

    @property
    def commits(self) -> Commits:
        """The commits. Call it only after `start`."""
        assert self._commits is not None
        return self._commits

    def find_intents(self) -> None:
        """Find the commits that an earlier process has begun. OSError."""
        root = self.staging.root
        self._intents, self.unknown = survey(root, self.logs, self._uncertain)
        for writer, reason in self.unknown.items():
            log.error("a writer cannot commit: %s", reason, extra=fields(writer=writer))

    async def start(self, engine: Engine) -> None:
        """Accept commits from now on, and finish those that have begun. OSError."""

        def open_log(name: str) -> Log:
            if name in engine.reserved:
                raise RefusedError(errors.BULK_STREAM, topic=name)
            return engine.open_log(name, is_ephemeral(name.encode()))

        self._open_log = open_log
        self._commits = Commits(
            self.staging, self._open_log, engine.log, self.holds.hold, engine.quarantined
        )
        for writer, reason in self.unknown.items():
            engine.shared.health.add(WRITER_PROBLEM, writer, reason)
        self._commits.unknown = self.unknown
        await self.staging.start()
        for path, reason in self.staging.problems:
            engine.shared.health.add("staged", path, reason)
        self._commits.start(self._intents, self._uncertain)
        self._engine = engine
        engine.watch(self._log_changed)
        self._housekeeper = asyncio.create_task(self._housekeeping())

    def _log_changed(self, name: str, cursor: str | None, made: bool) -> None:
        if made and cursor is None:
            self.commits.log_found(name)

    def routes(self, context: BulkContext) -> list[BulkRoute]:
        """The routes of the write API."""
        from broker.bulk.write.handlers import AppendHandlers, WriteHandlers

        assert self._open_log is not None
        pages = WriteHandlers(context, self.staging, self.commits)
        appends = AppendHandlers(context, self.staging, self._open_log)
        return [*pages.routes(), *appends.routes()]

    def count(self, stats: BulkStats) -> None:
        """Fill in the counters of staged blocks and commits."""
        stats.staged_bytes, stats.staged_attempts = self.staging.bytes, self.staging.files
        stats.commits, stats.commits_failed = self.commits.finished, self.commits.failed
        stats.committed_records = self.commits.records
        stats.commits_under_way = self.commits.pending

    async def _housekeeping(self) -> None:
        while True:
            try:
                await self.staging.expire(time.time_ns())
                await self.commits.forget_old(time.time_ns())
            except (OSError, RefusedError) as problem:
                log.error("expired staged blocks cannot be dropped: %s", problem)
            await asyncio.sleep(limits.STAGED_LOOK / SECOND)

    async def stop(self) -> None:
        """Accept no more commits; those that have begun are finished after the next start."""
        if self._engine is not None:
            self._engine.unwatch(self._log_changed)
            self._engine = None
        if self._housekeeper is not None:
            self._housekeeper.cancel()
            await asyncio.gather(self._housekeeper, return_exceptions=True)
        if self._commits is not None:
            await self._commits.stop()
        await asyncio.to_thread(self.staging.close)
