"""Which task reads what: ranges of seqs cut to size, small topics of a broker packed together.

A task costs 50 ms whatever it reads, so it should have some 250,000 records; and not more than it
can do again when it fails. A broker's ranges are laid end to end and cut where a task is full.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from broker.spark.limits import (
    PARTITION_BYTES,
    PARTITION_RECORDS_MIN,
    PARTITIONS_OF_SMALL_READS,
)
from broker.spark.offsets import Place
from broker.spark.options import Splitting


class Slice(NamedTuple):
    """Seqs [start, end) of one topic, and where they are."""

    place: Place
    inc: str
    start: int
    end: int
    server: int
    broker: str = ""
    record_bytes: float = 1.0


def plan(slices: Iterable[Slice], splitting: Splitting) -> list[tuple[Slice, ...]]:
    """The tasks, each with what it reads in order."""
    wanted = sorted(one for one in slices if one.end > one.start)
    caps = {one: _records_max(one, splitting) for one in wanted}
    load = sum((one.end - one.start) / caps[one] for one in wanted)
    total = sum(one.end - one.start for one in wanted)
    least = max(
        splitting.partitions_min,
        min(total // PARTITION_RECORDS_MIN, PARTITIONS_OF_SMALL_READS),
    )
    factor = min(load / least, 1.0)  # a full task, in units of `caps`
    tasks: list[tuple[Slice, ...]] = []
    for server in sorted({one.server for one in wanted}):
        mine = [one for one in wanted if one.server == server]
        tasks += _cut(mine, {one: caps[one] * factor for one in mine})
    return tasks


def _records_max(one: Slice, splitting: Splitting) -> float:
    by_bytes = PARTITION_BYTES / max(one.record_bytes, 1.0)
    return max(min(splitting.records_per_partition, by_bytes), 1.0)


def _cut(slices: list[Slice], caps: dict[Slice, float]) -> list[tuple[Slice, ...]]:
    """Lay the slices of one broker end to end and cut them into equal tasks."""
    load = sum((one.end - one.start) / caps[one] for one in slices)
    count = max(1, math.ceil(load - 1e-9))
    tasks: list[list[Slice]] = [[] for _ in range(count)]
    before = 0.0  # the load of the slices done with
    for one in slices:
        size, cap = one.end - one.start, caps[one] * load / count
        at = 0
        while at < size:
            task = min(int((before + at / cap) + 1e-9), count - 1)
            upto = math.ceil((task + 1 - before) * cap - 1e-6) if task < count - 1 else size
            upto = min(max(upto, at + 1), size)
            tasks[task].append(one._replace(start=one.start + at, end=one.start + upto))
            at = upto
        before += size / cap
    return [tuple(task) for task in tasks if task]
