"""Division of a read into tasks: ranges are split, small topics of a broker share a task.

A task costs 50 ms, however much it reads, so it should have some 250,000 records; but it has to
repeat all of them after a failure. A broker's ranges are concatenated and split where a task is
full.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from broker.spark.limits import (
    PARTITION_BYTES,
    PARTITION_RECORDS_MIN,
    PARTITIONS_OF_SMALL_READS,
)
from broker.spark.options import Splitting
from broker.spark.topics import BrokerRange


def plan(ranges: Iterable[BrokerRange], splitting: Splitting) -> list[tuple[BrokerRange, ...]]:
    """The tasks, each with the ranges that it reads in order."""
    nonempty = sorted(one for one in ranges if one.seqs > 0)
    caps = {one: _records_max(one, splitting) for one in nonempty}
    load = sum(one.seqs / caps[one] for one in nonempty)
    total = sum(one.seqs for one in nonempty)
    least = max(
        splitting.partitions_min,
        min(total // PARTITION_RECORDS_MIN, PARTITIONS_OF_SMALL_READS),
    )
    factor = min(load / least, 1.0)  # a full task, in units of `caps`
    tasks: list[tuple[BrokerRange, ...]] = []
    for server in sorted({one.server for one in nonempty}):
        of_server = [one for one in nonempty if one.server == server]
        tasks += _cut(of_server, {one: caps[one] * factor for one in of_server})
    return tasks


def _records_max(one: BrokerRange, splitting: Splitting) -> float:
    by_bytes = PARTITION_BYTES / max(one.record_bytes, 1.0)
    return max(min(splitting.records_per_partition, by_bytes), 1.0)


def _cut(
    ranges: list[BrokerRange], caps: dict[BrokerRange, float]
) -> list[tuple[BrokerRange, ...]]:
    """Concatenate the ranges of one broker and split them into equal tasks."""
    load = sum(one.seqs / caps[one] for one in ranges)
    count = max(1, math.ceil(load - 1e-9))
    tasks: list[list[BrokerRange]] = [[] for _ in range(count)]
    before = 0.0  # the load of the ranges before this one
    for one in ranges:
        size, cap, start = one.seqs, caps[one] * load / count, one.range.start
        at = 0
        while at < size:
            task = min(int((before + at / cap) + 1e-9), count - 1)
            upto = math.ceil((task + 1 - before) * cap - 1e-6) if task < count - 1 else size
            upto = min(max(upto, at + 1), size)
            piece = one.range._replace(start=start + at, end=start + upto)
            tasks[task].append(one._replace(range=piece))
            at = upto
        before += size / cap
    return [tuple(task) for task in tasks if task]
