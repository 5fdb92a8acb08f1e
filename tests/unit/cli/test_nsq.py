"""Go's flags, nsqd's file, exit codes, links: against the originals where they are there."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from harness.programs import Program, lookupd, nsqd

from broker.cli.goflags import FlagError, FlagSet, parse_bool, parse_duration, parse_int
from broker.cli.nsq_flags import ELSEWHERE, NSQD, NSQLOOKUPD, RENAMED, WITHOUT_EFFECT, nsq_settings
from broker.config import SECTIONS, from_values, settings
from broker.limits import MS, SECOND

FLAGS = FlagSet("nsqd", NSQD)
TIMEOUT_S = 30


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("0", 0), ("1s", SECOND), ("1m30s", 90 * SECOND), ("1.5h", 5400 * SECOND),
        ("250ms", 250 * MS), ("-1s", -SECOND), ("+2s", 2 * SECOND), (".5s", SECOND // 2),
        ("10us", 10_000), ("10\u00b5s", 10_000), ("7ns", 7), ("1.s", SECOND),
    ],
)  # fmt: skip
def test_durations(text: str, ns: int) -> None:
    assert parse_duration(text) == ns


@pytest.mark.parametrize("text", ["", "1", "s", "1x", "1 s", "--1s", "1s ", "1d", "."])
def test_no_durations(text: str) -> None:
    with pytest.raises(ValueError, match=r".*"):
        parse_duration(text)


def test_numbers() -> None:
    assert [parse_int(t) for t in ("5", "-5", "0x10", "010", "0b11", "1_000")] == [
        5, -5, 16, 8, 3, 1000,
    ]  # fmt: skip
    for text in ("", "x", "1.5", " 1"):
        with pytest.raises(ValueError, match=r".*"):
            parse_int(text)
    assert [parse_bool(t) for t in ("1", "t", "TRUE", "F", "0")] == [True, True, True, False, False]


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        (["-max-rdy-count", "5"], {"max-rdy-count": 5}),
        (["--max-rdy-count=5"], {"max-rdy-count": 5}),
        (["-snappy=false", "-deflate"], {"snappy": False, "deflate": True}),
        (["-snappy", "false", "-max-rdy-count=5"], {"snappy": True}),  # ends at `false`
        (["--", "-snappy"], {}),
        (["-"], {}),
        (["word", "-snappy"], {}),
        (["-msg-timeout", "1m"], {"msg-timeout": 60 * SECOND}),
        (["-tls-required"], {"tls-required": "true"}),
        (["-tls-required=tcp-https"], {"tls-required": "tcp-https"}),
        (
            ["-lookupd-tcp-address=a:1", "-lookupd-tcp-address", "b:2"],
            {"lookupd-tcp-address": ["a:1", "b:2"]},
        ),
    ],
)
def test_command_lines(arguments: list[str], found: dict[str, Any]) -> None:
    assert FLAGS.parse(arguments) == found


WRONG = [
    (["-foo"], "flag provided but not defined: -foo"),
    (["-max-rdy-count"], "flag needs an argument: -max-rdy-count"),
    (["-max-rdy-count=x"], 'invalid value "x" for flag -max-rdy-count: parse error'),
    (["-snappy=x"], 'invalid boolean value "x" for -snappy: parse error'),
    (["-msg-timeout=abc"], 'invalid value "abc" for flag -msg-timeout: parse error'),
    (["---x"], "bad flag syntax: ---x"),
    (["-=x"], "bad flag syntax: -=x"),
]


@pytest.mark.parametrize(("arguments", "text"), WRONG)
def test_wrong_command_lines(arguments: list[str], text: str) -> None:
    with pytest.raises(FlagError) as caught:
        FLAGS.parse(arguments)
    assert str(caught.value) == text


def run(program: str, *arguments: str, original: bool = False) -> subprocess.CompletedProcess[str]:
    command = [program] if original else [sys.executable, "-m", "broker", program]
    return subprocess.run(
        [*command, *arguments], capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )


@pytest.mark.parametrize(("arguments", "text"), [pytest.param(*row, id=row[0][0]) for row in WRONG])
@pytest.mark.parametrize("original", [False, True])
def test_usage_and_exit_code(arguments: list[str], text: str, original: bool) -> None:
    if original and Program.missing("nsqd"):
        pytest.skip("no nsqd on PATH")
    ended = run("nsqd", *arguments, original=original)
    assert ended.returncode == 2
    assert ended.stderr.splitlines()[:2] == [text, "Usage of nsqd:"]


@pytest.mark.parametrize(("program", "flags"), [("nsqd", NSQD), ("nsqlookupd", NSQLOOKUPD)])
def test_every_flag_of_the_original_is_known(program: str, flags: Any) -> None:
    if Program.missing(program):
        pytest.skip(f"no {program} on PATH")
    usage = run(program, "-help", original=True).stderr
    assert set(re.findall(r"^  -([\w-]+)", usage, re.MULTILINE)) == {flag.name for flag in flags}
    ours = run(program, "-help")
    assert ours.returncode == 0
    assert set(re.findall(r"^  -([\w-]+)", ours.stderr, re.MULTILINE)) == {f.name for f in flags}


def test_every_flag_has_a_target() -> None:
    known = settings(SECTIONS["nsq"])
    for flag in NSQD:
        if flag.name not in ELSEWHERE | WITHOUT_EFFECT:
            assert RENAMED.get(flag.name, flag.name.replace("-", "_")) in known, flag.name


def test_defaults_are_accepted() -> None:
    config = from_values(nsq_settings(FLAGS.resolve({}, {})))
    assert str(config.nsq.listen) == "0.0.0.0:4150"
    assert config.nsq.https is None
    assert (config.nats.listen, config.monitor.listen) == (None, None)
    assert config.server.data == "."


def test_the_file() -> None:
    file = {
        "id": 5,
        "max_rdy_count": 7,
        "msg_timeout": "90s",
        "sync_timeout": 1500,  # milliseconds
        "nsqlookupd_tcp_addresses": "a:1,b:2",
        "auth_http_addresses": ["c:3"],
        "snappy": 0,  # inverted, as in the original
        "tls_required": False,
        "unknown": 1,
    }
    values = FLAGS.resolve(FLAGS.parse(["-max-rdy-count=9"]), file)
    assert values["node-id"] == 5
    assert values["max-rdy-count"] == 9
    assert values["msg-timeout"] == 90 * SECOND
    assert values["sync-timeout"] == 1500 * MS
    assert values["lookupd-tcp-address"] == ["a:1", "b:2"]
    assert values["auth-http-address"] == ["c:3"]
    assert values["snappy"] is True
    with pytest.raises(FlagError, match="msg_timeout"):
        FLAGS.resolve({}, {"msg_timeout": "soon"})


def test_a_start_that_fails(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ended = run("nsqd", f"-data-path={tmp_path}", f"-tcp-address=127.0.0.1:{port}")
    assert ended.returncode == 1
    assert "failed to instantiate nsqd" in ended.stderr
    ended = run("nsqd", "-tls-required=true", f"-data-path={tmp_path}")
    assert ended.returncode == 1
    assert "FATAL" in ended.stderr


def test_version() -> None:
    for program in ("nsqd", "nsqlookupd"):
        ended = run(program, "-version")
        assert (ended.returncode, ended.stdout.split(" (")[0]) == (0, f"{program} v1.3.0")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_end_it_well(tmp_path: Path, number: signal.Signals) -> None:
    with nsqd(tmp_path, "-queue-scan-worker-pool-max=9", original=False) as program:
        line = r"^\[nsqd\] \d{4}/\d\d/\d\d \d\d:\d\d:\d\d\.\d{6} INFO: TCP: listening on"
        assert re.search(line, program.process.output(), re.MULTILINE)
        assert "accepted without effect: -queue-scan-worker-pool-max" in program.process.output()
        assert program.stop(number) == 0
        assert "NSQ: bye" in program.process.output()
    with lookupd(tmp_path, original=False) as program:
        assert program.stop(number) == 0


def test_a_link_with_the_name_of_the_original(tmp_path: Path) -> None:
    installed = shutil.which("twinwire", path=str(Path(sys.executable).parent))
    assert installed is not None
    for name in ("nsqd", "nsqlookupd"):
        (tmp_path / name).symlink_to(installed)
        ended = subprocess.run(
            [tmp_path / name, "-version"], capture_output=True, text=True, timeout=TIMEOUT_S,
            check=False, env=dict(os.environ),
        )  # fmt: skip
        assert ended.stdout.startswith(f"{name} v1.3.0")
