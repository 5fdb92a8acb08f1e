"""Tasks that fail: tried again while a broker may come back, else reported in one line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from support.fakes.spark import FakeSpark

from broker.spark.jobs.errors import JobError
from broker.spark.jobs.tasks import error_line, spread


@dataclass
class Outcome:
    value: int = 0
    failure: str = ""
    retry: bool = False


def double(work: int) -> Outcome:
    return Outcome(2 * work)


def never(work: int) -> Outcome:
    return Outcome(failure="no broker", retry=True) if work == 2 else Outcome(work)


def wrong(work: int) -> Outcome:
    return Outcome(failure="wrong answer")


def run(function: Any, works: list[int], **more: Any) -> list[Outcome]:
    return spread(FakeSpark(), function, works, lines.append, **more)  # type: ignore[arg-type]


lines: list[str] = []


def test_results_are_in_order() -> None:
    assert [one.value for one in run(double, [3, 1, 2])] == [6, 2, 4]
    assert run(double, []) == []


def test_a_broker_that_does_not_come_back() -> None:
    lines.clear()
    waits: list[float] = []
    with pytest.raises(JobError, match="no broker"):
        run(never, [1, 2], patience_s=-1.0, wait=waits.append)
    assert lines == ["1 of 2 tasks wait: no broker"]


def test_one_that_does() -> None:
    spark = FakeSpark()

    def back(_seconds: float) -> None:
        spark.fault = None

    outcomes: list[Outcome] = []
    found = spread(spark, Flaky(), [1], lines.append, wait=back)  # type: ignore[arg-type]
    outcomes += found
    assert [one.value for one in outcomes] == [1]
    assert spark.ran == 2


class Flaky:
    """Fails the first time, wherever it runs."""

    tries = 0

    def __call__(self, work: int) -> Outcome:
        Flaky.tries += 1
        return Outcome(work) if Flaky.tries > 1 else Outcome(failure="gone", retry=True)


def test_what_does_not_get_better() -> None:
    with pytest.raises(JobError, match="a task failed: wrong answer"):
        run(wrong, [1])


def test_the_error_line() -> None:
    trace = (
        "An error occurred while calling z:org.apache.spark.api.python.PythonRDD.collectAndServe.\n"
        ": org.apache.spark.SparkException: Job aborted due to stage failure\n"
        '  File "x.py", line 3\n    AttributeError: no such thing\n\tat org.apache.spark.Error(x)\n'
    )
    assert error_line(trace) == "AttributeError: no such thing"
    assert error_line("a.b.SomeException: x\n at y") == "a.b.SomeException: x"
    trace = "[STREAM_FAILED] Query [id = 4] terminated with exception: gone\n\nPlan:\n+- ~Scan"
    assert error_line(trace) == trace.splitlines()[0]
    trace = (
        "o1.start.\n: a.b.XException: [NOT_FOUND] No source: x.\n\tat a.b.C\nCaused by: DException"
    )
    assert error_line(trace) == "[NOT_FOUND] No source: x."
    assert error_line("An error occurred.\n: a.b.CError: x\n\tat y.Z(W)") == "a.b.CError: x"
    assert error_line("") == "?"
