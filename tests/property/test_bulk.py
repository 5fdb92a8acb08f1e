"""Frames: the compiled decoder against the one in Python. Rows: into blocks and back."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from fuzz.frames import check, check_same
from harness.blocks import frame_of_blocks
from harness.frames import frame, header_block, record, resealed
from hypothesis import given
from hypothesis import strategies as st

TEXT = st.one_of(
    st.binary(max_size=12), st.text("ab.\u00e9\u20ac\U0001f600", max_size=8).map(str.encode)
)
NAMES = st.sampled_from([b"K", b"Nats-Msg-Id", b"k", b"X", b"\xe2\x82", b"a b"])
PAIRS = st.lists(st.tuples(NAMES, TEXT), max_size=4)
BLOCKS = st.one_of(
    PAIRS.map(lambda pairs: header_block(*pairs)),
    st.lists(st.sampled_from([b"NATS/1.0", b"\r\n", b"\r", b"\n", b"K", b":", b" ", b"v"])).map(
        b"".join
    ),
)
INT64 = st.integers(-(2**63), 2**63 - 1)


@st.composite
def frames(draw: st.DrawFn) -> bytes:
    """A good frame, or one with a little damage whose own sum is right again."""
    seq, records, gaps, first = draw(st.integers(1, 2**40)), [], [], 0
    first = seq
    for _ in range(draw(st.integers(0, 8))):
        if draw(st.integers(0, 5)) == 0:
            gaps.append((seq, seq + 3, draw(st.integers(1, 2))))
            seq += 3
        made = record(
            seq, draw(st.binary(max_size=40)), subject=draw(TEXT), reply=draw(TEXT),
            headers=draw(BLOCKS), timestamp_ns=draw(INT64), not_before_ns=draw(INT64),
            flags=draw(st.integers(0, 255)),
        )  # fmt: skip
        records.append(made)
        seq += draw(st.integers(1, 3))
    data = bytearray(frame(records, first=first, behind=seq, gaps=gaps))
    for _ in range(draw(st.sampled_from([0, 0, 1, 2]))):
        at = draw(st.integers(0, len(data) - 1))
        data[at] ^= draw(st.integers(1, 255))
    return resealed(bytes(data))


@given(frames(), st.data())
def test_both_decoders_say_the_same(data: bytes, more: st.DataObject) -> None:
    pattern = more.draw(st.sampled_from([None, b">", b"*", b"a.*", b"*.>", b"t"]))
    check_same(
        data, b"t", b"K", pattern, more.draw(st.integers(1, 4)), more.draw(st.integers(1, 300))
    )


@given(st.binary(max_size=200))
def test_any_bytes(data: bytes) -> None:
    check(data)
    check(resealed(b"TWRANGE1" + data) if len(data) >= 56 else data)


STORABLE = st.binary(max_size=10).filter(
    lambda value: b"\r" not in value and b"\n" not in value and value[:1] not in (b" ", b"\t")
)
SUBJECT = st.text("abc.\u00e9", min_size=1, max_size=6)
TIMES = st.datetimes(datetime(1970, 1, 2), datetime(2200, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001
ROWS = st.fixed_dictionaries(
    {
        "value": st.binary(max_size=30),
        "topic": st.sampled_from(["t", "u", "v\u00e9"]),
        "subject": st.none() | SUBJECT,
        "key": st.none() | STORABLE,
        "headers": st.none()
        | st.lists(
            st.fixed_dictionaries({"key": st.sampled_from(["A", "B-c"]), "value": STORABLE}),
            min_size=1,
            max_size=3,
        ),
        "messageId": st.none() | st.text("xyz-", max_size=5),
        "notBefore": st.none() | TIMES,
    }
)


@given(st.lists(ROWS, max_size=12), st.integers(0, 3), st.integers(1, 200))
def test_rows_come_back(rows: list[dict[str, Any]], skipped: int, max_bytes: int) -> None:
    pa = pytest.importorskip("pyarrow")
    from broker.client.bulk.arrow import SCHEMA, to_batches
    from broker.client.bulk.encode import WRITTEN, blocks

    schema = pa.schema([SCHEMA.field(name) for name in WRITTEN])
    batch = pa.RecordBatch.from_pylist(rows, schema=schema).slice(min(skipped, len(rows)))
    made: dict[str, list[bytes]] = {}
    for topic, block in blocks(batch, key_header="Key", max_bytes=max_bytes):
        made.setdefault(topic, []).append(block)
    left = rows[skipped:]
    assert list(made) == list(dict.fromkeys(row["topic"] for row in left))
    for topic, found in made.items():
        data = frame_of_blocks(found)
        (back,) = to_batches(data, WRITTEN, topic=topic, key_header="Key")
        expected = [as_read(row) for row in left if row["topic"] == topic]
        assert back.to_pylist() == expected


def as_read(row: dict[str, Any]) -> dict[str, Any]:
    """A row as the source has it: headers are all there are, a subject is never missing."""
    headers = [] if row["key"] is None else [{"key": "Key", "value": row["key"]}]
    if row["messageId"] is not None:
        headers.append({"key": "Nats-Msg-Id", "value": row["messageId"].encode()})
    headers += row["headers"] or []
    return row | {"headers": headers or None, "subject": row["subject"] or row["topic"]}
