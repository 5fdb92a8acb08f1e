"""Ten thousand connections that send nothing, half a header, or garbage, on each port in turn.

Meanwhile a regular client of that port and of every other is served. Connections that send nothing
valid are closed, and then their descriptors and memory are released.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import shutil
import socket
import time
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from support.clients.bulk import BulkClient
from support.clients.http import request
from support.clients.nats import NatsClient
from support.clients.nsq import Wire
from support.clients.peer import RawPeer
from support.engine import scratch
from support.servers.processes import Address, ServerError

from campaign import report
from campaign.brokers import ForkedBroker, Spawner

COUNT = 10_000
BATCH = 250  # connections that are opened at once
SOURCES = 8  # loopback addresses that they come from
GROWTH = 1.05
GROWTH_BYTES = 8 << 20
FILES_KEPT = 500  # of this process, for everything else

NATS_FILE = """
listen: "127.0.0.1:-1"
http: "127.0.0.1:-1"
leafnodes { listen: "127.0.0.1:-1" }
websocket { listen: "127.0.0.1:-1", no_tls: true }
"""
CONFIG = """
[nats]
config_file = "{file}"
[nsqlookupd]
enabled = true
listen = "127.0.0.1:0"
http = "127.0.0.1:0"
[stan]
enabled = true
"""
HALF_HTTP = b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Half"
NOISE = b"\x00\xff\x16\x03\x01\x02\x00 \r\n{]garbage\r\n\r\n" * 4
HALF = {
    "nats": b'CONNECT {"verb',
    "leafnodes": b'CONNECT {"name":',
    "nsq": b"  V",
    "nsqlookupd": b" ",
}
# On these a client may be silent for long: the server asks whether it is there.
PATIENT = {("nats", "silent"), ("nats", "half"), ("leafnodes", "silent"), ("leafnodes", "half")}


def half_of(port: str) -> bytes:
    """The beginning of what a client says first."""
    return HALF.get(port, HALF_HTTP)


@dataclass(frozen=True)
class Deadlines:
    """How long a broker may take."""

    closed_s: float = 45.0  # until those who may not stay are closed
    served_s: float = 45.0  # until an honest client of the port under attack is served
    others_s: float = 20.0  # and one of another port
    back_s: float = 60.0  # until descriptors are given back


DEADLINES = Deadlines()


# --- honest clients


def _nats(address: Address) -> None:
    client = NatsClient(address)
    sid = client.sub("campaign.here")
    client.pub("campaign.here", b"x")
    assert client.message().sid == sid
    client.close()


def _leaf(address: Address) -> None:
    with RawPeer(address, skips_pings=True) as peer:
        assert peer.read_line().startswith(b"INFO ")


def _websocket(address: Address) -> None:
    with RawPeer(address) as peer:
        peer.send(
            b"GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n"
        )
        assert b" 101 " in peer.read_line()


def _nsq(address: Address) -> None:
    with Wire(address) as wire:
        assert wire.ask(b"PUB honest\n\0\0\0\1x") == (0, b"OK")


def _lookupd(address: Address) -> None:
    with RawPeer(address) as peer:
        peer.send(b"  V1PING\n")
        assert peer.read_exact(6)[4:] == b"OK"


def _get(path: str) -> Callable[[Address], None]:
    def ask(address: Address) -> None:
        assert request(address, "GET", path).status == 200

    return ask


def _bulk(address: Address) -> None:
    with BulkClient(address) as client:
        assert client.ask("GET", "topics").status == 200


HONEST: dict[str, Callable[[Address], None]] = {
    "nats": _nats,
    "leafnodes": _leaf,
    "websocket": _websocket,
    "monitor": _get("/varz"),
    "nsq": _nsq,
    "nsq_http": _get("/ping"),
    "nsqlookupd": _lookupd,
    "nsqlookupd_http": _get("/ping"),
    "bulk": _bulk,
    "console": _get("/"),
}


def served(port: str, address: Address, deadline_s: float) -> float | None:
    """Seconds until a regular client was served; None if it was not in time."""
    start = time.monotonic()
    while time.monotonic() < start + deadline_s:
        with contextlib.suppress(OSError, EOFError, AssertionError, IndexError):
            HONEST[port](address)
            return time.monotonic() - start
    return None


# --- the others


class Crowd:
    """Hostile connections."""

    def __init__(self, address: Address, port: str, count: int) -> None:
        self.kinds: dict[int, str] = {}
        self.sockets: dict[int, socket.socket] = {}
        self.closed: Counter[str] = Counter()
        self.opened: Counter[str] = Counter()
        self.poll = select.epoll()
        says = {"silent": b"", "half": half_of(port), "garbage": NOISE}
        for start in range(0, count, BATCH):
            for number in range(start, min(start + BATCH, count)):
                kind = ("silent", "half", "garbage")[number % 3]
                self.open(address, f"127.0.0.{2 + number % SOURCES}", kind, says[kind])
            self.step(0)

    def open(self, address: Address, source: str, kind: str, said: bytes) -> None:
        one = socket.socket()
        try:
            one.bind((source, 0))
            one.settimeout(30)
            one.connect(address)
            if said:
                one.sendall(said)
        except OSError:  # refused or closed at once, which is a way to cope
            self.opened[kind] += 1
            self.closed[kind] += 1
            one.close()
            return
        one.setblocking(False)
        self.opened[kind] += 1
        self.sockets[one.fileno()] = one
        self.kinds[one.fileno()] = kind
        self.poll.register(one, select.EPOLLIN | select.EPOLLRDHUP)

    def step(self, timeout_s: float) -> None:
        """Find the connections that were closed."""
        for number, _ in self.poll.poll(timeout_s, 4096):
            try:
                data = self.sockets[number].recv(65536)
            except BlockingIOError:
                continue
            except OSError:
                data = b""
            if not data:
                self.closed[self.kinds.pop(number)] += 1
                self.poll.unregister(number)
                self.sockets.pop(number).close()

    def left(self, port: str) -> int:
        """Connections that should be closed by now."""
        return sum((port, kind) not in PATIENT for kind in self.kinds.values())

    def close(self) -> None:
        for one in self.sockets.values():
            one.close()
        self.poll.close()


class Broker:
    """The broker and what it uses."""

    def __init__(self, broker: ForkedBroker) -> None:
        self.broker = broker

    def files(self) -> int:
        return len(os.listdir(f"/proc/{self.broker.pid}/fd"))  # noqa: PTH208 - names alone

    def memory_bytes(self) -> int:
        """Anonymous memory: what is mapped of files is the page cache's."""
        for line in Path(f"/proc/{self.broker.pid}/status").read_text().splitlines():
            if line.startswith("RssAnon"):
                return int(line.split()[1]) * 1024
        raise ServerError("no RssAnon")


