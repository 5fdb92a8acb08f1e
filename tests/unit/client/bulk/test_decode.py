"""Frames: by the compiled decoder and by the one in Python alike."""

from __future__ import annotations

import struct
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from support.clients.frames import (
    LOG_ID,
    NOW_NS,
    assemble,
    frame,
    frame_of_segment,
    header_block,
    record,
)
from support.engine import Rig, segment_files

from broker.client.bulk import decode, decode_python
from broker.client.bulk.errors import DAMAGED, MISSING, Damaged, Gap

ALL = tuple(decode.COLUMNS)
LOTS = 1 << 30


@pytest.fixture(params=[decode.Frame, decode_python.PythonFrame], ids=["compiled", "plain"])
def opened(request: pytest.FixtureRequest) -> Callable[..., Any]:
    def make(data: bytes, topic: bytes = b"t", **more: bytes) -> Any:
        return request.param(data, topic, **more)

    return make


def values(column: tuple[bytes | None, bytes, bytes]) -> list[bytes | None]:
    """What a column of variable length says."""
    valid, offsets, data = column
    ends = struct.unpack(f"<{len(offsets) // 4}i", offsets)
    return [
        data[a:b] if valid is None or valid[i >> 3] >> (i & 7) & 1 else None
        for i, (a, b) in enumerate(pairwise(ends))
    ]


def integers(data: bytes) -> list[int]:
    return list(struct.unpack(f"<{len(data) // 8}q", data))


def test_all_columns(opened: Callable[..., Any]) -> None:
    block = header_block((b"K", b"key"), (b"Nats-Msg-Id", b"id-7"), (b"\xff", b"\xff"))
    records = [
        record(5, b"five", subject=b"a.b", reply=b"r", headers=block, not_before_ns=NOW_NS + 2000),
        record(7, b"", flags=2, timestamp_ns=-1),
    ]
    made = opened(frame(records, first=3, behind=9), key_header=b"K")
    assert (made.count, made.rows, made.bad) == (2, 2, 0)
    assert (made.first, made.next, made.log_id, made.gaps) == (3, 9, LOG_ID, ())
    rows, columns = made.take(ALL, 10, LOTS)
    assert rows == 2
    assert integers(columns["offset"][1]) == [5, 7]
    assert integers(columns["timestamp"][1]) == [NOW_NS // 1000, -1]
    assert columns["notBefore"][0] == b"\1"
    assert integers(columns["notBefore"][1])[0] == NOW_NS // 1000 + 2
    assert values(columns["value"]) == [b"five", b""]
    assert values(columns["subject"]) == [b"a.b", b"t"]
    assert values(columns["key"]) == [b"key", None]
    assert values(columns["messageId"]) == [b"id-7", None]
    valid, offsets, count, names, contents = columns["headers"]
    assert (valid, count) == (b"\1", 3)
    assert struct.unpack("<3i", offsets) == (0, 3, 3)
    assert values((None, *names)) == [b"K", b"Nats-Msg-Id", "\ufffd".encode()]
    assert values((None, *contents)) == [b"key", b"id-7", b"\xff"]
    assert made.take(ALL, 10, LOTS) is None


def test_only_what_is_asked_for(opened: Callable[..., Any]) -> None:
    made = opened(frame([record(1, b"x", headers=header_block((b"K", b"v")))]))
    rows, columns = made.take(("offset", "key"), 10, LOTS)
    assert rows == 1
    assert set(columns) == {"offset"}  # no header was named as the key
    with pytest.raises(KeyError):
        opened(frame([record(1)])).take(("nothing",), 1, 1)


def test_batches_end_at_rows_and_at_bytes(opened: Callable[..., Any]) -> None:
    records = [record(i, bytes(100)) for i in range(1, 11)]
    made = opened(frame(records))
    sizes = [made.take(("value",), 4, LOTS)[0]]
    sizes.append(made.take(("value",), 10, 141 * 3)[0])
    sizes.append(made.take(("value",), 10, 1)[0])  # at least one
    _, columns = made.take(("value", "offset"), 10, LOTS)
    assert (sizes, integers(columns["offset"][1])) == ([4, 3, 1], [9, 10])


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"abcdefgh\xc3\xa9", "abcdefgh\u00e9"),
        (b"\xe2\x82", "\ufffd"),
        (b"\xe2\x82\xac\xed\xa0\x80x", "\u20ac\ufffd\ufffd\ufffdx"),
        (b"\xf0\x90\x80\x80\xf4\x90\x80\x80", "\U00010000\ufffd\ufffd\ufffd\ufffd"),
        (b"\xc0\xafabcdefghi\xff", "\ufffd\ufffdabcdefghi\ufffd"),
    ],
)
def test_subjects_are_text(opened: Callable[..., Any], raw: bytes, text: str) -> None:
    assert raw.decode("utf-8", "replace") == text
    made = opened(frame([record(1, subject=raw)]))
    assert values(made.take(("subject",), 1, LOTS)[1]["subject"]) == [text.encode()]


@pytest.mark.parametrize(
    ("pattern", "hits"),
    [
        (b"a.b", {b"a.b"}),
        (b"a.*", {b"a.b"}),
        (b"*.b", {b"a.b"}),
        (b"a.>", {b"a.b", b"a.b.c"}),
        (b">", {b"a", b"a.b", b"a.b.c", b""}),
        (b"t", {b""}),  # stored without a subject: the topic's own name
        (b"*", {b"a", b""}),
        (b"a.>.c", set()),
        (b"a.*.*.*", set()),
    ],
)
def test_filter(opened: Callable[..., Any], pattern: bytes, hits: set[bytes]) -> None:
    subjects = [b"a", b"a.b", b"a.b.c", b""]
    records = [record(i, s, subject=s) for i, s in enumerate(subjects, 1)]
    made = opened(frame(records), subject_filter=pattern)
    taken = made.take(("value",), 10, LOTS)
    assert set(values(taken[1]["value"]) if taken else ()) == hits
    assert made.rows == len(hits)


