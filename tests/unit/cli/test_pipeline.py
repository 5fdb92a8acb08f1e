"""`twinwire pipeline`: options, and what it says when something is missing. No job is run."""

from __future__ import annotations

import importlib
import importlib.util
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from broker.cli.pipeline import pipeline
from broker.spark.archive.manifest import Manifest
from broker.spark.jobs import command
from broker.spark.jobs.errors import JobError

ROOT = Path(__file__).resolve().parents[3]
ARCHIVE = ["archive", "--servers", "127.0.0.1:1", "--topics", "orders"]


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(pipeline, list(arguments))


def last_line(result: Result) -> str:
    return result.output.strip().splitlines()[-1]


def test_the_jobs_are_listed_and_each_has_help() -> None:
    listed = invoke("--help").output
    for name in pipeline.list_commands(click.Context(pipeline)):  # type: ignore[attr-defined]
        assert f"  {name} " in listed
        assert "--master" in invoke(name, "--help").output


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["archive", "DIR", "--topics", "t"], "Missing option '--servers'"),
        (["archive", "DIR", "--servers", "a"], "--topics or --pattern"),
        ([*ARCHIVE, "DIR", "--pattern", "x"], "--topics or --pattern"),
        ([*ARCHIVE, "DIR", "--once", "--every", "1m"], "--once or --every"),
        ([*ARCHIVE, "DIR", "--every", "soon"], "invalid duration 'soon'"),
        ([*ARCHIVE, "DIR", "--conf", "x"], "KEY=VALUE"),
    ],
)
def test_what_cannot_be_meant(arguments: list[str], text: str) -> None:
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert text in result.output


def test_without_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    result = invoke(*ARCHIVE, str(tmp_path))
    assert result.exit_code == 1
    assert last_line(result) == (
        "Error: pyspark is not installed: run pip install 'twinwire[spark]'"
    )


def test_without_java(tmp_path: Path) -> None:
    """As a process of its own: a session that other tests here began would be taken."""
    pytest.importorskip("pyspark")
    result = subprocess.run(
        [sys.executable, "-m", "broker", "pipeline", *ARCHIVE, str(tmp_path)],
        env={"PATH": str(tmp_path), "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert result.returncode == 1
    assert result.stderr.splitlines()[-1].startswith("Error: Java was not found")


@pytest.mark.parametrize(
    "arguments",
    [
        [*ARCHIVE, "--on-loss", "gap", "--hold-ttl", "1d", "--no-hold"],
        [*ARCHIVE, "--format", "delta", "--option", "a=b", "--checkpoint", "c"],
        ["compact", "--topics", "a,b", "--after", "2h", "--file-mib", "64"],
        ["replay", "--servers", "a:1", "--replay-id", "x", "--to", "{topic}"],
        ["replay", "--servers", "a:1", "--replay-id", "x", "--to", "y", "--topics", "a,b",
         "--since", "6h", "--until", "2026-11-21", "--subject", "a.>", "--where", "true",
         "--rate", "5"],
        ["rollup", "--servers", "a:1", "--topics", "a", "--events", "e", "--window", "5m",
         "--since", "1d", "--until", "2026-11-21", "--report", "r.html", "--report-days", "2"],
        ["rollup", "--archive", "x", "--pattern", ".*", "--every", "1h"],
        ["windows", "--servers", "a:1", "--pattern", ".*", "--checkpoint", "c", "--rocksdb",
         "--window", "1m", "--late", "5m", "--subject", "a.*", "--every", "10s"],
    ],
)  # fmt: skip
def test_options_are_taken_as_far_as_spark(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_session(_job: command.Job, name: str, **_: object) -> None:
        raise JobError(f"{name} would start")

    names = [f"jobs.{arguments[0]}"] + ["archive.table"] * ("--format" in arguments)
    for name in names:
        module = importlib.import_module(f"broker.spark.{name}")
        monkeypatch.setattr(module, "session", no_session)
    Manifest(tmp_path).create()
    result = invoke(arguments[0], str(tmp_path), *arguments[1:])
    assert last_line(result) == f"Error: {arguments[0]} would start"


@pytest.mark.parametrize("name", ["compact", "replay"])
def test_no_archive(name: str, tmp_path: Path) -> None:
    more = ["--servers", "a:1", "--replay-id", "x", "--to", "y"] if name == "replay" else []
    result = invoke(name, str(tmp_path), *more)
    assert (result.exit_code, "is not an archive" in last_line(result)) == (1, True)


def job(*arguments: str) -> command.Job:
    found: list[command.Job] = []

    @click.command()
    @command.job_options(topics=True, times=True)
    def take(job: command.Job, **_: Any) -> None:
        found.append(job)

    take.main(list(arguments), standalone_mode=False)
    return found[0]


def test_common_options() -> None:
    given = job(
        "--servers", "a:1,b:2", "--token-file", "/t", "--pattern", "x.*", "--every", "90s",
        "--master", "spark://m:7077", "--conf", "spark.executor.memory=2g", "--tls-ca", "/ca",
    )  # fmt: skip
    assert given.access.servers == ("a:1", "b:2")
    assert given.access.options.token_file == "/t"
    assert given.access.options.tls is not None
    assert given.wanted.pattern == "x.*"
    assert given.every_s == 90
    settings = command.settings(given, submitted=False)
    assert settings["spark.master"] == "spark://m:7077"
    assert settings["spark.executor.memory"] == "2g"
    assert "spark.ui.enabled" not in settings


def test_on_this_machine_and_under_spark_submit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    given = job("--servers", "a:1", "--topics", "t")
    local = command.settings(given, submitted=False)
    assert (local["spark.master"], local["spark.ui.enabled"]) == ("local[*]", "false")
    assert local["spark.sql.session.timeZone"] == "UTC"
    assert "spark.master" not in command.settings(given, submitted=True)
    assert "spark.driver.extraJavaOptions" not in local
    light = command.settings(given, submitted=False, light=True)
    assert "TieredStopAtLevel" in light["spark.driver.extraJavaOptions"]


def test_times() -> None:
    def convert(text: str) -> datetime:
        return command.Time().convert(text, None, None)

    assert convert("2026-11-21") == datetime(2026, 11, 21, tzinfo=UTC)
    assert convert("2026-11-21T15:04:05+01:00").astimezone(UTC).hour == 14
    assert abs(datetime.now(UTC) - timedelta(hours=6) - convert("6h")) < timedelta(minutes=1)
    with pytest.raises(click.BadParameter, match="invalid time"):
        convert("yesterday")
