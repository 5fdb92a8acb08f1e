"""Imports the file store of a NATS Streaming server, channel by channel.

As with nsqd each channel is built in a separate folder, read back, synced and renamed into the
folder of logs. Before the rename the records of its subscriptions are written to the file of
clients, so that no channel exists without its subscriptions. If the rename was not done, the next
run removes these records and writes them again.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import signal
import zlib
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from broker.base.durable import make_folder, remove_folder, sync_path
from broker.base.lockfile import DataLock, DataLockedError
from broker.base.problem import Problem
from broker.engine.cursor.cursor import open_cursor
from broker.engine.cursor.local import peek_log
from broker.engine.engine import Engine
from broker.engine.log.files import escape
from broker.engine.log.policy import LIMITS
from broker.engine.log.publish import append_at, check_appends
from broker.engine.names import pattern_matches
from broker.importers import limits
from broker.importers.engine import import_engine
from broker.importers.nsqd import (
    ImportRefusedError,
    Progress,
    batches,
    is_in_place,
    sync_tree,
)
from broker.importers.outcome import ImportOutcome
from broker.importers.stan_files import (
    CLIENTS,
    SERVER,
    Extent,
    ImportedCursor,
    Info,
    SourceError,
    Stored,
    channel_names,
    cursors_of,
    indexed,
    looks_encrypted,
    messages,
    read_clients,
    read_info,
    read_subs,
    slices,
)
from broker.protocols.access import STAN
from broker.protocols.stan.store import STAN_FOLDER, ForeignStateError, Store
from broker.server.engine import LOGS_FOLDER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from broker.config.config import Config
    from broker.engine.log.log import Log

PROGRESS = "import-stan.json"
STAGING = ".import-stan"
LOCK = ".rootdir.lck"  # of a fault tolerance group
_SET_SIGNAL = 10  # F_SETSIG
_KEPT_OPEN = (SERVER, CLIENTS)


@dataclass
class Channel:
    """The result for one channel."""

    name: str
    messages: int = 0
    first: int = 0
    last: int = 0
    next_seq: int = 1  # sequence number of the next message
    subscriptions: int = 0
    unacked: int = 0
    digest: int = field(default=0, repr=False)  # checksum of all messages, for comparison

    def add(self, sequence: int, timestamp_ns: int, body: bytes) -> None:
        """Count a message."""
        self.messages += 1
        self.first = self.first or sequence
        self.last = sequence
        self.digest = zlib.crc32(
            body, zlib.crc32(b"%d %d " % (sequence, timestamp_ns), self.digest)
        )

    def __str__(self) -> str:
        extent = f" ({self.first}-{self.last})" if self.messages else ""
        return (
            f"{self.name}: {self.messages} messages{extent}, {self.subscriptions} subscriptions,"
            f" {self.unacked} unacknowledged"
        )


@dataclass
class Outcome(ImportOutcome):
    """The result of one run."""

    cluster_id: str
    channels: list[Channel] = field(default_factory=list)
    clients: int = 0

    @property
    def messages(self) -> int:
        """Number of messages of all channels."""
        return sum(channel.messages for channel in self.channels)


def signature(source: Path) -> list[list[object]]:
    """The state of the files, which changes if a server uses the folder again."""
    found: list[list[object]] = []
    for path in sorted(source.rglob("*.dat")):
        status = path.stat()
        found.append([str(path.relative_to(source)), status.st_size, status.st_mtime_ns])
    return found


class Import:
    """One run; `patterns`: the channels to import, empty = all."""

    def __init__(
        self, source: Path, data: Path, config: Config, patterns: Sequence[str] = ()
    ) -> None:
        self.source = source.resolve()
        self.data = data
        self.config = config
        self.advance: Callable[[int], object] = lambda _: None  # called with counts of bytes read
        problems: list[Problem] = []
        info = self._identify(problems)
        self.outcome = Outcome(info.cluster_id, problems=problems)
        names = channel_names(self.source, problems)
        self.clients = read_clients(self.source, problems)
        self.selected = [
            name
            for name in names
            if not patterns or any(pattern_matches(each, name) for each in patterns)
        ]
        self.all_selected = len(self.selected) == len(names)
        for name in self.selected:
            if looks_encrypted(self.source, name):
                raise SourceError(
                    f"{self.source}: the messages of channel {name} are encrypted: encrypted stores"
                    " cannot be imported"
                )

    def _identify(self, problems: list[Problem]) -> Info:
        try:
            info = read_info(self.source)
        except SourceError as error:
            if error.damaged is None:
                raise
            problems.append(error.damaged)
            return Info(self.config.stan.cluster_id, "")
        if info.node_id:
            reason = (
                f"this was node {info.node_id!r} of a cluster, which keeps clients and"
                " subscriptions in its Raft log: only messages are imported"
            )
            problems.append(Problem(str(self.source), 0, reason))
        return info

    @property
    def bytes(self) -> int:
        """Size of all messages to read."""
        return sum(self._size(name) for name in self.selected)

    def _size(self, name: str) -> int:
        return sum(path.stat().st_size for path in slices(self.source, name, []))

    # --- a dry run

    def inspect(self) -> Outcome:
        """Read everything and change nothing."""
        self.outcome.clients = len(self.clients)
        for name in self.selected:
            channel = Channel(name)
            for stored in messages(self.source, name, self.outcome.problems):
                channel.add(stored.sequence, stored.timestamp_ns, stored.body)
                self.advance(stored.size)
            self._subscriptions(channel, set(self.clients), 1)
            self._check_count(channel)
            if (self.data / LOGS_FOLDER / escape(name)).exists():
                self._report_existing(name)
            self.outcome.channels.append(channel)
        return self.outcome

    # --- the import

    async def run(self) -> Outcome:
        """Import the remaining channels; the caller holds the lock of the data folder."""
        progress = Progress(self.data, self.source, PROGRESS)
        if progress.own["finished"]:
            self.outcome.already = True
            self.outcome.remembered = list(progress.own["problems"])
            self.outcome.changed = progress.own["signature"] != signature(self.source)
            return self.outcome
        before = signature(self.source)
        try:
            store = Store(self.data / STAN_FOLDER, self.outcome.cluster_id)
        except ForeignStateError as error:
            raise ImportRefusedError(str(error)) from None
        try:
            await self._run(progress, store)
        finally:
            await store.close()
        self.outcome.changed = signature(self.source) != before
        remaining = set(self.selected) - set(progress.own["topics"])
        is_complete = self.all_selected and not remaining
        progress.own["finished"] = is_complete and not self.outcome.changed
        progress.own["problems"] = self.outcome.remarks
        progress.own["signature"] = before
        progress.save()
        return self.outcome

    async def _run(self, progress: Progress, store: Store) -> None:
        staging = self.data / STAGING
        make_folder(self.data / LOGS_FOLDER)
        self._finish_move(progress, store)
        remove_folder(staging)
        clients = self._import_clients(progress, store)
        for name in self.selected:
            if name in progress.own["topics"]:
                self.advance(self._size(name))
            elif (self.data / LOGS_FOLDER / escape(name)).exists():
                self._report_existing(name)
                self.advance(self._size(name))
            else:
                await self._import_channel(name, clients, progress, store)

    def _report_existing(self, name: str) -> None:
        reason = f"channel {name} exists already: not imported"
        self.outcome.problems.append(Problem(str(self.source / name), 0, reason))

    def _finish_move(self, progress: Progress, store: Store) -> None:
        """Complete an earlier run that ended between the rename of a channel and its progress
        entry."""
        moving = progress.own["moving"]
        if moving is None:
            return
        if is_in_place(self.data, moving["name"], moving["log_id"]):
            progress.own["topics"][moving["name"]] = moving["messages"]
        else:
            for record in moving["records"]:
                known = store.subs.get(record["number"])
                if known is not None and asdict(known) == record:
                    store.remove_sub(known)
            store.sync()
        progress.own["moving"] = None
        progress.save()

    def _import_clients(self, progress: Progress, store: Store) -> set[str]:
        """Import the connected clients, and return their ids. The first run decides which ids: an
        id that is registered by then belongs to another client."""
        if "clients" not in progress.own:
            progress.own["clients"] = [name for name in self.clients if name not in store.clients]
            self.outcome.clients = len(progress.own["clients"])
            progress.save()
        imported = set(progress.own["clients"])
        for client in self.clients.values():
            if client.client_id in imported and client.client_id not in store.clients:
                store.add_client(client)
        store.sync()
        return imported

    async def _import_channel(
        self, name: str, clients: set[str], progress: Progress, store: Store
    ) -> None:
        channel = Channel(name)
        staging = self.data / STAGING
        async with import_engine(self.config, staging) as engine:
            log = engine.open_log(name, protocol=STAN, retention=LIMITS)
            await self._fill(engine, log, channel)
            found = self._subscriptions(channel, clients, store.next_number)
            if channel.next_seq > log.next_seq:
                log.skip_to(channel.next_seq)
            for imported in found:
                self._create_cursor(log, imported)
            log_id = log.log_id.hex()
        async with import_engine(self.config, staging) as engine:
            self._compare(engine.open_log(name, protocol=STAN), channel)
        self._check_count(channel)
        sync_tree(staging)
        records = [record for imported in found for record in imported.records]
        progress.own["moving"] = {
            "name": name,
            "log_id": log_id,
            "messages": channel.messages,
            "records": [asdict(record) for record in records],
        }
        progress.save()
        for record in records:
            store.put_sub(record)
        store.sync()
        folder = escape(name)
        (staging / folder).rename(self.data / LOGS_FOLDER / folder)
        sync_path(self.data / LOGS_FOLDER)
        progress.own["topics"][name] = channel.messages
        progress.own["moving"] = None
        progress.save()
        self.outcome.channels.append(channel)

    async def _fill(self, engine: Engine, log: Log, channel: Channel) -> None:
        for batch in batches(messages(self.source, channel.name, self.outcome.problems)):
            for stored in batch:
                await self._append(engine, log, stored)
                channel.add(stored.sequence, stored.timestamp_ns, stored.body)
            await self._settle(engine, log)
            self.advance(sum(stored.size for stored in batch))

    async def _append(self, engine: Engine, log: Log, stored: Stored) -> None:
        if stored.sequence != log.next_seq:
            await self._settle(engine, log)
            log.skip_to(stored.sequence)
        append_at(log, stored.body, stored.timestamp_ns, reply=stored.reply.encode())

    async def _settle(self, engine: Engine, log: Log) -> None:
        await engine.settle()
        check_appends(log)

    def _subscriptions(
        self, channel: Channel, clients: set[str], number: int
    ) -> list[ImportedCursor]:
        subs = read_subs(self.source, channel.name, self.outcome.problems)
        # The index and the subscriptions may name sequence numbers of lost messages, which must not
        # be used again.
        last = max(channel.last, indexed(self.source, channel.name).last)
        last = max(last, max((sub.last_sent for sub in subs), default=0))
        channel.next_seq = last + 1
        extent = Extent(channel.name, channel.first or channel.next_seq, channel.next_seq)
        found = cursors_of(extent, subs, clients, number)
        channel.subscriptions = sum(len(imported.records) for imported in found)
        channel.unacked = sum(len(imported.unacked) for imported in found)
        return found

    def _create_cursor(self, log: Log, imported: ImportedCursor) -> None:
        cursor = open_cursor(log, imported.cursor, start=imported.next_seq)
        try:
            cursor.set_state(imported.next_seq, imported.unacked)
        except OverflowError as error:
            # The cursor starts at the first message without an ack: later messages are delivered
            # again, even if they were acknowledged.
            cursor.set_state(min(imported.unacked), ())
            subscription = asdict(imported.records[0])
            reason = f"subscription {subscription}: {error}: it starts at the first message"
            self.outcome.problems.append(Problem(str(self.source / log.name), 0, reason))

    def _compare(self, log: Log, channel: Channel) -> None:
        """Read the written log back and compare it. OSError: it differs."""
        found = Channel(channel.name)
        at: int | None = log.first_seq
        while at is not None:
            page = peek_log(log, at, limits.IMPORT_BATCH)
            records = page.read(limits.IMPORT_BATCH_BYTES)
            for sequence, (timestamp_ns, _, _, _, _, body, _) in sorted(records.items()):
                found.add(sequence, timestamp_ns, body)
            at = page.next_seq
        if (found.messages, found.digest) != (channel.messages, channel.digest):
            raise OSError(f"{log.folder}: the written log differs when it is read back")

    def _check_count(self, channel: Channel) -> None:
        index = indexed(self.source, channel.name)
        if index.complete and index.messages != channel.messages:
            reason = f"the index has {index.messages} messages, the files have {channel.messages}"
            self.outcome.problems.append(Problem(str(self.source / channel.name), 0, reason))


# --- the source


class Hold:
    """A lock of the folder: no server of a fault tolerance group can start on it."""

    def __init__(self, source: Path) -> None:
        """Lock the folder. ImportRefusedError: a server uses it."""
        self.source = source
        self._fd = -1
        if not source.is_dir():
            raise ImportRefusedError(_not_a_folder(source))
        try:
            self._fd = self._lock()
            if any(is_written(source / name) for name in _KEPT_OPEN):
                raise ImportRefusedError(_busy(source))
        except BaseException:
            self.release()
            raise

    def _lock(self) -> int:
        try:
            fd = os.open(self.source / LOCK, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return -1  # no such group, or its file may not be read
        try:
            fcntl.lockf(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EACCES):
                os.close(fd)
                raise ImportRefusedError(_busy(self.source)) from None
        return fd

    def release(self) -> None:
        """Release the folder."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Hold:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def is_written(path: Path) -> bool:
    """Whether a process has the file open for writing. If leases are not possible: whether another
    process that this one may inspect has it open."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False  # the reader of the file reports it
    try:
        # A broken lease sends this signal, whose default action does not end the process.
        fcntl.fcntl(fd, _SET_SIGNAL, signal.SIGURG)
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except OSError as error:
        if error.errno == errno.EAGAIN:
            return True
        return _is_open(os.fstat(fd))
    finally:
        os.close(fd)
    return False


def _is_open(selected: os.stat_result) -> bool:
    """Whether another process, among those that this one may inspect, has the file open."""
    for process in Path("/proc").iterdir():
        if not process.name.isdigit() or int(process.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            for entry in (process / "fd").iterdir():
                with contextlib.suppress(OSError):
                    if os.path.samestat(entry.stat(), selected):
                        return True
    return False


def _busy(source: Path) -> str:
    return f"{source} is in use by a running nats-streaming-server: stop it first"


def _not_a_folder(source: Path) -> str:
    return f"{source} is not a folder (SQL stores cannot be imported)"


@contextlib.contextmanager
def importing(
    source: Path, data: Path, config: Config, patterns: Sequence[str] = (), *, dry: bool = False
) -> Iterator[Callable[[], Import]]:
    """Lock both folders during the import; the data folder only if it is written to.
    ImportRefusedError."""
    if source.resolve() in (data.resolve(), *data.resolve().parents):
        raise ImportRefusedError(f"{data} is inside {source}, which must not change")
    try:
        with Hold(source), contextlib.nullcontext() if dry else DataLock(data):
            yield lambda: Import(source, data, config, patterns)
    except (SourceError, DataLockedError, OSError, OverflowError) as error:
        raise ImportRefusedError(str(error)) from error
