"""Compression of a connection, both directions, after the handshake.

It stands alone because only it needs the compression libraries.
"""

from __future__ import annotations

import zlib
from typing import Protocol

import snappy  # type: ignore[import-untyped]


class Codec(Protocol):
    """Bytes as written to the socket, and bytes as read from it."""

    def encode(self, data: bytes) -> bytes:
        """Everything the other side needs to read `data`."""

    def decode(self, data: bytes) -> bytes:
        """What can be read by now; raises any error of the library if the stream is broken."""


class Deflate:
    """Raw deflate: one stream per direction, synced at each write."""

    def __init__(self, level: int) -> None:
        self._out = zlib.compressobj(level, zlib.DEFLATED, -zlib.MAX_WBITS)
        self._in = zlib.decompressobj(-zlib.MAX_WBITS)

    def encode(self, data: bytes) -> bytes:
        """Compress and sync."""
        return self._out.compress(data) + self._out.flush(zlib.Z_SYNC_FLUSH)

    def decode(self, data: bytes) -> bytes:
        """Decompress."""
        return self._in.decompress(data)


class Snappy:
    """The snappy framing format."""

    def __init__(self) -> None:
        self._out = snappy.StreamCompressor()
        self._in = snappy.StreamDecompressor()

    def encode(self, data: bytes) -> bytes:
        """Whole chunks."""
        return bytes(self._out.compress(data)) + bytes(self._out.flush() or b"")

    def decode(self, data: bytes) -> bytes:
        """The chunks that are complete."""
        return bytes(self._in.decompress(data))
