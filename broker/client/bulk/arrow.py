"""Frames to Arrow record batches. Needs PyArrow, but neither NumPy nor pandas."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, Final

import pyarrow as pa

from broker.client.bulk import limits
from broker.client.bulk.decode_python import Frame
from broker.client.bulk.errors import Damaged, Gap

_TIME: Final = pa.timestamp("us", tz="UTC")
_HEADER: Final = pa.struct([("key", pa.string()), ("value", pa.binary())])
SCHEMA: Final = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", _TIME),
        ("timestampType", pa.int32()),
        ("subject", pa.string()),
        ("headers", pa.list_(_HEADER)),
        ("broker", pa.string()),
        ("messageId", pa.string()),
        ("notBefore", _TIME),
    ]
)
DEFAULT_COLUMNS: Final = (
    "key",
    "value",
    "topic",
    "partition",
    "offset",
    "timestamp",
    "timestampType",
    "subject",
)
_APPEND_TIME: Final = 1  # Spark's number for the time at which the broker stored a record


def schema_of(columns: Sequence[str] | None) -> pa.Schema:
    """The schema of these columns in this order; None: the default columns."""
    names = DEFAULT_COLUMNS if columns is None else tuple(columns)
    unknown = [name for name in names if name not in SCHEMA.names]
    if unknown:
        raise ValueError(
            f"unknown column {', '.join(unknown)}; known are {', '.join(SCHEMA.names)}"
        )
    return pa.schema([SCHEMA.field(name) for name in names])


def to_batches(
    frame: bytes | bytearray | memoryview,
    columns: Sequence[str] | None = None,
    *,
    topic: str,
    partition: int = 0,
    broker: str = "",
    key_header: str | None = None,
    subject_filter: str | None = None,
    max_rows: int = limits.BATCH_ROWS,
    max_bytes: int = limits.BATCH_BYTES,
    skip_gaps: bool = False,
) -> Iterator[pa.RecordBatch]:
    """The records of a frame as batches of at most max_rows and max_bytes, but at least one record.

    Damaged: it is not a frame, or records in it are unreadable or missing; with `skip_gaps` such
    records are skipped. With an empty list of columns a batch still has its number of rows.
    """
    opened = open_frame(frame, topic, key_header, subject_filter)
    if opened.gaps and not skip_gaps:
        raise damage(topic, opened.gaps)
    constants = {"topic": topic, "partition": partition, "broker": broker}
    yield from batches_of(opened, columns, constants, max_rows, max_bytes)


def open_frame(
    frame: bytes | bytearray | memoryview,
    topic: str,
    key_header: str | None = None,
    subject_filter: str | None = None,
) -> Frame:
    """Open a frame, and check it and all checksums in it. Damaged."""
    return Frame(
        frame,
        topic.encode(),
        None if key_header is None else key_header.encode(),
        None if subject_filter is None else subject_filter.encode(),
    )


def damage(topic: str, gaps: Sequence[Gap]) -> Damaged:
    """The exception for gaps."""
    listed = ", ".join(str(gap) for gap in gaps[:5]) + (", ..." if len(gaps) > 5 else "")
    return Damaged(f"topic {topic}: records cannot be read: {listed}", tuple(gaps))


def batches_of(
    frame: Frame,
    columns: Sequence[str] | None,
    constants: dict[str, Any],
    max_rows: int = limits.BATCH_ROWS,
    max_bytes: int = limits.BATCH_BYTES,
) -> Iterator[pa.RecordBatch]:
    """The batches of an open frame; `constants` has topic, partition and broker."""
    if max_rows <= 0 or max_bytes <= 0:
        raise ValueError("max_rows and max_bytes must be above 0")
    schema = schema_of(columns)
    decoded = [name for name in schema.names if name in DECODED]
    while taken := frame.take(decoded, max_rows, min(max_bytes, limits.BATCH_BYTES_MAX)):
        rows, buffers = taken
        if not schema.names:
            yield pa.RecordBatch.from_struct_array(pa.nulls(rows, pa.struct([])).fill_null({}))
            continue
        arrays = [_column(field, buffers.get(field.name), rows, constants) for field in schema]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


DECODED: Final = frozenset(
    {"key", "value", "offset", "timestamp", "subject", "headers", "messageId", "notBefore"}
)


def _column(field: pa.Field, buffers: Any, rows: int, constants: dict[str, Any]) -> pa.Array:
    if field.name == "headers":
        return _headers(buffers, rows)
    if buffers is not None:
        nulls = 0 if buffers[0] is None else -1
        return pa.Array.from_buffers(field.type, rows, [_buffer(b) for b in buffers], nulls)
    if field.name == "key":
        return pa.nulls(rows, field.type)
    value = constants.get(field.name, _APPEND_TIME)
    if rows > limits.BATCH_ROWS:
        return pa.repeat(pa.scalar(value, field.type), rows)
    return _constant(field.type, value).slice(0, rows)


@lru_cache(maxsize=32)
def _constant(kind: pa.DataType, value: Any) -> pa.Array:
    """An array of BATCH_ROWS equal values; shorter arrays are slices of it."""
    return pa.repeat(pa.scalar(value, kind), limits.BATCH_ROWS)


def _headers(buffers: Any, rows: int) -> pa.Array:
    valid, offsets, count, names, values = buffers
    name_field, value_field = _HEADER
    pairs = pa.StructArray.from_arrays(
        [
            pa.Array.from_buffers(name_field.type, count, [None, *map(_buffer, names)], 0),
            pa.Array.from_buffers(value_field.type, count, [None, *map(_buffer, values)], 0),
        ],
        fields=[name_field, value_field],
    )
    return pa.Array.from_buffers(
        pa.list_(_HEADER), rows, [_buffer(valid), _buffer(offsets)], children=[pairs]
    )


def _buffer(data: bytes | None) -> pa.Buffer | None:
    return None if data is None else pa.py_buffer(data)
