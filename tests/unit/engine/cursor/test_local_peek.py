"""Looking at records without taking them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.engine import SECOND, Rig, numbered, segment_files

from broker.engine.cursor.local import (
    DEFERRED,
    IN_FLIGHT,
    WAITING,
    LocalConsumer,
    peek_cursor,
    peek_log,
)

ALL = (WAITING, DEFERRED, IN_FLIGHT)
MIB = 1 << 20


def pages(cursor: Any, states: tuple[str, ...], limit: int) -> list[list[Any]]:
    """Rows of all pages, each read whole."""
    rows, at = [], 0
    while True:
        page = peek_cursor(cursor, states, at, limit)
        records = page.read(MIB)
        assert list(records) == [row[0] for row in page.found]
        assert len(records) <= limit
        rows += page.found
        if page.next_seq is None:
            return rows
        assert page.next_seq > at
        at = page.next_seq


@pytest.mark.parametrize("in_memory", [False, True])
@pytest.mark.parametrize("limit", [1, 3, 1000])
def test_every_state_in_pages(tmp_path: Path, in_memory: bool, limit: int) -> None:
    with Rig(None if in_memory else tmp_path / "a", segment_bytes=512) as rig:
        log = rig.log()
        cursor = log.open_cursor("c")
        consumer = LocalConsumer(cursor, 6, 60.0)
        rig.publish(log, numbered(20))
        rig.publish(log, numbered(3, 20), not_before_ns=rig.turn.wall_ns + 100 * SECOND)
        consumer.set_credit(0)
        assert consumer.finish(1) == consumer.finish(3) == 0
        assert consumer.requeue(2) == consumer.requeue(4, 30) == 0
        rig.settle()
        before = cursor.depth, cursor.in_flight_count, cursor.deferred_count
        expected = {2: WAITING, 4: DEFERRED, 5: IN_FLIGHT, 6: IN_FLIGHT}
        expected |= dict.fromkeys(range(7, 21), WAITING)
        expected |= dict.fromkeys(range(21, 24), DEFERRED)
        assert {row[0]: row[1] for row in pages(cursor, ALL, limit)} == expected
        for state in ALL:
            seqs = [row[0] for row in pages(cursor, (state,), limit)]
            assert seqs == [seq for seq, there in expected.items() if there == state]
        rows = {row[0]: row for row in pages(cursor, ALL, limit)}
        wall = rig.turn.wall_ns
        assert rows[2][2:] == [1, 0, 0, None]
        assert rows[4][2:] == [1, wall + 30 * SECOND, 0, None]
        assert rows[5][2:] == [1, wall + 60 * SECOND, wall, consumer]
        assert rows[21][2:] == [0, wall + 100 * SECOND, 0, None]
        assert before == (cursor.depth, cursor.in_flight_count, cursor.deferred_count)


def test_what_is_read(tmp_path: Path) -> None:
    with Rig(tmp_path / "a") as rig:
        log = rig.log()
        cursor = log.open_cursor("c")
        bodies = numbered(10)
        rig.publish(log, bodies)
        wall = rig.turn.wall_ns
        page = peek_cursor(cursor, ALL, 4, 2)
        assert page.read(MIB) == {
            4: (wall, 0, b"t", b"", b"", bodies[3], False),
            5: (wall, 0, b"t", b"", b"", bodies[4], False),
        }
        assert page.next_seq == 6
        page = peek_cursor(cursor, ALL, 0, 10)
        assert list(page.read(100)) == [1, 2]
        assert page.next_seq == 3
        assert [row[0] for row in page.found] == [1, 2]


def test_a_log_shows_what_it_keeps(tmp_path: Path) -> None:
    with Rig(tmp_path / "a", segment_bytes=512) as rig:
        log = rig.log()
        rig.publish(log, numbered(20))
        assert list(peek_log(log, 0, 100).read(MIB)) == list(range(1, 21))
        page = peek_log(log, 7, 5)
        assert (list(page.read(MIB)), page.next_seq) == ([7, 8, 9, 10, 11], 12)
        assert peek_log(log, 21, 5).read(MIB) == {}


def test_damage_and_dropped_files_are_left_out(tmp_path: Path) -> None:
    with Rig(tmp_path / "a", segment_bytes=512) as rig:
        log = rig.log()
        cursor = log.open_cursor("c")
        rig.publish(log, numbered(20))
        path = segment_files(tmp_path / "a")[1]
        data = bytearray(path.read_bytes())
        data[64 + 45] ^= 1
        path.write_bytes(data)
        lost = int(path.stem)
        page = peek_cursor(cursor, ALL, 0, 100)
        assert sorted({*range(1, 21)} - page.read(MIB).keys()) == [lost]
        page = peek_cursor(cursor, ALL, 0, 100)
        cursor.empty()
        rig.settle()
        assert min(page.read(MIB)) == log.first_seq > 1
        cursor.rewind(1)
