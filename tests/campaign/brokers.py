"""Brokers that start in a tenth of a second, with faults that can be switched at run time."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from support.servers.processes import (
    _RUNNING,
    START_DEADLINE_S,
    Address,
    Broker,
    Config,
    ServerError,
    _Process,
)

SPAWN = Path(__file__).with_name("spawn.py")


class Child:
    """A forked broker with the part of `subprocess.Popen` that the harness uses."""

    def __init__(self, spawner: Spawner, pid: int) -> None:
        self.spawner = spawner
        self.pid = pid
        self.descriptor = os.pidfd_open(pid)  # readable when it has ended
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = self.spawner.ask({"wait": self.pid})["status"]
            if self.returncode is not None:
                os.close(self.descriptor)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            select.select([self.descriptor], [], [], timeout)
        if (code := self.poll()) is None:
            raise subprocess.TimeoutExpired("broker", timeout or 0)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Spawner:
    """The process that brokers are forked from; `environment` is added to theirs."""

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        self.lock = threading.Lock()
        self.process = subprocess.Popen(
            [sys.executable, str(SPAWN)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **(environment or {})},
        )

    def ask(self, order: dict[str, Any]) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with self.lock:
            self.process.stdin.write(json.dumps(order).encode() + b"\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        if not line:
            raise ServerError("the process that starts brokers has ended")
        return json.loads(line)

    def run(self, arguments: Sequence[str], log: Path) -> Child:
        return Child(self, self.ask({"run": list(arguments), "log": str(log)})["pid"])

    def close(self) -> None:
        """End it with every broker that it started."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait()

    def __enter__(self) -> Spawner:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Forked(_Process):
    """A process that a spawner starts."""

    def __init__(self, log: Path, spawner: Spawner) -> None:
        super().__init__(log)
        self.spawner = spawner

    def spawn(self, command: Sequence[str]) -> None:
        self.command = command
        self.log_start = self.log.stat().st_size if self.log.exists() else 0
        # without `python -m broker`
        self.child = self.spawner.run(command[3:], self.log)  # type: ignore[assignment]


class ForkedBroker(Broker):
    """`twinwire serve` of a spawner. Each start picks free ports: others may have taken ours."""

    def __init__(
        self,
        spawner: Spawner,
        folder: Path,
        config: Config | str | None = None,
        data: Path | None = None,
    ) -> None:
        super().__init__(folder, config, data)
        self._process = _Forked(folder / "broker.log", spawner)
        self.ports: dict[str, Address] = {}

    @property
    def pid(self) -> int:
        child = self._process.child
        assert child is not None
        return child.pid

    @property
    def ports_file(self) -> Path:
        return self.folder / "ports.json"

    def begin(self) -> None:
        """Start without waiting for it."""
        self.data.mkdir(parents=True, exist_ok=True)
        self.end_expected = False
        self.started = True
        self.ports_file.unlink(missing_ok=True)
        self.addresses = {listener: Address("127.0.0.1", 0) for listener in self.addresses}
        self._process.spawn(self.command(self.ports_file))

    def is_ready(self) -> bool:
        """Whether every listener is open. ServerError when it has ended instead."""
        child = self._process.child
        assert child is not None
        if not self.ports_file.exists():
            if (code := child.poll()) is not None:
                raise ServerError(f"ended with {code} while starting\n{self._process.output()}")
            return False
        found = json.loads(self.ports_file.read_text())
        self.ports = {listener: Address.parse(text) for listener, text in found.items() if text}
        self.addresses |= {d: a for d, a in self.ports.items() if d in self.addresses}
        return True

    def _launch(self) -> None:
        self.begin()
        deadline = time.monotonic() + START_DEADLINE_S
        while not self.is_ready():
            if time.monotonic() > deadline:
                raise ServerError(f"not ready in time\n{self._process.output()}")
            self._process.step()

    def shoot(self) -> None:
        """kill -9, whatever it is doing."""
        child = self._process.child
        assert child is not None
        child.kill()
        self.ended(START_DEADLINE_S)

    def send(self, number: signal.Signals) -> None:
        """Send it a signal."""
        os.kill(self.pid, number)

    def ended(self, deadline_s: float) -> int:
        """Wait for its end; the exit code."""
        child = self._process.child
        assert child is not None
        code = child.wait(deadline_s)
        self.end_expected = True
        self.started = False
        if self in _RUNNING:
            _RUNNING.remove(self)
        return code

    def output(self) -> str:
        """Its output since its last start."""
        return self._process.output()
