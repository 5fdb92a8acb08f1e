"""Time, processor time and memory until each program answers its clients, beside the originals.

    python benchmarks/start.py [--rounds 9] [--write]

A program is ready when every protocol answers its first bytes, on an empty folder. Its processor
time is also given as a ratio to that of `python -c "import asyncio, ssl"` in the same round: no
server in Python starts with less. Memory is that of the idle process half a second later.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import report
import servers

from twinwire import testing

ROUNDS = 9
READY_S = 20.0
IDLE_S = 0.5
POLL_S = 0.001
MS = 1000.0
UNIT = "CPU / import asyncio, ssl"
GOAL = report.Goal(2.5, least=False)
NS_PER_S = 1e9

BASE = ("-c", "import asyncio, ssl; print(open('/proc/self/schedstat').read().split()[0])")
BROKER = "{python} -m broker "
# What a client says first, and how the answer begins.
NATS = (b"", b"INFO ")
NSQ = (b"  V2IDENTIFY\n\0\0\0\2{}", b"\0\0\0\6\0\0\0\0OK")
NSQLOOKUPD = (b"  V1PING\n", b"\0\0\0\2OK")


class Program(NamedTuple):
    """One program in two versions, and how the protocols at its ports begin."""

    name: str
    command: str
    original: str
    protocols: tuple[tuple[bytes, bytes], ...]


STAN = "nats-streaming-server -a 127.0.0.1 -p {0} -store file -dir {data}"
NSQD = "nsqd -tcp-address 127.0.0.1:{0} -http-address 127.0.0.1:0 -data-path {data}"
LOOKUPD = "nsqlookupd -tcp-address 127.0.0.1:{0} -http-address 127.0.0.1:0"
NATS_SERVER = "nats-server -a 127.0.0.1 -p {0}"
PROGRAMS = (
    Program(
        "serve",
        BROKER + "serve --data {data} --nats 127.0.0.1:{0} --nsq 127.0.0.1:{1}"
        " --monitor 127.0.0.1:0 --nsq-http 127.0.0.1:0 --bulk 127.0.0.1:0"
        " --console 127.0.0.1:0",
        "",
        (NATS, NSQ),
    ),
    Program("nats-server", BROKER + NATS_SERVER, NATS_SERVER, (NATS,)),
    Program("nsqd", BROKER + NSQD.replace(" -", " --"), NSQD, (NSQ,)),
    Program("nsqlookupd", BROKER + LOOKUPD.replace(" -", " --"), LOOKUPD, (NSQLOOKUPD,)),
    Program("nats-streaming-server", BROKER + STAN, STAN, (NATS,)),
)
COMMANDS = ("--help", "--version", "pub --help")
# Of the package: the client of NSQ in a new process, and the broker that a test begins with.
TIMED = "from time import perf_counter; began = perf_counter(); {}; print(perf_counter() - began)"
IMPORT = ("-c", TIMED.format("import twinwire.nsq"))
IMPORT_GOAL = report.Goal(100, least=False)
TESTING_GOAL = report.Goal(300, least=False)


class Cost(NamedTuple):
    """Of one start."""

    wall_ms: float
    cpu_ms: float
    memory_mb: float


def base_cpu_ms() -> float:
    """What a Python with an event loop and TLS takes before it does anything."""
    done = subprocess.run([sys.executable, *BASE], capture_output=True, text=True, check=True)
    return int(done.stdout) / NS_PER_S * MS


def cpu_ms(pid: int) -> float:
    """Processor time of all threads so far."""
    total_ns = 0
    for thread in Path(f"/proc/{pid}/task").iterdir():
        total_ns += int((thread / "schedstat").read_text().split()[0])
    return total_ns / NS_PER_S * MS


def answered(port: int, said: bytes, expected: bytes) -> bool:
    """Whether the protocol at this port answers its first bytes; False if nobody listens yet."""
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), READY_S) as client:
        client.sendall(said)
        got = b""
        while len(got) < len(expected):
            part = client.recv(len(expected) - len(got))
            if not part:
                return False
            got += part
        return got == expected
    return False


def start(command: str, protocols: tuple[tuple[bytes, bytes], ...]) -> Cost:
    """Start it, wait until it answers, stop it."""
    ports = [servers.free_port() for _ in protocols]
    with tempfile.TemporaryDirectory(prefix="twinwire-start-") as folder:
        words = [
            word.format(*ports, data=folder, python=sys.executable) for word in command.split()
        ]
        began = time.perf_counter()
        with subprocess.Popen(
            words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=folder
        ) as child:
            try:
                for port, (said, expected) in zip(ports, protocols, strict=True):
                    while not answered(port, said, expected):
                        if child.poll() is not None or time.perf_counter() - began > READY_S:
                            raise servers.ServerError(f"{command} did not start")
                        time.sleep(POLL_S)
                wall_ms, used_ms = (time.perf_counter() - began) * MS, cpu_ms(child.pid)
                time.sleep(IDLE_S)
                status = Path(f"/proc/{child.pid}/status").read_text()
            finally:
                child.send_signal(signal.SIGTERM)
                child.wait()
    resident = next(line for line in status.splitlines() if line.startswith("VmRSS"))
    return Cost(wall_ms, used_ms, int(resident.split()[1]) / 1024)


def command_ms(words: str) -> float:
    """Wall time of a command that ends by itself."""
    began = time.perf_counter()
    command = [sys.executable, "-m", "broker", *words.split()]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return (time.perf_counter() - began) * MS


def import_ms() -> float:
    """Time of `import twinwire.nsq`, without the start of Python."""
    done = subprocess.run([sys.executable, *IMPORT], capture_output=True, text=True, check=True)
    return float(done.stdout) * MS


def testing_ms() -> float:
    """Until `twinwire.testing.Broker` has all its listeners."""
    began = time.perf_counter()
    with testing.Broker():
        return (time.perf_counter() - began) * MS


def measure(rounds: int) -> list[list[str]]:
    """All programs in each round, the originals too; medians of the rounds."""
    ours: defaultdict[str, list[Cost]] = defaultdict(list)
    originals: defaultdict[str, list[Cost]] = defaultdict(list)
    ratios: defaultdict[str, list[float]] = defaultdict(list)
    commands: defaultdict[str, list[float]] = defaultdict(list)
    imports, tests = [], []
    for _ in range(rounds):
        base_ms = base_cpu_ms()
        for program in PROGRAMS:
            cost = start(program.command, program.protocols)
            ours[program.name].append(cost)
            ratios[program.name].append(cost.cpu_ms / base_ms)
            if program.original:
                originals[program.name].append(start(program.original, program.protocols))
        for words in COMMANDS:
            commands[words].append(command_ms(words))
        imports.append(import_ms())
        tests.append(testing_ms())
    rows = [
        [
            f"`twinwire {name}`",
            *_medians(costs),
            f"{statistics.median(ratios[name]):.1f}",
            *GOAL.cells(statistics.median(ratios[name])),
            " / ".join(_medians(originals[name])) if name in originals else "",
        ]
        for name, costs in ours.items()
    ]
    for words, times_ms in commands.items():
        rows.append([f"`twinwire {words}`", f"{statistics.median(times_ms):.0f} ms", *[""] * 6])
    for what, times_ms, goal in (
        ("`import twinwire.nsq`", imports, IMPORT_GOAL),
        ("`twinwire.testing.Broker`", tests, TESTING_GOAL),
    ):
        median_ms = statistics.median(times_ms)
        rows.append([what, f"{median_ms:.0f} ms", "", "", "", *goal.cells(median_ms), ""])
    return rows


def _medians(costs: list[Cost]) -> list[str]:
    wall_ms, used_ms, memory_mb = (statistics.median(kind) for kind in zip(*costs, strict=True))
    return [f"{wall_ms:.0f} ms", f"{used_ms:.0f} ms", f"{memory_mb:.0f} MiB"]


def main() -> None:
    """Measure, print, and with --write write the table to its page in results/."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"default {ROUNDS}")
    parser.add_argument("--write", action="store_true", help="write the page in results/")
    given = parser.parse_args()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    method = (
        f"`benchmarks/start.py`, medians of {given.rounds} rounds: from the start of the process"
        " until every protocol answers, on an empty folder; the original beside it in each round."
    )
    head = ["program", "ready after", "CPU", "idle memory", UNIT, "goal", "", "original"]
    report.show("start", method, head, measure(given.rounds), write=given.write)


if __name__ == "__main__":
    main()
