"""Imports the store of a nats-server, stream by stream.

Each stream is built in a separate folder: its log, which is read back, and its configuration with
the configurations and positions of its consumers. Both are then moved into the data folder (see
staging.py). An interrupted import continues after the last stream that was moved.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from broker.base.durable import make_folder
from broker.base.lockfile import DataLock, DataLockedError
from broker.base.problem import Problem
from broker.engine.engine import Engine
from broker.engine.stream.store import StreamStore
from broker.importers import limits
from broker.importers.jetstream.source import find_streams, root_of
from broker.importers.jetstream.staging import Staging, log_of, open_stream, settle
from broker.importers.nsqd import ImportRefusedError, Progress
from broker.importers.outcome import ImportOutcome
from broker.importers.stan import is_written
from broker.protocols.jetstream import files
from broker.protocols.jetstream.api import metadata
from broker.protocols.jetstream.backup.states import save_configs
from broker.protocols.jetstream.backup.stored import BlockRange, FoundStream, SourceError
from broker.protocols.jetstream.backup.transfer import Transfer, read_back
from broker.protocols.jetstream.limits import JS_ASSET_LEVEL_MAX, JS_TAKEN_SEQ_MAX
from broker.server.engine import LOGS_FOLDER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from broker.config.config import Config
    from broker.protocols.jetstream.backup.stored import FoundConsumer

PROGRESS: Final = "import-jetstream.json"
STAGING: Final = ".import-jetstream"
_SEQ_MAX: Final = (1 << 64) - 1


@dataclass
class Stream:
    """The result for one stream."""

    account: str
    name: str
    messages: int = 0
    bytes: int = 0
    first: int = 0
    last: int = 0  # the last seq that was used
    gaps: int = 0  # seqs without a message between the first and the last message
    consumers: int = 0
    unacked: int = 0

    def __str__(self) -> str:
        extent = f" ({self.first}-{self.last}, {self.gaps} deleted)" if self.messages else ""
        return (
            f"{self.account} {self.name}: {self.messages} messages{extent}, {self.bytes} bytes,"
            f" {self.consumers} consumers, {self.unacked} unacknowledged"
        )


@dataclass
class Outcome(ImportOutcome):
    """The result of one run."""

    streams: list[Stream] = field(default_factory=list)

    @property
    def messages(self) -> int:
        """Number of messages of all streams."""
        return sum(stream.messages for stream in self.streams)


@dataclass(frozen=True)
class Options:
    """The options of a run."""

    key: str = ""  # of the server, if its files are encrypted
    accounts: tuple[str, ...] = ()  # accounts to import; empty: all
    verify: bool = True  # verify the checksum of each message


class Import:
    """One run."""

    def __init__(self, source: Path, data: Path, config: Config, options: Options) -> None:
        self.source = source.resolve()
        self.data = data
        self.config = config
        self.options = options
        self.advance: Callable[[int], object] = lambda _: None  # called with counts of bytes read
        self.outcome = Outcome()
        self.staging = Staging(data, config, STAGING)
        self.streams = find_streams(
            self.source, options.key, options.accounts, self.outcome.problems
        )

    @property
    def bytes(self) -> int:
        """The bytes to read: each block is read twice."""
        return 2 * sum(stream.bytes for stream in self.streams)

    # --- a dry run

    def inspect(self) -> Outcome:
        """Read everything and change nothing."""
        for found in self.streams:
            transfer = Transfer(found.tombstones, False)
            blocks = self._scan(found)
            if self._is_beyond(found, blocks):
                self.advance(found.bytes)
                continue
            for path, before in _in_order(blocks):
                transfer.move(found.block(path, verify=self.options.verify), None, before, _SEQ_MAX)
                self.advance(path.stat().st_size)
            stream = self._result(found, transfer, blocks, found.consumers())
            self._adjust(found)
            if self.staging.has(found.account, found.name):
                self._report_existing(found)
            self.outcome.streams.append(stream)
        return self.outcome

    def _scan(self, found: FoundStream) -> list[BlockRange]:
        blocks = found.scan(verify=self.options.verify)
        self.advance(found.bytes)
        return blocks

    def _is_beyond(self, found: FoundStream, blocks: list[BlockRange]) -> bool:
        """Whether the stream has sequences that are too large for a log here; that is reported."""
        last = max((block.last for block in blocks), default=0)
        if last <= JS_TAKEN_SEQ_MAX:
            return False
        found.problem(found.folder, 0, f"it has the sequence {last}: not imported")
        return True

    def _result(
        self,
        found: FoundStream,
        transfer: Transfer,
        blocks: list[BlockRange],
        consumers: list[FoundConsumer],
    ) -> Stream:
        last = max([found.tombstones.known_to, *(block.last for block in blocks)])
        for consumer in consumers:  # the last delivered messages may have been deleted
            last = max(last, consumer.state.delivered[0] if consumer.state else 0)
        last = min(max(last, found.config.first_seq - 1), JS_TAKEN_SEQ_MAX)
        pending = [each.state.pending for each in consumers if each.state]
        gaps = transfer.last - transfer.first + 1 - transfer.messages if transfer.messages else 0
        for seq in transfer.too_large:
            found.problem(found.folder, 0, f"message {seq} is too large: it is not imported")
        return Stream(
            found.account,
            found.name,
            transfer.messages,
            transfer.bytes,
            transfer.first,
            max(last, transfer.last),
            gaps,
            len(consumers),
            sum(len(each) for each in pending),
        )

    # --- the import

    async def run(self) -> Outcome:
        """Import the remaining streams; the caller holds the lock of the data folder."""
        progress = Progress(self.data, self.source, PROGRESS)
        if progress.own["finished"]:
            self.outcome.already = True
            self.outcome.remembered = list(progress.own["problems"])
            self.outcome.changed = progress.own["signature"] != signature(self.source)
            return self.outcome
        before = signature(self.source)
        make_folder(self.data / LOGS_FOLDER)
        self.staging.finish_move(progress)
        self.staging.clear()
        for found in self.streams:
            if _log_of(found) in progress.own["topics"]:
                self.advance(2 * found.bytes)
            elif self.staging.has(found.account, found.name):
                self._report_existing(found)
                self.advance(2 * found.bytes)
            else:
                await self._import_stream(found, progress)
        self.staging.clear()
        self.outcome.changed = signature(self.source) != before
        remaining = {_log_of(found) for found in self.streams} - set(progress.own["topics"])
        is_complete = not self.options.accounts and not remaining
        progress.own["finished"] = is_complete and not self.outcome.changed
        progress.own["problems"] = self.outcome.remarks
        progress.own["signature"] = before
        progress.save()
        return self.outcome

    def _report_existing(self, found: FoundStream) -> None:
        reason = f"stream {found.name} of account {found.account} exists already: not imported"
        self.outcome.problems.append(Problem(str(found.folder), 0, reason))

    async def _import_stream(self, found: FoundStream, progress: Progress) -> None:
        staging, log_name = self.staging, _log_of(found)
        transfer = Transfer(found.tombstones, found.config.allow_msg_ttl)
        blocks = self._scan(found)
        if self._is_beyond(found, blocks):
            self.advance(found.bytes)
            return
        consumers = found.consumers()
        async with staging.engine(staging.logs) as engine:
            store = open_stream(engine, log_name)
            await self._fill(engine, store, found, transfer, blocks)
            stream = self._result(found, transfer, blocks, consumers)
            await store.skip_to(stream.last + 1)
            await settle(engine, store)
            log_id = store.log.log_id.hex()
            store.close()
        async with staging.engine(staging.logs) as engine:
            store = open_stream(engine, log_name)
            if read_back(store) != (transfer.messages, transfer.digest):
                raise OSError(f"{store.log.folder}: the written log differs when it is read back")
            store.close()
        self._adjust(found)
        stored = files.StoredStream(created=found.created, config=found.config)
        save_configs(staging.config_folder(found.account, found.name), stored, consumers)
        staging.move(found.account, found.name, log_id, stream.messages, progress)
        self.outcome.streams.append(stream)

    async def _fill(
        self,
        engine: Engine,
        store: StreamStore,
        found: FoundStream,
        transfer: Transfer,
        blocks: list[BlockRange],
    ) -> None:
        for path, before in _in_order(blocks):
            block = found.block(path, verify=self.options.verify)
            while transfer.move(block, store, before, limits.IMPORT_BATCH_BYTES):
                await settle(engine, store)
            await settle(engine, store)
            self.advance(path.stat().st_size)

    def _adjust(self, found: FoundStream) -> None:
        """Change settings that a single server does not support."""
        config = found.config
        path = found.folder
        if config.num_replicas > 1:
            found.problem(path, 0, f"it had {config.num_replicas} replicas and has one now")
        config.num_replicas = 1
        level = max(metadata.stream_level(config), metadata.required_level(config.metadata))
        if level > JS_ASSET_LEVEL_MAX:
            found.problem(path, 0, f"it requires API level {level}: this server keeps it offline")
        config.metadata = metadata.stored(config.metadata, level)


def _log_of(found: FoundStream) -> str:
    return log_of(found.account, found.name)


def _in_order(blocks: list[BlockRange]) -> Iterator[tuple[Path, int]]:
    """Each block, and the first seq of later blocks: from there on their copies are used."""
    before = _SEQ_MAX
    found = []
    for block in reversed(blocks):
        found.append((block.path, before))
        before = min(before, block.first or before)
    return reversed(found)


def signature(source: Path) -> list[list[object]]:
    """The state of the files, which changes if a server runs on them again."""
    found: list[list[object]] = []
    for path in sorted(root_of(source).rglob("*")):
        if path.suffix in {".blk", ".inf", ".dat"}:
            status = path.stat()
            found.append([str(path.relative_to(source)), status.st_size, status.st_mtime_ns])
    return found


def _refuse_busy(source: Path) -> None:
    """ImportRefusedError: a nats-server uses the folder. It locks nothing and closes idle files, so
    a recent write counts as use."""
    newest = 0.0
    for path in source.rglob("*.blk"):
        newest = max(newest, path.stat().st_mtime)
        if is_written(path):
            raise ImportRefusedError(f"{source} is in use by a running nats-server: stop it first")
    if 0 <= time.time() - newest < limits.IMPORT_QUIET_SECONDS:
        raise ImportRefusedError(
            f"{source} was written to a moment ago: stop the nats-server, and try again"
        )


@contextlib.contextmanager
def importing(
    source: Path, data: Path, config: Config, options: Options, *, dry: bool = False
) -> Iterator[Callable[[], Import]]:
    """Lock the data folder during the import, if it is written to."""
    root = root_of(source)
    if root.resolve() in (data.resolve(), *data.resolve().parents):
        raise ImportRefusedError(f"{data} is inside {root}, which must not change")
    try:
        _refuse_busy(root)
        with contextlib.nullcontext() if dry else DataLock(data):
            yield lambda: Import(source, data, config, options)
    except (SourceError, DataLockedError, OSError, OverflowError, msgspec.MsgspecError) as error:
        raise ImportRefusedError(str(error)) from error
