"""`Broker`: a broker process of a test."""

from __future__ import annotations

import contextlib
import errno
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, Final, Self

from twinwire.testing.faults import Faults
from twinwire.testing.settings import Sections, toml

LISTENERS: Final = ("nats", "monitor", "nsq", "nsq_http", "bulk", "console")
HOST: Final = "127.0.0.1"
START_S: Final = 30.0
STOP_S: Final = 30.0
HEALTHY_S: Final = 30.0
_RECHECK_S: Final = 0.02  # between two requests of /healthz
_MAIN: Final = "from twinwire.testing.process import main; main()"
_PREFIX: Final = "TWINWIRE_"
_PORT_TRIES: Final = 5
_PORT_IN_USE: Final = os.strerror(errno.EADDRINUSE)

_running: list[Broker] = []


class BrokerError(Exception):
    """A request of the test to its broker failed. The text usually ends with the broker's log."""


def running() -> tuple[Broker, ...]:
    """The running brokers of this process, in the order of their start."""
    return tuple(_running)


class Broker:
    """A broker with all its listeners on free ports of 127.0.0.1 and its data in a folder.

    `config` has sections and keys as in conf/twinwire.toml: {"storage": {"sync": "always"}}; the
    addresses of the listeners cannot be changed. NATS Streaming is enabled. Without `folder` the
    broker has a temporary folder, which `close` removes. `restart`, `stop` and `kill` keep the
    ports and the data. The broker's process ends when the test's process ends, even if that is
    killed.
    """

    def __init__(
        self,
        config: Sections | None = None,
        *,
        folder: str | os.PathLike[str] | None = None,
        start_timeout_s: float = START_S,
    ) -> None:
        self._toml = toml(config or {})
        self._is_temporary = folder is None
        self._folder = None if folder is None else Path(folder)
        self._start_timeout_s = start_timeout_s
        self._reserved: dict[str, socket.socket] = {}
        self._addresses: dict[str, str] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._answers: IO[bytes] | None = None
        self._lines: list[str] = []
        self._logged = threading.Condition()
        self._reader: threading.Thread | None = None
        self._asking = threading.Lock()
        self.faults = Faults(self._ask, self._await_health)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        import asyncio

        await asyncio.to_thread(self.start)
        return self

    async def __aexit__(self, *_: object) -> None:
        import asyncio

        await asyncio.to_thread(self.close)

    def __repr__(self) -> str:
        state = f"pid={self.pid}" if self.is_running else "stopped"
        return f"<Broker {state} {self.folder}>"

    # --- addresses

    @property
    def nats_url(self) -> str:
        """For NATS, JetStream and NATS Streaming clients: nats://HOST:PORT."""
        return f"nats://{self.address('nats')}"

    @property
    def stan_cluster_id(self) -> str:
        """The cluster ID for NATS Streaming clients, unless the configuration changes it."""
        return "test-cluster"

    @property
    def nsqd_tcp_address(self) -> str:
        """For NSQ clients: HOST:PORT."""
        return self.address("nsq")

    @property
    def nsqd_http_address(self) -> str:
        """For publishing and administration of NSQ over HTTP: HOST:PORT."""
        return self.address("nsq_http")

    @property
    def monitor_url(self) -> str:
        """Of /healthz, /varz and /metrics: http://HOST:PORT."""
        return f"http://{self.address('monitor')}"

    @property
    def bulk_address(self) -> str:
        """For the bulk API: HOST:PORT."""
        return self.address("bulk")

    @property
    def console_url(self) -> str:
        """Of the web console: http://HOST:PORT."""
        return f"http://{self.address('console')}"

    def address(self, listener: str) -> str:
        """HOST:PORT of nats, monitor, nsq, nsq_http, bulk, console or a listener of the
        configuration."""
        if listener not in self._addresses:
            known = ", ".join(self._addresses) or "none before the first start"
            raise BrokerError(f"no listener {listener!r}; there are: {known}")
        return self._addresses[listener]

    @property
    def folder(self) -> Path:
        """The folder of the configuration and of `data`."""
        if self._folder is None:
            raise BrokerError("the broker has no folder before its first start")
        return self._folder

    @property
    def data(self) -> Path:
        """The data folder."""
        return self.folder / "data"

    # --- the process

    @property
    def is_running(self) -> bool:
        """Whether the process runs."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """The process id. BrokerError: it is not running."""
        if self._process is None or self._process.poll() is not None:
            raise BrokerError(f"the broker is not running\n{self.logs}")
        return self._process.pid

    def start(self) -> None:
        """Start the broker, and wait until all listeners are open. BrokerError: the process ended,
        or the start takes too long."""
        if self.is_running:
            raise BrokerError("the broker is running already")
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="twinwire-"))
        self.folder.mkdir(parents=True, exist_ok=True)
        file = self.folder / "twinwire.toml"
        file.write_text(self._toml, encoding="utf-8")
        for tries_left in reversed(range(_PORT_TRIES)):
            self._reserve()
            try:
                self._start(file)
                return
            except BrokerError:
                # Another program may open a reserved port by its number. Until the first start has
                # succeeded no client knows the ports, so other ports can be used.
                if not tries_left or self._addresses or _PORT_IN_USE not in self.logs:
                    raise
                self._release()

    def _start(self, file: Path) -> None:
        try:
            self._spawn(["--config", str(file), "--data", str(self.data)])
            self._addresses = self._await_ready()
        except BaseException:
            self._end(signal.SIGKILL, STOP_S)
            raise
        _running.append(self)

    def stop(self, timeout_s: float = STOP_S) -> int:
        """Stop the broker with SIGTERM, and return the exit code. BrokerError: the stop takes too
        long."""
        return self._end(signal.SIGTERM, timeout_s)

    def kill(self) -> None:
        """End the process with SIGKILL, like a crash."""
        self._end(signal.SIGKILL, STOP_S)

    def restart(self) -> None:
        """Stop the broker if it is running, and start it with the same ports and data."""
        if self.is_running:
            self.stop()
        self.start()

    def pause(self) -> None:
        """Stop the execution of the process with SIGSTOP: its connections stay open, and it sends
        nothing."""
        pid = self.pid
        os.kill(pid, signal.SIGSTOP)
        os.waitid(os.P_PID, pid, os.WSTOPPED)  # kill() does not wait

    def resume(self) -> None:
        """End a pause."""
        os.kill(self.pid, signal.SIGCONT)

    def close(self) -> None:
        """Stop the broker, and remove its temporary folder."""
        try:
            if self.is_running:
                self.resume()
                self.stop()
        finally:
            self._release()
            if self._is_temporary and self._folder is not None:
                shutil.rmtree(self._folder, ignore_errors=True)
                self._folder = None

    # --- the log

    @property
    def logs(self) -> str:
        """Everything that the broker has logged since the first start."""
        with self._logged:
            return "".join(self._lines)

    def wait_for_log(self, text: str, timeout_s: float = START_S) -> str:
        """Wait until the log has a line with this text, and return the line. BrokerError: the
        timeout has passed."""
        with self._logged:
            found: list[str] = []
            seen = 0

            def find_new() -> bool:
                nonlocal seen
                found.extend(line for line in self._lines[seen:] if text in line)
                seen = len(self._lines)
                return bool(found)

            if not self._logged.wait_for(find_new, timeout_s):
                raise BrokerError(f"no {text!r} in the log\n{''.join(self._lines)}")
            return found[0]

    # --- the process's channels

    def _reserve(self) -> None:
        """Choose the ports, and reserve them while the broker is stopped: the system does not
        assign a port to which a socket is bound to a program that requests any free port."""
        for listener in LISTENERS:
            if listener not in self._reserved:
                one = socket.socket()
                one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                one.bind((HOST, 0))
                self._reserved[listener] = one

    def _release(self) -> None:
        for one in self._reserved.values():
            one.close()
        self._reserved.clear()

    def _spawn(self, flags: list[str]) -> None:
        for listener, one in self._reserved.items():
            flags += [f"--{listener.replace('_', '-')}", f"{HOST}:{one.getsockname()[1]}"]
        test_end, broker_end = socket.socketpair()
        with broker_end:
            # -P: modules in the working folder must not hide the modules that are imported.
            command = [
                sys.executable,
                "-P",
                "-c",
                _MAIN,
                str(broker_end.fileno()),
                str(os.getpid()),
            ]
            self._process = subprocess.Popen(  # noqa: S603 - Python, with our arguments
                [*command, *flags],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=[broker_end.fileno()],
                env=_environment(),
                start_new_session=True,  # ctrl-C in a terminal must only reach the test
            )
        self._control = test_end
        self._answers = test_end.makefile("rb")
        assert self._process.stdout is not None
        self._reader = threading.Thread(
            target=self._read_log, args=(self._process.stdout,), daemon=True
        )
        self._reader.start()

    def _read_log(self, pipe: IO[bytes]) -> None:
        with pipe:
            for line in pipe:
                with self._logged:
                    self._lines.append(line.decode("utf-8", "replace"))
                    self._logged.notify_all()

    def _await_ready(self) -> dict[str, str]:
        assert self._control is not None
        self._control.settimeout(self._start_timeout_s)
        answer = self._read_answer()
        self._control.settimeout(STOP_S)
        return {name: str(address) for name, address in answer["ready"].items()}

    def _read_answer(self) -> dict[str, Any]:
        assert self._answers is not None
        try:
            line = self._answers.readline()
        except OSError:  # a timeout too
            line = b""
        if line.endswith(b"\n"):
            return dict(json.loads(line))
        assert self._process is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(0.5)
        code = self._process.poll()
        if code is not None and self._reader is not None:
            self._reader.join(STOP_S)
        what = "gave no answer in time" if code is None else f"ended with {code}"
        raise BrokerError(f"the broker {what}\n{self.logs}")

    def _ask(self, request: Mapping[str, Any]) -> Any:
        if not self.is_running or self._control is None:
            raise BrokerError(f"the broker is not running\n{self.logs}")
        with self._asking:
            self._control.sendall(json.dumps(request).encode() + b"\n")
            answer = self._read_answer()
        if "error" in answer:
            raise BrokerError(answer["error"])
        return answer["ok"]

    def _await_health(self) -> None:
        """Wait until the broker is healthy. It retries writes to a failed log once a second."""
        deadline = time.monotonic() + HEALTHY_S
        while (reason := self._unhealthy()) is not None:
            if time.monotonic() > deadline:
                raise BrokerError(f"the broker does not recover: {reason}\n{self.logs}")
            time.sleep(_RECHECK_S)

    def _unhealthy(self) -> str | None:
        connection = http.client.HTTPConnection(self.address("monitor"), timeout=HEALTHY_S)
        with contextlib.closing(connection):
            connection.request("GET", "/healthz")
            answer = connection.getresponse()
            text = answer.read().decode("utf-8", "replace")
            return None if answer.status == http.client.OK else text

    def _end(self, number: signal.Signals, timeout_s: float) -> int:
        process = self._process
        if process is None:
            raise BrokerError("the broker was never started")
        if self in _running:
            _running.remove(self)
        self.faults._clear()
        if process.poll() is None:
            process.send_signal(number)
        try:
            code = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise BrokerError(f"the broker did not stop in {timeout_s} s\n{self.logs}") from None
        finally:
            self._close_channels()
        return code

    def _close_channels(self) -> None:
        if self._reader is not None:
            self._reader.join(STOP_S)
        for end in (self._answers, self._control):
            if end is not None:
                end.close()
        self._answers = self._control = None


def _environment() -> dict[str, str]:
    """The environment of the test, without settings for brokers, and with the path of this
    package."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(_PREFIX)}
    paths = [str(Path(__file__).resolve().parents[2]), os.environ.get("PYTHONPATH", "")]
    return kept | {"PYTHONPATH": os.pathsep.join(path for path in paths if path)}
