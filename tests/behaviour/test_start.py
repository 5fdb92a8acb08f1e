"""What a start costs: modules that only some brokers need are imported when they are needed.

A broker that imports all of them takes twice the processor time until it is ready, and half as much
memory again for as long as it runs. What is looked at is which modules there are, not their times.
"""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

DEADLINE_S = 60
# Each is for clients of one kind, or for settings that are off by default.
RARE = {
    "aiohttp",
    "bcrypt._bcrypt",
    "broker.importers",
    "broker.protocols.nats.auth.callout",
    "broker.protocols.nats.auth.jwt.tokens",
    "broker.protocols.nats.conf.reader",
    "broker.protocols.nats.monitoring.connz",
    "broker.protocols.nsq.http.api",
    "broker.protocols.nsq.lookup.client",
    "broker.protocols.stan.service",
    "cramjam",
    "cryptography",
    "google.protobuf",
    "nacl.secret",
    "prometheus_client",
}
IMPORTED = re.compile(r"^import time: +\d+ \| +\d+ \| +(\S+)$", re.MULTILINE)


class Process:
    """A broker that notes what it imports."""

    def __init__(self, folder: Path) -> None:
        self.notes = folder / "stderr"
        self.ports_file = folder / "ports.json"
        listen = [
            f"--{name}=127.0.0.1:0" for name in ("nats", "monitor", "nsq", "nsq-http", "bulk")
        ]
        command = [sys.executable, "-X", "importtime", "-m", "broker", "serve", *listen]
        command += [f"--data={folder / 'data'}", f"--ports-file={self.ports_file}"]
        with self.notes.open("wb") as notes:
            self.child = subprocess.Popen(command, stderr=notes, stdout=subprocess.DEVNULL)

    def ready(self) -> dict[str, tuple[str, int]]:
        """Wait for it; where it listens."""
        while not self.ports_file.exists():
            assert self.child.poll() is None, self.notes.read_text()
        found = json.loads(self.ports_file.read_bytes())
        parts = {name: text.rpartition(":") for name, text in found.items()}
        return {name: (host, int(port)) for name, (host, _, port) in parts.items()}

    def imported(self) -> set[str]:
        """The modules so far."""
        return set(IMPORTED.findall(self.notes.read_text()))


@contextmanager
def running(folder: Path) -> Iterator[Process]:
    process = Process(folder)
    try:
        yield process
    finally:
        process.child.send_signal(signal.SIGTERM)
        assert process.child.wait(DEADLINE_S) == 0


def rare(modules: set[str]) -> set[str]:
    return {name for name in RARE if any(m == name or m.startswith(name + ".") for m in modules)}


def asked(address: tuple[str, int], path: str) -> bytes:
    url = "http://{}:{}{}".format(*address, path)
    with urllib.request.urlopen(url, timeout=DEADLINE_S) as response:
        body: bytes = response.read()
    return body


def test_a_start_imports_what_is_needed(tmp_path: Path) -> None:
    with running(tmp_path) as process:
        ports = process.ready()
        for name in ("nats", "nsq"):
            with socket.create_connection(ports[name]) as client:
                client.sendall(b"  V2NOP\n" if name == "nsq" else b"PING\r\n")
        assert rare(process.imported()) == set()


@pytest.mark.parametrize(
    ("listener", "path", "answer"),
    [
        ("nsq_http", "/ping", b"OK"),
        ("monitor", "/healthz", b'{"status":"ok"}'),
        ("bulk", "/bulk/v1/topics", b'{"broker":'),
    ],
)
def test_the_first_client_of_http_is_answered(
    tmp_path: Path, listener: str, path: str, answer: bytes
) -> None:
    """Its connection waits while the application is imported."""
    with running(tmp_path) as process:
        ports = process.ready()
        assert asked(ports[listener], path).startswith(answer)
        assert "aiohttp" in process.imported()
        assert asked(ports[listener], path).startswith(answer)


def test_a_broker_ends_while_a_client_waits_for_the_application(tmp_path: Path) -> None:
    with running(tmp_path) as process:
        client = socket.create_connection(process.ready()["nsq_http"])
    client.close()
