"""Blocks that are published at once: at least once, or each message id once within a window.

    POST /bulk/v1/append/{topic}             stored as the topic's sync says when it is answered
    POST /bulk/v1/append/{topic}?dedupe=1    without those whose Nats-Msg-Id the topic got lately

Whether it did is read from the log itself: it counts whoever published the message, and also before
a restart. What is remembered of that is bounded and can be dropped.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from broker.bulk import errors, limits
from broker.bulk.access import WRITE
from broker.bulk.app import BulkRoute
from broker.bulk.responses import RefusedError, answer, number
from broker.bulk.write.batches import HEADERS_BEGIN
from broker.bulk.write.feeding import log_refusal, wind
from broker.bulk.write.handlers import check_topic, read_block
from broker.bulk.write.staging import disk_refusal
from broker.engine.bulk.blocks import GOOD, Reel, check_block
from broker.engine.bulk.dedupe import Window
from broker.engine.log.publish import settled

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiohttp import web

    from broker.bulk.app import BulkDoor
    from broker.bulk.write.staging import Staging
    from broker.engine.log.log import Log

ID_HEADER: Final = b"Nats-Msg-Id"


class Known:
    """Which ids one topic got lately."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.window = Window(ID_HEADER, limits.DEDUPE_WINDOW, limits.DEDUPE_IDS_MAX)
        self.users = 0  # requests that are at it, or wait for the lock
        self.counted = 0  # ids that it stands for among those of all

    @property
    def weight(self) -> int:
        """Ids that its memory has room for, more or less: few take as much as some."""
        return max(self.window.size, limits.DEDUPE_IDS_MIN)


class AppendPages:
    """The handler."""

    def __init__(self, door: BulkDoor, staging: Staging, open_log: Callable[[str], Log]) -> None:
        self.door = door
        self.staging = staging
        self.open_log = open_log
        self._known: dict[str, Known] = {}
        self._ids = 0
        self._uploads = asyncio.Semaphore(limits.STAGED_UPLOADS_MAX)

    def routes(self) -> list[BulkRoute]:
        """Paths and what they do."""
        return [BulkRoute("POST", "/append/{topic}", self.append)]

    async def append(self, request: web.Request) -> web.StreamResponse:
        """Publish a block."""
        topic = request.match_info["topic"]
        self.door.caller(request).need(WRITE, topic)
        if self.door.engine.log(topic) is None:
            check_topic(topic)
        dedupe = number(request, "dedupe", 0, 0, 1)
        async with self._uploads:
            block = await read_block(request)
            wrong, count = await self.staging.run(check_block, block, topic.encode(), HEADERS_BEGIN)
            if wrong != GOOD:
                reason = errors.BULK_BLOCK_REASONS[wrong].format(number=count)
                raise RefusedError(errors.BULK_BLOCK, reason=reason)
            try:
                log = self.open_log(topic)
            except OSError as problem:
                raise disk_refusal(problem.errno or 0) from problem
            reel = await (self._dedupe if dedupe else self._append)(log, block)
        return answer(
            {
                "records": reel.records,
                "duplicates": reel.duplicates,
                "first": reel.first_seq or None,
                "last": reel.last_seq or None,
            }
        )

    async def _append(self, log: Log, block: bytearray, window: Window | None = None) -> Reel:
        reel = Reel(log, window=window)
        taken = await wind(reel, log, block)
        reason, error = log.refusal, log.last_error
        if reel.records:
            await settled(log, reel.last_ticket)
        if reel.failed:
            raise log_refusal(log, reel.failed)
        if not taken or log.deleted:
            raise log_refusal(log, error, reason)
        reel.stored()
        return reel

    async def _dedupe(self, log: Log, block: bytearray) -> Reel:
        known = self._known.pop(log.name, None) or Known()
        self._known[log.name] = known  # the last one used is the last one
        known.users += 1
        try:
            async with known.lock:
                return await self._append_once(known.window, log, block)
        finally:
            known.users -= 1
            self._bound(known)

    async def _append_once(self, window: Window, log: Log, block: bytearray) -> Reel:
        plan = window.look(log, limits.DEDUPE_READ_BYTES)
        try:
            if plan is not None:
                await self.staging.run(window.read, plan)
            return await self._append(log, block, window)
        except BaseException:
            window.reset(None)  # it knows ids that may not be there
            raise

    def _bound(self, used: Known) -> None:
        """Forget those used longest ago: they can be read anew. What somebody is at is not: there
        would be two that know nothing of each other."""
        self._ids += used.weight - used.counted
        used.counted = used.weight
        if self._ids <= limits.DEDUPE_IDS_ALL_MAX:
            return
        for name, known in list(self._known.items()):
            if self._ids <= limits.DEDUPE_IDS_ALL_MAX:
                break
            if not known.users:
                self._ids -= known.counted
                del self._known[name]
