"""NATS over TLS, Twinwire and nats-server in turn: 1:1 of 256 B, memory of 10,000 connections.

    python benchmarks/nats_tls.py [--quick] [--rounds 5] [--size 256] [--only flow|memory] [--write]

Messages go to 10,000 subjects. Only the server is measured: messages are encrypted before the clock
starts; received TLS records are counted by their headers, and decrypted and checked after the clock
has stopped. Both servers choose from the same ciphers.
"""

from __future__ import annotations

import argparse
import itertools
import select
import shlex
import socket
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import arguments as command_line
import report
import servers
from report import Goal

from broker.bench.traffic import Period

OURS = "{python} -m broker nats-server -c CONFIG -a 127.0.0.1 -p {nats}"
ORIGINAL = f"{servers.NATS_SERVER} -c CONFIG"
SUBJECTS = 10_000
MSGS = 1_000_000
SIZE_BYTES = 256
ROUNDS = 5
QUICK_ROUNDS = 1
QUICK_PART = 10
WARM_PART = 10  # of the messages go first, unmeasured
BLOCK_BYTES = 262_144
READ_BYTES = 1 << 20
AHEAD_BYTES = 8 << 20
RECORD_HEAD = 5
RECORD_EXTRA = 17  # of TLS 1.3: the tag, and the content type
APPLICATION_DATA = 23
STALL_SECONDS = 30.0
CONNECTIONS = 10_000
SPEED_GOAL = Goal(5)
MEMORY_GOAL = Goal(1.2, least=False)
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

    def encrypted(self, data: bytes | bytearray) -> bytes:
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


@dataclass
class Chunk:
    """Messages that are sent at once, and how many bytes of plain text their delivery has."""

    pubs: bytearray
    msgs: bytearray
    count: int


def chunks(size: int) -> list[Chunk]:
    """One period of the traffic."""
    found: list[Chunk] = []
    body = b"x" * size
    for name, _sizes in Period(SUBJECTS, size).units():
        if not found or len(found[-1].pubs) > BLOCK_BYTES:
            found.append(Chunk(bytearray(), bytearray(), 0))
        last = found[-1]
        last.pubs += b"PUB bench.%d %d\r\n%s\r\n" % (name, size, body)
        last.msgs += b"MSG bench.%d 1 %d\r\n%s\r\n" % (name, size, body)
        last.count += 1
    return found


def flow(command: str, context: ssl.SSLContext, msgs: int, size: int) -> float:
    """Messages per second, from the first byte sent to the last one received."""
    period = chunks(size)
    turns = itertools.cycle(period)
    sent: list[Chunk] = []
    while sum(chunk.count for chunk in sent) < msgs:
        sent.append(next(turns))
    with servers.running(command, ("nats",)) as server:
        reader, writer = Peer(server.nats, context), Peer(server.nats, context)
        reader.say(b'CONNECT {"verbose":false}\r\nSUB bench.* 1\r\n')
        writer.say(b'CONNECT {"verbose":false}\r\n')
        blocks = [(writer.encrypted(chunk.pubs), len(chunk.msgs)) for chunk in sent]
        warm = len(blocks) // WARM_PART
        arrived = Arrived()
        pass_through(reader.sock, writer.sock, blocks[:warm], arrived)
        cpu = time.process_time()
        seconds = pass_through(reader.sock, writer.sock, blocks[warm:], arrived)
        busy = (time.process_time() - cpu) / seconds
        print(f"generator busy {report.busy(busy)}", file=sys.stderr)
        check(reader, arrived.parts, b"".join(chunk.msgs for chunk in sent))
        return sum(chunk.count for chunk in sent[warm:]) / seconds


def check(reader: Peer, parts: list[bytes], wanted: bytes) -> None:
    """Check every message; the server may send PINGs in between."""
    plain = bytearray()
    for part in parts:
        reader.incoming.write(part)
        plain += reader.decrypted()
    while True:
        got = plain.replace(b"PING\r\n", b"")
        if len(got) >= len(wanted):
            break
        reader.sock.setblocking(True)
        reader.incoming.write(reader.received())
        plain += reader.decrypted()
    if got != wanted:
        raise servers.ServerError("the received messages differ from those sent")


def pass_through(
    reader: socket.socket,
    writer: socket.socket,
    blocks: list[tuple[bytes, int]],
    arrived: Arrived,
) -> float:
    """Send all blocks, at most AHEAD_BYTES ahead of the received ones; seconds until the last."""
    reader.setblocking(False)
    writer.setblocking(False)
    room = memoryview(bytearray(READ_BYTES))
    wanted = arrived.plain + sum(plain for _, plain in blocks)
    on_the_way = arrived.plain
    sent, offset = 0, 0
    began = time.perf_counter()
    while arrived.plain < wanted:
        may_send = sent < len(blocks) and on_the_way - arrived.plain < AHEAD_BYTES
        can = select.select([reader], [writer] if may_send else [], [], STALL_SECONDS)
        if not can[0] and not can[1]:
            raise servers.ServerError("nothing moved")
        if can[0]:
            size = reader.recv_into(room)
            if not size:
                raise servers.ServerError("the server closed a connection")
            arrived.take(room[:size])
        if can[1]:
            block, plain = blocks[sent]
            offset += writer.send(memoryview(block)[offset:])
            if offset == len(block):
                sent, offset = sent + 1, 0
                on_the_way += plain
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


