"""Registered readers: their offsets, the records that they hold, their lag.

Each reader is a file in `<data>/bulk/readers/`, which is replaced by rename. A reader that is not
renewed within its time to live expires, and its hold ends. That time starts again when the broker
starts, because no reader could renew itself while it was down.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections import defaultdict
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any

from broker.base.durable import NEW_SUFFIX, UnsyncedError, save, sync_path, unsealed
from broker.base.logs import fields
from broker.base.units import SECOND
from broker.base.values import dataclass
from broker.bulk import errors, limits
from broker.bulk.context import bounds
from broker.bulk.errors import RefusedError, wrong
from broker.bulk.holds import RetentionHolds
from broker.engine.log.files import UNREADABLE_SUFFIX, escape, unescape

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Container, Iterable, Iterator
    from pathlib import Path

    from broker.engine.engine import Engine

log = logging.getLogger("broker.bulk")

SUFFIX = ".json"
HEALTH = "reader"  # the kind of reason for an unhealthy answer
OK = "ok"
GONE = "no_topic"
OTHER = "other_incarnation"
STREAM = "stream"  # never held: the limits of the stream drop its messages, one by one
IN_MEMORY = "in_memory"  # never held: a held record would make the log refuse new ones


TRIMMED = "trimmed"  # a state: some records after this position have been dropped


@dataclass(frozen=True, slots=True)
class Position:
    """The next record to read, of one incarnation of a log."""

    seq: int
    incarnation: str


@dataclass(frozen=True, slots=True)
class StoredReader:
    """A reader as it is stored."""

    name: str
    ttl_s: int
    hold: bool = False
    positions: dict[str, Position] = field(default_factory=dict)
    renewed_ns: int = 0  # wall clock; only shown


@dataclass(slots=True)
class Reader:
    """A registered reader and the time at which it expires."""

    stored: StoredReader
    expires_ns: int = 0  # monotonic
    unsynced: bool = False  # a sync failed: the file may differ from `stored`
    changing: asyncio.Lock = field(default_factory=asyncio.Lock)


class Readers:
    """All registered readers and their holds."""

    def __init__(
        self,
        engine: Engine,
        folder: Path,
        in_thread: Callable[..., Awaitable[None]],
        now_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """`in_thread` does file work. Call `load` before retention can drop records."""
        self.engine = engine
        self.folder = folder
        self.in_thread = in_thread
        self.now_ns = now_ns
        self.known: dict[str, Reader] = {}
        self.expired = 0
        self.holds = RetentionHolds()
        self._by_topic: defaultdict[str, set[str]] = defaultdict(set)
        # Readers with unreadable files, until they are renewed or deleted. Their positions are
        # unknown, so all records of all topics are held.
        self._unknown: set[str] = set()
        self._expiring: asyncio.Task[None] | None = None

    def use_holds(self, holds: RetentionHolds) -> None:
        """Use these holds, which commits share. Called before `load`."""
        self.holds = holds
        self._hold(list(self._by_topic))

    # --- files

    def load(self) -> None:
        """Read the folder and hold records for its readers. An unreadable file holds all records of
        all topics."""
        try:
            paths = sorted(self.folder.iterdir())
        except FileNotFoundError:
            paths = []
        except OSError as problem:
            self._hold_all(str(self.folder), problem)
            paths = []
        for path in paths:
            if path.suffix == NEW_SUFFIX:
                with contextlib.suppress(OSError):
                    path.unlink()  # an unfinished write
            elif path.suffix == SUFFIX:
                import msgspec

                try:
                    stored = msgspec.json.decode(unsealed(path.read_bytes()), type=StoredReader)
                except (msgspec.MsgspecError, ValueError, OSError) as problem:
                    # The file is kept, so that the next start holds all topics, too.
                    self._hold_all(unescape(path.name.removesuffix(SUFFIX)), problem)
                else:
                    self._add(stored)
        self.engine.watch(self._log_changed)

    def _hold_all(self, name: str, problem: Exception) -> None:
        log.error("reader %s: unreadable file, all topics are held: %s", name, problem)
        self.engine.shared.health.add(HEALTH, name, f"holds all topics: {problem}")
        self._unknown.add(name)
        self._hold(list(self.engine.logs))

    def _mark_readable(self, name: str) -> None:
        """A reader with an unreadable file was renewed or deleted: it no longer holds all
        topics."""
        if name in self._unknown:
            self._unknown.discard(name)
            self.engine.shared.health.remove(HEALTH, name)
            self._hold(list(self.engine.logs))

    def _log_changed(self, name: str, cursor: str | None, made: bool) -> None:
        if made and cursor is None:  # a log that may have been quarantined before
            self._hold([name])

    def _path(self, name: str) -> Path:
        return self.folder / (escape(name) + SUFFIX)

    def _write(self, stored: StoredReader) -> None:
        import msgspec

        save(self._path(stored.name), msgspec.json.encode(stored))

    def _remove(self, name: str) -> None:
        self._path(name).unlink(missing_ok=True)  # missing if only the last sync failed
        with contextlib.suppress(FileNotFoundError):
            sync_path(self.folder)

    # --- changes

    async def put(
        self, stored: StoredReader, removed: Iterable[str] = (), omitted: Iterable[str] = ()
    ) -> Reader:
        """Renew a reader and update its positions; the fields `omitted` are not changed.
        RefusedError: the change is not stored, but the reader is renewed with its old
        positions."""
        while True:
            reader = self.known.get(stored.name)
            if reader is None:
                if len(self.known) >= limits.BULK_READERS_MAX:
                    limit = limits.BULK_READERS_MAX
                    raise RefusedError(errors.BULK_READERS, limit=limit)
                reader = self._add(StoredReader(stored.name, stored.ttl_s))  # holds nothing yet
            async with reader.changing:
                if self.known.get(stored.name) is reader:  # else it has expired meanwhile
                    # Another request may have changed these fields meanwhile.
                    current = {name: getattr(reader.stored, name) for name in omitted}
                    await self._change(reader, replace(stored, **current), removed)
                    return reader

    async def _change(self, reader: Reader, stored: StoredReader, removed: Iterable[str]) -> None:
        self._renew(reader)
        positions = {**reader.stored.positions, **stored.positions}
        for topic in removed:
            positions.pop(topic, None)
        self._bound(positions, stored.positions)
        changed_reader = replace(stored, positions=positions)
        is_new = not reader.stored.renewed_ns
        unchanged = changed_reader == replace(reader.stored, renewed_ns=changed_reader.renewed_ns)
        if is_new or reader.unsynced or not unchanged:
            try:
                if stored.name in self._unknown:
                    await self.in_thread(_link_aside, self._path(stored.name))
                await self.in_thread(self._write, changed_reader)
            except OSError as problem:
                reader.unsynced |= isinstance(problem, UnsyncedError)
                if is_new:
                    self._discard(reader)
                raise _not_stored(problem) from problem
            reader.unsynced = False
        self._replace(reader, changed_reader)
        self._renew(reader)
        self._mark_readable(stored.name)

    def _bound(self, positions: dict[str, Position], updated: Container[str]) -> None:
        """If there are too many positions, drop those of deleted topics. RefusedError: there are
        still too many."""
        most = limits.BULK_TOPICS_MAX
        if len(positions) > most:
            for topic, at in list(positions.items()):
                if topic not in updated and self.state(topic, at) in (GONE, OTHER):
                    del positions[topic]
        if len(positions) > most:
            raise wrong("positions", errors.BULK_TOO_MANY.format(limit=most))

    async def delete(self, name: str) -> bool:
        """Delete a reader; False: there is none. RefusedError: it could not be deleted."""
        reader = self.known.get(name)
        if reader is None:
            if name not in self._unknown:
                return False
            try:
                await self.in_thread(_put_aside, self._path(name))
            except OSError as problem:
                raise _not_stored(problem) from problem
            self._mark_readable(name)
            return True
        async with reader.changing:
            if self.known.get(name) is not reader:
                return False
            try:
                await self.in_thread(self._remove, name)
            except OSError as problem:
                reader.unsynced = True
                raise _not_stored(problem) from problem
            self._discard(reader)
        return True

    def _add(self, stored: StoredReader) -> Reader:
        reader = self.known[stored.name] = Reader(StoredReader(stored.name, stored.ttl_s))
        self._renew(reader)
        self._replace(reader, stored)
        return reader

    def _renew(self, reader: Reader) -> None:
        reader.expires_ns = self.now_ns() + reader.stored.ttl_s * SECOND

    def _replace(self, reader: Reader, stored: StoredReader) -> None:
        before, reader.stored = reader.stored, stored
        for topic in before.positions.keys() - stored.positions.keys():
            self._by_topic[topic].discard(stored.name)
        for topic in stored.positions:
            self._by_topic[topic].add(stored.name)
        changed = before.positions.keys() | stored.positions.keys()
        if before.hold == stored.hold:  # only these, because a topic may have many readers
            changed = {
                topic
                for topic in changed
                if before.positions.get(topic) != stored.positions.get(topic)
            }
        self._hold(changed)

    def _discard(self, reader: Reader) -> None:
        if self.known.get(reader.stored.name) is reader:
            del self.known[reader.stored.name]
        for topic in reader.stored.positions:
            self._by_topic[topic].discard(reader.stored.name)
        self._hold(reader.stored.positions)

    # --- holds

    def _hold(self, topics: Iterable[str]) -> None:
        """Hold the records of these topics that readers with a hold have not read."""
        for topic in list(topics):
            names = self._by_topic.get(topic, set())
            if not names:
                self._by_topic.pop(topic, None)
            entry = self.engine.log(topic)
            if entry is None or entry.folder is None:
                continue
            readable = self.engine.readable(topic)
            incarnation = None if readable is None else readable.log_id.hex()
            held = (self.known[name].stored for name in names)
            positions = [stored.positions[topic] for stored in held if stored.hold]
            seqs = [at.seq for at in positions if incarnation in (None, at.incarnation)]
            if self._unknown:
                seqs.append(entry.first_seq)
            self.holds.hold(entry, self, min(seqs, default=None))

    def state(self, topic: str, position: Position) -> str:
        """The state of a position: whether it is valid for the current log of its topic."""
        entry = self.engine.readable(topic)
        if entry is None:
            return GONE
        if position.incarnation != entry.log_id.hex():
            return OTHER
        if entry.owner is not None:
            return STREAM
        return IN_MEMORY if entry.folder is None else OK

    def position(self, topic: str, at: Position) -> dict[str, Any]:
        """A position in a response, with the number of records after it."""
        state = self.state(topic, at)
        page = {"seq": at.seq, "incarnation": at.incarnation, "state": state, "lag": None}
        entry = self.engine.readable(topic)
        if entry is not None and entry.owner is not None and state == STREAM:
            page["lag"] = entry.owner.count_from(at.seq)
        elif entry is not None and state in (OK, IN_MEMORY):
            first, next_seq = bounds(entry)
            page["lag"] = max(0, next_seq - max(at.seq, first))
            if at.seq < first:
                page |= {"state": TRIMMED, "first": first}
        return page

    def lags(self) -> Iterator[tuple[str, str, int]]:
        """(reader, topic, unread records) for each position whose lag is known."""
        for reader in self.known.values():
            for topic, at in reader.stored.positions.items():
                lag = self.position(topic, at)["lag"]
                if lag is not None:
                    yield reader.stored.name, topic, lag

    # --- time

    def begin(self) -> None:
        """Start the timer that expires readers."""
        self._expiring = asyncio.create_task(self._expire())

    async def _expire(self) -> None:
        while True:
            await asyncio.sleep(limits.BULK_EXPIRE_EVERY / SECOND)
            await self.expire()

    async def expire(self) -> None:
        """Delete the readers whose time to live has passed."""
        now_ns = self.now_ns()
        for name, reader in list(self.known.items()):
            if reader.expires_ns > now_ns or reader.changing.locked():
                continue
            if self.known.get(name) is not reader:  # while another one was deleted
                continue
            log.warning("reader has expired", extra=fields(reader=name, ttl_s=reader.stored.ttl_s))
            self.expired += 1
            async with reader.changing:
                try:
                    await self.in_thread(self._remove, name)
                except OSError as problem:
                    log.warning("%s is kept until the next start: %s", self._path(name), problem)
                self._discard(reader)  # last: a new reader of that name writes the same file

    async def end(self) -> None:
        """Stop the timer; holds remain."""
        self.engine.unwatch(self._log_changed)
        if self._expiring is not None:
            self._expiring.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._expiring
            self._expiring = None


def _aside(path: Path) -> Path:
    """A free name for an unreadable file, which is kept for the operator."""
    aside = path.with_name(path.name + UNREADABLE_SUFFIX)
    if aside.exists():
        aside = path.with_name(f"{path.name}.{os.urandom(4).hex()}{UNREADABLE_SUFFIX}")
    return aside


def _put_aside(path: Path) -> None:
    """Rename an unreadable file. OSError."""
    with contextlib.suppress(FileNotFoundError):
        path.rename(_aside(path))
        sync_path(path.parent)


def _link_aside(path: Path) -> None:
    """Add a second name to an unreadable file. OSError.

    The file keeps its first name until a good file replaces it, so that it holds all topics after a
    restart, too.
    """
    with contextlib.suppress(FileNotFoundError):
        os.link(path, _aside(path))
        sync_path(path.parent)


def _not_stored(problem: OSError) -> RefusedError:
    return RefusedError(errors.BULK_NOT_KEPT, reason=problem.strerror or str(problem))
