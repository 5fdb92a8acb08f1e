"""Log lines: one record is one line, whatever is in it."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta

import pytest

from broker import logs

log = logging.getLogger("broker.server")


@pytest.fixture
def lines() -> Iterator[Callable[..., list[str]]]:
    root = logging.getLogger()
    before, level, raising = root.handlers[:], root.level, logging.raiseExceptions
    stream = io.StringIO()

    def record(style: str, *calls: Callable[[], None], level: str = "info") -> list[str]:
        logs.setup(level, style, utc=True, stream=stream)
        for call in calls:
            call()
        return stream.getvalue().splitlines()

    yield record
    root.handlers[:] = before
    root.setLevel(level)
    logging.raiseExceptions = raising


def test_text(lines) -> None:
    extra = logs.fields(nats="127.0.0.1:4222", name="two words", empty="", n=3)
    (line,) = lines("text", lambda: log.info("twinwire %s ready", "1.0", extra=extra))
    time, rest = line.split(" ", 1)
    assert datetime.fromisoformat(time).utcoffset() == timedelta(0)
    assert rest == (
        'INFO server: twinwire 1.0 ready nats=127.0.0.1:4222 name="two words" empty="" n=3'
    )


def test_json(lines) -> None:
    extra = logs.fields(topic="a", level="cannot replace")
    (line,) = lines("json", lambda: log.warning("slow %s", "disk", extra=extra))
    found = json.loads(line)
    assert datetime.fromisoformat(found.pop("time"))
    assert found == {
        "level": "warning",
        "logger": "server",
        "message": "slow disk",
        "topic": "a",
    }


@pytest.mark.parametrize("style", ["text", "json"])
def test_a_client_cannot_forge_a_line(lines, style: str) -> None:
    evil = 'x"\n2026-01-01 INFO server: fine\x1b[2J\u2028\ud800'
    extra = logs.fields(client=evil)
    found = lines(style, lambda: log.info("name %s", evil, extra=extra))
    assert len(found) == 1
    assert "\x1b" not in found[0]


def test_level(lines) -> None:
    calls = (lambda: log.info("quiet"), lambda: log.error("loud"))
    assert [line.split(" ")[-1] for line in lines("text", *calls, level="error")] == ["loud"]


@pytest.mark.parametrize("style", ["text", "json"])
def test_exception(lines, style: str) -> None:
    def fail() -> None:
        try:
            raise RuntimeError("broken")
        except RuntimeError:
            log.exception("oh")

    found = lines(style, fail)
    assert "oh" in found[0]
    assert "RuntimeError: broken" in found[-1]
    assert style == "text" or len(found) == 1
