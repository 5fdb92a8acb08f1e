"""`twinwire nats-streaming-server` as a process, and the original by the same table."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support.servers.processes import ServerError
from support.stan.client import PROGRAM, StanServer

ROOT = Path(__file__).resolve().parents[5]
ORIGINAL = shutil.which(PROGRAM)
OURS = [sys.executable, "-m", "broker", PROGRAM]
DEADLINE_S = 30

needs_original = pytest.mark.skipif(ORIGINAL is None, reason=f"no {PROGRAM} on this machine")
BOTH = pytest.mark.parametrize(
    "command",
    [OURS, pytest.param([ORIGINAL or PROGRAM], marks=needs_original)],
    ids=["ours", PROGRAM],
)


def once(command: list[str], *args: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*command, *args], capture_output=True, text=True, timeout=DEADLINE_S, cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False,
    )  # fmt: skip


VERSION = r"nats-streaming-server version 0\.25\.6, nats-server: v2\.\d+\.\d+\n"
USAGE = r"(?s).*Usage: nats-streaming-server .*-cid, --cluster_id.*--help_tls.*"


def failed(reason: str) -> str:
    """The log of a start that was given up at once."""
    first = r"(?s)\[\d+\] \S+ \S+ \[INF\] STREAM: Starting "
    return rf"{first}.*\[FTL\] STREAM: Failed to start: {reason}\n"


@BOTH
@pytest.mark.parametrize(
    ("args", "code", "stdout", "stderr"),
    [
        (["-v"], 0, VERSION, ""),
        (["--version"], 0, VERSION, ""),
        (["version"], 0, VERSION, ""),
        (["-h"], 0, USAGE, ""),
        (["help"], 0, USAGE, ""),
        (["-help_tls"], 0, r"(?s).*tls.*", ""),
        (["-bogus"], 0, USAGE, "flag provided but not defined: -bogus\n"),
        (["-ma", "5x"], 0, USAGE, 'invalid value "5x" for flag -ma: parse error\n'),
        (["-mc"], 0, USAGE, "flag needs an argument: -mc\n"),
        (["foo"], 1, "", 'unrecognized command: "foo"\n'),
        (["-mb", "much"], 1, "", r"(mb|max_bytes) should be a size, got 'much'\n"),
        (["-c", "none.conf"], 1, "", "open none.conf: no such file or directory\n"),
        (["-sc", "none.conf"], 1, "", ".*none.conf.*no such file or directory\n"),
        (["-t"], 1, "", r"must specify \[-c, --config\] option to check configuration file .*\n"),
        (["-sl", "quit=x"], 1, "", "invalid pid: x\n"),
        (["-st", "FILE"], 1, "", failed("for FILE stores, root directory must be specified")),
        (["-st", "tape"], 1, "", failed("unsupported store type: TAPE")),
        (["-mc", "-1"], 1, "", failed(r"max channels limit cannot be negative \(-1\)")),
        (["-msu=-2"], 1, "", failed(r"max subscriptions limit cannot be negative \(-2\)")),
        (["-mm=-3"], 1, "", failed(r"max messages limit cannot be negative \(-3\)")),
        (["-mb=-4"], 1, "", failed(r"max bytes limit cannot be negative \(-4\)")),
        (["-ma=-5s"], 1, "", failed(r"max age limit cannot be negative \(-5s\)")),
        (["-mi=-1m"], 1, "", failed(r"max inactivity limit cannot be negative \(-1m0s\)")),
        (["-mc", "1", "-sc", "two.conf"], 1, "", failed(r"too many channels defined \(2\).*")),
        (["-p", "-1", "-c", "users.conf"], 1, "", failed("nats: Authorization Violation.*")),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_command_lines(
    tmp_path: Path, command: list[str], args: list[str], code: int, stdout: str, stderr: str
) -> None:
    (tmp_path / "two.conf").write_text(
        "streaming { store_limits { channels { a {}, b {}, c.* {} }}}"
    )
    (tmp_path / "users.conf").write_text("accounts { A { users: [{user: a, password: b}] } }")
    found = once(command, *args, cwd=tmp_path)
    assert re.fullmatch(stdout, found.stdout), found.stdout
    assert re.fullmatch(stderr, found.stderr), found.stderr
    assert found.returncode == code


@pytest.mark.parametrize(
    ("args", "name"),
    [
        (["-ns", "nats://127.0.0.1:4222"], "nats_server"),
        (["-clustered"], "cluster"),
        (["-ft_group", "g"], "ft_group"),
        (["-encrypt"], "encrypt"),
        (["-encryption_key", "k"], "encrypt"),
        (["-st", "sql"], "store SQL"),
        (["-file_slice_archive_script", "x"], "file_slice_archive_script"),
        (["-js"], "--jetstream"),
    ],
)
def test_what_is_not_here_is_refused_by_name(tmp_path: Path, args: list[str], name: str) -> None:
    found = once(OURS, *args, cwd=tmp_path)
    assert re.match(rf"{name}\w* is not supported: ", found.stderr), found.stderr
    assert (found.returncode, found.stdout) == (1, "")


def texts(server: StanServer) -> list[str]:
    """The log without process, time and level."""
    return re.sub(r"(?m)^\[\d+\] \S+ \S+ \[\w+\] ", "", server.process.output()).splitlines()


@pytest.fixture
def start(tmp_path: Path):
    servers: list[StanServer] = []

    def begin(*flags: str) -> StanServer:
        servers.append(StanServer(tmp_path / "server", *flags))
        return servers[-1]

    yield begin
    for server in servers:
        server.stop()


Start = Callable[..., StanServer]


def test_lines_from_start_to_end(start: Start, tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    server = start("-cid", "orders", "-st", "FILE", "-dir", str(tmp_path / "data"), "-P", str(pid))
    assert pid.read_text() == str(server.process.child.pid)
    assert server.stop() == 0
    found = [re.sub(r"(ID:|Name:|\bon) .*", r"\1", line) for line in texts(server)]
    skipped = ("  Twinwire", "  Git", "STREAM: Git", "STREAM: Python", "STREAM: Go")
    assert [line for line in found if not line.startswith(skipped)] == [
        "STREAM: Starting nats-streaming-server[orders] version 0.25.6",
        "STREAM: ServerID:",
        "Starting nats-server",
        *(line for line in found if line.startswith("  Version:")),
        "  Name:",
        "  ID:",
        "Starting http monitor on",
        "Listening for client connections on",
        "Server is ready",
        "STREAM: Recovering the state...",
        "STREAM: No recovered state",
        "STREAM: Message store is FILE",
        f"STREAM: Store location: {tmp_path / 'data'}",
        "STREAM: ---------- Store Limits ----------",
        "STREAM: Channels:                  100 *",
        "STREAM: --------- Channels Limits --------",
        "STREAM:   Subscriptions:          1000 *",
        "STREAM:   Messages     :       1000000 *",
        "STREAM:   Bytes        :     976.56 MB *",
        "STREAM:   Age          :     unlimited *",
        "STREAM:   Inactivity   :     unlimited *",
        "STREAM: ----------------------------------",
        "STREAM: Streaming Server is ready",
        "STREAM: Shutting down.",
        "Initiating Shutdown...",
        "Server Exiting..",
    ]


def test_limits_of_channels_in_the_log(start: Start, tmp_path: Path) -> None:
    file = tmp_path / "stan.conf"
    file.write_text(
        """
        store_limits {
          max_channels: 5
          channels {
            "foo.>": {max_msgs: 3, max_bytes: 1GB, max_age: "1h"}, "foo.bar": {max_subs: 0}
          }
        }
        """
    )
    found = texts(start("-sc", str(file), "-mi", "1m30s", "-mb", "900"))
    begin = found.index("STREAM: Channels:                    5")
    assert found[begin + 2 : begin + 15] == [
        "STREAM:   Subscriptions:          1000 *",
        "STREAM:   Messages     :       1000000 *",
        "STREAM:   Bytes        :         900 B",
        "STREAM:   Age          :     unlimited *",
        "STREAM:   Inactivity   :         1m30s",
        "STREAM: -------- List of Channels --------",
        "STREAM: foo.>",
        "STREAM:  |-> Messages                    3",
        "STREAM:  |-> Bytes                 1.00 GB",
        "STREAM:  |-> Age                    1h0m0s",
        "STREAM:  foo.bar",
        "STREAM:   |-> Subscriptions      unlimited",
        "STREAM: ----------------------------------",
    ]


@pytest.mark.only_ours
def test_flags_without_effect_are_named_once(start: Start, tmp_path: Path) -> None:
    file = tmp_path / "stan.conf"
    file.write_text("streaming { file { buffer_size: 1MB, crc: true }, sql { driver: x }, odd: 1 }")
    server = start("-sc", str(file), "-io_batch_size", "9", "--file_crc=false", "-secure")
    (line,) = [line for line in texts(server) if "without effect" in line]
    names = "--io_batch_size, --file_crc, --secure, sql, file.buffer_size, file.crc"
    assert set(line.partition("here: ")[2].split(", ")) == set(names.split(", "))
    assert f"{file}:1:" in server.process.output()
    assert '"odd" is not known here' in server.process.output()


def test_a_taken_port(start: Start, tmp_path: Path) -> None:
    server = start()
    with pytest.raises(ServerError, match=r"Error listening on port|address already in use"):
        StanServer(tmp_path / "second", "-p", str(server.nats.port))


@pytest.mark.only_ours
def test_one_server_for_a_folder(start: Start, tmp_path: Path) -> None:
    flags = ("-st", "FILE", "-dir", str(tmp_path / "data"))
    start(*flags)
    with pytest.raises(ServerError, match=r"STREAM: Failed to start: data folder .* is in use by"):
        StanServer(tmp_path / "second", *flags)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 0)])
def test_exit_codes(start: Start, number: signal.Signals, code: int) -> None:
    assert start().stop(number) == code


def test_the_configuration_of_the_nats_server_is_read_again(start: Start, tmp_path: Path) -> None:
    file = tmp_path / "all.conf"
    file.write_text("max_payload: 1000\nstreaming { id: one }\n")
    server = start("-c", str(file))
    file.write_text("max_payload: 2000\nstreaming { id: two }\n")
    os.kill(server.process.child.pid, signal.SIGHUP)
    server.await_log("Reloaded server configuration")
