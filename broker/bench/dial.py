"""Opens the load generator's connections: blocking hand-shakes, before anything is measured."""

from __future__ import annotations

import socket

import orjson

from broker.bench.limits import CONNECT_SECONDS, FLUSH_MS, SIZE_BYTES_MAX
from broker.bench.loadgen import LoadError

CLIENT_NAME = "twinwire-bench"
Dialled = tuple[socket.socket, bytes]

_CONNECT: dict[str, object] = {
    "verbose": False,
    "pedantic": False,
    "lang": "cython",
    "version": "1",
    "name": CLIENT_NAME,
    "protocol": 1,
}
_IDENTIFY = orjson.dumps(
    {
        "client_id": CLIENT_NAME,
        "hostname": CLIENT_NAME,
        "feature_negotiation": True,
        "output_buffer_timeout": FLUSH_MS,
    }
)
_FRAME_ERROR = 1


class Peer:
    """One connection while it is being set up."""

    def __init__(self, address: tuple[str, int]) -> None:
        try:
            self.sock = socket.create_connection(address, CONNECT_SECONDS)
        except OSError as error:
            raise LoadError(f"cannot connect to {address[0]}:{address[1]}: {error}") from error
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.held = b""

    def more(self) -> None:
        try:
            data = self.sock.recv(65536)
        except TimeoutError as error:
            raise LoadError("no answer to the hand-shake") from error
        except OSError as error:
            raise LoadError(f"hand-shake failed: {error.strerror}") from error
        if not data:
            raise LoadError("the server closed the connection during the hand-shake")
        self.held += data

    def line(self) -> bytes:
        while b"\n" not in self.held:
            self.more()
        line, _, self.held = self.held.partition(b"\n")
        return line.rstrip(b"\r")

    def take(self, size: int) -> bytes:
        while len(self.held) < size:
            self.more()
        data, self.held = self.held[:size], self.held[size:]
        return data

    def frame(self) -> bytes:
        while len(self.held) < 8:
            self.more()
        end = 4 + int.from_bytes(self.held[:4], "big")
        if end > SIZE_BYTES_MAX:
            raise LoadError("the server does not speak NSQ")
        while len(self.held) < end:
            self.more()
        kind, payload = int.from_bytes(self.held[4:8], "big"), self.held[8:end]
        self.held = self.held[end:]
        if kind == _FRAME_ERROR:
            raise LoadError(f"the server refused the hand-shake: {payload.decode()}")
        return payload


def connect_line(**more: bool) -> bytes:
    """CONNECT without its line end."""
    return b"CONNECT " + orjson.dumps(_CONNECT | more)


def dial_nats(address: tuple[str, int], subscriptions: list[bytes] | None = None) -> Dialled:
    """Connects and subscribes; returns once a PONG says that the server knows it all."""
    peer = Peer(address)
    try:
        if not peer.line().startswith(b"INFO"):
            raise LoadError(f"{address[0]}:{address[1]} does not speak NATS")
        lines = [connect_line(), *(subscriptions or []), b"PING"]
        peer.sock.sendall(b"\r\n".join(lines) + b"\r\n")
        while (line := peer.line()) != b"PONG":
            if line.startswith(b"-ERR"):
                raise LoadError(f"the server refused the hand-shake: {line.decode()}")
            if line == b"PING":
                peer.sock.sendall(b"PONG\r\n")
    except BaseException:
        peer.sock.close()
        raise
    return peer.sock, peer.held


def dial_nsq(
    address: tuple[str, int], subscribe: tuple[str, str] | None = None, rdy: int = 0
) -> Dialled:
    """Connects and, for a consumer, subscribes to (topic, channel) and says RDY."""
    peer = Peer(address)
    try:
        size = len(_IDENTIFY).to_bytes(4, "big")
        peer.sock.sendall(b"  V2IDENTIFY\n" + size + _IDENTIFY)
        peer.frame()
        if subscribe is not None:
            topic, channel = subscribe
            peer.sock.sendall(f"SUB {topic} {channel}\n".encode())
            while peer.frame() == b"_heartbeat_":
                peer.sock.sendall(b"NOP\n")
            peer.sock.sendall(f"RDY {rdy}\n".encode())
    except BaseException:
        peer.sock.close()
        raise
    return peer.sock, peer.held
