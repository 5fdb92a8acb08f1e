"""A command that replaces an original server, or the original, as a process."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]
DEADLINE_S = 20
STAMP = r"\d{4}/\d\d/\d\d \d\d:\d\d:\d\d\.\d{6}"  # of a line of the log


def our_command(name: str) -> list[str]:
    """The drop-in of that name."""
    return [sys.executable, "-m", "broker", name]


def with_both(name: str, original: str | None) -> Any:
    """Parametrizes a test by `command`: ours, and the original if there is one."""
    missing = pytest.mark.skipif(original is None, reason=f"no {name} on this machine")
    commands = [our_command(name), pytest.param([original or name], marks=missing)]
    return pytest.mark.parametrize("command", commands, ids=["ours", name])


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT)}


def once(command: list[str], *args: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run it to its end."""
    return subprocess.run(
        [*command, *args], capture_output=True, text=True, timeout=DEADLINE_S, cwd=cwd,
        env=environment(), check=False,
    )  # fmt: skip


class Running:
    """One process and the lines of its log."""

    def __init__(self, command: list[str], cwd: Path, *args: str) -> None:
        self.process = subprocess.Popen(
            [*command, *args], stderr=subprocess.PIPE, text=True, cwd=cwd, env=environment()
        )
        self.lines: list[str] = []

    def until(self, pattern: str) -> re.Match[str]:
        """The match of the next line that has one."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line.rstrip("\n"))
            if match := re.search(pattern, line):
                return match
        raise AssertionError(f"no {pattern!r} in {self.lines}")

    def end(self, number: int = signal.SIGINT) -> int:
        """Send a signal and wait; the exit code."""
        self.process.send_signal(number)
        assert self.process.stderr is not None
        self.lines += self.process.stderr.read().splitlines()
        return self.process.wait(DEADLINE_S)
