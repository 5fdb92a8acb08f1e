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
