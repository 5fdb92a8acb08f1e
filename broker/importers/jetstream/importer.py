"""Imports the store of a nats-server, stream by stream.

Each stream is built in a separate folder: its log, which is read back, and its configuration with
those of its consumers and their places. Both are synced and renamed to their places, the log first,
because a configuration without a log would be an empty stream. An interrupted import finishes the
renames of the last stream at the next run, and continues after it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from broker.base.durable import make_folder, sync_path
from broker.base.lockfile import DataLock, DataLockedError
from broker.base.problem import Problem
from broker.engine import limits as engine_limits
from broker.engine.engine import Engine
from broker.engine.log.files import MetaError, escape, load_meta
from broker.engine.stream.store import StreamLimits, StreamStore, open_store
from broker.importers import limits
from broker.importers.jetstream.source import find_streams, root_of
from broker.importers.nsqd import ImportRefusedError, Progress, sync_tree
from broker.importers.outcome import ImportOutcome
from broker.importers.stan import is_written
from broker.net.listener import Runtime
from broker.protocols.jetstream import files
from broker.protocols.jetstream.api import metadata
from broker.protocols.jetstream.backup.places import save_configs
from broker.protocols.jetstream.backup.stored import FoundStream, SourceError, Survey
from broker.protocols.jetstream.backup.transfer import Transfer, read_back
from broker.protocols.jetstream.limits import JS_ASSET_LEVEL_MAX
from broker.protocols.jetstream.service import JETSTREAM_FOLDER
from broker.routing.router import Router
from broker.server.engine import LOGS_FOLDER, engine_options, report

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from broker.config.config import Config
    from broker.protocols.jetstream.backup.stored import FoundConsumer

PROGRESS: Final = "import-jetstream.json"
STAGING: Final = ".import-jetstream"
_LOGS: Final = "logs"  # in it
_CONFIGS: Final = "jetstream"
_PROTOCOL: Final = "jetstream"
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
    gaps: int = 0  # seqs between the first and the last message without one
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
    """What the caller wants."""

    key: str = ""  # of the server, if its files are encrypted
    accounts: tuple[str, ...] = ()  # none: all
    verify: bool = True  # the checksum of each message


class Import:
    """One run."""

    def __init__(self, source: Path, data: Path, config: Config, options: Options) -> None:
        self.source = source.resolve()
        self.data = data
        self.config = config
        self.options = options
        self.advance: Callable[[int], object] = lambda _: None  # gets the number of bytes read
        self.outcome = Outcome()
        self.streams = find_streams(
            self.source, options.key, options.accounts, self.outcome.problems
        )

    @property
    def bytes(self) -> int:
        """Size of all blocks; each is read twice."""
        return 2 * sum(stream.bytes for stream in self.streams)

    # --- a dry run

    def look(self) -> Outcome:
        """Read everything and change nothing."""
        for found in self.streams:
            transfer = Transfer(found.tombstones, False)
            surveys = self._survey(found)
            for path, before in _in_order(surveys):
                transfer.move(found.block(path, verify=self.options.verify), None, before, _SEQ_MAX)
                self.advance(path.stat().st_size)
            stream = self._result(found, transfer, surveys, found.consumers())
            self._adjust(found)
            if (self.data / LOGS_FOLDER / escape(_log_of(found))).exists():
                self._exists(found)
            self.outcome.streams.append(stream)
        return self.outcome

    def _survey(self, found: FoundStream) -> list[Survey]:
        surveys = found.survey(verify=self.options.verify)
        self.advance(found.bytes)
        return surveys

    def _result(
        self,
        found: FoundStream,
        transfer: Transfer,
        surveys: list[Survey],
        consumers: list[FoundConsumer],
    ) -> Stream:
        last = max([found.tombstones.known_to, *(survey.last for survey in surveys)])
        for consumer in consumers:  # their seqs belong to messages that are gone
            last = max(last, consumer.state.delivered[0] if consumer.state else 0)
        last = max(last, found.config.first_seq - 1)
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
        self._finish_move(progress)
        shutil.rmtree(self.data / STAGING, ignore_errors=True)
        for found in self.streams:
            if _log_of(found) in progress.own["topics"]:
                self.advance(2 * found.bytes)
            elif self._place_of(found).exists() or self._config_place(found).exists():
                self._exists(found)
                self.advance(2 * found.bytes)
            else:
                await self._take(found, progress)
        shutil.rmtree(self.data / STAGING, ignore_errors=True)
        self.outcome.changed = signature(self.source) != before
        left = {_log_of(found) for found in self.streams} - set(progress.own["topics"])
        whole = not self.options.accounts and not left
        progress.own["finished"] = whole and not self.outcome.changed
        progress.own["problems"] = self.outcome.remarks
        progress.own["signature"] = before
        progress.save()
        return self.outcome

    def _place_of(self, found: FoundStream) -> Path:
        return self.data / LOGS_FOLDER / escape(_log_of(found))

    def _config_place(self, found: FoundStream) -> Path:
        return self.data / JETSTREAM_FOLDER / _config_path(found)

    def _exists(self, found: FoundStream) -> None:
        reason = f"stream {found.name} of account {found.account} exists already: not imported"
        self.outcome.problems.append(Problem(str(found.folder), 0, reason))

    def _finish_move(self, progress: Progress) -> None:
        """Complete an earlier run that ended between the renames of a stream."""
        moving = progress.own["moving"]
        if moving is None:
            return
        place = self.data / LOGS_FOLDER / escape(moving["log"])
        try:
            meta = load_meta(str(place))
        except MetaError:
            meta = None
        if meta is not None and meta["log_id"] == moving["log_id"]:
            self._move_config(Path(moving["config"]))
            progress.own["topics"][moving["log"]] = moving["messages"]
        progress.own["moving"] = None
        progress.save()

    def _move_config(self, path: Path) -> None:
        staged = self.data / STAGING / _CONFIGS / path
        place = self.data / JETSTREAM_FOLDER / path
        if staged.exists():
            make_folder(place.parent)
            staged.rename(place)
            sync_path(place.parent)

    async def _take(self, found: FoundStream, progress: Progress) -> None:
        staging = self.data / STAGING
        logs = staging / _LOGS
        log_name = _log_of(found)
        transfer = Transfer(found.tombstones, found.config.allow_msg_ttl)
        surveys = self._survey(found)
        consumers = found.consumers()
        async with self._engine(logs) as engine:
            store = _open(engine, log_name)
            await self._fill(engine, store, found, transfer, surveys)
            stream = self._result(found, transfer, surveys, consumers)
            await store.skip_to(stream.last + 1)
            await _settle(engine, store)
            log_id = store.log.log_id.hex()
            store.close()
        async with self._engine(logs) as engine:
            store = _open(engine, log_name)
            if read_back(store) != (transfer.messages, transfer.digest):
                raise OSError(f"{store.log.folder}: the written log differs when it is read back")
            store.close()
        self._adjust(found)
        config = staging / _CONFIGS / _config_path(found)
        stored = files.StoredStream(created=found.created, config=found.config)
        save_configs(config, stored, consumers)
        sync_tree(staging)
        progress.own["moving"] = {
            "log": log_name,
            "log_id": log_id,
            "config": str(_config_path(found)),
            "messages": stream.messages,
        }
        progress.save()
        (logs / escape(log_name)).rename(self._place_of(found))
        sync_path(self.data / LOGS_FOLDER)
        self._move_config(_config_path(found))
        progress.own["topics"][log_name] = stream.messages
        progress.own["moving"] = None
        progress.save()
        self.outcome.streams.append(stream)

    async def _fill(
        self,
        engine: Engine,
        store: StreamStore,
        found: FoundStream,
        transfer: Transfer,
        surveys: list[Survey],
    ) -> None:
        for path, before in _in_order(surveys):
            block = found.block(path, verify=self.options.verify)
            while transfer.move(block, store, before, limits.IMPORT_BATCH_BYTES):
                await _settle(engine, store)
            await _settle(engine, store)
            self.advance(path.stat().st_size)

    def _adjust(self, found: FoundStream) -> None:
        """Change what one server cannot have."""
        config = found.config
        path = found.folder
        if config.num_replicas > 1:
            found.problem(path, 0, f"it had {config.num_replicas} replicas and has one now")
        config.num_replicas = 1
        level = max(metadata.stream_level(config), metadata.required_level(config.metadata))
        if level > JS_ASSET_LEVEL_MAX:
            found.problem(path, 0, f"it requires API level {level}: this server keeps it offline")
        config.metadata = metadata.stored(config.metadata, level)

    @contextlib.asynccontextmanager
    async def _engine(self, folder: Path) -> AsyncIterator[Engine]:
        runtime = Runtime()
        bounds = replace(engine_options(self.config), to_live=False, from_live=False)
        router = Router(engine_limits.ROUTER_CACHE_SUBJECTS, engine_limits.ROUTER_CACHE_REFS)
        make_folder(folder)
        engine = Engine(runtime.turn, router, str(folder), bounds, lambda _: "none", report)
        engine.open(runtime.loop)
        try:
            yield engine
        finally:
            await engine.close()


async def _settle(engine: Engine, store: StreamStore) -> None:
    await engine.settle()
    if store.log.last_error:
        raise OSError(store.log.last_error, os.strerror(store.log.last_error), store.log.folder)


def _open(engine: Engine, name: str) -> StreamStore:
    """The log of a stream without limits: these apply when a server opens it."""
    return open_store(engine, name, StreamLimits(), protocol=_PROTOCOL, sync="none")


def _log_of(found: FoundStream) -> str:
    return files.log_of(found.account, files.token_of(found.name))


def _config_path(found: FoundStream) -> Path:
    return Path(files.token_of(found.account), files.token_of(found.name))


def _in_order(surveys: list[Survey]) -> Iterator[tuple[Path, int]]:
    """Each block, with the seq from which on later blocks have the better copies."""
    before = _SEQ_MAX
    found = []
    for survey in reversed(surveys):
        found.append((survey.path, before))
        before = min(before, survey.first or before)
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
    """ImportRefusedError: a server uses the folder. It takes no lock, and closes idle files."""
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
