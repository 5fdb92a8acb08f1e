"""Tasks on Spark: runs them, retries them while a broker restarts, describes failures.

This is a separate module from `command` because executors import it, and they may have no click.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from broker.spark.jobs.errors import BROKER_DOWN, FAILED_TASK, JobError
from broker.spark.jobs.limits import TASK_PATIENCE_S, TASK_RETRY_S, TASKS_PER_CORE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")
R = TypeVar("R")


Reporter = Callable[[str], None]


def run_tasks(
    spark: SparkSession, function: Callable[[T], R], works: Sequence[T], *, same_size: bool = False
) -> list[R]:
    """Run `function` for each work on the executors; the results in the order of `works`. JobError.

    `same_size`: the works take equally long; if there are many, they share tasks, because each task
    costs 50 ms.
    """
    if not works:
        return []
    context = spark.sparkContext
    tasks_max = max(context.defaultParallelism * TASKS_PER_CORE, 1) if same_size else len(works)
    try:
        tasks = context.parallelize(works, min(len(works), tasks_max))
        found: list[R] = tasks.map(partial(_in_task, function)).collect()
    except Exception as error:
        if not is_of_spark(error):
            raise
        raise JobError(FAILED_TASK.format(text=error_line(str(error)))) from error
    return found


def _in_task(function: Callable[[T], R], work: T) -> R:
    from broker.spark.memory import keep_memory  # PyArrow, which the driver may lack

    keep_memory()
    return function(work)


def is_of_spark(error: Exception) -> bool:
    """Whether Spark raised the error, and not the connection to Spark. Checked by name, because
    Spark and Py4J may not be installed here."""
    module, name = type(error).__module__, type(error).__name__
    return module.startswith(("py4j", "pyspark")) and "Network" not in name


def error_line(trace: str) -> str:
    """The line of a stack trace that describes the error: Python's, which is inside Java's, or the
    first of Spark's own, `[CONDITION] text`, which a query plan follows."""
    lines = [line.strip() for line in trace.splitlines() if line.strip()]
    raised = [line for line in lines if re.match(r"[A-Z]\w*(Error|Exception|Interrupt)\b", line)]
    spark = re.findall(r"^(?:.*?: )??(\[[A-Z][A-Z0-9_.]*\] .*)", trace, re.MULTILINE)
    frames = re.compile(r"at \S+\(|\.\.\. \d+ more")
    java = [s for s in lines if ("Exception" in s or "Error" in s) and not frames.match(s)]
    return (raised[-1:] or spark[:1] or java[-1:] or lines[-1:] or ["?"])[0].lstrip(": ")


class Outcome(Protocol):
    """The result of a task. `failure` is empty after success; `retry`: another attempt may
    succeed."""

    failure: str
    retry: bool


Found = TypeVar("Found", bound=Outcome)


def spread(  # noqa: PLR0913
    spark: SparkSession,
    function: Callable[[Any], Found],
    works: Sequence[Any],
    reporter: Reporter,
    *,
    patience_s: float = TASK_PATIENCE_S,
    wait: Callable[[float], None] = time.sleep,
) -> list[Found]:
    """Run `function` for each work in a task of its own, and retry while brokers are down; the
    results in the order of `works`. JobError."""
    results: dict[int, Found] = {}
    deadline = time.monotonic() + patience_s
    pending = list(range(len(works)))
    while pending:
        found = run_tasks(spark, function, [works[i] for i in pending])
        failed = []
        for i, outcome in zip(pending, found, strict=True):
            if not outcome.failure:
                results[i] = outcome
            elif outcome.retry:
                failed.append((i, outcome.failure))
            else:
                raise JobError(FAILED_TASK.format(text=outcome.failure))
        pending = [i for i, _ in failed]
        if failed:
            text = failed[0][1]
            reporter(f"{len(failed)} of {len(found)} tasks wait: {text}")
            if time.monotonic() > deadline:
                raise JobError(BROKER_DOWN.format(text=text, seconds=f"{patience_s:.0f}"))
            wait(TASK_RETRY_S)
    return [results[i] for i in range(len(works))]
