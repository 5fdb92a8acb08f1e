"""Tasks on Spark that are tried again while a broker restarts."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from broker.spark.jobs.errors import BROKER_DOWN, FAILED_TASK, JobError
from broker.spark.jobs.tasks import run_tasks
from broker.spark.report.limits import TASK_PATIENCE_S, TASK_RETRY_S

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Outcome(Protocol):
    """What a task returns. `failure` is empty when all is well; `retry`: later it may be."""

    failure: str
    retry: bool


Found = TypeVar("Found", bound=Outcome)
Tell = Callable[[str], None]


def spread(  # noqa: PLR0913
    spark: SparkSession,
    function: Callable[[Any], Found],
    works: Sequence[Any],
    told: Tell,
    *,
    patience_s: float = TASK_PATIENCE_S,
    wait: Callable[[float], None] = time.sleep,
) -> list[Found]:
    """Run function(work) for each, one task apiece; the results in the order of `works`."""
    results: dict[int, Found] = {}
    deadline = time.monotonic() + patience_s
    left = list(range(len(works)))
    while left:
        found = run_tasks(spark, function, [works[i] for i in left])
        failed = []
        for i, outcome in zip(left, found, strict=True):
            if not outcome.failure:
                results[i] = outcome
            elif outcome.retry:
                failed.append((i, outcome.failure))
            else:
                raise JobError(FAILED_TASK.format(text=outcome.failure))
        left = [i for i, _ in failed]
        if failed:
            text = failed[0][1]
            told(f"{len(failed)} of {len(found)} tasks wait: {text}")
            if time.monotonic() > deadline:
                raise JobError(BROKER_DOWN.format(text=text, seconds=f"{patience_s:.0f}"))
            wait(TASK_RETRY_S)
    return [results[i] for i in range(len(works))]
