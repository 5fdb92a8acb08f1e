"""Cursor journals: what was written is read, up to the first byte that is not as it was."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from broker.engine.cursor.journal import read_journal
from broker.engine.log.record import FormatError, crc32c

MAGIC = b"TWINCUR\0" + struct.pack("<HHI", 1, 0, 0)
U64 = st.integers(0, 2**64 - 1) | st.integers(0, 300)
Op = tuple[int, int, int, int]
ARITY = {1: 2, 2: 1, 3: 3, 4: 1, 5: 1}


@st.composite
def operations(draw: st.DrawFn) -> Op:
    kind = draw(st.sampled_from(sorted(ARITY)))
    values = [draw(U64) for _ in range(ARITY[kind])] + [0, 0]
    return (kind, values[0], values[1], values[2])


def varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def block_of(ops: list[Op]) -> bytes:
    payload = b"".join(
        bytes([kind]) + b"".join(map(varint, values[: ARITY[kind]])) for kind, *values in ops
    )
    return struct.pack("<II", len(payload), crc32c(payload)) + payload


BLOCKS = st.lists(st.lists(operations(), min_size=1, max_size=5), max_size=6)
SETTINGS = settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "c.cur"


def prefix(blocks: list[list[Op]], size: int) -> tuple[list[Op], int]:
    """The operations of the blocks that end within `size` bytes, and where the last one ends."""
    ops: list[Op] = []
    at = len(MAGIC)
    for block in blocks:
        end = at + len(block_of(block))
        if end > size:
            break
        ops, at = ops + block, end
    return ops, at


@SETTINGS
@given(blocks=BLOCKS, data=st.data())
def test_a_torn_end_costs_what_is_torn(
    path: Path, blocks: list[list[Op]], data: st.DataObject
) -> None:
    whole = MAGIC + b"".join(map(block_of, blocks))
    cut = data.draw(st.integers(len(MAGIC), len(whole)))
    garbage = data.draw(st.binary(max_size=20))
    path.write_bytes(whole[:cut] + garbage)
    ops, good = prefix(blocks, cut)
    found, found_good, unread = read_journal(str(path))
    if whole[:cut] + garbage == whole[: cut + len(garbage)]:
        return  # the garbage happened to be what stood there
    assert found[: len(ops)] == ops
    assert found == ops
    assert (found_good, unread) == (good, cut + len(garbage) - good)


@SETTINGS
@given(blocks=BLOCKS.filter(len), data=st.data())
def test_a_flipped_bit_ends_it_there(
    path: Path, blocks: list[list[Op]], data: st.DataObject
) -> None:
    whole = bytearray(MAGIC + b"".join(map(block_of, blocks)))
    at = data.draw(st.integers(len(MAGIC), len(whole) - 1))
    whole[at] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(whole)
    ops, good = prefix(blocks, at)
    assert read_journal(str(path)) == (ops, good, len(whole) - good)


@pytest.mark.parametrize("content", [b"", b"TWINCUR", b"\0" * 100, b"x" * 16, MAGIC[::-1]])
def test_what_is_no_journal(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    assert read_journal(str(path)) == ([], 0, len(content))


def test_zeros_behind_the_end_are_no_blocks(path: Path) -> None:
    """As a file system may leave them after a power cut."""
    ops: list[Op] = [(2, 7, 0, 0)]
    path.write_bytes(MAGIC + block_of(ops) + b"\0" * 64)
    assert read_journal(str(path)) == (ops, len(MAGIC + block_of(ops)), 64)


@pytest.mark.parametrize(
    "payload",
    [
        b"\x0f\x01",  # no such operation
        b"\x00",
        b"\x02",  # a value is missing
        b"\x02\x80",  # a value is cut
        b"\x02" + b"\xff" * 9 + b"\x02",  # a value of more than 64 bits
        b"\x02" + b"\x80" * 10 + b"\x01",
    ],
)
def test_nonsense_under_a_right_sum(path: Path, payload: bytes) -> None:
    good = block_of([(2, 7, 0, 0)])
    path.write_bytes(MAGIC + good + struct.pack("<II", len(payload), crc32c(payload)) + payload)
    ops, size, _ = read_journal(str(path))
    assert (ops, size) == ([(2, 7, 0, 0)], len(MAGIC + good))


def test_a_version_from_elsewhere_is_refused(path: Path) -> None:
    path.write_bytes(MAGIC[:8] + struct.pack("<HHI", 2, 0, 0))
    with pytest.raises(FormatError, match="version 2; this build reads 1"):
        read_journal(str(path))
