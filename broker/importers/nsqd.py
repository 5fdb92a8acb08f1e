"""Imports the data folder of an nsqd, topic by topic. It can be interrupted at any time.

Each topic is built in a separate folder next to the logs, synced, and then renamed into the folder
of logs. A progress file lists the finished topics and, before a rename, the topic and the id of its
log, so that the next run can find out whether the rename was done. The source is only read.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import orjson

from broker.base.durable import make_folder, remove_folder, sync_path
from broker.base.lockfile import DataLock, DataLockedError
from broker.base.problem import Problem
from broker.engine.cursor.cursor import open_cursor
from broker.engine.engine import Engine
from broker.engine.log.files import MetaError, escape, load_meta
from broker.engine.log.publish import append_at, check_appends
from broker.importers import limits
from broker.importers.diskqueue import (
    Queue,
    SourceError,
    Topic,
    messages,
    read_folder,
)
from broker.importers.engine import import_engine
from broker.importers.outcome import ImportOutcome
from broker.server.engine import LOGS_FOLDER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from broker.config.config import Config
    from broker.engine.cursor.cursor import Cursor
    from broker.engine.log.log import Log


class _Sized(Protocol):
    @property
    def size(self) -> int: ...


S = TypeVar("S", bound=_Sized)
PROGRESS = "import-nsqd.json"
STAGING = ".import-nsqd"


class ImportRefusedError(Exception):
    """The import cannot begin or continue."""


@dataclass
class Outcome(ImportOutcome):
    """The result of one run."""

    topics: int = 0
    messages: int = 0


def hold_source(source: Path) -> int:
    """Lock the folder, so that no nsqd can start on it; return the descriptor, which the caller
    must close. ImportRefusedError."""
    try:
        fd = os.open(source, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise ImportRefusedError(f"{source}: {error.strerror}") from None
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        raise ImportRefusedError(f"{source} is in use by a running nsqd: stop it first") from None
    except OSError:
        pass  # a file system without locks: nsqd cannot lock it either
    return fd


class Progress:
    """The progress file: per source, the finished topics."""

    def __init__(self, data: Path, source: Path, name: str = PROGRESS) -> None:
        self.path = data / name
        self.all: dict[str, Any] = {"version": 1, "sources": {}}
        if self.path.exists():
            self.all = orjson.loads(self.path.read_bytes())
        self.own: dict[str, Any] = self.all["sources"].setdefault(
            str(source), {"finished": False, "topics": {}, "moving": None}
        )

    def save(self) -> None:
        """Replace the file; the change survives a power cut."""
        new = self.path.with_suffix(".new")
        with new.open("wb") as file:
            file.write(orjson.dumps(self.all, option=orjson.OPT_INDENT_2))
            file.flush()
            os.fsync(file.fileno())
        new.replace(self.path)
        sync_path(self.path.parent)


def signature(source: Path) -> list[list[object]]:
    """The state of the files, which changes if an nsqd uses the folder again."""
    found: list[list[object]] = []
    for path in sorted(source.glob("*.dat")):
        status = path.stat()
        found.append([path.name, status.st_size, status.st_mtime_ns])
    return found


class Import:
    """One run."""

    def __init__(self, source: Path, data: Path, config: Config) -> None:
        self.source = source.resolve()
        self.data = data
        self.config = config
        self.advance: Callable[[int], object] = lambda _: None  # called with counts of bytes read
        self.outcome = Outcome()
        self.topics = read_folder(self.source, self.outcome.problems)

    @property
    def bytes(self) -> int:
        """Size of all files to read."""
        return sum(topic.bytes for topic in self.topics.values())

    async def run(self) -> Outcome:
        """Import the remaining topics; the caller holds the lock of the data folder."""
        progress = Progress(self.data, self.source)
        if progress.own["finished"]:
            self.outcome.already = True
            self.outcome.remembered = list(progress.own["problems"])
            self.outcome.changed = progress.own["signature"] != signature(self.source)
            return self.outcome
        staging = self.data / STAGING
        make_folder(self.data / LOGS_FOLDER)
        self._finish_move(progress, staging)
        for name, topic in sorted(self.topics.items()):
            if name in progress.own["topics"]:
                self.advance(topic.bytes)
                continue
            if (self.data / LOGS_FOLDER / escape(name)).exists():
                reason = f"topic {name} exists already: not imported"
                self.outcome.problems.append(Problem(str(self.source), 0, reason))
                self.advance(topic.bytes)
                continue
            await self._import_topic(name, topic, progress, staging)
        remaining = set(self.topics) - set(progress.own["topics"])
        progress.own["finished"] = not remaining
        progress.own["problems"] = self.outcome.remarks
        progress.own["signature"] = signature(self.source)
        progress.save()
        return self.outcome

    def _finish_move(self, progress: Progress, staging: Path) -> None:
        """Complete an earlier run that ended between the rename of a topic and its progress
        entry."""
        moving = progress.own["moving"]
        if moving is not None:
            if is_in_place(self.data, moving["topic"], moving["log_id"]):
                progress.own["topics"][moving["topic"]] = moving["messages"]
            progress.own["moving"] = None
            progress.save()
        remove_folder(staging)

    async def _import_topic(
        self, name: str, topic: Topic, progress: Progress, staging: Path
    ) -> None:
        async with import_engine(self.config, staging) as engine:
            count = await self._fill(engine, engine.open_log(name), topic)
            log_id = engine.logs[name].log_id.hex()
        sync_tree(staging)
        folder = escape(name)
        progress.own["moving"] = {"topic": name, "log_id": log_id, "messages": count}
        progress.save()
        (staging / folder).rename(self.data / LOGS_FOLDER / folder)
        sync_path(self.data / LOGS_FOLDER)
        progress.own["topics"][name] = count
        progress.own["moving"] = None
        progress.save()
        self.outcome.topics += 1
        self.outcome.messages += count

    async def _fill(self, engine: Engine, log: Log, topic: Topic) -> int:
        """Import the backlog of each channel, then the backlog of the topic, which all channels
        receive."""
        cursors = {name: open_cursor(log, name) for name in sorted(topic.channels)}
        for name, cursor in cursors.items():
            others = [other for other in cursors.values() if other is not cursor]
            await self._copy(engine, log, topic.channels[name].queue, cursor, others)
        if topic.paused:
            log.pause()
        await self._copy(engine, log, topic.queue, None, [])
        for name, channel in topic.channels.items():
            if channel.paused:
                cursors[name].pause()
        return log.next_seq - 1

    async def _copy(
        self, engine: Engine, log: Log, queue: Queue, own: Cursor | None, others: list[Cursor]
    ) -> None:
        reader = own.name.encode() if own is not None and others else b""
        for batch in batches(messages(queue, self.outcome.problems)):
            first = log.next_seq
            tries = []
            for stored in batch:
                seq = append_at(log, stored.body, stored.timestamp_ns, reader)
                if own is not None and stored.attempts:
                    tries.append((seq, stored.attempts))
            await engine.settle()
            check_appends(log)
            for cursor in others:
                cursor.pass_over(first, log.next_seq)
            for seq, attempts in tries:
                assert own is not None
                own.set_attempts(seq, attempts)
            self.advance(sum(stored.size for stored in batch))


@contextlib.contextmanager
def importing(
    source: Path, data: Path, config: Config, *, held: bool = False
) -> Iterator[Callable[[], Import]]:
    """Lock both folders during the import; `held`: the caller has locked the source.
    ImportRefusedError."""
    fd = -1 if held else hold_source(source)
    try:
        with DataLock(data):
            yield lambda: Import(source, data, config)
    except (SourceError, DataLockedError, OSError, OverflowError) as error:
        raise ImportRefusedError(str(error)) from error
    finally:
        if fd >= 0:
            os.close(fd)


def batches(stored: Iterator[S]) -> Iterator[list[S]]:
    """The messages in batches; the import waits for the disk after each."""
    batch: list[S] = []
    size = 0
    for one in stored:
        batch.append(one)
        size += one.size
        if size >= limits.IMPORT_BATCH_BYTES or len(batch) >= limits.IMPORT_BATCH:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def is_in_place(data: Path, name: str, log_id: str) -> bool:
    """Whether the data folder has a log of this name with this id."""
    try:
        meta = load_meta(str(data / LOGS_FOLDER / escape(name)))
    except MetaError:
        return False
    return meta is not None and meta["log_id"] == log_id


def sync_tree(folder: Path) -> None:
    """Sync the folder and everything in it."""
    for path in (folder, *folder.rglob("*")):
        sync_path(path)
