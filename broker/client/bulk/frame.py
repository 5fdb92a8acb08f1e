"""Bodies of answers: bounded reads, decompression, and the head of the frame in them."""

from __future__ import annotations

import http.client
import io
import struct
import zlib
from typing import IO, Final, NamedTuple, cast

from broker.client.bulk import limits
from broker.client.bulk.errors import BulkError

MAGIC: Final = b"TWRANGE1"
HEAD: Final = struct.Struct("<8sIIQQ16sQII")
GAP_BYTES: Final = 24
_GZIP: Final = 16 + zlib.MAX_WBITS


class Head(NamedTuple):
    """The head of a frame, unchecked; the decoder checks it."""

    magic: bytes
    records: int
    gaps: int
    first: int
    next: int  # the start of the next request
    log_id: bytes
    data_bytes: int
    flags: int
    crc: int

    @property
    def frame_bytes(self) -> int:
        """Length of the whole frame."""
        tables = GAP_BYTES * self.gaps + 4 * (self.records + 1)
        return HEAD.size + (tables + 7 & ~7) + self.data_bytes


class CutShort(http.client.HTTPException):
    """The body ended before the frame; the request must be repeated."""


def head_of(frame: bytes | memoryview) -> Head:
    """The head of a frame that `Connection.range` returned."""
    return Head._make(HEAD.unpack_from(frame))


def read_answer(response: http.client.HTTPResponse) -> bytes:
    """Read a body of at most ANSWER_BYTES_MAX bytes. BulkError: it is longer. CutShort."""
    body = response.read(limits.ANSWER_BYTES_MAX + 1)
    if len(body) > limits.ANSWER_BYTES_MAX:
        raise BulkError(f"the answer has more than {limits.ANSWER_BYTES_MAX} bytes")
    if response.length:  # read(n) does not report an incomplete body
        raise CutShort("the answer is incomplete")
    return body


def read_frame(response: http.client.HTTPResponse) -> bytes:
    """Read one frame, and decompress it if necessary. BulkError, CutShort."""
    encoding = response.getheader("Content-Encoding", "identity").lower()
    if encoding == "identity":
        if response.length is not None and response.length > limits.FRAME_BYTES_MAX:
            raise BulkError(f"a frame of {response.length} bytes exceeds the limit of this client")
        body = response.read()
        if len(body) < HEAD.size or head_of(body).frame_bytes != len(body):
            raise CutShort("the frame is incomplete")
        return body
    stream = _plain(response, encoding)
    head = _read(stream, HEAD.size)
    size = head_of(head).frame_bytes
    if size > limits.FRAME_BYTES_MAX:
        raise BulkError(f"a frame of {size} bytes exceeds the limit of this client")
    body = head + _read(stream, size - len(head))
    response.read()
    return body


def _read(stream: IO[bytes], n: int) -> bytes:
    try:
        data = stream.read(n)
    except (OSError, ValueError, zlib.error) as error:  # ValueError: raised by pyarrow
        raise CutShort(f"the body cannot be decompressed: {error}") from error
    if len(data) < n:
        raise CutShort("the frame is incomplete")
    return data


def _plain(response: http.client.HTTPResponse, encoding: str) -> IO[bytes]:
    if encoding == "gzip":
        return cast("IO[bytes]", io.BufferedReader(_Gunzip(response)))
    if encoding == "zstd":
        import pyarrow as pa

        return cast("IO[bytes]", pa.CompressedInputStream(pa.PythonFile(response), "zstd"))
    raise BulkError(f"the answer has the encoding {encoding!r}, which was not requested")


class _Gunzip(io.RawIOBase):
    """Decompresses only as much as is requested, so that a small body cannot become a huge one."""

    def __init__(self, source: http.client.HTTPResponse) -> None:
        self._source = source
        self._inflate = zlib.decompressobj(_GZIP)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        while not self._inflate.eof:
            packed = self._inflate.unconsumed_tail or self._source.read(1 << 16)
            data = self._inflate.decompress(packed, len(buffer))
            if data:
                buffer[: len(data)] = data
                return len(data)
            if not packed:
                break
        return 0
