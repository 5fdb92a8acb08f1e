"""Delivery events as Arrow record batches: the rows of docs/guides/delivery-events.md.

It is separate from `arrow` because it needs the compiled `events`; `arrow` works without it.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import pyarrow as pa

from broker.client.bulk.events import DEAD_REASONS, EVENTS, decode

SCHEMA: Final = pa.schema(
    [
        ("topic", pa.string()),
        ("channel", pa.string()),
        ("seq", pa.int64()),  # of the message; for `lost`, the number of lost events
        ("attempt", pa.int32()),
        ("event", pa.string()),
        ("reason", pa.string()),  # only of `dead`
        ("latency_ns", pa.int64()),  # null: unknown
        ("time", pa.timestamp("us", tz="UTC")),
    ]
)
_EVENTS: Final = pa.array(EVENTS)
# A row without a reason or a cursor refers to the null after the last one.
_REASONS: Final = pa.array([*DEAD_REASONS, None], pa.string())
_NO_REASON: Final = pa.scalar(len(DEAD_REASONS), pa.uint8())


class Events(NamedTuple):
    """The events of a column, and the numbers of records that are not events or damaged."""

    batch: pa.RecordBatch
    foreign: int
    bad: int


def events_of(values: pa.Array) -> Events:
    """Read the column `value` of the topic of delivery events."""
    array = values.cast(pa.binary()) if not pa.types.is_binary(values.type) else values
    if array.null_count:
        array = array.drop_null()
    _, offsets, data = array.buffers()
    found = decode(offsets or bytes(4), data, array.offset, len(array))
    columns = [
        *_names(found.names, _plain(pa.int32(), found.rows, found.cursor)),
        _plain(pa.int64(), found.rows, found.seq),
        _plain(pa.int32(), found.rows, found.attempt),
        _EVENTS.take(events := _plain(pa.uint8(), found.rows, found.event)),
        _reasons(events, _plain(pa.uint8(), found.rows, found.reason)),
        _plain(pa.int64(), found.rows, found.latency, found.latency_known),
        _plain(pa.int64(), found.rows, found.time).cast(pa.timestamp("us", tz="UTC")),
    ]
    return Events(pa.RecordBatch.from_arrays(columns, schema=SCHEMA), found.foreign, found.bad)


def _plain(kind: pa.DataType, rows: int, data: bytes, valid: bytes | None = None) -> pa.Array:
    bits = None if valid is None else pa.py_buffer(valid)
    return pa.Array.from_buffers(kind, rows, [bits, pa.py_buffer(data)])


def _names(names: list[tuple[str, str]], cursor: pa.Array) -> list[pa.Array]:
    import pyarrow.compute as pc

    known = pc.if_else(pc.less(cursor, 0), pa.scalar(len(names), pa.int32()), cursor)
    return [
        pa.array([*(pair[part] for pair in names), None], pa.string()).take(known)
        for part in range(2)
    ]


def _reasons(events: pa.Array, reasons: pa.Array) -> pa.Array:
    import pyarrow.compute as pc

    is_dead = pc.equal(events, pa.scalar(EVENTS.index("dead"), pa.uint8()))
    return _REASONS.take(pc.if_else(is_dead, reasons, _NO_REASON))
