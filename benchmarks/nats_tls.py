"""NATS over TLS, Twinwire and nats-server in turn: 1:1 of 256 B, memory of 10,000 connections.

    python benchmarks/nats_tls.py [--msgs 1000000] [--size 256] [--rounds 3] [--only flow|memory]

Only the server is measured: messages are encrypted before the clock starts; received TLS records
are counted by their headers, and decrypted and checked after the clock has stopped.
Both servers choose from the same ciphers.
"""

from __future__ import annotations

import argparse
import resource
import select
import shlex
import socket
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import report
import servers

OURS = "{python} -m broker nats-server -c CONFIG -a 127.0.0.1 -p {nats}"
ORIGINAL = f"{servers.NATS_SERVER} -c CONFIG"
SUBJECT = b"bench"
BLOCK_BYTES = 262_144
READ_BYTES = 1 << 20
AHEAD_BYTES = 8 << 20
RECORD_HEAD = 5
RECORD_EXTRA = 17  # of TLS 1.3: the tag, and the content type
APPLICATION_DATA = 23
STALL_SECONDS = 30.0
CONNECTIONS = 10_000
SPARE_FILES = 200
SPEED_GOAL = 1.5
MEMORY_GOAL = 1.2
MB = 1_000_000


class Peer:
    """A NATS client over TLS that keeps the encrypted bytes apart from the socket."""

    def __init__(self, address: tuple[str, int], context: ssl.SSLContext) -> None:
        self.sock = socket.create_connection(address)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.link = context.wrap_bio(self.incoming, self.outgoing)
        greeting = b""
        while not greeting.endswith(b"\r\n"):
            greeting += self.received()
        while True:
            try:
                self.link.do_handshake()
                break
            except ssl.SSLWantReadError:
                self.sock.sendall(self.outgoing.read())
                self.incoming.write(self.received())
        self.sock.sendall(self.outgoing.read())

    def received(self) -> bytes:
        data = self.sock.recv(READ_BYTES)
        if not data:
            raise servers.ServerError("the server closed a connection")
        return data

    def encrypted(self, data: bytes) -> bytes:
        self.link.write(data)
        return self.outgoing.read()

    def say(self, data: bytes) -> None:
        """Send a line and PING, and wait for the PONG."""
        self.sock.sendall(self.encrypted(data + b"PING\r\n"))
        said = b""
        while not said.endswith(b"PONG\r\n"):
            self.incoming.write(self.received())
            said += self.decrypted()

    def decrypted(self) -> bytes:
        parts = []
        while True:
            try:
                parts.append(self.link.read(READ_BYTES))
            except ssl.SSLWantReadError:
                return b"".join(parts)


