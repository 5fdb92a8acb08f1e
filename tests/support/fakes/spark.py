"""The part of Spark that jobs with returned values need: tasks run here one by one, pickled both
ways."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from typing import Any


class FakeSpark:
    """What the jobs ask of a session. `ran` counts tasks; `fault` may raise before one runs."""

    defaultParallelism = 1 << 20  # noqa: N815  # each work is a task

    def __init__(self, fault: Callable[[Any], None] | None = None) -> None:
        self.ran = 0
        self.fault = fault

    def __enter__(self) -> FakeSpark:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    @property
    def sparkContext(self) -> FakeSpark:  # noqa: N802
        return self

    def parallelize(self, works: Sequence[Any], slices: int) -> Tasks:
        assert slices == len(works)
        return Tasks(works, self)


class Tasks:
    def __init__(self, items: Sequence[Any], spark: FakeSpark) -> None:
        self.items = items
        self.spark = spark

    def map(self, function: Callable[[Any], Any]) -> Tasks:
        there = pickle.loads(pickle.dumps(function))
        return Tasks(
            [self._run(there, pickle.loads(pickle.dumps(i))) for i in self.items], self.spark
        )

    def collect(self) -> list[Any]:
        return [pickle.loads(pickle.dumps(item)) for item in self.items]

    def _run(self, function: Callable[[Any], Any], work: Any) -> Any:
        self.spark.ran += 1
        if self.spark.fault is not None:
            self.spark.fault(work)
        return function(work)
