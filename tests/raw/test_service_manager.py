"""The protocols of a service manager: reports of the state, and sockets that it has opened."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
from support.servers.processes import TARGET_ORIGINAL

from broker.cli import notify

pytestmark = pytest.mark.skipif(TARGET_ORIGINAL, reason="the original servers have none of this")

DEADLINE_S = 60.0
PERIOD_USEC = 400_000
# Becomes the command with the sockets as descriptors 3, 4 ...; LISTEN_PID is that of the command.
PASS = """
import fcntl, os, sys
passed = [fcntl.fcntl(int(fd), fcntl.F_DUPFD_CLOEXEC, 64) for fd in sys.argv[1].split(",")]
for at, fd in enumerate(passed):
    os.dup2(fd, 3 + at)
os.environ |= {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": str(len(passed)),
               "LISTEN_FDNAMES": sys.argv[2]}
os.execv(sys.argv[3], sys.argv[3:])
"""


class Manager:
    """The socket to which a service reports."""

    def __init__(self, address: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(address.replace("@", "\0", 1))
        self.socket.settimeout(DEADLINE_S)
        self.environment = {"NOTIFY_SOCKET": address}

    def next(self) -> dict[str, str]:
        """The fields of the next report."""
        lines = self.socket.recv(4096).decode().split("\n")
        return dict(line.split("=", 1) for line in lines)

    def until(self, field: str) -> dict[str, str]:
        """The first report with this field."""
        while field not in (found := self.next()):
            pass
        return found


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Manager]:
    address = str(tmp_path / "notify")
    made = Manager(address if request.param == "path" else f"@twinwire-test{os.getpid()}{address}")
    with made.socket:
        yield made


def commands(folder: Path) -> dict[str, list[str]]:
    """Each server with its listeners at free ports."""
    free = "127.0.0.1:0"
    flags = ("--nats", "--monitor", "--nsq", "--nsq-http", "--bulk", "--console")
    listeners = [word for flag in flags for word in (flag, free)]
    nsq = [f"--tcp-address={free}", f"--http-address={free}"]
    streaming = ["-a", "127.0.0.1", "-p", "-1", "-store", "memory"]
    return {
        "serve": ["serve", "--data", str(folder / "serve"), *listeners],
        "nsqd": ["nsqd", f"--data-path={folder}", *nsq],
        "nsqlookupd": ["nsqlookupd", *nsq],
        "nats-server": ["nats-server", "-a", "127.0.0.1", "-p", "-1", "-c", str(folder / "n.conf")],
        "nats-streaming-server": ["nats-streaming-server", *streaming],
    }


@contextlib.contextmanager
def started(
    words: list[str], environment: dict[str, str], passing: Sequence[tuple[str, socket.socket]] = ()
) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "broker", *words]
    numbers = [one.fileno() for _, one in passing]
    if passing:
        fds, names = ",".join(map(str, numbers)), ":".join(name for name, _ in passing)
        command = [sys.executable, "-c", PASS, fds, names, *command]
    child = subprocess.Popen(
        command,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        pass_fds=numbers,
    )
    try:
        yield child
    finally:
        child.kill()
        child.communicate()


SERVERS = ("serve", "nsqd", "nsqlookupd", "nats-server", "nats-streaming-server")


@pytest.mark.parametrize("name", SERVERS)
def test_a_server_reports_its_state(name: str, tmp_path: Path, manager: Manager) -> None:
    (tmp_path / "n.conf").write_text("max_payload: 1000\n")
    watched = manager.environment | {"WATCHDOG_USEC": str(PERIOD_USEC)}
    with started(commands(tmp_path)[name], watched) as child:
        ready = manager.next()
        assert ready["READY"] == "1"
        assert "127.0.0.1:" in ready["STATUS"]
        assert manager.until("WATCHDOG") == manager.until("WATCHDOG") == {"WATCHDOG": "1"}
        if name in {"serve", "nsqd", "nsqlookupd", "nats-server"}:
            child.send_signal(signal.SIGHUP)
            reloading = manager.until("RELOADING")
            assert int(reloading["MONOTONIC_USEC"]) > 0
            assert manager.until("READY") == {"READY": "1"}
        child.send_signal(signal.SIGTERM)
        assert manager.until("STOPPING")["STATUS"] == "stopping"
        child.communicate(timeout=DEADLINE_S)


def test_a_failed_start_is_never_ready(tmp_path: Path, manager: Manager) -> None:
    words = commands(tmp_path)["serve"]
    with socket.create_server(("127.0.0.1", 0)) as taken:
        words[words.index("--nsq") + 1] = f"127.0.0.1:{taken.getsockname()[1]}"
        with started(words, manager.environment) as child:
            child.communicate(timeout=DEADLINE_S)
            assert child.returncode == 1
    manager.socket.setblocking(False)
    with pytest.raises(BlockingIOError):
        manager.next()


async def test_a_loop_that_hangs_reports_nothing(
    manager: Manager, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each report of a live process comes from the loop: none comes while it is blocked."""
    monkeypatch.setenv("NOTIFY_SOCKET", manager.environment["NOTIFY_SOCKET"])
    monkeypatch.setenv("WATCHDOG_USEC", "20000")
    notify.ready("")
    loop = asyncio.get_running_loop()
    await loop.run_in_executor(None, lambda: [manager.until("WATCHDOG") for _ in range(3)])
    manager.socket.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while True:
            manager.next()
    manager.socket.settimeout(0.3)  # fifteen periods, in which the loop does nothing else
    with pytest.raises(TimeoutError):
        manager.next()
    manager.socket.settimeout(DEADLINE_S)
    await loop.run_in_executor(None, manager.until, "WATCHDOG")


