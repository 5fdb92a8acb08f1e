"""Blocks of records, parsed strictly as a broker does, and the frames made of them."""

from __future__ import annotations

import struct
from typing import NamedTuple

from broker.engine.log.record import crc32c
from support.clients.frames import LOG_ID, frame, record

HEAD = struct.Struct("<8sIIQ")
RECORD = struct.Struct("<IIHHIq")


class Stored(NamedTuple):
    subject: bytes
    headers: bytes
    body: bytes
    not_before_ns: int


def read_block(block: bytes) -> list[Stored]:
    """The records of a block. AssertionError: the block is invalid."""
    magic, count, crc, data_bytes = HEAD.unpack_from(block)
    assert (magic, data_bytes) == (b"TWBLOCK1", len(block) - HEAD.size)
    assert crc == crc32c(block[16:], crc32c(block[:12]))
    found, at = [], HEAD.size
    for _ in range(count):
        body, headers, subject, flags, zero, due = RECORD.unpack_from(block, at)
        assert (flags, zero) == (0, 0)
        at += RECORD.size
        ends = at + subject, at + subject + headers, at + subject + headers + body
        assert ends[2] <= len(block)
        found.append(
            Stored(block[at : ends[0]], block[ends[0] : ends[1]], block[ends[1] : ends[2]], due)
        )
        padding = -ends[2] % 8
        assert block[ends[2] : ends[2] + padding] == bytes(padding)
        at = ends[2] + padding
    assert at == len(block)
    return found


def frame_of_blocks(blocks: list[bytes]) -> bytes:
    """The frame of a log to which these blocks were appended, from seq 1 on."""
    stored = [one for block in blocks for one in read_block(block)]
    return frame(
        [
            record(i, s.body, subject=s.subject, headers=s.headers, not_before_ns=s.not_before_ns)
            for i, s in enumerate(stored, 1)
        ],
        log_id=LOG_ID,
    )
