"""Makes streams of JetStream from the channels of NATS Streaming in the same data folder.

Messages keep their sequences, times and headers. A durable subscription becomes a durable pull
consumer at the same position. As with other imports each stream is built in a separate folder, read
back, and moved when it is complete. With `remove` the channel is removed after the move, so that
the messages always exist at least once.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from broker.base.durable import make_folder
from broker.base.lockfile import DataLock, DataLockedError
from broker.base.units import SECOND
from broker.engine.cursor.cursor import cursors_of
from broker.engine.cursor.local import DEFERRED, IN_FLIGHT, WAITING, peek_cursor, peek_log
from broker.engine.names import pattern_matches
from broker.importers import limits
from broker.importers.jetstream.staging import Staging, log_of, open_stream, settle
from broker.importers.nsqd import ImportRefusedError, Progress
from broker.protocols.access import APART, STAN
from broker.protocols.jetstream import files
from broker.protocols.jetstream.api import checks, metadata
from broker.protocols.jetstream.backup.states import save_configs
from broker.protocols.jetstream.backup.stored import FoundConsumer, Pending, State
from broker.protocols.jetstream.backup.transfer import Transfer, read_back
from broker.protocols.jetstream.blocks.records import Tombstones
from broker.protocols.jetstream.config import JetStreamConfig
from broker.protocols.jetstream.consumers import checks as consumer_checks
from broker.protocols.jetstream.errors import ApiError
from broker.protocols.jetstream.service import JETSTREAM_FOLDER
from broker.protocols.jetstream.structs import (
    AccountLimits,
    ConsumerConfig,
    StreamConfig,
    time_text,
)
from broker.protocols.nats.accounts.subjects import collide
from broker.protocols.nats.conf.text import ConfErrors
from broker.protocols.nats.section import nats_settings
from broker.protocols.nats.settings import GLOBAL_ACCOUNT
from broker.protocols.stan.channels import CURSOR_PREFIX
from broker.protocols.stan.store import STAN_FOLDER, ForeignStateError, Store
from broker.server.engine import LOGS_FOLDER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from broker.config.config import Config
    from broker.engine.cursor.cursor import Cursor
    from broker.engine.engine import Engine
    from broker.engine.log.log import Log
    from broker.engine.stream.store import StreamStore
    from broker.protocols.stan.store import SubRecord

PROGRESS: Final = "adopt-channels.json"
STAGING: Final = ".adopt-channels"
_SOURCE: Final = "channels"  # the name of the source in the progress file
_LETTER: Final = "_"  # replaces characters that names of streams and consumers cannot have
_PAGE: Final = 10_000  # outstanding messages of a subscription that are listed at a time


@dataclass
class Adopted:
    """The result for one channel."""

    channel: str
    stream: str
    messages: int = 0
    first: int = 0
    last: int = 0  # the last sequence that was used
    gaps: int = 0  # sequences from `first` to `last` without a readable message
    consumers: list[str] = field(default_factory=list)
    unacked: int = 0
    is_whole: bool = True  # all messages and all durables were adopted
    removed: bool = False

    def __str__(self) -> str:
        gaps = f", {self.gaps} missing" * (self.gaps > 0)
        removed = ", channel removed" * self.removed
        extent = f" ({self.first}-{self.last}{gaps})" if self.messages else ""
        return (
            f"{self.channel} -> {self.stream}: {self.messages} messages{extent},"
            f" {len(self.consumers)} consumers, {self.unacked} unacknowledged{removed}"
        )


@dataclass
class Outcome:
    """The result of one run."""

    channels: list[Adopted] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)  # everything that was not adopted unchanged

    @property
    def messages(self) -> int:
        """Number of messages of all streams."""
        return sum(each.messages for each in self.channels)


@dataclass(frozen=True)
class Options:
    """The options of a run."""

    account: str = ""  # of the streams; empty: that of NATS Streaming
    patterns: tuple[str, ...] = ()  # of channels; empty: all
    stream: str = ""  # the name of the stream, if there is only one channel
    remove: bool = False  # remove the channels afterwards


def _may_exist(account: str, config: Config) -> bool:
    """Whether the configuration has this account, or a resolver, which may have it."""
    settings = nats_settings(config)
    names = {GLOBAL_ACCOUNT, *(each.name for each in settings.accounts)}
    return settings.resolver is not None or account in names


class Adoption:
    """One run; the caller holds the lock of the data folder."""

    def __init__(self, data: Path, config: Config, options: Options) -> None:
        self.data = data
        self.config = config
        self.options = options
        self.account = options.account or config.stan.account
        self.advance: Callable[[int], object] = lambda _: None  # called with message counts
        self.begin: Callable[[int], object] = lambda _: None  # called first, with the total
        self.outcome = Outcome()
        self.staging = Staging(data, config, STAGING)

    async def run(self, *, dry: bool = False) -> Outcome:
        """Adopt the channels; `dry`: only read them. ImportRefusedError, OSError."""
        try:
            exists = _may_exist(self.account, self.config)
        except ConfErrors as error:
            raise ImportRefusedError(str(error)) from None
        if not exists:
            raise ImportRefusedError(
                f"there is no account {self.account}: nobody could log in to it"
            )
        if not (self.data / LOGS_FOLDER).is_dir():
            raise ImportRefusedError(f"{self.data} has no logs: nothing to adopt")
        progress = None if dry else Progress(self.data, self.data / _SOURCE, PROGRESS)
        if progress is not None:
            self.staging.finish_move(progress)
        self.staging.clear()
        try:
            store = Store(self.data / STAN_FOLDER, self.config.stan.cluster_id)
        except ForeignStateError as error:
            raise ImportRefusedError(str(error)) from None
        try:
            async with self.staging.engine(self.data / LOGS_FOLDER) as engine:
                await self._run(engine, store, progress)
        finally:
            await store.close()
        self.staging.clear()
        return self.outcome

    async def _run(self, engine: Engine, store: Store, progress: Progress | None) -> None:
        for name, reason in sorted(engine.quarantined.items()):
            self._problem(name, f"this log cannot be opened: {reason}")
        selected = self._select(engine)
        self.begin(sum(log.next_seq - log.first_seq for log in selected.values()))
        existing = self._streams()
        for channel, log in selected.items():
            config = self._stream_config(channel)
            if config is None or not self._is_free(channel, config, existing):
                self.advance(log.next_seq - log.first_seq)
                continue
            existing.append(config)
            adopted = await self._adopt(channel, log, config, store, progress)
            if self.options.remove:
                self._remove(engine, log, store, adopted, dry=progress is None)
            self.outcome.channels.append(adopted)

    def _select(self, engine: Engine) -> dict[str, Log]:
        """The logs of the selected channels, by channel. ImportRefusedError: there is none, or
        several for one stream."""
        patterns = self.options.patterns
        found = {
            name.removeprefix(APART): log
            for name, log in sorted(engine.logs.items())
            if log.protocol == STAN
        }
        selected = {
            channel: log
            for channel, log in found.items()
            if not patterns or any(pattern_matches(each, channel) for each in patterns)
        }
        if not selected:
            raise ImportRefusedError("there is no such channel")
        if self.options.stream and len(selected) > 1:
            raise ImportRefusedError(
                f"{len(selected)} channels cannot become one stream {self.options.stream}"
            )
        return selected

    def _streams(self) -> list[StreamConfig]:
        """The configurations of the account's streams."""
        folder = self.data / JETSTREAM_FOLDER / files.token_of(self.account)
        if not folder.is_dir():
            return []
        return [each.stored.config for each in files.find_streams(folder)[0] if each.stored]

    def _problem(self, name: str, reason: str) -> None:
        self.outcome.remarks.append(f"{name}: {reason}")

    # --- configurations

    def _stream_config(self, channel: str) -> StreamConfig | None:
        """The configuration of the stream for a channel, with the same limits; None: it would be
        invalid, which is reported."""
        bounds = self.config.stan.limits_for(channel)
        name = self.options.stream or name_of(channel)
        config = StreamConfig(
            name=name,
            subjects=[channel],
            max_msgs=bounds.max_msgs,
            max_bytes=bounds.max_bytes,
            max_age=bounds.max_age_ns,
            allow_direct=True,
        )
        try:
            # Nothing of the configuration refers to another stream.
            checks.complete(
                config,
                checks.Environment(lambda _: None, self.config.jetstream.duplicate_window_ns),
            )
        except ApiError as problem:
            self._problem(channel, f"stream {name}: {problem.text}: not adopted")
            return None
        config.metadata = metadata.stored(config.metadata, metadata.stream_level(config))
        return config

    def _is_free(self, channel: str, config: StreamConfig, existing: list[StreamConfig]) -> bool:
        """Whether no existing stream has this name or stores this subject; else that is
        reported."""
        exists = self.staging.has(self.account, config.name) or any(
            each.name == config.name for each in existing
        )
        if exists:
            self._problem(channel, f"stream {config.name} exists already: not adopted")
            return False
        for each in existing:
            if any(collide(subject, channel) for subject in each.subjects):
                reason = f"stream {each.name} stores this subject already: not adopted"
                self._problem(channel, reason)
                return False
        return True

    # --- one channel

    async def _adopt(
        self,
        channel: str,
        log: Log,
        config: StreamConfig,
        store: Store,
        progress: Progress | None,
    ) -> Adopted:
        """Build the stream and move it into the data folder; without `progress` only read."""
        adopted = Adopted(channel, config.name)
        consumers = self._consumers(channel, log, config, store, adopted)
        transfer = Transfer(Tombstones(), False)
        last = log.next_seq - 1
        log_id = ""
        if progress is None:
            for _ in self._read(log, transfer, None):
                pass
        else:
            async with self.staging.engine(self.staging.logs) as engine:
                target = open_stream(engine, log_of(self.account, config.name))
                for _ in self._read(log, transfer, target):
                    await settle(engine, target)
                await target.skip_to(last + 1)
                await settle(engine, target)
                log_id = target.log.log_id.hex()
                target.close()
            await self._read_back(config.name, transfer)
        if transfer.too_large:
            self._problem(channel, f"messages are too large for a stream: {transfer.too_large}")
            adopted.is_whole = False
        adopted.messages, adopted.first, adopted.last = transfer.messages, transfer.first, last
        adopted.gaps = last - transfer.first + 1 - transfer.messages if transfer.messages else 0
        adopted.consumers = [each.config.name for each in consumers]
        adopted.unacked = sum(len(each.state.pending) for each in consumers if each.state)
        if progress is not None:
            stored = files.StoredStream(created=_now(), config=config)
            folder = self.staging.config_folder(self.account, config.name)
            save_configs(folder, stored, consumers)
            self.staging.move(self.account, config.name, log_id, transfer.messages, progress)
        return adopted

    def _read(self, log: Log, transfer: Transfer, target: StreamStore | None) -> Iterator[None]:
        """Append the messages of a channel; yield after each batch, so that the caller can wait for
        the disk."""
        at: int | None = log.first_seq
        while at is not None:
            page = peek_log(log, at, limits.IMPORT_BATCH)
            records = page.read(limits.IMPORT_BATCH_BYTES)
            for seq, (timestamp_ns, _, subject, _, headers, body, addressed) in sorted(
                records.items()
            ):
                if not addressed:  # otherwise the message is for one NSQ channel only
                    transfer.add(target, seq, timestamp_ns, subject, headers, body)
            self.advance(len(page.found))
            at = page.next_seq
            yield

    async def _read_back(self, name: str, transfer: Transfer) -> None:
        async with self.staging.engine(self.staging.logs) as engine:
            target = open_stream(engine, log_of(self.account, name))
            if read_back(target) != (transfer.messages, transfer.digest):
                raise OSError(f"{target.log.folder}: the written log differs when it is read back")
            target.close()

    # --- subscriptions

    def _consumers(
        self, channel: str, log: Log, stream: StreamConfig, store: Store, adopted: Adopted
    ) -> list[FoundConsumer]:
        """A consumer for each durable subscription and each durable queue group."""
        members: dict[str, list[SubRecord]] = {}
        for record in store.subs.values():
            if record.channel == channel and record.is_durable:
                members.setdefault(record.cursor, []).append(record)
        found = []
        names = consumer_names([each[0] for each in members.values()])
        cursors = cursors_of(log)
        for (cursor, records), name in zip(members.items(), names, strict=True):
            config = ConsumerConfig(
                durable_name=name,
                name=name,
                ack_policy="explicit",
                ack_wait=max(each.ack_wait for each in records) * SECOND,
                max_ack_pending=sum(each.max_in_flight for each in records),
            )
            no_limits = AccountLimits(), JetStreamConfig()  # limits apply only to new consumers
            consumer_checks.set_defaults(config, stream, *no_limits, pedantic=False)
            try:
                consumer_checks.check(config, stream, *no_limits)
            except ApiError as problem:
                self._problem(channel, f"consumer {name}: {problem.text}: left out")
                adopted.is_whole = False
                continue
            position = cursors.get(cursor)
            if position is None:
                state = _acked_to(max(records[0].start, log.first_seq) - 1)
            else:
                state = state_of(position, log)
            found.append(FoundConsumer(config, _now(), state))
        return found

    # --- removal of the channel

    def _remove(
        self, engine: Engine, log: Log, store: Store, adopted: Adopted, *, dry: bool
    ) -> None:
        """Remove the channel and its subscriptions, unless NSQ channels read it or the adoption is
        incomplete."""
        others = sorted(name for name in log.cursors if not name.startswith(CURSOR_PREFIX))
        if others:
            names = ", ".join(name.removeprefix("nsq:") for name in others)
            self._problem(adopted.channel, f"it is not removed: NSQ channels read it ({names})")
            return
        if not adopted.is_whole:
            self._problem(adopted.channel, "it is not removed: something of it was left out")
            return
        adopted.removed = True
        if dry:
            return
        for record in [each for each in store.subs.values() if each.channel == adopted.channel]:
            store.remove_sub(record)
        store.sync()
        engine.delete_log(log.name)


