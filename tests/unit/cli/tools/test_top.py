"""`twinwire top`: lines, keys and errors, with a real broker and a real terminal."""

from __future__ import annotations

import fcntl
import io
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from support import Broker, nsq_peer
from support.clients.peer import pack_frame

from broker.cli.tools.top import Selection, Session, head, number, size, span, table, top

OK = pack_frame("response", b"OK")
DEADLINE_S = 20.0
POLL_S = 0.02
TOKEN = "a-token-of-a-tool"
ROW = {
    "name": "orders", "paused": False, "depth": 12_345, "in_rate": 1.5, "out_rate": None,
    "in_flight": 2, "bytes": 3 << 20, "consumers": 1, "channels": 1, "deferred": 0, "messages": 9,
}  # fmt: skip
OVERVIEW: dict[str, Any] = {
    "server": {"name": "b1", "version": "1.2", "uptime_s": 3_700},
    "topics": {"count": 7, "depth": None, "in_flight": 0, "bytes": 2048},
    "rates": {"in_msgs": 1234.5, "in_bytes": 10.0, "out_msgs": 0.0, "out_bytes": 0.0},
    "health": {"ok": True},
    "disk": None,
    "process": {"memory_bytes": 1 << 20, "cpu_percent": 0.5},
    "attention": [],
}


class Terminal:
    """`twinwire top` in a terminal of its own."""

    def __init__(self, *arguments: str) -> None:
        self.end, other = pty.openpty()
        fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
        self.before = termios.tcgetattr(other)
        self.other = other
        command = [sys.executable, "-m", "broker", "top", "--interval", "1", *arguments]
        self.process = subprocess.Popen(command, stdin=other, stdout=other, stderr=other)
        self.text = ""

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self.end)
        os.close(self.other)

    def until(self, pattern: str) -> None:
        """Read until what was written since the last time matches."""
        deadline = time.monotonic() + DEADLINE_S
        while not (found := re.search(pattern, self.text)):
            ready, _, _ = select.select([self.end], [], [], deadline - time.monotonic())
            assert ready, self.text
            self.text += os.read(self.end, 65536).decode()
        self.text = self.text[found.end() :]

    def wait(self) -> int:
        """The exit code. Reads meanwhile: the end waits until the terminal has taken everything."""
        deadline = time.monotonic() + DEADLINE_S
        while (code := self.process.poll()) is None:
            ready, _, _ = select.select([self.end], [], [], POLL_S)
            if ready:
                self.text += os.read(self.end, 65536).decode()
            assert time.monotonic() < deadline, self.text
        return code

    def press(self, keys: str) -> None:
        os.write(self.end, keys.encode())


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    folder = tmp_path_factory.mktemp("top")
    tokens = folder / "tokens"
    tokens.write_text(f"# tools\ntop viewer {TOKEN}\n")
    config = f'[console]\nlisten = "127.0.0.1:0"\ntoken_file = "{tokens}"\n'
    found = Broker(folder, config)
    found.start()
    try:
        with nsq_peer(found.nsq) as peer:
            for topic in ("orders", "orders", "orders", "mails"):
                peer.command(f"PUB {topic}", b"x")
                peer.expect(OK)
            peer.command("SUB empty c")
            peer.expect(OK)
        yield found
    finally:
        found.close()


@pytest.fixture
def console(broker: Broker) -> list[str]:
    """The arguments that name the console and the token."""
    ports = json.loads((broker.folder / "ports.json").read_text())
    return [f"http://{ports['console']}", "--token-file", str(broker.folder / "tokens")]


def run(*arguments: str) -> Result:
    return CliRunner().invoke(top, arguments)


def test_once(console: list[str]) -> None:
    done = run(*console, "--once", "--filter", "r")
    assert done.exit_code == 0, done.output
    assert "healthy" in done.output
    (line,) = (line for line in done.output.splitlines() if line.startswith("orders"))
    assert line.split()[1] == "3"


def test_keys(console: list[str]) -> None:
    terminal = Terminal(*console)
    try:
        terminal.until(r"DEPTHv[\s\S]*orders +3 [\s\S]*mails +1 [\s\S]*1-3 of 3 ")
        terminal.press("r")
        terminal.until(r"DEPTH\^[\s\S]*empty[\s\S]*orders")
        terminal.press("n")
        terminal.until(r"1-2 of 2, not empty")
        terminal.press("/")
        terminal.until(r"Filter: _")
        terminal.press("maiX")
        terminal.until(r"Filter: maiX_")
        terminal.press("\x7fl\r")
        terminal.until(r"mails +1 [\s\S]*1-1 of 1 with 'mail', not empty")
        terminal.press("q")
        assert terminal.wait() == 0
        terminal.until(re.escape("\x1b[?1049l"))
        assert termios.tcgetattr(terminal.other) == terminal.before
    finally:
        terminal.close()


