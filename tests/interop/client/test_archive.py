"""`twinwire archive`: what is finished is in the files, whatever happens."""

from __future__ import annotations

import gzip
import os
import resource
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from support import Server
from support.clients.http import nsq_channel, request
from support.clients.inbox import WAIT_S
from support.clients.lookup import eventually

from broker.cli.tools import archive as command
from broker.cli.tools.archive import Archive, Layout, LayoutError
from broker.cli.tools.topics import Ending, Source
from broker.client.nsq import Options

Run = Any


def _publish(server: Server, topic: str, bodies: list[bytes]) -> None:
    request(server.nsq_http, "POST", "/channel/create", topic=topic, channel="archive")
    answer = request(server.nsq_http, "POST", f"/mpub?topic={topic}", b"\n".join(bodies))
    assert answer.status == 200
    # the original moves them there in its own time
    _wait(lambda: nsq_channel(server.nsq_http, topic, "archive")["message_count"] == len(bodies))


def _prepare(server: Server, topic: str, bodies: list[bytes]) -> None:
    request(server.nsq_http, "POST", "/topic/create", b"", topic=topic)
    _publish(server, topic, bodies)


def _start(tool: Run, server: Server, topic: str, folder: Path, *more: str) -> Any:
    address = ("--nsqd-tcp-address", str(server.nsq))
    return tool("archive", "--topic", topic, "--output-dir", str(folder), *address, *more)


def _lines(folder: Path) -> list[bytes]:
    found: list[bytes] = []
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            data = path.read_bytes()
            data = gzip.decompress(data) if path.suffix == ".gz" else data
            found += data.split(b"\n")[:-1]  # behind the last end is at most a torn line
    return found


def _drained(server: Server, topic: str) -> bool:
    channel = nsq_channel(server.nsq_http, topic, "archive")
    return bool(
        channel and channel["depth"] + channel["in_flight_count"] + channel["deferred_count"] == 0
    )


def _wait(condition: Any) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline


@pytest.mark.parametrize("more", [(), ("--gzip",), ("--rotate-size", "2000")])
def test_every_message_is_a_line(
    tool: Run, server: Server, tmp_path: Path, uniq: str, more: tuple[str, ...]
) -> None:
    bodies = [b"message %d" % n for n in range(1000)]
    _prepare(server, uniq, bodies)
    process = _start(tool, server, uniq, tmp_path / "out", *more)
    _wait(lambda: _drained(server, uniq))
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=WAIT_S)
    assert (process.returncode, err) == (0, b"")
    assert sorted(_lines(tmp_path / "out")) == sorted(bodies)
    if "--rotate-size" in more:
        assert len(list((tmp_path / "out").iterdir())) > 2


def test_files_are_moved_when_complete(
    tool: Run, server: Server, tmp_path: Path, uniq: str
) -> None:
    out, work = tmp_path / "out", tmp_path / "work"
    _prepare(server, uniq, [b"x"])
    process = _start(tool, server, uniq, out, "--work-dir", str(work))
    _wait(lambda: _drained(server, uniq))
    assert _lines(work) == [b"x"]
    assert not _lines(out)
    process.send_signal(signal.SIGHUP)
    _wait(lambda: _lines(out) == [b"x"])
    process.send_signal(signal.SIGTERM)
    assert process.wait(WAIT_S) == 0


def test_killed_again_and_again(tool: Run, server: Server, tmp_path: Path, uniq: str) -> None:
    bodies = [b"%d" % n for n in range(3000)]
    _prepare(server, uniq, bodies)
    for part in range(1, 4):
        process = _start(
            tool,
            server,
            uniq,
            tmp_path,
            "--consumer-opt",
            "msg_timeout=1s",
            "--max-in-flight",
            "20",
        )
        _wait(lambda part=part: len(set(_lines(tmp_path))) >= 500 * part)
        process.kill()
        process.wait(WAIT_S)
    process = _start(tool, server, uniq, tmp_path, "--consumer-opt", "msg_timeout=1s")
    # on a slow machine the others may have archived everything: this one is awake with the last
    assert request(server.nsq_http, "POST", f"/pub?topic={uniq}", b"last").status == 200
    _wait(lambda: b"last" in _lines(tmp_path) and _drained(server, uniq))
    process.send_signal(signal.SIGTERM)
    assert process.wait(WAIT_S) == 0
    assert set(_lines(tmp_path)) >= set(bodies)


