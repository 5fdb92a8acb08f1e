"""Importing data folders of nsqd: written here by the documented format, and by an original."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop
from support.nsqd_folder import describe, put, record

from broker.config.config import Config
from broker.engine.engine import Engine
from broker.importers.nsqd import Import, Outcome, Progress
from broker.net.listener import Runtime
from broker.routing.router import Router
from broker.server.engine import engine_options, report

ROOT = Path(__file__).resolve().parents[3]
ORIGINAL = shutil.which("nsqd")
DEADLINE_S = 30


def run(source: Path, data: Path, advance: Callable[[int], object] = lambda _: None) -> Outcome:
    data.mkdir(exist_ok=True)
    work = Import(source, data, Config())
    work.advance = advance
    return uvloop.run(work.run())


def inspect(data: Path) -> dict[str, Any]:
    """Per topic: depth of the topic, paused; per channel depth, paused, entries, acked runs."""

    async def look() -> dict[str, Any]:
        runtime = Runtime()
        engine = Engine(runtime.turn, Router(16, 16), str(data / "logs"), engine_options(Config()),
                        lambda _: "none", report)  # fmt: skip
        engine.open(runtime.loop)
        assert not engine.problems
        found = {
            log.name: {
                "depth": log.depth,
                "paused": log.paused,
                "records": log.next_seq - 1,
                **{c.name: (c.depth, c.paused) for c in log.cursors.values()},
            }
            for log in engine.logs.values()
        }
        await engine.close()
        return found

    return uvloop.run(look())


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    folder.mkdir()
    return folder


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


def test_each_channel_gets_its_own(source: Path, data: Path) -> None:
    describe(source, t={"channels": ["a", "b", "c"], "held": ["b"]}, empty={}, p={"paused": True})
    put(source, "t:a", record(b"a1") + record(b"a2", 3), record(b"a3"))
    put(source, "t:b", record(b"gone") + record(b"b1"), start=len(record(b"gone")))
    put(source, "t", record(b"all"))
    put(source, "p", record(b"p1"))
    before = {p.name: p.read_bytes() for p in source.iterdir()}
    source.chmod(0o555)
    outcome = run(source, data)
    source.chmod(0o755)
    assert (outcome.topics, outcome.messages, outcome.remarks) == (3, 6, [])
    assert inspect(data) == {
        "t": {"depth": 0, "paused": False, "records": 5,
              "a": (4, False), "b": (2, True), "c": (1, False)},
        "empty": {"depth": 0, "paused": False, "records": 0},
        "p": {"depth": 1, "paused": True, "records": 1},
    }  # fmt: skip
    assert before == {p.name: p.read_bytes() for p in source.iterdir()}


def test_a_paused_topic_keeps_its_own_from_its_channels(source: Path, data: Path) -> None:
    describe(source, t={"paused": True, "channels": ["a"]})
    put(source, "t:a", record(b"a1"))
    put(source, "t", record(b"x") + record(b"y"))
    run(source, data)
    assert inspect(data) == {"t": {"depth": 2, "paused": True, "records": 3, "a": (1, False)}}


def test_again_changes_nothing(source: Path, data: Path) -> None:
    put(source, "t", record(b"x"))
    run(source, data)
    first = inspect(data)
    again = run(source, data)
    assert (again.already, again.changed, again.topics) == (True, False, 0)
    assert inspect(data) == first
    put(source, "t", record(b"x") + record(b"y"))
    assert run(source, data).changed


class CutOffError(Exception):
    """Stands for the end of the process."""


@pytest.mark.parametrize("at", range(1, 5))
def test_interrupted_and_run_again(source: Path, data: Path, at: int) -> None:
    for name in ("a", "b", "c", "d"):
        put(source, name, record(name.encode()))
    calls = 0

    def advance(_: int) -> None:
        nonlocal calls
        calls += 1
        if calls == at:
            raise CutOffError

    with pytest.raises(CutOffError):
        run(source, data, advance)
    assert not data.joinpath("logs").exists() or len(inspect(data)) == at - 1
    run(source, data)
    assert inspect(data) == {
        n: {"depth": 1, "paused": False, "records": 1} for n in ("a", "b", "c", "d")
    }


@pytest.mark.parametrize("when", ["before the rename", "after the rename", "at the note"])
def test_interrupted_around_the_rename(
    source: Path, data: Path, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(source, "t", record(b"x"))
    saves = 0
    save = Progress.save

    def failing_save(self: Progress) -> None:
        nonlocal saves
        saves += 1
        if when == "at the note" and saves == 1:
            raise CutOffError
        if when == "after the rename" and saves == 2:
            raise CutOffError
        save(self)

    def failing_rename(self: Path, target: Path) -> Path:
        raise CutOffError(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Progress, "save", failing_save)
        if when == "before the rename":
            patch.setattr(Path, "rename", failing_rename)
        with pytest.raises(CutOffError):
            run(source, data)
    outcome = run(source, data)
    assert outcome.remarks == []
    assert inspect(data) == {"t": {"depth": 1, "paused": False, "records": 1}}


def test_a_topic_that_exists_here_is_left_alone(source: Path, data: Path) -> None:
    put(source, "t", record(b"x"))
    run(source, data)
    other = source.with_name("other")
    other.mkdir()
    put(other, "t", record(b"y"))
    put(other, "u", record(b"z"))
    outcome = run(other, data)
    assert outcome.topics == 1
    assert "topic t exists already" in outcome.remarks[0]
    assert inspect(data)["t"]["records"] == 1


BAD = struct.pack(">i", 7) + b"x" * 40


@pytest.mark.parametrize(
    ("files", "meta", "records", "remark"),
    [
        (
            (record(b"a") + record(b"b")[:-1],),
            True,
            1,
            rf"offset {len(record(b'a'))}: .* incomplete",
        ),
        ((record(b"a") + b"\0",), True, 1, "incomplete; 1 bytes"),
        ((record(b"a") + BAD, record(b"c")), True, 2, r"invalid record length 7; 44 bytes"),
        ((record(b"a").replace(b"0123", b"zzzz"), record(b"c")), True, 1, "invalid record;"),
        ((record(b"a"), record(b"b")), False, 2, "meta file is missing"),
        ((struct.pack(">i", -1) * 8,), True, 0, "invalid record length -1"),
        ((b"\0" * 64,), True, 0, "invalid record length 0"),
    ],
)
def test_damaged_files(
    source: Path, data: Path, files: tuple[bytes, ...], meta: bool, records: int, remark: str
) -> None:
    put(source, "t", *files, meta=meta)
    outcome = run(source, data)
    assert inspect(data)["t"]["records"] == records
    assert len(outcome.remarks) == 1
    assert re.search(remark, outcome.remarks[0]), outcome.remarks
    assert run(source, data).remarks == outcome.remarks


def test_other_damage(source: Path, data: Path) -> None:
    (source / "nsqd.dat").write_text('{"topics":[{"name":"no good"},{"name":"ok"}]}')
    (source / "ok.diskqueue.000000.dat.bad").write_bytes(b"x")
    put(source, "ok:c", record(b"x"))
    (source / "ok:c.diskqueue.meta.dat").write_text("what")
    outcome = run(source, data)
    text = "\n".join(outcome.remarks)
    assert "invalid topic name 'no good'" in text
    assert "set this file aside as damaged" in text
    assert "it cannot be parsed: all files are read" in text
    assert inspect(data) == {"ok": {"depth": 0, "paused": False, "records": 1, "c": (1, False)}}


def command(*args: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "broker", "import-nsqd", *args], capture_output=True, text=True,
        cwd=cwd, timeout=DEADLINE_S, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False,
    )  # fmt: skip


def test_exit_codes(source: Path, data: Path, tmp_path: Path) -> None:
    put(source, "t", record(b"x"))
    lock = os.open(source, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    busy = command(str(source), "--data", str(data), cwd=tmp_path)
    os.close(lock)
    assert (busy.returncode, "in use by a running nsqd" in busy.stderr) == (1, True)
    data.mkdir(exist_ok=True)
    lock = os.open(data / "twinwire.lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(lock, fcntl.LOCK_EX)
    ours = command(str(source), "--data", str(data), cwd=tmp_path)
    os.close(lock)
    assert (ours.returncode, "is in use by" in ours.stderr) == (1, True)
    good = command(str(source), "--data", str(data), cwd=tmp_path)
    assert (good.returncode, good.stdout) == (0, "1 topics, 1 messages imported\n")
    again = command(str(source), "--data", str(data), cwd=tmp_path)
    assert (again.returncode, "was imported before" in again.stdout) == (0, True)
    assert command("nowhere", "--data", str(data), cwd=tmp_path).returncode == 1
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    put(damaged, "u", record(b"x")[:-1])
    assert command(str(damaged), "--data", str(data), cwd=tmp_path).returncode == 3
    (damaged / "nsqd.dat").write_text("{")
    other = str(tmp_path / "other")
    assert command(str(damaged), "--data", other, cwd=tmp_path).returncode == 1
    none = tmp_path / "none"
    none.mkdir()
    refused = command(str(none), "--data", other, cwd=tmp_path)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert f"{none} is not the data folder of an nsqd: it has no nsqd.dat" in refused.stderr


def started(program: list[str], folder: Path) -> tuple[subprocess.Popen[str], str]:
    process = subprocess.Popen(
        [*program, "-data-path", str(folder), "-tcp-address=127.0.0.1:0",
         "-http-address=127.0.0.1:0", "-mem-queue-size=0"],
        stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert process.stderr is not None
    for line in process.stderr:
        if match := re.search(r" HTTP: listening on (\S+)", line):
            return process, match[1]
    raise AssertionError(program)


def ended(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGTERM)
    assert process.stderr is not None
    process.stderr.read()
    assert process.wait(DEADLINE_S) == 0


def ask(address: str, path: str, body: bytes | None = None) -> bytes:
    request = urllib.request.Request(f"http://{address}{path}", data=body)
    with urllib.request.urlopen(request, timeout=DEADLINE_S) as answer:
        found: bytes = answer.read()
    return found


@pytest.mark.skipif(ORIGINAL is None, reason="no nsqd on this machine")
def test_in_the_place_of_an_original(source: Path) -> None:
    assert ORIGINAL is not None
    process, http = started([ORIGINAL], source)
    for channel in ("a", "b"):
        ask(http, "/topic/create?topic=t", b"")
        ask(http, f"/channel/create?topic=t&channel={channel}", b"")
    ask(http, "/topic/pause?topic=t", b"")
    ask(http, "/mpub?topic=t", b"\n".join(b"%d" % i for i in range(100)))
    ask(http, "/channel/pause?topic=t&channel=b", b"")
    ask(http, "/mpub?topic=u", b"x\ny")
    ended(process)
    process, http = started([sys.executable, "-m", "broker", "nsqd"], source)
    topics = {t["topic_name"]: t for t in json.loads(ask(http, "/stats?format=json"))["topics"]}
    assert (topics["t"]["depth"], topics["t"]["paused"], topics["u"]["depth"]) == (100, True, 2)
    assert [(c["channel_name"], c["paused"]) for c in topics["t"]["channels"]] == [
        ("a", False), ("b", True)]  # fmt: skip
    ask(http, "/topic/unpause?topic=t", b"")
    ended(process)
    process, http = started([sys.executable, "-m", "broker", "nsqd"], source)
    topic = json.loads(ask(http, "/stats?format=json&topic=t"))["topics"][0]
    assert [c["depth"] for c in topic["channels"]] == [100, 100]
    ended(process)
