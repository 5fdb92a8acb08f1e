"""The log of nats-server: lines, files and syslogs."""

from __future__ import annotations

import logging
import os
import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.base import logs
from broker.cli.dropin.nats_server import log as nats_log
from broker.cli.dropin.nats_server import syslog
from broker.cli.dropin.nats_server.log import LineFormatter, Log, LogError
from broker.protocols.nats.settings import Settings

log = logging.getLogger("broker.test")
PID = re.escape(f"[{os.getpid()}]")
STAMP = r"\d{4}/\d\d/\d\d \d\d:\d\d:\d\d\.\d{6}"


@pytest.fixture
def place() -> Iterator[Log]:
    """A log whose changes to the process are taken back."""
    root, ours = logging.getLogger(), logging.getLogger("broker")
    before = root.handlers[:], root.level, ours.level, logging.raiseExceptions
    one = Log("nats-server")
    yield one
    one.close()
    root.handlers[:] = before[0]
    root.setLevel(before[1])
    ours.setLevel(before[2])
    logging.raiseExceptions = before[3]


def say_all() -> None:
    for level in (logs.TRACE, 10, 20, 30, 40, 50):
        log.log(level, "line %d", level)


def lines_of(path: Path) -> list[str]:
    return path.read_text().splitlines()


@pytest.mark.parametrize(
    ("debug", "trace", "shown"),
    [
        (False, False, ["INF", "WRN", "ERR", "FTL"]),
        (True, False, ["DBG", "INF", "WRN", "ERR", "FTL"]),
        (False, True, ["TRC", "INF", "WRN", "ERR", "FTL"]),
        (True, True, ["TRC", "DBG", "INF", "WRN", "ERR", "FTL"]),
    ],
)
def test_levels(place: Log, tmp_path: Path, debug: bool, trace: bool, shown: list[str]) -> None:
    path = tmp_path / "log"
    place.use(Settings(logfile=str(path), debug=debug, trace=trace))
    say_all()
    found = [re.fullmatch(rf"{PID} {STAMP} \[([A-Z]+)\] line \d+", x) for x in lines_of(path)]
    assert [match and match[1] for match in found] == shown


def test_without_the_time(place: Log, tmp_path: Path) -> None:
    place.use(Settings(logfile=str(tmp_path / "log"), logtime=False))
    log.info("x")
    assert lines_of(tmp_path / "log") == [f"[{os.getpid()}] [INF] x"]


def record(text: str, level: int = logging.INFO) -> logging.LogRecord:
    made = logging.LogRecord("broker.x", level, "", 0, text, (), None)
    made.created = 1_700_000_000.25
    return made


def test_utc() -> None:
    line = LineFormatter(timed=True, utc=True).format(record("x"))
    assert line == f"[{os.getpid()}] 2023/11/14 22:13:20.250000 [INF] x"


def test_colors() -> None:
    line = LineFormatter(timed=False, utc=False, colors=True).format(record("x", logging.ERROR))
    assert line == f"[{os.getpid()}] [\x1b[31mERR\x1b[0m] x"


def test_a_client_cannot_make_lines() -> None:
    line = LineFormatter(timed=False, utc=False).format(record("a\nb\x1b[2J"))
    assert line.endswith(r"[INF] a\nb\u001b[2J")


def test_fields_follow_the_message() -> None:
    made = record("gone")
    vars(made).update(logs.fields(cid=5))
    assert LineFormatter(timed=False, utc=False).format(made).endswith("[INF] gone cid=5")


def test_the_file_is_private_to_user_and_group(place: Log, tmp_path: Path) -> None:
    place.use(Settings(logfile=str(tmp_path / "log")))
    assert (tmp_path / "log").stat().st_mode & 0o007 == 0


def test_libraries_only_warn(place: Log, tmp_path: Path) -> None:
    place.use(Settings(logfile=str(tmp_path / "log"), debug=True))
    logging.getLogger("somebody").info("a")
    logging.getLogger("somebody").warning("b")
    assert [line.split()[-1] for line in lines_of(tmp_path / "log")] == ["b"]


# --- rotation


def test_a_file_that_is_too_long_is_renamed(place: Log, tmp_path: Path) -> None:
    path = tmp_path / "log"
    place.use(Settings(logfile=str(path), logfile_size_limit=500))
    for number in range(20):
        log.info("line number %04d", number)
    saved = sorted(p for p in tmp_path.iterdir() if p != path)
    assert saved
    assert all(re.fullmatch(r"log\.\d{4}(\.\d\d){5}\.\d{9}", p.name) for p in saved)
    first = lines_of(path)[0]
    assert re.fullmatch(
        rf'{PID} {STAMP} \[INF\] Rotated log, backup saved as "{re.escape(str(saved[-1]))}"', first
    )
    kept = [line for p in [*saved, path] for line in lines_of(p) if "line number" in line]
    assert [int(line[-4:]) for line in kept] == list(range(20))


def test_old_files_are_purged(place: Log, tmp_path: Path) -> None:
    path = tmp_path / "log"
    (tmp_path / "log.mine").write_text("not a backup")
    settings = Settings(logfile=str(path), logfile_size_limit=200, logfile_max_num=3)
    place.use(settings)
    for number in range(40):
        log.info("line number %04d", number)
    assert (tmp_path / "log.mine").exists()
    assert len(list(tmp_path.iterdir())) == 4
    newest = [line for p in sorted(tmp_path.glob("log.2*")) for line in lines_of(p)]
    assert any("Purged log file" in line for line in [*newest, *lines_of(path)])
    assert "line number 0039" in newest[-1] + lines_of(path)[-1]


