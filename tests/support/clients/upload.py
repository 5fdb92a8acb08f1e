"""Blocks as bulk writers upload them."""

from __future__ import annotations

import struct
from collections.abc import Iterable

from broker.engine.log.record import crc32c

HEAD = 24


def record(
    body: bytes, *, headers: bytes = b"", subject: bytes = b"", not_before_ns: int = 0
) -> bytes:
    """One record of a block."""
    whole = (
        struct.pack("<IIHHIq", len(body), len(headers), len(subject), 0, 0, not_before_ns)
        + subject
        + headers
        + body
    )
    return whole + bytes(-len(whole) % 8)


def sealed(count: int, data: bytes) -> bytes:
    """A block with these encoded records."""
    head = struct.pack("<8sI", b"TWBLOCK1", count)
    rest = struct.pack("<Q", len(data)) + data
    return head + struct.pack("<I", crc32c(rest, crc32c(head))) + rest


def block(bodies: Iterable[bytes]) -> bytes:
    """A block of plain bodies."""
    records = [record(body) for body in bodies]
    return sealed(len(records), b"".join(records))
