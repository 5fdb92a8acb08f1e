"""The mirrors and sources of an account. Each copies from its origin while the origin exists.

An origin is in the same account, in another account of this server whose API is imported, or on
another server. In the first two cases the copier reads the store of the origin. If the origin
removes acked messages, or is on another server, the copier reads it through a consumer (a
RemoteOrigin).
"""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import TYPE_CHECKING, Final, Protocol

from broker.protocols.jetstream import errors
from broker.protocols.jetstream.errors import ApiError
from broker.protocols.jetstream.origins import positions
from broker.protocols.jetstream.origins.copier import Copier, found_positions, source_key
from broker.protocols.jetstream.structs import (
    ApiErrorBody,
    StreamConfig,
    StreamSource,
    StreamSourceInfo,
    time_text,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from broker.protocols.jetstream.origins.remote import RemoteOrigin
    from broker.protocols.jetstream.publish.stream import Stream

log = logging.getLogger("broker.jetstream")

SAVE_S: Final = 1.0  # from the progress of a source to the write of the file, and between attempts
CHECK_S: Final = 10.0  # between checks of the number of messages that the file does not include
UNSAVED_MESSAGES: Final = 10_000  # with more of them, the file is written
POSITIONS_MAX: Final = 10_000  # positions of sources that a stream has or had


class OriginAccount(Protocol):
    """The JetStreamAccount of mirrors and sources, as this module uses it."""

    @property
    def name(self) -> str: ...
    @property
    def streams(self) -> Mapping[str, Stream]: ...
    @property
    def all_origins(self) -> Mapping[str, Origins]:
        """The origins of all accounts of the server that have streams, by name."""

    def account_reached(self, source: StreamSource, *, mirrors: bool) -> str | None:
        """The other account of this server with the origin; None: no import leads to it."""

    def new_id(self) -> str:
        """A unique token."""


class StreamOrigins:
    """The origins of one stream."""

    def __init__(self, stream: Stream, folder: Path | None, account: OriginAccount) -> None:
        """`folder`: of the stream; None = it is in memory."""
        self.stream = stream
        self.folder = folder
        self.account = account
        self.copiers: list[Copier] = []
        self._remote: dict[int, RemoteOrigin] = {}  # by id of the copier
        self._removed: list[Copier] = []  # of removed sources, until all of their copies are stored
        self._created = time_text(stream.created_ns)
        self._known: dict[str, int] = {}  # key of a source -> position, of removed ones too
        self._loaded = False
        self._saved = 0  # Positions.upto of the file
        self._lock = threading.Lock()  # of the file
        self._failed = False  # the last write of the file failed
        self._closed = False
        self._check_timer: asyncio.TimerHandle | None = None
        self._saving: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def set(self, config: StreamConfig, *, recovered: bool = False) -> None:
        """Copy from the origins of this configuration. `recovered`: it was in force when the server
        ended, and the file may not include all copied messages."""
        if config.sources:
            self._load(crashed=recovered)
        mirrors = config.mirror is not None
        wanted = list(config.sources) if config.mirror is None else [config.mirror]
        before, self.copiers = self.copiers, []
        for source in wanted:
            same = [c for c in before if c.source == source and c.mirrors == mirrors]
            if same:
                before.remove(same[0])
                self.copiers.append(same[0])
            else:
                self.copiers.append(self._copier(source, mirrors=mirrors))
        for copier in before:
            self._close_remote(copier, delete=True)
            if copier.mirrors:
                copier.close()
            else:
                copier.disconnect()
                self._removed.append(copier)
        self._close_removed()
        if self._loaded:
            self._save_later()
        if self._check_timer is None:
            self._check_later()

    def _copier(self, source: StreamSource, *, mirrors: bool) -> Copier:
        if mirrors:
            position = self.stream.store.last_seq
        else:
            key = source_key(source)
            position = self._known.get(key, 0)
            for copier in self._removed:
                if copier.key == key:
                    position = max(position, copier.examined_to)
        copier = Copier(self.stream, source, position, mirrors)
        copier.on_progress = None if mirrors else self._save_later
        copier.account = self._account_of(copier)
        copier.remote = _needs_consumer(copier)
        self._open_remote(copier)
        return copier

    def _account_of(self, copier: Copier) -> str | None:
        """The other account of this server with the origin; None: the origin is in this account or
        on another server."""
        if not copier.source.is_remote:
            return None
        return self.account.account_reached(copier.source, mirrors=copier.mirrors)

    def imports_changed(self) -> None:
        """Find the account of each origin again, because imports may have changed."""
        for copier in self.copiers:
            account = self._account_of(copier)
            if account != copier.account:
                self._close_remote(copier)
                copier.disconnect()
                copier.account = account
                copier.remote = _needs_consumer(copier)
                self._open_remote(copier)

    def use_consumer(self, copier: Copier) -> None:
        """Read the origin through a consumer from now on."""
        copier.remote = True
        self._open_remote(copier)

    def _open_remote(self, copier: Copier) -> None:
        """Create the consumer of a remote origin."""
        if copier.remote:
            from broker.protocols.jetstream.origins.remote import RemoteOrigin

            self._remote[id(copier)] = RemoteOrigin(copier, self.account.new_id)

    def _close_remote(self, copier: Copier, *, delete: bool = False) -> None:
        """Stop receiving from a consumer. `delete`: a durable one is deleted too."""
        remote = self._remote.pop(id(copier), None)
        if remote is not None:
            remote.close(delete=delete)

    def _close_removed(self) -> None:
        """Close the copiers of removed sources when all of their copies are stored."""
        for copier in list(self._removed):
            self._known[copier.key] = max(copier.stored_to, self._known.get(copier.key, 0))
            if not copier.pending:
                copier.close()
                self._removed.remove(copier)
        if len(self._known) > POSITIONS_MAX:
            keys = {each.key for each in self.copiers}
            for key in [key for key in self._known if key not in keys][: POSITIONS_MAX // 2]:
                del self._known[key]

    def _load(self, *, crashed: bool) -> None:
        """Load the positions of sources from the file. If the server may have ended before it was
        written, read the messages that it does not include."""
        if self._loaded:
            return
        self._loaded = True
        after = 0
        if self.folder is not None:
            found = positions.load(self.folder, self._created, self.stream.store.last_seq)
            self._known, after = dict(found.sources), found.upto
            crashed = crashed or found.running
            self._saved = after
        if crashed:
            for key, seq in found_positions(self.stream, after).items():
                self._known[key] = max(seq, self._known.get(key, 0))

    # --- the file

    def _save_later(self) -> None:
        if self.folder is not None and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(SAVE_S, self._save_soon)

    def _save_soon(self) -> None:
        if self._saving is not None and not self._saving.done():
            self._timer = asyncio.get_running_loop().call_later(SAVE_S, self._save_soon)
            return
        self._timer = None
        self._saving = asyncio.get_running_loop().create_task(self._save(self._positions()))

    def _check_later(self) -> None:
        """Write the file if many messages are not included, because each start reads them. Called
        every CHECK_S."""
        self._check_timer = asyncio.get_running_loop().call_later(CHECK_S, self._check_later)
        if self._loaded and self.stream.store.last_seq - self._saved > UNSAVED_MESSAGES:
            self._save_later()

    def _positions(self) -> positions.Positions:
        self._close_removed()
        for copier in self.copiers:
            self._known[copier.key] = copier.stored_to
        upto = self.stream.store.last_seq
        for copier in [*self.copiers, *self._removed]:
            upto = min(upto, copier.included_to)
        self._saved = upto
        running = bool(self.copiers or self._removed)
        return positions.Positions(self._created, running, upto, dict(self._known))

    async def _save(self, found: positions.Positions) -> None:
        stored = await asyncio.to_thread(self._store, found)
        if not stored and not self._closed:
            self._save_later()

    def _store(self, found: positions.Positions, *, last: bool = False) -> bool:
        """Write the file. `last`: even after `close`. False: the disk failed."""
        assert self.folder is not None
        with self._lock:
            if self._closed and not last:
                return True
            try:
                positions.store(self.folder, found)
            except OSError as problem:
                if not self._failed:  # otherwise it was logged before
                    name = self.stream.name
                    log.error("the positions of sources of stream %r: %s", name, problem)
                self._failed = True
                return False
            self._failed = False
            return True

    def close(self, *, deleted: bool) -> None:
        """Stop copying. The positions are saved unless the stream is `deleted`."""
        for timer in (self._timer, self._check_timer):
            if timer is not None:
                timer.cancel()
        with self._lock:  # a write in progress ends first
            self._closed = True
        if self._loaded and not deleted and self.folder is not None:
            self._store(self._positions(), last=True)
        for copier in [*self.copiers, *self._removed]:
            self._close_remote(copier, delete=deleted)
            copier.close()


class Origins:
    """The origins of the streams of one account: connects each copier to its origin."""

    def __init__(self, account: OriginAccount) -> None:
        """`account`: its streams are looked up at each change."""
        self.account = account
        self._by_stream: dict[str, StreamOrigins] = {}

    def stream_opened(self, stream: Stream, folder: Path | None) -> None:
        """A stream was created or opened. `folder`: of its files; None = it is in memory."""
        config = stream.config
        if config.mirror is not None or config.sources:
            found = self._by_stream[stream.name] = StreamOrigins(stream, folder, self.account)
            found.set(config, recovered=True)
        self._connect_all()

    def stream_changed(self, stream: Stream, folder: Path | None) -> None:
        """A stream has another configuration."""
        found = self._by_stream.get(stream.name)
        config = stream.config
        if found is None and (config.mirror is not None or config.sources):
            found = self._by_stream[stream.name] = StreamOrigins(stream, folder, self.account)
        if found is not None:
            found.set(config)
        self._connect_all()

    def stream_closed(self, stream: Stream, *, deleted: bool = False) -> None:
        """A stream is about to be closed."""
        for origins in self.account.all_origins.values():
            for each in origins._by_stream.values():
                for copier in each.copiers:
                    if copier.origin is stream:
                        copier.disconnect()
        found = self._by_stream.pop(stream.name, None)
        if found is not None:
            found.close(deleted=deleted)

    def imports_changed(self) -> None:
        """The imports of the account may have changed."""
        for each in self._by_stream.values():
            each.imports_changed()
        self._connect()

    def _connect_all(self) -> None:
        """Connect the copiers of all accounts: they may copy streams of this account."""
        for origins in self.account.all_origins.values():
            origins._connect()

    def _connect(self) -> None:
        for each in self._by_stream.values():
            for copier in each.copiers:
                if copier.origin is not None and _needs_acks(copier.origin):
                    copier.disconnect()  # its retention has been changed
                if copier.remote or copier.origin is not None:
                    continue
                origins = self.account.all_origins.get(copier.account or self.account.name)
                if origins is None or copier.source.name not in origins.account.streams:
                    continue
                stream = origins.account.streams[copier.source.name]
                if _needs_acks(stream):
                    each.use_consumer(copier)
                else:
                    copier.connect(stream)

    def mirror(self, stream: Stream) -> StreamSourceInfo | None:
        """The progress of a mirror; None = the stream is not a mirror."""
        found = self._by_stream.get(stream.name)
        infos = [_info(each) for each in found.copiers if each.mirrors] if found else []
        return infos[0] if infos else None

    def sources(self, stream: Stream) -> list[StreamSourceInfo]:
        """The progress of the sources of a stream."""
        found = self._by_stream.get(stream.name)
        return [_info(each) for each in found.copiers if not each.mirrors] if found else []


def _needs_consumer(copier: Copier) -> bool:
    """Whether the origin has to be read through a consumer, for any retention."""
    source = copier.source
    return source.consumer is not None or (source.is_remote and copier.account is None)


def _needs_acks(stream: Stream) -> bool:
    """Whether the stream removes acked messages, or stores only messages that a consumer reads: a
    copier needs a consumer that acks."""
    return bool(stream.config.retention != "limits")


def _info(copier: Copier) -> StreamSourceInfo:
    source, problem = copier.source, copier.error
    if copier.missing:
        problem = ApiError(errors.STREAM_NOT_FOUND)
    found = StreamSourceInfo(
        name=source.name,
        external=source.external,
        lag=copier.lag,
        seq=0 if copier.mirrors else copier.stored_to,
        active=copier.active_ns,
        filter_subject=source.filter_subject,
        subject_transforms=source.subject_transforms,
    )
    if problem is not None:
        found.error = ApiErrorBody(
            code=problem.code, err_code=problem.err_code, description=problem.text
        )
    return found
