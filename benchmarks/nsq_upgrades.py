"""TLS, snappy and deflate of NSQ: PUB to FIN through Twinwire and through nsqd, in turn.

    python benchmarks/nsq_upgrades.py [--msgs 300000] [--size 200] [--rounds 3]

One process publishes, another consumes; both work per block, not per message, so that the server
is the bottleneck as far as two cores allow. Blocks are encoded before the measurement.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import socket
import ssl
import statistics
import struct
import subprocess
import sys
import tempfile
import time
import zlib
from multiprocessing.queues import Queue
from pathlib import Path
from typing import Any

import servers
import snappy

BLOCK_MSGS = 500
WINDOW_BLOCKS = 8
READ = 262_144
TOPIC = "bench"
KINDS = ("plain", "tls", "snappy", "deflate", "tls+snappy")
STREAM = b"\xff\x06\x00\x00sNaPpY"


class Wire:
    """A blocking NSQ connection, upgraded."""

    def __init__(self, address: tuple[str, int], kind: str) -> None:
        self.sock: socket.socket = socket.create_connection(address)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.kind = kind
        self.held = b""
        self.unpack: Any = None
        wishes = {
            "feature_negotiation": True,
            "tls_v1": "tls" in kind,
            "snappy": "snappy" in kind,
            "deflate": "deflate" in kind,
            "deflate_level": 1,
        }
        body = json.dumps(wishes).encode()
        self.sock.sendall(b"  V2IDENTIFY\n" + struct.pack(">i", len(body)) + body)
        self.frame()
        if "tls" in kind:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
            self.sock = context.wrap_socket(self.sock)
            self.frame()
        if "snappy" in kind:
            self.unpack = snappy.StreamDecompressor()
            self.sock.sendall(STREAM)
        elif "deflate" in kind:
            self.unpack = zlib.decompressobj(-zlib.MAX_WBITS)
        if self.unpack is not None:
            # the first compressed bytes may have come with the last plain ones
            self.held = self.unpack.decompress(self.held) if self.held else b""
            self.frame()

    def encode(self, data: bytes) -> bytes:
        """Encode bytes that can be sent repeatedly."""
        if "snappy" in self.kind:
            return snappy.StreamCompressor().compress(data).removeprefix(STREAM)
        if "deflate" in self.kind:
            packer = zlib.compressobj(1, zlib.DEFLATED, -zlib.MAX_WBITS)
            return packer.compress(data) + packer.flush(zlib.Z_FULL_FLUSH)
        return data

    def read(self) -> bytes:
        data = self.sock.recv(READ)
        if not data:
            raise SystemExit("the server closed a connection")
        return data if self.unpack is None else self.unpack.decompress(data)

    def frame(self) -> bytes:
        while len(self.held) < 8 or len(self.held) < 4 + struct.unpack(">i", self.held[:4])[0]:
            self.held += self.read()
        end = 4 + struct.unpack(">i", self.held[:4])[0]
        found, self.held = self.held[8:end], self.held[end:]
        return found


def publish(address: tuple[str, int], kind: str, size: int, blocks: int) -> None:
    wire = Wire(address, kind)
    text = b'{"id":123456,"name":"a line of a log","level":"info","took":0.25} '
    body = (text * (size // len(text) + 1))[:size]
    pub = b"PUB " + TOPIC.encode() + b"\n" + struct.pack(">i", size) + body
    block = wire.encode(pub * BLOCK_MSGS)
    answered, wanted = len(wire.held), 0
    for sent in range(1, blocks + 1):
        wire.sock.sendall(block)
        wanted = max(0, sent - WINDOW_BLOCKS) * BLOCK_MSGS * 10
        while answered < wanted:
            answered += len(wire.read())
    while answered < blocks * BLOCK_MSGS * 10:
        answered += len(wire.read())


def consume(address: tuple[str, int], kind: str, size: int, msgs: int, done: Queue[float]) -> None:
    wire = Wire(address, kind)
    wire.sock.sendall(wire.encode(b"SUB " + TOPIC.encode() + b" c\n"))
    wire.frame()
    wire.sock.sendall(wire.encode(b"RDY 2500\n"))
    done.put(0.0)
    stride = 8 + 26 + size
    held, seen = wire.held, 0
    while seen < msgs:
        held += wire.read()
        count = len(held) // stride
        fins = [b"FIN " + held[at + 18 : at + 34] for at in range(0, count * stride, stride)]
        if fins:
            wire.sock.sendall(wire.encode(b"\n".join(fins) + b"\n"))
        held = held[count * stride :]
        seen += count
    done.put(time.perf_counter())


def measure(command: str, kind: str, msgs: int, size: int) -> float:
    """Messages per second, from the first PUB to the last FIN sent."""
    fork = multiprocessing.get_context("fork")
    with servers.running(command, ("nsq",)) as server:
        done: Queue[float] = fork.Queue()
        consumer = fork.Process(target=consume, args=(server.nsq, kind, size, msgs, done))
        consumer.start()
        done.get(timeout=20)
        began = time.perf_counter()
        publisher = fork.Process(target=publish, args=(server.nsq, kind, size, msgs // BLOCK_MSGS))
        publisher.start()
        ended = done.get(timeout=120)
        publisher.join()
        consumer.join()
    return msgs / (ended - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--msgs", type=int, default=300_000)
    parser.add_argument("--size", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kinds", default=",".join(KINDS))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        cert, key = Path(folder) / "server.crt", Path(folder) / "server.key"
        make = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 1"
        subprocess.run(
            [*make.split(), "-subj", "/CN=localhost", "-keyout", str(key), "-out", str(cert)],
            check=True,
            capture_output=True,
        )
        config = Path(folder) / "twinwire.toml"
        config.write_text(f'[nsq]\ntls_cert = "{cert}"\ntls_key = "{key}"\nhttps = ""\n')
        ours = f"{servers.OURS} -c {config}"
        nsqd = f"{servers.NSQD} -tls-cert {cert} -tls-key {key} -https-address 127.0.0.1:0"
        for kind in options.kinds.split(","):
            rates: dict[str, list[float]] = {ours: [], nsqd: []}
            for _ in range(options.rounds):
                for command, found in rates.items():
                    found.append(measure(command, kind, options.msgs, options.size))
            one, other = (statistics.median(rates[command]) for command in (ours, nsqd))
            sys.stdout.write(
                f"{kind:12} {one:12,.0f}/s  nsqd {other:12,.0f}/s  {one / other:.2f}x\n"
            )
            sys.stdout.flush()


if __name__ == "__main__":
    main()
