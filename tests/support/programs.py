"""nsqd and nsqlookupd as processes: Twinwire's or the originals, with the same flags."""

from __future__ import annotations

import re
import shutil
import signal
import sys
import time
from pathlib import Path

from support.servers.processes import (
    START_DEADLINE_S,
    TARGET_ORIGINAL,
    Address,
    ServerError,
    _Process,
)


class Program:
    """One process, started with port 0; its addresses are those that it logs."""

    def __init__(
        self, folder: Path, name: str, *flags: str, original: bool = TARGET_ORIGINAL
    ) -> None:
        self.process = _Process(folder / f"{name}.log")
        self.name = name
        command = [name] if original else [sys.executable, "-m", "broker", name]
        self.command = [*command, *flags]
        self.tcp = self.http = Address("127.0.0.1", 0)

    @staticmethod
    def missing(*names: str) -> bool:
        """Whether one of the originals is not on PATH."""
        return any(shutil.which(name) is None for name in names)

    def __enter__(self) -> Program:
        self.process.spawn(
            [*self.command, f"--tcp-address={self.tcp}", f"--http-address={self.http}"]
        )
        self.tcp = Address.parse(self.await_log(r" TCP: listening on (\S+)"))
        self.http = Address.parse(self.await_log(r" HTTP: listening on (\S+)"))
        return self

    def await_log(self, pattern: str) -> str:
        """Wait for a line of the log; its first group."""
        deadline = time.monotonic() + START_DEADLINE_S
        while True:
            if match := re.search(pattern, self.process.output()):
                return match[1] if match.groups() else match[0]
            self.process.step()
            if time.monotonic() > deadline:
                raise ServerError(f"nothing of {pattern!r}\n{self.process.output()}")

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """End it; the exit code."""
        return self.process.end(number)

    def __exit__(self, *_: object) -> None:
        self.stop()


def lookupd(folder: Path, *flags: str, original: bool = TARGET_ORIGINAL) -> Program:
    """nsqlookupd."""
    return Program(folder, "nsqlookupd", *flags, original=original)


def nsqd(folder: Path, *flags: str, original: bool = TARGET_ORIGINAL) -> Program:
    """nsqd on a data folder of its own."""
    data = folder / "nsqd"
    data.mkdir(exist_ok=True)
    more = (f"--data-path={data}", "--broadcast-address=127.0.0.1")
    return Program(folder, "nsqd", *more, *flags, original=original)
