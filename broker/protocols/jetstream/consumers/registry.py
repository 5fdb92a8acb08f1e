"""The consumers of one account: created, stored, restored, deleted."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from typing import TYPE_CHECKING, Any, Final

import msgspec

from broker.base.logs import fields
from broker.engine.stream.cursor import StreamCursor
from broker.protocols.jetstream import errors, files, limits
from broker.protocols.jetstream.api import metadata
from broker.protocols.jetstream.consumers import checks
from broker.protocols.jetstream.consumers.outlet import Outlet
from broker.protocols.jetstream.consumers.positions import start_of, start_search
from broker.protocols.jetstream.consumers.pull import PullConsumer
from broker.protocols.jetstream.consumers.push import PushConsumer
from broker.protocols.jetstream.errors import ApiError
from broker.protocols.jetstream.structs import moment_ns, time_text
from broker.protocols.jetstream.topics import CHANNEL_KEY, end_channel
from broker.protocols.nats.limits import NATS_PAYLOAD_HUGE
from broker.runtime.pauses import Pauses

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from broker.engine.stream.filter import Filter
    from broker.protocols.jetstream.account import JetStreamAccount
    from broker.protocols.jetstream.consumers.consumer import Consumer
    from broker.protocols.jetstream.publish.stream import Stream
    from broker.protocols.jetstream.structs import ConsumerConfig

log = logging.getLogger("broker.jetstream")

DELETED: Final = "409 Consumer Deleted"
SHUTDOWN: Final = "409 Server Shutdown"

# An answer to flow control acks all messages up to one.
_POLICIES: Final = {"flow_control": "all"}
# The ack wait of consumers without one: their messages are not redelivered after a time.
NO_ACK_WAIT: Final = limits.JS_TIME_MAX

# The subjects of advisories by their kinds.
_ADVISORIES: Final = {
    "max_deliver": "CONSUMER.MAX_DELIVERIES",
    "nak": "CONSUMER.MSG_NAKED",
    "terminated": "CONSUMER.MSG_TERMINATED",
}


class Consumers:
    """The consumers of one account."""

    def __init__(self, account: JetStreamAccount) -> None:
        self.account = account
        self.outlet = Outlet(account.account)
        self.offline: dict[tuple[str, str], str] = {}  # (stream, consumer) -> why
        self.tasks: set[asyncio.Task[None]] = set()
        domain = account.domain
        heads = ["$JS.API.", f"$JS.{domain}.API."] if domain else ["$JS.API."]
        self.api_heads = [head.encode() for head in heads]

    # --- lookups

    def get(self, stream: Stream, name: str) -> Consumer | None:
        """The consumer of this name; None: there is none. ApiError 10195: it is offline."""
        found: Consumer | None = stream.consumers.get(name)
        problem = self.offline.get((stream.name, name))
        if found is None and problem is not None:
            raise ApiError(errors.CONSUMER_OFFLINE_REASON, err=problem)
        return found

    def find(self, stream: Stream, name: str) -> Consumer:
        """The consumer of this name. ApiError: 10014 there is none, 10195 it is offline."""
        found = self.get(stream, name)
        if found is None:
            raise ApiError(errors.CONSUMER_NOT_FOUND)
        return found

    def visible(self, stream: Stream) -> Iterator[Consumer]:
        """Consumers that lists show, in the order of their names."""
        for name in sorted(stream.consumers, key=str.encode):
            consumer = stream.consumers[name]
            if not consumer.config.direct:
                yield consumer

    # --- creation, updates, deletion

    def _folder(self, stream: Stream, config: ConsumerConfig) -> Path | None:
        """The folder of the stream with the file of a consumer; None: the consumer has no file."""
        if config.mem_storage or stream.config.storage != "file":
            return None
        return self.account.stream_folder(stream.name)

    async def _save(self, stream: Stream, config: ConsumerConfig, created_ns: int) -> None:
        folder = self._folder(stream, config)
        if folder is not None:
            stored = files.StoredConsumer(created=time_text(created_ns), config=config)
            await asyncio.to_thread(files.save_consumer, folder, stored)

    def add(
        self, stream: Stream, config: ConsumerConfig, created_ns: int, found: int | None = None
    ) -> Consumer:
        """Add a consumer with its cursor to the stream; it is not started. `found`: the result of
        positions.start_search. If this fails (OSError), the consumer is not added and its journal
        remains."""
        kind = PushConsumer if checks.is_push(config) else PullConsumer
        folder = self._folder(stream, config)
        cursor = StreamCursor(
            stream.cursors,
            config.name,
            lambda: start_of(stream.store, config, found),
            journal=None if folder is None else str(files.journal_of(folder, config.name)),
            ack_policy=_POLICIES.get(config.ack_policy, config.ack_policy),
            filters=checks.filters_of(config),
            **settings_of(config),
        )
        try:
            consumer = kind(self, self.outlet, stream, cursor, config, created_ns)
            stream.add_consumer(config.name, consumer, tuple(checks.filters_of(config)))
        except BaseException:
            cursor.close(delete=False)
            raise
        return consumer

    async def create(
        self, stream: Stream, config: ConsumerConfig, *, unnamed: bool = False
    ) -> Consumer:
        """Create a consumer with a complete and checked configuration; it is not started.
        `unnamed`: the server has chosen its name. If this fails (OSError), the consumer and its
        files are removed."""
        config.metadata = metadata.stored(config.metadata, metadata.consumer_level(config))
        created_ns = time.time_ns()
        find = start_search(stream.store, config)
        found = None if find is None else await asyncio.to_thread(find)
        _held = await _filter_of(stream, config)
        folder = self._folder(stream, config)
        try:
            await self._save(stream, config, created_ns)
            consumer = self.add(stream, config, created_ns, found)
            consumer.unnamed = unnamed
            if config.pause_until:
                consumer.set_pause(config, moment_ns(config.pause_until))
            if folder is not None:
                await consumer.cursor.synced()
        except BaseException:
            await self._undo_create(stream, config)
            raise
        self.report_action(consumer, "CREATED", "create")
        return consumer

    async def _undo_create(self, stream: Stream, config: ConsumerConfig) -> None:
        """Remove a consumer and its files after its creation has failed."""
        consumer = stream.consumers.get(config.name)
        folder = self._folder(stream, config)
        try:
            if consumer is not None:
                consumer.close(DELETED)
                self._detach(consumer)
                # messages that match no consumer's filter were stored before it was created
                consumer.cursor.close(delete=True, keep_unmatched=True)
            if folder is not None:
                await asyncio.to_thread(files.remove_consumer, folder, config.name)
                journal = files.journal_of(folder, config.name)
                await asyncio.to_thread(journal.unlink, missing_ok=True)
        except Exception as problem:
            _report(
                "a consumer whose creation failed may exist after the next start",
                stream,
                config.name,
                problem,
            )

    async def update(self, consumer: Consumer, config: ConsumerConfig) -> None:
        """Change the configuration of a consumer to a complete and checked one. If this fails
        (OSError), the old one stays in force."""
        config.metadata = metadata.stored(config.metadata, metadata.consumer_level(config))
        old = consumer.config
        _held = await _filter_of(consumer.stream, config)
        if self.get(consumer.stream, config.name) is not consumer:
            raise ApiError(errors.CONSUMER_NOT_FOUND)  # it was inactive for too long meanwhile
        try:
            await self._save(consumer.stream, config, consumer.created_ns)
            self._apply(consumer, config)
        except BaseException:
            await self._restore_config(consumer, old)
            raise
        self.account.topics.consumer_updated(consumer)

    def _apply(self, consumer: Consumer, config: ConsumerConfig) -> None:
        """Apply a configuration to the stream, the cursor and the consumer."""
        filters = tuple(checks.filters_of(config))
        if tuple(checks.filters_of(consumer.config)) != filters:
            consumer.stream.set_filters(config.name, filters)
        consumer.cursor.update(filters=filters, **settings_of(config))
        consumer.configure(config)

    async def _restore_config(self, consumer: Consumer, old: ConsumerConfig) -> None:
        """Apply and store the old configuration again after a change has failed."""
        stream = consumer.stream
        try:
            stream.set_filters(old.name, tuple(checks.filters_of(old)))
            self._apply(consumer, old)
            consumer.set_pause(old, moment_ns(old.pause_until))
        except Exception as problem:
            _report("a refused change of a consumer may be in force", stream, old.name, problem)
        try:
            await self._save(stream, old, consumer.created_ns)
        except Exception as problem:
            _report("a refused change of a consumer may be stored", stream, old.name, problem)

    async def delete(self, consumer: Consumer) -> None:
        """Delete a consumer and its files. Waiting requests end with a status. OSError."""
        stream, config = consumer.stream, consumer.config
        consumer.close(DELETED)
        self._detach(consumer)
        folder = self._folder(stream, config)
        try:
            if folder is not None:
                await asyncio.to_thread(files.remove_consumer, folder, config.name)
        finally:
            consumer.cursor.close(delete=True)
        self.report_action(consumer, "DELETED", "delete")

    def _detach(self, consumer: Consumer) -> None:
        """Remove a consumer from its stream, and disconnect its NSQ clients."""
        end_channel(consumer)
        consumer.stream.remove_consumer(consumer.name)

    def delete_inactive(self, consumer: Consumer) -> None:
        """Delete a consumer that was not used for its inactive_threshold."""
        task = asyncio.ensure_future(self._delete_inactive(consumer))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _delete_inactive(self, consumer: Consumer) -> None:
        if consumer.stream.consumers.get(consumer.name) is not consumer:
            return
        if getattr(consumer, "channel", None) is not None and consumer.is_used():
            return  # an NSQ client has subscribed meanwhile
        try:
            await self.delete(consumer)
        except OSError as problem:
            log.error(
                "the file of an inactive consumer cannot be removed",
                extra=fields(stream=consumer.stream_name, consumer=consumer.name),
                exc_info=problem,
            )

    def restore(self, stream: Stream) -> None:
        """Open and start the stored consumers of a stream."""
        folder = self.account.stream_folder(stream.name)
        if folder is None or stream.config.storage != "file":
            return
        found, problems = files.find_consumers(folder)
        for name, problem in problems:
            self._set_offline(stream, name, problem)
        for stored in found:
            try:
                self._open(stream, stored)
            except Exception as problem:  # one consumer must not prevent the start of the server
                reason = str(problem) or type(problem).__name__
                self._set_offline(stream, stored.config.name, reason)
        stream.cursors.sweep()

    def _open(self, stream: Stream, stored: files.StoredConsumer) -> None:
        """Open and start a stored consumer. If this fails, it is removed and its files remain."""
        config = stored.config
        level = metadata.required_level(config.metadata)
        if level > limits.JS_ASSET_LEVEL_MAX:
            raise ValueError(
                f"unsupported - required API level: {level}, "
                f"current API level: {self.account.context.level}"
            )
        consumer = self.add(stream, config, moment_ns(stored.created))
        try:
            # The configuration decides: it was synced before the answer, the journal later.
            consumer.set_pause(config, moment_ns(config.pause_until))
            if CHANNEL_KEY in config.metadata:
                consumer.cursor.return_all()  # the NSQ clients of these messages are disconnected
            consumer.start()
            self.account.topics.announce_consumer(consumer, created=True)
        except BaseException:
            consumer.close()
            self._detach(consumer)
            consumer.cursor.close(delete=False)
            raise

    def _set_offline(self, stream: Stream, name: str, problem: str) -> None:
        self.offline[stream.name, name] = problem
        stream.cursors.suspend_retention()
        log.error(
            "a consumer cannot be restored: %s",
            problem,
            extra=fields(stream=stream.name, consumer=name),
        )

    async def delete_all(self, stream: Stream) -> None:
        """End the consumers of a stream that is being deleted, some in each turn of the loop."""
        pauses = Pauses(limits.JS_REQUESTS_TURN)
        while stream.consumers:
            consumer = next(iter(stream.consumers.values()))
            self.report_action(consumer, "DELETED", "delete")
            consumer.close(DELETED)
            self._detach(consumer)
            with contextlib.suppress(OSError):  # its files are removed with the stream's folder
                consumer.cursor.close(delete=True)
            await pauses.pause_if_step_over()

    def forget_offline(self, stream: str) -> None:
        """Remove the offline consumers of a stream that is closed."""
        for key in [key for key in self.offline if key[0] == stream]:
            del self.offline[key]

    def drain(self, stream: Stream) -> None:
        """Deliver nothing more, because the server stops. Until `stop`, the stream keeps the
        messages that its consumers have not received."""
        for consumer in list(stream.consumers.values()):
            consumer.close(SHUTDOWN, pending=True)

    def stop(self, stream: Stream) -> None:
        """End the consumers of a stream, and keep their files."""
        self.drain(stream)
        for consumer in list(stream.consumers.values()):
            self._detach(consumer)
            consumer.cursor.close(delete=False)

    # --- pause

    async def pause(self, consumer: Consumer, until: str) -> None:
        """Pause a consumer until a time, or resume it (""). If this fails (OSError), nothing
        changes."""
        old = consumer.config
        config = msgspec.structs.replace(old, pause_until=until)
        config.metadata = metadata.stored(config.metadata, metadata.consumer_level(config))
        try:
            await self._save(consumer.stream, config, consumer.created_ns)
            consumer.set_pause(config, moment_ns(until))
        except BaseException:
            await self._restore_config(consumer, old)
            raise
        shown: dict[str, Any] = {
            "stream": consumer.stream_name,
            "consumer": consumer.name,
            "paused": moment_ns(until) > time.time_ns(),
            "pause_until": until or time_text(0),
        }
        subject = f"CONSUMER.PAUSE.{consumer.stream_name}.{consumer.name}"
        self.account.advisory(subject, "consumer_pause", shown)

    # --- events

    def new_id(self) -> str:
        """A new unique id."""
        return self.account.context.ids.next()

    def largest_message(self, stream: Stream) -> int:
        """The highest size of a message of the stream, in bytes: the burst of a rate limit."""
        sizes = (
            stream.config.max_msg_size,
            self.account.account.payload_max,
            self.account.context.nats.settings.max_payload,
            NATS_PAYLOAD_HUGE,
        )
        return next(size for size in sizes if size > 0)

    def next_seq(self, stream: Stream) -> int:
        """The sequence of the next message of the stream."""
        return int(stream.store.last_seq) + 1

    def report_action(self, consumer: Consumer, event: str, action: str) -> None:
        """Report that a consumer was created or deleted."""
        self.account.topics.announce_consumer(consumer, created=action == "create")
        shown = {"stream": consumer.stream_name, "consumer": consumer.name, "action": action}
        subject = f"CONSUMER.{event}.{consumer.stream_name}.{consumer.name}"
        self.account.advisory(subject, "consumer_action", shown)

    def report(self, consumer: Consumer, kind: str, details: Any) -> None:
        """Send an advisory, a metric or a status that a consumer recorded in this turn."""
        stream, name = consumer.stream_name, consumer.name
        if kind == "status":
            reply, line = details
            self.account.publish(reply, b"", b"NATS/1.0 " + line + b"\r\n\r\n")
        elif kind == "consumer_ack":
            shown = {"stream": stream, "consumer": name, **details}
            self.account.metric(f"CONSUMER.ACK.{stream}.{name}", kind, shown)
        elif kind in ("pinned", "unpinned"):
            shown = {"account": self.account.name, "stream": stream, "consumer": name, **details}
            self.account.advisory(
                f"CONSUMER.{kind.upper()}.{stream}.{name}", f"consumer_group_{kind}", shown
            )
        else:
            shown = {"stream": stream, "consumer": name, **details}
            self.account.advisory(f"{_ADVISORIES[kind]}.{stream}.{name}", kind, shown)


async def _filter_of(stream: Stream, config: ConsumerConfig) -> Filter | None:
    """The filter of a consumer; None: it reads all messages. A new one is compared with the
    subjects of the stream in several turns, and the consumer finds it while somebody holds it."""
    filters = checks.filters_of(config)
    return await stream.store.subjects.filter_in_turns(filters) if filters else None


def _report(text: str, stream: Stream, name: str, problem: Exception) -> None:
    log.error("%s: %s", text, problem, extra=fields(stream=stream.name, consumer=name))


def settings_of(config: ConsumerConfig) -> dict[str, Any]:
    """The settings of the cursor of a consumer; 0 = no limit."""
    return {
        "ack_wait_ns": (
            NO_ACK_WAIT
            if config.ack_policy == "flow_control"
            else min(config.ack_wait, limits.JS_TIME_MAX)
        ),
        "backoff_ns": [min(step, limits.JS_TIME_MAX) for step in config.backoff],
        "max_deliver": min(max(0, config.max_deliver), limits.JS_COUNT_MAX),
        "max_ack_pending": min(max(0, config.max_ack_pending), limits.JS_COUNT_MAX),
    }
