"""Makes a stream of a snapshot that a client sends.

    parts -> STREAM.upload/snapshot -> STREAM.upload/files -> log, STREAM.restoring -> STREAM

If the process ends, the first folder is removed at the next start; a folder `.restoring` with what
there is of the log. The stream exists once its folder has its name; by then all of it is on the
disk.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import tempfile
import time
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from broker.base.durable import make_folder, sync_path
from broker.protocols.jetstream import errors, files, limits
from broker.protocols.jetstream.backup.archive import unpack
from broker.protocols.jetstream.backup.places import save_configs
from broker.protocols.jetstream.backup.stored import FoundStream, SourceError
from broker.protocols.jetstream.backup.transfer import Transfer
from broker.protocols.jetstream.errors import ApiError
from broker.protocols.jetstream.structs import answer, moment_ns, time_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from broker.base.problem import Problem
    from broker.engine.stream.store import StreamStore
    from broker.protocols.jetstream.account import JetStreamAccount
    from broker.protocols.jetstream.backup.stored import FoundConsumer
    from broker.protocols.jetstream.publish.stream import Stream
    from broker.protocols.jetstream.structs import StreamConfig, StreamInfo
    from broker.protocols.nats.accounts.account import Message

log = logging.getLogger("broker.jetstream")

_SNAPSHOT: Final = "snapshot"
_FILES: Final = "files"
_SEQ_MAX: Final = (1 << 64) - 1


class _StalledError(Exception):
    """The client sends nothing more, or too much at once."""


class Restoration:
    """One stream that is being restored."""

    def __init__(
        self,
        account: JetStreamAccount,
        config: StreamConfig,
        client: dict[str, Any],
        check: Callable[[JetStreamAccount, StreamConfig], None],
        info: Callable[[JetStreamAccount, Stream], StreamInfo],
    ) -> None:
        """`config`: complete and checked, but for what `check` looks at again before the stream is
        made. `client`: who asked, for advisories. `info`: the stream for the last answer."""
        self.account = account
        self.config = config
        self.client = client
        self.check = check
        self.info = info
        self.subject = f"$JS.SNAPSHOT.RESTORE.{config.name}.{account.context.ids.next()}"
        self.bytes = 0  # received
        self._parts: deque[Message] = deque()
        self._waiting_bytes = 0
        self._came = asyncio.Event()
        self._too_much = False
        self._unanswered = b""  # where the answer to the part goes that is being written
        self._sub = account.account.listen(self.subject.encode(), self._take)

    async def run(self) -> None:
        """Take the parts, and make the stream of them."""
        name, started = self.config.name, time.time_ns()
        self._advise("RESTORE_CREATE", {"stream": name})
        scratch: Path | None = None
        reply = body = b""
        try:
            try:
                scratch = await asyncio.to_thread(_make_scratch, self.account.stream_folder(name))
                reply = await self._receive(scratch / _SNAPSHOT)
            finally:
                self._sub.close()  # a part that comes now has no responder
            body = await self._answer(scratch)
        except _StalledError:
            pass  # nobody waits for an answer
        except OSError as problem:
            log.error("the snapshot of stream %r cannot be received: %s", name, problem)
            refusal = ApiError(errors.STREAM_RESTORE, err=str(problem))
            reply, body = self._unanswered, answer("stream_create", error=refusal)
        finally:
            if scratch is not None:
                await asyncio.to_thread(shutil.rmtree, scratch, True)
        fields = {
            "stream": name,
            "start": time_text(started),
            "end": time_text(time.time_ns()),
            "bytes": self.bytes,
        }
        self._advise("RESTORE_COMPLETE", fields)
        if reply:
            self.account.publish(reply, body)

    def _advise(self, event: str, fields: dict[str, Any]) -> None:
        subject = f"STREAM.{event}.{self.config.name}"
        self.account.advisory(subject, event.lower(), {**fields, "client": self.client})

    # --- parts

    def _take(self, message: Message) -> None:
        self._waiting_bytes += len(message.data)
        if self._waiting_bytes > limits.JS_RESTORE_WAITING_MAX:
            self._too_much = True
        else:
            self._parts.append(message)
        self._came.set()

    async def _receive(self, path: Path) -> bytes:
        """Write the parts to a file until an empty one; returns where the answer goes."""
        most = self.account.context.capacity(self.config.storage)
        with await asyncio.to_thread(path.open, "wb") as file:
            while True:
                while not self._parts:
                    self._came.clear()
                    try:
                        await asyncio.wait_for(self._came.wait(), limits.JS_SNAPSHOT_STALL_SECONDS)
                    except TimeoutError:
                        raise _StalledError from None
                if self._too_much or self.bytes > most:
                    raise _StalledError
                part = self._parts.popleft()
                self._waiting_bytes -= len(part.data)
                self._unanswered = self._reply_of(part)
                if not part.data:
                    return self._unanswered
                self.bytes += len(part.data)
                await asyncio.to_thread(file.write, part.data)
                if self._unanswered:
                    self.account.publish(self._unanswered, b"")
                self._unanswered = b""

    def _reply_of(self, message: Message) -> bytes:
        from broker.protocols.nats.accounts.rights import may_receive

        if may_receive(self.account.account, message.session, message.reply):
            return message.reply
        return b""

    # --- the stream

    async def _answer(self, scratch: Path) -> bytes:
        """Make the stream; returns the answer to the last part."""
        try:
            stream = await self._restore(scratch)
        except ApiError as problem:
            return answer("stream_create", error=problem)
        except (OSError, ValueError, SourceError, MemoryError, EOFError) as problem:
            refusal = ApiError(errors.STREAM_RESTORE, err=str(problem))
            return answer("stream_create", error=refusal)
        self.account.stream_advisory("CREATED", stream.name, "create")
        return answer("stream_create", self.info(self.account, stream))

    async def _restore(self, scratch: Path) -> Stream:
        account, config = self.account, self.config
        problems: list[Problem] = []
        most = account.context.capacity(config.storage)
        original = await asyncio.to_thread(
            unpack, scratch / _SNAPSHOT, scratch / _FILES, config, most
        )
        found = await asyncio.to_thread(
            FoundStream, scratch / _FILES, account.name, "", problems, original.name
        )
        surveys = await asyncio.to_thread(found.survey, verify=False)
        consumers = await asyncio.to_thread(found.consumers)
        self.check(account, config)
        account.restoring.add(config.name)
        try:
            return await self._fill(found, surveys, consumers, original.last_seq)
        finally:
            account.restoring.discard(config.name)

    async def _fill(
        self,
        found: FoundStream,
        surveys: list[Any],
        consumers: list[FoundConsumer],
        last_seq: int,
    ) -> Stream:
        from broker.engine.stream.store import StreamLimits

        account, config = self.account, self.config
        place = account.stream_folder(config.name) if config.storage == "file" else None
        created_ns = moment_ns(found.created) if found.created else time.time_ns()
        last = max(last_seq, found.tombstones.known_to, config.first_seq - 1)
        last = max([last, *(survey.last for survey in surveys)])
        if last > limits.JS_TAKEN_SEQ_MAX:
            raise ValueError(f"it has the sequence {last}")
        await account.finish_deletion(config.name)
        if place is not None:
            made = place.with_name(place.name + files.RESTORING)
            stored = files.StoredStream(created=time_text(created_ns), config=config)
            await asyncio.to_thread(_make_place, made, stored, consumers)
        store = account.open_store(config, StreamLimits(), "none")
        try:
            transfer = Transfer(found.tombstones, config.allow_msg_ttl)
            await self._move(found, surveys, transfer, store)
            await store.skip_to(max(last, transfer.last) + 1)
            if place is not None:
                await store.log.sync.synced()
                store.log.set_sync(account.context.config.sync.policy)
            if place is not None:
                await asyncio.to_thread(_rename, made, place)
            store.set_limits(_limits_of(config))
            stream = account.serve(store, config, created_ns)
            account.consumers.restore(stream)
            account.origins.opened(stream, place)
        except BaseException:
            account.shut(config.name)
            store.close()
            await account.drop_log(files.token_of(config.name))
            if place is not None:
                await asyncio.to_thread(_remove, made, place)
            raise
        return stream

    async def _move(
        self, found: FoundStream, surveys: list[Any], transfer: Transfer, store: StreamStore
    ) -> None:
        """Store the messages, some in each turn of the loop."""
        for survey in surveys:
            block = await asyncio.to_thread(found.block, survey.path, verify=True)
            more = True
            while more:
                more = transfer.move(block, store, _SEQ_MAX, limits.JS_RESTORE_SLICE)
                await store.settle()
                if store.log.last_error:
                    raise OSError(store.log.last_error, store.log.refusal)
            if block.bad:
                raise ValueError("a message is damaged")
        if transfer.too_large:
            raise ValueError(f"message {transfer.too_large[0]} is too large")


def _remove(made: Path, place: Path) -> None:
    """Remove what there is of the stream's folder, under its name too."""
    shutil.rmtree(made, ignore_errors=True)
    shutil.rmtree(place, ignore_errors=True)


def _limits_of(config: StreamConfig) -> Any:
    from broker.protocols.jetstream.account import limits_of

    return limits_of(config)


def _make_scratch(place: Path | None) -> Path:
    """A new folder for what is received; one whose process ended is removed at the next start."""
    if place is None:
        return Path(tempfile.mkdtemp(prefix="twinwire-restore-"))
    make_folder(place.parent)
    return Path(tempfile.mkdtemp(suffix=files.UPLOAD, prefix=place.name + ".", dir=place.parent))


def _make_place(folder: Path, stored: files.StoredStream, consumers: list[FoundConsumer]) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    save_configs(folder, stored, consumers)
    for path in folder.rglob("*"):
        sync_path(path)
    sync_path(folder)
    sync_path(folder.parent)


def _rename(made: Path, place: Path) -> None:
    made.rename(place)
    sync_path(place.parent)
