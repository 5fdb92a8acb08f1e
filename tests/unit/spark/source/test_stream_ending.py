"""How jobs end before their end: by a signal, or because Java is gone."""

from __future__ import annotations

import importlib.util
import logging
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from support.fakes.spark import FakeSpark

from broker.cli.pipeline import pipeline
from broker.spark.jobs import archive, command, windows
from broker.spark.jobs.command import Job, ends_with_signals, until_started
from broker.spark.jobs.errors import JobError
from broker.spark.jobs.tasks import error_line, run_tasks
from broker.spark.offsets import TopicPartition
from broker.spark.options import Wanted
from broker.spark.topics import Entry, Survey, unseen


@pytest.fixture
def handlers() -> Iterator[None]:
    had = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in had.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("handlers")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_one_signal_ends_gently_and_two_at_once(
    number: int, capfd: pytest.CaptureFixture[str]
) -> None:
    stop = threading.Event()
    ends_with_signals(stop, "archive")
    os.kill(os.getpid(), number)
    assert stop.is_set()
    assert "archive: stopping after this batch" in capfd.readouterr().err
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), number)


@pytest.mark.usefixtures("handlers")
def test_a_signal_waits_for_spark_to_start(capfd: pytest.CaptureFixture[str]) -> None:
    had = signal.getsignal(signal.SIGTERM)
    steps = []

    def start(*numbers: int) -> None:
        with until_started("replay"):
            for number in numbers:
                os.kill(os.getpid(), number)
                steps.append(number)

    with pytest.raises(KeyboardInterrupt):
        start(signal.SIGTERM)
    assert "replay: stopping once Spark has started" in capfd.readouterr().err
    assert signal.getsignal(signal.SIGTERM) is had
    with pytest.raises(KeyboardInterrupt):
        start(signal.SIGINT, signal.SIGINT)
    assert steps == [signal.SIGTERM, signal.SIGINT]  # the second one ends it at once


def test_a_line_of_a_trace_that_says_something() -> None:
    text = "java.lang.SomeException: it ended\n\tat a.ErrorUtils.x(Error.scala:9)\n\t... 5 more"
    assert error_line(text) == "java.lang.SomeException: it ended"


def test_java_that_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Py4J's errors are not JobErrors of a task: the job says that Spark has ended."""
    pyspark = pytest.importorskip("pyspark.sql")
    gone = ConnectionRefusedError(111, "Connection refused")

    class Builder:
        def appName(self, _name: str) -> Builder:  # noqa: N802
            return self

        def config(self, _key: str, _value: str) -> Builder:
            return self

        def getOrCreate(self) -> Stopping:  # noqa: N802
            return Stopping()

    class Stopping(FakeSpark):
        def stop(self) -> None:
            raise gone

    class Session:
        builder = Builder()

        @staticmethod
        def getActiveSession() -> None:  # noqa: N802
            return None

    monkeypatch.setattr(pyspark, "SparkSession", Session)
    monkeypatch.setenv("JAVA_HOME", "/nowhere")  # no Java is started here
    with (
        pytest.raises(JobError, match="Spark ended before the job"),
        command.session(Job({}, {}), "x"),
    ):
        raise gone
    network = pytest.importorskip("py4j.protocol").Py4JNetworkError(
        "Answer from Java side is empty"
    )

    def fail(_work: object) -> None:
        raise network

    with pytest.raises(JobError, match="Spark ended"), command.session(Job({}, {}), "x"):
        run_tasks(FakeSpark(fail), len, ["a"])  # type: ignore[arg-type]
    with pytest.raises(JobError, match="other"), command.session(Job({}, {}), "x"):
        raise JobError("other")  # and not what `stop` raised behind it


def test_what_is_wrong_is_reported_before_spark_starts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(command, "needs", lambda _module: pytest.fail("Spark was started"))
    for words in (["--servers", "x:1", "--pattern", "(["], ["--servers", "x:y", "--topics", "t"]):
        result = CliRunner().invoke(pipeline, ["archive", str(tmp_path / "a"), *words])
        assert (result.exit_code, result.output.count("\n")) == (1, 1)
        assert "subscribePattern" in result.output or "servers" in result.output
    words = ["--servers", "x:1", "--topics", "t"]
    result = CliRunner().invoke(pipeline, ["windows", str(tmp_path / "a"), *words])
    assert "--checkpoint" in result.output
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("given", "parts"), [((), "8"), (("--conf",), "200")])
def test_the_state_of_windows_has_few_parts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, given: tuple[str, ...], parts: str
) -> None:
    asked: list[dict[str, str]] = []

    def session(job: Job, _name: str) -> None:
        asked.append(command.settings(job, submitted=False))
        raise JobError("seen")

    monkeypatch.setattr(windows, "session", session)
    words = [str(tmp_path), "--servers", "x:1", "--topics", "t", "--checkpoint", "c"]
    words += [*given, *("spark.sql.shuffle.partitions=200" for _ in given)]
    assert "seen" in CliRunner().invoke(pipeline, ["windows", *words]).output
    assert asked[0]["spark.sql.shuffle.partitions"] == parts


def test_topics_that_nobody_has() -> None:
    entry = Entry(TopicPartition("a", 0), "i", 1, 2, 3, 0)
    survey = Survey({entry.tp: entry})
    (text,) = unseen(Wanted(names=("a", "b")), survey)
    assert "'b'" in text
    assert unseen(Wanted(pattern="a+"), survey) == []
    (text,) = unseen(Wanted(pattern="b+"), Survey({}))
    assert "matches b+," in text
    assert unseen(Wanted(names=("b",)), Survey({}, down=("x",))) == []  # who knows


def test_a_folder_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(archive, "session", lambda *_, **_more: FakeSpark())
    (tmp_path / "file").write_text("")
    words = [str(tmp_path / "file"), "--servers", "x:1", "--topics", "t"]
    result = CliRunner().invoke(pipeline, ["archive", *words])
    assert (result.exit_code, result.output.count("\n")) == (1, 1)
    assert str(tmp_path / "file") in result.output


def test_workers_without_arrow_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    source = pytest.importorskip("pyspark_twinwire").DefaultSource
    source({})
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(ImportError, match=r"/.* has no PyArrow: set PYSPARK_PYTHON"):
        source({})


@pytest.mark.parametrize("what", ["Exception", "KeyboardInterrupt"])
def test_what_py4j_raises_is_not_logged_too(what: str) -> None:
    """As its java_gateway.py has it, on the root logger."""
    record = logging.LogRecord("root", 40, "x", 1, f"{what} while sending command.", (), None)
    assert not command._is_no_echo(record)
    assert command._is_no_echo(logging.LogRecord("root", 40, "x", 1, "else", (), None))
    gateway = pytest.importorskip("py4j.java_gateway")
    assert f"{what} while sending command." in Path(gateway.__file__).read_text()
