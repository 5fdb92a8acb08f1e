"""Commits: what a writer has staged for an epoch goes into the logs, once.

    files and logs synced -> intent -> appended -> logs synced -> epoch remembered -> answered

Until the intent is on the disk nothing has happened; from then on the commit is finished, by
whoever finds the intent: a retry, a later commit of the writer, the next start. Each record says
which commit it came with and which record of it it is, so that one that is in its log is not
appended again.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
from collections import Counter
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakValueDictionary

from broker.base.logs import fields
from broker.base.units import SECOND
from broker.bulk import errors, limits
from broker.bulk.responses import RefusedError
from broker.bulk.write.feeding import BrokenBlocksError, Feed, bring, folder_of, shown
from broker.bulk.write.intents import (
    COMMITTED,
    DELETED,
    VERSION,
    Done,
    Intent,
    IntentError,
    Plan,
    forget_writer,
    intent_path,
    learn,
    load_state,
    remove_intent,
    save_intent,
    save_state,
    writers_before,
)
from broker.bulk.write.staging import disk_refusal
from broker.bulk.write.writer import Writer
from broker.engine.bulk.blocks import COMMIT_ID_LEN, remove_file

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Coroutine
    from pathlib import Path

    from broker.bulk.write.batches import Key
    from broker.bulk.write.staging import Staging
    from broker.engine.log.log import Log

log = logging.getLogger("broker.bulk")

Pages = dict[str, dict[str, object]]  # by topic
R = TypeVar("R")
Wanted = dict[str, list[tuple[int, str, int]]]  # topic -> part, attempt, bytes


class Commits:
    """The commits of all writers."""

    def __init__(
        self,
        staging: Staging,
        open_log: Callable[[str], Log],
        find_log: Callable[[str], Log | None],
        keep_from: Callable[[Log, object, int | None], object],
        quarantined: Container[str] = (),
    ) -> None:
        """`open_log` finds or makes a log. `keep_from(log, whose, seq)` holds its files back.
        `quarantined`: names of logs that could not be opened, now."""
        self.staging = staging
        self.root: Path = staging.root  # the folder of everything staged
        self.open_log = open_log
        self.find_log = find_log
        self.keep_from = keep_from
        self.quarantined = quarantined
        self.writers: dict[str, Writer] = {}
        self.unknown: dict[str, str] = {}  # writers that cannot commit until the next start: why
        self._used: WeakValueDictionary[str, Writer] = WeakValueDictionary()  # whoever has one
        self.stopping = False
        self.remembered = 0  # writers on the disk, when they were last counted
        self.finished = self.failed = self.records = 0  # since start
        self._places = asyncio.Semaphore(limits.COMMITS_MAX)
        self._tasks: set[asyncio.Task[Any]] = set()

    @property
    def under_way(self) -> int:
        """Commits that have begun, those too that wait for another try."""
        return sum(writer.intent is not None for writer in self.writers.values())

    # --- start and end

    def start(self, intents: list[Intent], unsure: Container[str] = ()) -> None:
        """Finish what was begun before, in the background; `intents` and `unsure` as survey found
        them."""
        for intent in intents:
            writer = self.writers.setdefault(intent.writer, Writer(intent.writer))
            self._take_up(writer, intent)
            for topic, plan in intent.topics.items():
                self._look_back(topic, plan)
            writer.unsaved = True
            self._spawn(self._again(writer, surveyed=intent.writer not in unsure))

    def _look_back(self, topic: str, plan: Plan) -> None:
        entry = self._log_of(topic, plan)
        if entry is not None:
            # a power cut may have taken the end of the log, whose seqs come again
            plan.first = min(plan.first, entry.visible)

    def log_found(self, topic: str) -> None:
        """A log was made, or was quarantined and is not any more: keep what commits need of it."""
        for writer in self.writers.values():
            if writer.intent is not None and topic in writer.intent.topics:
                self._look_back(topic, writer.intent.topics[topic])
                self._keep(writer.intent, held=True)

    async def stop(self) -> None:
        """Leave everything as it is; what is begun is finished after the next start."""
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
            task.exception()  # whoever waited has been told; else it has been logged

    # --- what requests ask for

    async def writer(self, name: str) -> Writer:
        """A writer with what is remembered of it. RefusedError."""
        if name in self.unknown:
            raise RefusedError(errors.BULK_STATE, reason=self.unknown[name])
        writer = self.writers.pop(name, None) or self._used.get(name) or Writer(name)
        self.writers[name] = self._used[name] = writer  # the last one used is the last one
        if not writer.loaded:
            try:
                state = await self.staging.run(load_state, self.root, name)
            except (IntentError, OSError) as problem:
                raise RefusedError(errors.BULK_STATE, reason=problem) from problem
            if not writer.loaded:
                writer.loaded = True
                if state is not None:
                    writer.done, writer.owner = state.topics, state.owner
                    writer.remembered = True
        for old in list(self.writers.values())[: -limits.WRITERS_KEPT]:
            if not old.lock.locked() and old.intent is None and old is not writer:
                del self.writers[old.name]
        return writer

    async def claim(self, writer: Writer, owner: str | None) -> None:
        """Bind a writer to the first token that uses it. RefusedError: it is another's.

        Else whoever may write the topic could commit as this writer with the highest epoch, and
        all later commits of its owner would be answered as done. The owner is on the disk before
        anything of the writer is. `owner`: None when no tokens are asked for; nothing is bound.
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
        self.remembered += not writer.remembered
        writer.done, writer.owner, writer.remembered = done, owner, True

    async def commit(self, name: str, epoch: int, wanted: Wanted) -> Pages:
        """Commit these attempts; what became of each topic. RefusedError.

        Goes on to its end even if nobody waits for it any more.
        """
        if self.stopping:
            raise RefusedError(errors.BULK_STOPPING)
        for topic, attempts in wanted.items():
            for part, count in Counter(part for part, _, _ in attempts).most_common(1):
                if count > 1:
                    raise RefusedError(errors.BULK_SAME_PART, part=part, topic=topic)
        return await asyncio.shield(self._spawn(self._commit(name, epoch, wanted)))

    async def _commit(self, name: str, epoch: int, wanted: Wanted) -> Pages:
        writer = await self.writer(name)
        async with writer.lock:
            if writer.intent is not None:
                await self._finish(writer)
            before = {t: writer.done[t] for t in wanted if self._is_done(writer, t, epoch)}
            fresh = {topic: wanted[topic] for topic in wanted if topic not in before}
            if fresh:
                await self._begin(writer, epoch, fresh)
                await self._finish(writer, fresh=True)
            found: Pages = {}
            for topic in wanted:
                done = before.get(topic, writer.done[topic])
                found[topic] = done.page(epoch, "already" if topic in before else done.state)
            return found

    @staticmethod
    def _is_done(writer: Writer, topic: str, epoch: int) -> bool:
        return topic in writer.done and writer.done[topic].epoch >= epoch

    async def drop(
        self, name: str, epoch: int, check: Callable[[str], None], owner: str | None = None
    ) -> None:
        """Forget what is staged for an epoch, and a commit of it that cannot be finished."""
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
                self._let_go(writer)
            if batch is not None:
                await self.staging.drop(batch)

    async def forget(self, now_ns: int) -> None:
        """Forget writers that have not committed for very long, and count the others."""
        before_ns = now_ns - limits.WRITER_TTL
        names, count = await self.staging.run(writers_before, self.root, before_ns)
        for name in names:
            writer = await self.writer(name)
            async with writer.lock:
                if writer.intent is None:
                    await self.staging.run(forget_writer, self.root, name)
                    self.writers.pop(name, None)
                    # whoever has it goes on with a writer of which nothing is known
                    writer.done, writer.owner, writer.remembered = {}, None, False
                    count -= 1
        self.remembered = count

    # --- the beginning

    async def _begin(self, writer: Writer, epoch: int, wanted: Wanted) -> None:
        batch = await self.staging.lasting(writer.name, epoch)
        sizes: dict[Key, int] = {
            (topic, part, attempt): size
            for topic, attempts in wanted.items()
            for part, attempt, size in attempts
        }
        if batch is not None:
            self.staging.seal(batch, sizes, True)
            batch.busy += 1
        intent = Intent(VERSION, writer.name, epoch, os.urandom(COMMIT_ID_LEN).hex(), {})
        try:
            unlike = await self.staging.unlike(batch, sizes.items())
            if unlike:
                facts: dict[str, object] = {"missing": unlike[: limits.COMMIT_MISSING_SHOWN]}
                raise RefusedError(errors.BULK_NOT_STAGED, facts, count=len(unlike))
            if batch is not None:
                await self._disk(self.staging.sync, batch, [k for k in sizes if sizes[k]])
            await self._plan(intent, wanted)
            await self._save_intent(intent)
        except BaseException:
            self.failed += 1
            self._keep(intent, held=False)
            if batch is not None:
                self.staging.seal(batch, sizes, False)
            raise
        finally:
            if batch is not None:
                batch.busy -= 1
        self._take_up(writer, intent)

    async def _plan(self, intent: Intent, wanted: Wanted) -> None:
        for topic, attempts in wanted.items():
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
            self.keep_from(entry, intent.id, entry.visible)
            # an intent must not name a log that a power cut takes away
            await bring(entry)

    async def _save_intent(self, intent: Intent) -> None:
        try:
            await self._disk(save_intent, self.root, intent)
        except RefusedError:
            path = os.fsencode(intent_path(self.root, intent.writer))
            await self.staging.run(remove_file, path)  # it may be there
            raise

    def _take_up(self, writer: Writer, intent: Intent) -> None:
        """Be about to finish this commit; nothing of what it needs goes away."""
        writer.intent, writer.broken = intent, None
        writer.batch = self.staging.batch(writer.name, intent.epoch)
        if writer.batch is not None:
            writer.batch.busy += 1
        self._keep(intent, held=True)

    def _let_go(self, writer: Writer) -> None:
        assert writer.intent is not None
        self._keep(writer.intent, held=False)
        if writer.batch is not None:
            writer.batch.busy -= 1
        writer.intent = writer.batch = writer.broken = None
        writer.unsaved = False

    def _keep(self, intent: Intent, *, held: bool) -> None:
        for topic, plan in intent.topics.items():
            entry = self._log_of(topic, plan)
            if entry is not None:
                self.keep_from(entry, intent.id, min(plan.first, entry.visible) if held else None)

    def _log_of(self, topic: str, plan: Plan) -> Log | None:
        """The log that was meant; one of that name that was made since then is another one."""
        entry = self.find_log(topic)
        same = entry is not None and not entry.deleted and entry.log_id.hex() == plan.log_id
        return entry if same else None

    # --- the end

    async def _again(self, writer: Writer, *, surveyed: bool = False) -> None:
        """Finish a commit that nobody waits for."""
        try:
            await self.writer(writer.name)
            async with writer.lock:
                if writer.intent is None or writer.broken is not None:
                    return
                await self._finish(writer, fresh=surveyed)
        except RefusedError as refusal:
            why = fields(writer=writer.name, reason=refusal.text)
            log.error("a commit cannot be finished now", extra=why)

    def _try_later(self, writer: Writer) -> None:
        """One more try, and not one for each that came before."""
        if writer.retry is not None:
            writer.retry.cancel()
        if not self.stopping:
            wait, loop = limits.COMMIT_RETRY / SECOND, asyncio.get_running_loop()
            writer.retry = loop.call_later(wait, lambda: self._spawn(self._again(writer)))

    async def _finish(self, writer: Writer, *, fresh: bool = False) -> None:
        """Bring the commit that has begun to its end. `fresh`: what logs have of it is known.

        RefusedError: it stays begun, and is tried again later.
        """
        intent = writer.intent
        assert intent is not None
        try:
            async with self._places:
                await self._bring_to_end(writer, intent, fresh)
        except BrokenBlocksError as problem:
            self.failed += 1
            writer.broken, epoch = str(problem), intent.epoch
            why = fields(writer=writer.name, reason=writer.broken)
            log.error("a commit cannot be finished", extra=why)
            raise RefusedError(errors.BULK_BROKEN, epoch=epoch, reason=problem) from problem
        except RefusedError:
            self.failed += 1
            self._try_later(writer)
            raise

    async def _bring_to_end(self, writer: Writer, intent: Intent, fresh: bool) -> None:
        if writer.unsaved:
            await self._disk(save_intent, self.root, intent)
            writer.unsaved = False
        if not fresh:
            await self._learn(writer, intent)
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
                await feed.quiet()
        done = dict(writer.done)
        for topic, feed in feeds.items():
            await feed.settle()
            await feed.sync()
            state = DELETED if feed.deleted else COMMITTED
            done[topic] = Done(intent.epoch, feed.records, feed.first, feed.last, state)
        await shown(feeds.values())
        if feeds:
            await self._save_state(writer, done, writer.owner)
        await self._disk(remove_intent, self.root, writer.name)
        self.finished += 1
        self.records += sum(feed.records for feed in feeds.values())
        batch, topics = writer.batch, list(intent.topics)
        self._let_go(writer)
        if batch is not None:
            self._spawn(self.staging.drop(batch, topics))

    async def _learn(self, writer: Writer, intent: Intent) -> None:
        """See what the logs have of a commit that was tried before."""
        if writer.broken is not None:
            raise BrokenBlocksError(writer.broken)
        for topic, plan in intent.topics.items():
            entry = self._log_of(topic, plan)
            if entry is not None and entry.folder is not None:
                await bring(entry)  # what is counted as there must stay there
                ends = {segment.first_seq: segment.planned for segment in entry.segments}
                await self._disk(learn, plan, folder_of(entry), bytes.fromhex(intent.id), ends)

    async def _disk(self, call: Callable[..., object], *args: object) -> None:
        """File work on a thread. RefusedError."""
        try:
            await self.staging.run(call, *args)
        except OSError as problem:
            raise disk_refusal(problem.errno or errno.EIO) from problem
