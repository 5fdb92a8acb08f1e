"""Planning: every record in exactly one task, tasks of the right size."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from broker.spark.limits import PARTITION_BYTES
from broker.spark.offsets import OffsetRange, TopicPartition
from broker.spark.options import Splitting
from broker.spark.source.planning import plan
from broker.spark.topics import BrokerRange


def piece(topic: str, start: int, end: int, server: int = 0, size: float = 256.0) -> BrokerRange:
    return BrokerRange(OffsetRange(topic, server, "inc", start, end), server, "b", size)


def seqs_of(one: BrokerRange) -> list[tuple[TopicPartition, int]]:
    found = one.range
    return [(found.topic_partition, seq) for seq in range(found.start, found.end)]


def sizes(tasks: list[tuple[BrokerRange, ...]]) -> list[int]:
    return [sum(one.seqs for one in task) for task in tasks]


def test_a_large_topic_is_cut() -> None:
    tasks = plan([piece("t", 1, 4_000_001)], Splitting())
    assert sizes(tasks) == [500_000] * 8


def test_small_topics_are_packed() -> None:
    topics = [piece(f"t{n:04}", 1, 101) for n in range(1000)]
    tasks = plan(topics, Splitting())
    assert len(tasks) == 1
    assert len(tasks[0]) == 1000


def test_a_small_read_uses_more_than_one_core() -> None:
    assert sizes(plan([piece("t", 1, 500_001)], Splitting())) == [250_000] * 2


def test_min_partitions() -> None:
    tasks = plan([piece("t", 1, 11)], Splitting(partitions_min=4))
    assert sorted(sizes(tasks)) == [2, 2, 3, 3]
    assert sizes(plan([piece("t", 5, 7)], Splitting(partitions_min=10))) == [1, 1]


def test_large_records_make_small_tasks() -> None:
    tasks = plan([piece("t", 1, 1001, size=1 << 20)], Splitting())
    assert max(sizes(tasks)) <= PARTITION_BYTES >> 20


def test_a_task_stays_with_one_broker() -> None:
    tasks = plan([piece("t", 1, 101), piece("t", 1, 101, server=1)], Splitting())
    assert [{one.server for one in task} for task in tasks] == [{0}, {1}]


def test_nothing_to_read() -> None:
    assert plan([], Splitting()) == []
    assert plan([piece("t", 5, 5)], Splitting(partitions_min=3)) == []


RANGES = st.lists(
    st.tuples(st.integers(0, 3), st.integers(1, 10**6), st.integers(0, 3000), st.floats(1.0, 1e6)),
    max_size=12,
)


@given(RANGES, st.integers(1, 700), st.integers(1, 40))
def test_every_seq_once(ranges: list[tuple[int, int, int, float]], most: int, least: int) -> None:
    pieces = [
        piece(f"t{n}", start, start + count, server, size)
        for n, (server, start, count, size) in enumerate(ranges)
    ]
    tasks = plan(pieces, Splitting(partitions_min=least, records_per_partition=most))
    read = [seq for task in tasks for one in task for seq in seqs_of(one)]
    wanted = [seq for one in pieces for seq in seqs_of(one)]
    assert len(read) == len(set(read))
    assert set(read) == set(wanted)
    assert all(len({one.server for one in task}) == 1 for task in tasks)
    for task in tasks:
        assert all(one.seqs <= most for one in task)