def test_a_long_file_is_renamed_at_the_start(place: Log, tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("x" * 300 + "\n")
    place.use(Settings(logfile=str(path), logfile_size_limit=200))
    (saved,) = (p for p in tmp_path.iterdir() if p != path)
    assert lines_of(saved)[-1].endswith("[INF] Rotating logfile...")


def test_a_file_that_cannot_be_renamed_goes_on(
    place: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "log"
    place.use(Settings(logfile=str(path), logfile_size_limit=200))

    def fail(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(nats_log.Path, "rename", fail)
    for number in range(10):
        log.info("line number %04d", number)
    text = path.read_text()
    assert "Unable to rotate the log file (Permission denied), next try at 400 bytes" in text
    assert "line number 0009" in text


# --- reopening


def test_reopened(place: Log, tmp_path: Path) -> None:
    path = tmp_path / "log"
    place.use(Settings(logfile=str(path)))
    log.info("old")
    path.rename(tmp_path / "moved")
    log.info("still old")
    place.reopen()
    log.info("new")
    assert [line.split("] ")[-1] for line in lines_of(path)] == ["File log re-opened", "new"]
    assert lines_of(tmp_path / "moved")[-1].endswith("still old")


def test_reopening_fails(place: Log, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    place.use(Settings(logfile=str(folder / "log")))
    folder.rename(tmp_path / "moved")
    place.reopen()
    last = lines_of(tmp_path / "moved" / "log")[-1]
    assert last.endswith(f"[ERR] error opening file: open {folder}/log: no such file or directory")


def test_no_file_to_reopen(place: Log, capsys: pytest.CaptureFixture[str]) -> None:
    place.use(Settings())
    place.reopen()
    assert "[INF] File log re-open ignored, not a file logger" in capsys.readouterr().err


def test_a_place_that_cannot_be_had_changes_nothing(place: Log, tmp_path: Path) -> None:
    place.use(Settings(logfile=str(tmp_path / "log")))
    with pytest.raises(LogError, match="error opening file: open /nowhere/x: no such file"):
        place.use(Settings(logfile="/nowhere/x"))
    log.info("here")
    assert lines_of(tmp_path / "log")[-1].endswith("here")


# --- syslog


def received(sock: socket.socket, count: int) -> list[str]:
    sock.settimeout(10)
    return [sock.recv(4096).decode() for _ in range(count)]


def test_remote_syslog(place: Log) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as far:
        far.bind(("127.0.0.1", 0))
        url = f"udp://127.0.0.1:{far.getsockname()[1]}"
        place.use(Settings(remote_syslog=url, debug=True, trace=True))
        say_all()
        found = received(far, 6)
    tag = rf"nats-server\[{os.getpid()}\]"
    form = rf"<(\d+)>\d{{4}}-\d\d-\d\dT\S+ {re.escape(socket.gethostname())} {tag}: line (\d+)\n"
    matches = [re.fullmatch(form, text) for text in found]
    assert [(m[1], m[2]) for m in matches if m] == [
        ("5", "5"),  # trace: notice
        ("7", "10"),  # debug
        ("5", "20"),  # info: notice
        ("4", "30"),
        ("3", "40"),
        ("2", "50"),  # fatal: critical
    ]


def test_remote_syslog_over_tcp(place: Log) -> None:
    with socket.create_server(("127.0.0.1", 0)) as far:
        place.use(Settings(remote_syslog=f"tcp://127.0.0.1:{far.getsockname()[1]}"))
        log.info("hello")
        link, _ = far.accept()
        with link:
            assert received(link, 1)[0].endswith(": hello\n")


def test_local_syslog(place: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "log")
    monkeypatch.setattr(syslog, "_LOCAL_SYSLOGS", (str(tmp_path / "none"), path))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as far:
        far.bind(path)
        place.use(Settings(syslog=True))
        log.info("hello")
        (text,) = received(far, 1)
    tag = rf"nats-server\[{os.getpid()}\]"
    assert re.fullmatch(rf"<29>[A-Z][a-z]{{2}} [ \d]\d \d\d:\d\d:\d\d {tag}: hello\n", text)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        (Settings(remote_syslog="foo://x:1"), 'error invalid network type: "foo"'),
        (Settings(remote_syslog="udp://x"), "missing port"),
        (Settings(remote_syslog="udp://x:abc"), "error connecting to syslog"),
        (Settings(remote_syslog="unix:///nowhere"), "no socket at /nowhere"),
        (Settings(remote_syslog="tcp://127.0.0.1:1"), "error connecting to syslog"),
    ],
)
def test_no_such_syslog(place: Log, settings: Settings, text: str) -> None:
    with pytest.raises(LogError, match=re.escape(text)):
        place.use(settings)


def test_a_slow_syslog_stops_nobody(place: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody reads; what does not fit is lost."""
    monkeypatch.setattr(syslog.limits, "NATS_SYSLOG_FLUSH", 1)
    with socket.create_server(("127.0.0.1", 0)) as far:
        far.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        place.use(Settings(remote_syslog=f"tcp://127.0.0.1:{far.getsockname()[1]}"))
        for _ in range(3000):
            log.info("%s", "x" * 5000)
        place.close()
