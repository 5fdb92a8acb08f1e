"""Commits: the staged blocks of a writer's epoch are appended to the logs, exactly once.

    files and logs synced -> intent -> appended -> logs synced -> epoch stored -> answered

Before the intent is on the disk, the commit has no effect. After that it will be finished: by a
retry, by a later commit of the writer, or by the next start. Each record has the id of its commit
and its number in the commit, so a record that is already in its log is not appended again.

The rate of appends is limited, so that live traffic continues: a thread reads and checks the next
block while the loop appends one. Each turn of the loop appends a limited number of bytes, and a
limited number may wait for the disk.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakValueDictionary

from broker.base.logs import fields
from broker.base.units import SECOND
from broker.bulk import errors, limits
from broker.bulk.errors import RefusedError
from broker.bulk.write.intents import (
    COMMITTED,
    DELETED,
    VERSION,
    Done,
    Intent,
    IntentError,
    Plan,
    find_stored,
    forget_writer,
    intent_path,
    load_state,
    remove_intent,
    save_intent,
    save_state,
    writers_before,
)
from broker.bulk.write.staging import HEADERS_BEGIN, disk_refusal
from broker.engine.bulk.blocks import (
    BLOCK_HEAD_BYTES,
    COMMIT_ID_LEN,
    GOOD,
    Appender,
    block_bytes,
    check_block,
    remove_file,
)
from broker.engine.log.publish import settled

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Coroutine, Iterable, Iterator

    from broker.bulk.write.staging import Batch, Key, Staging
    from broker.engine.log.log import Log


_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.ENOBUFS})
log = logging.getLogger("broker.bulk")
Pages = dict[str, dict[str, object]]  # by topic
R = TypeVar("R")
AttemptsByTopic = dict[str, list[tuple[int, str, int]]]  # topic -> part, attempt, bytes


class Writer:
    """The state of one writer, and its pending commit."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.lock = asyncio.Lock()
        self.done: dict[str, Done] = {}
        self.owner: str | None = None  # the name of the only token that may use it
        self.has_file = False  # `done` and `owner` are in a file
        self.loaded = False  # that file has been read
        self.intent: Intent | None = None  # of a commit that is not finished
        self.unsaved = False  # the intent differs from its file
        self.broken: str | None = None  # why the commit cannot be finished
        self.batch: Batch | None = None  # the staged blocks that it appends
        self.retry: asyncio.TimerHandle | None = None


class BrokenBlocksError(Exception):
    """Staged blocks of a commit are missing or damaged."""


class _Publisher:
    """Represents commits among the publishers that a log pauses while the disk is slow."""

    def __init__(self) -> None:
        self.resumed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def pause(self) -> None:
        """Nothing to do: nothing is appended before `resume`."""

    def resume(self) -> None:
        """Called by the log when it accepts records again."""
        if not self.resumed.done():
            self.resumed.set_result(None)


async def end_turn(log: Log, ahead: int) -> None:
    """Let the turn of the loop end; wait while more than `ahead` bytes wait for the disk."""
    await asyncio.sleep(0)
    while log.waiting_bytes > ahead and not log.deleted and log.folder is not None:
        publisher = _Publisher()
        log.stall(publisher)
        await publisher.resumed


async def append_all(appender: Appender, log: Log, block: bytes | bytearray) -> bool:
    """Append a block over several turns of the loop; False: the log refuses, or a write failed.

    After a failed write nothing more is appended, so that records stay in order.
    """
    appender.load(block)
    while True:
        more = appender.step(limits.COMMIT_TURN_BYTES)
        await end_turn(log, limits.COMMIT_AHEAD_BYTES)
        if more < 0 or appender.failed:
            return False
        if more == 0:
            return True


def log_refusal(log: Log, error: int, reason: str = "") -> RefusedError:
    """The error for an append that failed with this errno."""
    kind = errors.BULK_TOPIC_FULL if error in _FULL else errors.BULK_NOT_STORED
    return RefusedError(kind, topic=log.name, reason=reason or os.strerror(error))


