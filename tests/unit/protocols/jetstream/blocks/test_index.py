"""The index of blocks says what is deleted; a damaged one says nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.jetstream_stores import LEFT, unpack

from broker.protocols.jetstream.blocks.index import check_sum, read_index
from broker.protocols.jetstream.blocks.records import Tombstones


@pytest.fixture
def index(tmp_path: Path) -> bytes:
    return (unpack("plain", tmp_path) / "jetstream/$G/streams/ORDERS/msgs/index.db").read_bytes()


def test_what_is_deleted(index: bytes) -> None:
    gone = Tombstones()
    read_index(check_sum(index, "ORDERS"), gone)
    gone.seal()
    assert [seq for seq in range(1, 20) if seq not in gone] == [*LEFT, 17, 18, 19]
    assert gone.known_to == 16


def test_a_damaged_index_says_nothing(index: bytes) -> None:
    with pytest.raises(ValueError, match="checksum"):
        check_sum(index, "OTHER")
    with pytest.raises(ValueError, match="checksum"):
        check_sum(index[:5], "ORDERS")
    content = check_sum(index, "ORDERS")
    for size in range(len(content)):
        gone = Tombstones()
        with pytest.raises(ValueError, match=r"cut off|contradicts|version|bitmap"):
            read_index(content[:size], gone)
        gone.seal()
        assert not any(seq in gone for seq in range(1, 30))
    with pytest.raises(ValueError, match="version"):
        read_index(b"\x0b\x63" + content[2:], Tombstones())


def test_subjects_with_one_message() -> None:
    """The index of nats-server 2.15.2 for five messages on three subjects, of which it keeps one
    each."""
    index = bytes.fromhex(
        "0b04036c03be92b0f1b386f0ec3105a2bc92f2b386f0ec31"  # the stream
        "03056f6e652e62010101056f6e652e61010101056f6e652e63010101"  # its subjects
        "01016c030005e4a9620000000110a29e252857b9ea81b75f703ad70701"  # its block, sums
    )
    gone = Tombstones()
    read_index(check_sum(index, "ONE"), gone)
    gone.seal()
    assert [seq for seq in range(1, 8) if seq not in gone] == [3, 4, 5, 6, 7]
    # Before version 4 such a subject has its first block only.
    content = check_sum(index, "ONE")
    older = content.replace(b"\x0b\x04", b"\x0b\x03", 1)
    for name in (b"one.a", b"one.b", b"one.c"):
        older = older.replace(name + b"\x01\x01\x01", name + b"\x01\x01")
    gone = Tombstones()
    read_index(older, gone)
    gone.seal()
    assert [seq for seq in range(1, 8) if seq not in gone] == [3, 4, 5, 6, 7]
