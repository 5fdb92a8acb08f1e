"""Micro-batches when logs were trimmed, recreated or truncated, or their broker is down."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest

from broker.spark.errors import BrokerDownError, DataLossError
from broker.spark.offsets import Offset, Offsets, TopicPartition
from broker.spark.source import microbatch
from broker.spark.topics import Entry, Survey

T, U = TopicPartition("t", 0), TopicPartition("u", 1)


def entry(tp: TopicPartition, first: int, after: int, incarnation: str = "x") -> Entry:
    return Entry(tp, incarnation, first, after, (after - first) * 100, tp.partition, "b")


def survey(
    *entries: Entry, down: tuple[str, ...] = (), reached: tuple[int, ...] = (0, 1)
) -> Survey:
    return Survey({one.tp: one for one in entries}, frozenset(reached), down)


def test_new_topics_from_their_earliest() -> None:
    seen = survey(entry(T, 1, 10), entry(U, 5, 9))
    begin = microbatch.base({T: Offset(4, "x")}, seen, True)
    assert begin == {T: Offset(4, "x"), U: Offset(5, "x")}
    end = microbatch.target(begin, seen)
    assert end == {T: Offset(10, "x"), U: Offset(9, "x")}
    pieces = microbatch.ranges_between({T: Offset(4, "x")}, end, seen, True)
    assert [(p.range.topic_partition, p.range.start, p.range.end, p.server) for p in pieces] == [
        (T, 4, 10, 0),
        (U, 5, 9, 1),
    ]


LOSSES = {
    "trimmed": (entry(T, 8, 10), Offset(8, "x"), "records 4 to 7 were removed"),
    "made anew": (entry(T, 1, 3, "y"), Offset(1, "y"), "recreated"),
    "set back": (entry(T, 1, 3), Offset(3, "x"), "read up to 4 and now ends at 3"),
}


@pytest.mark.parametrize("what", LOSSES)
def test_what_was_lost(what: str, caplog: pytest.LogCaptureFixture) -> None:
    now, mark, text = LOSSES[what]
    with pytest.raises(DataLossError, match=text):
        microbatch.base({T: Offset(4, "x")}, survey(now), True)
    with caplog.at_level(logging.WARNING, "twinwire.spark"):
        assert microbatch.base({T: Offset(4, "x")}, survey(now), False) == {T: mark}
    assert text in caplog.text


def test_the_deleted_beginning_of_a_stream_is_no_loss() -> None:
    far = 2**60  # as after a purge
    now, before = replace(entry(T, far, far + 2), stream=True), {T: Offset(4, "x")}
    assert microbatch.base(before, survey(now), True) == {T: Offset(far, "x")}
    (piece,) = microbatch.ranges_between(before, {T: Offset(far + 2, "x")}, survey(now), True)
    assert piece.range[3:] == (far, far + 2)
    assert microbatch.ranges_between(before, {T: Offset(9, "x")}, survey(now), True) == []


def test_a_topic_that_is_gone(caplog: pytest.LogCaptureFixture) -> None:
    before = {T: Offset(4, "x"), U: Offset(2, "x")}
    with pytest.raises(DataLossError, match="was deleted; it was read up to 4"):
        microbatch.base(before, survey(entry(U, 1, 3)), True)
    assert microbatch.base(before, survey(entry(U, 1, 3)), False) == {U: Offset(2, "x")}
    assert "was deleted" in caplog.text


def test_a_broker_that_is_down_keeps_its_place() -> None:
    before = {T: Offset(4, "x"), U: Offset(2, "x")}
    seen = survey(entry(U, 1, 3), down=("a:1",), reached=(1,))
    begin = microbatch.base(before, seen, False)
    assert begin == before
    end = microbatch.target(begin, seen)
    assert end == {T: Offset(4, "x"), U: Offset(3, "x")}
    assert len(microbatch.ranges_between(before, end, seen, False)) == 1
    with pytest.raises(BrokerDownError, match="a:1"):  # a range that was promised to a batch
        microbatch.ranges_between({T: Offset(1, "x")}, before, seen, False)


def test_a_topic_of_a_broker_that_answers_is_gone_though_another_is_down() -> None:
    seen = survey(down=("b:1",), reached=(0,))
    with pytest.raises(DataLossError):
        microbatch.base({T: Offset(4, "x")}, seen, True)


def test_a_query_with_an_end_reads_no_more_than_was_there() -> None:
    frozen: Offsets = {T: Offset(6, "x")}
    seen = survey(entry(T, 1, 10), entry(U, 1, 5))
    before = {T: Offset(4, "x")}
    begin = microbatch.known(microbatch.base(before, seen, True), before, frozen)
    assert microbatch.target(begin, seen, frozen) == {T: Offset(6, "x")}
    ahead = {T: Offset(8, "x")}  # as a checkpoint may be
    assert microbatch.target(ahead, seen, frozen) == ahead
    anew = survey(entry(T, 1, 10, "y"))
    begin = microbatch.base(before, anew, False)
    assert microbatch.target(begin, anew, frozen) == {T: Offset(1, "y")}


def test_ranges_of_an_earlier_run() -> None:
    """A batch that was planned before a crash is read as planned, or fails with the reason."""
    start, end = {T: Offset(4, "x")}, {T: Offset(9, "x")}
    grown = survey(entry(T, 1, 50))
    assert [
        (p.range.start, p.range.end) for p in microbatch.ranges_between(start, end, grown, True)
    ] == [(4, 9)]
    for seen in (survey(entry(T, 1, 50, "y")), survey()):
        with pytest.raises(DataLossError):
            microbatch.ranges_between(start, end, seen, True)
        assert microbatch.ranges_between(start, end, seen, False) == []
    trimmed = survey(entry(T, 6, 50))  # the task finds out and tells it
    assert [
        (p.range.start, p.range.end) for p in microbatch.ranges_between(start, end, trimmed, True)
    ] == [(4, 9)]
    anew = microbatch.ranges_between({T: Offset(4, "w")}, end, grown, True)
    assert [(p.range.start, p.range.end) for p in anew] == [(1, 9)]
