"""What Java logs: errors only, unless the options choose another log."""

from __future__ import annotations

from pathlib import Path

from broker.spark.jobs.command import Job, java_options, settings


def test_the_log_of_java_is_configured_from_its_first_line_on(tmp_path: Path) -> None:
    options = java_options("-Xmx1g", tmp_path)
    assert options == f"-Xmx1g -Dlog4j2.configurationFile=file://{tmp_path}/log4j2.properties"
    assert "rootLogger.level = error" in (tmp_path / "log4j2.properties").read_text()
    assert java_options("", tmp_path).startswith("-Dlog4j2")


def test_a_chosen_log_stays(tmp_path: Path) -> None:
    chosen = "-Dlog4j2.configurationFile=file:///mine"
    assert java_options(chosen, tmp_path) == chosen
    assert list(tmp_path.iterdir()) == []


def test_only_a_java_that_runs_already_gets_a_level() -> None:
    assert "spark.log.level" not in settings(Job({}, {}), submitted=False)
    assert settings(Job({}, {}), submitted=True)["spark.log.level"] == "ERROR"
