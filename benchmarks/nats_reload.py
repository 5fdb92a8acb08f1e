"""The delay that clients see while a configuration with 1,000 users is reloaded.

    python benchmarks/nats_reload.py [--clients 10000] [--users 1000] [--reloads 5] [--write]

One client sends PING and awaits PONG, over and over; the others are logged in and silent. Each
reload changes the permissions of every second user. The longest round trip with a reload in it is
compared with the longest without.
"""

from __future__ import annotations

import argparse
import json
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import report
import servers

GOAL_MS = 50.0
QUIET_SECONDS = 5.0
SPARE_FILES = 200


def config(users: int, version: int) -> str:
    """This many users, every second one with other permissions than in the last version."""
    lines = [
        f"{{user: u{i}, password: p{i}, permissions: {{"
        f" publish: [a.{i}.>, v.{version if i % 2 else 0}], subscribe: [a.{i}.>, _INBOX.>] }} }}"
        for i in range(users)
    ]
    return "authorization { users = [\n" + "\n".join(lines) + "\n] }\n"


def client(port: int, user: int) -> socket.socket:
    """A client that has logged in."""
    sock = socket.create_connection(("127.0.0.1", port))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    options = {"user": f"u{user}", "pass": f"p{user}", "verbose": False}
    read_to(sock, b"\r\n")
    sock.sendall(b"CONNECT " + json.dumps(options).encode() + b"\r\nPING\r\n")
    assert read_to(sock, b"PONG\r\n").endswith(b"PONG\r\n")
    return sock


def read_to(sock: socket.socket, end: bytes) -> bytes:
    data = b""
    while not data.endswith(end):
        piece = sock.recv(65_536)
        if not piece:
            raise SystemExit(f"closed after {data!r}")
        data += piece
    return data


class Probe(threading.Thread):
    """Round trips, and the longest since the last query."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(daemon=True)
        self.sock = sock
        self.longest = 0.0
        self.ends = False

    def run(self) -> None:
        while not self.ends:
            start = time.perf_counter()
            self.sock.sendall(b"PING\r\n")
            while b"PONG" not in self.sock.recv(4096):
                pass
            self.longest = max(self.longest, time.perf_counter() - start)
            time.sleep(0.0005)

    def take_ms(self) -> float:
        longest, self.longest = self.longest, 0.0
        return longest * 1000


def reload(child: subprocess.Popen[bytes], log: Path, count: int) -> None:
    child.send_signal(signal.SIGHUP)
    deadline = time.monotonic() + 60
    while log.read_text().count("Reloaded server configuration") < count:
        if time.monotonic() > deadline:
            raise SystemExit(log.read_text()[-2000:])
        time.sleep(0.01)


def measure(command: str, options: argparse.Namespace) -> tuple[float, float]:
    """The longest round trip in ms: idle, and during reloads."""
    with tempfile.TemporaryDirectory(prefix="twinwire-bench-") as name:
        folder = Path(name)
        file, log = folder / "nats.conf", folder / "log"
        file.write_text(config(options.users, 0))
        port = servers.free_port()
        words = command.format(python=sys.executable, nats=port).split()
        with log.open("wb") as out:
            child = subprocess.Popen([*words, "-c", str(file)], stdout=out, stderr=out)
        try:
            while b"Server is ready" not in log.read_bytes():
                time.sleep(0.01)
            silent = [client(port, i % options.users) for i in range(options.clients)]
            probe = Probe(client(port, 0))
            probe.start()
            time.sleep(1)
            probe.take_ms()
            time.sleep(QUIET_SECONDS)
            quiet = probe.take_ms()
            for count in range(1, options.reloads + 1):
                file.write_text(config(options.users, count))
                reload(child, log, count)
            busy = probe.take_ms()
            probe.ends = True
            probe.join()
            for sock in silent:
                sock.close()
        finally:
            child.terminate()
            child.wait()
    return quiet, busy


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--clients", type=int, default=10_000)
    parser.add_argument("--users", type=int, default=1_000)
    parser.add_argument("--reloads", type=int, default=5)
    parser.add_argument("--write", action="store_true", help="write the page in results/")
    options = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    options.clients = min(options.clients, hard - SPARE_FILES)
    rows = []
    commands = {
        "ours": "{python} -m broker nats-server -a 127.0.0.1 -p {nats}",
        "nats-server": servers.NATS_SERVER,
    }
    for name, command in commands.items():
        if not servers.found(command):
            continue
        quiet, busy = measure(command, options)
        met = ("met" if busy <= GOAL_MS else "MISSED") if name == "ours" else ""
        rows.append([name, f"{quiet:.1f}", f"{busy:.1f}", f"<= {GOAL_MS:g}", met])
    head = ["server", "longest, idle (ms)", "longest, reloading (ms)", "goal", ""]
    whole = "\n\n".join(
        [
            "## Delay during a reload",
            report.about(),
            f"{options.clients:,} clients of {options.users:,} users, {options.reloads} reloads.",
            report.table(head, rows),
        ]
    )
    print(whole)
    if options.write:
        report.write_section("nats_reload", whole)
    return 0


if __name__ == "__main__":
    sys.exit(main())