def name_of(text: str) -> str:
    """The text with all characters replaced that names of streams and consumers cannot have."""
    name = "".join(_LETTER if each in consumer_checks.NOT_IN_NAMES else each for each in text)
    return name or _LETTER


def consumer_names(records: Sequence[SubRecord]) -> list[str]:
    """A name for each durable: its durable name, preceded by the client ID or the group if several
    durables have that name."""
    pairs = [_name_and_owner(each) for each in records]
    counts = Counter(name_of(durable) for durable, _ in pairs)
    found: list[str] = []
    for durable, owner in pairs:
        unique = counts[name_of(durable)] == 1
        name = name_of(durable) if unique else name_of(f"{owner}-{durable}")
        number = 2
        while name in found:
            name = f"{name_of(owner)}-{name_of(durable)}-{number}"
            number += 1
        found.append(name)
    return found


def _name_and_owner(record: SubRecord) -> tuple[str, str]:
    """The name of a durable, and the group or client ID that distinguishes it."""
    if record.queue_name:
        return record.durable_name, record.queue_name.removeprefix(f"{record.durable_name}:")
    return record.durable_name, record.client_id


# --- positions


def outstanding(cursor: Cursor) -> Iterator[tuple[int, int]]:
    """The ranges [first, after) of seqs that the cursor has not finished, in order."""
    states = {WAITING, DEFERRED, IN_FLIGHT}
    begin = after = 0
    at: int | None = 0
    while at is not None:
        page = peek_cursor(cursor, states, at, _PAGE)
        for row in page.found:
            seq = row[0]
            if seq != after:
                if after:
                    yield begin, after
                begin = seq
            after = seq + 1
        at = page.next_seq
    if after:
        yield begin, after


