"""What the load generator reads off the wire, how it lays out its bytes, and its percentiles."""

from __future__ import annotations

import random

import pytest

from broker.bench.frames import Block, count_nats, scan_nsq
from broker.bench.histogram import Histogram


def nsq_frame(kind: int, payload: bytes) -> bytes:
    return (len(payload) + 4).to_bytes(4, "big") + kind.to_bytes(4, "big") + payload


MESSAGES = b"MSG a 1 3\r\nabc\r\nMSG a 1 3\r\nM\r\n\r\nPING\r\nMSG  b 2 r.x  0\r\n\r\nPONG\r\n"


def test_counts_nats_messages_however_they_are_cut() -> None:
    whole = count_nats([MESSAGES])
    assert whole[:4] == (3, 6, 1, 1)
    assert count_nats([bytes([byte]) for byte in MESSAGES])[:4] == whole[:4]
    for at in range(len(MESSAGES)):
        assert count_nats([MESSAGES[:at], MESSAGES[at:]])[:4] == whole[:4]


def test_counts_lines_that_all_differ_however_they_are_cut() -> None:
    dice = random.Random(1)
    sizes = [dice.randrange(1200) for _ in range(60)]
    names = [b"s" * dice.randint(1, 40) for _ in sizes]
    data = b"".join(
        b"MSG %s 1 %d\r\n%s\r\n" % (name, size, b"\n" * size)
        for name, size in zip(names, sizes, strict=True)
    )
    assert count_nats([data])[:2] == (60, sum(sizes))
    for at in range(0, len(data), 3):
        assert count_nats([data[:at], data[at:]])[:2] == (60, sum(sizes))


def test_a_message_counts_when_its_last_byte_is_here() -> None:
    assert count_nats([MESSAGES[:15]])[0] == 0
    assert count_nats([MESSAGES[:15], MESSAGES[15:16]])[0] == 1


def test_header_messages_count_their_whole_length() -> None:
    data = b"HMSG a 1 12 14\r\nNATS/1.0\r\n\r\nhi\r\n" * 2
    assert count_nats([data])[:2] == (2, 28)


@pytest.mark.parametrize(
    "data", [b"MSG a 1 x\r\n", b"HELLO\r\n", b"MSG a 1 99999999999\r\n", b"\r\n", b"a" * 70000]
)
def test_refuses_what_is_not_nats(data: bytes) -> None:
    bad = count_nats([b"HELLO\r\n"])[4]
    assert count_nats([data])[4] == bad
    assert count_nats([b"-ERR 'no'\r\n"])[4] not in {bad, count_nats([b""])[4]}


def test_scans_nsq_frames_however_they_are_cut() -> None:
    message = nsq_frame(2, bytes(8) + b"\x00\x03" + b"0123456789abcdef" + b"body")
    data = nsq_frame(0, b"OK") + message + nsq_frame(1, b"E_X y")
    found, used, _ = scan_nsq(data)
    assert used == len(data)
    assert [text for _, text, _, _ in found] == [b"OK", b"0123456789abcdef", b"E_X y"]
    assert found[1][2:] == (3, 4)
    ends = [10, 10 + len(message), len(data)]
    for at in range(len(data)):
        assert scan_nsq(data[:at])[1] == max([e for e in ends if e <= at], default=0)


@pytest.mark.parametrize("data", [b"HTTP/1.1", nsq_frame(7, b"x"), nsq_frame(2, b"short")])
def test_refuses_what_is_not_nsq(data: bytes) -> None:
    assert scan_nsq(data)[0] == []
    assert scan_nsq(data)[2] == scan_nsq(b"\xff" * 8)[2]


def test_block_knows_where_its_units_begin() -> None:
    block = Block([b"ab", b"c", b"def"], 100)
    assert [block.measure(n) for n in range(8)] == [0, 2, 3, 6, 8, 9, 12, 14]
    assert [block.started(n) for n in range(9)] == [0, 1, 1, 2, 3, 3, 3, 4, 4]
    with pytest.raises(ValueError, match="units"):
        Block([], 100)


def test_percentiles_are_within_one_per_cent() -> None:
    histogram = Histogram()
    assert histogram.percentile_ns(50) == 0
    values = sorted(random.Random(1).randrange(1 << 40) for _ in range(5000))
    for value in values:
        histogram.record(value)
    histogram.record(-5)
    for percent in (1, 50, 90, 99, 99.9):
        exact = values[int(len(values) * percent / 100) - 1]
        assert exact * 0.99 <= histogram.percentile_ns(percent) <= exact * 1.02
    assert histogram.percentile_ns(100) == histogram.max_ns() == values[-1]
    assert histogram.count() == 5001
