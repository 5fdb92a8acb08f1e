"""Blocks that wait for their commit: one file for each attempt of a task.

    <data>/staged/<writer>/<epoch>/<topic>~<part>~<attempt>.blk

A block counts once it has been checked and is in the file as a whole. What the process left behind
is looked at when it is asked for again; half a block at the end of a file is cut off then.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import shutil
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

from broker.base.durable import make_folder
from broker.base.durable import sync_path as sync_durable
from broker.base.logs import fields
from broker.bulk import errors, limits
from broker.bulk.responses import RefusedError
from broker.bulk.write.batches import (
    HEADERS_BEGIN,
    Attempt,
    Batch,
    Key,
    is_there,
    key_of,
    remove_files,
    remove_folder,
    whole_blocks,
)
from broker.engine.bulk.blocks import GOOD, check_block, sync_path, write_at
from broker.engine.log.files import unescape

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

log = logging.getLogger("broker.bulk")

TRASH: Final = ".dropped-"
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Bounds:
    """How much may be staged, and for how long."""

    writer_bytes_max: int = limits.STAGED_WRITER_BYTES_MAX
    bytes_max: int = limits.STAGED_BYTES_MAX
    files_max: int = limits.STAGED_FILES_MAX
    disk_reserve: int = limits.STAGED_DISK_RESERVE
    ttl_ns: int = limits.STAGED_TTL


def disk_refusal(error: int) -> RefusedError:
    """What a file call that failed is answered with."""
    full = error in (errno.ENOSPC, errno.EDQUOT)
    kind = errors.BULK_NO_SPACE if full else errors.BULK_NOT_SAVED
    return RefusedError(kind, reason=os.strerror(error))


def renew(path: Path, topic: bytes, size: int) -> None:
    """Put what a file holds into a new one: a sync of the old one has failed, and another one that
    succeeds would say nothing. OSError."""
    if whole_blocks(path, topic) < size:
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
    fresh = path.with_suffix(".new")
    shutil.copyfile(path, fresh)
    sync_durable(fresh)
    fresh.replace(path)


class Staging:
    """All that is staged."""

    def __init__(self, root: Path, bounds: Bounds | None = None) -> None:
        self.root = root
        self.bounds = bounds or Bounds()
        self.bytes = 0
        self.files = 0
        self.pool = ThreadPoolExecutor(limits.STAGED_THREADS, "twinwire-staged")
        self.problems: list[tuple[str, str]] = []  # what could not be looked at, and why
        self._by_writer: dict[str, int] = {}
        self._batches: dict[tuple[str, int], Batch] = {}

    async def run(self, call: Callable[..., R], *args: object) -> R:
        """Do file work on a thread."""
        return await asyncio.get_running_loop().run_in_executor(self.pool, call, *args)

    # --- start and end

    async def start(self) -> None:
        """Find what an earlier process left."""
        for batch in await self.run(self._found):
            self._batches[batch.writer, batch.epoch] = batch
            self._count(batch.writer, batch.bytes, len(batch.attempts))

    def _found(self) -> list[Batch]:
        found: list[Batch] = []
        try:
            make_folder(self.root)
            entries = list(self.root.iterdir())
        except OSError as problem:  # nothing can be staged until it works
            self._tell(self.root, problem)
            return found
        for entry in entries:
            try:
                if entry.name.startswith(TRASH):
                    shutil.rmtree(entry, ignore_errors=True)
                elif not entry.name.startswith(".") and entry.is_dir():
                    found += self._batches_in(entry)
            except OSError as problem:
                self._tell(entry, problem)
        return found

    def _batches_in(self, writer: Path) -> list[Batch]:
        found = []
        for path in writer.iterdir():
            if path.name.isdigit():
                try:
                    found.append(self._read(path))
                except OSError as problem:  # a commit of it is refused: it is not staged
                    self._tell(path, problem)
        return found

    def _tell(self, path: Path, problem: OSError) -> None:
        log.error("%s cannot be looked at: %s", path, problem)
        self.problems.append((str(path), problem.strerror or str(problem)))

    def _read(self, folder: Path) -> Batch:
        batch = Batch(self.root, unescape(folder.parent.name), int(folder.name))
        batch.made = True
        batch.touched_ns = folder.stat().st_mtime_ns
        for path in folder.iterdir():
            key = key_of(path.name)
            if key is not None:
                state = path.stat()
                batch.attempts[key] = Attempt(state.st_size, checked=False)
                batch.touched_ns = max(batch.touched_ns, state.st_mtime_ns)
        return batch

    def close(self) -> None:
        """End the threads."""
        self.pool.shutdown(wait=True)

    # --- staging

    def batches_of(self, writer: str) -> Iterator[Batch]:
        """What a writer has staged, by epoch."""
        return (batch for (name, _), batch in sorted(self._batches.items()) if name == writer)

    def batch(self, writer: str, epoch: int) -> Batch | None:
        """What is staged for an epoch."""
        return self._batches.get((writer, epoch))

    async def lasting(self, writer: str, epoch: int) -> Batch | None:
        """The same; not one that is being dropped."""
        while (batch := self._batches.get((writer, epoch))) and batch.dropping is not None:
            await batch.dropping.wait()
        return batch

    async def stage(self, writer: str, epoch: int, key: Key, offset: int, block: bytearray) -> int:
        """Add a block to an attempt at this offset; how many bytes it has then. RefusedError."""
        wrong, count = await self.run(check_block, block, key[0].encode(), HEADERS_BEGIN)
        if wrong != GOOD:
            reason = errors.BULK_BLOCK_REASONS[wrong].format(number=count)
            raise RefusedError(errors.BULK_BLOCK, reason=reason)
        batch = await self._open(writer, epoch)
        batch.busy += 1
        try:
            attempt = batch.attempts.get(key)
            if attempt is None:
                if offset:
                    raise RefusedError(errors.BULK_OFFSET, {"offset": 0}, have=0)
                self._admit(writer, len(block), 1)
                attempt = batch.attempts[key] = Attempt()
                self._count(writer, 0, 1)
            async with attempt.lock:
                await self._add(batch, key, attempt, offset, block)
            return attempt.size
        finally:
            batch.busy -= 1
            batch.touched_ns = time.time_ns()
            self._forget_empty(batch)

    async def _open(self, writer: str, epoch: int) -> Batch:
        batch = await self.lasting(writer, epoch)
        if batch is None:
            batch = self._batches[writer, epoch] = Batch(self.root, writer, epoch)
        return batch

    def _forget_empty(self, batch: Batch) -> None:
        """What came to nothing is not remembered."""
        if batch.busy:
            return
        for key in [k for k, a in batch.attempts.items() if not a.size and not a.lock.locked()]:
            del batch.attempts[key]
            self._count(batch.writer, 0, -1)
        if not batch.attempts and not batch.made:
            self._batches.pop((batch.writer, batch.epoch), None)

    async def _add(
        self, batch: Batch, key: Key, attempt: Attempt, offset: int, block: bytearray
    ) -> None:
        if attempt.gone:
            raise RefusedError(errors.BULK_OFFSET, {"offset": 0}, have=0)
        await self._look_at(batch, key, attempt)
        facts: dict[str, object] = {"offset": attempt.size}
        if offset < attempt.size:
            if await self.run(is_there, batch.path(key), offset, block):
                return  # it came again because our answer was lost
            raise RefusedError(errors.BULK_OTHER_BYTES, facts, have=attempt.size)
        if offset > attempt.size:
            raise RefusedError(errors.BULK_OFFSET, facts, have=attempt.size)
        if attempt.sealed:
            raise RefusedError(errors.BULK_COMMITTING, facts, epoch=batch.epoch)
        self._admit(batch.writer, len(block), 0)
        self._count(batch.writer, len(block), 0)
        try:
            error = await self.run(self._write, batch, key, offset, block, self.bytes)
        except BaseException:
            self._count(batch.writer, -len(block), 0)
            raise
        if error:
            self._count(batch.writer, -len(block), 0)
            raise disk_refusal(error)
        attempt.size += len(block)

    def _write(self, batch: Batch, key: Key, offset: int, block: bytearray, staged: int) -> int:
        """On a thread; 0 or an errno."""
        try:
            self.root.mkdir(exist_ok=True)
            disk = os.statvfs(self.root)
            # the commit takes as much again
            if disk.f_bavail * disk.f_frsize < len(block) + staged + self.bounds.disk_reserve:
                return errno.ENOSPC
            if not batch.made:
                batch.folder.mkdir(parents=True, exist_ok=True)
                batch.made = True
        except OSError as problem:
            return problem.errno or errno.EIO
        return write_at(os.fsencode(batch.path(key)), offset, block)

    async def _look_at(self, batch: Batch, key: Key, attempt: Attempt) -> None:
        """See how much of a file that was found at start is whole."""
        if attempt.checked:
            return
        try:
            good = await self.run(whole_blocks, batch.path(key), key[0].encode())
        except OSError as problem:
            raise disk_refusal(problem.errno or errno.EIO) from problem
        self._count(batch.writer, good - attempt.size, 0)
        attempt.size, attempt.checked = good, True

    # --- limits

    def _admit(self, writer: str, size: int, files: int) -> None:
        bounds = self.bounds
        if self._by_writer.get(writer, 0) + size > bounds.writer_bytes_max:
            reason = errors.BULK_WRITER_BYTES.format(limit=bounds.writer_bytes_max)
        elif self.bytes + size > bounds.bytes_max:
            reason = errors.BULK_ALL_BYTES.format(limit=bounds.bytes_max)
        elif self.files + files > bounds.files_max:
            reason = errors.BULK_ALL_FILES.format(limit=bounds.files_max)
        else:
            return
        raise RefusedError(errors.BULK_STAGED_FULL, reason=reason)

    def _count(self, writer: str, size: int, files: int) -> None:
        self.bytes += size
        self.files += files
        of_writer = self._by_writer.get(writer, 0) + size
        if of_writer:
            self._by_writer[writer] = of_writer
        else:
            self._by_writer.pop(writer, None)

    # --- for commits

    async def unlike(self, batch: Batch | None, wanted: Iterable[tuple[Key, int]]) -> list[Key]:
        """Those of the attempts that are not staged with exactly so many bytes."""
        found = []
        for key, size in wanted:
            attempt = batch.attempts.get(key) if batch is not None else None
            if attempt is not None and batch is not None:
                async with attempt.lock:
                    await self._look_at(batch, key, attempt)
            if (attempt.size if attempt is not None else 0) != size:
                found.append(key)
        return found

    def seal(self, batch: Batch, keys: Iterable[Key], sealed: bool) -> None:
        """Let these attempts stay as they are, or no longer."""
        for key in keys:
            if key in batch.attempts:
                batch.attempts[key].sealed = sealed

    def sync(self, batch: Batch, keys: Iterable[Key]) -> None:
        """Bring attempts and their names onto the disk; on a thread. OSError."""
        for key in keys:
            attempt, path = batch.attempts[key], batch.path(key)
            if attempt.doubtful:
                attempt.checked = False  # whoever names it next sees how much of it reads
                renew(path, key[0].encode(), attempt.size)
            attempt.doubtful = True  # until its sync has succeeded
            self._sync(path)
            attempt.doubtful = False
        for path in (batch.folder, batch.folder.parent, self.root):
            self._sync(path)

    @staticmethod
    def _sync(path: Path) -> None:
        error = sync_path(os.fsencode(path))
        if error:
            raise OSError(error, os.strerror(error), str(path))

    async def drop(self, batch: Batch, topics: Iterable[str] | None = None) -> None:
        """Remove what is staged for an epoch, of these topics only if any are named."""
        if topics is not None:
            wanted = set(topics)
            gone = [key for key in batch.attempts if key[0] in wanted]
            if len(gone) < len(batch.attempts):
                await self._drop_files(batch, gone)
                return
        if batch.dropping is not None:
            await batch.dropping.wait()
            return
        if self.batch(batch.writer, batch.epoch) is not batch:
            return  # it went before; what has its folder now is another one
        batch.dropping = asyncio.Event()
        try:
            for attempt in list(batch.attempts.values()):
                async with attempt.lock:  # whoever adds to it has done so
                    attempt.gone = True
            await self.run(remove_folder, batch.folder, self.root / f"{TRASH}{uuid.uuid4().hex}")
            self._count(batch.writer, -batch.bytes, -len(batch.attempts))
            batch.attempts.clear()
            self._batches.pop((batch.writer, batch.epoch), None)
        except OSError as problem:
            details = fields(folder=str(batch.folder), reason=str(problem))
            log.error("staged blocks cannot be removed", extra=details)
        finally:
            batch.dropping.set()
            batch.dropping = None

    async def _drop_files(self, batch: Batch, keys: list[Key]) -> None:
        paths = [batch.path(key) for key in keys]
        for key in keys:
            attempt = batch.attempts[key]
            async with attempt.lock:
                attempt.gone = True
                del batch.attempts[key]
                self._count(batch.writer, -attempt.size, -1)
        await self.run(remove_files, paths)

    async def expire(self, now_ns: int) -> None:
        """Drop what nobody has added to for too long."""
        for batch in list(self._batches.values()):
            if not batch.busy and batch.touched_ns + self.bounds.ttl_ns < now_ns:
                details = fields(writer=batch.writer, epoch=batch.epoch, bytes=batch.bytes)
                log.info("staged blocks have expired", extra=details)
                await self.drop(batch)
