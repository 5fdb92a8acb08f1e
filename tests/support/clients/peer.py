"""A client with one blocking socket, which sends and reads bytes of any protocol."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from support.servers.processes import Address

DEADLINE_S = 30.0
READ_BYTES = 1 << 18
NSQ_MAGIC = b"  V2"
NATS_PING = b"PING\r\n"
FRAME_NAMES = ("response", "error", "message")


class PeerError(AssertionError):
    """The server sent something else, or nothing before the deadline."""


class Frame(NamedTuple):
    """One NSQ server frame."""

    kind: str
    payload: bytes

    @property
    def attempts(self) -> int:
        return int(struct.unpack_from(">H", self.payload, 8)[0])

    @property
    def timestamp_ns(self) -> int:
        return int(struct.unpack_from(">q", self.payload)[0])

    @property
    def message_id(self) -> bytes:
        return self.payload[10:26]

    @property
    def body(self) -> bytes:
        return self.payload[26:]


def pack_frame(kind: str, payload: bytes) -> bytes:
    """The bytes of an NSQ server frame."""
    return struct.pack(">ii", len(payload) + 4, FRAME_NAMES.index(kind)) + payload


def sized(body: bytes) -> bytes:
    """The body of an NSQ command: its length, then the bytes."""
    return struct.pack(">i", len(body)) + body


class RawPeer:
    """One connection; each wait has a deadline. Bytes that were received but not read yet are in
    `pending`.

    `skips_pings`: skip a PING of a NATS server between two reads. On a slow machine a test may take
    so long that the server sends its first one. It is not answered: only the test sends bytes.
    """

    def __init__(
        self,
        address: Address,
        *,
        deadline_s: float = DEADLINE_S,
        receive_buffer: int | None = None,
        skips_pings: bool = False,
    ) -> None:
        self.deadline_s = deadline_s
        self.skips_pings = skips_pings
        self.pending = bytearray()
        self.closed = False
        family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        self.socket = socket.socket(family, socket.SOCK_STREAM)
        if receive_buffer is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(deadline_s)
        self.socket.connect(address)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def __enter__(self) -> RawPeer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        """Write all bytes. If the server has closed the connection, the next read reports it."""
        self.socket.settimeout(self.deadline_s)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.socket.sendall(data)

    def half_close(self) -> None:
        """Close the sending side; answers still arrive."""
        self.socket.shutdown(socket.SHUT_WR)

    def until_taken(self) -> None:
        """Wait until the server has read all sent bytes from its socket: a server with one thread
        handles them before anything that another connection sends from now on."""
        ends = [
            f"{struct.unpack('=I', socket.inet_aton(host))[0]:08X}:{port:04X}"
            for host, port in (self.socket.getsockname(), self.socket.getpeername())
        ]
        deadline = time.monotonic() + self.deadline_s
        while time.monotonic() < deadline:
            queues = {}
            for line in Path("/proc/net/tcp").read_text("ascii").splitlines()[1:]:
                _, local, remote, _, sent_and_received, *_ = line.split()
                queues[local, remote] = sent_and_received.split(":")
            mine, its = queues[ends[0], ends[1]], queues[ends[1], ends[0]]
            if int(mine[0], 16) == int(its[1], 16) == 0:
                return
        raise PeerError(f"not taken in {self.deadline_s} s")

    def receive(self, timeout_s: float) -> bool:
        """Read once into `pending`. False: the time is over, or the connection is closed."""
        if self.closed:
            return False
        self.socket.settimeout(max(timeout_s, 0.000_1))
        try:
            data = self.socket.recv(READ_BYTES)
        except TimeoutError:
            return False
        except ConnectionResetError:  # closed with our bytes unread: an end like any other
            data = b""
        self.pending += data
        self.closed = not data
        return bool(data)

    def _need(self, deadline: float, want: str) -> None:
        if self.receive(deadline - time.monotonic()):
            return
        if self.closed:
            raise PeerError(f"closed before {want}; got {_shown(self.pending)}")
        if time.monotonic() >= deadline:
            raise PeerError(f"no {want} in {self.deadline_s} s; got {_shown(self.pending)}")

    def _take(self, count: int) -> bytes:
        data = bytes(self.pending[:count])
        del self.pending[:count]
        return data

    def _skip_ping(self, deadline: float) -> None:
        """Drop a PING of the server before the bytes that the test waits for."""
        while self.skips_pings and self.pending and NATS_PING.startswith(self.pending[:6]):
            if len(self.pending) >= len(NATS_PING):
                self._take(len(NATS_PING))
            elif self.closed or not self.receive(deadline - time.monotonic()):
                return

    def read_exact(self, count: int) -> bytes:
        """Read exactly `count` bytes."""
        deadline = time.monotonic() + self.deadline_s
        while len(self.pending) < count:
            self._need(deadline, f"{count} bytes")
        return self._take(count)

    def read_until(self, mark: bytes) -> bytes:
        """Read up to the end of `mark`."""
        deadline = time.monotonic() + self.deadline_s
        self._skip_ping(deadline)
        start = 0
        while (at := self.pending.find(mark, start)) < 0:
            start = max(0, len(self.pending) - len(mark) + 1)
            fresh = not self.pending
            self._need(deadline, repr(mark))
            if fresh:
                self._skip_ping(deadline)
        return self._take(at + len(mark))

    def read_line(self) -> bytes:
        return self.read_until(b"\n")

    def read_frame(self) -> Frame:
        """Read one NSQ frame, which may be a heartbeat."""
        size, kind = struct.unpack(">ii", self.read_exact(8))
        if size < 4 or not 0 <= kind < len(FRAME_NAMES):
            raise PeerError(f"not a frame header: size {size}, type {kind}")
        return Frame(FRAME_NAMES[kind], self.read_exact(size - 4))

    def read_to_eof(self) -> bytes:
        """Read until the server closes the connection."""
        deadline = time.monotonic() + self.deadline_s
        while not self.closed:
            if not self.receive(deadline - time.monotonic()) and not self.closed:
                raise PeerError(f"not closed in {self.deadline_s} s; got {_shown(self.pending)}")
        return self._take(len(self.pending))

    def expect(self, data: bytes) -> None:
        """Expect exactly these bytes next; fail at the first byte that differs."""
        deadline = time.monotonic() + self.deadline_s
        self._skip_ping(deadline)
        while len(self.pending) < len(data) and data.startswith(bytes(self.pending)):
            fresh = not self.pending
            self._need(deadline, _shown(data))
            if fresh:
                self._skip_ping(deadline)
        if not self.pending.startswith(data):
            raise PeerError(f"expected {_shown(data)}\n     got {_shown(self.pending)}")
        self._take(len(data))

    def expect_close(self) -> None:
        """Expect the end of the connection without further bytes."""
        rest = self.read_to_eof()
        if rest and not (self.skips_pings and rest == NATS_PING):
            raise PeerError(f"expected only a close; got {_shown(rest)}")

    def expect_frame(self, kind: str, payload: bytes) -> None:
        """Expect exactly this NSQ frame next."""
        self.expect(pack_frame(kind, payload))

    def ping(self) -> None:
        """Send a NATS PING and expect its PONG: the server has handled everything before, and
        has sent nothing else."""
        self.send(b"PING\r\n")
        self.expect(b"PONG\r\n")

    def command(self, line: str, body: bytes | None = None) -> None:
        """Send one NSQ command."""
        self.send(line.encode() + b"\n" + (sized(body) if body is not None else b""))


def nats_peer(address: Address, connect: Mapping[str, object] | None = None) -> RawPeer:
    """A NATS connection after its handshake; not verbose by default."""
    peer = RawPeer(address, skips_pings=True)
    peer.read_until(b"\r\n")
    options = {"verbose": False, "pedantic": False, "headers": True, **(connect or {})}
    peer.send(b"CONNECT " + json.dumps(options).encode() + b"\r\n")
    if options["verbose"]:
        peer.expect(b"+OK\r\n")
    peer.ping()
    return peer


def nsq_peer(address: Address, identify: Mapping[str, object] | None = None) -> RawPeer:
    """An NSQ connection that has sent its magic and, with `identify`, IDENTIFY."""
    peer = RawPeer(address)
    peer.send(NSQ_MAGIC)
    if identify is not None:
        peer.command("IDENTIFY", json.dumps(identify).encode())
        assert peer.read_frame().kind == "response"
    return peer


def _shown(data: bytes | bytearray) -> str:
    return repr(bytes(data)) if len(data) <= 300 else f"{bytes(data[:300])!r}... ({len(data)})"
