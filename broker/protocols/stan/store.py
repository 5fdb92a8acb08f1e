"""Store: the file of clients and subscriptions, read at a restart.

    <crc32 of the rest, hex> <JSON array>\\n

A line records an addition or a removal; later lines override earlier ones. The positions of
subscriptions are in their cursors. Lines are written before clients are answered and synced within
a second, so that a kill loses nothing. With stan.sync = "always", requests that create or delete a
durable are answered after that is on disk. Of the rest, a power failure may lose the last second:
such a client is answered that it is unknown, and connects again.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import zlib
from collections.abc import Callable
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import orjson

from broker.base.durable import make_folder, sync_path
from broker.base.values import dataclass
from broker.engine.log.files import META
from broker.protocols.stan import limits

if TYPE_CHECKING:
    from broker.engine.log.log import Log

log = logging.getLogger("broker.stan")

STAN_FOLDER: Final = "stan"  # in the data folder
FILE = "clients.state"
VERSION = 1
# Ends a line that was written in part and could not be removed. Its change was refused, so the line
# must not be read as valid, even if only the line end was missing.
_TORN_END: Final = b"\0\n"
Done = Callable[[OSError | None], object]  # gets None after the sync, or the error


class ForeignStateError(Exception):
    """The folder belongs to another cluster, or has a version unknown to this build."""


class StateVersionError(ForeignStateError):
    """The file has a version unknown to this build."""


@dataclass(frozen=True, slots=True)
class ClientRecord:
    """One client in the file."""

    client_id: str
    hb_inbox: str
    conn_id: str = ""  # hexadecimal
    protocol: int = 0
    ping_interval: int = 0
    ping_max: int = 0
    owner: str | None = None  # the user that it belongs to, see Access.is_own


@dataclass(slots=True)
class SubRecord:
    """One subscription in the file."""

    number: int
    channel: str
    cursor: str  # name of its cursor in the channel's log
    client_id: str
    inbox: str
    ack_inbox: str
    durable_name: str
    queue_name: str  # for a durable group prefixed with the durable name
    max_in_flight: int
    ack_wait: int  # seconds
    offline: bool = False
    start: int = 0  # first position of the cursor, in case a power failure loses its file

    @property
    def is_durable(self) -> bool:
        """Whether the subscription survives its client."""
        return bool(self.durable_name)


class Store:
    """The file in one folder; without a folder, everything is in memory."""

    def __init__(self, folder: Path | None, cluster_id: str, *, waits: bool = False) -> None:
        """`waits`: whether when_safe waits for the disk."""
        self.cluster_id = cluster_id
        self.waits = waits
        self.clients: dict[str, ClientRecord] = {}
        self.subs: dict[int, SubRecord] = {}
        self.problems: list[str] = []
        self._last_number = 0
        self._fd = -1
        self._bytes = self._kept_bytes = 0
        self._dirty = self._torn = self._doubtful = False
        self._new: _New | None = None  # while the file is rewritten
        self._syncing: asyncio.Task[None] | None = None
        self._logged = ""  # the last failure: attempts go on each second
        self._waiting: list[Done] = []
        self._folders: dict[bytes, str] = {}  # of channels, to be synced as well
        self._known: set[bytes] = set()  # ids of logs whose folders are synced
        self._path = None if folder is None else folder / FILE
        if folder is not None:
            make_folder(folder)
            self._read()
            self._last_number = max(self.subs, default=0)
            try:
                self._rewrite()
            except OSError as problem:  # a full disk: known clients continue and may free space
                self._go_on(problem)

    # --- changes. OSError: it is not stored, as if it had not been asked for. What is removed or
    # released is so in any case: the file follows as soon as it can be written again.

    def add_client(self, client: ClientRecord) -> None:
        """Add a client that has connected."""
        self._write("client", asdict(client))
        self.clients[client.client_id] = client

    def remove_client(self, client_id: str) -> None:
        """Remove a client that has closed or failed."""
        self.clients.pop(client_id, None)
        self._follow("gone", client_id)

    def put_sub(self, sub: SubRecord) -> None:
        """Add or change a subscription."""
        self._write("sub", asdict(sub))
        self.subs[sub.number] = sub
        self._last_number = max(self._last_number, sub.number)

    def release_sub(self, sub: SubRecord) -> None:
        """Change a durable subscription that has lost its client."""
        self.subs[sub.number] = sub
        self._follow("sub", asdict(sub))

    def remove_sub(self, sub: SubRecord) -> None:
        """Remove a subscription."""
        self.subs.pop(sub.number, None)
        self._follow("unsub", sub.number)

    @property
    def next_number(self) -> int:
        """The number for a new subscription."""
        return self._last_number + 1

    # --- the file

    def _follow(self, *entry: Any) -> None:
        """Write what holds already. OSError: sync_soon will rewrite the file."""
        try:
            self._write(*entry)
        except OSError:
            self._dirty = self._doubtful = True
            if self._new is not None:
                self._new.broken = True  # it misses this
            raise

    def _write(self, *entry: Any) -> None:
        if self._path is None:
            return
        if self._fd < 0:
            raise self._full()
        line = _TORN_END * self._torn + _line(entry)
        written = os.write(self._fd, line)
        if written != len(line):
            self._torn |= not _cut_off(self._fd, written)
            raise self._full()
        self._torn = False
        self._note(line)
        self._bytes += len(line)
        self._dirty = True

    def _full(self) -> OSError:
        return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._path))

    def _note(self, line: bytes) -> None:
        """Add a written line to the new file as well, if a rewrite is running."""
        new = self._new
        if new is None:
            return
        if new.fd < 0:
            new.missed.append(line)  # the new file does not exist yet
            return
        try:
            new.broken |= os.write(new.fd, line) != len(line)
        except OSError:
            new.broken = True  # the line is in the old file, which is still in use

    def _has_grown(self) -> bool:
        """Whether most lines of the file are obsolete."""
        return self._path is not None and self._bytes > max(
            limits.STAN_STATE_BYTES_MIN, limits.STAN_STATE_FACTOR * self._kept_bytes
        )

    def _all(self) -> bytes:
        """The lines of a file with the present state."""
        lines = [self._first_line()]
        lines += (_line(("client", asdict(client))) for client in self.clients.values())
        lines += (_line(("sub", asdict(sub))) for sub in self.subs.values())
        return b"".join(lines)

    def _first_line(self) -> bytes:
        return _line(("cluster", VERSION, self.cluster_id))

    def _rewrite(self) -> None:
        """Replace the file with the present state, before clients are served."""
        assert self._path is not None
        fd = _write_new(self._path, self._all())
        try:
            _replace(self._path)
        except OSError:
            os.close(fd)
            raise
        self._take(fd)

    def _go_on(self, problem: OSError) -> None:
        """Continue with the old file until a rewrite succeeds."""
        assert self._path is not None
        log.error("%s cannot be rewritten: %s", self._path, problem)
        self._dirty = self._doubtful = True  # sync_soon tries again
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        fd, is_new = -1, not self._path.exists()
        try:
            fd = os.open(self._path, flags, 0o640)
            size = os.fstat(fd).st_size
            if size == 0:
                self._begin(fd)
            self._torn = size > 0 and os.pread(fd, 1, size - 1) != b"\n"
        except OSError:
            if fd >= 0:
                os.close(fd)
            if is_new:
                with contextlib.suppress(OSError):
                    self._path.unlink()  # an empty file counts as damaged
            return
        self._fd = fd
        self._bytes = self._kept_bytes = size

    def _begin(self, fd: int) -> None:
        """Write the first line of an empty file. OSError: it may have a part of that line."""
        line = self._first_line()
        written = os.write(fd, line)
        if written != len(line):
            _cut_off(fd, written)
            raise self._full()

    async def _rewrite_in_thread(self) -> None:
        """Replace the file while clients are served: a thread does what may wait for the disk.

        lines:   old file   old file, noted   both files            new file
                         ^ begin          ^ new file exists     ^ new file replaces the old one
        """
        assert self._path is not None
        self._new = new = _New()
        data = self._all()
        try:
            new.fd = await asyncio.to_thread(_write_new, self._path, data)
            missed = b"".join(new.missed)
            if os.write(new.fd, missed) != len(missed):
                raise self._full()
            await asyncio.to_thread(_sync_and_replace, self._path, new.fd)
            if new.broken:
                raise self._full()
        except OSError:
            if new.fd >= 0 and os.path.samestat(os.fstat(new.fd), self._path.stat()):
                self._take(new.fd)  # it has the name already; the next attempt adds missing lines
                self._torn = self._doubtful = True
            elif new.fd >= 0:
                os.close(new.fd)
            raise
        finally:
            self._new = None
        self._take(new.fd)

    def _take(self, fd: int) -> None:
        """Use the new file from now on."""
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = fd
        self._bytes = self._kept_bytes = os.fstat(fd).st_size
        self._torn = self._doubtful = False

    def _read(self) -> None:
        assert self._path is not None
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return
        unread, is_whole = 0, False
        for line in data.splitlines():
            entry = _entry(line)
            if entry is None:
                unread += 1
            else:
                is_whole |= entry[:1] == ["cluster"]
                self._apply(entry)
        if not unread and not is_whole:
            # damaged, as no version writes such a file: cursors of subscriptions are kept
            self.problems.append(f"{self._path}: its first line is missing")
        if unread:
            self._keep_copy(data)
            self.problems.append(f"{self._path}: {unread} lines do not read; a copy is kept")

    def _keep_copy(self, data: bytes) -> None:
        """Keep a copy of a damaged file for the operator; earlier copies remain."""
        assert self._path is not None
        copy = self._path.with_suffix(".unreadable")
        if copy.exists():
            copy = copy.with_name(f"{copy.name}.{os.urandom(4).hex()}")
        try:
            copy.write_bytes(data)
        except OSError:  # a hard link, if possible, needs no space
            copy.unlink(missing_ok=True)
            os.link(self._path, copy)

    def _apply(self, entry: list[Any]) -> None:
        match entry:
            case ["cluster", version, name]:
                if version != VERSION:
                    raise StateVersionError(
                        f"{self._path}: format version {version}; this build reads {VERSION}"
                    )
                if name != self.cluster_id:
                    raise ForeignStateError(
                        f"cluster ID {self.cluster_id!r} does not match {name!r}, whose data"
                        f" are in {self._path}"
                    )
            case ["client", dict() as values]:
                client = ClientRecord(**_known(ClientRecord, values))
                self.clients[client.client_id] = client
            case ["gone", str() as client_id]:
                self.clients.pop(client_id, None)
            case ["sub", dict() as values]:
                sub = SubRecord(**_known(SubRecord, values))
                self.subs[sub.number] = sub
            case ["unsub", int() as number]:
                self.subs.pop(number, None)

    def sync(self) -> None:
        """Sync the file now, before clients are served. OSError."""
        if self._doubtful:
            self._rewrite()
        elif self._fd >= 0:
            os.fdatasync(self._fd)
        self._dirty = False

    def when_safe(self, done: Done, channel: Log | None = None) -> None:
        """Call done(None) after everything written is on disk, including the channel's folder, or
        done(error). At once if this store does not wait."""
        if self._path is None or not self.waits:
            done(None)
            return
        if channel is not None and channel.folder and channel.log_id not in self._known:
            self._folders[channel.log_id] = channel.folder
        self._waiting.append(done)
        self.sync_soon()

    def sync_soon(self) -> None:
        """Sync the file in a thread."""
        if (self._dirty or self._waiting or self._has_grown()) and self._syncing is None:
            self._syncing = asyncio.create_task(self._sync())

    async def _sync(self) -> None:
        problem = None
        while problem is None and (self._dirty or self._waiting or self._has_grown()):
            waiting, self._waiting = self._waiting, []
            folders, self._folders = self._folders, {}
            problem = await self._bring(folders)
            for done in waiting:
                try:
                    done(problem)
                except Exception:
                    log.exception("what waited for %s", self._path)
        self._syncing = None

    async def _bring(self, folders: dict[bytes, str]) -> OSError | None:
        self._dirty = False
        try:
            if self._doubtful or self._has_grown():
                # after a failed sync, a second sync of the file may succeed without writing
                await self._try_to_rewrite()
            fd = os.dup(self._fd)
            try:
                await asyncio.to_thread(_sync_all, fd, list(folders.values()))
            finally:
                os.close(fd)
        except OSError as problem:
            if str(problem) != self._logged:
                log.error("%s: %s", self._path, problem)
            self._logged = str(problem)
            self._dirty = self._doubtful = True
            return problem
        self._logged = ""
        self._known.update(folders)
        return None

    async def _try_to_rewrite(self) -> None:
        try:
            await self._rewrite_in_thread()
        except OSError as problem:
            if self._doubtful:
                raise
            log.error("%s cannot be rewritten: %s", self._path, problem)
            self._kept_bytes = self._bytes  # the old file has every line

    async def close(self) -> None:
        """Sync and close the file."""
        if self._fd < 0:
            return
        if self._syncing is not None:
            await asyncio.gather(self._syncing, return_exceptions=True)
        await asyncio.to_thread(os.fdatasync, self._fd)
        os.close(self._fd)
        self._fd = -1


class _New:
    """The state of a rewrite: the new file."""

    def __init__(self) -> None:
        self.fd = -1
        self.missed: list[bytes] = []  # lines written before it existed
        self.broken = False  # it misses a line


def _write_new(path: Path, data: bytes) -> int:
    """Write and sync a file next to this one; may run on any thread. OSError."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC
    fd = os.open(path.with_suffix(".new"), flags, 0o640)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        os.fdatasync(fd)
    except OSError:
        os.close(fd)
        path.with_suffix(".new").unlink(missing_ok=True)  # on a full disk it would use up the rest
        raise
    return fd


