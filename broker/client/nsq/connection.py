"""One connection to an nsqd: handshake, upgrades, received frames, sent commands.

All commands of one turn of the event loop are sent in one write. Answers have the order of the
commands, so the commands without an answer are a queue of futures.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections import deque
from collections.abc import Callable
from typing import Any, Final, cast

from broker.client.nsq import limits
from broker.client.nsq.clock import Clock, Timer
from broker.client.nsq.codec import Codec, Deflate, Snappy
from broker.client.nsq.errors import ClosedError, ConnectError, NsqError, ServerError, reason_of
from broker.client.nsq.options import Address, Options

FRAME_RESPONSE: Final = 0
FRAME_ERROR: Final = 1
FRAME_MESSAGE: Final = 2
_HEADER: Final = struct.Struct(">iI")
_MESSAGE_HEAD: Final = struct.Struct(">qH16s")
_HEARTBEAT: Final = b"_heartbeat_"
_GREETING_BYTES: Final = 64
# Other servers: position and bytes by which their first bytes are recognized, and the error text.
_OTHER_SERVERS: Final = (
    (0, b"INFO ", "this is a NATS server, not an nsqd"),
    (0, b"HTTP/", "this is an HTTP server; nsqd's TCP port is 4150 by default"),
    (0, b"\x15\x03", "this server requires TLS from the first byte, which nsqd does not"),
    (0, b"-ERR", "this is a Redis server, not an nsqd"),
    (4, b"E_BAD_PROTOCOL", "this is an nsqlookupd: give lookupd_http_addresses its HTTP address"),
)

Delivery = Callable[[bytes, int, int, bytes], None]  # id, timestamp_ns, attempts, body


class Connection(asyncio.Protocol):
    """A connection. The callbacks run on the loop. After a successful `open`, `on_lost` is called
    once."""

    def __init__(
        self,
        address: Address,
        options: Options,
        clock: Clock,
        *,
        on_lost: Callable[[NsqError], None],
        on_message: Delivery | None = None,
        on_error: Callable[[ServerError], None] | None = None,
    ) -> None:
        self.address = address
        self.options = options
        self.features: dict[str, Any] = {}
        self.identity: dict[str, Any] = {}
        self.alive = False
        self._clock = clock
        self._on_lost = on_lost
        self._on_message = on_message
        self._on_error = on_error
        self._transport: asyncio.Transport | None = None
        self._codec: Codec | None = None
        self._tail = bytearray()
        self._out: list[bytes] = []
        self._waiters: deque[asyncio.Future[bytes]] = deque()
        self._writable = asyncio.Event()
        self._writable.set()
        self._received_s = 0.0
        self._heartbeat_timer: Timer | None = None
        self._failure: NsqError | None = None
        self._opened = False
        self._greeting: bytes | None = b""  # the first bytes; None after a valid frame
        # During upgrades the bytes after an answer may have another encoding. They are stored
        # until `_end_upgrade` is called.
        self._upgrading = True
        self._holding = False

    # --- opening ---

    async def open(self) -> None:
        """Connect and do the handshake. ConnectError."""
        server = "{}:{}".format(*self.address)
        try:
            async with asyncio.timeout(self.options.connect_timeout_s):
                await self._open()
        except TimeoutError as error:
            self.abort(ClosedError("no answer in time"))
            raise ConnectError(f"{server}: no answer in time") from error
        except (OSError, NsqError, ValueError) as error:
            self.abort(ClosedError(str(error)))
            raise ConnectError(f"{server}: {reason_of(error)}") from error
        except BaseException:
            self.abort(ClosedError("given up"))
            raise
        self._opened = True
        self._start_heartbeat_timer()

    async def _open(self) -> None:
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_connection(lambda: self, *self.address)
        sock = transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        answer = await self.ask(b"  V2IDENTIFY\n" + _sized(self.options.identify()))
        try:
            features = json.loads(answer)
        except ValueError:
            features = {}  # `OK`: the server does not support features
        self.features = features if isinstance(features, dict) else {}
        await self._upgrade(loop)
        if self.features.get("auth_required"):
            if not self.options.auth_secret:
                raise ConnectError("the server requires AUTH and no secret is set")
            answer = await self.ask(b"AUTH\n" + _sized(self.options.auth_secret.encode()))
            self.identity = json.loads(answer)

    async def _upgrade(self, loop: asyncio.AbstractEventLoop) -> None:
        if self.options.tls is not None:
            if not self.features.get("tls_v1"):
                raise ConnectError("the server offers no TLS")
            assert self._transport is not None
            ready = self._expect()
            self._holding = False
            name = self.options.tls_server_name or self.address[0]
            try:
                secure = await loop.start_tls(
                    self._transport, self, self.options.tls, server_hostname=name
                )
            except BaseException:
                ready.cancel()  # otherwise asyncio reports that its exception was never retrieved
                raise
            self._transport = cast("asyncio.Transport", secure)
            await ready
        compressed = self.features.get("snappy") or self.features.get("deflate")
        switched = self._expect() if compressed else None
        if self.features.get("snappy"):
            self._codec = Snappy()
        elif self.features.get("deflate"):
            self._codec = Deflate(self.options.deflate_level)
        self._end_upgrade()
        if switched is not None:
            await switched

    def _end_upgrade(self) -> None:
        self._upgrading = self._holding = False
        data = bytes(self._tail)
        self._tail.clear()
        self.data_received(data)

    # --- sending ---

    def command(self, data: bytes) -> None:
        """Send a command without an answer, at the end of this turn."""
        if not self._out:
            asyncio.get_running_loop().call_soon(self._flush)
        self._out.append(data)

    def ask(self, data: bytes) -> asyncio.Future[bytes]:
        """Send a command and return its answer. ServerError, ClosedError."""
        future = self._expect()
        if not future.done():
            self.command(data)
        return future

    def _expect(self) -> asyncio.Future[bytes]:
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        if self._transport is None:
            future.set_exception(self._failure or ClosedError("not connected"))
        else:
            self._waiters.append(future)
        return future

    def _flush(self) -> None:
        data = b"".join(self._out)
        self._out.clear()
        if self._transport is not None and data:
            self._transport.write(data if self._codec is None else self._codec.encode(data))

    @property
    def pending(self) -> int:
        """The number of commands that wait for an answer."""
        return len(self._waiters)

    async def room(self) -> None:
        """Wait until the socket accepts more bytes."""
        await self._writable.wait()

    async def settled(self) -> None:
        """Wait until every command is answered."""
        if self._waiters:
            await asyncio.wait(list(self._waiters))

    def pause_writing(self) -> None:
        """Called when the socket is full."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """Called when the socket accepts more bytes."""
        self._writable.set()

    # --- receiving ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called when the socket is connected."""
        self._transport = cast("asyncio.Transport", transport)
        self.alive = True

    def data_received(self, data: bytes) -> None:
        """Process the frames of one read; an incomplete frame is stored for the next read."""
        self._received_s = self._clock.now()
        if self._greeting is not None:
            self._greeting = (self._greeting + data)[:_GREETING_BYTES]
        if self._holding:
            self._tail += data
            return
        try:
            if self._codec is not None:
                data = self._codec.decode(data)
            if self._tail:
                self._tail += data
                if len(self._tail) < 4 or len(self._tail) < 4 + _size(self._tail):
                    return
                data = bytes(self._tail)
                self._tail.clear()
            used = self._split(data)
            self._tail += data[used:]
            if len(self._tail) >= 4 and not self._holding:
                _size(self._tail)
        except Exception as error:
            self.abort(NsqError(self._other_server() or f"the stream is invalid: {error}"))

    def _split(self, data: bytes) -> int:
        pos, end, deliver = 0, len(data), self._on_message
        while end - pos >= 8:
            size, kind = _HEADER.unpack_from(data, pos)
            stop = pos + 4 + size
            if size < 4:
                raise NsqError(f"a frame of {size} bytes")
            if stop > end:
                break
            if kind == FRAME_MESSAGE and deliver is not None and size >= 30:
                timestamp_ns, attempts, message_id = _MESSAGE_HEAD.unpack_from(data, pos + 8)
                deliver(message_id, timestamp_ns, attempts, data[pos + 34 : stop])
            else:
                self._frame(kind, data[pos + 8 : stop])
            pos = stop
            if self._upgrading:
                self._holding = True
                break
        return pos

    def _frame(self, kind: int, payload: bytes) -> None:
        if kind == FRAME_RESPONSE and payload == _HEARTBEAT:
            self.command(b"NOP\n")
        elif kind == FRAME_RESPONSE:
            self._answer(payload, None)
        elif kind == FRAME_ERROR:
            error = ServerError(payload.decode("utf-8", "replace"))
            if error.fatal:
                self._failure = self._failure or error
                self._answer(payload, error)
            if self._on_error is not None and self._opened:
                self._on_error(error)
            if error.fatal:
                self.abort(error)  # the server stops reading after this error
        else:
            raise NsqError(f"a frame of an unknown kind {kind}")
        self._greeting = None

    def _other_server(self) -> str | None:
        """The error text if there was no valid frame: what the server is, or what it sent."""
        if self._greeting is None:
            return None
        for at, begins, text in _OTHER_SERVERS:
            if self._greeting[at:].startswith(begins):
                return text
        return f"this is not an nsqd: it sent {self._greeting!r}"

    def _answer(self, payload: bytes, error: ServerError | None) -> None:
        if not self._waiters:
            return
        waiter = self._waiters.popleft()
        if waiter.done():
            return  # the waiting task was cancelled; the answer is dropped
        if error is None:
            waiter.set_result(payload)
        else:
            waiter.set_exception(error)

    # --- closing ---

    def _start_heartbeat_timer(self) -> None:
        interval_s = self.options.heartbeat_interval_ms / 1000
        if interval_s > 0 and self.alive:
            self._heartbeat_timer = self._clock.call_later(interval_s, self._check_heartbeat)

    def _check_heartbeat(self) -> None:
        silent_s = self._clock.now() - self._received_s
        if silent_s > self.options.heartbeat_interval_ms / 1000 * limits.HEARTBEATS_MISSED:
            self.abort(ClosedError("the server sent nothing for two heartbeat intervals"))
        else:
            self._start_heartbeat_timer()

    def abort(self, error: NsqError) -> None:
        """Close at once; `error` is the reason."""
        self._failure = self._failure or error
        if self._transport is not None:
            self._transport.abort()
        self._lost()

    def close(self) -> None:
        """Send the remaining commands and close."""
        self._flush()
        if self._transport is not None:
            self._failure = self._failure or ClosedError("closed")
            self._transport.close()

    def eof_received(self) -> bool:
        """Called at the end of input; the transport closes itself."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Called when the socket is closed."""
        if self._failure is None:
            self._failure = ClosedError(f"the connection was lost: {exc or 'closed by the server'}")
        self._lost()

    def _lost(self) -> None:
        if not self.alive:
            return
        self.alive = False
        self._transport = None
        self._writable.set()
        if self._heartbeat_timer is not None:
            self._heartbeat_timer.cancel()
        error = self._failure or ClosedError("closed")
        # An error frame answered the first command; the results of the later ones are unknown.
        reason = error if isinstance(error, ClosedError) else ClosedError(str(error))
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_exception(reason)
        self._waiters.clear()
        if self._opened:
            self._on_lost(error)


def _sized(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


def _size(data: bytearray) -> int:
    size = int.from_bytes(data[:4], "big", signed=True)
    if not 4 <= size <= limits.FRAME_BYTES_MAX:
        raise NsqError(f"a frame of {size} bytes")
    return size
