"""Tasks on Spark that return what became of them, and what is told when they fail."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from broker.spark.jobs.errors import FAILED_TASK, JobError
from broker.spark.jobs.limits import TASKS_PER_CORE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")
R = TypeVar("R")


def run_tasks(
    spark: SparkSession, function: Callable[[T], R], works: Sequence[T], *, even: bool = False
) -> list[R]:
    """On the executors; what they return, in the order of the works. JobError.

    Works of `even` size share tasks where there are many: a task costs 50 ms of its own.
    """
    if not works:
        return []
    context = spark.sparkContext
    most = max(context.defaultParallelism * TASKS_PER_CORE, 1) if even else len(works)
    try:
        tasks = context.parallelize(works, min(len(works), most))
        found: list[R] = tasks.map(partial(_in_task, function)).collect()
    except Exception as error:
        if not is_of_spark(error):
            raise
        raise JobError(FAILED_TASK.format(text=telling_line(str(error)))) from error
    return found


def _in_task(function: Callable[[T], R], work: T) -> R:
    from broker.spark.source.memory import keep_memory  # PyArrow, which the driver may do without

    keep_memory()
    return function(work)


def is_of_spark(error: Exception) -> bool:
    """And not of the way to it. By name: neither Spark nor Py4J need be installed here."""
    module, name = type(error).__module__, type(error).__name__
    return module.startswith(("py4j", "pyspark")) and "Network" not in name


def telling_line(trace: str) -> str:
    """The line of a stack trace that says something: Python's, which stands within Java's, or the
    first of Spark's own, `[CONDITION] what it is`; plans of queries follow those."""
    lines = [line.strip() for line in trace.splitlines() if line.strip()]
    said = [line for line in lines if re.match(r"[A-Z]\w*(Error|Exception|Interrupt)\b", line)]
    spark = re.findall(r"^(?:.*?: )??(\[[A-Z][A-Z0-9_.]*\] .*)", trace, re.MULTILINE)
    frames = re.compile(r"at \S+\(|\.\.\. \d+ more")
    java = [s for s in lines if ("Exception" in s or "Error" in s) and not frames.match(s)]
    return (said[-1:] or spark[:1] or java[-1:] or lines[-1:] or ["?"])[0].lstrip(": ")
