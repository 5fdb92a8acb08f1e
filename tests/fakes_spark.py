"""Spark for jobs whose tasks return values: they run here in turn, pickled both ways."""

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

    @property
    def sparkContext(self) -> FakeSpark:  # noqa: N802
        return self

    def parallelize(self, works: Sequence[Any], slices: int) -> _Works:
        assert slices == len(works)
        return _Works(self, [pickle.dumps(work) for work in works])


class _Works:
    def __init__(self, spark: FakeSpark, works: list[bytes]) -> None:
        self.spark = spark
        self.works = works
        self.function: Callable[[Any], Any] = lambda work: work

    def map(self, function: Callable[[Any], Any]) -> _Works:
        self.function = pickle.loads(pickle.dumps(function))
        return self

    def collect(self) -> list[Any]:
        return [self._run(pickle.loads(work)) for work in self.works]

    def _run(self, work: Any) -> Any:
        self.spark.ran += 1
        if self.spark.fault is not None:
            self.spark.fault(work)
        return pickle.loads(pickle.dumps(self.function(work)))