class _LosesInterrupt(io.RawIOBase):
    """What is raised while it is destroyed is lost, as with a response of http.client."""

    def close(self) -> None:
        if not self.closed:
            super().close()
            signal.raise_signal(signal.SIGINT)


class _LosingApi:
    def get(self, path: str, **query: object) -> dict[str, Any]:
        _LosesInterrupt()
        return {"topics": [], "matched": 0, "offset": 0} if "topics" in path else OVERVIEW


class _NoScreen:
    keys = 0

    def size(self) -> tuple[int, int]:
        return 80, 24

    def draw(self, lines: list[str]) -> None:
        pass

    def key(self, wait_s: float) -> str:
        self.keys += 1
        assert self.keys == 1
        return "s"


# Python 3.13 reports what is lost.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_signal_whose_exception_is_lost_ends_it_too() -> None:
    session = Session(_LosingApi(), Selection("name", "", non_empty=False), 1.0, _NoScreen())  # type: ignore[arg-type]
    before = signal.signal(signal.SIGINT, session.interrupt)
    try:
        session.run()
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_signal_restores_the_terminal(console: list[str]) -> None:
    terminal = Terminal(*console)
    try:
        terminal.until("orders")
        terminal.process.send_signal(signal.SIGINT)
        assert terminal.wait() == 0
        terminal.until(re.escape("\x1b[?1049l"))
        assert termios.tcgetattr(terminal.other) == terminal.before
    finally:
        terminal.close()


def test_a_broker_that_is_away_is_asked_again(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    broker = Broker(tmp_path, '[console]\nlisten = "127.0.0.1:0"\n')
    broker.start()
    console = json.loads((tmp_path / "ports.json").read_text())["console"]
    terminal = Terminal(console)
    try:
        terminal.until("healthy")
        broker.close()
        terminal.until("does not answer: Connection refused; trying again")
        terminal.press("q")
        assert terminal.wait() == 0
    finally:
        terminal.close()
        broker.close()


@pytest.mark.parametrize(
    ("arguments", "text", "code"),
    [
        (["127.0.0.1:1"], "http://127.0.0.1:1 does not answer: Connection refused", 1),
        (["ftp://127.0.0.1:1"], "expected http://HOST:PORT", 2),
        (["http://nowhere"], "expected http://HOST:PORT", 2),
    ],
)
def test_errors(arguments: list[str], text: str, code: int) -> None:
    done = run(*arguments, "--once")
    assert (done.exit_code, text in done.output) == (code, True), done.output


def test_a_missing_or_wrong_token(console: list[str], tmp_path: Path) -> None:
    done = run(console[0], "--once")
    assert (done.exit_code, "needs a token: give --token-file" in done.output) == (1, True)
    wrong = tmp_path / "wrong"
    wrong.write_text("another\n")
    done = run(console[0], "--once", "--token-file", str(wrong))
    assert (done.exit_code, "does not know the token of --token-file" in done.output) == (1, True)
    wrong.write_text("# nothing\n")
    done = run(console[0], "--once", "--token-file", str(wrong))
    assert (done.exit_code, "has no token" in done.output) == (2, True)


def test_another_server_is_not_a_console(broker: Broker) -> None:
    monitor = json.loads((broker.folder / "ports.json").read_text())["monitor"]
    done = run(f"http://{monitor}", "--once")
    assert (done.exit_code, "is not the web console" in done.output) == (1, True)


def test_names_cannot_move_the_cursor() -> None:
    lines = table([{**ROW, "name": "a\x1b[2Jb\u202e"}], "-depth", 80)
    assert lines[1].startswith("a?[2Jb? ")
    finding = {"text": "x\x1b]0;owned\x07"}
    (line,) = head({**OVERVIEW, "attention": [finding]}, 80)[3:]
    assert line == "! x?]0;owned?"


@pytest.mark.parametrize("width", [20, 40, 80, 120, 250])
def test_lines_fit(width: int) -> None:
    rows = [ROW, {**ROW, "name": "n" * 200, "paused": True}]
    lines = [*head(OVERVIEW, width), *table(rows, "name", width)]
    assert max(map(len, lines)) <= width
    assert lines[-1].startswith("nnnnn")


def test_numbers() -> None:
    assert [number(None), number(0), number(1.25), number(12_345), number(123.4)] == [
        "-", "0", "1.2", "12,345", "123",
    ]  # fmt: skip
    assert [size(None), size(12), size(2048), size(3 << 30)] == ["-", "12 B", "2.0 KiB", "3.0 GiB"]
    assert [span(0), span(61), span(90_000)] == ["0 s", "1 min 1 s", "1 d 1 h"]


def test_orders() -> None:
    selection = Selection("name", "", non_empty=False)
    selection.next_sort()
    assert selection.sort == "-depth"
    selection.reverse()
    assert selection.sort == "depth"
    for _ in range(9):
        selection.next_sort()
    assert selection.sort == "name"
