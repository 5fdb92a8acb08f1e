"""Handlers of the write API (docs/reference/bulk-write.md).

    POST /tx/{writer}/{epoch}/{topic}/{part}/{attempt}   stage a block
    POST /tx/{writer}/{epoch}/commit                     publish staged blocks
    POST /append/{topic}             publish a block at once; stored as the topic's sync policy says
    POST /append/{topic}?dedupe=1    the same without records whose Nats-Msg-Id the topic received
    recently

Deduplication reads the ids from the log itself, so it covers messages of all publishers, and those
from before a restart. The ids in memory are bounded and can be dropped at any time.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from typing import TYPE_CHECKING, Final

import msgspec

from broker.base.logs import fields
from broker.base.units import SECOND
from broker.bulk import errors, limits
from broker.bulk.access import WRITE
from broker.bulk.context import BulkRoute
from broker.bulk.errors import RefusedError, wrong
from broker.bulk.responses import answer, caller_of, from_json, number, read_json
from broker.bulk.write.commits import append_all, log_refusal
from broker.bulk.write.staging import HEADERS_BEGIN, disk_refusal
from broker.engine.bulk.blocks import GOOD, Appender, check_block
from broker.engine.bulk.dedupe import Window
from broker.engine.log.files import escape
from broker.engine.log.publish import settled
from broker.engine.names import is_name
from broker.net.http.requests import client_address
from broker.routing.local import shape
from broker.runtime.pauses import Pauses

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiohttp import web

    from broker.bulk.access import Caller
    from broker.bulk.context import BulkContext
    from broker.bulk.write.commits import AttemptsByTopic, Commits, Writer
    from broker.bulk.write.staging import Key, Staging
    from broker.engine.log.log import Log

log = logging.getLogger("broker.bulk")

EPOCH_MAX: Final = 2**63 - 1
PART_MAX: Final = 2**31 - 1
_ATTEMPT: Final = re.compile(rf"[0-9A-Za-z_.-]{{1,{limits.ATTEMPT_NAME_MAX}}}")
_DIGITS: Final = re.compile("[0-9]{1,19}")
_CONTROL: Final = re.compile("[\0-\x20\x7f]")


Attempts = list[tuple[int, int | str, int]]  # part, name, bytes
ID_HEADER: Final = b"Nats-Msg-Id"


class CommitBody(msgspec.Struct):
    """The body of a commit."""

    topics: dict[str, msgspec.Raw]  # Attempts


class WriteHandlers:
    """Staged blocks and commits."""

    def __init__(self, context: BulkContext, staging: Staging, commits: Commits) -> None:
        self.context = context
        self.staging = staging
        self.commits = commits
        self._uploads = asyncio.Semaphore(limits.STAGED_UPLOADS_MAX)

    def routes(self) -> list[BulkRoute]:
        """Its routes."""
        return [
            BulkRoute("POST", "/tx/{writer}/{epoch}/{topic}/{part}/{attempt}", self.stage),
            BulkRoute("POST", "/tx/{writer}/{epoch}/commit", self.commit),
            BulkRoute("GET", "/tx/{writer}", self.show),
            BulkRoute("DELETE", "/tx/{writer}/{epoch}", self.drop),
        ]

    async def stage(self, request: web.Request) -> web.StreamResponse:
        """Add a block to an attempt."""
        writer, epoch = writer_of(request), _number(request, "epoch", EPOCH_MAX)
        topic, part = request.match_info["topic"], _number(request, "part", PART_MAX)
        caller = caller_of(request)
        caller.need(WRITE, topic)
        if self.context.engine.log(topic) is None:
            check_topic(topic)
        key: Key = (topic, part, attempt_of(request.match_info["attempt"]))
        offset = number(request, "offset", 0, 0, EPOCH_MAX)
        done = (await self._writer(writer, caller)).done.get(topic)
        async with self._uploads:
            block = await read_block(request)
            if done is not None and done.epoch >= epoch:
                return answer({"offset": offset + len(block), "state": "already"})
            have = await self.staging.stage(writer, epoch, key, offset, block)
        return answer({"offset": have, "state": "staged"})

    async def _writer(self, name: str, caller: Caller) -> Writer:
        """The state of a writer. RefusedError: it is new and there are too many, or it belongs to
        another token."""
        writer, most = await self.commits.writer(name), limits.WRITERS_MAX
        if not writer.has_file and self.commits.stored_writers >= most:
            reason = errors.BULK_WRITERS.format(limit=most)
            raise RefusedError(errors.BULK_STAGED_FULL, reason=reason)
        await self.commits.claim(writer, caller.owner)
        return writer

    async def commit(self, request: web.Request) -> web.StreamResponse:
        """Publish the attempts that the body lists."""
        writer, epoch = writer_of(request), _number(request, "epoch", EPOCH_MAX)
        caller = caller_of(request)
        caller.need(WRITE)  # required without topics, too, because the commit binds the writer
        topics = await self._read_attempts(request)
        for topic in topics:
            caller.need(WRITE, topic)
            if self.context.engine.log(topic) is None:
                check_topic(topic)
        await self._writer(writer, caller)
        return answer({"topics": await self.commits.commit(writer, epoch, topics)})

    @staticmethod
    async def _read_attempts(request: web.Request) -> AttemptsByTopic:
        limit = limits.COMMIT_BODY_BYTES_MAX
        named = (await read_json(request, CommitBody, limit)).topics
        if len(named) > limits.COMMIT_TOPICS_MAX:
            limit = limits.COMMIT_TOPICS_MAX
            raise wrong("topics", errors.BULK_TOO_MANY.format(limit=limit))
        topics: AttemptsByTopic = {}
        count, pauses = 0, Pauses(limits.BULK_STEP)
        for topic, text in named.items():
            await pauses.pause_if_step_over()  # 100,000 attempts take a tenth of a second
            attempts = from_json(text, Attempts)
            count += len(attempts)
            if count > limits.COMMIT_ATTEMPTS_MAX:
                limit = limits.COMMIT_ATTEMPTS_MAX
                raise wrong("topics", errors.BULK_ATTEMPTS.format(limit=limit))
            topics[topic] = [(part, attempt_of(str(name)), size) for part, name, size in attempts]
            if any(not 0 <= part <= PART_MAX or size < 0 for part, _, size in attempts):
                raise wrong("topics", errors.BULK_ATTEMPT)
        return topics

    async def show(self, request: web.Request) -> web.StreamResponse:
        """The state of a writer: its last commits, staged blocks, the pending commit."""
        caller = caller_of(request)
        caller.need(WRITE)
        name = writer_of(request)
        writer = await self.commits.writer(name)
        self.commits.check_owner(writer, caller.owner)
        topics = {
            topic: {
                "epoch": done.epoch,
                "records": done.records,
                "first": done.first,
                "last": done.last,
                "state": done.state,
            }
            for topic, done in writer.done.items()
            if caller.may(WRITE, topic)
        }
        staged = {
            str(batch.epoch): {
                "attempts": len(batch.attempts),
                "bytes": batch.bytes,
                "expires_s": max(0, self._remaining_ns(batch.touched_ns) // SECOND),
            }
            for batch in self.staging.batches_of(name)
        }
        pending = None if writer.intent is None else writer.intent.epoch
        page = {"writer": name, "topics": topics, "committing": pending, "staged": staged}
        return answer({**page, "broken": writer.broken})

    def _remaining_ns(self, touched_ns: int) -> int:
        return touched_ns + self.staging.bounds.ttl_ns - time.time_ns()

    async def drop(self, request: web.Request) -> web.StreamResponse:
        """Drop the staged blocks of an epoch."""
        caller = caller_of(request)
        caller.need(WRITE)
        epoch = _number(request, "epoch", EPOCH_MAX)
        writer = writer_of(request)
        await self.commits.drop(
            writer, epoch, lambda topic: caller.need(WRITE, topic), caller.owner
        )
        details = fields(
            writer=writer, epoch=epoch, owner=caller.owner, client=client_address(request)
        )
        log.info("staged blocks are dropped", extra=details)
        return answer({})


def _number(request: web.Request, name: str, high: int) -> int:
    """An integer in the path, from 0 to `high`. RefusedError."""
    text = request.match_info[name]
    if not _DIGITS.fullmatch(text) or int(text) > high:
        raise wrong(name, errors.BULK_NUMBER.format(low=0, high=high, text=text))
    return int(text)


def writer_of(request: web.Request) -> str:
    """The name of the writer. RefusedError: it is too long for the name of a folder."""
    name = request.match_info["writer"]
    if len(escape(name)) > limits.WRITER_NAME_BYTES_MAX:
        raise RefusedError(errors.BULK_NAME, what="a writer", name=name)
    return name


def attempt_of(name: str) -> str:
    """The name of an attempt, checked. RefusedError."""
    if not _ATTEMPT.fullmatch(name):
        raise RefusedError(errors.BULK_NAME, what="an attempt", name=name)
    return name


def check_topic(name: str) -> None:
    """RefusedError unless NSQ or NATS accepts this name for a new topic."""
    raw = name.encode("utf-8", "replace")
    good = is_name(raw) or (shape(raw) == 0 and not _CONTROL.search(name))
    good = good and "/" not in name  # as in the names of streams, which are not written to here
    if not good or "\ufffd" in name or len(escape(name)) > limits.WRITER_NAME_BYTES_MAX:
        raise RefusedError(errors.BULK_NAME, what="a topic", name=name)


async def read_block(request: web.Request) -> bytearray:
    """The body. RefusedError: it is longer than a block may be, or too slow. Slow bodies are
    refused because few clients can upload at once."""
    limit = limits.STAGED_BLOCK_BYTES_MAX
    size = request.content_length
    if size is not None and size > limit:
        raise RefusedError(errors.BULK_BODY_BIG, limit=limit)
    block = bytearray()
    loop = asyncio.get_running_loop()
    start, wait = loop.time(), limits.BULK_BODY_WAIT / SECOND
    while True:
        deadline = start + wait + len(block) / limits.BULK_BODY_RATE
        try:
            async with asyncio.timeout_at(deadline):
                piece = await request.content.readany()
        except TimeoutError:
            seconds = round(deadline - start)
            raise RefusedError(errors.BULK_BODY_SLOW, seconds=seconds) from None
        if not piece:
            return block
        if len(block) + len(piece) > limit:
            raise RefusedError(errors.BULK_BODY_BIG, limit=limit)
        block += piece


class RecentIds:
    """The message ids that one topic received recently."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.window = Window(ID_HEADER, limits.DEDUPE_WINDOW, limits.DEDUPE_IDS_MAX)
        self.users = 0  # requests that use it or wait for the lock
        self.counted = 0  # its `weight` as counted in the total

    @property
    def weight(self) -> int:
        """The number of ids to count for its memory, at least DEDUPE_IDS_MIN."""
        return max(self.window.size, limits.DEDUPE_IDS_MIN)