def state_of(cursor: Cursor, log: Log) -> State:
    """The state of a consumer at the position of this subscription: messages that were delivered
    and not acked are pending and due at once."""
    end, first = log.visible, log.first_seq
    pending: list[int] = []
    undelivered = end  # the first seq that was never delivered
    for begin, after in outstanding(cursor):
        delivered_end = after  # the end of the part of this range that was delivered
        if after == end:
            delivered_end = min(max(cursor.next_seq, begin), end)
            undelivered = delivered_end
        pending += range(max(begin, first), delivered_end)
    if not pending:
        return _acked_to(undelivered - 1)
    floor, delivered = pending[0] - 1, undelivered - 1
    return State((floor, floor), (delivered, delivered), [Pending(seq, seq, 0) for seq in pending])


def _acked_to(seq: int) -> State:
    """The state in which all messages up to `seq` are acked and no later one was delivered."""
    return State((seq, seq), (seq, seq))


def _now() -> str:
    return time_text(time.time_ns())


@contextlib.contextmanager
def adopting(data: Path, config: Config, options: Options) -> Iterator[Adoption]:
    """Lock the data folder, even if it is only read. ImportRefusedError."""
    make_folder(data)
    try:
        with DataLock(data):
            yield Adoption(data, config, options)
    except (DataLockedError, OSError, OverflowError) as error:
        raise ImportRefusedError(str(error)) from error