@pytest.mark.parametrize(("period", "pid"), [("", ""), ("0", ""), ("none", ""), ("20000", "1")])
async def test_a_watchdog_of_nobody(
    period: str, pid: str, manager: Manager, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("WATCHDOG_USEC", period), ("WATCHDOG_PID", pid)):
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("NOTIFY_SOCKET", manager.environment["NOTIFY_SOCKET"])
    notify.ready("here")
    assert manager.next() == {"READY": "1", "STATUS": "here"}
    manager.socket.setblocking(False)
    with pytest.raises(BlockingIOError):
        manager.next()


def test_a_manager_that_is_gone_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for address in (str(tmp_path / "nobody"), "@twinwire-nobody", "vsock:2:1", ""):
        monkeypatch.setenv("NOTIFY_SOCKET", address)
        assert not notify.report("READY=1")


# --- sockets


class Passed(NamedTuple):
    """A listening socket and its address."""

    socket: socket.socket
    address: str


@pytest.fixture
def passed() -> Iterator[Passed]:
    with socket.create_server(("127.0.0.1", 0)) as one:
        yield Passed(one, "127.0.0.1:{1}".format(*one.getsockname()))


def hello(address: str, send: bytes) -> bytes:
    """What a server answers first."""
    host, port = address.split(":")
    with socket.create_connection((host, int(port)), DEADLINE_S) as client:
        client.sendall(send)
        return client.recv(6)


@pytest.mark.parametrize(
    ("flag", "name", "send", "answer"),
    [
        ("--nats", "nats", b"", b"INFO {"),
        ("--nsq", "nsq", b"  V1SUB x\n", b"\0\0\0"),
        ("--nsq-http", "nsq-http", b"GET /ping HTTP/1.1\r\nHost: localhost\r\n\r\n", b"HTTP/1"),
    ],
)
def test_a_listener_that_was_passed(
    flag: str, name: str, send: bytes, answer: bytes, tmp_path: Path, passed: Passed
) -> None:
    """Clients that connect before the start are served, and again after a restart."""
    words = commands(tmp_path)["serve"]
    words[words.index(flag) + 1] = passed.address
    for _ in range(2):
        host, port = passed.address.split(":")
        with socket.create_connection((host, int(port)), DEADLINE_S) as early:
            early.sendall(send)
            with started(words, {}, [(name, passed.socket)]) as child:
                assert early.recv(6).startswith(answer)
                assert hello(passed.address, send).startswith(answer)
                child.send_signal(signal.SIGTERM)
                _, _ = child.communicate(timeout=DEADLINE_S)
                assert child.returncode == 0


@pytest.mark.parametrize(("server", "name"), [("nsqd", "nsq"), ("nsqlookupd", "nsqlookupd")])
def test_nsq_drop_ins_use_it(server: str, name: str, tmp_path: Path, passed: Passed) -> None:
    words = commands(tmp_path)[server]
    words[words.index("--tcp-address=127.0.0.1:0")] = f"--tcp-address={passed.address}"
    with started(words, {}, [(name, passed.socket)]):
        assert hello(passed.address, b"  V1WHAT\n")[:3] == b"\0\0\0"


@pytest.mark.parametrize("server", ["nats-server", "nats-streaming-server"])
def test_nats_drop_ins_use_it(server: str, tmp_path: Path, passed: Passed) -> None:
    (tmp_path / "n.conf").write_text("max_payload: 1000\n")
    words = commands(tmp_path)[server]
    words[words.index("-p") + 1] = passed.address.split(":")[1]
    with started(words, {}, [("nats", passed.socket)]):
        assert hello(passed.address, b"") == b"INFO {"


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("what", "the socket 'what' was passed, which is no listener of this command; known: nats"),
        ("nsq", "the socket 'nsq' was passed for 127.0.0.1:"),
    ],
)
def test_a_socket_that_is_no_listener(
    name: str, problem: str, tmp_path: Path, passed: Passed
) -> None:
    """Also one at another address: who may use a listener depends on it."""
    with started(commands(tmp_path)["serve"], {}, [(name, passed.socket)]) as child:
        output, _ = child.communicate(timeout=DEADLINE_S)
    assert child.returncode == 1
    assert problem in output


def test_sockets_of_the_parent_are_not_used(tmp_path: Path, manager: Manager) -> None:
    """The variables are for the process of LISTEN_PID alone."""
    foreign = {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "7", "LISTEN_FDNAMES": "nats"}
    with started(commands(tmp_path)["serve"], foreign | manager.environment):
        assert manager.next()["READY"] == "1"
