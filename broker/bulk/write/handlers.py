"""Pages of the bulk door for those who write: staged blocks, commits. See docs/bulk-write.md."""

from __future__ import annotations

import asyncio
import re
import time
from typing import TYPE_CHECKING, Final

import msgspec

from broker.base.units import SECOND
from broker.bulk import errors, limits
from broker.bulk.access import WRITE
from broker.bulk.app import BulkRoute
from broker.bulk.read.topics import Pauses
from broker.bulk.responses import RefusedError, answer, from_json, number, read_json, wrong
from broker.engine.log.files import escape
from broker.protocols.nsq.wire import is_name
from broker.routing.local import shape

if TYPE_CHECKING:
    from aiohttp import web

    from broker.bulk.access import Caller
    from broker.bulk.app import BulkDoor
    from broker.bulk.write.batches import Key
    from broker.bulk.write.commits import Commits, Wanted
    from broker.bulk.write.staging import Staging
    from broker.bulk.write.writer import Writer

EPOCH_MAX: Final = 2**63 - 1
PART_MAX: Final = 2**31 - 1
_ATTEMPT: Final = re.compile(rf"[0-9A-Za-z_.-]{{1,{limits.ATTEMPT_NAME_MAX}}}")
_DIGITS: Final = re.compile("[0-9]{1,19}")
_CONTROL: Final = re.compile("[\0-\x20\x7f]")


class Named(msgspec.Struct):
    """The body of a commit."""

    topics: dict[str, msgspec.Raw]  # Attempts


Attempts = list[tuple[int, int | str, int]]  # part, name, bytes


class WritePages:
    """The handlers."""

    def __init__(self, door: BulkDoor, staging: Staging, commits: Commits) -> None:
        self.door = door
        self.staging = staging
        self.commits = commits
        self._uploads = asyncio.Semaphore(limits.STAGED_UPLOADS_MAX)

    def routes(self) -> list[BulkRoute]:
        """Paths and what they do."""
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
        caller = self.door.caller(request)
        caller.need(WRITE, topic)
        if self.door.engine.log(topic) is None:
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
        """What is known of a writer. RefusedError: a new one, and there is no room for it, or one
        that belongs to another token."""
        writer, most = await self.commits.writer(name), limits.WRITERS_MAX
        if not writer.remembered and self.commits.remembered >= most:
            reason = errors.BULK_WRITERS.format(limit=most)
            raise RefusedError(errors.BULK_STAGED_FULL, reason=reason)
        await self.commits.claim(writer, caller.owner)
        return writer

    async def commit(self, request: web.Request) -> web.StreamResponse:
        """Publish the attempts that the body names."""
        writer, epoch = writer_of(request), _number(request, "epoch", EPOCH_MAX)
        caller = self.door.caller(request)
        caller.need(WRITE)  # a body that names no topic binds the writer too
        wanted = await self._wanted(request)
        for topic in wanted:
            caller.need(WRITE, topic)
            if self.door.engine.log(topic) is None:
                check_topic(topic)
        await self._writer(writer, caller)
        return answer({"topics": await self.commits.commit(writer, epoch, wanted)})

    @staticmethod
    async def _wanted(request: web.Request) -> Wanted:
        limit = limits.COMMIT_BODY_BYTES_MAX
        named = (await read_json(request, Named, limit)).topics
        if len(named) > limits.COMMIT_TOPICS_MAX:
            limit = limits.COMMIT_TOPICS_MAX
            raise wrong("topics", errors.BULK_TOO_MANY.format(limit=limit))
        wanted: Wanted = {}
        count, pause = 0, Pauses()
        for topic, text in named.items():
            await pause.perhaps()  # very many attempts take a tenth of a second
            attempts = from_json(text, Attempts)
            count += len(attempts)
            if count > limits.COMMIT_ATTEMPTS_MAX:
                limit = limits.COMMIT_ATTEMPTS_MAX
                raise wrong("topics", errors.BULK_ATTEMPTS.format(limit=limit))
            wanted[topic] = [(part, attempt_of(str(name)), size) for part, name, size in attempts]
            if any(not 0 <= part <= PART_MAX or size < 0 for part, _, size in attempts):
                raise wrong("topics", errors.BULK_ATTEMPT)
        return wanted

    async def show(self, request: web.Request) -> web.StreamResponse:
        """What is known of a writer."""
        caller = self.door.caller(request)
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
                "expires_s": max(0, self._left_ns(batch.touched_ns) // SECOND),
            }
            for batch in self.staging.batches_of(name)
        }
        pending = None if writer.intent is None else writer.intent.epoch
        page = {"writer": name, "topics": topics, "committing": pending, "staged": staged}
        return answer({**page, "broken": writer.broken})

    def _left_ns(self, touched_ns: int) -> int:
        return touched_ns + self.staging.bounds.ttl_ns - time.time_ns()

    async def drop(self, request: web.Request) -> web.StreamResponse:
        """Drop what is staged for an epoch."""
        caller = self.door.caller(request)
        caller.need(WRITE)
        epoch = _number(request, "epoch", EPOCH_MAX)
        await self.commits.drop(
            writer_of(request), epoch, lambda topic: caller.need(WRITE, topic), caller.owner
        )
        return answer({})


def _number(request: web.Request, name: str, high: int) -> int:
    """A whole number in the path."""
    text = request.match_info[name]
    if not _DIGITS.fullmatch(text) or int(text) > high:
        raise wrong(name, errors.BULK_NUMBER.format(low=0, high=high, text=text))
    return int(text)


def writer_of(request: web.Request) -> str:
    """The name of the writer; RefusedError when no folder can have it."""
    name = request.match_info["writer"]
    if len(escape(name)) > limits.WRITER_NAME_BYTES_MAX:
        raise RefusedError(errors.BULK_NAME, what="a writer", name=name)
    return name


def attempt_of(name: str) -> str:
    """The name of an attempt."""
    if not _ATTEMPT.fullmatch(name):
        raise RefusedError(errors.BULK_NAME, what="an attempt", name=name)
    return name


def check_topic(name: str) -> None:
    """Can a topic be made that is called so? What NSQ or NATS takes as a name."""
    raw = name.encode("utf-8", "replace")
    good = is_name(raw) or (shape(raw) == 0 and not _CONTROL.search(name))
    if not good or "\ufffd" in name or len(escape(name)) > limits.WRITER_NAME_BYTES_MAX:
        raise RefusedError(errors.BULK_NAME, what="a topic", name=name)


async def read_block(request: web.Request) -> bytearray:
    """The body, which must not be longer than a block may be nor come too slowly: there are few
    places for those who upload. RefusedError."""
    limit = limits.STAGED_BLOCK_BYTES_MAX
    size = request.content_length
    if size is not None and size > limit:
        raise RefusedError(errors.BULK_BODY_BIG, limit=limit)
    block = bytearray()
    loop = asyncio.get_running_loop()
    begun, wait = loop.time(), limits.BULK_BODY_WAIT / SECOND
    while True:
        due = begun + wait + len(block) / limits.BULK_BODY_RATE
        try:
            async with asyncio.timeout_at(due):
                piece = await request.content.readany()
        except TimeoutError:
            seconds = round(due - begun)
            raise RefusedError(errors.BULK_BODY_SLOW, seconds=seconds) from None
        if not piece:
            return block
        if len(block) + len(piece) > limit:
            raise RefusedError(errors.BULK_BODY_BIG, limit=limit)
        block += piece
