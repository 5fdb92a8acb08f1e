"""The decoder in plain Python, and `Frame`, the decoder in use.

`Frame` is the class of decode.pyx or, if that module cannot be loaded, `PythonFrame`, which does
the same much more slowly. Tests compare the two.
"""

from __future__ import annotations

import struct
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from broker.client.bulk.errors import DAMAGED, Damaged, Gap
from broker.client.bulk.frame import GAP_BYTES, HEAD, MAGIC, Head

__all__ = ["Frame", "PythonFrame"]

_RECORD: Final = struct.Struct("<IIQqqHHI")
_SUMMED_BYTES: Final = 60
_INT32_MAX: Final = 2**31 - 1
_MESSAGE_ID: Final = b"Nats-Msg-Id"


def _table() -> tuple[int, ...]:
    sums = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)  # noqa: PLW2901
        sums.append(value)
    return tuple(sums)


_TABLE: Final = _table()


def crc32c(data: bytes | memoryview, begin: int = 0) -> int:
    """The checksum of runtime/crc32c.h."""
    table, c = _TABLE, begin ^ 0xFFFFFFFF
    for byte in data:
        c = table[(c ^ byte) & 0xFF] ^ c >> 8
    return c ^ 0xFFFFFFFF


@dataclass(slots=True)
class Record:
    """The parts of one record; `read` returns None if it is invalid."""

    seq: int
    timestamp_ns: int
    not_before_ns: int
    size: int
    subject: bytes
    headers: list[tuple[bytes, bytes]]
    body: bytes

    @classmethod
    def read(cls, raw: memoryview, salt: int) -> Record | None:
        """Read a record from the bytes of its slot."""
        if len(raw) < _RECORD.size:
            return None
        length, crc, seq, timestamp, due, subject_len, reply_len, packed = _RECORD.unpack_from(raw)
        headers_at = _RECORD.size + subject_len + reply_len
        body_at = headers_at + (packed & 0xFFFFFF)
        if not _RECORD.size <= length <= len(raw) or crc32c(raw[8:length], salt) != crc:
            return None
        if body_at > length:
            return None
        subject = bytes(raw[_RECORD.size : _RECORD.size + subject_len])
        headers = list(headers_of(bytes(raw[headers_at:body_at])))
        return cls(seq, timestamp, due, length, subject, headers, bytes(raw[body_at:length]))

    def header(self, name: bytes) -> bytes | None:
        """The value of the first header of this name."""
        return next((value for key, value in self.headers if key == name), None)


