"""Blocks that wait for their commit: one file for each attempt of a task.

    <data>/staged/<writer>/<epoch>/<topic>~<part>~<attempt>.blk

A file is a sequence of whole blocks; a block counts once it has been checked and is in the file as
a whole. Files of an earlier process are checked when they are first used; half a block at the end,
left by a crash, is cut off then.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from broker.base.durable import make_folder
from broker.base.durable import sync_path as sync_durable
from broker.base.logs import fields
from broker.base.values import dataclass
from broker.bulk import errors, limits
from broker.bulk.errors import RefusedError
from broker.engine.bulk.blocks import (
    BLOCK_HEAD_BYTES,
    GOOD,
    block_bytes,
    check_block,
    sync_path,
    write_at,
)
from broker.engine.log.files import escape, unescape

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

HEADERS_BEGIN: Final = b"NATS/1.0\r\n"
SUFFIX: Final = ".blk"
Key = tuple[str, int, str]  # topic, part, attempt


log = logging.getLogger("broker.bulk")
TRASH: Final = ".dropped-"
R = TypeVar("R")


@dataclass(slots=True)
class Attempt:
    """What one attempt of a task has uploaded for one topic."""

    size: int = 0
    checked: bool = True  # False: found at start and not checked yet
    sealed: bool = False  # named by a commit
    doubtful: bool = False  # a sync of the file has failed
    gone: bool = False  # dropped while a request waited for the lock
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class Batch:
    """What one writer has staged for one epoch."""

    def __init__(self, root: Path, writer: str, epoch: int) -> None:
        self.writer = writer
        self.epoch = epoch
        self.folder = root / escape(writer) / str(epoch)
        self.made = False
        self.attempts: dict[Key, Attempt] = {}
        self.blank: set[Key] = set()  # those that may have no block: there may be 200,000 others
        self.touched_ns = time.time_ns()
        self.busy = 0  # requests and commits that use it
        self.dropping: asyncio.Event | None = None

    @property
    def bytes(self) -> int:
        """Total size of its files."""
        return sum(attempt.size for attempt in self.attempts.values())

    def path(self, key: Key) -> Path:
        """The file of one attempt."""
        topic, part, attempt = key
        return self.folder / f"{escape(topic)}~{part}~{attempt}{SUFFIX}"


def key_of(name: str) -> Key | None:
    """The attempt whose file has this name, None: it is another file."""
    parts = name.removesuffix(SUFFIX).rsplit("~", 2)
    if not name.endswith(SUFFIX) or len(parts) != 3 or not parts[1].isdigit():
        return None
    return unescape(parts[0]), int(parts[1]), parts[2]


def remove_folder(folder: Path, trash: Path) -> None:
    """Remove a folder. It is renamed to `trash` first: its name may be used again at once."""
    try:
        folder.rename(trash)
    except FileNotFoundError:
        return
    from shutil import rmtree

    rmtree(trash, ignore_errors=True)


def remove_files(paths: list[Path]) -> None:
    """Remove these files, missing ones too."""
    for path in paths:
        path.unlink(missing_ok=True)


def is_there(path: Path, offset: int, block: bytearray) -> bool:
    """Whether the file has these bytes at the offset."""
    with path.open("rb") as file:
        file.seek(offset)
        step = limits.STAGED_READ_BYTES
        view = memoryview(block)
        return all(file.read(step) == view[at : at + step] for at in range(0, len(view), step))


def whole_blocks(path: Path, topic: bytes) -> int:
    """How many bytes at the start of a file are whole blocks; the rest is cut off."""
    good = 0
    with path.open("r+b") as file:
        size = file.seek(0, os.SEEK_END)
        while good < size:
            file.seek(good)
            length = block_bytes(file.read(BLOCK_HEAD_BYTES).ljust(BLOCK_HEAD_BYTES, b"\0"))
            if not 0 < length <= limits.STAGED_BLOCK_BYTES_MAX or good + length > size:
                break
            file.seek(good)
            if check_block(file.read(length), topic, HEADERS_BEGIN)[0] != GOOD:
                break
            good += length
        if good < size:
            file.truncate(good)
    return good


@dataclass(frozen=True, slots=True)
class Bounds:
    """How much may be staged, and for how long."""

    writer_bytes_max: int = limits.STAGED_WRITER_BYTES_MAX
    bytes_max: int = limits.STAGED_BYTES_MAX
    files_max: int = limits.STAGED_FILES_MAX
    disk_reserve: int = limits.STAGED_DISK_RESERVE
    ttl_ns: int = limits.STAGED_TTL


def disk_refusal(error: int) -> RefusedError:
    """The error for a file call that failed with this errno."""
    full = error in (errno.ENOSPC, errno.EDQUOT)
    kind = errors.BULK_NO_SPACE if full else errors.BULK_NOT_SAVED
    return RefusedError(kind, reason=os.strerror(error))


def renew(path: Path, topic: bytes, size: int) -> None:
    """Copy a file to a new one of that name: after a failed sync of the old one, a sync that
    succeeds proves nothing. OSError."""
    if whole_blocks(path, topic) < size:
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
    from shutil import copyfile

    fresh = path.with_suffix(".new")
    copyfile(path, fresh)
    sync_durable(fresh)
    fresh.replace(path)


class Staging:
    """All staged blocks."""

    def __init__(self, root: Path, bounds: Bounds | None = None) -> None:
        self.root = root
        self.bounds = bounds or Bounds()
        self.bytes = 0
        self.files = 0
        self.pool = ThreadPoolExecutor(limits.STAGED_THREADS, "twinwire-staged")
        self._root_known = False  # the folder's name is on the disk
        self.problems: list[tuple[str, str]] = []  # (path, why it could not be read)
        self._by_writer: dict[str, int] = {}
        self._batches: dict[tuple[str, int], Batch] = {}

    async def run(self, call: Callable[..., R], *args: object) -> R:
        """Run file work on a thread."""
        return await asyncio.get_running_loop().run_in_executor(self.pool, call, *args)

    # --- start and end

    async def start(self) -> None:
        """Find the files of an earlier process."""
        for batch in await self.run(self._found):
            self._batches[batch.writer, batch.epoch] = batch
            self._count(batch.writer, batch.bytes, len(batch.attempts))

    def _found(self) -> list[Batch]:
        found: list[Batch] = []
        try:
            self._name_root()
        except OSError as problem:  # no commit succeeds until it works
            self._report(self.root, problem)
        try:
            entries = list(self.root.iterdir())
        except FileNotFoundError:
            return found
        except OSError as problem:  # nothing can be staged until it works
            self._report(self.root, problem)
            return found
        for entry in entries:
            try:
                if entry.name.startswith(TRASH):
                    from shutil import rmtree

                    rmtree(entry, ignore_errors=True)
                elif not entry.name.startswith(".") and entry.is_dir():
                    found += self._batches_in(entry)
            except OSError as problem:
                self._report(entry, problem)
        return found

    def _batches_in(self, writer: Path) -> list[Batch]:
        found = []
        for path in writer.iterdir():
            if path.name.isdigit():
                try:
                    found.append(self._read(path))
                except OSError as problem:  # a commit of it is refused: it is not staged
                    self._report(path, problem)
        return found

    def _report(self, path: Path, problem: OSError) -> None:
        log.error("%s cannot be read: %s", path, problem)
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
        """The batches of a writer, by epoch."""
        return (batch for (name, _), batch in sorted(self._batches.items()) if name == writer)

    def batch(self, writer: str, epoch: int) -> Batch | None:
        """The batch of an epoch."""
        return self._batches.get((writer, epoch))

    async def lasting(self, writer: str, epoch: int) -> Batch | None:
        """The batch of an epoch, once a batch that is being dropped is gone."""
        while (batch := self._batches.get((writer, epoch))) and batch.dropping is not None:
            await batch.dropping.wait()
        return batch

    async def stage(self, writer: str, epoch: int, key: Key, offset: int, block: bytearray) -> int:
        """Add a block to an attempt at this offset; the attempt's size then. RefusedError."""
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
                batch.blank.add(key)
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
        """Forget attempts without a block, and the batch if nothing is left."""
        if batch.busy:
            return
        for key in batch.blank:
            attempt = batch.attempts.get(key)
            if attempt is not None and not attempt.size:
                del batch.attempts[key]
                self._count(batch.writer, 0, -1)
        batch.blank.clear()
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
                return  # a repeated upload: our first response was lost
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
        """Write a block; runs on a thread. 0 or an errno."""
        try:
            self.root.mkdir(exist_ok=True)
            disk = os.statvfs(self.root)
            # the commit needs the same space again
            if disk.f_bavail * disk.f_frsize < len(block) + staged + self.bounds.disk_reserve:
                return errno.ENOSPC
            if not batch.made:
                batch.folder.mkdir(parents=True, exist_ok=True)
                batch.made = True
        except OSError as problem:
            return problem.errno or errno.EIO
        return write_at(os.fsencode(batch.path(key)), offset, block)

    async def _look_at(self, batch: Batch, key: Key, attempt: Attempt) -> None:
        """Check a file that was found at start."""
        if attempt.checked:
            return
        try:
            good = await self.run(whole_blocks, batch.path(key), key[0].encode())
        except OSError as problem:
            raise disk_refusal(problem.errno or errno.EIO) from problem
        self._count(batch.writer, good - attempt.size, 0)
        attempt.size, attempt.checked = good, True
        if not good:
            batch.blank.add(key)

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
        """The attempts that are not staged with exactly the given size."""
        found = []
        for key, size in wanted:
            attempt = batch.attempts.get(key) if batch is not None else None
            if attempt is None or batch is None:
                pass
            elif attempt.lock.locked() or not attempt.checked:
                async with attempt.lock:
                    await self._look_at(batch, key, attempt)
            if (attempt.size if attempt is not None else 0) != size:
                found.append(key)
        return found

    def seal(self, batch: Batch, keys: Iterable[Key], sealed: bool) -> None:
        """Forbid or allow adding blocks to these attempts."""
        for key in keys:
            if key in batch.attempts:
                batch.attempts[key].sealed = sealed

    def sync(self, batch: Batch, keys: Iterable[Key]) -> None:
        """Sync attempts and the folders of their names; runs on a thread. OSError."""
        for key in keys:
            attempt, path = batch.attempts[key], batch.path(key)
            if attempt.doubtful:
                attempt.checked = False  # checked again at its next use
                renew(path, key[0].encode(), attempt.size)
            attempt.doubtful = True  # until its sync has succeeded
            self._sync(path)
            attempt.doubtful = False
        for path in (batch.folder, batch.folder.parent, self.root):
            self._sync(path)
        if not self._root_known:
            self._name_root()

    def _name_root(self) -> None:
        """Create the folder of all writers if it is missing, and sync its name. OSError."""
        make_folder(self.root)
        self._root_known = True

    @staticmethod
    def _sync(path: Path) -> None:
        error = sync_path(os.fsencode(path))
        if error:
            raise OSError(error, os.strerror(error), str(path))

    async def drop(self, batch: Batch, topics: Iterable[str] | None = None) -> None:
        """Remove the batch of an epoch, or only its attempts for these topics."""
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
            return  # dropped before; its folder may now be a new batch's
        batch.dropping = asyncio.Event()
        try:
            for attempt in list(batch.attempts.values()):
                async with attempt.lock:  # waits for an upload that is being written
                    attempt.gone = True
            trash = self.root / f"{TRASH}{os.urandom(16).hex()}"
            await self.run(remove_folder, batch.folder, trash)
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
        """Drop batches without an upload for the time to live."""
        for batch in list(self._batches.values()):
            if not batch.busy and batch.touched_ns + self.bounds.ttl_ns < now_ns:
                details = fields(writer=batch.writer, epoch=batch.epoch, bytes=batch.bytes)
                log.info("staged blocks have expired", extra=details)
                await self.drop(batch)
