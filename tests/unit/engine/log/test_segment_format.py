"""The files, read by somebody who knows docs/reference/log-format.md and nothing else."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.engine import SECOND, Rig, numbered, segment_files
from support.fakes.loop import WALL_NS
from support.native.logs import crc_by, crc_modes, locate_record, scan_records

from broker.engine.cursor.local import LocalConsumer
from broker.engine.log.record import crc32c, file_header


def castagnoli(begin: int, data: bytes) -> int:
    """The sum by its definition, bit by bit."""
    crc = ~begin & 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return ~crc & 0xFFFFFFFF


def test_the_sum() -> None:
    assert castagnoli(0, b"123456789") == 0xE3069283  # the check value everybody gives
    for length in range(40):
        data = bytes(range(100, 100 + length))
        assert crc32c(data) == castagnoli(0, data)
        assert crc32c(data[7:], crc32c(data[:7])) == castagnoli(0, data)
    assert crc32c(b"", 5) == 5


@pytest.mark.parametrize("mode", crc_modes())
def test_the_sum_of_any_length(mode: int) -> None:
    """Data of a few words and more is summed in lanes, whose length depends on that of the data. In
    each of the ways that this processor can."""
    data = random.Random(7).randbytes(7000)
    for begin in (0, 1, 0xFFFFFFFF, 0x80000000):
        crc = begin
        for length, byte in enumerate(data):
            assert crc_by(mode, data[:length], begin) == crc, length
            crc = castagnoli(crc, bytes([byte]))
    for begin in range(1, 9):
        assert crc_by(mode, data[begin:6999]) == castagnoli(0, data[begin:6999])


Row = tuple[int, int, int, int, bytes, bytes, bytes, bytes]


def read_segment(path: Path) -> tuple[bytes, int, list[Row]]:
    data = path.read_bytes()
    assert len(data) % 8 == 0
    name, version, size, crc, log_id, first_seq, created, zeros = struct.unpack(
        "<8sHHI16sQq16s", data[:64]
    )
    assert (name, version, size, zeros) == (b"TWINLOG\0", 1, 64, b"\5" + bytes(15))
    assert crc == castagnoli(0, data[16:64])
    assert created == WALL_NS
    salt = castagnoli(0, log_id)
    return log_id, first_seq, list(read_records(data, salt))


def read_records(data: bytes, salt: int) -> Iterator[Row]:
    at = 64
    while at < len(data):
        length, crc, seq, timestamp, not_before, subject, reply, headers = struct.unpack(
            "<IIQqqHHI", data[at : at + 40]
        )
        headers, flags = headers & 0xFFFFFF, headers >> 24
        assert crc == castagnoli(salt, data[at + 8 : at + length])
        parts = []
        start = at + 40
        for size in (subject, reply, headers, length - 40 - subject - reply - headers):
            parts.append(data[start : start + size])
            start += size
        assert start == at + length
        at = -(-start // 8) * 8
        assert not any(data[start:at])
        yield (seq, timestamp, not_before, flags, parts[0], parts[1], parts[2], parts[3])


def test_segments(tmp_path: Path) -> None:
    with Rig(tmp_path, segment_bytes=512) as rig:
        log = rig.log("orders.eu")
        later = WALL_NS + 5 * SECOND
        rig.publish(log, [b"one", b""])
        rig.publish(log, [b"two"], headers=b"NATS/1.0\r\n\r\n", reply=b"back", flags=1)
        rig.publish(log, [b"three"], subject=b"orders.us", not_before_ns=later)
        rig.publish(log, numbered(20))
        rig.close()
    rows = []
    meta = json.loads((tmp_path / "orders.eu" / "meta.json").read_bytes())
    for path in segment_files(tmp_path, "orders.eu"):
        log_id, first_seq, found = read_segment(path)
        assert log_id.hex() == meta["log_id"]
        assert path.name == f"{first_seq:020d}.seg"
        assert found[0][0] == first_seq
        rows += found
    assert len(segment_files(tmp_path, "orders.eu")) > 1
    assert [row[0] for row in rows] == list(range(1, 25))
    assert {row[1] for row in rows} == {WALL_NS}
    assert [row[2:] for row in rows[:5]] == [
        (0, 0, b"", b"", b"", b"one"),
        (0, 0, b"", b"", b"", b""),
        (0, 1, b"", b"back", b"NATS/1.0\r\n\r\n", b"two"),
        (later, 0, b"orders.us", b"", b"", b"three"),
        (0, 0, b"", b"", b"", numbered(1)[0]),
    ]
    crc = meta["crc"]
    assert meta == {
        "version": 1,
        "name": "orders.eu",
        "log_id": meta["log_id"],
        "created_ns": WALL_NS,
        "paused": False,
        "frontier": 1,
        "crc": meta["crc"],
    }
    del meta["crc"]
    summed = json.dumps(meta, sort_keys=True, separators=(",", ":")).encode()
    assert crc == f"{castagnoli(0, summed):08x}"


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if not byte & 0x80:
            return value, at
        shift += 7


def read_blocks(path: Path) -> list[list[tuple[int, ...]]]:
    data = path.read_bytes()
    assert data[:16] == b"TWINCUR\0" + struct.pack("<H", 1) + bytes(6)
    at, blocks = 16, []
    while at < len(data):
        length, crc = struct.unpack_from("<II", data, at)
        payload = data[at + 8 : at + 8 + length]
        assert 0 < length == len(payload)
        assert crc == castagnoli(0, payload)
        ops, place = [], 0
        while place < length:
            op = [payload[place]]
            place += 1
            for _ in range({1: 2, 2: 1, 3: 3, 4: 1, 5: 1}[op[0]]):
                value, place = read_varint(payload, place)
                op.append(value)
            ops.append(tuple(op))
        blocks.append(ops)
        at += 8 + length
    return blocks


def test_journals(tmp_path: Path) -> None:
    with Rig(tmp_path) as rig:
        log = rig.log()
        cursor = log.open_cursor("a/b")
        consumer = LocalConsumer(cursor, 6)
        rig.publish(log, numbered(8))
        for seq in (1, 2, 3, 5):
            consumer.finish(seq)
        consumer.requeue(4, 10)
        consumer.set_credit(0)
        rig.settle()
        cursor.pause()
        rig.settle()
        rig.publish(log, [b"x"], not_before_ns=WALL_NS + SECOND)
        rig.advance(0.5)
        (path,) = (tmp_path / "t" / "cursors").iterdir()
        assert path.name == "a%2Fb.cur"
        due = WALL_NS + 10 * SECOND
        assert read_blocks(path) == [
            [(4, 1), (2, 1), (5, 0)],
            [(2, 7)],
            [(1, 1, 3), (1, 5, 1), (3, 4, 1, due)],
            [(5, 1)],
        ]
        cursor.empty()
        rig.settle()
        assert read_blocks(path)[-1] == [(4, 10)]


def test_a_snapshot(tmp_path: Path) -> None:
    """Floor, next, pause; what is acked above the floor; what waits or is in flight."""
    with Rig(tmp_path, journal_bytes_min=60) as rig:
        log = rig.log()
        cursor = log.open_cursor("c")
        consumer = LocalConsumer(cursor, 100)
        rig.publish(log, numbered(30))
        consumer.requeue(2, 10)
        for seq in range(4, 31):
            consumer.finish(seq)
            rig.settle()
        (path,) = (tmp_path / "t" / "cursors").iterdir()
        assert rig.root is not None
        first, *rest = read_blocks(path)
        assert first[:4] == [(4, 1), (2, 31), (5, 0), (1, 4, first[3][2])]
        assert first[4:] == [
            (3, 1, 1, 0),
            (3, 2, 1, WALL_NS + 10 * SECOND),
            (3, 3, 1, 0),
            *((3, seq, 1, 0) for seq in range(4 + first[3][2], 31)),
        ]
        assert [op for block in rest for op in block] == [
            (1, seq, 1) for seq in range(4 + first[3][2], 31)
        ]


@pytest.mark.parametrize(
    ("name", "file"),
    [("orders.eu", "orders.eu"), (".a", "%2Ea"), ("a/b", "a%2Fb"), ("é#~-_", "%C3%A9%23~-_")],
)
def test_names(tmp_path: Path, name: str, file: str) -> None:
    with Rig(tmp_path) as rig:
        rig.log(name).open_cursor(name)
        rig.settle()
        assert (tmp_path / file / "cursors" / f"{file}.cur").exists()


def test_the_header_has_room_for_other_versions() -> None:
    head = file_header(bytes(16), 1, 0)
    assert struct.unpack_from("<HH", head, 8) == (1, 64)


def record(seq: int, body: bytes) -> bytes:
    """A record of the log whose id is zeros."""
    rest = struct.pack("<QqqHHI", seq, WALL_NS, 0, 0, 0, 0) + body
    crc = castagnoli(castagnoli(0, bytes(16)), rest)
    return struct.pack("<II", 8 + len(rest), crc) + rest + bytes(-len(rest) % 8)


def test_a_search_finds_what_a_reader_found() -> None:
    """Behind damage stands a record that was there before, and in its body one that was not."""
    data = record(1, b"") + record(2, b"") + b"garbage " + record(2, record(3, b"inside"))
    records, _, _ = scan_records(data, bytes(16))
    assert [seq for seq, *_ in records] == [1, 2, 3]
    assert [locate_record(data, bytes(16), seq) for seq in (1, 2, 3, 4)] == [1, 2, 3, None]
