"""An NSQ connection that a test drives step by step: frames, TLS and compression."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import struct
import zlib
from collections.abc import Callable
from typing import Any

import snappy

from support.servers.processes import Address

TIMEOUT_S = 15.0
RESPONSE, ERROR, MESSAGE = range(3)


def body(command: bytes, data: bytes) -> bytes:
    """A command with a body."""
    return command + b"\n" + struct.pack(">i", len(data)) + data


class Wire:
    """One connection. EOFError: the peer has closed it."""

    def __init__(self, address: Address) -> None:
        self.socket: socket.socket = socket.create_connection(address, TIMEOUT_S)
        self.received = b""
        self.packer: Any = None
        self.unpacker: Any = None

    def __enter__(self) -> Wire:
        self.send(b"  V2")
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    # --- upgrades

    def secure(self, context: ssl.SSLContext) -> None:
        """Start TLS. ssl.SSLError, OSError: the handshake fails."""
        self.socket = context.wrap_socket(self.socket, server_hostname="localhost")

    def compress(self, kind: str) -> None:
        """Start compression with snappy or deflate."""
        if kind == "snappy":
            self.packer, self.unpacker = snappy.StreamCompressor(), snappy.StreamDecompressor()
        else:
            self.packer = zlib.compressobj(6, zlib.DEFLATED, -15)
            self.unpacker = zlib.decompressobj(-15)
        self.received = self.unpacker.decompress(self.received)  # it may have come with the answer

    def identify(self, context: ssl.SSLContext | None = None, **asked: Any) -> dict[str, Any]:
        """Send IDENTIFY, and do each upgrade that the server grants."""
        data = json.dumps({"feature_negotiation": True, **asked}).encode()
        kind, answer = self.ask(body(b"IDENTIFY", data))
        assert kind == RESPONSE, answer
        granted: dict[str, Any] = json.loads(answer)
        if granted["tls_v1"]:
            assert context is not None
            self.secure(context)
            assert self.frame() == (RESPONSE, b"OK")
        for packing in ("snappy", "deflate"):
            if granted[packing]:
                self.compress(packing)
                assert self.frame() == (RESPONSE, b"OK")
        return granted

    # --- bytes

    def send(self, data: bytes) -> None:
        if isinstance(self.packer, snappy.StreamCompressor):
            data = self.packer.compress(data)
        elif self.packer is not None:
            data = self.packer.compress(data) + self.packer.flush(zlib.Z_SYNC_FLUSH)
        self.socket.sendall(data)

    def _take(self, size: int) -> bytes:
        while len(self.received) < size:
            data = self.socket.recv(65536)
            if not data:
                raise EOFError(self.received)
            if self.unpacker is not None:
                data = self.unpacker.decompress(data)
            self.received += data
        found, self.received = self.received[:size], self.received[size:]
        return found

    def frame(self) -> tuple[int, bytes]:
        """Read the next frame. Returns its type and payload."""
        size, kind = struct.unpack(">ii", self._take(8))
        return kind, self._take(size - 4)

    def ask(self, data: bytes) -> tuple[int, bytes]:
        self.send(data)
        return self.frame()

    def is_closed(self) -> bool:
        """Wait for the end of the connection. False: other bytes were received."""
        try:
            return not self.socket.recv(1)
        except ssl.SSLError:
            return True
        except ConnectionError:
            return True


async def read_frame(
    reader: asyncio.StreamReader, send: Callable[[bytes], object]
) -> tuple[int, bytes]:
    """The type and payload of the next frame. Heartbeats are answered and skipped."""
    while True:
        size, kind = struct.unpack(">ii", await reader.readexactly(8))
        payload = await reader.readexactly(size - 4)
        if payload != b"_heartbeat_":
            return kind, payload
        send(b"NOP\n")
