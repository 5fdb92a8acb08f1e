"""Registered readers: their offsets, the records that they hold, their lag.

Each is a file in `<data>/bulk/readers/`, written beside the old one and renamed over it. A reader
that is not renewed within its time to live expires, and its hold ends. That time starts again with
the broker: while it was down, no reader could renew itself.
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
STREAM = "stream"  # never held: its messages go by its own limits, and one by one
IN_MEMORY = "in_memory"  # never held: a held record would make the log refuse new ones


TRIMMED = "trimmed"  # a state: some records after this position have been dropped


@dataclass(frozen=True, slots=True)
class Position:
    """The next record to read, of one incarnation of a log."""

    seq: int
    incarnation: str


@dataclass(frozen=True, slots=True)
class Kept:
    """A reader as it is stored."""

    name: str
    ttl_s: int
    hold: bool = False
    positions: dict[str, Position] = field(default_factory=dict)
    renewed_ns: int = 0  # wall clock; only shown


@dataclass(slots=True)
class Reader:
    """A reader, and when it expires."""

    kept: Kept
    expires_ns: int = 0  # monotonic
    doubtful: bool = False  # a sync failed: the file may differ from `kept`
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
        """`in_thread` does file work. Call `load` before retention can drop anything."""
        self.engine = engine
        self.folder = folder
        self.in_thread = in_thread
        self.now_ns = now_ns
        self.known: dict[str, Reader] = {}
        self.expired = 0
        self.holds = RetentionHolds()
        self._by_topic: defaultdict[str, set[str]] = defaultdict(set)
        # Readers with unreadable files, until they are renewed or deleted. What they need is
        # unknown, so all records of all topics are held.
        self._unknown: set[str] = set()
        self._expiring: asyncio.Task[None] | None = None

    def share(self, holds: RetentionHolds) -> None:
        """Use these holds, which commits share; before anything is held."""
        self.holds = holds
        self._hold(list(self._by_topic))

    # --- files

    def load(self) -> None:
        """Read the folder and hold what its readers need. An unreadable file holds everything."""
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
                    kept = msgspec.json.decode(unsealed(path.read_bytes()), type=Kept)
                except (msgspec.MsgspecError, ValueError, OSError) as problem:
                    # the file stays, so that the next start finds it too
                    self._hold_all(unescape(path.name.removesuffix(SUFFIX)), problem)
                else:
                    self._adopt(kept)
        self.engine.watch(self._log_changed)

    def _hold_all(self, name: str, problem: Exception) -> None:
        log.error("reader %s: unreadable file, all topics are held: %s", name, problem)
        self.engine.shared.health.add(HEALTH, name, f"holds all topics: {problem}")
        self._unknown.add(name)
        self._hold(list(self.engine.logs))

    def _known_again(self, name: str) -> None:
        """A reader with an unreadable file was renewed or deleted: stop holding everything."""
        if name in self._unknown:
            self._unknown.discard(name)
            self.engine.shared.health.remove(HEALTH, name)
            self._hold(list(self.engine.logs))

    def _log_changed(self, name: str, cursor: str | None, made: bool) -> None:
        if made and cursor is None:  # a log that may have been quarantined before
            self._hold([name])

    def _path(self, name: str) -> Path:
        return self.folder / (escape(name) + SUFFIX)

    def _write(self, kept: Kept) -> None:
        import msgspec

        save(self._path(kept.name), msgspec.json.encode(kept))

    def _remove(self, name: str) -> None:
        self._path(name).unlink(missing_ok=True)  # missing if only the last sync failed
        with contextlib.suppress(FileNotFoundError):
            sync_path(self.folder)

    # --- changes

    async def put(
        self, kept: Kept, removed: Iterable[str] = (), unsaid: Iterable[str] = ()
    ) -> Reader:
        """Renew a reader; its positions are updated, and the fields `unsaid` stay as they are then.
        RefusedError: the change is not stored; the reader is renewed nevertheless, with its old
        positions."""
        while True:
            reader = self.known.get(kept.name)
            if reader is None:
                if len(self.known) >= limits.BULK_READERS_MAX:
                    limit = limits.BULK_READERS_MAX
                    raise RefusedError(errors.BULK_READERS, limit=limit)
                reader = self._adopt(Kept(kept.name, kept.ttl_s))  # holds nothing yet
            async with reader.changing:
                if self.known.get(kept.name) is reader:  # else it expired while we waited
                    # another request may have set them since this one was read
                    as_they_are = {name: getattr(reader.kept, name) for name in unsaid}
                    await self._change(reader, replace(kept, **as_they_are), removed)
                    return reader

    async def _change(self, reader: Reader, kept: Kept, removed: Iterable[str]) -> None:
        self._renew(reader)
        positions = {**reader.kept.positions, **kept.positions}
        for topic in removed:
            positions.pop(topic, None)
        self._bound(positions, kept.positions)
        fresh = replace(kept, positions=positions)
        is_new = not reader.kept.renewed_ns
        as_before = fresh == replace(reader.kept, renewed_ns=fresh.renewed_ns)
        if is_new or reader.doubtful or not as_before:
            try:
                if kept.name in self._unknown:
                    await self.in_thread(_keep_aside, self._path(kept.name))
                await self.in_thread(self._write, fresh)
            except OSError as problem:
                reader.doubtful |= isinstance(problem, UnsyncedError)
                if is_new:
                    self._forget(reader)
                raise _not_kept(problem) from problem
            reader.doubtful = False
        self._replace(reader, fresh)
        self._renew(reader)
        self._known_again(kept.name)

    def _bound(self, positions: dict[str, Position], said: Container[str]) -> None:
        """If there are too many positions, drop those of deleted topics. RefusedError: there are
        still too many."""
        most = limits.BULK_TOPICS_MAX
        if len(positions) > most:
            for topic, at in list(positions.items()):
                if topic not in said and self.state(topic, at) in (GONE, OTHER):
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
                raise _not_kept(problem) from problem
            self._known_again(name)
            return True
        async with reader.changing:
            if self.known.get(name) is not reader:
                return False
            try:
                await self.in_thread(self._remove, name)
            except OSError as problem:
                reader.doubtful = True
                raise _not_kept(problem) from problem
            self._forget(reader)
        return True

    def _adopt(self, kept: Kept) -> Reader:
        reader = self.known[kept.name] = Reader(Kept(kept.name, kept.ttl_s))
        self._renew(reader)
        self._replace(reader, kept)
        return reader

    def _renew(self, reader: Reader) -> None:
        reader.expires_ns = self.now_ns() + reader.kept.ttl_s * SECOND

    def _replace(self, reader: Reader, kept: Kept) -> None:
        before, reader.kept = reader.kept, kept
        for topic in before.positions.keys() - kept.positions.keys():
            self._by_topic[topic].discard(kept.name)
        for topic in kept.positions:
            self._by_topic[topic].add(kept.name)
        changed = before.positions.keys() | kept.positions.keys()
        if before.hold == kept.hold:  # all of them would take long: others read them too
            changed = {
                topic
                for topic in changed
                if before.positions.get(topic) != kept.positions.get(topic)
            }
        self._hold(changed)

    def _forget(self, reader: Reader) -> None:
        if self.known.get(reader.kept.name) is reader:
            del self.known[reader.kept.name]
        for topic in reader.kept.positions:
            self._by_topic[topic].discard(reader.kept.name)
        self._hold(reader.kept.positions)

    # --- holds

    def _hold(self, topics: Iterable[str]) -> None:
        """Hold what the readers of these topics have not read."""
        for topic in list(topics):
            names = self._by_topic.get(topic, set())
            if not names:
                self._by_topic.pop(topic, None)
            entry = self.engine.log(topic)
            if entry is None or entry.folder is None:
                continue
            readable = self.engine.readable(topic)
            incarnation = None if readable is None else readable.log_id.hex()
            held = (self.known[name].kept for name in names)
            places = [kept.positions[topic] for kept in held if kept.hold]
            seqs = [at.seq for at in places if incarnation in (None, at.incarnation)]
            if self._unknown:
                seqs.append(entry.first_seq)
            self.holds.hold(entry, self, min(seqs, default=None))

    def state(self, topic: str, position: Position) -> str:
        """Whether a position still means a record of its log."""
        entry = self.engine.readable(topic)
        if entry is None:
            return GONE
        if position.incarnation != entry.log_id.hex():
            return OTHER
        if entry.owner is not None:
            return STREAM
        return IN_MEMORY if entry.folder is None else OK

    def position(self, topic: str, at: Position) -> dict[str, Any]:
        """A position as clients see it, with the number of records after it."""
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
            for topic, at in reader.kept.positions.items():
                lag = self.position(topic, at)["lag"]
                if lag is not None:
                    yield reader.kept.name, topic, lag

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
            log.warning("reader has expired", extra=fields(reader=name, ttl_s=reader.kept.ttl_s))
            self.expired += 1
            async with reader.changing:
                try:
                    await self.in_thread(self._remove, name)
                except OSError as problem:
                    log.warning("%s stays until the next start: %s", self._path(name), problem)
                self._forget(reader)  # last: a new reader of that name writes the same file

    async def end(self) -> None:
        """Stop the timer; holds stay as they are."""
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


def _keep_aside(path: Path) -> None:
    """Give an unreadable file a second name. OSError.

    It keeps the first one until a good file replaces it: an unreadable file must hold everything
    after a restart too.
    """
    with contextlib.suppress(FileNotFoundError):
        os.link(path, _aside(path))
        sync_path(path.parent)


def _not_kept(problem: OSError) -> RefusedError:
    return RefusedError(errors.BULK_NOT_KEPT, reason=problem.strerror or str(problem))
