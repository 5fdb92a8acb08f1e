"""Compression of a connection, both directions, after the handshake.

It is separate because only it needs the compression libraries.
"""

from __future__ import annotations

import zlib
from typing import Protocol


class Codec(Protocol):
    """Compresses bytes for the socket, and decompresses those read from it."""

    def encode(self, data: bytes) -> bytes:
        """The compressed bytes, complete enough for the other side to read all of `data`."""

    def decode(self, data: bytes) -> bytes:
        """The bytes that can be decompressed with this data; raises the library's error for an
        invalid stream."""


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
        import snappy  # type: ignore[import-untyped]  # only few clients need it

        self._out = snappy.StreamCompressor()
        self._in = snappy.StreamDecompressor()

    def encode(self, data: bytes) -> bytes:
        """Compress into whole chunks."""
        return bytes(self._out.compress(data)) + bytes(self._out.flush() or b"")

    def decode(self, data: bytes) -> bytes:
        """Decompress the complete chunks."""
        return bytes(self._in.decompress(data))
