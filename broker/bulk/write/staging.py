"""Staged blocks, which wait for their commit: one file for each attempt of a task.

    <data>/staged/<writer>/<epoch>/<topic>~<part>~<attempt>.blk

A file is a sequence of whole blocks. A block is checked before it is written. Files of an earlier
process are checked when they are first used; then a part of a block at the end, left by a crash, is
cut off.
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
    """The blocks that one attempt of a task has uploaded for one topic."""

    size: int = 0
    checked: bool = True  # False: found at start and not checked yet
    sealed: bool = False  # named by a commit
    unsynced: bool = False  # a sync of the file has failed
    dropped: bool = False  # dropped while a request waited for the lock
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class Batch:
    """The blocks that one writer has staged for one epoch."""

    def __init__(self, root: Path, writer: str, epoch: int) -> None:
        self.writer = writer
        self.epoch = epoch
        self.folder = root / escape(writer) / str(epoch)
        self.has_folder = False
        self.attempts: dict[Key, Attempt] = {}
        # Attempts that may have no block. They are listed because there may be 200,000 others.
        self.maybe_empty: set[Key] = set()
        self.touched_ns = time.time_ns()
        self.users = 0  # requests and commits that use it
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
    """The attempt whose file has this name; None for other files."""
    parts = name.removesuffix(SUFFIX).rsplit("~", 2)
    if not name.endswith(SUFFIX) or len(parts) != 3 or not parts[1].isdigit():
        return None
    return unescape(parts[0]), int(parts[1]), parts[2]


def remove_folder(folder: Path, trash: Path) -> None:
    """Remove a folder. It is renamed to `trash` first, because its name may be used again at
    once."""
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


def has_bytes(path: Path, offset: int, block: bytearray) -> bool:
    """Whether the file has these bytes at the offset."""
    with path.open("rb") as file:
        file.seek(offset)
        step = limits.STAGED_READ_BYTES
        view = memoryview(block)
        return all(file.read(step) == view[at : at + step] for at in range(0, len(view), step))


def truncate_to_blocks(path: Path, topic: bytes) -> int:
    """Cut off everything after the last whole block at the start of a file. Returns the size."""
    valid_bytes = 0
    with path.open("r+b") as file:
        size = file.seek(0, os.SEEK_END)
        while valid_bytes < size:
            file.seek(valid_bytes)
            length = block_bytes(file.read(BLOCK_HEAD_BYTES).ljust(BLOCK_HEAD_BYTES, b"\0"))
            if not 0 < length <= limits.STAGED_BLOCK_BYTES_MAX or valid_bytes + length > size:
                break
            file.seek(valid_bytes)
            if check_block(file.read(length), topic, HEADERS_BEGIN)[0] != GOOD:
                break
            valid_bytes += length
        if valid_bytes < size:
            file.truncate(valid_bytes)
    return valid_bytes


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits of staged bytes and files, and their time to live."""

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


def rewrite_file(path: Path, topic: bytes, size: int) -> None:
    """Replace a file by a synced copy, because after a failed sync a later one that succeeds does
    not prove that the file is on the disk. OSError."""
    if truncate_to_blocks(path, topic) < size:
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
    from shutil import copyfile

    new_path = path.with_suffix(".new")
    copyfile(path, new_path)
    sync_durable(new_path)
    new_path.replace(path)