async def sync_log(log: Log) -> None:
    """Wait until all records of the log are on the disk, whatever its sync policy. RefusedError.

    The log syncs its files itself: it knows which ones had a failed sync.
    """
    try:
        await log.sync.synced()
    except OSError as problem:
        raise log_refusal(log, problem.errno or errno.EIO) from problem


class Blocks:
    """The blocks of some files in order, read on a thread."""

    def __init__(self, files: Iterator[tuple[Path, int]], topic: str) -> None:
        """`files`: paths and sizes, iterated on that thread, because there may be 100,000."""
        self.files = files
        self.topic = topic.encode()
        self.file: tuple[Path, int] | None = None
        self.at = 0

    def read(self) -> bytes | None:
        """The next block, None at the end. BrokenBlocksError."""
        while self.file is None or self.at >= self.file[1]:
            self.file = next(self.files, None)
            self.at = 0
            if self.file is None:
                return None
        path, size = self.file
        try:
            with path.open("rb") as file:
                file.seek(self.at)
                length = block_bytes(file.read(BLOCK_HEAD_BYTES).ljust(BLOCK_HEAD_BYTES, b"\0"))
                if not 0 < length <= min(size - self.at, limits.STAGED_BLOCK_BYTES_MAX):
                    raise BrokenBlocksError(f"{path}: no block at {self.at}")
                file.seek(self.at)
                block = file.read(length)
                # The file is synced and will not be read again, so its pages are released.
                os.posix_fadvise(file.fileno(), self.at, length, os.POSIX_FADV_DONTNEED)
        except OSError as problem:
            raise BrokenBlocksError(str(problem)) from problem
        if check_block(block, self.topic, HEADERS_BEGIN)[0] != GOOD:
            raise BrokenBlocksError(f"{path}: the block at {self.at} is damaged")
        self.at += length
        return block


class Feed:
    """The part of a commit for one topic."""

    def __init__(self, staging: Staging, batch: Batch | None, topic: str, plan: Plan) -> None:
        self.staging = staging
        self.plan = plan
        if batch is None and plan.attempts:
            raise BrokenBlocksError(f"nothing is staged for {topic}")
        self.blocks = Blocks(self._files(batch, topic), topic)
        self.log: Log | None = None
        self.appender: Appender | None = None

    def _files(self, batch: Batch | None, topic: str) -> Iterator[tuple[Path, int]]:
        if batch is not None:
            for part, attempt, size in self.plan.attempts:
                yield batch.path((topic, part, attempt)), size

    @property
    def deleted(self) -> bool:
        """Whether the topic was deleted before it had all records."""
        return self.log is None or self.log.deleted

    @property
    def records(self) -> int:
        """How many records the commit has for this topic."""
        return self.appender.number if self.appender is not None else 0

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
        if self.appender is not None and self.appender.records:
            found += [self.appender.first_seq, self.appender.last_seq]
        return found

    async def append(self, log: Log, commit_id: bytes) -> None:
        """Append the records that the log does not have yet. RefusedError, BrokenBlocksError."""
        self.log = log
        self.appender = Appender(log, commit_id, self.plan.have)
        next_block = asyncio.ensure_future(self.staging.run(self.blocks.read))
        try:
            while (block := await next_block) is not None:
                next_block = asyncio.ensure_future(self.staging.run(self.blocks.read))
                if not await append_all(self.appender, log, block) and not log.deleted:
                    raise log_refusal(log, log.last_error, log.refusal)
                if log.deleted:
                    break
        finally:
            next_block.cancel()

    async def wait_appended(self) -> None:
        """Wait until every append has ended, with success or not."""
        if self.log is not None and self.appender is not None and self.appender.records:
            await settled(self.log, self.appender.last_ticket)
            if self.log.folder is None and not self.deleted:
                # A log in memory has no files to search. It has all records that it accepted.
                self.plan.add_stored(
                    [(0, self.appender.number)], self.appender.first_seq, self.appender.last_seq
                )

    async def check_appended(self) -> None:
        """Wait until every append has ended. RefusedError: one has failed."""
        await self.wait_appended()
        if self.log is not None and self.appender is not None and not self.deleted:
            error = self.appender.failed
            if error:
                raise log_refusal(self.log, error)

    async def sync(self) -> None:
        """Wait until all records are on the disk. RefusedError."""
        if self.log is not None and not self.deleted:
            await sync_log(self.log)

    @property
    def is_readable(self) -> bool:
        """Whether readers can read its records, or never will be able to."""
        log, last = self.log, self.last
        if log is None or last is None or log.deleted or log.last_error:
            return True
        return log.sync.durable_next > last


