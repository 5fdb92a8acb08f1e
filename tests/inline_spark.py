"""As much of Spark as the archive needs, in this process: tasks are pickled and run in turn."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from typing import Any


class Tasks:
    def __init__(self, items: Sequence[Any]) -> None:
        self.items = items

    def map(self, function: Callable[[Any], Any]) -> Tasks:
        return Tasks([function(pickle.loads(pickle.dumps(item))) for item in self.items])

    def collect(self) -> list[Any]:
        return [pickle.loads(pickle.dumps(item)) for item in self.items]


class InlineSpark:
    """Instead of a SparkSession."""

    defaultParallelism = 2  # noqa: N815

    @property
    def sparkContext(self) -> InlineSpark:  # noqa: N802
        return self

    def parallelize(self, items: Sequence[Any], _partitions: int) -> Tasks:
        return Tasks(items)
