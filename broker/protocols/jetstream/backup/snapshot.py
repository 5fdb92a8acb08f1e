"""Sends a stream as it is at one moment, while it goes on.

    meta.inf, meta.sum, msgs/N.blk, obs/CONSUMER/meta.inf, meta.sum, o.dat      files of nats-server
    in a tar, in chunks of S2, in messages to the subject that the request names

Each message asks for an answer, but for the last one; then comes an empty one. At most a window of
bytes is not answered. Every nats-server since 2.10 restores what is sent.
"""

from __future__ import annotations

import asyncio
import tarfile
import time
from typing import TYPE_CHECKING, Any, Final

import msgspec

from broker.net.s2 import chunk_of
from broker.protocols.jetstream import limits
from broker.protocols.jetstream.backup.places import state_of_cursor
from broker.protocols.jetstream.backup.stored import META, META_SUM, STATE, encode_state, meta_files
from broker.protocols.jetstream.blocks.records import BlockWriter, sum_key
from broker.protocols.jetstream.structs import time_text

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from broker.protocols.jetstream.account import JetStreamAccount
    from broker.protocols.jetstream.publish.stream import Stream
    from broker.protocols.jetstream.structs import SnapshotAnswer, SnapshotRequest
    from broker.protocols.nats.accounts.account import Message

_TAR_BLOCK: Final = 512
_STREAM_START: Final = b"\xff\x06\x00\x00S2sTwO"
_S2_BLOCK: Final = 64 << 10  # bytes compressed together
_END: Final = b"NATS/1.0 204\r\n\r\n"  # after a last message that was full

_NO_INTEREST: Final = "408 No Interest"
_NO_ANSWER: Final = "408 No Flow Response"


class SnapshotEndedError(Exception):
    """It cannot go on; the text is the status that the receiver gets."""


