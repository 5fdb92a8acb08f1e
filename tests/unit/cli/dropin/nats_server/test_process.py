"""Pid file, ports file and --signal."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.cli.dropin.goflags import FlagError
from broker.cli.dropin.nats_server import process as nats_process
from broker.protocols.nats.settings import Settings, Tls, Websocket

# The signal is left to the kernel: Python would not look again between its check and the wait.
WAITS = "import signal as s; s.signal(s.SIGINT, s.SIG_DFL); print(flush=True); s.pause()"


@pytest.fixture
def other() -> Iterator[subprocess.Popen[bytes]]:
    """A process that waits to be signalled."""
    with subprocess.Popen([sys.executable, "-c", WAITS], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.kill()


def refusal(order: str) -> str:
    with pytest.raises(FlagError) as caught:
        nats_process.send(order)
    return str(caught.value)


@pytest.fixture
def killed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """What would be signalled, where three servers run."""
    found: list[tuple[int, int]] = []
    monkeypatch.setattr(nats_process, "named", lambda **_: [12, 123, 4])
    monkeypatch.setattr(nats_process.os, "kill", lambda pid, number: found.append((pid, number)))
    return found


@pytest.mark.parametrize(
    ("command", "number"),
    [
        ("stop", signal.SIGKILL),
        ("quit", signal.SIGINT),
        ("term", signal.SIGTERM),
        ("reopen", signal.SIGUSR1),
        ("reload", signal.SIGHUP),
        ("ldm", signal.SIGUSR2),
    ],
)
def test_commands(killed: list[tuple[int, int]], command: str, number: int) -> None:
    nats_process.send(f"{command}=77")
    assert killed == [(77, number)]


def test_a_real_signal(other: subprocess.Popen[bytes]) -> None:
    nats_process.send(f"quit={other.pid}")
    assert other.wait(10) == -signal.SIGINT


def test_a_file_with_the_pid(
    tmp_path: Path, killed: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pid").write_text("77\n")
    nats_process.send(f"term={tmp_path}/pid")
    monkeypatch.chdir(tmp_path)
    nats_process.send("term=pid")
    assert killed == [(77, signal.SIGTERM)] * 2


def test_the_first_digits(killed: list[tuple[int, int]]) -> None:
    nats_process.send("reload=12*")
    assert [pid for pid, _ in killed] == [12, 123]
    nats_process.send("reload=*")
    assert [pid for pid, _ in killed[2:]] == [12, 123, 4]


@pytest.mark.parametrize(
    ("order", "text"),
    [
        ("reload", "multiple nats-server processes running:\n12\n123\n4"),
        ("bogus=77", 'unknown signal "bogus"'),
        ("a=b=c", "invalid signal parameters: [c]"),
        ("reload=abc", "invalid pid: abc"),
        ("reload=0", "invalid pid: 0"),  # would be every process of our group
        ("reload=-5", "invalid pid: -5"),
    ],
)
def test_orders_that_are_refused(killed: list[tuple[int, int]], order: str, text: str) -> None:
    assert refusal(order) == text
    assert killed == []


def test_nobody_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nats_process, "named", lambda **_: [])
    assert refusal("reload") == "no nats-server processes running"


def test_the_process_is_gone(other: subprocess.Popen[bytes]) -> None:
    other.kill()
    other.wait()
    assert refusal(f"reload={other.pid}") == f'\nsignal "reload" {other.pid}: no such process'


def test_processes_of_that_name(tmp_path: Path) -> None:
    for pid, name in ((5, "nats-server"), (6, "nats-streaming-"), (os.getpid(), "nats-server")):
        folder = tmp_path / str(pid)
        folder.mkdir()
        (folder / "comm").write_text(name + "\n")
    (tmp_path / "7").mkdir()  # has just ended
    assert nats_process.named(tmp_path) == [5]


def test_the_process_can_be_found_by_name() -> None:
    code = "from broker.cli.dropin.nats_server.process import take_name; take_name(); "
    code += "print(open('/proc/self/comm').read())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "nats-server"


def test_pid_file(tmp_path: Path) -> None:
    nats_process.write_pid(str(tmp_path / "pid"))
    assert (tmp_path / "pid").read_text() == str(os.getpid())
    with pytest.raises(OSError, match="open /nowhere/pid: no such file or directory"):
        nats_process.write_pid("/nowhere/pid")


# --- ports file


def test_ports_file(tmp_path: Path) -> None:
    path = nats_process.ports_path(str(tmp_path), "nats-server")
    assert path.name == f"nats-server_{os.getpid()}.ports"
    ports = {
        "nats": ("127.0.0.1", 1),
        "monitor": ("localhost", 2),
        "websocket": ("::1", 3),
        "leafnodes": ("127.0.0.1", 4),
    }
    nats_process.write_ports(path, ports, Settings(websocket=Websocket(("", 1))))
    assert json.loads(path.read_text()) == {
        "nats": ["nats://127.0.0.1:1"],
        "monitoring": ["http://localhost:2"],
        "websocket": ["ws://[::1]:3"],
    }
    tls = Tls("c", "k")
    secure = Settings(tls=tls, https=("", 1), websocket=Websocket(("", 1), tls=tls))
    nats_process.write_ports(path, ports, secure)
    assert [one.split(":")[0] for [one] in json.loads(path.read_text()).values()] == [
        "tls",
        "https",
        "wss",
    ]
    assert list(tmp_path.iterdir()) == [path]
    nats_process.remove_ports(path)
    assert list(tmp_path.iterdir()) == []


def test_every_interface() -> None:
    for host in ("", "0.0.0.0", "::"):
        everywhere = nats_process.reachable(host, 5)
        assert "127.0.0.1:5" in everywhere
        if "::1" in nats_process._ipv6_addresses().get("lo", []):
            assert "[::1]:5" in everywhere


def test_failures_are_only_logged(caplog: pytest.LogCaptureFixture) -> None:
    path = nats_process.ports_path("/nowhere", "x")
    nats_process.write_ports(path, {"nats": ("h", 1)}, Settings())
    nats_process.remove_ports(path)
    assert caplog.messages == [
        f"Error writing ports file ({path}): open {path}: no such file or directory",
        f"Error cleaning up ports file {path}: remove {path}: no such file or directory",
    ]