class AppendHandlers:
    """Blocks that are published at once."""

    def __init__(
        self, context: BulkContext, staging: Staging, open_log: Callable[[str], Log]
    ) -> None:
        self.context = context
        self.staging = staging
        self.open_log = open_log
        self._known: dict[str, RecentIds] = {}
        self._ids = 0
        self._uploads = asyncio.Semaphore(limits.STAGED_UPLOADS_MAX)

    def routes(self) -> list[BulkRoute]:
        """Its route."""
        return [BulkRoute("POST", "/append/{topic}", self.append)]

    async def append(self, request: web.Request) -> web.StreamResponse:
        """Publish a block."""
        topic = request.match_info["topic"]
        caller_of(request).need(WRITE, topic)
        if self.context.engine.log(topic) is None:
            check_topic(topic)
        dedupe = number(request, "dedupe", 0, 0, 1)
        async with self._uploads:
            block = await read_block(request)
            problem, count = await self.staging.run(
                check_block, block, topic.encode(), HEADERS_BEGIN
            )
            if problem != GOOD:
                reason = errors.BULK_BLOCK_REASONS[problem].format(number=count)
                raise RefusedError(errors.BULK_BLOCK, reason=reason)
            try:
                log = self.open_log(topic)
            except OSError as problem:
                raise disk_refusal(problem.errno or 0) from problem
            appender = await (self._dedupe if dedupe else self._append)(log, block)
        return answer(
            {
                "records": appender.records,
                "duplicates": appender.duplicates,
                "first": appender.first_seq or None,
                "last": appender.last_seq or None,
            }
        )

    async def _append(self, log: Log, block: bytearray, window: Window | None = None) -> Appender:
        appender = Appender(log, window=window)
        appended = await append_all(appender, log, block)
        reason, error = log.refusal, log.last_error
        if appender.records:
            await settled(log, appender.last_ticket)
        if appender.failed:
            raise log_refusal(log, appender.failed)
        if not appended or log.deleted:
            raise log_refusal(log, error, reason)
        appender.stored()
        return appender

    async def _dedupe(self, log: Log, block: bytearray) -> Appender:
        recent = self._known.pop(log.name, None) or RecentIds()
        self._known[log.name] = recent  # in order of use
        recent.users += 1
        try:
            async with recent.lock:
                return await self._append_once(recent.window, log, block)
        finally:
            recent.users -= 1
            self._bound(recent)

    async def _append_once(self, window: Window, log: Log, block: bytearray) -> Appender:
        plan = window.unread_views(log, limits.DEDUPE_READ_BYTES)
        try:
            if plan is not None:
                await self.staging.run(window.read, plan)
            return await self._append(log, block, window)
        except BaseException:
            window.reset(None)  # it may have ids of records that are not stored
            raise

    def _bound(self, used: RecentIds) -> None:
        """Drop the least recently used windows; they can be read from their logs again. A window in
        use is kept, because a second one for its topic would lack the ids that the first adds."""
        self._ids += used.weight - used.counted
        used.counted = used.weight
        if self._ids <= limits.DEDUPE_IDS_ALL_MAX:
            return
        for name, recent in list(self._known.items()):
            if self._ids <= limits.DEDUPE_IDS_ALL_MAX:
                break
            if not recent.users:
                self._ids -= recent.counted
                del self._known[name]
