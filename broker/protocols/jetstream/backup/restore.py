"""Creates a stream from a snapshot that a client sends.

    parts -> STREAM.upload/snapshot -> STREAM.upload/files -> log, STREAM.restoring -> STREAM

If the process ends meanwhile, the next start removes the folder `.upload`, and the folder
`.restoring` together with the log. The stream exists when its folder has been renamed; all of its
data has been synced before.
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

from broker.base.durable import make_folder, remove_folder, sync_path
from broker.engine.log.publish import check_appends
from broker.protocols.jetstream import errors, files, limits
from broker.protocols.jetstream.backup.archive import unpack
from broker.protocols.jetstream.backup.states import save_configs
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
    """The client has stopped sending, or has sent too much."""


class Restoration:
    """The restoration of one stream."""

    def __init__(
        self,
        account: JetStreamAccount,
        config: StreamConfig,
        client: dict[str, Any],
        check: Callable[[JetStreamAccount, StreamConfig], None],
        info: Callable[[JetStreamAccount, Stream], StreamInfo],
    ) -> None:
        """`config`: complete and checked. `check` repeats the checks whose result may change before
        the stream is created. `client`: of the request, for advisories. `info` returns the stream
        for the last answer."""
        self.account = account
        self.config = config
        self.client = client
        self.check = check
        self.info = info
        self.subject = f"$JS.SNAPSHOT.RESTORE.{config.name}.{account.context.ids.next()}"
        self.bytes = 0  # received
        self._parts: deque[Message] = deque()
        self._parts_bytes = 0
        self._received = asyncio.Event()
        self._overflowed = False
        self._unanswered = b""  # reply subject of the part that is being written
        self._sub = account.account.listen(self.subject.encode(), self._add_part)

    async def run(self) -> None:
        """Receive the parts, and create the stream."""
        name, started = self.config.name, time.time_ns()
        self._send_advisory("RESTORE_CREATE", {"stream": name})
        scratch: Path | None = None
        reply = body = b""
        try:
            try:
                scratch = await asyncio.to_thread(_make_scratch, self.account.stream_folder(name))
                reply = await self._receive(scratch / _SNAPSHOT)
            finally:
                self._sub.close()  # later parts get a no-responders status
            body = await self._answer(scratch)
        except _StalledError:
            pass  # no answer: the client has stopped, or has sent too much
        except OSError as problem:
            log.error("the snapshot of stream %r cannot be received: %s", name, problem)
            refusal = ApiError(errors.STREAM_RESTORE, err=str(problem))
            reply, body = self._unanswered, answer("stream_create", error=refusal)
        finally:
            if scratch is not None:
                await asyncio.to_thread(shutil.rmtree, scratch, ignore_errors=True)
        fields = {
            "stream": name,
            "start": time_text(started),
            "end": time_text(time.time_ns()),
            "bytes": self.bytes,
        }
        self._send_advisory("RESTORE_COMPLETE", fields)
        if reply:
            self.account.publish(reply, body)

    def _send_advisory(self, event: str, fields: dict[str, Any]) -> None:
        subject = f"STREAM.{event}.{self.config.name}"
        self.account.advisory(subject, event.lower(), {**fields, "client": self.client})

    # --- parts

    def _add_part(self, message: Message) -> None:
        self._parts_bytes += len(message.data)
        if self._parts_bytes > limits.JS_RESTORE_WAITING_MAX:
            self._overflowed = True
        else:
            self._parts.append(message)
        self._received.set()

    async def _receive(self, path: Path) -> bytes:
        """Write the parts to a file until an empty one. Returns the reply subject of that one."""
        most = self.account.context.capacity(self.config.storage)
        with await asyncio.to_thread(path.open, "wb") as file:
            while True:
                while not self._parts:
                    self._received.clear()
                    try:
                        await asyncio.wait_for(
                            self._received.wait(), limits.JS_SNAPSHOT_STALL_SECONDS
                        )
                    except TimeoutError:
                        raise _StalledError from None
                if self._overflowed or self.bytes > most:
                    raise _StalledError
                part = self._parts.popleft()
                self._parts_bytes -= len(part.data)
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
        """Create the stream. Returns the answer to the last part."""
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
        blocks = await asyncio.to_thread(found.scan, verify=False)
        consumers = await asyncio.to_thread(found.consumers)
        self.check(account, config)
        account.restoring.add(config.name)
        try:
            return await self._create(found, blocks, consumers, original.last_seq)
        finally:
            account.restoring.discard(config.name)

    async def _create(
        self,
        found: FoundStream,
        blocks: list[Any],
        consumers: list[FoundConsumer],
        last_seq: int,
    ) -> Stream:
        from broker.engine.stream.store import StreamLimits

        account, config = self.account, self.config
        folder = account.stream_folder(config.name) if config.storage == "file" else None
        created_ns = moment_ns(found.created) if found.created else time.time_ns()
        last = max(last_seq, found.tombstones.known_to, config.first_seq - 1)
        last = max([last, *(block.last for block in blocks)])
        if last > limits.JS_TAKEN_SEQ_MAX:
            raise ValueError(f"it has the sequence {last}")
        await account.finish_deletion(config.name)
        if folder is not None:
            unfinished = folder.with_name(folder.name + files.RESTORING)
            stored = files.StoredStream(created=time_text(created_ns), config=config)
            await asyncio.to_thread(_write_configs, unfinished, stored, consumers)
        store = account.open_store(config, StreamLimits(), "none")
        try:
            transfer = Transfer(found.tombstones, config.allow_msg_ttl)
            await self._move(found, blocks, transfer, store)
            await store.skip_to(max(last, transfer.last) + 1)
            if folder is not None:
                await store.log.sync.synced()
                store.log.set_sync(account.context.config.sync.policy)
            if folder is not None:
                await asyncio.to_thread(_rename, unfinished, folder)
            store.set_limits(_limits_of(config))
            stream = account.serve(store, config, created_ns)
            account.consumers.restore(stream)
            account.origins.stream_opened(stream, folder)
        except BaseException:
            account.close_stream(config.name)
            store.close()
            await account.drop_log(files.token_of(config.name))
            if folder is not None:
                await asyncio.to_thread(_remove, unfinished, folder)
            raise
        return stream

    async def _move(
        self, found: FoundStream, blocks: list[Any], transfer: Transfer, store: StreamStore
    ) -> None:
        """Store the messages; after each JS_RESTORE_SLICE bytes, wait until they are written."""
        for each in blocks:
            block = await asyncio.to_thread(found.block, each.path, verify=True)
            more = True
            while more:
                more = transfer.move(block, store, _SEQ_MAX, limits.JS_RESTORE_SLICE)
                await store.settle()
                check_appends(store.log)
            if block.bad:
                raise ValueError("a message is damaged")
        if transfer.too_large:
            raise ValueError(f"message {transfer.too_large[0]} is too large")


def _remove(unfinished: Path, folder: Path) -> None:
    """Remove the folder of the stream under both names."""
    shutil.rmtree(unfinished, ignore_errors=True)
    shutil.rmtree(folder, ignore_errors=True)


def _limits_of(config: StreamConfig) -> Any:
    from broker.protocols.jetstream.account import limits_of

    return limits_of(config)


def _make_scratch(folder: Path | None) -> Path:
    """A new folder for the received files. The next start removes it if the process ends."""
    if folder is None:
        return Path(tempfile.mkdtemp(prefix="twinwire-restore-"))
    make_folder(folder.parent)
    return Path(tempfile.mkdtemp(suffix=files.UPLOAD, prefix=folder.name + ".", dir=folder.parent))


def _write_configs(
    folder: Path, stored: files.StoredStream, consumers: list[FoundConsumer]
) -> None:
    remove_folder(folder)  # of an earlier attempt
    save_configs(folder, stored, consumers)
    for path in folder.rglob("*"):
        sync_path(path)
    sync_path(folder)
    sync_path(folder.parent)


def _rename(unfinished: Path, folder: Path) -> None:
    unfinished.rename(folder)
    sync_path(folder.parent)
