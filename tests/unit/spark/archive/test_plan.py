"""What a batch reads, and what has become of logs since the last one."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from broker.spark.archive import plan as planned
from broker.spark.archive.manifest import Change, Gap, State
from broker.spark.archive.plan import Batch
from broker.spark.jobs.errors import JobError
from broker.spark.offsets import Offset, OffsetRange, TopicPartition
from broker.spark.options import Splitting, Wanted
from broker.spark.topics import Entry, Survey

T = TopicPartition("t", 0)
WANTED = Wanted(names=("t", "u"))


def survey(first: int = 1, behind: int = 100, incarnation: str = "a", **more: object) -> Survey:
    return Survey({T: Entry(T, incarnation, first, behind, 10_000, 0, "b")}, **more)


def state(seq: int | None, incarnation: str = "a", gaps: tuple[Gap, ...] = ()) -> State:
    offsets = {} if seq is None else {T: Offset(seq, incarnation)}
    return State(version=1, offsets=offsets, gaps=list(gaps))


def test_on_from_the_last_version() -> None:
    start = planned.begin(state(42), survey(), WANTED)
    assert start.offsets == {T: Offset(42, "a")}
    assert start.gaps == ()
    assert planned.targets(start, survey(), None) == {T: Offset(100, "a")}


def test_a_new_topic_begins_at_its_earliest_and_the_first_run_where_configured() -> None:
    assert planned.begin(state(None), survey(7), WANTED).offsets == {T: Offset(7, "a")}
    after = State()
    after.apply(planned.starting_change(survey(7)))
    assert planned.begin(after, survey(7), WANTED) == planned.Start({T: Offset(100, "a")}, ())


def test_the_deleted_beginning_of_a_stream_is_no_gap() -> None:
    seen = survey(50)
    seen.entries[T] = replace(seen.entries[T], stream=True)
    assert planned.begin(state(10), seen, WANTED) == planned.Start({T: Offset(50, "a")}, ())


def test_trimmed_records_are_a_gap_and_count_as_covered() -> None:
    start = planned.begin(state(10), survey(50), WANTED)
    assert start.offsets == {T: Offset(50, "a")}
    gap = Gap("t", 0, "a", 10, 50, "trimmed")
    assert start.gaps == (gap,)
    batch = planned.next_batch(
        start, planned.targets(start, survey(50), None), survey(50), 30, Splitting()
    )
    assert batch is not None
    assert batch.ranges == (OffsetRange("t", 0, "a", 10, 80),)
    after = state(10)
    after.apply(Change("archive", gaps=batch.gaps, ranges=batch.ranges))
    assert planned.begin(after, survey(50), WANTED).gaps == ()
    with pytest.raises(
        JobError, match=r"topic t \(0\): records 10 to 49 were removed .* --on-loss"
    ):
        planned.refuse(start.gaps)


def test_only_a_gap_moves_on_too() -> None:
    start = planned.begin(state(10), survey(50, 50), WANTED)
    batch = planned.next_batch(
        start, planned.targets(start, survey(50, 50), None), survey(50, 50), 30, Splitting()
    )
    assert batch is not None
    assert batch.tasks == ()
    after = state(10)
    after.apply(Change("archive", gaps=batch.gaps, ranges=batch.ranges))
    assert planned.begin(after, survey(60), WANTED).gaps == (Gap("t", 0, "a", 50, 60, "trimmed"),)


def test_a_log_made_anew_is_read_from_its_beginning() -> None:
    start = planned.begin(state(42), survey(incarnation="b"), WANTED)
    assert start.offsets == {T: Offset(1, "b")}
    assert start.gaps == (Gap("t", 0, "a", 42, 42, "made anew"),)


def test_a_log_that_was_set_back_gives_no_offset_twice() -> None:
    start = planned.begin(state(42), survey(1, 30), WANTED)
    assert start.offsets == {T: Offset(42, "a")}
    assert start.gaps == (Gap("t", 0, "a", 30, 42, "set back"),)
    assert planned.targets(start, survey(1, 30), None) == {T: Offset(42, "a")}
    known = state(42, gaps=start.gaps)
    assert planned.begin(known, survey(1, 35), WANTED).gaps == ()  # it grows again
    assert planned.begin(known, survey(1, 60), WANTED).offsets == {T: Offset(42, "a")}


def test_a_topic_that_is_gone() -> None:
    gone = Survey({}, frozenset({0}))
    assert planned.begin(state(42), gone, WANTED).gaps == (Gap("t", 0, "a", 42, 42, "deleted"),)
    down = Survey({}, frozenset(), ("b:4171",))
    assert planned.begin(state(42), down, WANTED).gaps == ()
    assert planned.begin(state(42), gone, Wanted(names=("u",))).gaps == ()
    known = state(42, gaps=(Gap("t", 0, "a", 42, 42, "deleted"),))
    assert planned.begin(known, gone, WANTED).gaps == ()


def test_a_run_with_an_end_reads_no_further_and_nothing_new() -> None:
    start = planned.begin(state(42), survey(behind=500), WANTED)
    assert planned.targets(start, survey(behind=500), {T: Offset(90, "a")}) == {T: Offset(90, "a")}
    assert planned.targets(start, survey(behind=500), {T: Offset(90, "b")}) == {T: Offset(42, "a")}
    assert planned.targets(start, survey(behind=500), {}) == {T: Offset(42, "a")}
    assert planned.targets(start, survey(behind=500), {T: Offset(7, "a")}) == {T: Offset(42, "a")}


def test_batches_follow_one_another_without_hole_or_overlap() -> None:
    now, seen = state(None), []
    found = survey(1, 1_000_001)
    while True:
        start = planned.begin(now, found, WANTED)
        target = planned.targets(start, found, found.latest())
        batch = planned.next_batch(
            start, target, found, 300_000, Splitting(records_per_partition=70_000)
        )
        if batch is None:
            break
        pieces = sorted(one for task in batch.tasks for one in task)
        assert max(one.end - one.start for one in pieces) <= 70_000
        seen += pieces
        now.apply(Change("archive", batch.id, ranges=batch.ranges))
    assert [one.start for one in seen] == [1, *(one.end for one in seen[:-1])]
    assert seen[-1].end == 1_000_001
    assert now.ranges == [OffsetRange("t", 0, "a", 1, 1_000_001)]


def test_a_batch_is_noted_as_it_is() -> None:
    tasks = (
        (OffsetRange("t", 0, "a", 1, 5), OffsetRange("u", 1, "b", 3, 9)),
        (OffsetRange("t", 0, "a", 5, 7),),
    )
    batch = Batch("x", tasks, (Gap("t", 0, "a", 0, 1, "trimmed"),))
    assert Batch.from_json(json.loads(json.dumps(batch.to_json()))) == batch
    assert batch.records == 12
    assert batch.ranges == (OffsetRange("t", 0, "a", 0, 7), OffsetRange("u", 1, "b", 3, 9))
