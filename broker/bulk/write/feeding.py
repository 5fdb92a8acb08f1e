"""Appending the staged blocks of one topic to its log, so slowly that live traffic goes on.

The next block is read and checked on a thread while the loop appends one. In each turn of the loop
goes so much, and no more than so much waits for the disk at a time.
"""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path
from typing import TYPE_CHECKING

from broker.bulk import errors, limits
from broker.bulk.responses import RefusedError
from broker.bulk.write.batches import HEADERS_BEGIN
from broker.engine.bulk.blocks import BLOCK_HEAD_BYTES, GOOD, Reel, block_bytes, check_block
from broker.engine.log.publish import settled
from broker.engine.log.sync import durable_next, sync_now, synced

if TYPE_CHECKING:
    from collections.abc import Iterable

    from broker.bulk.write.batches import Batch
    from broker.bulk.write.intents import Plan
    from broker.bulk.write.staging import Staging
    from broker.engine.log.log import Log

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.ENOBUFS})


class BrokenBlocksError(Exception):
    """What is to be committed does not read any more."""


class _Link:
    """What a log pauses while the disk is behind."""

    def __init__(self) -> None:
        self.resumed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def pause(self) -> None:
        """Nothing comes until resume anyway."""

    def resume(self) -> None:
        """A write is done."""
        if not self.resumed.done():
            self.resumed.set_result(None)


async def breathe(log: Log, ahead: int) -> None:
    """Let the turn of the loop end; wait for the disk while more than that waits for it."""
    await asyncio.sleep(0)
    while log.waiting_bytes > ahead and not log.deleted and log.folder is not None:
        link = _Link()
        log.stall(link)
        await link.resumed


async def wind(reel: Reel, log: Log, block: bytes | bytearray) -> bool:
    """Append a block, over several turns of the loop; False when the log refuses or a write fails.

    Nothing is appended behind records that are not there: they would be out of order.
    """
    reel.load(block)
    while True:
        more = reel.step(limits.COMMIT_TURN_BYTES)
        await breathe(log, limits.COMMIT_AHEAD_BYTES)
        if more < 0 or reel.failed:
            return False
        if more == 0:
            return True


def log_refusal(log: Log, error: int, reason: str = "") -> RefusedError:
    """What an append that failed is answered with."""
    kind = errors.BULK_TOPIC_FULL if error in _FULL else errors.BULK_NOT_STORED
    return RefusedError(kind, topic=log.name, reason=reason or os.strerror(error))


async def bring(log: Log) -> None:
    """Wait until what is in the log is on the disk, whatever its policy. RefusedError.

    The log syncs its files itself: it knows which ones must not be believed any more.
    """
    try:
        await synced(log)
    except OSError as problem:
        raise log_refusal(log, problem.errno or errno.EIO) from problem


class Blocks:
    """The blocks of some files, one after the other; read on a thread."""

    def __init__(self, files: Iterable[tuple[Path, int]], topic: str) -> None:
        self.files = list(files)
        self.topic = topic.encode()
        self.at = 0

    def read(self) -> bytes | None:
        """The next one, None at the end. BrokenBlocksError."""
        while self.files and self.at >= self.files[0][1]:
            self.files.pop(0)
            self.at = 0
        if not self.files:
            return None
        path, size = self.files[0]
        try:
            with path.open("rb") as file:
                file.seek(self.at)
                length = block_bytes(file.read(BLOCK_HEAD_BYTES).ljust(BLOCK_HEAD_BYTES, b"\0"))
                if not 0 < length <= min(size - self.at, limits.STAGED_BLOCK_BYTES_MAX):
                    raise BrokenBlocksError(f"{path}: no block at {self.at}")
                file.seek(self.at)
                block = file.read(length)
                # It was synced and is read for the last time: the log can have its memory.
                os.posix_fadvise(file.fileno(), self.at, length, os.POSIX_FADV_DONTNEED)
        except OSError as problem:
            raise BrokenBlocksError(str(problem)) from problem
        if check_block(block, self.topic, HEADERS_BEGIN)[0] != GOOD:
            raise BrokenBlocksError(f"{path}: the block at {self.at} does not read")
        self.at += length
        return block


