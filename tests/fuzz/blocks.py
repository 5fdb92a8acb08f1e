"""Blocks that writers upload: bytes are refused or mean what docs/reference/bulk-write.md says."""

from __future__ import annotations

import random
import struct

from fuzz.engine import Target
from fuzz.watch import fence_end
from support.clients.upload import block, record, sealed
from support.engine import Rig

from broker.engine.bulk.blocks import GOOD, Appender, check_block
from broker.engine.bulk.dedupe import Window
from broker.engine.cursor.local import LocalConsumer
from broker.engine.log.record import crc32c

NAME = b"t"
BEGIN = b"NATS/1.0\r\n"
HEAD = 24
IDS = [BEGIN + b"Nats-Msg-Id: %d\r\n\r\n" % number for number in range(3)]
SEEDS = [
    block([]),
    block([b"", b"a", b"12345678", b"x" * 100]),
    sealed(2, record(b"b", subject=NAME) + record(b"", headers=IDS[0], not_before_ns=1)),
    sealed(3, b"".join(record(b"c", headers=head) for head in (*IDS[:2], IDS[0]))),
    sealed(1, record(b"d", subject=b"other")),
    sealed(1, record(b"e", headers=b"Nats-Msg-Id: 1\r\n\r\n")),
]
TOKENS = [
    b"TWBLOCK1", b"\0\0\0\0", b"\1\0\0\0", b"\xff\xff\xff\xff", b"\x18\0\0\0", b"\0\0\0\x80",
    bytes(8), b"\r\n\r\n", b"\r\n", BEGIN, b"Nats-Msg-Id: ", *IDS,
]  # fmt: skip
Row = tuple[int, bytes, bytes]  # not before, headers, body


def rows_of(data: bytes) -> list[Row] | None:
    """The records of a block, None when it is none."""
    if len(data) < HEAD or data[:8] != b"TWBLOCK1":
        return None
    count, crc, size = struct.unpack_from("<IIQ", data, 8)
    if size != len(data) - HEAD or crc != crc32c(data[16:], crc32c(data[:12])):
        return None
    rows, at = [], HEAD
    for _ in range(count):
        if len(data) - at < HEAD:
            return None
        body, heads, subject, flags, zero, due = struct.unpack_from("<IIHHIq", data, at)
        first = at + HEAD
        end = first + subject + heads + body
        behind = (end + 7) & ~7
        if (
            behind > len(data)
            or heads >= 1 << 24
            or flags
            or zero
            or due < 0
            or any(data[end:behind])
        ):
            return None
        name, head = data[first : first + subject], data[first + subject : end - body]
        if name not in (b"", NAME) or (head and not is_head(head)):
            return None
        rows.append((due, head, data[end - body : end]))
        at = behind
    return rows if at == len(data) else None


def is_head(head: bytes) -> bool:
    return head.startswith(BEGIN) and head.endswith(b"\r\n\r\n") and len(head) >= len(BEGIN) + 4


def check(data: bytes) -> None:
    """Raise AssertionError when one input is treated wrongly."""
    with fence_end(data):
        wrong, count = check_block(data, NAME, BEGIN)
    rows = rows_of(data)
    assert (wrong == GOOD) == (rows is not None), (wrong, rows)
    if rows is None:
        return
    assert count == len(rows)
    append(data, rows, Window(b"Nats-Msg-Id", 10**9, 5))
    append(data, rows, None)


def append(data: bytes, rows: list[Row], window: Window | None) -> None:
    """What a log holds afterwards is what the block says."""
    with Rig(None) as rig:
        consumer = LocalConsumer(rig.log().open_cursor("c"), 1 << 20)
        appender = Appender(rig.log(), window=window)
        appender.load(data)
        while (more := appender.step(100)) > 0:
            pass
        assert more == 0
        rig.settle()
        bodies = [record[3] for record in consumer.records]
        assert appender.records + appender.duplicates == len(rows)
        assert rig.log().visible == appender.records + 1
        if window is None and not any(due for due, _, _ in rows):  # else some come later
            assert bodies == [body for _, _, body in rows]


def repair(rng: random.Random, data: bytearray) -> None:
    """Let most inputs get past the first look."""
    if len(data) < HEAD or rng.random() < 0.1:
        return
    data[:8] = b"TWBLOCK1"
    struct.pack_into("<Q", data, 16, len(data) - HEAD)
    struct.pack_into("<I", data, 12, crc32c(bytes(data[16:]), crc32c(bytes(data[:12]))))


def target() -> Target:
    """What `make fuzz` runs."""
    return Target("blocks", check, SEEDS, TOKENS, length_max=2_000, repair=repair, leaks=False)