def attack(
    broker: Broker, port: str, count: int, findings: list[str], times: Deadlines = DEADLINES
) -> str:
    """One crowd at one port; a sentence for the report."""
    address = broker.broker.ports[port]
    before = broker.files()
    crowd = Crowd(address, port, count)
    try:
        for other, where in broker.broker.ports.items():
            if other != port and served(other, where, times.others_s) is None:
                findings.append(f"{port}: {count} connections there, and {other} does not serve")
        waited = served(port, address, times.served_s)
        if waited is None:
            findings.append(f"{port}: an honest client is not served in {times.served_s:g} s")
        end = time.monotonic() + times.closed_s
        while crowd.left(port) and time.monotonic() < end:
            crowd.step(0.2)
        if left := crowd.left(port):
            kinds = Counter(k for k in crowd.kinds.values() if (port, k) not in PATIENT)
            findings.append(f"{port}: {left} connections are still open: {dict(kinds)}")
        said = f"{port}: closed {dict(crowd.closed)} of {dict(crowd.opened)}"
    finally:
        crowd.close()
    end = time.monotonic() + times.back_s
    while broker.files() > before + 2 and time.monotonic() < end:
        served(port, address, 1)
    if (after := broker.files()) > before + 2:
        findings.append(f"{port}: {before} files open before, {after} after")
    return f"{said}; honest client after {waited or 0:.1f} s"


def run(
    seed: int,
    minutes: float,
    kept: Path,
    *,
    count: int = COUNT,
    only: Collection[str] = HONEST,
    more: str = "",
) -> report.Row:
    """The part; `minutes` bounds it between two ports. `only` these are attacked; `more`
    configuration."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    count = min(count, hard - FILES_KEPT)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    folder, findings = scratch(), list[str]()
    end = time.monotonic() + 60 * minutes
    attacks, memory = 0, list[int]()
    try:
        (folder / "nats.conf").write_text(NATS_FILE)
        config = CONFIG.format(file=folder / "nats.conf") + more
        with Spawner() as spawner:
            running = ForkedBroker(spawner, folder, config, folder / "data")
            running.start()
            broker = Broker(running)
            if missing := set(HONEST) - set(running.ports):
                findings.append(f"missing ports: {missing}; {json.dumps(list(running.ports))}")
            ports = [port for port in HONEST if port in running.ports and port in only]
            for turn in range(2):  # the first lets memory grow to what it takes
                for port in ports:
                    if time.monotonic() > end:
                        break
                    said = attack(broker, port, count, findings)
                    attacks += 1
                    print(f"connections: {turn + 1}: {said}", flush=True)
                memory.append(broker.memory_bytes())
            if memory[1] > memory[0] * GROWTH + GROWTH_BYTES:
                findings.append(
                    f"memory: {memory[0] >> 20} MiB after the first round,"
                    f" {memory[1] >> 20} MiB after the second"
                )
            if code := running.stop():
                findings.append(f"ended with {code} on SIGTERM")
            said = running.output()
            if "Traceback" in said or "Exception ignored" in said:
                findings.append(f"an unhandled exception: {said[-1500:]}")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        shutil.rmtree(folder, ignore_errors=True)
    return report.Row(
        "connections",
        f"{count} connections that are silent, send half a header, or garbage, on each of"
        f" {len(ports)} ports, twice",
        f"{attacks} times {count} connections; memory {memory[0] >> 20} MiB after the first round,"
        f" {memory[1] >> 20} MiB after the second: {len(findings)} findings",
        f"make campaign PARTS=connections MINUTES={minutes:g}",
        findings,
    )
