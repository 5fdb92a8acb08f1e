"""What is said when no more files can be opened."""

from __future__ import annotations

import asyncio
import errno
import logging
import shlex
from pathlib import Path

import pytest
from support.servers.dropin import once, our_command

from broker.cli import serve
from broker.cli.serve import OpenFilesMonitor, lowest_free, until_stopped

LOG = logging.getLogger("broker.test")


def test_lowest_free() -> None:
    first = lowest_free()
    assert first >= 0
    assert lowest_free() == first  # nothing is left open


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
def test_none_is_free(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(number, "full")

    monkeypatch.setattr(serve.os, "open", full)
    assert lowest_free() == -1


def test_each_change_is_reported_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(serve.resource, "getrlimit", lambda _: (100, 100))
    files = OpenFilesMonitor(LOG)
    for used in (10, 89, 90, 95, -1, -1, 95, -1, 20, 20):
        monkeypatch.setattr(serve, "lowest_free", lambda used=used: used)
        files.check()
    full = "too many open files (100): new connections are closed at once"
    assert caplog.messages == [
        "90 of 100 files are open: few new connections are possible",
        full,
        full,
        "files can be opened again: 20 of 100 are open",
    ]


async def test_the_end_is_not_waited_for() -> None:
    stopping = asyncio.Event()
    task = asyncio.create_task(until_stopped(stopping, LOG))
    await asyncio.sleep(0)
    stopping.set()
    await asyncio.wait_for(task, 10)


@pytest.mark.parametrize("server", ["serve", "nsqd", "nats-server"])
@pytest.mark.parametrize("most", [10, 13])
def test_a_limit_that_allows_no_event_loop(server: str, most: int, tmp_path: Path) -> None:
    """One line says so, also if not even all modules can be read."""
    limit = f"ulimit -n {most}; exec {shlex.join(our_command(server))}"
    done = once(["bash", "-c", limit], cwd=tmp_path)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line == f"twinwire: {most} open files are too few: raise the limit (ulimit -n)"
