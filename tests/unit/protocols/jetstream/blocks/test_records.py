"""Records of blocks: read, verified, and what is deleted."""

from __future__ import annotations

import struct

import pytest

from broker.protocols.jetstream.blocks.records import Block, Tombstones, highway, sum_key

KEY = sum_key("S-1")
# Of the bytes 0, 1, 2 ... with the key 0, 1, 2 ... 31, by length; of the authors of HighwayHash.
HASHES = (
    *(0x907A56DE22C26E53, 0x7EAB43AAC7CDDD78, 0xB8D0569AB0B53D62),
    *(0x5C6BEFAB8A463D80, 0xF205A46893007EDA),
)


def record(
    seq: int, subject: bytes, body: bytes, headers: bytes = b"", marks: int = 0, time_ns: int = 7
) -> bytes:
    """A record as nats-server writes it."""
    size = 22 + len(subject) + (4 + len(headers) if headers else 0) + len(body) + 8
    head = struct.pack("<Qq", seq | marks << 62, time_ns)
    summed = highway(KEY, head + subject + headers + body)
    return (
        struct.pack("<I", size | (1 << 31 if headers else 0))
        + head
        + struct.pack("<H", len(subject))
        + subject
        + (struct.pack("<I", len(headers)) + headers if headers else b"")
        + body
        + struct.pack("<Q", summed)
    )


def test_hashes_of_all_lengths_depend_on_each_byte() -> None:
    key = bytes(range(32))
    for length, expected in enumerate(HASHES):
        assert highway(key, bytes(range(length))) == expected
    seen = {highway(key, bytes(length)) for length in range(100)}
    assert len(seen) == 100
    for length in (3, 15, 17, 31, 33, 64):
        text = bytes(range(length))
        flipped = {highway(key, text[:i] + b"\xff" + text[i + 1 :]) for i in range(length)}
        assert len(flipped | {highway(key, text)}) == length + 1


def test_a_key_has_32_bytes() -> None:
    with pytest.raises(ValueError, match="32"):
        highway(b"short", b"")


def test_records_are_read() -> None:
    data = (
        record(1, b"a.b", b"body", b"NATS/1.0\r\n\r\n")
        + record(3, b"c", b"")
        + record(3, b"", b"", marks=1)
    )
    block = Block(data, KEY)
    assert list(block) == [
        (1, 7, b"a.b", b"NATS/1.0\r\n\r\n", b"body", False, False),
        (3, 7, b"c", b"", b"", False, False),
        (3, 7, b"", b"", b"", False, True),
    ]
    assert not block.bad


@pytest.mark.parametrize("verified", [True, False])
def test_a_damaged_record_ends_the_block(verified: bool) -> None:
    first, second = record(1, b"a", b"one"), record(2, b"b", b"two")
    for at in range(len(first), len(first) + len(second)):
        data = bytearray(first + second + record(3, b"c", b"three"))
        data[at] ^= 0x55
        block = Block(bytes(data), KEY if verified else None)
        found = list(block)
        assert found[0][4] == b"one"
        if verified:
            assert (len(found), block.bad, block.bad_at) == (1, True, len(first))


def test_a_torn_end_is_bad_and_nothing_is_read_past_it() -> None:
    whole = record(1, b"a", b"one") + record(2, b"bb", b"two", b"NATS/1.0\r\n\r\n")
    for size in range(len(whole)):
        block = Block(whole[:size])
        found = list(block)
        assert len(found) == (size >= len(record(1, b"a", b"one")))
        assert block.bad == (size not in (0, len(record(1, b"a", b"one"))))


def test_a_scan_collects_what_is_deleted() -> None:
    gone = Tombstones()
    data = b"".join(
        [
            record(5, b"a", b"x"),
            record(6, b"", b"noise", marks=2),
            record(7, b"a", b"x"),
            record(9, b"", b"", marks=1),
            record(5, b"", b"", marks=1),
        ]
    )
    assert Block(data, KEY).scan(gone) == (5, 9, len(record(5, b"a", b"x")) * 2)
    gone.seal()
    assert [seq for seq in range(1, 12) if seq in gone] == [5, 9]


def test_messages_outside_of_all_extents_are_deleted() -> None:
    gone = Tombstones()
    gone.add_extent(4, 6)
    gone.add_extent(9, 8)  # empty
    gone.add_extent(20, 21)
    gone.add_bits(4, bytes([0b10]))
    gone.add_extent(0, 30)
    gone.seal()
    assert [seq for seq in range(1, 40) if seq not in gone] == [4, 6, 20, 21, *range(31, 40)]
