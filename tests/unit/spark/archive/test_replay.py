"""What a replay publishes, in which order, in which epochs."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.spark.archive import replay as planned
from broker.spark.archive.manifest import Change, DataFile, State
from broker.spark.archive.replay import ReplaySelection
from broker.spark.jobs.replay import epoch_records
from broker.spark.offsets import OffsetRange


def file(
    topic: str, incarnation: str, first: int, last: int, at: int, partition: int = 0
) -> DataFile:
    path = f"topic={topic}/{partition}-{incarnation}-{first}"
    return DataFile(
        path, topic, partition, incarnation, first, last, last - first + 1, 1, at, at + 9
    )


def state(*files: DataFile) -> State:
    made = State()
    made.apply(Change("archive", add=files))
    return made


FILES = (
    file("b", "x", 1, 10, 100),
    file("a", "new", 1, 5, 200),
    file("a", "old", 1, 50, 100),
    file("a", "old", 51, 60, 110),
    file("a", "q", 7, 9, 105, partition=1),
)


def test_the_line_is_by_topic_broker_age_and_offset() -> None:
    assert planned.ranges_of(state(*FILES), ReplaySelection("t")) == [
        OffsetRange("a", 0, "old", 1, 61),
        OffsetRange("a", 0, "new", 1, 6),
        OffsetRange("a", 1, "q", 7, 10),
        OffsetRange("b", 0, "x", 1, 11),
    ]
    assert planned.ranges_of(
        state(*FILES), ReplaySelection("t", ("a",), since_us=112, until_us=115)
    ) == [
        OffsetRange("a", 0, "old", 51, 61),
        OffsetRange("a", 1, "q", 7, 10),
    ]


def test_epochs_are_pieces_of_the_line() -> None:
    found = list(planned.epochs(planned.ranges_of(state(*FILES), ReplaySelection("t")), 40, 25))
    assert [[(part.number, *part.range[2:]) for part in parts] for parts in found] == [
        [(0, "old", 1, 26), (1, "old", 26, 41)],
        [(0, "old", 41, 61), (1, "new", 1, 6), (2, "q", 7, 10), (3, "x", 1, 11)],
    ]


@given(
    st.lists(st.tuples(st.integers(1, 50), st.integers(0, 90)), max_size=5),
    st.integers(1, 70),
    st.integers(1, 40),
)
def test_epochs_have_everything_once_in_order(
    bounds: list[tuple[int, int]], records: int, part: int
) -> None:
    ranges = [
        OffsetRange(f"t{n}", 0, "i", start, start + size) for n, (start, size) in enumerate(bounds)
    ]
    found = list(planned.epochs(ranges, records, part))
    seqs = [
        (p.range.topic, n)
        for parts in found
        for p in parts
        for n in range(p.range.start, p.range.end)
    ]
    assert seqs == [(one.topic, n) for one in ranges for n in range(one.start, one.end)]
    sizes = [sum(p.range.end - p.range.start for p in parts) for parts in found]
    assert all(size == records for size in sizes[:-1])
    assert all([p.number for p in parts] == list(range(len(parts))) for parts in found)


def test_files_of_a_part_also_after_compact() -> None:
    part = planned.Part(0, OffsetRange("a", 0, "old", 45, 52))
    chosen = planned.files_of(state(*FILES), part, ReplaySelection("t"))
    assert [(one.first, one.last) for one in chosen] == [(1, 50), (51, 60)]
    merged = state(file("a", "old", 1, 60, 100))
    assert [one.last for one in planned.files_of(merged, part, ReplaySelection("t"))] == [60]


def test_a_plan_is_noted_as_it_is() -> None:
    selection = ReplaySelection("{topic}", ("a", "b"), 1, None, "x.>", "value is null", 500)
    ranges = planned.ranges_of(state(*FILES), ReplaySelection("t"))
    noted = json.loads(json.dumps(planned.dump({"to": "x"}, selection, ranges)))
    assert planned.load(noted) == ({"to": "x"}, selection, ranges)
    assert ReplaySelection.from_json(
        json.loads(json.dumps(ReplaySelection("t").to_json()))
    ) == ReplaySelection("t")


@pytest.mark.parametrize(
    ("subject", "matches", "others"),
    [
        ("orders.*.new", ["orders.eu.new"], ["orders.new", "orders.a.b.new", "xorders.eu.new"]),
        ("orders.>", ["orders.a", "orders.a.b"], ["orders", "ordersx.a"]),
        ("a+b.$x", ["a+b.$x"], ["aab.$x", "a+b.x"]),
        (">", ["a", "a.b"], [""]),
    ],
)
def test_subjects(subject: str, matches: list[str], others: list[str]) -> None:
    pattern = re.compile(planned.subject_pattern(subject))
    assert all(pattern.search(one) for one in matches)
    assert not any(pattern.search(one) for one in others)


def test_the_rate_bounds_an_epoch() -> None:
    assert [epoch_records(rate) for rate in (None, 0.1, 100, 1e9)] == [1_000_000, 1, 200, 1_000_000]