class Snapshot:
    """One snapshot that is being sent."""

    def __init__(
        self,
        account: JetStreamAccount,
        stream: Stream,
        request: SnapshotRequest,
        shown: SnapshotAnswer,
        client: dict[str, Any],
    ) -> None:
        """`shown`: the answer to the request. `client`: who asked, for advisories."""
        self.account = account
        self.stream = stream
        self.to = request.deliver_subject.encode()
        self.chunk_bytes = _within(
            request.chunk_size, limits.JS_SNAPSHOT_CHUNK, limits.JS_SNAPSHOT_CHUNK_RANGE
        )
        self.window_bytes = _within(
            request.window_size, limits.JS_SNAPSHOT_WINDOW, limits.JS_SNAPSHOT_WINDOW_RANGE
        )
        self.config = stream.config
        self.state = shown.state
        self.client = client
        self.first, self.last = stream.store.first_seq, stream.store.last_seq
        self.last_ns = stream.store.last_ns
        consumers = () if request.no_consumers else tuple(stream.consumers.values())
        # Now, because their places must not be after the messages.
        self.consumers = [
            (each.name, each.config, each.created_ns, state_of_cursor(each.cursor))
            for each in consumers
            if not each.config.direct and not each.config.mem_storage
        ]
        self.id = account.context.ids.next()
        self._unanswered: dict[int, int] = {}  # number of a message -> its bytes
        self._unanswered_bytes = 0
        self._sent = 0
        self._answered = asyncio.Event()

    async def run(self) -> None:
        """Send everything; returns when it is sent, or cannot be."""
        name, started = self.stream.name, time.time_ns()
        self._advise("SNAPSHOT_CREATE", {"stream": name, "state": self.state})
        answers = self.account.account.listen(
            f"$JS.SNAPSHOT.ACK.{name}.{self.id}.>".encode(), self._answer
        )
        try:
            await self._send_all()
        except SnapshotEndedError as problem:
            self._end(str(problem))
        except (OSError, MemoryError, ValueError) as problem:
            self._end(f"500 {problem}")
        finally:
            answers.close()
        self._advise(
            "SNAPSHOT_COMPLETE",
            {"stream": name, "start": time_text(started), "end": time_text(time.time_ns())},
        )

    def _advise(self, event: str, fields: dict[str, Any]) -> None:
        subject = f"STREAM.{event}.{self.stream.name}"
        self.account.advisory(subject, event.lower(), {**fields, "client": self.client})

    # --- messages

    def _answer(self, message: Message) -> None:
        number = message.subject.rpartition(b".")[2]
        if number.isdigit():
            self._unanswered_bytes -= self._unanswered.pop(int(number), 0)
            self._answered.set()

    async def _await_receiver(self) -> None:
        """Clients may subscribe after they have seen the answer, and have a subscription to all
        their inboxes before."""
        account = self.account.account
        end = time.monotonic() + limits.JS_SNAPSHOT_RECEIVER_SECONDS
        while not account.has_exact(self.to) and time.monotonic() < end:  # noqa: ASYNC110
            await asyncio.sleep(limits.JS_SNAPSHOT_POLL_SECONDS)  # the router calls nobody

    async def _send_all(self) -> None:
        await self._await_receiver()
        await self.stream.store.settle()  # what was appended when it began can be read then
        waiting = bytearray(_STREAM_START)
        async for data in self._compressed():
            waiting += data
            while len(waiting) > self.chunk_bytes:
                await self._send(bytes(waiting[: self.chunk_bytes]))
                del waiting[: self.chunk_bytes]
        full = len(waiting) == self.chunk_bytes
        if full:
            await self._send(bytes(waiting))
        else:
            self.account.publish(self.to, bytes(waiting))
        self.account.publish(self.to, b"", _END if full else b"")

    async def _send(self, chunk: bytes) -> None:
        while self._unanswered and self._unanswered_bytes + len(chunk) > self.window_bytes:
            self._answered.clear()
            try:
                await asyncio.wait_for(self._answered.wait(), limits.JS_SNAPSHOT_STALL_SECONDS)
            except TimeoutError:
                raise SnapshotEndedError(_NO_ANSWER) from None
        if not self.account.account.interest(self.to):
            raise SnapshotEndedError(_NO_INTEREST)
        self._sent += 1
        self._unanswered[self._sent] = len(chunk)
        self._unanswered_bytes += len(chunk)
        reply = f"$JS.SNAPSHOT.ACK.{self.stream.name}.{self.id}.{len(chunk)}.{self._sent}"
        self.account.account.publish(self.to, chunk, reply.encode())

    def _end(self, status: str) -> None:
        line = status.replace("\r", " ").replace("\n", " ")
        self.account.publish(self.to, b"", f"NATS/1.0 {line}\r\n\r\n".encode())

    # --- content

    async def _compressed(self) -> AsyncIterator[bytes]:
        """The tar as chunks of S2, a megabyte or so at a time."""
        waiting: list[bytes] = []
        size = 0
        async for piece in self._tar():
            waiting.append(piece)
            size += len(piece)
            if size >= limits.JS_SNAPSHOT_PIECE:
                yield await asyncio.to_thread(_compress, b"".join(waiting))
                waiting, size = [], 0
        yield await asyncio.to_thread(_compress, b"".join(waiting))

    async def _tar(self) -> AsyncIterator[bytes]:
        name = self.config.name
        page = {"Created": time_text(self.stream.created_ns), **msgspec.to_builtins(self.config)}
        for piece in _meta("", name, page):
            yield piece
        number = 0
        async for block in self._blocks():
            number += 1
            yield _head(f"msgs/{number}.blk", len(block))
            for at in range(0, len(block), limits.JS_SNAPSHOT_PIECE):
                yield block[at : at + limits.JS_SNAPSHOT_PIECE]
            yield bytes(-len(block) % _TAR_BLOCK)
        for each, config, created_ns, state in self.consumers:
            page = {"Created": time_text(created_ns), "Name": each, **msgspec.to_builtins(config)}
            for piece in _meta(f"obs/{each}/", f"{name}/{each}", page):
                yield piece
            yield _file(f"obs/{each}/{STATE}", encode_state(state))
        yield bytes(2 * _TAR_BLOCK)

    async def _blocks(self) -> AsyncIterator[bytes]:
        """Blocks with the messages; the last one says which seq was the last."""
        store, seq, number = self.stream.store, self.first, 1
        writer = BlockWriter(sum_key(f"{self.config.name}-{number}"))
        while seq:
            if store.closed:
                raise SnapshotEndedError("500 stream deleted")
            seq = writer.fill(store, seq, self.last, limits.JS_SNAPSHOT_SLICE)
            if seq and len(writer) >= limits.JS_SNAPSHOT_BLOCK:
                yield writer.take()
                number += 1
                writer = BlockWriter(sum_key(f"{self.config.name}-{number}"))
            await asyncio.sleep(0)
        if self.last and not store.message(self.last):
            writer.bury(self.last, self.last_ns)
        if len(writer):
            yield writer.take()


def _within(value: int, default: int, bounds: tuple[int, int]) -> int:
    return min(max(value, bounds[0]), bounds[1]) if value > 0 else default


def _compress(data: bytes) -> bytes:
    import snappy  # type: ignore[import-untyped]

    pieces = (data[at : at + _S2_BLOCK] for at in range(0, len(data), _S2_BLOCK))
    return b"".join(chunk_of(piece, snappy.compress(piece)) for piece in pieces)


def _head(name: str, size: int) -> bytes:
    entry = tarfile.TarInfo(name)
    entry.size = size
    entry.mode = 0o600
    entry.mtime = int(time.time())
    return entry.tobuf(tarfile.GNU_FORMAT)


def _file(name: str, data: bytes) -> bytes:
    return _head(name, len(data)) + data + bytes(-len(data) % _TAR_BLOCK)


def _meta(folder: str, name: str, page: dict[str, Any]) -> tuple[bytes, bytes]:
    text, checksum = meta_files(name, page)
    return _file(f"{folder}{META}", text), _file(f"{folder}{META_SUM}", checksum)
