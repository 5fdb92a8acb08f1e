"""A cursor put to another place: back, forward, by time, and what is kept for that."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.engine import (
    SECOND,
    Rig,
    bodies_of,
    finish_all,
    flip_bit,
    numbered,
    segment_files,
)

from broker.engine.bulk.ranges import Approach, TimeSearch
from broker.engine.cursor.local import LocalConsumer


def test_back_gives_everything_again_as_if_new(tmp_path: Path) -> None:
    with Rig(tmp_path / "a") as rig:
        log = rig.log()
        cursor = log.open_cursor("c")
        consumer = LocalConsumer(cursor, 100)
        rig.publish(log, numbered(10))
        assert finish_all(consumer) == numbered(10)
        rig.publish(log, numbered(2, 10))
        held = [record[0] for record in consumer.records]
        consumer.records.clear()
        assert cursor.rewind(4) == 4
        assert consumer.finish(held[0]) == 1, "what is in flight is given up"
        assert (cursor.in_flight_count, cursor.depth) == (0, 9)
        rig.settle()
        assert [record[:2] for record in consumer.records] == [(seq, 1) for seq in range(4, 13)]
        assert finish_all(consumer) == numbered(9, 3)


def test_forward_skips(tmp_path: Path) -> None:
    with Rig(tmp_path / "a") as rig:
        log = rig.log()
        cursor = log.open_cursor("c")
        rig.publish(log, numbered(10))
        assert cursor.rewind(8) == 8
        consumer = LocalConsumer(cursor, 100)
        rig.settle()
        assert bodies_of(consumer) == numbered(3, 7)
        assert cursor.rewind(1 << 40) == 11
        assert cursor.depth == 0


@pytest.mark.parametrize("inline", [0, 1 << 17])
def test_the_place_survives_a_crash(tmp_path: Path, inline: int) -> None:
    with Rig(tmp_path / "a", inline_bytes=inline) as rig:
        log = rig.log()
        cursor = log.open_cursor("c")
        consumer = LocalConsumer(cursor, 100)
        rig.publish(log, numbered(10))
        finish_all(consumer)
        rig.settle()
        consumer.leave()
        cursor.rewind(3)
        mark = cursor.journal.mark
        while cursor.journal.done < mark:
            rig.loop.serve(1000)
        rig.crash(tmp_path / "b")  # without the end of the turn
    with Rig(tmp_path / "b") as rig:
        consumer = LocalConsumer(rig.engine.log("t").cursors["c"], 100)
        rig.settle()
        assert [record[:2] for record in consumer.records] == [(seq, 1) for seq in range(3, 11)]


@pytest.mark.parametrize("in_memory", [False, True])
def test_the_place_of_a_moment(tmp_path: Path, in_memory: bool) -> None:
    with Rig(None if in_memory else tmp_path / "a", segment_bytes=2000) as rig:
        log = rig.log()
        log.open_cursor("c")
        start = rig.turn.wall_ns
        for number in range(200):
            rig.publish(log, numbered(3, number))
            rig.advance(10)
        assert len(log.segments) > 5
        search = TimeSearch(log)
        for number in (0, 1, 7, 50, 120, 199):
            assert search.find(start + number * 10 * SECOND) == 3 * number + 1
            assert search.find(start + number * 10 * SECOND - 1) == 3 * number + 1
        assert search.find(0) == 1
        assert search.find(start + 3000 * SECOND) == 601


def test_segments_dropped_meanwhile_are_passed_over(tmp_path: Path) -> None:
    with Rig(tmp_path / "a", segment_bytes=2000) as rig:
        log = rig.log()
        cursor = log.open_cursor("c")
        rig.publish(log, numbered(300))
        search = TimeSearch(log)
        cursor.empty()
        rig.settle()
        assert log.first_seq > 1
        assert search.find(0) == log.first_seq
        assert cursor.rewind(1) == log.first_seq


def test_the_way_to_a_place_is_read_first(tmp_path: Path) -> None:
    with Rig(tmp_path / "a", segment_bytes=2000) as rig:
        log = rig.log()
        cursor = log.open_cursor("c")
        rig.publish(log, numbered(300))
        assert [Approach(log, seq).read() for seq in (1, 77, 300, 301)] == [True] * 3 + [False]
        before = Approach(log, 1)
        cursor.empty()
        rig.settle()
        assert before.read() is False, "dropped meanwhile"


def test_back_in_the_middle_of_a_cold_read_verifies_what_it_gives(tmp_path: Path) -> None:
    with Rig(tmp_path / "a", segment_bytes=40_000) as rig:
        log = rig.log()
        cursor = log.open_cursor("c")
        for number in range(8):
            rig.publish(log, numbered(250, 250 * number, 100))
        with segment_files(tmp_path / "a")[0].open("r+b") as file:
            file.seek(64 + 40 + 50)
            file.write(b"BITROT")
        consumer = LocalConsumer(cursor, 100)
        cursor.rewind(250)  # a place that the sparse index knows
        rig.loop.run()  # a cold read from there is under way
        assert not consumer.records
        cursor.rewind(1)
        rig.settle()
        assert consumer.records[0][0] == 2
        assert any("passed over" in text for _, text, _ in rig.reports)


def test_damage_across_the_frontier_of_a_paused_log(tmp_path: Path) -> None:
    with Rig(tmp_path / "a") as rig:
        log = rig.log()
        log.open_cursor("c")
        rig.publish(log, numbered(10))
        log.pause()
        rig.publish(log, numbered(10, 10))
        rig.close()
    for number in (8, 9, 10, 11):
        flip_bit(segment_files(tmp_path / "a")[0], 64 + 64 * number + 50)
    with Rig(tmp_path / "a") as rig:
        log = rig.log()
        cursor = log.cursors["c"]
        consumer = LocalConsumer(cursor, 100)
        rig.settle()
        assert len(consumer.records) == 8
        assert cursor.depth == 0
        assert cursor.next_seq <= log.frontier