class Feed:
    """One topic of a commit on its way into the log."""

    def __init__(self, staging: Staging, batch: Batch | None, topic: str, plan: Plan) -> None:
        self.staging = staging
        self.plan = plan
        files = []
        for part, attempt, size in plan.attempts:
            if batch is None:
                raise BrokenBlocksError(f"nothing is staged for {topic}")
            files.append((batch.path((topic, part, attempt)), size))
        self.blocks = Blocks(files, topic)
        self.log: Log | None = None
        self.reel: Reel | None = None

    @property
    def deleted(self) -> bool:
        """The topic went before it had everything."""
        return self.log is None or self.log.deleted

    @property
    def records(self) -> int:
        """Of the commit, for this topic."""
        return self.reel.number if self.reel is not None else 0

    @property
    def first(self) -> int | None:
        """The lowest seq of them."""
        return min(self._seqs(), default=None)

    @property
    def last(self) -> int | None:
        """The highest seq of them."""
        return max(self._seqs(), default=None)

    def _seqs(self) -> list[int]:
        found = [seq for seq in (self.plan.low, self.plan.high) if seq is not None]
        if self.reel is not None and self.reel.records:
            found += [self.reel.first_seq, self.reel.last_seq]
        return found

    async def append(self, log: Log, commit_id: bytes) -> None:
        """Append what the log does not have yet. RefusedError, BrokenBlocksError."""
        self.log = log
        self.reel = Reel(log, commit_id, self.plan.have)
        coming = asyncio.ensure_future(self.staging.run(self.blocks.read))
        try:
            while (block := await coming) is not None:
                coming = asyncio.ensure_future(self.staging.run(self.blocks.read))
                if not await wind(self.reel, log, block) and not log.deleted:
                    raise log_refusal(log, log.last_error, log.refusal)
                if log.deleted:
                    break
        finally:
            coming.cancel()

    async def quiet(self) -> None:
        """Wait until nothing of it is on its way, whatever becomes of it."""
        if self.log is not None and self.reel is not None and self.reel.records:
            await settled(self.log, self.reel.last_ticket)
            if self.log.folder is None and not self.deleted:
                # there are no files to look into, and nothing that was taken gets lost
                self.plan.learn([(0, self.reel.number)], self.reel.first_seq, self.reel.last_seq)

    async def settle(self) -> None:
        """Wait until the log has answered for everything. RefusedError."""
        await self.quiet()
        if self.log is not None and self.reel is not None and not self.deleted:
            error = self.reel.failed
            if error:
                raise log_refusal(self.log, error)

    async def sync(self) -> None:
        """Wait until all of it is on the disk. RefusedError."""
        if self.log is not None and not self.deleted:
            await bring(self.log)

    @property
    def is_shown(self) -> bool:
        """Readers are told of its records, or never will be."""
        log, last = self.log, self.last
        if log is None or last is None or log.deleted or log.last_error:
            return True
        return durable_next(log) > last


async def shown(feeds: Iterable[Feed]) -> None:
    """Wait until readers see what is on the disk: else who reads what he wrote finds nothing.

    They see what the log itself has synced, which has nothing left to do. No longer than a moment:
    what a commit promises is done.
    """
    left = [feed for feed in feeds if not feed.is_shown]
    for pause_s in limits.COMMIT_SHOWN_S:
        for feed in left:
            if feed.log is not None:
                sync_now(feed.log)
        left = [feed for feed in left if not feed.is_shown]
        if not left:
            return
        await asyncio.sleep(pause_s)


def folder_of(log: Log) -> Path:
    """Where a log of files has them."""
    assert log.folder is not None
    return Path(log.folder)
