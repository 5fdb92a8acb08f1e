"""The last lines of the log: in order, by level and text, without secrets."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from support.console import console

from broker.base.logs import fields
from broker.console import limits
from broker.console.recent import RecentLines


@pytest.fixture
def lines() -> RecentLines:
    return RecentLines()


def record(level: int, text: str) -> logging.LogRecord:
    return logging.LogRecord("broker.nsq", level, "", 0, text, (), None)


def texts(lines: RecentLines, level: str = "debug", contains: str | None = None) -> list[str]:
    return [line[4] for line in lines.page(level, contains, 0, 100)["lines"]]


def test_levels_and_texts(lines: RecentLines) -> None:
    for level, text in ((10, "one"), (20, "two"), (40, "three")):
        lines.handle(record(level, text))
    assert texts(lines) == ["one", "two", "three"]
    assert texts(lines, "info") == ["two", "three"]
    assert texts(lines, contains="TW") == ["two"]
    assert lines.page("debug", None, 2, 10)["lines"][0][4] == "three"
    assert [line[4] for line in lines.page("debug", None, 0, 1)["lines"]] == ["three"]
    assert lines.page("debug", None, 0, 1)["next"] == 3


def test_old_lines_go(lines: RecentLines) -> None:
    for number in range(limits.LOG_LINES_MAX + 5):
        lines.handle(record(20, str(number)))
    assert texts(lines, contains="nsq")[0] == str(limits.LOG_LINES_MAX + 5 - 100)
    assert len(lines.page("debug", None, 0, 10**6)["lines"]) == limits.LOG_LINES_MAX


async def test_secrets_are_hidden(tmp_path: Path) -> None:
    async with console(tmp_path) as broker:
        logging.getLogger("broker.x").warning(
            "connected to nats://ann:hunter2@host", extra=fields(token="hunter2", topic="t")
        )
        page = await broker.get("/v1/logs", level="warning", contains="connected to")
        (line,) = page["records"]
        assert "hunter2" not in line["message"]
        assert "topic=t" in line["message"]
        assert (line["level"], line["logger"]) == ("warning", "x")
