"""An event loop, a clock and transports that the test drives: connections without sockets."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable
from itertools import pairwise
from typing import Any

from broker.net import limits as net_limits
from broker.net.conn import Conn
from broker.net.tls import Handshakes
from broker.protocols.nats import limits as nats_limits
from broker.routing.router import Router
from broker.runtime.buffers import ChunkPool, InBuf
from broker.runtime.turn import Turn

START_NS = 10**15
WALL_NS = 1_700_000_000 * 10**9


class _Alarm:
    def __init__(self, due_ns: int, call: Callable[[], None]) -> None:
        self.due_ns = due_ns
        self.call: Callable[[], None] | None = call

    def cancel(self) -> None:
        self.call = None


class FakeLoop:
    """Runs callbacks and moves its clock only on command."""

    def __init__(self, receive: int = net_limits.RECEIVE_BUFFER) -> None:
        self._soon: list[Callable[[], None]] = []
        self._alarms: list[_Alarm] = []
        self.now_ns = START_NS
        self.on_write: Callable[[FakeTransport], object] = lambda _: None
        self.turn = Turn(self.call_soon, self._call_at_ns)
        self.turn.set_clock(START_NS, WALL_NS)
        self.pool = ChunkPool(
            net_limits.CHUNK_SMALL, net_limits.CHUNK_LARGE, net_limits.CHUNKS_POOLED_MAX
        )
        self.shared = InBuf(receive)
        self.plain = InBuf(receive)
        self.handshakes = Handshakes(self.call_soon)
        self.loop = self  # it is its own net.listener.Runtime

    def call_soon(self, call: Callable[[], None]) -> None:
        self._soon.append(call)

    def _call_at_ns(self, due_ns: int, call: Callable[[], None]) -> _Alarm:
        alarm = _Alarm(due_ns, call)
        self._alarms.append(alarm)
        return alarm

    def run(self) -> None:
        """Run turns until no callback is left."""
        while self._soon:
            self.run_once()

    def run_once(self) -> None:
        """Run one turn: the callbacks that are scheduled now."""
        ready, self._soon[:] = self._soon[:], []
        for call in ready:
            call()

    def advance(self, ns: int) -> None:
        """Move the clock by `ns`, and run each timer at its time."""
        end = self.now_ns + ns
        while True:
            due = [a for a in self._alarms if a.call is not None and a.due_ns <= end]
            if not due:
                break
            first = min(due, key=lambda alarm: alarm.due_ns)
            self._alarms.remove(first)
            self._set_clock(max(self.now_ns, first.due_ns))
            assert first.call is not None
            first.call()
            self.run()
        self._set_clock(end)
        self.run()

    def _set_clock(self, now_ns: int) -> None:
        self.now_ns = now_ns
        self.turn.set_clock(now_ns, WALL_NS + now_ns - START_NS)


class FakeTransport:
    """Accepts `room` bytes, or with a socket what the socket accepts. Later bytes wait for
    `read_all` or `read_some`. `close` takes effect when the loop runs."""

    def __init__(self, loop: FakeLoop, sock: socket.socket | None = None) -> None:
        self.loop = loop
        self.sock = sock
        self.conn: Any = None
        self.taken = bytearray()
        self.room = 1 << 60
        self.kept = bytearray()
        self.reading = True
        self.closed = False

    def set_write_buffer_limits(self, high: int, low: int) -> None:
        assert (high, low) == (0, 0)

    def get_extra_info(self, name: str) -> object:
        return {"peername": ("192.0.2.7", 40_000), "socket": self.sock}.get(name)

    def write(self, chunk: object) -> None:
        assert not self.closed
        data = bytes(chunk)  # type: ignore[call-overload]
        self.loop.on_write(self)
        fits = 0 if self.kept else min(self.room, len(data))
        if self.sock is not None and fits:
            with contextlib.suppress(BlockingIOError):
                fits = 0
                fits = self.sock.send(data, socket.MSG_DONTWAIT)
        else:
            self.taken += data[:fits]
        self.room -= fits
        self.kept += data[fits:]
        if self.kept:
            self.conn.pause_writing()

    def get_write_buffer_size(self) -> int:
        return len(self.kept)

    def read_all(self) -> None:
        """The peer reads all output from now on."""
        self.room = 1 << 60
        self.taken += self.kept
        self.kept.clear()
        self.conn.resume_writing()

    def read_some(self, count: int) -> None:
        """The peer reads `count` bytes of the waiting output, but not all of it."""
        assert count < len(self.kept)
        self.taken += self.kept[:count]
        del self.kept[:count]

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def close(self) -> None:
        if not self.closed:
            self.taken += self.kept
            self.kept.clear()
            self.abort()

    def abort(self) -> None:
        if not self.closed:
            self.closed = True
            self.loop.call_soon(lambda: self.conn.connection_lost(None))


class FakePeer:
    """The peer of one connection."""

    def __init__(self, listener: FakeListener, sock: socket.socket | None = None) -> None:
        loop = listener.loop
        self.loop = loop
        self.transport = FakeTransport(loop, sock)
        self.session = listener.new_session()
        self.conn = Conn(
            listener, self.session, loop.shared, loop.turn, loop.pool, listener.out_limit
        )
        self.transport.conn = self.conn
        self.conn.connection_made(self.transport)
        loop.run()

    @property
    def closed(self) -> bool:
        return self.transport.closed

    def send(self, data: bytes, cuts: list[int] | None = None) -> None:
        """Let the connection read `data`, in pieces that end at `cuts`, and end the turn."""
        self.read(data, cuts)
        self.loop.run()

    def read(self, data: bytes, cuts: list[int] | None = None) -> None:
        """Same as `send`, but the turn does not end."""
        edges = sorted({0, len(data), *(cuts or [])})
        for start, end in pairwise(edges):
            at = start
            while at < end and not self.closed:
                view = memoryview(self.conn.get_buffer(-1))
                piece = data[at : min(end, at + len(view))]
                view[: len(piece)] = piece
                self.conn.buffer_updated(len(piece))
                view.release()
                at += len(piece)

    def leave(self) -> None:
        if not self.closed:
            self.transport.closed = True
            self.conn.connection_lost(None)
        self.loop.run()

    def take(self) -> bytes:
        """The bytes received since the last call."""
        data = bytes(self.transport.taken)
        self.transport.taken.clear()
        return data

    def talk(self, data: bytes, cuts: list[int] | None = None) -> bytes:
        """Send bytes, and return the bytes of the answer."""
        self.send(data, cuts)
        return self.take()


class FakeListener:
    """The listener of a connection."""

    def __init__(
        self,
        loop: FakeLoop,
        new_session: Callable[[], Any],
        out_limit: int = nats_limits.NATS_MAX_PENDING,
    ) -> None:
        self.loop = self.runtime = loop
        self.new_session = new_session
        self.out_limit = out_limit
        self.conns: set[Conn] = set()

    def connection_opened(self, conn: Conn) -> None:
        self.conns.add(conn)

    def connection_closed(self, conn: Conn) -> None:
        self.conns.discard(conn)


class FakeNats:
    """A NATS frontend whose clients have no sockets."""

    def __init__(self, **settings: Any) -> None:
        from broker.protocols.nats.accounts.account import Account, CurrentPublisher
        from broker.protocols.nats.client.frontend import NatsFrontend
        from broker.protocols.nats.client.handshake import ClientHandshake
        from broker.protocols.nats.client.session import NatsSession
        from broker.protocols.nats.settings import GLOBAL_ACCOUNT, Settings

        config = Settings(**settings)
        self.loop = FakeLoop()
        self.router = Router()
        self.frontend = NatsFrontend(self.loop.turn, config)
        self.handshake = ClientHandshake(self.frontend)
        self.handshake.set_info({"x": 1})
        self.current_publisher = CurrentPublisher()
        self.account = Account(GLOBAL_ACCOUNT, self.loop.turn, self.current_publisher, self.router)
        self.handshake.accounts[GLOBAL_ACCOUNT] = self.account
        self.listener = FakeListener(
            self.loop, lambda: NatsSession(self.frontend), config.max_pending
        )

    def dial(self, connect: bytes | None = b"{}", *, quiet: bool = True) -> FakePeer:
        """A client that has read INFO and sent CONNECT with these options; None: no CONNECT."""
        peer = FakePeer(self.listener)
        assert peer.take().startswith(b"INFO ")
        if connect is not None:
            if quiet:
                connect = b'{"verbose":false,"pedantic":false,' + connect[1:]
                connect = connect.replace(b",}", b"}")
            peer.send(b"CONNECT " + connect + b"\r\n")
            assert peer.take() in (b"", b"+OK\r\n")
        return peer
