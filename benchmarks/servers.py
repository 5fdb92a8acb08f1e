"""Start the compared servers, each in its own folder, and stop them."""

from __future__ import annotations

import os
import resource
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

# Servers built by `make originals` come before those of the machine; nats-server is the newest.
_BUILT = Path(__file__).resolve().parent.parent / ".originals"
os.environ["PATH"] = os.pathsep.join(
    [str(_BUILT / "newest"), str(_BUILT / "bin"), os.environ.get("PATH", os.defpath)]
)

READY_SECONDS = 15.0
STOP_SECONDS = 30.0
POLL_SECONDS = 0.01
SPARE_FILES = 200  # besides sockets: Python's files, pipes, the log
LOG_SHOWN_CHARS = 2000

OURS = (
    "{python} -m broker serve --data {data} --nats 127.0.0.1:{nats} --monitor 127.0.0.1:0"
    " --nsq 127.0.0.1:{nsq} --nsq-http 127.0.0.1:0 --bulk 127.0.0.1:0"
    " --console 127.0.0.1:0"
)
NATS_SERVER = "nats-server -a 127.0.0.1 -p {nats}"
# Everything stays in memory: nsqd at its best.
NSQD = (
    "nsqd -tcp-address 127.0.0.1:{nsq} -http-address 127.0.0.1:{http} -data-path {data}"
    " -mem-queue-size 5000000 -log-level warn"
)
# The default: a backlog above 10,000 messages is written to the disk.
NSQD_DEFAULT = NSQD.replace(" -mem-queue-size 5000000", "")


class ServerError(Exception):
    """A server that did not start or did not end."""


@dataclass(frozen=True)
class Running:
    """A server that answers."""

    pid: int
    nats: tuple[str, int]
    nsq: tuple[str, int]
    http: tuple[str, int]
    data: Path

    def memory_bytes(self) -> dict[str, int]:
        """VmRSS and VmHWM (its peak), of the process and of its children, if it has any."""
        total = {"VmRSS": 0, "VmHWM": 0}
        for pid in _family(self.pid):
            lines = Path(f"/proc/{pid}/status").read_text().splitlines()
            fields = dict(line.split(":", 1) for line in lines)
            for name in total:
                total[name] += int(fields[name].split()[0]) * 1024
        return total

    def cpu_seconds(self) -> float:
        """Processor time of all its threads, in steps of the scheduler's clock."""
        total = 0
        for pid in _family(self.pid):
            for path in Path(f"/proc/{pid}/task").glob("*/schedstat"):
                total += int(path.read_text().split()[0])
        return total / 1e9


def _family(root: int) -> list[int]:
    """A process and all below it: a command may be a script that starts the server."""
    parents: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            # The name in parentheses may contain anything; the parent is the second field after it.
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue
    family = [root]
    for member in family:
        family += [pid for pid, parent in parents.items() if parent == member]
    return family


def found(command: str) -> bool:
    """Whether the program of a command is installed."""
    return shutil.which(command.format_map(_Blank()).split()[0]) is not None


def words_of(command: str, **fields: object) -> list[str]:
    """A command with its fields filled in. It runs in a folder of its own: there, `-m broker` of
    another build's Python is not the one of the current folder."""
    words = [word.format(python=sys.executable, **fields) for word in shlex.split(command)]
    return [str(Path(shutil.which(words[0]) or words[0]).absolute()), *words[1:]]


@contextmanager
def compiled(name: str) -> Iterator[Path]:
    """The program of a C file of this folder, compiled with cc."""
    with tempfile.TemporaryDirectory(prefix="twinwire-bench-") as folder:
        program = Path(folder) / name
        source = Path(__file__).with_name(f"{name}.c")
        subprocess.run(["cc", "-O2", "-pthread", "-o", program, source], check=True)
        yield program


class _Blank(dict[str, str]):
    def __missing__(self, key: str) -> str:
        return sys.executable if key == "python" else key


def raise_file_limit(wanted: int) -> int:
    """For servers started from here, which inherit it; the number of connections it allows."""
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = wanted + SPARE_FILES
    if hard != resource.RLIM_INFINITY and hard < limit:
        limit = hard
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    return limit - SPARE_FILES


def free_port() -> int:
    """A free loopback port."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


@contextmanager
def running(
    command: str,
    listeners: tuple[str, ...],
    root: str | None = None,
    ready_s: float = READY_SECONDS,
) -> Iterator[Running]:
    """Run a command of this module until the block ends. `listeners`: the ports to wait for, for
    `ready_s` at most."""
    with tempfile.TemporaryDirectory(prefix="twinwire-bench-", dir=root) as folder:
        data = Path(folder) / "data"
        data.mkdir()
        ports = {name: free_port() for name in ("nats", "nsq", "http")}
        words = words_of(command, data=data, **ports)
        log_path = Path(folder) / "log"
        with log_path.open("wb") as log:
            child = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, cwd=folder
            )
        try:
            for listener in listeners:
                _await_listener(child, ports[listener], log_path, ready_s)
            nats, nsq, http = (("127.0.0.1", ports[name]) for name in ("nats", "nsq", "http"))
            yield Running(child.pid, nats, nsq, http, data)
            if child.poll() is not None:
                raise ServerError(f"{words[0]} ended by itself\n{_tail(log_path)}")
        finally:
            _end(child)


def _await_listener(
    child: subprocess.Popen[bytes], port: int, log_path: Path, ready_s: float
) -> None:
    deadline = time.monotonic() + ready_s
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            if child.poll() is not None or time.monotonic() > deadline:
                raise ServerError(f"a server did not start\n{_tail(log_path)}") from None
            time.sleep(POLL_SECONDS)
        else:
            return


def _end(child: subprocess.Popen[bytes]) -> None:
    if child.poll() is None:
        child.send_signal(signal.SIGTERM)
    try:
        child.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def _tail(log_path: Path) -> str:
    return log_path.read_text(errors="replace")[-LOG_SHOWN_CHARS:].strip()
