"""Builds frames of the bulk API from records, or from segment files."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from pathlib import Path

from broker.client.bulk.frame import HEAD, MAGIC
from broker.engine.log.record import crc32c

LOG_ID = bytes(range(16))
NOW_NS = 1_700_000_000_123_456_789
FILE_HEAD = 64


def header_block(*pairs: tuple[bytes, bytes]) -> bytes:
    """A header block as NATS clients write it."""
    if not pairs:
        return b""
    return b"NATS/1.0\r\n" + b"".join(b"%b: %b\r\n" % pair for pair in pairs) + b"\r\n"


def record(
    seq: int,
    body: bytes = b"",
    *,
    subject: bytes = b"",
    reply: bytes = b"",
    headers: bytes = b"",
    timestamp_ns: int = NOW_NS,
    not_before_ns: int = 0,
    flags: int = 0,
    log_id: bytes = LOG_ID,
) -> bytes:
    """One record in the format of a file, without its padding."""
    content = subject + reply + headers + body
    packed = len(headers) | flags << 24
    lengths = struct.pack("<HHI", len(subject), len(reply), packed)
    summed = struct.pack("<Qqq", seq, timestamp_ns, not_before_ns) + lengths + content
    return struct.pack("<II", 8 + len(summed), crc32c(summed, crc32c(log_id))) + summed


def padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 8)


def frame(
    records: Sequence[bytes],
    *,
    first: int = 1,
    behind: int | None = None,
    gaps: Iterable[tuple[int, int, int]] = (),
    log_id: bytes = LOG_ID,
) -> bytes:
    """A frame with these records; `behind`: the start of the next request."""
    slots = [padded(raw) for raw in records]
    ends = [0]
    for slot in slots:
        ends.append(ends[-1] + len(slot))
    if behind is None:
        behind = struct.unpack_from("<Q", records[-1], 8)[0] + 1 if records else first
    gap_table = b"".join(struct.pack("<QQI4x", *gap) for gap in gaps)
    return assemble(gap_table, ends, b"".join(slots), first, behind, log_id)


def assemble(
    gaps: bytes, ends: Sequence[int], data: bytes, first: int, behind: int, log_id: bytes = LOG_ID
) -> bytes:
    """A frame with these tables, which may be wrong, and a correct checksum."""
    tables = gaps + struct.pack(f"<{len(ends)}I", *ends)
    fields = (MAGIC, len(ends) - 1, len(gaps) // 24, first, behind, log_id, len(data), 0)
    head = HEAD.pack(*fields, 0)
    head = HEAD.pack(*fields, crc32c(tables, crc32c(head[:60])))
    return head + padded(tables) + data


def resealed(data: bytes) -> bytes:
    """The same frame with a correct checksum."""
    fields = list(HEAD.unpack_from(data))
    behind = HEAD.size + 24 * fields[2] + 4 * (fields[1] + 1)
    fields[-1] = crc32c(data[HEAD.size : behind], crc32c(data[:60]))
    return HEAD.pack(*fields) + data[HEAD.size :]


def frame_of_segment(path: Path) -> bytes:
    """All records of a segment file without damage."""
    raw = path.read_bytes()
    log_id, first = raw[16:32], struct.unpack_from("<Q", raw, 32)[0]
    records, at = [], FILE_HEAD
    while at + 8 <= len(raw) and (length := struct.unpack_from("<I", raw, at)[0]) >= 40:
        records.append(raw[at : at + length])
        at += length + 7 & ~7
    return frame(records, first=first, log_id=log_id)