def test_a_full_disk(tool: Run, server: Server, tmp_path: Path, uniq: str) -> None:
    """Nothing is finished that is not in the file; the rest is back in the channel."""
    bodies = [b"%06d" % n + b"x" * 93 for n in range(1000)]
    _prepare(server, uniq, bodies)
    limit = (20_050, resource.getrlimit(resource.RLIMIT_FSIZE)[1])
    process = _start(tool, server, uniq, tmp_path)
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, limit)
    _, err = process.communicate(timeout=WAIT_S)
    assert process.returncode == 1
    assert b"archiving stops: " in err
    channel = nsq_channel(server.nsq_http, uniq, "archive")
    _wait(lambda: nsq_channel(server.nsq_http, uniq, "archive")["in_flight_count"] == 0)
    channel = nsq_channel(server.nsq_http, uniq, "archive")
    kept = channel["depth"] + channel["deferred_count"]
    finished = len(bodies) - kept
    assert kept > 0
    assert finished <= len(_lines(tmp_path))


async def test_an_fsync_that_fails_finishes_nothing(
    server: Server, tmp_path: Path, uniq: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _prepare(server, uniq, [b"1", b"2", b"3"])

    def fail(_: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", fail)
    source = Source((str(server.nsq),), (), 10, Options())
    archives = command._Archives(source, "archive", Layout(tmp_path), 1.0, skip_empty=True)
    ending = Ending()
    await archives.fill((uniq,), None, 1.0, ending)
    assert ending.code == 1
    assert set(_lines(tmp_path)) <= {b"1", b"2", b"3"}  # as many as came before the failure
    held = ("depth", "deferred_count", "in_flight_count")

    def kept() -> int:
        channel = nsq_channel(server.nsq_http, uniq, "archive")
        return sum(channel[where] for where in held)

    eventually(kept, 3)  # nsqd counts a message nowhere while it prepares to send it


def test_no_file_is_overwritten(tmp_path: Path) -> None:
    layout = Layout(tmp_path / "out", tmp_path / "work", "<TOPIC><REV>.log")
    for number in range(3):
        archive = Archive(layout, "t")
        archive.write(b"%d" % number)
        (tmp_path / "out").mkdir(exist_ok=True)
        if number == 1:  # somebody takes the name after it was chosen
            (tmp_path / "out" / "t-000001.log").write_bytes(b"theirs\n")
        archive.close()
    names = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    assert names == {
        "t.log": b"0\n",
        "t-000001.log": b"theirs\n",
        "t-000002.log": b"1\n",
        "t-000003.log": b"2\n",
    }
    assert list((tmp_path / "work").iterdir()) == []


def test_rotation_by_time_and_name(tmp_path: Path) -> None:
    now = [0.0]
    layout = Layout(tmp_path, filename_format="<TOPIC><REV>.log", rotate_interval_s=60)
    archive = Archive(layout, "t", lambda: now[0])
    archive.write(b"a")
    now[0] = 60.0
    assert not archive.due
    now[0] = 60.5
    assert archive.due
    archive.close()
    archive.write(b"b")
    archive.close()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["t-000001.log", "t.log"]


def test_a_torn_line_is_ended(tmp_path: Path) -> None:
    (tmp_path / "t.log").write_bytes(b"whole\ntor")
    archive = Archive(Layout(tmp_path, filename_format="<TOPIC>.log"), "t")
    archive.write(b"next")
    archive.close()
    assert (tmp_path / "t.log").read_bytes() == b"whole\ntor\nnext\n"


def test_revisions_are_needed(tmp_path: Path) -> None:
    with pytest.raises(LayoutError):
        Layout(tmp_path, filename_format="<TOPIC>.log", gzip=True)
