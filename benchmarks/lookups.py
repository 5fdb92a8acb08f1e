"""Lookups per second of nsqlookupd, Twinwire's and the original in turn, under the same load.

    python benchmarks/lookups.py [--nodes 200] [--topics 2000] [--seconds 4]

Each node registers every topic, so an answer names all nodes. Consumers ask for random topics on
keep-alive connections, the next request when the answer is complete.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple, cast

import uvloop

CONNECTIONS = 32
START_S = 20.0
REGISTER_S = 300.0
Address = tuple[str, int]


class Running(NamedTuple):
    """A nsqlookupd that answers."""

    child: subprocess.Popen[bytes]
    tcp: Address
    http: Address


def identify(node: int) -> bytes:
    """The first bytes of a node."""
    said = {
        "broadcast_address": f"node{node:04}.test",
        "hostname": f"node{node:04}",
        "tcp_port": 4150,
        "http_port": 4151,
        "version": "1.3.0",
    }
    body = json.dumps(said).encode()
    return b"  V1IDENTIFY\n" + len(body).to_bytes(4, "big") + body


async def register(address: Address, node: int, topics: int) -> asyncio.StreamWriter:
    """One nsqd with all topics; stays connected as long as the writer lives."""
    reader, writer = await asyncio.open_connection(*address)
    writer.write(identify(node))
    await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
    step = 200
    for start in range(0, topics, step):
        names = range(start, min(start + step, topics))
        writer.write(b"".join(b"REGISTER topic%06d channel\n" % n for n in names))
        await reader.readexactly(len(b"\0\0\0\2OK") * len(names))
    return writer


class Consumer(asyncio.Protocol):
    """Sends requests, each after the whole answer to the last. All answers are equally long."""

    def __init__(self, topics: int, size: int) -> None:
        self.topics = topics
        self.size = size
        self.left = 0
        self.answers = 0
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.ask()

    def ask(self) -> None:
        topic = random.randrange(self.topics)
        self.left = self.size
        assert self.transport is not None
        self.transport.write(
            b"GET /lookup?topic=topic%06d HTTP/1.1\r\nHost: lookup.test\r\n"
            b"User-Agent: bench\r\nAccept: application/vnd.nsq; version=1.0\r\n\r\n" % topic
        )

    def data_received(self, data: bytes) -> None:
        self.left -= len(data)
        if self.left < 0:
            raise ValueError("an answer was longer than the others")
        if not self.left:
            self.answers += 1
            self.ask()


async def answer_size(address: Address) -> tuple[int, int]:
    """Bytes of an answer, and producers in it."""
    reader, writer = await asyncio.open_connection(*address)
    writer.write(b"GET /lookup?topic=topic000000 HTTP/1.1\r\nHost: lookup.test\r\n\r\n")
    head = await reader.readuntil(b"\r\n\r\n")
    found = re.search(rb"(?i)content-length: (\d+)", head)
    if found is None:  # in chunks: each has a line with its size around it
        body, framing = b"", 0
        while size := int((line := await reader.readline()), 16):
            body += await reader.readexactly(size)
            framing += len(line) + len(await reader.readline())
        framing += len(line) + len(await reader.readline())
    else:
        body, framing = await reader.readexactly(int(found[1])), 0
    writer.close()
    return len(head) + len(body) + framing, len(json.loads(body)["producers"])


def busy_seconds(pid: int) -> float:
    """CPU time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def measure(server: Running, nodes: int, topics: int, seconds: float) -> float:
    """Answers per second of the server's CPU time: the capacity of one core."""
    started = time.perf_counter()
    async with asyncio.timeout(REGISTER_S):
        writers = await asyncio.gather(
            *(register(server.tcp, node, topics) for node in range(nodes))
        )
    registered = time.perf_counter() - started
    size, producers = await answer_size(server.http)
    if producers != nodes:
        raise ValueError(f"{producers} producers in an answer, expected {nodes}")
    loop = asyncio.get_running_loop()
    consumers = [Consumer(topics, size) for _ in range(CONNECTIONS)]
    for consumer in consumers:
        await loop.create_connection(lambda c=consumer: c, *server.http)
    await asyncio.sleep(seconds / 4)  # caches fill
    before, started = sum(c.answers for c in consumers), time.perf_counter()
    busy = busy_seconds(server.child.pid)
    await asyncio.sleep(seconds)
    answers, took = sum(c.answers for c in consumers) - before, time.perf_counter() - started
    busy = busy_seconds(server.child.pid) - busy
    for consumer in consumers:
        if consumer.transport is not None:
            consumer.transport.abort()
    for writer in writers:
        writer.transport.abort()
    sys.stdout.write(
        f"  {nodes * topics} registrations in {registered:.1f} s, answers of {size} bytes, "
        f"{answers / took:,.0f} lookups/s with {busy / took:.2f} cores, "
        f"{answers / busy:,.0f} lookups per second of a core\n"
    )
    return answers / busy


def start_ours(folder: Path) -> Running:
    """A broker with [nsqlookupd] enabled."""
    config, ports = folder / "twinwire.toml", folder / "ports.json"
    config.write_text(
        '[log]\nlevel = "error"\n[nsqlookupd]\nenabled = true\n'
        'listen = "127.0.0.1:0"\nhttp = "127.0.0.1:0"\n'
    )
    listeners = [
        f"--{listener}=127.0.0.1:0" for listener in ("nats", "monitor", "nsq", "nsq-http", "bulk")
    ]
    command = [sys.executable, "-m", "broker", "serve", "-c", str(config), *listeners]
    child = subprocess.Popen([*command, f"--data={folder}/data", f"--ports-file={ports}"])
    deadline = time.monotonic() + START_S
    while not ports.exists():
        if child.poll() is not None or time.monotonic() > deadline:
            raise SystemExit("the broker did not start")
    found = json.loads(ports.read_text())
    return Running(child, address(found["nsqlookupd"]), address(found["nsqlookupd_http"]))


def start_original(folder: Path) -> Running:
    """nsqlookupd from PATH."""
    log = folder / "nsqlookupd.log"
    flags = ["--tcp-address=127.0.0.1:0", "--http-address=127.0.0.1:0"]
    with log.open("wb") as out:
        child = subprocess.Popen(["nsqlookupd", *flags], stderr=out)
    deadline = time.monotonic() + START_S
    found: dict[str, str] = {}
    while len(found) < 2:
        found = dict(re.findall(r"(TCP|HTTP): listening on (\S+)", log.read_text()))
        if child.poll() is not None or time.monotonic() > deadline:
            raise SystemExit("nsqlookupd did not start")
    return Running(child, address(found["TCP"]), address(found["HTTP"]))


def address(text: str) -> Address:
    """HOST:PORT."""
    host, _, port = text.rpartition(":")
    return host, int(port)


def main() -> None:
    """Both in turn, then the ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=200)
    parser.add_argument("--topics", type=int, default=2000)
    parser.add_argument("--seconds", type=float, default=4.0)
    given = parser.parse_args()
    rates = []
    for name, start in (("nsqlookupd", start_original), ("twinwire", start_ours)):
        with tempfile.TemporaryDirectory() as folder:
            server = start(Path(folder))
            sys.stdout.write(f"{name}\n")
            try:
                load = measure(server, given.nodes, given.topics, given.seconds)
                with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                    rates.append(runner.run(load))
            finally:
                server.child.terminate()
                server.child.wait()
    sys.stdout.write(f"ratio {rates[1] / rates[0]:.2f}\n")


if __name__ == "__main__":
    main()
