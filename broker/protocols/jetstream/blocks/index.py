"""The index of a stream's blocks, `index.db`: which messages of each block exist.

    11, version, then numbers: messages, bytes, first seq and time, last seq and time,
    subjects: count, then for each its name, messages, first block and last block; before version 4
        a subject with one message has no last block,
    blocks: count, then for each its number, bytes, first seq and time, last seq and time, deleted
        messages, since version 2 those with a TTL, since version 3 schedules, and a bitmap of the
        deleted ones, if there are any
    number and last sum of the newest block
    HighwayHash of all that, with the key of the stream's name

    bitmap: 22, 2, count of nodes u32, of seqs u32, then nodes of base u64, 2048 bits, height u16

nats-server writes it every two minutes and when it stops. Deleted messages stay deleted, so an old
index is still right for the messages it includes. Messages that a limit has removed have no
tombstone: only the index has them.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from broker.protocols.jetstream.blocks.records import highway, sum_key

if TYPE_CHECKING:
    from broker.protocols.jetstream.blocks.records import Tombstones

_MAGIC: Final = 11
_MORE: Final = {1: 0, 2: 1, 3: 2, 4: 2}  # version -> numbers of a block after the deleted count
_BOTH_BLOCKS: Final = 4  # from this version on, each subject also has its last block
_SUM: Final = 8
_BITMAP: Final = b"\x16\x02"
_NODE: Final = struct.Struct("<Q256sH")
_COUNTS: Final = struct.Struct("<II")


class Reader:
    """Reads numbers, one after the other. ValueError: the data ends."""

    def __init__(self, data: bytes, at: int) -> None:
        self.data = data
        self.at = at

    def unsigned(self) -> int:
        """A varint of up to 64 bits."""
        value = shift = 0
        while True:
            if self.at >= len(self.data) or shift > 63:
                raise ValueError("it is cut off")
            byte = self.data[self.at]
            self.at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    def signed(self) -> int:
        """A varint in zigzag encoding."""
        value = self.unsigned()
        return value >> 1 ^ -(value & 1)


def read_index(data: bytes, tombstones: Tombstones) -> None:
    """Add the deleted messages of a decrypted index without its sum to `tombstones`. ValueError: it
    is invalid, and nothing was added."""
    if len(data) < 2 or data[0] != _MAGIC or data[1] not in _MORE:
        raise ValueError("this is not an index of a known version")
    numbers = Reader(data, 2)
    messages = numbers.unsigned()
    numbers.unsigned()
    numbers.unsigned()
    numbers.signed()
    last = numbers.unsigned()
    numbers.signed()
    for _ in range(numbers.unsigned()):
        length = numbers.unsigned()
        numbers.at += length
        several = numbers.unsigned() > 1
        numbers.unsigned()
        if several or data[1] >= _BOTH_BLOCKS:
            numbers.unsigned()
    extents, nodes, found = [], [], 0
    for _ in range(numbers.unsigned()):
        first, end, deleted = _read_block(numbers, _MORE[data[1]])
        extents.append((first, end))
        found += max(end + 1 - first, 0) - deleted
        if deleted:
            nodes += _read_bitmap(numbers, deleted)
    numbers.unsigned()
    if numbers.at + _SUM != len(data) or found != messages:
        raise ValueError("it contradicts itself")
    for first, end in sorted(extents):
        tombstones.add_extent(first, end)
    tombstones.add_extent(0, last)
    for base, bits in nodes:
        tombstones.add_bits(base, bits)


def _read_block(numbers: Reader, more: int) -> tuple[int, int, int]:
    numbers.unsigned()
    numbers.unsigned()
    first = numbers.unsigned()
    numbers.signed()
    last = numbers.unsigned()
    numbers.signed()
    deleted = numbers.unsigned()
    for _ in range(more):
        numbers.unsigned()
    return first, last, deleted


def _read_bitmap(numbers: Reader, deleted: int) -> list[tuple[int, bytes]]:
    at = numbers.at
    if numbers.data[at : at + 2] != _BITMAP:
        raise ValueError("a bitmap is of another version")
    try:
        count, seqs = _COUNTS.unpack_from(numbers.data, at + 2)
        at += 2 + _COUNTS.size
        nodes = [_NODE.unpack_from(numbers.data, at + i * _NODE.size) for i in range(count)]
    except struct.error:
        raise ValueError("a bitmap is cut off") from None
    if seqs != deleted:
        raise ValueError("a bitmap has another count of deleted messages")
    numbers.at = at + count * _NODE.size
    return [(base, bits) for base, bits, _ in nodes]


def check_sum(data: bytes, stream: str) -> bytes:
    """The content before the sum. ValueError: the sum is wrong."""
    if len(data) < _SUM or highway(sum_key(stream), data[:-_SUM]) != int.from_bytes(
        data[-_SUM:], "little"
    ):
        raise ValueError("its checksum is wrong")
    return data[:-_SUM]
