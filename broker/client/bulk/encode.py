"""Arrow record batches to the blocks that `Connection.append` and `.stage` upload."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa

from broker.client.bulk import limits
from broker.client.bulk.errors import Unstorable
from broker.client.bulk.packing import Column, Packer

_TIME: Final = pa.timestamp("us", tz="UTC")
_HEADERS: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
WRITTEN: Final = ("key", "value", "topic", "subject", "headers", "messageId", "notBefore")


def blocks(
    batch: pa.RecordBatch,
    *,
    topic: str | None = None,
    key_header: str | None = None,
    max_bytes: int = limits.BLOCK_BYTES,
    as_read: bool = False,
) -> Iterator[tuple[str, bytes]]:
    """(topic, block) for all rows, in their order within a topic; about max_bytes per block.

    `value` is text or bytes. The columns topic (unless `topic` is set), subject, key, headers,
    messageId and notBefore are used if present; other columns are ignored. A key needs
    `key_header`, the name of its header. Unstorable: a row cannot become a record. `as_read`: the
    rows were read from a log, so invalid headers of other clients are accepted.
    """
    if not 0 < max_bytes <= limits.BLOCK_BYTES_MAX:
        raise ValueError(f"max_bytes must be above 0 and at most {limits.BLOCK_BYTES_MAX}")
    if "value" not in batch.schema.names:
        raise Unstorable("the column value is missing")
    if topic is None and "topic" not in batch.schema.names:
        raise Unstorable("give a column topic, or one topic for all rows")
    key = batch.schema.get_field_index("key")
    if key_header is None and key >= 0 and batch.column(key).null_count < batch.num_rows:
        raise Unstorable("a column key needs key_header, the name of the header for the keys")
    packer = Packer(
        _text(batch, "value"),
        topic=_text(batch, "topic") if topic is None else None,
        one_topic=None if topic is None else topic.encode(),
        subject=_text(batch, "subject"),
        key=_text(batch, "key"),
        key_name=None if key_header is None else key_header.encode(),
        message_id=_text(batch, "messageId"),
        headers=_headers(batch),
        not_before=_times(batch),
        as_read=as_read,
    )
    while block := packer.next(max_bytes, limits.BLOCK_BYTES_MAX):
        yield block[0].decode(), block[1]


def _array(batch: pa.RecordBatch, name: str, kind: pa.DataType) -> pa.Array | None:
    index = batch.schema.get_field_index(name)
    if index < 0:
        return None
    array = batch.column(index)
    if pa.types.is_null(array.type):
        return None
    if array.type == kind:
        return array
    try:
        return array.cast(kind, safe=not pa.types.is_timestamp(kind))
    except pa.ArrowException as error:
        raise Unstorable(f"column {name} is {array.type}: {error}") from error


def _text(batch: pa.RecordBatch, name: str) -> Any:
    kind = pa.binary()
    array = _array(batch, name, kind)
    if array is None:
        if name == "value":
            raise Unstorable("the column value is null")
        return None
    return _column(array)


def _column(array: pa.Array) -> Column:
    valid, offsets, data = array.buffers()
    return Column(len(array), array.offset, valid, offsets, data)


def _headers(batch: pa.RecordBatch) -> tuple[Column, Column, Column, Column] | None:
    array = _array(batch, "headers", _HEADERS)
    if array is None:
        return None
    pairs = array.values
    valid, offsets = array.buffers()[:2]
    lists = Column(len(array), array.offset, valid, offsets, None, len(pairs))
    names, values = (_column(pairs.field(i)) for i in range(2))
    bits = Column(0, pairs.offset, pairs.buffers()[0], None, None)
    return lists, bits, names, values


def _times(batch: pa.RecordBatch) -> tuple[int, Any, Any] | None:
    array = _array(batch, "notBefore", _TIME)
    if array is None:
        return None
    return array.offset, *array.buffers()
