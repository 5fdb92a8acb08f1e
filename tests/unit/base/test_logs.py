"""Log lines: one record is one line, whatever is in it."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta

import pytest

from broker.base import limits, logs

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
def test_a_long_text_is_cut(lines, style: str) -> None:
    name = "token-" * limits.LOG_TEXT_MAX
    (line,) = lines(style, lambda: log.error("authentication error - User %s", name))
    assert limits.LOG_TEXT_MAX < len(line) < limits.LOG_TEXT_MAX + 200
    assert line.rstrip('"}').endswith("\u2026")


def test_no_secret_is_shown_because_of_the_cut(lines) -> None:
    text = "x" * (limits.LOG_TEXT_MAX - 20) + " http://user:s3cr3t-Hunter2@host/"
    (line,) = lines("text", lambda: log.error(text))
    assert "s3c" not in line
    assert line.endswith("\u2026")


def test_traces_have_a_limit_of_their_own(lines) -> None:
    text = "x" * 2 * limits.LOG_TEXT_MAX
    (line,) = lines("text", lambda: log.log(logs.TRACE, text), level="notset")
    assert line.endswith(text)


@pytest.mark.parametrize(
    "name",
    ["authorization=", "authorization: ", 'token="', "a://b", "secret=x\\", "Bearer 123456789012"],
)
@pytest.mark.parametrize("behind", ["", '"', "}", "\\", '\\"}', "@"])
def test_json_stays_json_without_its_secrets(lines, name: str, behind: str) -> None:
    text = name + behind
    extra = logs.fields(user=text, other="fine", token="s3cr3t-Hunter2", names=[text], n=3)
    (line,) = lines("json", lambda: log.error('User "%s"', text, extra=extra))
    found = json.loads(line)
    assert len(found["names"]) == 1
    assert (found["level"], found["other"], found["n"]) == ("error", "fine", 3)
    assert found["token"] == "***"
    assert set(found) == {
        "time",
        "level",
        "logger",
        "message",
        "user",
        "other",
        "token",
        "names",
        "n",
    }


def test_a_secret_of_two_words(lines) -> None:
    extra = logs.fields(token="s3cr3t Hunter2", n=3)
    (line,) = lines("text", lambda: log.info("asked", extra=extra))
    assert line.endswith("asked token=*** n=3")


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