def certificate(folder: Path) -> tuple[Path, Path]:
    cert, key = folder / "server.crt", folder / "server.key"
    make = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 1"
    subprocess.run(
        [*make.split(), "-subj", "/CN=localhost", "-keyout", str(key), "-out", str(cert)],
        check=True,
        capture_output=True,
    )
    return cert, key


def speed(pair: tuple[str, str], context: ssl.SSLContext, options: argparse.Namespace) -> list[str]:
    """The line of the 1:1 flow."""
    rates: tuple[list[float], list[float]] = ([], [])
    for turn in range(options.rounds):
        sides = list(zip(pair, rates, strict=True))
        for command, found in sides if turn % 2 == 0 else reversed(sides):
            found.append(flow(command, context, options.msgs, options.size))
            print(f"{Path(command.split()[0]).name} {found[-1]:,.0f}/s", file=sys.stderr)
    ratios = [one / other for one, other in zip(*rates, strict=True)]
    ratio = statistics.median(ratios)
    return [
        f"1:1, {options.size} B, {SUBJECTS:,} subjects",
        *(f"{statistics.median(found):,.0f} msgs/s" for found in rates),
        f"{ratio:.2f}",
        report.spread(ratios),
        *(SPEED_GOAL.as_before() if options.against else SPEED_GOAL).cells(ratio),
    ]


def size(pair: tuple[str, str], context: ssl.SSLContext, options: argparse.Namespace) -> list[str]:
    """The line of the idle connections."""
    if servers.raise_file_limit(options.connections) < options.connections:
        sys.exit("too few files may be open here; see --connections")
    found = [memory(command, context, options.connections) for command in pair]
    cells = [
        f"{after / MB:,.0f} MB ({(after - before) / options.connections:,.0f} B each)"
        for before, after in found
    ]
    ratio = found[0][1] / found[1][1]
    goal = MEMORY_GOAL.as_before() if options.against else MEMORY_GOAL
    what = f"{options.connections:,} idle connections"
    return [what, *cells, f"{ratio:.2f}", "", *goal.cells(ratio)]


def arguments() -> argparse.Namespace:
    parser = command_line.parser_of(__doc__, OURS, "{nats} {python} and CONFIG")
    command_line.add_against(parser)
    parser.add_argument("--quick", action="store_true", help="one round, a tenth of everything")
    parser.add_argument("--rounds", type=int, default=0, help=f"default {ROUNDS}")
    parser.add_argument("--msgs", type=int, default=0, help=f"of a run, default {MSGS:,}")
    parser.add_argument("--size", type=int, default=SIZE_BYTES)
    parser.add_argument("--connections", type=int, default=0, help=f"default {CONNECTIONS:,}")
    parser.add_argument("--only", default="", choices=["", "flow", "memory"])
    options = parser.parse_args()
    part = QUICK_PART if options.quick else 1
    options.rounds = options.rounds or (QUICK_ROUNDS if options.quick else ROUNDS)
    options.msgs = options.msgs or MSGS // part
    options.connections = options.connections or CONNECTIONS // part
    if options.write and (options.quick or options.only or options.against):
        parser.error("--write takes everything in full size, against the original")
    return options


def main() -> int:
    options = arguments()
    table: list[list[str]] = []
    with tempfile.TemporaryDirectory() as folder:
        cert, key = certificate(Path(folder))
        config = Path(folder) / "server.conf"
        config.write_text(f'tls {{ cert_file: "{cert}", key_file: "{key}", timeout: 30 }}\n')
        ours, other = (
            command.replace("CONFIG", shlex.quote(str(config)))
            for command in (options.ours_cmd, options.against or ORIGINAL)
        )
        context = ssl.create_default_context(cafile=str(cert))
        context.check_hostname = False
        if options.only != "memory":
            table.append(speed((ours, other), context, options))
        if options.only != "flow":
            table.append(size((ours, other), context, options))
    head = ["NATS over TLS", "ours", "nats-server", "ratio", "spread", "goal", ""]
    method = (
        f"{options.rounds} rounds, alternating; a tenth of the messages is sent before the clock"
        " starts. The client's encryption is not part of the time."
    )
    parts = ["## NATS over TLS", report.about("nats-server"), method, report.table(head, table)]
    whole = "\n\n".join(parts)
    print(whole)
    if options.write:
        report.write_section("nats-tls", whole)
    return 0


if __name__ == "__main__":
    sys.exit(main())
