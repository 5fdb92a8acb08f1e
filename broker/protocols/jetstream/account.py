"""An account with JetStream: its streams, limits and usage, its requests and advisories."""

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
    """The limit of bytes of all streams with one storage; what they hold is summed once a turn."""

    def __init__(self, account: JetStreamAccount, storage: str) -> None:
        self.account = account
        self.storage = storage
        self._at = -1  # the turn of `_used`
        self._used = 0

    def has_room(self, size: int) -> bool:
        """Whether the streams may hold so many bytes more, which they then do."""
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
        self.offline: dict[str, str] = {}  # streams that cannot be served: name -> reason
        self.restoring: set[str] = set()  # streams that are being made of snapshots
        self._make_consumers = make_consumers
        self.topics = Topics(self, context.engine, context.access)
        self.new_id = context.ids.next
        self.all_origins = context.origins
        self._origins: Origins | None = None
        self._quotas = {storage: Quota(self, storage) for storage in ("file", "memory")}
        self.api_total = self.api_errors = 0
        self.backups: set[asyncio.Task[None]] = set()  # snapshots and restorations under way

    # --- for its parts

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
        """Whether this is the account of the server's own events, which has no streams."""
        return self.account is self.context.nats.system_account

    @cached_property
    def consumers(self) -> Any:
        """The consumers of all streams: a consumers.registry.Consumers."""
        return self._make_consumers(self)

    @property
    def origins(self) -> Origins:
        """What mirrors and sources of this account copy."""
        if self._origins is None:
            from broker.protocols.jetstream.origins.registry import Origins

            self._origins = self.context.origins[self.name] = Origins(self)
        return self._origins

    def account_reached(self, source: StreamSource, *, mirrors: bool) -> str | None:
        """The account of this server that an import leads to, for a mirror or source whose messages
        its stream export gives. None: the origin is on another server, or not reached."""
        external, imports = source.external, self.account.imports
        if external is None or imports is None:
            return None
        request = f"{external.api}.CONSUMER.CREATE.{source.name}"
        found = imports.reach(request.encode(), deliver_subject(source, "ID", mirrors).encode())
        if found is None or found[1] != f"$JS.API.CONSUMER.CREATE.{source.name}".encode():
            return None
        return str(found[0].name)

    def stream(self, name: str) -> Stream:
        """The stream of this name: 10059, 10194."""
        found = self.streams.get(name)
        if found is not None:
            return found
        if name in self.restoring:
            raise ApiError(errors.STREAM_OFFLINE_REASON, err="it is being restored")
        if name in self.offline:
            raise ApiError(errors.STREAM_OFFLINE_REASON, err=self.offline[name])
        raise ApiError(errors.STREAM_NOT_FOUND)

    def stream_folder(self, name: str) -> Path | None:
        """The folder for the files of a stream; None if everything is in memory."""
        return None if self.folder is None else self.folder / files.token_of(name)

    def sorted_streams(self) -> Iterator[Stream]:
        """The streams in the order of their names' bytes."""
        for name in sorted(self.streams, key=str.encode):
            yield self.streams[name]

    # --- changes of streams

    async def create(self, config: StreamConfig) -> Stream:
        """Create a stream, whose configuration is complete and checked. OSError; 10052 if another
        topic has taken the name of its topic. If it fails, nothing of it stays."""
        await self.finish_deletion(config.name)
        self.topics.claim(config)
        token = files.token_of(config.name)
        has_log = files.log_of(self.name, token) in self.context.engine.owned
        try:
            return await self._create(config)
        except BaseException:
            try:
                await self._remove(config.name, keep_log=has_log)
            except Exception as problem:
                log.error("stream %r was not created, but may be back: %s", config.name, problem)
                if config.name not in self.streams:
                    self.topics.settle(config.name)
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
        self.origins.opened(stream, folder)
        return stream

    async def finish_deletion(self, name: str) -> None:
        """Before a stream is made: remove what one of its name has left whose deletion or
        restoration failed. The next start would remove the log with it. OSError."""
        folder = self.stream_folder(name)
        left = [] if folder is None else await asyncio.to_thread(files.left_of, folder)
        if left:
            await self.drop_log(files.token_of(name))
            if self.context.engine.shared.root is not None:  # which may have failed before
                await asyncio.to_thread(sync_path, self.context.engine.shared.root)
        for path in left:
            await asyncio.to_thread(files.remove, path)

    def open(self, config: StreamConfig, created_ns: int) -> Stream:
        """Open the log of a stream and receive its messages. OSError."""
        with self._opened_store(config) as store:
            return self.serve(store, config, created_ns)

    @contextmanager
    def _opened_store(self, config: StreamConfig) -> Iterator[StreamStore]:
        """The store of a stream, which is closed if the stream is not served then. OSError."""
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
        """The store of a stream. `sync`: a policy; None = as configured. OSError."""
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
        """Receive the messages of a stream, whose store is open."""
        from broker.protocols.jetstream.publish.stream import Stream

        stream = Stream(self.account, store, config, created_ns, self.domain)
        stream.advise = self.advisory
        self.streams[config.name] = stream
        self._limit_stream(stream)
        stream.start()
        self.topics.opened(stream)
        return stream

    async def update(self, stream: Stream, config: StreamConfig) -> None:
        """Give a stream another configuration, complete and checked. OSError; 10052 if it cannot
        stand for its topic. If it fails, the old one stays in force."""
        self.topics.claim(config)
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
            self.topics.settle(stream.name, topic_of(old))
            raise
        self.topics.changed(stream)

    async def _save(self, stream: Stream, config: StreamConfig) -> None:
        folder = self.stream_folder(config.name) if config.storage == "file" else None
        if folder is not None:
            stored = files.StoredStream(created=time_text(stream.created_ns), config=config)
            await asyncio.to_thread(files.save_stream, folder, stored)

    def _apply(self, stream: Stream, config: StreamConfig) -> None:
        """Put a configuration in force."""
        limits = limits_of(config)
        stream.configure(config)
        folder = self.stream_folder(config.name) if config.storage == "file" else None
        self.origins.changed(stream, folder)
        # last: it deletes messages. Markers of what expires are those of `config`.
        stream.store.set_limits(limits)

    async def delete(self, name: str) -> None:
        """Delete a stream with its messages, consumers and files. OSError."""
        await self._remove(name)
        self.stream_advisory("DELETED", name, "delete")

    async def _remove(self, name: str, *, keep_log: bool = False) -> None:
        """`keep_log`: it has messages of an earlier stream."""
        stream = self.streams.get(name)
        folder = self.stream_folder(name)
        gone = None
        if stream is not None:
            self.origins.closed(stream, deleted=True)  # nothing is written to its folder any more
        if folder is not None and folder.exists():
            try:
                gone = await asyncio.to_thread(files.move_aside, folder)
            except OSError:
                if stream is not None:
                    self.origins.opened(stream, folder)
                raise
        if stream is not None:
            self.origins.closed(stream, deleted=True)
            for consumer in list(stream.consumers):
                self.advisory(
                    f"CONSUMER.DELETED.{name}.{consumer}",
                    "consumer_action",
                    {"stream": name, "consumer": consumer, "action": "delete"},
                )
            self.topics.closed(stream)
            self.consumers.delete_all(stream)
            del self.streams[name]
            stream.close()
            stream.store.close()
        self.offline.pop(name, None)
        self.consumers.forget_offline(name)
        self.topics.settle(name)
        if not keep_log:
            await self.drop_log(files.token_of(name))
        if gone is not None:
            await asyncio.to_thread(files.remove, gone)

    def shut(self, name: str) -> None:
        """Close a stream that could not be opened completely, if it got so far; its files stay."""
        self.consumers.forget_offline(name)
        stream = self.streams.pop(name, None)
        if stream is None:
            return
        self.origins.closed(stream)
        self.topics.closed(stream)
        if stream.consumers:
            self.consumers.stop(stream)
        stream.close()
        stream.store.close()

    async def drop_log(self, token: str) -> None:
        """Delete the log of a stream, if there is one; `token`: the name of its folder. OSError.

        Returns when that is on the disk: a stream that is created with this name after the answer
        must not find the old messages, even after a power cut.
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
        """The bytes that streams with this storage reserve by max_bytes, but for one of them."""
        return sum(
            s.config.max_bytes
            for name, s in self.streams.items()
            if s.config.storage == storage and s.config.max_bytes > 0 and name != without
        )

    def limit(self, storage: str) -> int:
        """The limit of bytes in this storage; -1 = none."""
        return self.limits.max_storage if storage == "file" else self.limits.max_memory

    def _limit_stream(self, stream: Stream) -> None:
        """Let the stream ask before it stores a message, if the account has a limit of bytes."""
        storage = stream.config.storage
        stream.has_room = None if self.limit(storage) < 0 else self._quotas[storage].has_room

    # --- messages of the server

    def publish(self, subject: bytes, data: bytes, headers: bytes = b"") -> int:
        """Publish in the account, now."""
        return self.account.publish(subject, data, b"", headers)

    def listens(self, subject: str) -> bool:
        """Whether somebody receives advisories of this subject, such as `CONSUMER.CREATED.S.C`."""
        return self.account.interest(f"{_ADVISORY}{subject}".encode()) > 0

    def advisory(self, subject: str, kind: str, fields: dict[str, Any]) -> None:
        """Send an advisory if somebody receives it: ("STREAM.CREATED.S", "stream_action", ...)."""
        self._event(f"{_ADVISORY}{subject}", f"io.nats.jetstream.advisory.v1.{kind}", fields)

    def metric(self, subject: str, kind: str, fields: dict[str, Any]) -> None:
        """Send a metric if somebody receives it: ("CONSUMER.ACK.S.C", "consumer_ack", ...)."""
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
        """Count an answered request, or that an answer was an error."""
        if error:
            self.api_errors += 1
            self.context.api_errors += 1
        else:
            self.api_total += 1
            self.context.api_total += 1

    def audit(self, request: Request, body: bytes) -> None:
        """Report an answered request, if somebody receives that."""
        if not self.listens("API"):
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

    # --- life

    def configure(self, limits: AccountLimits | None, tiers: Mapping[str, AccountLimits]) -> None:
        """Use these limits from now on; what is above them stays."""
        self.limits = limits or AccountLimits()
        self.tiers = tiers
        self.enabled = limits is not None
        for stream in self.streams.values():
            self._limit_stream(stream)
        if self._origins is not None:
            self._origins.look_again()

    def drain(self) -> None:
        """Deliver nothing more, and end requests that wait for messages."""
        for stream in self.streams.values():
            if stream.consumers:
                self.consumers.drain(stream)

    def begin_backup(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a snapshot or a restoration until it is done, or the account is closed."""
        task = asyncio.get_running_loop().create_task(work)
        self.backups.add(task)
        task.add_done_callback(self._backup_ended)

    def _backup_ended(self, task: asyncio.Task[None]) -> None:
        self.backups.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("a snapshot or restoration ended", exc_info=task.exception())

    def close(self) -> None:
        """Close the streams; their files stay."""
        for task in self.backups:
            task.cancel()
        for stream in self.streams.values():
            self.origins.closed(stream)
        self.context.origins.pop(self.name, None)
        for stream in self.streams.values():
            self.topics.closed(stream)
            if stream.consumers:
                self.consumers.stop(stream)
            stream.close()
            stream.store.close()
        for name in [*self.streams, *self.offline]:
            self.topics.settle(name)
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