def _cut_off(fd: int, count: int) -> bool:
    """Remove the last `count` bytes of a file; False: that is not possible."""
    try:
        os.ftruncate(fd, os.fstat(fd).st_size - count)
    except OSError:
        return False
    return True


def _replace(path: Path) -> None:
    """Replace this file with the new one; may run on any thread. OSError."""
    path.with_suffix(".new").replace(path)
    sync_path(path.parent)


def _sync_and_replace(path: Path, fd: int) -> None:
    os.fdatasync(fd)
    _replace(path)


def _sync_all(fd: int, folders: list[str]) -> None:
    """Sync an open file and whole folders of logs; may run on any thread."""
    os.fdatasync(fd)
    for folder in folders:
        with contextlib.suppress(FileNotFoundError):  # the channel was deleted meanwhile
            sync_path(Path(folder) / META)
            sync_path(Path(folder))
    for root in {Path(folder).parent for folder in folders}:
        sync_path(root)


def _known(kind: type[ClientRecord | SubRecord], values: dict[str, Any]) -> dict[str, Any]:
    """The values for which the record has fields."""
    names = {each.name for each in fields(kind)}
    return {name: value for name, value in values.items() if name in names}


def _line(entry: object) -> bytes:
    body = orjson.dumps(entry)
    return b"%08x %s\n" % (zlib.crc32(body), body)


def _entry(line: bytes) -> list[Any] | None:
    body = line[9:]
    if line[:9] != b"%08x " % zlib.crc32(body):
        return None
    entry = orjson.loads(body)
    return entry if isinstance(entry, list) else None
