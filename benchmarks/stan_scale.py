"""NATS Streaming at scale: the start of a server with very many channels and durables.

Channels are created by publishing one message to each, durables by subscribing and closing the
client. Then the server is killed and started again on the same folder, stopped cleanly and started
once more. For each start the time until it is ready and its peak memory are measured.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import report

from broker.protocols.stan import stan_pb2 as pb

CHANNELS = 100_000
DURABLES = 10_000
START_SECONDS_MAX = 5.0
RSS_MAX = 1_000_000_000
WAIT_SECONDS = 600.0
POLL_SECONDS = 0.01
BATCH = 500
MB = 1_000_000
CLUSTER = "test-cluster"
CLIENT = "scale"
# Without syncs: each new channel needs several, which would only slow down the preparation.
CONFIG = '[stan]\nenabled = true\nmax_channels = 0\nsync = "none"\n'
HEAD = ["what", "reached", "goal", ""]


class Link:
    """A NATS connection that publishes requests and counts the answers."""

    def __init__(self, port: int) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port), timeout=WAIT_SECONDS)
        self.held = b""
        self._line()  # INFO
        self.sock.sendall(b'CONNECT {"verbose":false,"headers":false}\r\nSUB answers 1\r\nPING\r\n')
        while self._line() != b"PONG":
            pass

    def _line(self) -> bytes:
        while b"\r\n" not in self.held:
            data = self.sock.recv(1 << 16)
            if not data:
                raise ConnectionError("the server closed the connection")
            self.held += data
        line, _, self.held = self.held.partition(b"\r\n")
        return line

    def _answer(self) -> bytes:
        while not (line := self._line()).startswith(b"MSG "):
            if line == b"PING":
                self.sock.sendall(b"PONG\r\n")
        size = int(line.split()[-1])
        while len(self.held) < size + 2:
            self.held += self.sock.recv(1 << 16)
        data, self.held = self.held[:size], self.held[size + 2 :]
        return data

    def ask(self, requests: list[tuple[str, bytes]]) -> list[bytes]:
        """Publish all requests, then wait for as many answers."""
        self.sock.sendall(
            b"".join(
                b"PUB %s answers %d\r\n%s\r\n" % (subject.encode(), len(data), data)
                for subject, data in requests
            )
        )
        return [self._answer() for _ in requests]


def fill(port: int, channels: int, durables: int) -> None:
    """One message in each channel, a durable on the first ones."""
    link = Link(port)
    connect = pb.ConnectRequest(clientID=CLIENT, heartbeatInbox="beats")
    link.ask([(f"_STAN.discover.{CLUSTER}", connect.SerializeToString())])
    names = [f"devices.{number:06d}" for number in range(channels)]
    for start in range(0, channels, BATCH):
        requests = []
        for name in names[start : start + BATCH]:
            message = pb.PubMsg(clientID=CLIENT, guid=name, subject=name, data=b"x" * 100)
            requests.append((f"_STAN.pub.{CLUSTER}.{name}", message.SerializeToString()))
        for answer in link.ask(requests):
            if pb.PubAck.FromString(answer).error:
                raise RuntimeError(pb.PubAck.FromString(answer).error)
    for start in range(0, durables, BATCH):
        requests = []
        for name in names[start : min(start + BATCH, durables)]:
            wish = pb.SubscriptionRequest(
                clientID=CLIENT,
                subject=name,
                inbox="nowhere",
                durableName="d",
                maxInFlight=10,
                ackWaitInSecs=30,
                startPosition=pb.First,
            )
            requests.append((f"_STAN.sub.{CLUSTER}", wish.SerializeToString()))
        link.ask(requests)
    closing = pb.CloseRequest(clientID=CLIENT).SerializeToString()
    link.ask([(f"_STAN.close.{CLUSTER}", closing)])
    link.sock.close()


class Ours:
    """A Twinwire server on a folder."""

    def __init__(self, folder: Path) -> None:
        config = folder / "twinwire.toml"
        config.write_text(CONFIG)
        ports = folder / "ports.json"
        ports.unlink(missing_ok=True)
        command = [sys.executable, "-m", "broker", "serve", "-c", str(config)]
        command += ["--data", str(folder / "data"), "--ports-file", str(ports)]
        for flag in ("--nats", "--nsq", "--nsq-http", "--monitor", "--bulk", "--console"):
            command += [flag, "127.0.0.1:0"]
        began = time.monotonic()
        self.log = folder / "log"
        with self.log.open("w") as file:
            self.process = subprocess.Popen(command, stderr=file)
        while " ready " not in self.log.read_text():
            if self.process.poll() is not None:
                raise RuntimeError(self.log.read_text())
            time.sleep(POLL_SECONDS)
        self.start_seconds = time.monotonic() - began
        self.processor_seconds = sum(self._times())
        addresses = json.loads(ports.read_text())
        self.port = int(addresses["nats"].rpartition(":")[2])

    def _times(self) -> list[float]:
        text = Path(f"/proc/{self.process.pid}/stat").read_text()
        return [int(x) / os.sysconf("SC_CLK_TCK") for x in text.rpartition(")")[2].split()[11:13]]

    def rss(self) -> int:
        """Resident memory in bytes."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0]) * 1024

    def end(self, number: int) -> None:
        self.process.send_signal(number)
        self.process.communicate(timeout=WAIT_SECONDS)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--channels", type=int, default=CHANNELS)
    parser.add_argument("--durables", type=int, default=DURABLES)
    parser.add_argument("--write", action="store_true", help="write the page in results/")
    parser.add_argument("--root", help="folder for the data; default: a temporary one")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="twinwire-scale-", dir=args.root) as name:
        server = Ours(Path(name))
        began = time.monotonic()
        fill(server.port, args.channels, args.durables)
        print(f"filled in {time.monotonic() - began:.1f} s, RSS {server.rss() / MB:,.0f} MB")
        server.end(signal.SIGKILL)
        starts: dict[str, float] = {}
        rss = 0
        for after in ("kill -9", "a clean stop"):
            server = Ours(Path(name))
            starts[after] = server.start_seconds
            rss = max(rss, server.rss())
            print(f"start after {after}: {server.processor_seconds:.2f} s of processor time")
            began = time.monotonic()
            server.end(signal.SIGTERM)
            print(f"stopped in {time.monotonic() - began:.1f} s")
    what = f"{args.channels:,} channels, {args.durables:,} durables"
    met = ["MISSED", "met"]
    rows = [
        *(
            [
                f"{what}: start after {after}",
                f"{took:.2f} s",
                "< 5 s",
                met[took < START_SECONDS_MAX],
            ]
            for after, took in starts.items()
        ),
        [f"{what}: RSS", f"{rss / MB:,.0f} MB", "< 1,000 MB", met[rss < RSS_MAX]],
    ]
    method = "One server with files, filled by one client, started again on the same folder."
    report.show("stan-scale", method, HEAD, rows, write=args.write, title="NATS Streaming at scale")
    return 0


if __name__ == "__main__":
    sys.exit(main())