def headers_of(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The names and values in a NATS header block."""
    for line in block.split(b"\r\n")[1:]:
        if not line:
            return
        name, colon, value = line.partition(b":")
        if colon and name:
            yield name, value.lstrip(b" \t")


def matches(pattern: bytes, subject: bytes) -> bool:
    """Match NATS wildcards: `*` matches one token, a final `>` one or more."""
    expected, tokens = pattern.split(b"."), subject.split(b".")
    if expected[-1] == b">":
        expected.pop()
        if not b".".join(tokens[len(expected) :]):
            return False
        del tokens[len(expected) :]
    return len(expected) == len(tokens) and all(
        e == t or (e == b"*" and t != b"") for e, t in zip(expected, tokens, strict=True)
    )


class PythonFrame:
    """The same as decode.Frame."""

    def __init__(
        self,
        data: bytes | bytearray | memoryview,
        topic: bytes,
        key_header: bytes | None = None,
        subject_filter: bytes | None = None,
    ) -> None:
        view = memoryview(data).cast("B")
        self._topic = topic.rpartition(b"/")[2]  # names of logs: js.ACCOUNT/NAME, stan/NAME
        self._key = key_header
        head, gaps, slots = _tables(view)
        self.count, self.first, self.next = head.records, head.first, head.next
        self.log_id = head.log_id
        self._records, lost = _good_records(slots, head)
        self.bad = self.count - len(self._records)
        self.gaps = (*gaps, *lost)
        if subject_filter is not None:
            self._records = [
                r for r in self._records if matches(subject_filter, r.subject or self._topic)
            ]
        self.rows = len(self._records)
        self._position = 0

    def take(
        self, columns: Iterable[str], max_rows: int, max_bytes: int
    ) -> tuple[int, dict[str, Any]] | None:
        """The same as decode.Frame.take."""
        batch: list[Record] = []
        total = 0
        for record in self._records[self._position : self._position + max_rows]:
            total += record.size + len(self._topic)
            if batch and total > max_bytes:
                break
            batch.append(record)
        if not batch:
            return None
        self._position += len(batch)
        built = {name: self._column(name, batch) for name in columns}
        return len(batch), {name: column for name, column in built.items() if column is not None}

    def _column(self, name: str, batch: list[Record]) -> Any:  # noqa: PLR0911
        match name:
            case "offset":
                return None, _integers("Q", [r.seq for r in batch])
            case "timestamp":
                return None, _integers("q", [r.timestamp_ns // 1000 for r in batch])
            case "notBefore":
                bits = _bits([r.not_before_ns != 0 for r in batch])
                return bits, _integers("q", [r.not_before_ns // 1000 for r in batch])
            case "value":
                return _bytes([r.body for r in batch])
            case "subject":
                return _bytes([_text(r.subject) or self._topic for r in batch])
            case "key":
                if self._key is None:
                    return None
                return _nullable([r.header(self._key) for r in batch])
            case "messageId":
                ids = [r.header(_MESSAGE_ID) for r in batch]
                return _nullable([None if i is None else _text(i) for i in ids])
            case "headers":
                return _header_lists(batch)
        raise KeyError(name)


def _tables(view: memoryview) -> tuple[Head, list[Gap], list[memoryview]]:
    """Head, gaps and record slots, after all checks except those of the records."""
    if len(view) < HEAD.size:
        raise Damaged("the frame is incomplete")
    head = Head._make(HEAD.unpack_from(view))
    if head.magic != MAGIC:
        raise Damaged("not a frame of records")
    gaps_end = HEAD.size + GAP_BYTES * head.gaps
    tables_end = gaps_end + 4 * (head.records + 1)
    if tables_end > len(view):
        raise Damaged("the frame is incomplete")
    if crc32c(view[HEAD.size : tables_end], crc32c(view[:_SUMMED_BYTES])) != head.crc:
        raise Damaged("the frame's checksum is wrong")
    if head.flags:
        raise Damaged("the frame has flags that this version does not know")
    if len(view) != head.frame_bytes:
        raise Damaged("the frame's length is wrong")
    offsets = struct.unpack_from(f"<{head.records + 1}I", view, gaps_end)
    in_order = all(a <= b for a, b in pairwise(offsets))
    if not in_order or offsets[-1] != head.data_bytes or head.next < head.first:
        raise Damaged("the frame's length is wrong")
    gaps = [Gap(*raw) for raw in struct.iter_unpack("<QQI4x", view[HEAD.size : gaps_end])]
    above = head.first
    for gap in gaps:
        if gap.first < above or gap.next <= gap.first:
            raise Damaged("the frame's gaps are wrong")
        above = gap.next
    if above > head.next:
        raise Damaged("the frame's gaps are wrong")
    data = view[len(view) - head.data_bytes :]
    slots = [data[a:b] for a, b in pairwise(offsets)]
    return head, gaps, slots


def _good_records(slots: list[memoryview], head: Head) -> tuple[list[Record], list[Gap]]:
    """The valid records, and the gaps of the invalid ones."""
    good: list[Record] = []
    gaps: list[Gap] = []
    above, lost, salt = head.first, False, crc32c(head.log_id)
    for slot in slots:
        record = Record.read(slot, salt)
        if record is None or not above <= record.seq < head.next:
            lost = True
            continue
        if lost and record.seq > above:
            gaps.append(Gap(above, record.seq, DAMAGED))
        lost, above = False, record.seq + 1
        good.append(record)
    if lost and head.next > above:
        gaps.append(Gap(above, head.next, DAMAGED))
    return good, gaps


def _text(raw: bytes) -> bytes:
    return raw.decode("utf-8", "replace").encode()


def _bits(values: list[bool]) -> bytes:
    bits = bytearray((len(values) + 7) // 8)
    for i, value in enumerate(values):
        bits[i >> 3] |= value << (i & 7)
    return bytes(bits)


def _integers(code: str, values: list[int]) -> bytes:
    return struct.pack(f"<{len(values)}{code}", *values)


def _bytes(values: list[bytes]) -> tuple[bytes | None, bytes, bytes]:
    ends = [0]
    for value in values:
        ends.append(ends[-1] + len(value))
    if ends[-1] > _INT32_MAX:
        raise Damaged(f"a column of {ends[-1]} bytes exceeds the limit of Arrow")
    return None, _integers("i", ends), b"".join(values)


def _nullable(values: list[bytes | None]) -> tuple[bytes, bytes, bytes]:
    _, offsets, data = _bytes([value or b"" for value in values])
    return _bits([value is not None for value in values]), offsets, data


def _header_lists(batch: list[Record]) -> tuple[bytes, bytes, int, Any, Any]:
    pairs = [pair for record in batch for pair in record.headers]
    counts = [bytes(len(record.headers)) for record in batch]
    names = _bytes([_text(name) for name, _ in pairs])
    values = _bytes([value for _, value in pairs])
    offsets = _bytes(counts)[1]
    return _bits([bool(r.headers) for r in batch]), offsets, len(pairs), names[1:], values[1:]


if TYPE_CHECKING:
    from broker.client.bulk.decode import Frame
else:
    try:
        from broker.client.bulk.decode import Frame
    except ImportError as missing:
        Frame = PythonFrame
        warnings.warn(
            f"the compiled decoder cannot be loaded ({missing}): records are decoded in Python, "
            "many times slower. Install the twinwire wheel on this machine",
            RuntimeWarning,
            stacklevel=2,
        )