async def wait_readable(feeds: Iterable[Feed]) -> None:
    """Wait until readers can read the records, so that a client can read what it has committed.

    Readers get records that the log knows to be synced. The wait is short and limited, because the
    commit itself is already durable.
    """
    unreadable = [feed for feed in feeds if not feed.is_readable]
    for pause_s in limits.COMMIT_SHOWN_S:
        for feed in unreadable:
            if feed.log is not None:
                feed.log.sync.now()
        unreadable = [feed for feed in unreadable if not feed.is_readable]
        if not unreadable:
            return
        await asyncio.sleep(pause_s)


def folder_of(log: Log) -> Path:
    """The folder of a log that has files."""
    assert log.folder is not None
    return Path(log.folder)


class Commits:
    """The commits of all writers."""

    def __init__(
        self,
        staging: Staging,
        open_log: Callable[[str], Log],
        find_log: Callable[[str], Log | None],
        hold_from: Callable[[Log, object, int | None], object],
        quarantined: Container[str] = (),
    ) -> None:
        """`open_log` finds or creates a log. `hold(log, owner, seq)` keeps records for retention.
        `quarantined`: names of logs that could not be opened, always current."""
        self.staging = staging
        self.root: Path = staging.root  # the folder of everything staged
        self.open_log = open_log
        self.find_log = find_log
        self.hold_from = hold_from
        self.quarantined = quarantined
        self.writers: dict[str, Writer] = {}
        self.unknown: dict[str, str] = {}  # writers that cannot commit until the next start: why
        self._used: WeakValueDictionary[str, Writer] = WeakValueDictionary()  # by requests
        self.stopping = False
        self.stored_writers = 0  # writers with a file, when they were last counted
        self.finished = self.failed = self.records = 0  # since the start
        self._slots = asyncio.Semaphore(limits.COMMITS_MAX)
        self._tasks: set[asyncio.Task[Any]] = set()

    @property
    def pending(self) -> int:
        """Commits that have begun and are not finished, including those that wait for a retry."""
        return sum(writer.intent is not None for writer in self.writers.values())

    # --- start and end

    def start(self, intents: list[Intent], uncertain: Container[str] = ()) -> None:
        """Finish these commits in the background; `intents` and `uncertain` as `survey` returned
        them. Commits of `unknown` writers are not finished, but their logs and blocks are kept."""
        for intent in intents:
            writer = self.writers.setdefault(intent.writer, Writer(intent.writer))
            self._set_pending(writer, intent)
            for topic, plan in intent.topics.items():
                self._lower_first(topic, plan)
            writer.unsaved = True
            if intent.writer not in self.unknown:
                self._spawn(self._finish_later(writer, surveyed=intent.writer not in uncertain))

    def _lower_first(self, topic: str, plan: Plan) -> None:
        entry = self._log_of(topic, plan)
        if entry is not None:
            # After a power cut the log may have lost its end and use those seqs again.
            plan.first = min(plan.first, entry.visible)

    def log_found(self, topic: str) -> None:
        """A log was created or has left the quarantine: hold records for pending commits."""
        for writer in self.writers.values():
            if writer.intent is not None and topic in writer.intent.topics:
                self._lower_first(topic, writer.intent.topics[topic])
                self._hold(writer.intent, held=True)

    async def stop(self) -> None:
        """Stop; commits that have begun are finished after the next start."""
        self.stopping = True
        for writer in self.writers.values():
            if writer.retry is not None:
                writer.retry.cancel()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _spawn(self, work: Coroutine[Any, Any, R]) -> asyncio.Task[R]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # retrieved: it was raised to the waiting request, or logged

    # --- requests

    async def writer(self, name: str) -> Writer:
        """The writer, with its stored state. RefusedError."""
        if name in self.unknown:
            raise RefusedError(errors.BULK_STATE, reason=self.unknown[name])
        writer = self.writers.pop(name, None) or self._used.get(name) or Writer(name)
        self.writers[name] = self._used[name] = writer  # `writers` is in order of use
        if not writer.loaded:
            try:
                state = await self.staging.run(load_state, self.root, name)
            except (IntentError, OSError) as problem:
                raise RefusedError(errors.BULK_STATE, reason=problem) from problem
            if not writer.loaded:
                writer.loaded = True
                if state is not None:
                    writer.done, writer.owner = state.topics, state.owner
                    writer.has_file = True
        for old in list(self.writers.values())[: -limits.WRITERS_KEPT]:
            if not old.lock.locked() and old.intent is None and old is not writer:
                del self.writers[old.name]
        return writer

    async def claim(self, writer: Writer, owner: str | None) -> None:
        """Bind a writer to the first token that uses it. RefusedError: it is bound to another.

        Otherwise any caller that may write the topic could commit as this writer with the highest
        epoch, and all later commits of the real writer would be answered as already done. The owner
        is stored before anything else of the writer. `owner` None: tokens are not configured, and
        the writer is not bound.
        """
        if owner is None:
            return
        if writer.owner is None:
            async with writer.lock:
                if writer.owner is None:
                    await self._save_state(writer, writer.done, owner)
        self.check_owner(writer, owner)

    @staticmethod
    def check_owner(writer: Writer, owner: str | None) -> None:
        """RefusedError: the writer belongs to another token."""
        if owner is not None and writer.owner not in (None, owner):
            raise RefusedError(errors.BULK_OWNER, writer=writer.name, name=owner)

    async def _save_state(self, writer: Writer, done: dict[str, Done], owner: str | None) -> None:
        await self._disk(save_state, self.root, writer.name, done, owner)
        self.stored_writers += not writer.has_file
        writer.done, writer.owner, writer.has_file = done, owner, True

    async def commit(self, name: str, epoch: int, topics: AttemptsByTopic) -> Pages:
        """Commit these attempts; returns the outcome for each topic. RefusedError.

        The commit continues if the request is cancelled.
        """
        if self.stopping:
            raise RefusedError(errors.BULK_STOPPING)
        for topic, attempts in topics.items():
            for part, count in Counter(part for part, _, _ in attempts).most_common(1):
                if count > 1:
                    raise RefusedError(errors.BULK_SAME_PART, part=part, topic=topic)
        return await asyncio.shield(self._spawn(self._commit(name, epoch, topics)))

    async def _commit(self, name: str, epoch: int, topics: AttemptsByTopic) -> Pages:
        writer = await self.writer(name)
        async with writer.lock:
            if writer.intent is not None:
                await self._finish(writer)
            before = {t: writer.done[t] for t in topics if self._is_done(writer, t, epoch)}
            new_topics = {topic: topics[topic] for topic in topics if topic not in before}
            if new_topics:
                await self._begin(writer, epoch, new_topics)
                await self._finish(writer, stored_known=True)
            found: Pages = {}
            for topic in topics:
                done = before.get(topic, writer.done[topic])
                found[topic] = done.page(epoch, "already" if topic in before else done.state)
            return found

    @staticmethod
    def _is_done(writer: Writer, topic: str, epoch: int) -> bool:
        return topic in writer.done and writer.done[topic].epoch >= epoch

    async def drop(
        self, name: str, epoch: int, check: Callable[[str], None], owner: str | None = None
    ) -> None:
        """Drop the staged blocks of an epoch, and a commit of it that cannot be finished."""
        writer = await self.writer(name)
        async with writer.lock:
            self.check_owner(writer, owner)
            batch = self.staging.batch(name, epoch)
            for topic in {key[0] for key in batch.attempts} if batch is not None else ():
                check(topic)
            if writer.intent is not None and writer.intent.epoch == epoch:
                for topic in writer.intent.topics:
                    check(topic)
                if writer.broken is None:
                    raise RefusedError(errors.BULK_COMMITTING, epoch=epoch)
                await self._disk(remove_intent, self.root, name)
                self._release(writer)
            if batch is not None:
                await self.staging.drop(batch)

    async def forget_old(self, now_ns: int) -> None:
        """Drop the state of writers without a commit for WRITER_TTL, and count the others."""
        before_ns = now_ns - limits.WRITER_TTL
        names, count = await self.staging.run(writers_before, self.root, before_ns)
        for name in names:
            try:
                writer = await self.writer(name)
            except RefusedError:  # its state is unreadable: an operator has to handle it
                continue
            async with writer.lock:
                if writer.intent is None and await self.staging.run(
                    forget_writer, self.root, name, before_ns
                ):
                    self.writers.pop(name, None)
                    # Requests that use this object continue with a writer without state.
                    writer.done, writer.owner, writer.has_file = {}, None, False
                    count -= 1
        self.stored_writers = count

    # --- the beginning

    async def _begin(self, writer: Writer, epoch: int, topics: AttemptsByTopic) -> None:
        batch = await self.staging.settled_batch(writer.name, epoch)
        sizes: dict[Key, int] = {
            (topic, part, attempt): size
            for topic, attempts in topics.items()
            for part, attempt, size in attempts
        }
        if batch is not None:
            self.staging.seal(batch, sizes, sealed=True)
            batch.users += 1
        intent = Intent(VERSION, writer.name, epoch, os.urandom(COMMIT_ID_LEN).hex(), {})
        try:
            mismatched = await self.staging.mismatched(batch, sizes.items())
            if mismatched:
                facts: dict[str, object] = {"missing": mismatched[: limits.COMMIT_MISSING_SHOWN]}
                raise RefusedError(errors.BULK_NOT_STAGED, facts, count=len(mismatched))
            if batch is not None:
                await self._disk(self.staging.sync, batch, [k for k in sizes if sizes[k]])
            await self._plan(intent, topics)
            await self._save_intent(intent)
        except BaseException:
            self.failed += 1
            self._hold(intent, held=False)
            if batch is not None:
                self.staging.seal(batch, sizes, sealed=False)
            raise
        finally:
            if batch is not None:
                batch.users -= 1
        self._set_pending(writer, intent)

    async def _plan(self, intent: Intent, topics: AttemptsByTopic) -> None:
        for topic, attempts in topics.items():
            try:
                entry = self.open_log(topic)
            except OSError as problem:
                raise disk_refusal(problem.errno or errno.EIO) from problem
            if entry.last_error:
                raise RefusedError(
                    errors.BULK_NOT_STORED, topic=topic, reason=os.strerror(entry.last_error)
                )
            named = sorted(one for one in attempts if one[2])
            intent.topics[topic] = Plan(entry.log_id.hex(), entry.visible, named)
            self.hold_from(entry, intent.id, entry.visible)
            # Synced, because an intent must not name a log that a power cut can remove.
            await sync_log(entry)

    async def _save_intent(self, intent: Intent) -> None:
        try:
            await self._disk(save_intent, self.root, intent)
        except RefusedError:
            path = os.fsencode(intent_path(self.root, intent.writer))
            await self.staging.run(remove_file, path)  # the failed call may have created it
            raise

    def _set_pending(self, writer: Writer, intent: Intent) -> None:
        """Make this the writer's pending commit, and hold its batch and its records."""
        writer.intent, writer.broken = intent, None
        writer.batch = self.staging.batch(writer.name, intent.epoch)
        if writer.batch is not None:
            writer.batch.users += 1
        self._hold(intent, held=True)

    def _release(self, writer: Writer) -> None:
        assert writer.intent is not None
        self._hold(writer.intent, held=False)
        if writer.batch is not None:
            writer.batch.users -= 1
        writer.intent = writer.batch = writer.broken = None
        writer.unsaved = False

    def _hold(self, intent: Intent, *, held: bool) -> None:
        for topic, plan in intent.topics.items():
            entry = self._log_of(topic, plan)
            if entry is not None:
                self.hold_from(entry, intent.id, min(plan.first, entry.visible) if held else None)

    def _log_of(self, topic: str, plan: Plan) -> Log | None:
        """The log of the commit: that with this name and incarnation."""
        entry = self.find_log(topic)
        matches = entry is not None and not entry.deleted and entry.log_id.hex() == plan.log_id
        return entry if matches else None

    # --- the end

    async def _finish_later(self, writer: Writer, *, surveyed: bool = False) -> None:
        """Finish a pending commit, in the background."""
        try:
            await self.writer(writer.name)
            async with writer.lock:
                if writer.intent is None or writer.broken is not None:
                    return
                await self._finish(writer, stored_known=surveyed)
        except RefusedError as refusal:
            details = fields(writer=writer.name, reason=refusal.text)
            log.error("a commit cannot be finished now", extra=details)

    def _schedule_retry(self, writer: Writer) -> None:
        """Schedule a retry, instead of one that is scheduled already."""
        if writer.retry is not None:
            writer.retry.cancel()
        if not self.stopping:
            wait, loop = limits.COMMIT_RETRY / SECOND, asyncio.get_running_loop()
            writer.retry = loop.call_later(wait, lambda: self._spawn(self._finish_later(writer)))

    async def _finish(self, writer: Writer, *, stored_known: bool = False) -> None:
        """Finish the commit that has begun. `stored_known`: its plans contain the records that the
        logs have. RefusedError: a retry is scheduled.
        """
        intent = writer.intent
        assert intent is not None
        try:
            async with self._slots:
                await self._append_and_store(writer, intent, stored_known)
        except BrokenBlocksError as problem:
            self.failed += 1
            writer.broken, epoch = str(problem), intent.epoch
            details = fields(writer=writer.name, reason=writer.broken)
            log.error("a commit cannot be finished", extra=details)
            raise RefusedError(errors.BULK_BROKEN, epoch=epoch, reason=problem) from problem
        except RefusedError:
            self.failed += 1
            self._schedule_retry(writer)
            raise

    async def _append_and_store(self, writer: Writer, intent: Intent, stored_known: bool) -> None:
        if writer.unsaved:
            await self._disk(save_intent, self.root, intent)
            writer.unsaved = False
        if not stored_known:
            await self._find_stored(writer, intent)
        for topic in intent.topics:
            if topic in self.quarantined and not self._is_done(writer, topic, intent.epoch):
                raise RefusedError(errors.BULK_QUARANTINED, topic=topic)
        feeds: dict[str, Feed] = {}
        try:
            for topic, plan in intent.topics.items():
                if self._is_done(writer, topic, intent.epoch):
                    continue
                feeds[topic] = Feed(self.staging, writer.batch, topic, plan)
                entry = self._log_of(topic, plan)
                if entry is not None:
                    await feeds[topic].append(entry, bytes.fromhex(intent.id))
        finally:
            for feed in feeds.values():
                await feed.wait_appended()
        done = dict(writer.done)
        for topic, feed in feeds.items():
            await feed.check_appended()
            await feed.sync()
            state = DELETED if feed.deleted else COMMITTED
            done[topic] = Done(intent.epoch, feed.records, feed.first, feed.last, state)
        await wait_readable(feeds.values())
        if feeds:
            await self._save_state(writer, done, writer.owner)
        await self._disk(remove_intent, self.root, writer.name)
        self.finished += 1
        self.records += sum(feed.records for feed in feeds.values())
        batch, topics = writer.batch, list(intent.topics)
        self._release(writer)
        if batch is not None:
            self._spawn(self.staging.drop(batch, topics))

    async def _find_stored(self, writer: Writer, intent: Intent) -> None:
        """Find the records of an earlier attempt that the logs have."""
        if writer.broken is not None:
            raise BrokenBlocksError(writer.broken)
        for topic, plan in intent.topics.items():
            entry = self._log_of(topic, plan)
            if entry is not None and entry.folder is not None:
                await sync_log(entry)  # records that are taken as stored must be durable
                ends = {segment.first_seq: segment.planned for segment in entry.segments}
                await self._disk(
                    find_stored, plan, folder_of(entry), bytes.fromhex(intent.id), ends
                )

    async def _disk(self, call: Callable[..., object], *args: object) -> None:
        """File work on a thread. RefusedError."""
        try:
            await self.staging.run(call, *args)
        except OSError as problem:
            raise disk_refusal(problem.errno or errno.EIO) from problem
