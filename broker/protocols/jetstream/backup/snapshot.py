"""Sends the state of a stream at one moment, while the stream is in use.

    meta.inf, meta.sum, msgs/N.blk, obs/CONSUMER/meta.inf, meta.sum, o.dat      files of nats-server
    in a tar, in chunks of S2, in messages to the subject that the request names

Each message but the last has a reply subject for an answer; an empty message follows the last. The
bytes of unanswered messages are limited by a window. Every nats-server since 2.10 can restore such
a snapshot.
"""

from __future__ import annotations

import asyncio
import tarfile
import time
from typing import TYPE_CHECKING, Any, Final

import msgspec

from broker.net.s2 import chunk_of
from broker.protocols.jetstream import limits
from broker.protocols.jetstream.backup.states import state_of_cursor
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
_END: Final = b"NATS/1.0 204\r\n\r\n"  # headers of the empty message if the last chunk was full

_NO_INTEREST: Final = "408 No Interest"
_NO_ANSWER: Final = "408 No Flow Response"


class SnapshotEndedError(Exception):
    """The snapshot ends early; the text is the status for the receiver."""


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
        """`shown`: the answer to the request. `client`: of the request, for advisories."""
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
        # Read at once: the acks of the consumers must not be newer than the messages.
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
        """Send the snapshot. Returns when it was sent or has ended early."""
        name, started = self.stream.name, time.time_ns()
        self._send_advisory("SNAPSHOT_CREATE", {"stream": name, "state": self.state})
        answers = self.account.account.listen(
            f"$JS.SNAPSHOT.ACK.{name}.{self.id}.>".encode(), self._answer
        )
        try:
            await self._send_all()
        except SnapshotEndedError as problem:
            self._send_status(str(problem))
        except (OSError, MemoryError, ValueError) as problem:
            self._send_status(f"500 {problem}")
        finally:
            answers.close()
        self._send_advisory(
            "SNAPSHOT_COMPLETE",
            {"stream": name, "start": time_text(started), "end": time_text(time.time_ns())},
        )

    def _send_advisory(self, event: str, fields: dict[str, Any]) -> None:
        subject = f"STREAM.{event}.{self.stream.name}"
        self.account.advisory(subject, event.lower(), {**fields, "client": self.client})

    # --- messages

    def _answer(self, message: Message) -> None:
        number = message.subject.rpartition(b".")[2]
        if number.isdigit():
            self._unanswered_bytes -= self._unanswered.pop(int(number), 0)
            self._answered.set()

    async def _await_receiver(self) -> None:
        """Wait for a subscription of the deliver subject: clients may add it after the answer. A
        wildcard subscription of all their inboxes does not count, because it exists before."""
        account = self.account.account
        end = time.monotonic() + limits.JS_SNAPSHOT_RECEIVER_SECONDS
        while not account.has_exact(self.to) and time.monotonic() < end:  # noqa: ASYNC110
            await asyncio.sleep(limits.JS_SNAPSHOT_POLL_SECONDS)  # the router reports no event

    async def _send_all(self) -> None:
        await self._await_receiver()
        await self.stream.store.settle()  # messages appended before the snapshot can then be read
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

    def _send_status(self, status: str) -> None:
        line = status.replace("\r", " ").replace("\n", " ")
        self.account.publish(self.to, b"", f"NATS/1.0 {line}\r\n\r\n".encode())

    # --- content

    async def _compressed(self) -> AsyncIterator[bytes]:
        """The tar in S2 chunks, about JS_SNAPSHOT_PIECE bytes of it at a time."""
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
            yield _tar_header(f"msgs/{number}.blk", len(block))
            for at in range(0, len(block), limits.JS_SNAPSHOT_PIECE):
                yield block[at : at + limits.JS_SNAPSHOT_PIECE]
            yield bytes(-len(block) % _TAR_BLOCK)
        for each, config, created_ns, state in self.consumers:
            page = {"Created": time_text(created_ns), "Name": each, **msgspec.to_builtins(config)}
            for piece in _meta(f"obs/{each}/", f"{name}/{each}", page):
                yield piece
            yield _tar_file(f"obs/{each}/{STATE}", encode_state(state))
        yield bytes(2 * _TAR_BLOCK)

    async def _blocks(self) -> AsyncIterator[bytes]:
        """Blocks with the messages. If the last message is deleted, the last block has an erased
        record with its seq."""
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
            writer.add_erased(self.last, self.last_ns)
        if len(writer):
            yield writer.take()


def _within(value: int, default: int, bounds: tuple[int, int]) -> int:
    return min(max(value, bounds[0]), bounds[1]) if value > 0 else default


def _compress(data: bytes) -> bytes:
    import snappy  # type: ignore[import-untyped]

    pieces = (data[at : at + _S2_BLOCK] for at in range(0, len(data), _S2_BLOCK))
    return b"".join(chunk_of(piece, snappy.compress(piece)) for piece in pieces)


def _tar_header(name: str, size: int) -> bytes:
    entry = tarfile.TarInfo(name)
    entry.size = size
    entry.mode = 0o600
    entry.mtime = int(time.time())
    return entry.tobuf(tarfile.GNU_FORMAT)


def _tar_file(name: str, data: bytes) -> bytes:
    return _tar_header(name, len(data)) + data + bytes(-len(data) % _TAR_BLOCK)


def _meta(folder: str, name: str, page: dict[str, Any]) -> tuple[bytes, bytes]:
    text, checksum = meta_files(name, page)
    return _tar_file(f"{folder}{META}", text), _tar_file(f"{folder}{META_SUM}", checksum)
