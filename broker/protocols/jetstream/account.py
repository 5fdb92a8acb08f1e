"""An account with JetStream: its streams, limits and usage, and its advisories."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import contextmanager
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from broker.base.durable import sync_path
from broker.protocols.jetstream import errors, files
from broker.protocols.jetstream import limits as numbers
from broker.protocols.jetstream.errors import ApiError
from broker.protocols.jetstream.structs import (
    AccountLimits,
    deliver_subject,
    encode_event,
    time_text,
)
from broker.protocols.jetstream.topics import Topics, topic_of
from broker.protocols.nats.accounts.subjects import raw
from broker.routing.owners import SubjectOwners

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator, Mapping
    from pathlib import Path

    from broker.engine.stream.store import StreamLimits, StreamStore
    from broker.protocols.jetstream.api.sink import Request
    from broker.protocols.jetstream.context import JetStreamContext
    from broker.protocols.jetstream.origins.registry import Origins
    from broker.protocols.jetstream.publish.stream import Stream
    from broker.protocols.jetstream.structs import StreamConfig, StreamSource
    from broker.protocols.nats.accounts.account import Account

log = logging.getLogger("broker.jetstream")

_ADVISORY: Final = "$JS.EVENT.ADVISORY."
_METRIC: Final = "$JS.EVENT.METRIC."


class Quota:
    """The byte limit of all streams with one storage. Their bytes are summed once per turn."""

    def __init__(self, account: JetStreamAccount, storage: str) -> None:
        self.account = account
        self.storage = storage
        self._at = -1  # time of the turn in which `_used` was computed
        self._used = 0

    def has_room(self, size: int) -> bool:
        """Whether the streams may store `size` more bytes. If so, these are added to the sum."""
        now = self.account.account.turn.now_ns
        if now != self._at:
            self._at, self._used = now, self.account.used(self.storage)
        if self._used + size > self.account.limit(self.storage):
            return False
        self._used += size
        return True


class JetStreamAccount:
    """The JetStream side of one NATS account."""

    def __init__(
        self,
        context: JetStreamContext,
        account: Account,
        limits: AccountLimits | None,
        make_consumers: Callable[[JetStreamAccount], Any],
        tiers: Mapping[str, AccountLimits] = MappingProxyType({}),
    ) -> None:
        """`limits`: None = JetStream is not enabled for the account. `make_consumers` returns the
        consumers.registry.Consumers of an account. `tiers`: the limits of each tier, if it has
        some; those of R1 are `limits`."""
        self.context = context
        self.account = account
        self.name = account.name
        self.limits = limits or AccountLimits()
        self.tiers = tiers
        self.enabled = limits is not None
        self.folder: Path | None = (
            None if context.folder is None else context.folder / files.token_of(self.name)
        )
        self.streams: dict[str, Stream] = {}
        self.owners = SubjectOwners[str]()  # the streams, by their subjects
        self.offline: dict[str, str] = {}  # streams that cannot be served: name -> reason
        self.restoring: set[str] = set()  # names of streams that are being restored
        self._removing = asyncio.Lock()  # held while a stream and its log are removed
        self._make_consumers = make_consumers
        self.topics = Topics(self, context.engine, context.access)
        self.new_id = context.ids.next
        self.all_origins = context.origins
        self._origins: Origins | None = None
        self._quotas = {storage: Quota(self, storage) for storage in ("file", "memory")}
        self.api_total = self.api_errors = 0
        self.backups: set[asyncio.Task[None]] = set()  # snapshots and restorations in progress

    # --- parts

    @property
    def strict(self) -> bool:
        """Whether requests with unknown fields are refused."""
        return self.context.config.strict

    @property
    def domain(self) -> str:
        """The domain of the server; empty without one."""
        return self.context.domain

    @property
    def is_system(self) -> bool:
        """Whether this is the system account, which has no streams."""
        return self.account is self.context.nats.system_account

    @cached_property
    def consumers(self) -> Any:
        """The consumers of all streams: a consumers.registry.Consumers."""
        return self._make_consumers(self)

    @property
    def origins(self) -> Origins:
        """The origins of the mirrors and sources of this account."""
        if self._origins is None:
            from broker.protocols.jetstream.origins.registry import Origins

            self._origins = self.context.origins[self.name] = Origins(self)
        return self._origins

    def account_reached(self, source: StreamSource, *, mirrors: bool) -> str | None:
        """The account of this server whose API a mirror or source imports, if that account also
        exports the deliver subject. None: there is none, or the origin is on another server."""
        external, imports = source.external, self.account.imports
        if external is None or imports is None:
            return None
        request = f"{external.api}.CONSUMER.CREATE.{source.name}"
        found = imports.reach(request.encode(), deliver_subject(source, "ID", mirrors).encode())
        if found is None or found[1] != f"$JS.API.CONSUMER.CREATE.{source.name}".encode():
            return None
        return str(found[0].name)

    def stream(self, name: str) -> Stream:
        """The stream of this name. ApiError: 10059 there is none, 10194 it is offline."""
        found = self.streams.get(name)
        if found is not None:
            return found
        if name in self.restoring:
            raise ApiError(errors.STREAM_OFFLINE_REASON, err="it is being restored")
        if name in self.offline:
            raise ApiError(errors.STREAM_OFFLINE_REASON, err=self.offline[name])
        raise ApiError(errors.STREAM_NOT_FOUND)

    def config_of(self, name: str) -> StreamConfig | None:
        """The configuration of the stream of this name; None: there is none."""
        stream = self.streams.get(name)
        return None if stream is None else stream.config

    def stream_folder(self, name: str) -> Path | None:
        """The folder for the files of a stream; None if everything is in memory."""
        return None if self.folder is None else self.folder / files.token_of(name)

    def sorted_streams(self) -> Iterator[Stream]:
        """The streams, sorted by the bytes of their names."""
        for name in sorted(self.streams, key=str.encode):
            yield self.streams[name]

    # --- changes of streams

    async def create(self, config: StreamConfig) -> Stream:
        """Create a stream with a complete and checked configuration. OSError; ApiError 10052: it
        cannot stand for its topic. After a failure all files of the stream are removed."""
        await self.finish_deletion(config.name)
        self.topics.reserve(config)
        token = files.token_of(config.name)
        has_log = files.log_of(self.name, token) in self.context.engine.owned
        try:
            return await self._create(config)
        except BaseException:
            try:
                async with self._removing:
                    await self._remove(config.name, keep_log=has_log)
            except Exception as problem:
                log.error(
                    "stream %r, whose creation failed, may exist after the next start: %s",
                    config.name,
                    problem,
                )
                if config.name not in self.streams:
                    self.topics.release(config.name)
            raise

    async def _create(self, config: StreamConfig) -> Stream:
        created_ns = time.time_ns()
        folder = self.stream_folder(config.name) if config.storage == "file" else None
        if folder is not None:
            stored = files.StoredStream(created=time_text(created_ns), config=config)
            await asyncio.to_thread(files.save_stream, folder, stored)
        with self._opened_store(config) as store:
            if config.first_seq > 1:
                await store.skip_to(config.first_seq)
            stream = self.serve(store, config, created_ns)
        self.origins.stream_opened(stream, folder)
        return stream

    async def finish_deletion(self, name: str) -> None:
        """Finish the deletion or restoration of an earlier stream of this name that is under way or
        has failed, before the name is used again: otherwise it would remove the new log.
        OSError."""
        folder = self.stream_folder(name)
        async with self._removing:
            left = [] if folder is None else await asyncio.to_thread(files.find_leftovers, folder)
            if left:
                await self.drop_log(files.token_of(name))
                if self.context.engine.shared.root is not None:  # this sync may have failed before
                    await asyncio.to_thread(sync_path, self.context.engine.shared.root)
            for path in left:
                await asyncio.to_thread(files.remove, path)

    def open(self, config: StreamConfig, created_ns: int) -> Stream:
        """Open the log of a stream, and serve the stream. OSError."""
        with self._opened_store(config) as store:
            return self.serve(store, config, created_ns)

    @contextmanager
    def _opened_store(self, config: StreamConfig) -> Iterator[StreamStore]:
        """The open store of a stream. It is closed again if the stream is not served afterwards.
        OSError."""
        store = self.open_store(config, limits_of(config))
        try:
            store.apply_limits()
            if config.mirror is not None:
                store.reuse_gap()
            yield store
        except BaseException:
            if config.name not in self.streams:
                store.close()
            raise

    def open_store(
        self, config: StreamConfig, limits: StreamLimits, sync: str | float | None = None
    ) -> StreamStore:
        """Open the store of a stream. `sync`: a policy; None = the configured one. OSError."""
        from broker.engine.stream.store import open_store

        return open_store(
            self.context.engine,
            files.log_of(self.name, files.token_of(config.name)),
            limits,
            protocol="jetstream",
            sync=self.context.config.sync.policy if sync is None else sync,
            memory=config.storage == "memory",
            id_header=b"Nats-Msg-Id",
        )

    def serve(self, store: StreamStore, config: StreamConfig, created_ns: int) -> Stream:
        """Serve a stream whose store is open."""
        from broker.protocols.jetstream.publish.stream import Stream

        stream = Stream(self.account, store, config, created_ns, self.domain)
        stream.send_advisory = self.advisory
        self.streams[config.name] = stream
        self.owners.put(config.name, map(raw, config.subjects))
        self._limit_stream(stream)
        stream.start()
        self.topics.stream_opened(stream)
        return stream

    async def update(self, stream: Stream, config: StreamConfig) -> None:
        """Change the configuration of a stream to a complete and checked one. OSError; ApiError
        10052: it cannot stand for its topic. After a failure the old one stays in force."""
        self.topics.reserve(config)
        old = stream.config
        try:
            await self._save(stream, config)
            self._apply(stream, config)
        except BaseException:
            try:
                self._apply(stream, old)
            except Exception as problem:
                log.error("a refused change of stream %r may be in force: %s", old.name, problem)
            try:
                await self._save(stream, old)
            except Exception as problem:
                log.error("a refused change of stream %r may be stored: %s", old.name, problem)
            self.topics.release(stream.name, topic_of(old))
            raise
        self.topics.stream_changed(stream)

    async def _save(self, stream: Stream, config: StreamConfig) -> None:
        folder = self.stream_folder(config.name) if config.storage == "file" else None
        if folder is not None:
            stored = files.StoredStream(created=time_text(stream.created_ns), config=config)
            await asyncio.to_thread(files.save_stream, folder, stored)

    def _apply(self, stream: Stream, config: StreamConfig) -> None:
        """Apply a configuration to the stream, its origins and its store."""
        limits = limits_of(config)
        stream.configure(config)
        self.owners.put(stream.name, map(raw, config.subjects))
        folder = self.stream_folder(config.name) if config.storage == "file" else None
        self.origins.stream_changed(stream, folder)
        # Last, because it deletes messages: their markers depend on the new configuration.
        stream.store.set_limits(limits)

    async def delete(self, name: str) -> None:
        """Delete a stream with its messages, consumers and files. OSError."""
        async with self._removing:
            await self._remove(name)
        self.stream_advisory("DELETED", name, "delete")

    async def _remove(self, name: str, *, keep_log: bool = False) -> None:
        """Delete a stream, with `_removing`. `keep_log`: its log has existed before the stream.
        OSError."""
        stream = self.streams.get(name)
        folder = self.stream_folder(name)
        removed_folder = None
        if stream is not None:
            # It must not write to the folder any more.
            self.origins.stream_closed(stream, deleted=True)
        if folder is not None and folder.exists():
            try:
                removed_folder = await asyncio.to_thread(files.move_aside, folder)
            except OSError:
                if stream is not None:
                    self.origins.stream_opened(stream, folder)
                raise
        if stream is not None:
            self.origins.stream_closed(stream, deleted=True)
            self.topics.stream_closed(stream)
            del self.streams[name]
            self.owners.remove(name)
            stream.close()
            await self.consumers.delete_all(stream)
            stream.store.close()
        self.offline.pop(name, None)
        self.consumers.forget_offline(name)
        self.topics.release(name)
        if not keep_log:
            await self.drop_log(files.token_of(name))
        if removed_folder is not None:
            await asyncio.to_thread(files.remove, removed_folder)

    def close_stream(self, name: str) -> None:
        """Close a stream whose opening has failed. Its files remain."""
        self.consumers.forget_offline(name)
        stream = self.streams.pop(name, None)
        if stream is None:
            return
        self.owners.remove(name)
        self.origins.stream_closed(stream)
        self.topics.stream_closed(stream)
        if stream.consumers:
            self.consumers.stop(stream)
        stream.close()
        stream.store.close()

    async def drop_log(self, token: str) -> None:
        """Delete the log of a stream, if it exists. `token`: the name of its folder. OSError.

        This returns when the deletion is durable: a stream that is created with this name after the
        answer must not have the old messages, even after a power cut.
        """
        engine, name = self.context.engine, files.log_of(self.name, token)
        if name in engine.owned:
            root = None if engine.owned[name].folder is None else engine.shared.root
            engine.delete_log(name)
            if root is not None:
                await asyncio.to_thread(sync_path, root)

    def stream_advisory(self, event: str, name: str, action: str) -> None:
        """Report that a stream was created, updated or deleted."""
        fields = {"stream": name, "action": action}
        self.advisory(f"STREAM.{event}.{name}", "stream_action", fields)

    # --- usage

    def used(self, storage: str) -> int:
        """The bytes of all streams with this storage, "file" or "memory"."""
        return sum(s.store.bytes for s in self.streams.values() if s.config.storage == storage)

    def reserved(self, storage: str, without: str = "") -> int:
        """The sum of max_bytes of the streams with this storage, except the stream `without`."""
        return sum(
            s.config.max_bytes
            for name, s in self.streams.items()
            if s.config.storage == storage and s.config.max_bytes > 0 and name != without
        )

    def limit(self, storage: str) -> int:
        """The byte limit for this storage; -1 = none."""
        return self.limits.max_storage if storage == "file" else self.limits.max_memory

    def _limit_stream(self, stream: Stream) -> None:
        """Set the check of the account's byte limit for each message; None without a limit."""
        storage = stream.config.storage
        stream.has_room = None if self.limit(storage) < 0 else self._quotas[storage].has_room

    # --- messages of the server

    def publish(self, subject: bytes, data: bytes, headers: bytes = b"") -> int:
        """Publish in the account, now."""
        return self.account.publish(subject, data, b"", headers)

    def has_subscriber(self, subject: str) -> bool:
        """Whether an advisory, such as `CONSUMER.CREATED.S.C`, has a subscriber."""
        return self.account.interest(f"{_ADVISORY}{subject}".encode()) > 0

    def advisory(self, subject: str, kind: str, fields: dict[str, Any]) -> None:
        """Send an advisory if it has a subscriber: ("STREAM.CREATED.S", "stream_action", ...)."""
        self._event(f"{_ADVISORY}{subject}", f"io.nats.jetstream.advisory.v1.{kind}", fields)

    def metric(self, subject: str, kind: str, fields: dict[str, Any]) -> None:
        """Send a metric if it has a subscriber: ("CONSUMER.ACK.S.C", "consumer_ack", ...)."""
        self._event(f"{_METRIC}{subject}", f"io.nats.jetstream.metric.v1.{kind}", fields)

    def _event(self, subject: str, kind: str, fields: dict[str, Any]) -> None:
        to = subject.encode()
        if not self.account.interest(to):
            return
        event = {
            "type": kind,
            "id": self.context.ids.next(),
            "timestamp": time_text(time.time_ns()),
            **fields,
        }
        if self.domain:
            event["domain"] = self.domain
        self.account.publish(to, encode_event(event))

    def limit_reached(self, dropped: int) -> None:
        """Report API requests that were dropped."""
        fields = {"server": self.context.server_name, "dropped": dropped}
        self.advisory("API.LIMIT_REACHED", "api_limit_reached", fields)

    # --- counts

    def count(self, *, error: bool = False) -> None:
        """Count an answered request; `error`: count an answer with an error."""
        if error:
            self.api_errors += 1
            self.context.api_errors += 1
        else:
            self.api_total += 1
            self.context.api_total += 1

    def audit(self, request: Request, body: bytes) -> None:
        """Send an audit advisory of an answered request, if it has a subscriber."""
        if not self.has_subscriber("API"):
            return
        fields: dict[str, Any] = {
            "server": self.context.server_name,
            "client": self.context.client_info(request.session, self.name),
            "subject": request.subject.decode("utf-8", "replace"),
        }
        if request.data:
            fields["request"] = request.data.decode("utf-8", "replace")
        fields["response"] = body.decode()
        self.advisory("API", "api_audit", fields)

    # --- configuration, shutdown

    def configure(self, limits: AccountLimits | None, tiers: Mapping[str, AccountLimits]) -> None:
        """Apply other limits. Streams and messages that exceed them remain."""
        self.limits = limits or AccountLimits()
        self.tiers = tiers
        self.enabled = limits is not None
        for stream in self.streams.values():
            self._limit_stream(stream)
        if self._origins is not None:
            self._origins.imports_changed()

    def drain(self) -> None:
        """Deliver nothing more, and end requests that wait for messages."""
        for stream in self.streams.values():
            if stream.consumers:
                self.consumers.drain(stream)

    def begin_backup(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a snapshot or a restoration until it ends, or until the account is closed."""
        task = asyncio.get_running_loop().create_task(work)
        self.backups.add(task)
        task.add_done_callback(self._backup_ended)

    def _backup_ended(self, task: asyncio.Task[None]) -> None:
        self.backups.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("a snapshot or restoration has failed", exc_info=task.exception())

    def close(self) -> None:
        """Close the streams. Their files remain."""
        for task in self.backups:
            task.cancel()
        for stream in self.streams.values():
            self.origins.stream_closed(stream)
        self.context.origins.pop(self.name, None)
        for stream in self.streams.values():
            self.topics.stream_closed(stream)
            if stream.consumers:
                self.consumers.stop(stream)
            stream.close()
            stream.store.close()
        for name in [*self.streams, *self.offline]:
            self.topics.release(name)
        self.streams.clear()


def limits_of(config: StreamConfig) -> StreamLimits:
    """The limits of a stream as its store applies them."""
    from broker.engine.stream.store import StreamLimits

    return StreamLimits(
        max_msgs=config.max_msgs,
        max_bytes=config.max_bytes,
        max_msgs_per_subject=config.max_msgs_per_subject,
        max_age_ns=min(config.max_age, numbers.JS_TIME_MAX),
        discard_new=config.discard == "new",
        discard_new_per_subject=config.discard_new_per_subject,
        duplicate_window_ns=min(config.duplicate_window, numbers.JS_TIME_MAX),
    )
