"""Frames of the bulk API: any bytes mean the same to both decoders."""

from __future__ import annotations

import random
from typing import Any

from fuzz.engine import Target
from fuzz.watch import fence_end
from support.clients.frames import frame, header_block, record, resealed

from broker.client.bulk import decode, decode_python
from broker.client.bulk.errors import Damaged

COLUMNS = tuple(decode.COLUMNS)
HEAD_BYTES = 64
BLOCK = header_block((b"K", b"key"), (b"Nats-Msg-Id", b"id"), (b"\xe2\x82\xac", b"\xff"))
RECORDS = [
    record(5, b"five", subject=b"a.b.c", reply=b"reply", headers=BLOCK, not_before_ns=7),
    record(6),
    record(9, b"x" * 300, subject=b"\xed\xa0\x80", flags=2),
    record(11, headers=b"NATS/1.0 503\r\nno colon\r\nK:\r\n"),
]
SEEDS = [
    frame(RECORDS, first=5),
    frame(RECORDS, first=1, behind=20, gaps=[(1, 3, 1), (12, 20, 2)]),
    frame([], first=3, behind=9),
    frame(RECORDS[:1], first=5),
]
TOKENS = [
    b"TWRANGE1", *(raw[:n] for raw in RECORDS for n in (8, 40)), BLOCK, b"\r\n", b"K: v\r\n",
    b"Nats-Msg-Id:", b":", b"\xf4\x90", b"\xc3\xa9", *((n).to_bytes(4, "little") for n in
    (0, 40, 48, 0xFFFFFF, 0x7FFFFFFF, 0xFFFFFFFF)),
]  # fmt: skip


def decoded(kind: Any, data: bytes, *options: Any) -> Any:
    """All there is to say about an input, or the text of the error."""
    topic, key, pattern, max_rows, max_bytes = options
    try:
        made = kind(data, topic, key, pattern)
        batches = []
        while taken := made.take(COLUMNS, max_rows, max_bytes):
            batches.append(taken)
    except Damaged as damaged:
        return str(damaged)
    fields = made.count, made.rows, made.bad, made.first, made.next, made.log_id, made.gaps
    return fields, batches


def check_same(data: bytes, *options: Any) -> None:
    """Both decoders agree."""
    with fence_end(data):
        found = decoded(decode.Frame, data, *options)
    assert found == decoded(decode_python.PythonFrame, data, *options)


def check(data: bytes) -> None:
    """Raise AssertionError when one input is treated wrongly."""
    check_same(data, b"topic", b"K", None, 3, 500)
    check_same(data, b"topic", None, b"a.>", 100, 1 << 20)


def repair(rng: random.Random, data: bytearray) -> None:
    """Mostly the frame's own sum is right; the records' rarely survive, and some are put back."""
    if len(data) < HEAD_BYTES or rng.random() < 0.1:
        return
    data[:8] = b"TWRANGE1"
    if rng.random() < 0.7:
        for field in (12, 56):  # gaps and flags
            data[field : field + 4] = bytes(4)
    tables = 4 * (int.from_bytes(data[8:12], "little") + 1) + 7 & ~7
    tables += 24 * int.from_bytes(data[12:16], "little")
    if HEAD_BYTES + tables <= len(data) and rng.random() < 0.9:
        data[48:56] = (len(data) - HEAD_BYTES - tables).to_bytes(8, "little")
    data[:] = resealed(bytes(data))


def target() -> Target:
    """What `make fuzz` runs."""
    return Target("frames", check, SEEDS, TOKENS, length_max=3_000, repair=repair)