HEADER_BLOCKS = [
    (b"NATS/1.0\r\nA:b\r\nA: c\r\n\r\nD: e\r\n", [(b"A", b"b"), (b"A", b"c")]),
    (b"NATS/1.0 503 gone\r\nX:  \t y \r\n", [(b"X", b"y ")]),
    (b"NATS/1.0\r\nno colon\r\n: no name\r\nlast: one", [(b"last", b"one")]),
    (b"NATS/1.0\r\nA: \r\r\n\r", [(b"A", b"\r"), ]),
    (b"NATS/1.0", []),
    (b"\r\n\r\n", []),
    (b"A: b\r\nC: d:e\r\n\r\n", [(b"C", b"d:e")]),
]  # fmt: skip


@pytest.mark.parametrize(("block", "pairs"), HEADER_BLOCKS)
def test_header_blocks(
    opened: Callable[..., Any], block: bytes, pairs: list[tuple[bytes, bytes]]
) -> None:
    made = opened(frame([record(1, b"body", headers=block)]))
    columns = made.take(("headers", "value"), 1, LOTS)[1]
    valid, _, count, names, contents = columns["headers"]
    found = zip(values((None, *names)), values((None, *contents)), strict=True)
    assert (list(found), count, valid) == (pairs, len(pairs), b"\1" if pairs else b"\0")
    assert values(columns["value"]) == [b"body"]


def test_gaps_of_the_broker(opened: Callable[..., Any]) -> None:
    gaps = [(2, 4, DAMAGED), (6, 9, MISSING)]
    made = opened(frame([record(1), record(4)], behind=9, gaps=gaps))
    assert made.gaps == (Gap(2, 4, DAMAGED), Gap(6, 9, MISSING))
    assert made.rows == 2


@pytest.mark.parametrize("at", [0, 1, 4, 9, 17, 26, 33, 39, 41, 50])
def test_a_damaged_record_is_a_gap(opened: Callable[..., Any], at: int) -> None:
    good = [record(i, b"body-%d" % i, subject=b"s") for i in range(1, 5)]
    bad = bytearray(good[1])
    bad[at % len(bad)] ^= 0x10
    made = opened(frame([good[0], bytes(bad), bytes(bad), good[3]], behind=7))
    assert made.gaps == (Gap(2, 4, DAMAGED),)
    assert made.bad == 2
    assert integers(made.take(("offset",), 9, LOTS)[1]["offset"][1]) == [1, 4]
    made = opened(frame([good[0], bytes(bad)], behind=7))
    assert made.gaps == (Gap(2, 7, DAMAGED),)


def test_records_out_of_place(opened: Callable[..., Any]) -> None:
    made = opened(frame([record(3), record(2), record(9), record(4)], first=1, behind=6))
    assert integers(made.take(("offset",), 9, LOTS)[1]["offset"][1]) == [3, 4]
    assert made.bad == 2
    other = record(2, log_id=bytes(16))  # of an earlier log of this name
    assert opened(frame([other], behind=3)).gaps == (Gap(1, 3, DAMAGED),)


def broken() -> dict[str, tuple[bytes, str]]:
    good = frame([record(1, b"x"), record(2)], gaps=[(3, 4, 1)], behind=4)
    raw = record(1)
    gap = struct.pack("<QQI4x", 3, 4, 1)
    return {
        "empty": (b"", "incomplete"),
        "head": (good[:63], "incomplete"),
        "tables": (good[:90], "incomplete"),
        "magic": (b"TWRANGE2" + good[8:], "not a frame"),
        "sum": (good[:17] + b"\1" + good[18:], "sum is wrong"),
        "cut": (good[:-1], "length is wrong"),
        "more": (good + b"\0", "length is wrong"),
        "count": (good[:8] + b"\xff" * 8 + good[16:], "incomplete"),
        "back": (assemble(b"", [0, 40, 8], raw[:8], 1, 2), "length is wrong"),
        "beyond": (assemble(b"", [0, 48], raw, 1, 2), "length is wrong"),
        "negative": (assemble(b"", [0, 40], raw, 2, 1), "length is wrong"),
        "gap outside": (assemble(gap, [0, 40], raw, 1, 3), "gaps are wrong"),
        "gap before": (assemble(gap, [0], b"", 4, 9), "gaps are wrong"),
        "gaps cross": (assemble(gap + gap, [0], b"", 1, 9), "gaps are wrong"),
        "gap empty": (assemble(struct.pack("<QQI4x", 3, 3, 1), [0], b"", 1, 9), "gaps are wrong"),
    }


@pytest.mark.parametrize("what", broken())
def test_what_is_no_frame(opened: Callable[..., Any], what: str) -> None:
    data, said = broken()[what]
    with pytest.raises(Damaged, match=said) as raised:
        opened(data)
    assert raised.value.gaps == ()


def test_records_of_the_engine(opened: Callable[..., Any], tmp_path: Path) -> None:
    with Rig(tmp_path) as rig:
        log = rig.log()
        log.open_cursor("c")
        rig.publish(log, [b"one", b"", b"x" * 5000])
        rig.close()
    (path,) = segment_files(tmp_path)
    made = opened(frame_of_segment(path))
    _, columns = made.take(("value", "offset"), 10, LOTS)
    assert values(columns["value"]) == [b"one", b"", b"x" * 5000]
    assert integers(columns["offset"][1]) == [1, 2, 3]
    assert made.gaps == ()
