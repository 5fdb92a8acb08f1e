"""Rows into blocks and back."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.clients.blocks import frame_of_blocks

pa = pytest.importorskip("pyarrow")
from broker.client.bulk.arrow import SCHEMA, to_batches  # noqa: E402
from broker.client.bulk.encode import WRITTEN, blocks  # noqa: E402


def words(letters: str, least: int, most: int) -> st.SearchStrategy[str]:
    """Not st.text: that reads all of Unicode first, which takes seconds."""
    return st.lists(st.sampled_from(letters), min_size=least, max_size=most).map("".join)


STORABLE = st.binary(max_size=10).filter(
    lambda value: b"\r" not in value and b"\n" not in value and value[:1] not in (b" ", b"\t")
)
SUBJECT = words("abc.\u00e9", 1, 6)
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
        "messageId": st.none() | words("xyz-", 0, 5),
        "notBefore": st.none() | TIMES,
    }
)


@given(st.lists(ROWS, max_size=12), st.integers(0, 3), st.integers(1, 200))
def test_rows_come_back(rows: list[dict[str, Any]], skipped: int, max_bytes: int) -> None:
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
