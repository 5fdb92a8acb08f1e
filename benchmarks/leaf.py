"""A leaf connection between two Twinwires against one between two nats-servers, in turn.

    python benchmarks/leaf.py [--quick] [--rounds 3] [--seconds 2] [--rows TEXT] [--write]

Publishers are on one server, subscribers on the other. Compression is off on both sides.
"""

from __future__ import annotations

import argparse
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import arguments as command_line
import report
import servers
from awake import cores_awake
from report import Goal

from broker.bench.scenarios import (
    NatsFlowPlan,
    NatsRequestPlan,
    run_nats_flow,
    run_nats_request,
)

ORIGINAL = "nats-server"
OURS = "{python} -m broker " + ORIGINAL
ROUNDS = 3
SECONDS = 2.0
QUICK_ROUNDS = 1
QUICK_SECONDS = 0.5
WARM_SECONDS = 0.3
READY_SECONDS = 15.0
POLL_SECONDS = 0.01
ANYWHERE = ("127.0.0.1", 0)


@dataclass(frozen=True)
class Row:
    """One comparison; `up`: from the leaf to the hub."""

    name: str
    plan: NatsFlowPlan | NatsRequestPlan
    metric: str = "msgs/s"
    up: bool = False

    def goal(self) -> Goal:
        return Goal(1.0, least=self.metric == "msgs/s")


def flow(size: int, subs: int = 1, pubs: int = 1, group: str = "") -> NatsFlowPlan:
    return NatsFlowPlan(address=ANYWHERE, size=size, subs=subs, pubs=pubs, group=group)


ROWS = [
    Row("hub to leaf 1:1, 16 B", flow(16)),
    Row("hub to leaf 1:1, 256 B", flow(256)),
    Row("leaf to hub 1:1, 256 B", flow(256), up=True),
    Row("hub to leaf 1:4, 128 B", flow(128, subs=4)),
    Row("hub to leaf, group of 4, 128 B", flow(128, subs=4, group="workers")),
    Row("hub to leaf 4:1, 4 KiB", flow(4096, pubs=4)),
    Row("hub to leaf, 1,000 subjects, 128 B", replace(flow(128), subjects=1_000)),
    Row("request/reply, 16 B, p50", NatsRequestPlan(address=ANYWHERE), "p50 us"),
    Row("request/reply, 16 B, p99", NatsRequestPlan(address=ANYWHERE), "p99 us"),
]


@contextmanager
def node(command: str, config: str) -> Iterator[tuple[str, int]]:
    """Start a server with this configuration; the address for its clients."""
    with tempfile.TemporaryDirectory(prefix="twinwire-bench-") as folder:
        port = servers.free_port()
        path, log_path = Path(folder) / "conf", Path(folder) / "log"
        path.write_text(f"listen: 127.0.0.1:{port}\n{config}")
        with log_path.open("wb") as log:
            words = [*servers.words_of(command), "-c", str(path)]
            child = subprocess.Popen(words, stdout=log, stderr=log, cwd=folder)
        try:
            _wait(lambda: _answers(port) or child.poll() is not None, log_path.read_text)
            yield "127.0.0.1", port
        finally:
            child.terminate()
            child.wait()


def _wait(true: Callable[[], bool], state: Callable[[], str]) -> None:
    deadline = time.monotonic() + READY_SECONDS
    while not true():
        if time.monotonic() > deadline:
            raise servers.ServerError(f"not ready in {READY_SECONDS} s\n{state()}")
        time.sleep(POLL_SECONDS)


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


@contextmanager
def pair(command: str) -> Iterator[tuple[tuple[str, int], tuple[str, int]]]:
    """A hub and its leaf."""
    port = servers.free_port()
    off = "compression: off,"
    with ExitStack() as stack:
        hub = stack.enter_context(
            node(command, f"server_name: hub\nleafnodes {{ {off} listen: 127.0.0.1:{port} }}\n")
        )
        remote = f"{{ {off} url: nats-leaf://127.0.0.1:{port} }}"
        leaf = stack.enter_context(
            node(command, f"server_name: leaf\nleafnodes {{ remotes: [ {remote} ] }}\n")
        )
        yield hub, leaf