class Arrived:
    """Encrypted bytes, and the number of plain ones by the headers of their records."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.plain = 0
        self.left = 0  # remaining bytes of the current record
        self.head = b""

    def take(self, data: memoryview) -> None:
        self.parts.append(bytes(data))
        at = 0
        while at < len(data):
            step = min(self.left, len(data) - at)
            self.left -= step
            at += step
            if self.left or at == len(data):
                continue
            need = RECORD_HEAD - len(self.head)
            self.head += data[at : at + need]
            at += need
            if len(self.head) == RECORD_HEAD:
                self.left = int.from_bytes(self.head[3:], "big")
                if self.head[0] == APPLICATION_DATA:
                    self.plain += self.left - RECORD_EXTRA
                self.head = b""


def flow(command: str, context: ssl.SSLContext, msgs: int, size: int) -> float:
    """Messages per second, from the first byte sent to the last one received."""
    body = b"x" * size
    pub = b"PUB %s %d\r\n%s\r\n" % (SUBJECT, size, body)
    msg = b"MSG %s 1 %d\r\n%s\r\n" % (SUBJECT, size, body)
    each = max(1, BLOCK_BYTES // len(pub))
    with servers.running(command, ("nats",)) as server:
        reader, writer = Peer(server.nats, context), Peer(server.nats, context)
        reader.say(b'CONNECT {"verbose":false}\r\nSUB %s 1\r\n' % SUBJECT)
        writer.say(b'CONNECT {"verbose":false}\r\n')
        blocks = [writer.encrypted(pub * each) for _ in range(msgs // each)]
        arrived = Arrived()
        cpu = time.process_time()
        seconds = pass_through(reader.sock, writer.sock, blocks, len(msg) * each, arrived)
        print(f"{time.process_time() - cpu:.2f} s of {seconds:.2f}", file=sys.stderr)
        check(reader, arrived.parts, msg, len(blocks) * each)
        return len(blocks) * each / seconds


def check(reader: Peer, parts: list[bytes], msg: bytes, count: int) -> None:
    """Check every message; the server may send PINGs in between."""
    plain = bytearray()
    for part in parts:
        reader.incoming.write(part)
        plain += reader.decrypted()
    while True:
        got = plain.replace(b"PING\r\n", b"")
        if len(got) >= count * len(msg):
            break
        reader.sock.setblocking(True)
        reader.incoming.write(reader.received())
        plain += reader.decrypted()
    if got != msg * count:
        raise servers.ServerError("the received messages differ from those sent")


def pass_through(
    reader: socket.socket,
    writer: socket.socket,
    blocks: list[bytes],
    plain_each: int,
    arrived: Arrived,
) -> float:
    """Send all blocks, at most AHEAD_BYTES ahead of the received ones; seconds until the last."""
    reader.setblocking(False)
    writer.setblocking(False)
    room = memoryview(bytearray(READ_BYTES))
    wanted = len(blocks) * plain_each
    sent, offset = 0, 0
    began = time.perf_counter()
    while arrived.plain < wanted:
        may_send = sent < len(blocks) and sent * plain_each - arrived.plain < AHEAD_BYTES
        can = select.select([reader], [writer] if may_send else [], [], STALL_SECONDS)
        if not can[0] and not can[1]:
            raise servers.ServerError("nothing moved")
        if can[0]:
            size = reader.recv_into(room)
            if not size:
                raise servers.ServerError("the server closed a connection")
            arrived.take(room[:size])
        if can[1]:
            offset += writer.send(memoryview(blocks[sent])[offset:])
            if offset == len(blocks[sent]):
                sent, offset = sent + 1, 0
    return time.perf_counter() - began


def memory(command: str, context: ssl.SSLContext, count: int) -> tuple[int, int]:
    """Resident bytes before and after this many idle connections."""
    held: list[Peer] = []
    with servers.running(command, ("nats",)) as server:
        before = server.memory_bytes()["VmRSS"]
        try:
            for _ in range(count):
                held.append(Peer(server.nats, context))
                held[-1].say(b'CONNECT {"verbose":false}\r\n')
            return before, server.memory_bytes()["VmRSS"]
        finally:
            for peer in held:
                peer.sock.close()


def raise_file_limit(wanted: int) -> None:
    """For servers started from here, which inherit it."""
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = wanted + SPARE_FILES
    if hard != resource.RLIM_INFINITY and hard < limit:
        sys.exit(f"only {hard} files may be open here; see --connections")
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))


def certificate(folder: Path) -> tuple[Path, Path]:
    cert, key = folder / "server.crt", folder / "server.key"
    make = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 1"
    subprocess.run(
        [*make.split(), "-subj", "/CN=localhost", "-keyout", str(key), "-out", str(cert)],
        check=True,
        capture_output=True,
    )
    return cert, key


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--msgs", type=int, default=1_000_000)
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--connections", type=int, default=CONNECTIONS)
    parser.add_argument("--only", default="", choices=["", "flow", "memory"])
    parser.add_argument("--write", action="store_true", help="put the table into RESULTS.md")
    parser.add_argument("--ours-cmd", default=OURS)
    options = parser.parse_args()
    table: list[list[str]] = []
    with tempfile.TemporaryDirectory() as folder:
        cert, key = certificate(Path(folder))
        config = Path(folder) / "server.conf"
        config.write_text(f'tls {{ cert_file: "{cert}", key_file: "{key}", timeout: 30 }}\n')
        ours, original = (
            command.replace("CONFIG", shlex.quote(str(config)))
            for command in (options.ours_cmd, ORIGINAL)
        )
        context = ssl.create_default_context(cafile=str(cert))
        context.check_hostname = False
        if options.only != "memory":
            rates: dict[str, list[float]] = {ours: [], original: []}
            for _ in range(options.rounds):
                for command, found in rates.items():
                    found.append(flow(command, context, options.msgs, options.size))
                    print(f"{command.split()[0]} {found[-1]:,.0f}/s", file=sys.stderr)
            one, other = (statistics.median(rates[command]) for command in (ours, original))
            met = "met" if one >= SPEED_GOAL * other else "MISSED"
            table.append(
                [
                    f"1:1, {options.size} B",
                    f"{one:,.0f} msgs/s",
                    f"{other:,.0f} msgs/s",
                    f"{one / other:.2f}x",
                    f">= {SPEED_GOAL}x",
                    met,
                ]
            )
        if options.only != "flow":
            raise_file_limit(options.connections)
            grown = []
            for command in (ours, original):
                before, after = memory(command, context, options.connections)
                each = (after - before) / options.connections
                grown.append((before, after, each))
                print(f"{command.split()[0]} {before:,} {after:,} {each:,.0f}", file=sys.stderr)
            ratio = grown[0][1] / grown[1][1]
            cells = [f"{after / MB:,.0f} MB ({each:,.0f} B each)" for _, after, each in grown]
            met = "met" if ratio <= MEMORY_GOAL else "MISSED"
            what = f"{options.connections:,} idle connections"
            table.append([what, *cells, f"{ratio:.2f}x", f"<= {MEMORY_GOAL}x", met])
    head = ["NATS over TLS", "ours", "nats-server", "ratio", "goal", ""]
    whole = "\n\n".join(["## NATS over TLS", report.about(), report.table(head, table)])
    print(whole)
    if options.write:
        report.write_section("nats-tls", whole)
    return 0


if __name__ == "__main__":
    sys.exit(main())
