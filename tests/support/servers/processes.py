"""Servers under test, each a real process: Twinwire, or the two originals with one interface.

A config is a mapping of section to keys, as in Twinwire's TOML file. The originals use its sections
`nats` and `nsq` and ignore keys that only Twinwire has.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

TARGET_ORIGINAL = os.environ.get("TWINWIRE_TEST_TARGET", "ours") == "original"
START_DEADLINE_S = 30.0
PORT_WAIT_S = 5.0  # a broker waits so long for its earlier port; then it gets another one
STOP_DEADLINE_S = 20.0
POLL_S = 0.01
IGNORED_EXCEPTION = "Exception ignored in"

Config = Mapping[str, Mapping[str, object]]

OURS_ONLY_NSQ = frozenset({"requeue_on_close"})
# Lists have other names on nsqd's command line than in its file.
ORIGINAL_FLAGS = {
    "auth_http_addresses": "auth-http-address",
    "e2e_processing_latency_percentiles": "e2e-processing-latency-percentile",
}
_RUNNING: list[Server] = []


class ServerError(AssertionError):
    """A server did not start, or ended by itself."""


class Address(NamedTuple):
    """A bound TCP address."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"

    @classmethod
    def parse(cls, text: str) -> Address:
        """Read `HOST:PORT`."""
        host, _, port = text.rpartition(":")
        return cls(host.strip("[]"), int(port))


ANY = Address("127.0.0.1", 0)
PORT_IN_USE = "address already in use"  # in the errors of all servers
LISTENERS = ("nats", "monitor", "nsq", "nsq_http", "bulk", "console")


def running_servers() -> list[Server]:
    """Servers started and not yet stopped, oldest first."""
    return list(_RUNNING)


def check_exceptions(log: str) -> None:
    """Raise if a process has logged an ignored exception: a part of a function was skipped without
    an error."""
    if IGNORED_EXCEPTION in log:
        raise ServerError(log[max(0, log.index(IGNORED_EXCEPTION) - 2000) :])


class _Process:
    """A child process; the output of all its starts is appended to one file."""

    def __init__(self, log: Path) -> None:
        self.log = log
        self.command: Sequence[str] = ()
        self.child: subprocess.Popen[bytes] | None = None
        self.log_start = 0

    def spawn(self, command: Sequence[str]) -> None:
        self.command = command
        with self.log.open("ab") as log:
            self.log_start = log.tell()
            self.child = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
            )

    def output(self, start: int | None = None) -> str:
        """The log from offset `start` or the last start on; empty if its folder was removed."""
        if not self.log.exists():
            return ""
        with self.log.open("rb") as log:
            log.seek(self.log_start if start is None else start)
            return log.read().decode("utf-8", "replace")

    def step(self) -> None:
        """Wait for POLL_S. ServerError: the process has ended."""
        assert self.child is not None
        try:
            code = self.child.wait(POLL_S)
        except subprocess.TimeoutExpired:
            return
        raise ServerError(f"{self.command[0]} ended with {code} while starting\n{self.output()}")

    def end(self, number: signal.Signals) -> int:
        """Send a signal and wait for the exit code."""
        if self.child is None:
            raise ServerError("the process was never started")
        if self.child.poll() is None:
            self.child.send_signal(number)
        try:
            code = self.child.wait(STOP_DEADLINE_S)
        except subprocess.TimeoutExpired:
            self.child.kill()
            self.child.wait()
            raise ServerError(
                f"{self.command[0]} did not end on {number.name}\n{self.output()}"
            ) from None
        check_exceptions(self.output())
        return code


