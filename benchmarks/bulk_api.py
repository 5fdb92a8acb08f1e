"""The bulk API from page cache: bytes of records per second for one client.

    python benchmarks/bulk_api.py [--records 1000000] [--size 256] [--frame 4194304] [--write]

A broker with a topic of that many records is started; a client on the same machine, with one
keep-alive connection, reads all of it range by range, --rounds times, and discards it. The cost of
finding offsets by time is measured too. The CPU time is that of all threads of the broker.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import report

ROOT = Path(__file__).resolve().parents[1]
TICK = os.sysconf("SC_CLK_TCK")
GOAL_GBS = 1.0
ASKED = 200
HEAD = ["row", "median", "spread", "goal", ""]


def start(folder: Path) -> tuple[subprocess.Popen[bytes], dict[str, str]]:
    """A broker on free ports, ready."""
    ports = folder / "ports.json"
    listeners = [
        f"--{listener}=127.0.0.1:0" for listener in ("nats", "monitor", "nsq", "nsq-http", "bulk")
    ]
    command = [sys.executable, "-m", "broker", "serve", "--data", str(folder / "data")]
    child = subprocess.Popen(
        [*command, *listeners, "--log-level=warning", f"--ports-file={ports}"], cwd=ROOT
    )
    while not ports.exists():
        if child.poll() is not None:
            raise SystemExit("the broker did not start")
        time.sleep(0.02)
    return child, json.loads(ports.read_text())


def fill(address: str, topic: str, records: int, size: int) -> None:
    """Publish different bodies; half of each compresses like text."""
    host, port = address.split(":")
    link = http.client.HTTPConnection(host, int(port))
    length, plain = size.to_bytes(4, "big"), b"0123456789abcdef" * (size // 16 + 1)
    many = 4_000_000 // (size + 4)
    while records:
        count = min(many, records)
        noise = os.urandom(count * (size // 2))
        bodies = (noise[at : at + size // 2] for at in range(0, len(noise), size // 2))
        parts = [length + body + plain[: size - len(body)] for body in bodies]
        link.request(
            "POST", f"/mpub?topic={topic}&binary=true", count.to_bytes(4, "big") + b"".join(parts)
        )
        answer = link.getresponse()
        assert answer.status == 200, answer.read()
        answer.read()
        records -= count


def processor_seconds(pid: int) -> float:
    """CPU time that a process has used."""
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / TICK


class Reader:
    """One connection that reads ranges and discards them."""

    def __init__(self, address: str) -> None:
        host, port = address.split(":")
        self.link = http.client.HTTPConnection(host, int(port))
        self.link.connect()
        self.link.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.room = bytearray(80 << 20)

    def json(self, method: str, path: str, body: object = None) -> dict[str, object]:
        """The JSON answer to a request."""
        self.link.request(method, path, json.dumps(body) if body else None)
        return json.loads(self.link.getresponse().read())

    def range(self, path: str) -> tuple[int, int, int]:
        """Bytes, records, and the start of the next range."""
        self.link.request("GET", path)
        answer = self.link.getresponse()
        assert answer.status == 200, answer.read()
        view, total = memoryview(self.room), 0
        while n := answer.readinto(view[total:]):
            total += n
        count = int.from_bytes(self.room[8:12], "little")
        return total, count, int.from_bytes(self.room[24:32], "little")

    def all_of(self, topic: str, frame: int, behind: int) -> tuple[int, int, float]:
        """Read a topic; bytes, records, seconds."""
        began, total, records, at = time.perf_counter(), 0, 0, 1
        while at < behind:
            n, count, at = self.range(f"/bulk/v1/range/{topic}?start={at}&max_bytes={frame}")
            total, records = total + n, records + count
        return total, records, time.perf_counter() - began


def main() -> None:
    """Measure and print."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--records", type=int, default=1_000_000)
    arguments.add_argument("--size", type=int, default=256)
    arguments.add_argument("--frame", type=int, default=4 << 20)
    arguments.add_argument("--rounds", type=int, default=5)
    arguments.add_argument("--write", action="store_true", help="write the page in results/")
    given = arguments.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        broker, ports = start(Path(folder))
        try:
            fill(ports["nsq_http"], "bench", given.records, given.size)
            reader = Reader(ports["bulk"])
            behind = 0
            while behind <= given.records:
                behind = reader.json("GET", "/bulk/v1/topics")["topics"][0]["next"]
            reader.all_of("bench", given.frame, behind)
            rates, costs = [], []
            for _ in range(given.rounds):
                before = processor_seconds(broker.pid)
                total, records, seconds = reader.all_of("bench", given.frame, behind)
                used = processor_seconds(broker.pid) - before
                assert records == given.records
                rates.append(total / seconds / 1e9)
                costs.append(used / records * 1e6)
            began = time.perf_counter()
            for _ in range(ASKED):
                reader.json("POST", "/bulk/v1/offsets", {"topics": {"bench": {"time_ms": 0}}})
            asked_us = (time.perf_counter() - began) / ASKED * 1e6
        finally:
            broker.terminate()
            broker.wait()
    rate = statistics.median(rates)
    rows = [
        [
            "ranges",
            f"{rate:.2f} GB/s",
            report.spread(rates),
            f">= {GOAL_GBS}",
            report.verdict(rate, GOAL_GBS),
        ],
        [
            "broker's CPU per record",
            f"{statistics.median(costs):.3f} us",
            report.spread(costs),
            "",
            "",
        ],
        ["find a seq by its time", f"{asked_us:.0f} us", "", "", ""],
    ]
    method = (
        f"{given.records:,} records of {given.size} B in the page cache, frames of {given.frame} B,"
        f" one connection, read and discarded; {given.rounds} rounds, median."
    )
    report.show("bulk API", method, HEAD, rows, write=given.write)


if __name__ == "__main__":
    main()
