"""Where queries begin and end."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from broker.spark.errors import OptionError
from broker.spark.offsets import Offset, TopicPartition
from broker.spark.options import Wanted
from broker.spark.source.options import read_settings
from broker.spark.source.positions import resolve
from broker.spark.topics import Entry, Survey

T, U = TopicPartition("t", 0), TopicPartition("u", 1)
SURVEY = Survey({T: Entry(T, "x", 5, 20, 0, 0), U: Entry(U, "y", 1, 1, 0, 1)}, frozenset({0, 1}))
WANTED = Wanted(names=("t", "u"))


def at(
    options: Mapping[str, str], side: str = "start", *, stream: bool = False
) -> dict[TopicPartition, int]:
    """The clock of topic `t`: seq n was stored at n seconds. Topic `u` is empty."""

    def find(times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        return {
            tp: max(ms // 1000, 5) if tp == T and ms < 20_000 else None for tp, ms in times.items()
        }

    given = {"servers": "a:1", "subscribe": "t,u", **options}
    settings = read_settings(given, stream=stream)
    position = settings.start if side == "start" else settings.end
    assert position is not None
    found = resolve(position, SURVEY, WANTED, find)
    assert all(mark.incarnation == SURVEY.entries[tp].incarnation for tp, mark in found.items())
    return {tp: mark.seq for tp, mark in found.items()}


def test_words() -> None:
    assert at({}) == {T: 5, U: 1}
    assert at({}, "end") == {T: 20, U: 1}
    assert at({}, stream=True) == {T: 20, U: 1}
    assert at({"startingOffsets": "Earliest"}, stream=True) == {T: 5, U: 1}


def test_seqs() -> None:
    assert at({"startingOffsets": '{"t": {"0": 7}}'}, stream=True) == {T: 7, U: 1}
    assert at({"startingOffsets": '{"t": {"0": -1}, "u": {"1": -2}}'}) == {T: 20, U: 1}
    assert at({"startingOffsets": '{"t": {"0": 0}}'})[T] == 1  # no record has seq 0
    assert at({"endingOffsets": '{"t": {"0": 9}}'}, "end") == {T: 9, U: 1}
    assert at({"endingOffsets": '{"t": {"0": -1}}'}, "end") == {T: 20, U: 1}


def test_topics_that_are_not_subscribed() -> None:
    for text in ('{"v": {"0": 7}}', '{"t": {"0": 1}, "v": {"1": -2}}'):
        with pytest.raises(OptionError, match="not subscribed"):
            at({"startingOffsets": text})
    with pytest.raises(OptionError, match=r"'v' .0., which is not subscribed"):
        at({"startingOffsetsByTimestamp": '{"v": {"0": 7}}'})


def test_times() -> None:
    latest = {"startingOffsetsByTimestampStrategy": "latest"}
    assert at({"startingTimestamp": "9000", **latest}) == {T: 9, U: 1}
    assert at({"startingTimestamp": "99000", **latest}) == {T: 20, U: 1}
    assert at({"startingOffsetsByTimestamp": '{"t": {"0": 9000}}'}) == {T: 9, U: 1}
    assert at({"endingTimestamp": "9000"}, "end") == {T: 9, U: 1}
    assert at({"endingTimestamp": "99000"}, "end") == {T: 20, U: 1}
    assert at({"endingOffsetsByTimestamp": '{"t": {"0": 9000}}'}, "end") == {T: 9, U: 1}


def test_a_time_after_the_last_record() -> None:
    with pytest.raises(OptionError, match=r"'u' .1. has no record at or after 9000 ms"):
        at({"startingTimestamp": "9000"})


def test_marks_carry_the_incarnation() -> None:
    settings = read_settings({"servers": "a:1", "subscribe": "t,u"}, stream=False)
    found = resolve(settings.start, SURVEY, WANTED, lambda times: {})
    assert found == {T: Offset(5, "x"), U: Offset(1, "y")}