class Probe:
    """Checks whether a subscription on one server is known on the other."""

    def __init__(self, near: tuple[str, int], far: tuple[str, int]) -> None:
        self.near, self.far = near, far

    def wait(self) -> None:
        """Subscriptions are announced in order: if this subject is known, earlier ones are."""
        subject = f"probe{time.monotonic_ns()}"
        with _client(self.far) as far, _client(self.near) as near:
            far.sendall(f"SUB {subject} 1\r\nPING\r\n".encode())
            _until(far, b"PONG")
            near.sendall(b"SUB probes 1\r\n")
            deadline = time.monotonic() + READY_SECONDS
            while True:
                near.sendall(f"PUB {subject} probes 0\r\n\r\nPING\r\n".encode())
                if b"503" not in _until(near, b"PONG"):
                    return
                if time.monotonic() > deadline:
                    raise servers.ServerError("the leaf connection is not established")
                time.sleep(POLL_SECONDS)


def _client(address: tuple[str, int]) -> socket.socket:
    sock = socket.create_connection(address)
    sock.sendall(b'CONNECT {"verbose":false,"headers":true,"no_responders":true}\r\nPING\r\n')
    _until(sock, b"PONG")
    return sock


def _until(sock: socket.socket, mark: bytes) -> bytes:
    said = b""
    while mark not in said:
        data = sock.recv(65536)
        if not data:
            raise servers.ServerError("the server closed a connection")
        said += data
    return said


def sample(row: Row, command: str, seconds: float) -> float:
    """One run on new servers."""
    request = isinstance(row.plan, NatsRequestPlan)
    with pair(command) as (hub, leaf), cores_awake(request):
        near, far = (leaf, hub) if row.up else (hub, leaf)
        probe = Probe(near, far)
        probe.wait()
        for duration in (WARM_SECONDS, seconds):
            if isinstance(row.plan, NatsRequestPlan):
                asked = replace(row.plan, address=near, responder=far, seconds=duration)
                result = run_nats_request(asked, ready=probe.wait)
            else:
                plan = replace(row.plan, address=near, readers=far, seconds=duration)
                result = run_nats_flow(plan, ready=probe.wait)
    if result.latency_us is not None:
        return result.latency_us[row.metric.split()[0]]
    assert result.delivered is not None
    return result.delivered.msgs_per_second


def measure(row: Row, options: argparse.Namespace) -> list[str]:
    """A line of the table."""
    found: list[tuple[float, float]] = []
    for turn in range(options.rounds):
        one = {}
        order = [("ours", options.ours_cmd), ("original", options.against or ORIGINAL)]
        for name, command in order if turn % 2 == 0 else reversed(order):
            one[name] = sample(row, command, options.seconds)
        found.append((one["ours"], one["original"]))
        print(f"{row.name}: {one}", file=sys.stderr)
    ratios = [a / b for a, b in found]
    ratio = statistics.median(ratios)
    goal = row.goal().as_before() if options.against else row.goal()
    return [
        row.name,
        row.metric,
        f"{statistics.median(a for a, _ in found):,.0f}",
        f"{statistics.median(b for _, b in found):,.0f}",
        f"{ratio:.2f}",
        f"{min(ratios):.2f}-{max(ratios):.2f}",
        *goal.cells(ratio),
    ]


HEAD = ["row", "metric", "ours", "original", "ratio", "spread", "goal", ""]


def arguments() -> argparse.Namespace:
    parser = command_line.parser_of(__doc__, OURS, "{python}")
    command_line.add_rounds(parser, ROUNDS, SECONDS)
    command_line.add_against(parser)
    return command_line.rounds_of(parser, (ROUNDS, SECONDS), (QUICK_ROUNDS, QUICK_SECONDS))


def main() -> int:
    options = arguments()
    for command in (options.ours_cmd, options.against or ORIGINAL):
        if not servers.found(command):
            sys.exit(f"not found: {command.split()[0]}")
    table, notes = report.measured(ROWS, lambda row: measure(row, options), options.rows)
    method = (
        f"{options.rounds} rounds, alternating, {options.seconds:g} s of publishing per run after a"
        f" warm-up of {WARM_SECONDS:g} s; two fresh servers for every run. Both sides' links are"
        " not compressed. Ratio: median of the rounds' ours/original."
    )
    failed = "\n".join(f"- {note}" for note in notes)
    shown = report.table(HEAD, table) if table else ""
    parts = ["## Leaf links", report.about("nats-server"), method, shown, failed]
    whole = "\n\n".join(part for part in parts if part)
    print(whole)
    if options.write:
        report.write_section("leaf", whole)
    return 1 if notes else 0


if __name__ == "__main__":
    sys.exit(main())
