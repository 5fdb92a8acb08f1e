"""Admission: a trigger's limit shared out among topics."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from broker.spark.offsets import Offset, TopicPartition
from broker.spark.source.microbatch import admit_bytes, admit_records, share
from broker.spark.topics import Entry, Survey

A, B, C = TopicPartition("a", 0), TopicPartition("b", 0), TopicPartition("c", 1)


def test_in_proportion() -> None:
    parts = share({A: 9000, B: 1000, C: 0}, 1000)
    assert sum(parts.values()) == 1000
    assert 895 <= parts[A] <= 901
    assert C not in parts


def test_nobody_starves() -> None:
    assert share({A: 10**9, B: 1}, 10)[B] == 1
    assert share({A: 5, B: 9, C: 7}, 2) == {B: 1, C: 1}


BACKLOGS = st.dictionaries(
    st.builds(TopicPartition, st.text(max_size=3), st.integers(0, 3)),
    st.integers(0, 10**12),
    max_size=8,
)


@given(BACKLOGS, st.integers(1, 10**12))
def test_the_sum_is_the_limit(backlog: dict[TopicPartition, int], limit: int) -> None:
    parts = share(backlog, limit)
    assert sum(parts.values()) == min(limit, sum(backlog.values()))
    assert all(0 < part <= backlog[tp] for tp, part in parts.items())


def test_records() -> None:
    start = {A: Offset(11, "x"), B: Offset(1, "y")}
    target = {A: Offset(111, "x"), B: Offset(1, "y")}
    assert admit_records(start, target, 30) == {A: Offset(41, "x"), B: Offset(1, "y")}
    assert admit_records(start, target, 1000) == target


def test_bytes_advance_by_the_mean_record() -> None:
    survey = Survey({A: Entry(A, "x", 1, 1001, 256_000, 0), B: Entry(B, "y", 1, 11, 10 << 20, 0)})
    start = {A: Offset(1, "x"), B: Offset(1, "y")}
    target = {A: Offset(1001, "x"), B: Offset(11, "y")}
    end = admit_bytes(start, target, 4 << 20, survey)
    assert end[B].seq in {4, 5}
    assert 380 <= end[A].seq <= 420


def test_one_record_larger_than_the_limit_still_comes() -> None:
    survey = Survey({A: Entry(A, "x", 1, 11, 10 << 20, 0)})
    end = admit_bytes({A: Offset(1, "x")}, {A: Offset(11, "x")}, 5, survey)
    assert end == {A: Offset(2, "x")}
