"""CPU time that one client costs the server, by the amount of its load.

    python benchmarks/nats_scaling.py [--count 20000] [--write]

Each row sends a load of n and one of 2n to a new server and compares the CPU times. Twice the load
should cost about twice the time: with a ratio of 4, one client could stop the server for all.
"""

from __future__ import annotations

import argparse
import os
import random
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import report
import servers

RATIO_MAX = 3.0
CLOCK = os.sysconf("SC_CLK_TCK")
LETTERS = "abcdefghijklmnop"
PAYLOAD = 1 << 16

# 16 bytes, and others with the same hash if a hash function multiplies and folds only once.
PLAIN = b"A" * 16
FLIPPED = bytes(byte ^ (0x80 if at in {7, 11, 15} else 0) for at, byte in enumerate(PLAIN))


def alike(number: int) -> bytes:
    """A name of 272 bytes."""
    return b"".join(FLIPPED if number >> block & 1 else PLAIN for block in range(17))


def groups(count: int) -> bytes:
    """Queue groups on one subject."""
    return b"".join(b"SUB foo g%d %d\r\n" % (i, i) for i in range(count))


def matched_groups(count: int) -> bytes:
    """Queue groups of several subjects that a message matches, while another wildcard changes."""
    subs = b"".join(b"SUB %b g%d %d\r\n" % ((b"foo", b"*")[i % 2], i, i) for i in range(count))
    return subs + 10 * b"SUB other.* x\r\nPUB foo 0\r\n\r\nUNSUB x\r\nPUB foo 0\r\n\r\n"


def one_group(count: int) -> bytes:
    """Members of one group that leave again."""
    subs = b"".join(b"SUB foo g %d\r\n" % i for i in range(count))
    return subs + b"".join(b"UNSUB %d\r\n" % i for i in range(count))


def sids(count: int) -> bytes:
    """Subscriptions with similar sids."""
    return b"".join(b"SUB a.b %b\r\n" % alike(i) for i in range(count))


def subjects(count: int) -> bytes:
    """Similar subjects."""
    return b"".join(b"SUB %b %d\r\n" % (alike(i), i) for i in range(count))


def ended(count: int) -> bytes:
    """Subscriptions that end after one message."""
    subs = b"".join(b"SUB foo %d\r\nUNSUB %d 1\r\n" % (i, i) for i in range(count))
    return subs + b"PUB foo 0\r\n\r\n"


def varied(count: int) -> bytes:
    """Messages to different subjects, few of them with a subscriber."""
    dice = random.Random(1)
    names = ("".join(dice.choices(LETTERS, k=12)).encode() for _ in range(count))
    return b"SUB a.> 1\r\n" + b"".join(b"PUB %b 0\r\n\r\n" % name for name in names)


LOADS: tuple[Callable[[int], bytes], ...] = (
    groups,
    matched_groups,
    one_group,
    sids,
    subjects,
    ended,
    varied,
)


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / CLOCK


def cost(load: bytes) -> float:
    """CPU seconds of the server for the whole load."""
    with (
        servers.running(servers.OURS, ("nats",)) as server,
        socket.create_connection(server.nats) as sock,
    ):
        sock.sendall(b'CONNECT {"verbose":false}\r\nPING\r\n')
        read_to_pong(sock)
        before = cpu_seconds(server.pid)
        sender = threading.Thread(target=sock.sendall, args=(load + b"PING\r\n",), daemon=True)
        sender.start()  # answers must be read meanwhile, otherwise the connection is closed
        read_to_pong(sock)
        return cpu_seconds(server.pid) - before


def read_to_pong(sock: socket.socket) -> None:
    tail = b""
    while not tail.endswith(b"PONG\r\n"):
        piece = sock.recv(PAYLOAD)
        if not piece:
            raise SystemExit("the server has closed the connection")
        tail = (tail + piece)[-16:]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--write", action="store_true", help="write the page in results/")
    options = parser.parse_args()
    rows, worst = [], 0.0
    for load in LOADS:
        once, twice = (cost(load(count)) for count in (options.count, 2 * options.count))
        ratio = twice / max(once, 1 / CLOCK)
        worst = max(worst, ratio if twice > 10 / CLOCK else 0.0)
        what = (load.__doc__ or "").rstrip(".")
        rows.append([what, f"{once * 1000:.0f}", f"{twice * 1000:.0f}", f"{ratio:.1f}"])
    method = f"CPU time of the server, n = {options.count:,}."
    head = ["load", "n (ms)", "2n (ms)", "ratio"]
    report.show("nats_scaling", method, head, rows, write=options.write)
    return int(worst > RATIO_MAX)


if __name__ == "__main__":
    raise SystemExit(main())