class Server(ABC):
    """A server under test: starts, stops, kills and restarts its processes on the same ports."""

    def __init__(
        self, folder: Path, config: Config | None = None, data: Path | None = None
    ) -> None:
        self.folder = folder
        self.config: Config = config or {}
        self.data = data or folder / "data"
        self.addresses: dict[str, Address] = dict.fromkeys(LISTENERS, ANY)
        self.started = False
        self.end_expected = False
        self.had_ports = False  # it was started before, and is started on the same ports again
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def nats(self) -> Address:
        return self.addresses["nats"]

    @property
    def monitor(self) -> Address:
        return self.addresses["monitor"]

    @property
    def nsq(self) -> Address:
        return self.addresses["nsq"]

    @property
    def nsq_http(self) -> Address:
        return self.addresses["nsq_http"]

    @property
    def bulk(self) -> Address:
        return self.addresses["bulk"]

    @property
    def nats_url(self) -> str:
        return f"nats://{self.nats}"

    @property
    @abstractmethod
    def processes(self) -> list[_Process]: ...

    @abstractmethod
    def _launch(self) -> None:
        """Start every process and set `addresses`; known addresses are used again."""

    @property
    def pids(self) -> list[int]:
        return [p.child.pid for p in self.processes if p.child is not None]

    def start(self) -> Server:
        """Start and wait until every listener is bound."""
        self.data.mkdir(parents=True, exist_ok=True)
        self.end_expected = False
        deadline = time.monotonic() + START_DEADLINE_S
        while True:
            try:
                self._launch()
                break
            except ServerError as problem:
                self._end(signal.SIGKILL)
                # Its port may be that of an outgoing connection of another test for a moment.
                taken = self.had_ports and PORT_IN_USE in str(problem).lower()
                if not taken or time.monotonic() > deadline:
                    raise
                threading.Event().wait(POLL_S)
            except BaseException:
                self._end(signal.SIGKILL)
                raise
        self.started = self.had_ports = True
        _RUNNING.append(self)
        return self

    def _end(self, number: signal.Signals) -> list[int]:
        self.end_expected = True
        self.started = False
        if self in _RUNNING:
            _RUNNING.remove(self)
        return [p.end(number) for p in self.processes if p.child is not None]

    def kill(self) -> None:
        """Kill all processes, as a crash would."""
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """Stop all processes with SIGTERM. Returns the highest exit code."""
        return max(self._end(signal.SIGTERM), key=abs)

    def restart(self) -> None:
        """Stop the server if it runs, and start it again with the same data and ports."""
        if self.started:
            self.stop()
        self.start()

    def wait_ended(self, *, deadline_s: float = STOP_DEADLINE_S) -> int:
        """Wait until the server ends, for example after a signal. Returns its exit code."""
        child = self.processes[0].child
        assert child is not None
        code = child.wait(deadline_s)
        self._end(signal.SIGKILL)
        return code

    def check_alive(self) -> None:
        """Raise if a process ended without being stopped."""
        for process in self.processes:
            child = process.child
            if not self.end_expected and child is not None and child.poll() is not None:
                raise ServerError(
                    f"{process.command[0]} ended with {child.returncode}\n{process.output()}"
                )

    def close(self) -> None:
        """Stop the server at the end of a test. ServerError: it had ended before."""
        try:
            self.check_alive()
        finally:
            if self.started:
                self._end(signal.SIGTERM)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to every process, without waiting."""
        for pid in self.pids:
            os.kill(pid, number)

    def await_log(self, text: str) -> None:
        """Wait until the logs since the last start contain a text."""
        deadline = time.monotonic() + START_DEADLINE_S
        while text not in self.log_since():
            self.processes[0].step()
            if time.monotonic() > deadline:
                raise ServerError(f"nothing of {text!r} in the log\n{self.log_since()}")

    def log_marks(self) -> list[int]:
        """Positions in the logs, for `log_since`."""
        return [p.log.stat().st_size if p.log.exists() else 0 for p in self.processes]

    def log_since(self, marks: Sequence[int] | None = None) -> str:
        """What the processes wrote to stderr after the marks, or since their last start."""
        starts: Sequence[int | None] = marks or [None] * len(self.processes)
        return "".join(p.output(s) for p, s in zip(self.processes, starts, strict=True))


class Broker(Server):
    """Our broker, `serve` on free loopback ports."""

    def __init__(
        self,
        folder: Path,
        config: Config | str | None = None,
        data: Path | None = None,
        arguments: Sequence[str] = (),
    ) -> None:
        super().__init__(folder, None if isinstance(config, str) else config, data)
        self.config_text = config if isinstance(config, str) else _toml(self.config)
        self.arguments = arguments
        self._process = _Process(folder / "broker.log")

    @property
    def processes(self) -> list[_Process]:
        return [self._process]

    def command(self, ports_file: Path) -> list[str]:
        """The command line, asking for the ports of the last start if there was one."""
        flags = {listener: f"--{listener.replace('_', '-')}" for listener in LISTENERS}
        command = [sys.executable, "-m", "broker", "serve", "--data", str(self.data)]
        for listener, flag in flags.items():
            command += [flag, str(self.addresses[listener])]
        command += ["--ports-file", str(ports_file)]
        if self.config_text:
            config = self.folder / "twinwire.toml"
            config.write_text(self.config_text)
            command += ["-c", str(config)]
        return [*command, *self.arguments]

    def _launch(self) -> None:
        ports_file = self.folder / "ports.json"
        ports_file.unlink(missing_ok=True)
        self._process.spawn(self.command(ports_file))
        start = time.monotonic()
        deadline = start + START_DEADLINE_S
        while not ports_file.exists():
            try:
                self._process.step()
            except ServerError as problem:
                # another process uses a port of the last start, perhaps for a connection
                if PORT_IN_USE not in str(problem).lower() or time.monotonic() > deadline:
                    raise
                if time.monotonic() > start + PORT_WAIT_S:  # or for a server
                    for listener, address in self.addresses.items():
                        if f":{address.port}: " in str(problem):
                            self.addresses[listener] = address._replace(port=0)
                self._process.spawn(self.command(ports_file))
            if time.monotonic() > deadline:
                raise ServerError(f"no ports file in time\n{self._process.output()}")
        for listener, text in json.loads(ports_file.read_text()).items():
            if listener in self.addresses and text:
                self.addresses[listener] = Address.parse(text)


class Originals(Server):
    """nats-server and nsqd as one server, so that the tests also run with the originals."""

    def __init__(
        self, folder: Path, config: Config | None = None, data: Path | None = None
    ) -> None:
        super().__init__(folder, config, data)
        self._nats_process = _Process(folder / "nats-server.log")
        self._nsq_process = _Process(folder / "nsqd.log")

    @staticmethod
    def missing() -> list[str]:
        """Programs not found on PATH."""
        return [name for name in ("nats-server", "nsqd") if shutil.which(name) is None]

    @property
    def processes(self) -> list[_Process]:
        return [self._nats_process, self._nsq_process]

    def _launch(self) -> None:
        self._nats_process.spawn(self._nats_command())
        self._nsq_process.spawn(self._nsq_command())
        self._await_nats()
        self._await_nsq()

    def _nats_command(self) -> list[str]:
        lines = {
            "listen": _nats_listen(self.nats),
            "http": _nats_listen(self.monitor),
            "ports_file_dir": str(self.folder),
            **self.config.get("nats", {}),
        }
        path = self.folder / "nats.conf"
        path.write_text("".join(f"{key}: {json.dumps(value)}\n" for key, value in lines.items()))
        return ["nats-server", "-c", str(path)]

    def _nsq_command(self) -> list[str]:
        command = ["nsqd", f"--data-path={self.data}", f"--tcp-address={self.nsq}"]
        command += [f"--http-address={self.nsq_http}", "--https-address=127.0.0.1:0"]
        command.append("--broadcast-address=127.0.0.1")
        for key, value in self.config.get("nsq", {}).items():
            if key not in OURS_ONLY_NSQ:
                flag = ORIGINAL_FLAGS.get(key, key.replace("_", "-"))
                values = value if isinstance(value, list) else [value]
                command += [f"--{flag}={_flag(entry)}" for entry in values]
        return command

    def _await_nats(self) -> None:
        child = self._nats_process.child
        assert child is not None
        path = self.folder / f"nats-server_{child.pid}.ports"
        deadline = time.monotonic() + START_DEADLINE_S
        while True:
            self._nats_process.step()
            try:
                ports = json.loads(path.read_text())
                break
            except (FileNotFoundError, ValueError):
                if time.monotonic() > deadline:
                    raise ServerError(self._nats_process.output()) from None
        self.addresses["nats"] = Address.parse(ports["nats"][0].removeprefix("nats://"))
        self.addresses["monitor"] = Address.parse(ports["monitoring"][0].removeprefix("http://"))

    def _await_nsq(self) -> None:
        deadline = time.monotonic() + START_DEADLINE_S
        found: dict[str, str] = {}
        while len(found) < 2:
            self._nsq_process.step()
            for line in self._nsq_process.output().splitlines():
                for word in ("TCP: listening on ", "HTTP: listening on "):
                    if word in line:
                        found[word] = line.split(word)[1]
            if time.monotonic() > deadline:
                raise ServerError(self._nsq_process.output())
        self.addresses["nsq"] = Address.parse(found["TCP: listening on "])
        self.addresses["nsq_http"] = Address.parse(found["HTTP: listening on "])


def _nats_listen(address: Address) -> str:
    return f"{address.host}:{address.port or -1}"  # nats-server's word for a free port


def _toml(config: Config) -> str:
    """Render sections of plain values and arrays of tables."""
    lines: list[str] = []
    for section, keys in config.items():
        tables = {k: v for k, v in keys.items() if isinstance(v, list) and _is_tables(v)}
        lines.append(f"[{section}]")
        lines += [f"{k} = {json.dumps(v)}" for k, v in keys.items() if k not in tables]
        for name, rows in tables.items():
            for row in rows:
                lines.append(f"[[{section}.{name}]]")
                lines += [f"{k} = {json.dumps(v)}" for k, v in row.items()]
    return "".join(f"{line}\n" for line in lines)


def _is_tables(value: Sequence[object]) -> bool:
    return bool(value) and all(isinstance(row, Mapping) for row in value)


def _flag(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