class Staging:
    """All staged blocks."""

    def __init__(self, root: Path, bounds: Bounds | None = None) -> None:
        self.root = root
        self.bounds = bounds or Bounds()
        self.bytes = 0
        self.files = 0
        self.pool = ThreadPoolExecutor(limits.STAGED_THREADS, "twinwire-staged")
        self._root_synced = False  # the folder's name is on the disk
        self.problems: list[tuple[str, str]] = []  # (path, why it could not be read)
        self._by_writer: dict[str, int] = {}
        self._batches: dict[tuple[str, int], Batch] = {}

    async def run(self, call: Callable[..., R], *args: object) -> R:
        """Run file work on a thread."""
        return await asyncio.get_running_loop().run_in_executor(self.pool, call, *args)

    # --- start and end

    async def start(self) -> None:
        """Find the files of an earlier process."""
        for batch in await self.run(self._find_batches):
            self._batches[batch.writer, batch.epoch] = batch
            self._count(batch.writer, batch.bytes, len(batch.attempts))

    def _find_batches(self) -> list[Batch]:
        found: list[Batch] = []
        try:
            self._create_root()
        except OSError as problem:  # commits fail until the root can be synced
            self._report(self.root, problem)
        try:
            entries = list(self.root.iterdir())
        except FileNotFoundError:
            return found
        except OSError as problem:  # the files of an earlier process stay unknown
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
                except OSError as problem:  # a commit of it is refused as not staged
                    self._report(path, problem)
        return found

    def _report(self, path: Path, problem: OSError) -> None:
        log.error("%s cannot be read: %s", path, problem)
        self.problems.append((str(path), problem.strerror or str(problem)))

    def _read(self, folder: Path) -> Batch:
        batch = Batch(self.root, unescape(folder.parent.name), int(folder.name))
        batch.has_folder = True
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

    async def settled_batch(self, writer: str, epoch: int) -> Batch | None:
        """The batch of an epoch, after waiting for a batch that is being dropped."""
        while (batch := self._batches.get((writer, epoch))) and batch.dropping is not None:
            await batch.dropping.wait()
        return batch

    async def stage(self, writer: str, epoch: int, key: Key, offset: int, block: bytearray) -> int:
        """Add a block to an attempt at this offset; the attempt's size then. RefusedError."""
        problem, count = await self.run(check_block, block, key[0].encode(), HEADERS_BEGIN)
        if problem != GOOD:
            reason = errors.BULK_BLOCK_REASONS[problem].format(number=count)
            raise RefusedError(errors.BULK_BLOCK, reason=reason)
        batch = await self._open(writer, epoch)
        batch.users += 1
        try:
            attempt = batch.attempts.get(key)
            if attempt is None:
                if offset:
                    raise RefusedError(errors.BULK_OFFSET, {"offset": 0}, have=0)
                self._check_limits(writer, len(block), 1)
                attempt = batch.attempts[key] = Attempt()
                batch.maybe_empty.add(key)
                self._count(writer, 0, 1)
            async with attempt.lock:
                await self._add(batch, key, attempt, offset, block)
            return attempt.size
        finally:
            batch.users -= 1
            batch.touched_ns = time.time_ns()
            self._remove_empty(batch)

    async def _open(self, writer: str, epoch: int) -> Batch:
        batch = await self.settled_batch(writer, epoch)
        if batch is None:
            batch = self._batches[writer, epoch] = Batch(self.root, writer, epoch)
        return batch

    def _remove_empty(self, batch: Batch) -> None:
        """Remove attempts without a block, and the batch if it has no attempts and no folder."""
        if batch.users:
            return
        for key in batch.maybe_empty:
            attempt = batch.attempts.get(key)
            if attempt is not None and not attempt.size:
                del batch.attempts[key]
                self._count(batch.writer, 0, -1)
        batch.maybe_empty.clear()
        if not batch.attempts and not batch.has_folder:
            self._batches.pop((batch.writer, batch.epoch), None)

    async def _add(
        self, batch: Batch, key: Key, attempt: Attempt, offset: int, block: bytearray
    ) -> None:
        if attempt.dropped:
            raise RefusedError(errors.BULK_OFFSET, {"offset": 0}, have=0)
        await self._check_found(batch, key, attempt)
        facts: dict[str, object] = {"offset": attempt.size}
        if offset < attempt.size:
            if await self.run(has_bytes, batch.path(key), offset, block):
                return  # a repeated upload: the first response was lost
            raise RefusedError(errors.BULK_OTHER_BYTES, facts, have=attempt.size)
        if offset > attempt.size:
            raise RefusedError(errors.BULK_OFFSET, facts, have=attempt.size)
        if attempt.sealed:
            raise RefusedError(errors.BULK_COMMITTING, facts, epoch=batch.epoch)
        self._check_limits(batch.writer, len(block), 0)
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
            # `staged` is added because commits copy these bytes to the logs.
            if disk.f_bavail * disk.f_frsize < len(block) + staged + self.bounds.disk_reserve:
                return errno.ENOSPC
            if not batch.has_folder:
                batch.folder.mkdir(parents=True, exist_ok=True)
                batch.has_folder = True
        except OSError as problem:
            return problem.errno or errno.EIO
        return write_at(os.fsencode(batch.path(key)), offset, block)

    async def _check_found(self, batch: Batch, key: Key, attempt: Attempt) -> None:
        """Check a file that was found at start."""
        if attempt.checked:
            return
        try:
            valid_bytes = await self.run(truncate_to_blocks, batch.path(key), key[0].encode())
        except OSError as problem:
            raise disk_refusal(problem.errno or errno.EIO) from problem
        self._count(batch.writer, valid_bytes - attempt.size, 0)
        attempt.size, attempt.checked = valid_bytes, True
        if not valid_bytes:
            batch.maybe_empty.add(key)

    # --- limits

    def _check_limits(self, writer: str, size: int, files: int) -> None:
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
        writer_bytes = self._by_writer.get(writer, 0) + size
        if writer_bytes:
            self._by_writer[writer] = writer_bytes
        else:
            self._by_writer.pop(writer, None)

    # --- for commits

    async def mismatched(self, batch: Batch | None, wanted: Iterable[tuple[Key, int]]) -> list[Key]:
        """The attempts that are not staged with exactly the given size."""
        found = []
        for key, size in wanted:
            attempt = batch.attempts.get(key) if batch is not None else None
            if attempt is None or batch is None:
                pass
            elif attempt.lock.locked() or not attempt.checked:
                async with attempt.lock:
                    await self._check_found(batch, key, attempt)
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
            if attempt.unsynced:
                attempt.checked = False  # checked again at its next use
                rewrite_file(path, key[0].encode(), attempt.size)
            attempt.unsynced = True  # until its sync has succeeded
            self._sync(path)
            attempt.unsynced = False
        for path in (batch.folder, batch.folder.parent, self.root):
            self._sync(path)
        if not self._root_synced:
            self._create_root()

    def _create_root(self) -> None:
        """Create the folder of all writers if it is missing, and sync its name. OSError."""
        make_folder(self.root)
        self._root_synced = True

    @staticmethod
    def _sync(path: Path) -> None:
        error = sync_path(os.fsencode(path))
        if error:
            raise OSError(error, os.strerror(error), str(path))

    async def drop(self, batch: Batch, topics: Iterable[str] | None = None) -> None:
        """Remove the batch of an epoch, or only its attempts for these topics."""
        if topics is not None:
            names = set(topics)
            dropped = [key for key in batch.attempts if key[0] in names]
            if len(dropped) < len(batch.attempts):
                await self._drop_files(batch, dropped)
                return
        if batch.dropping is not None:
            await batch.dropping.wait()
            return
        if self.batch(batch.writer, batch.epoch) is not batch:
            return  # already dropped; its folder may be that of a new batch
        batch.dropping = asyncio.Event()
        try:
            for attempt in list(batch.attempts.values()):
                async with attempt.lock:  # waits for an upload that is being written
                    attempt.dropped = True
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
                attempt.dropped = True
                del batch.attempts[key]
                self._count(batch.writer, -attempt.size, -1)
        await self.run(remove_files, paths)

    async def expire(self, now_ns: int) -> None:
        """Drop batches without an upload for the time to live."""
        for batch in list(self._batches.values()):
            if not batch.users and batch.touched_ns + self.bounds.ttl_ns < now_ns:
                details = fields(writer=batch.writer, epoch=batch.epoch, bytes=batch.bytes)
                log.info("staged blocks have expired", extra=details)
                await self.drop(batch)
