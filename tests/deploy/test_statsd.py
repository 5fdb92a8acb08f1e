"""Grafana's dashboards of NSQ, which read what an nsqd sends to statsd: the daemon that they name
receives it here, with the mapping of deploy/monitoring, from the broker or from nsqd."""

from __future__ import annotations

import contextlib
import re
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import BrokerFor
from support import Server
from support.clients.http import request
from support.clients.lookup import eventually
from support.clients.peer import nsq_peer
from support.servers.processes import ANY, Address, _Process

PROGRAM = "statsd_exporter"
MAPPING = Path(__file__).resolve().parents[2] / "deploy" / "monitoring" / f"{PROGRAM}.yaml"
# What the dashboards `nsq-topics` and `nsq-instances` and the two alerts of that mixin ask for.
TOPIC = tuple(
    f"nsq_topic_{name}"
    for name in (
        "message_count",
        "message_bytes",
        "depth",
        "backend_depth",
        "e2e_processing_latency_99",
    )
)
CHANNEL = tuple(
    f"nsq_topic_channel_{name}"
    for name in (
        "message_count",
        "depth",
        "backend_depth",
        "in_flight_count",
        "requeue_count",
        "timeout_count",
        "deferred_count",
        "clients",
        "e2e_processing_latency_99",
    )
)
MEMORY = tuple(
    f"nsq_mem_{name}"
    for name in (
        "heap_in_use_bytes",
        "heap_idle_bytes",
        "heap_released_bytes",
        "heap_objects",
        "next_gc_bytes",
        "gc_pause_usec_100",
        "gc_pause_usec_99",
        "gc_pause_usec_95",
    )
)
COUNTERS = ("message_count", "message_bytes", "requeue_count", "timeout_count")

Labels = dict[str, str]
Series = dict[str, list[tuple[Labels, float]]]

pytestmark = pytest.mark.skipif(shutil.which(PROGRAM) is None, reason=f"not on PATH: {PROGRAM}")


def port_of(pid: int, protocol: str) -> int:
    """The port that the process has bound, which it does not log; 0 = none yet."""
    own = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # it was closed meanwhile
            own |= set(re.findall(r"^socket:\[(\d+)\]$", str(link.readlink())))
    for line in Path(f"/proc/{pid}/net/{protocol}").read_text().splitlines()[1:]:
        cells = line.split()
        if cells[9] in own:
            return int(cells[1].rpartition(":")[2], 16)
    return 0


class Exporter:
    """The daemon, on free ports."""

    def __init__(self, folder: Path) -> None:
        self.process = _Process(folder / f"{PROGRAM}.log")
        self.process.spawn(
            [PROGRAM, f"--statsd.mapping-config={MAPPING}", "--statsd.listen-udp=127.0.0.1:0",
             "--statsd.listen-tcp=", "--web.listen-address=127.0.0.1:0",
             "--no-statsd.parse-librato-tags"]
        )  # fmt: skip
        self.udp = self.web = ANY

    def ready(self) -> None:
        """Wait until it has both ports."""
        assert self.process.child is not None
        pid = self.process.child.pid
        eventually(lambda: port_of(pid, "udp") > 0 and port_of(pid, "tcp") > 0)
        self.udp, self.web = (Address("127.0.0.1", port_of(pid, kind)) for kind in ("udp", "tcp"))

    def page(self) -> str:
        """What Prometheus scrapes."""
        return request(self.web, "GET", "/metrics").body.decode()

    def series(self) -> Series:
        """The series of NSQ, by name. The parser of prometheus-client renames counters."""
        found: Series = {}
        for name, labels, value in re.findall(
            r"^(nsq_\w+){(.*)} (\S+)$", self.page(), re.MULTILINE
        ):
            pairs = dict(re.findall(r'(\w+)="([^"]*)"', labels))
            found.setdefault(name, []).append((pairs, float(value)))
        return found


@pytest.fixture(scope="module")
def exporter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Exporter]:
    exporter = Exporter(tmp_path_factory.mktemp(PROGRAM))
    try:
        exporter.ready()
        yield exporter
    finally:
        exporter.process.end(signal.SIGTERM)


@pytest.fixture(scope="module")
def busy(broker_for: BrokerFor, exporter: Exporter) -> Server:
    """A server with a topic of three messages: one finished, one requeued, one in flight."""
    server = broker_for(
        {
            "nsq": {
                "statsd_address": str(exporter.udp),
                "statsd_interval": "2s",  # with one second nsqd panics
                "broadcast_address": "127.0.0.1",
                "e2e_processing_latency_percentiles": [1.0, 0.99],
                "e2e_processing_latency_window_time": "10m",
            }
        }
    )
    for path, names in (("topic", {}), ("channel", {"channel": "billing"})):
        done = request(server.nsq_http, "POST", f"/{path}/create", topic="orders", **names)
        assert done.status == 200
    return server


def value_of(series: Series, name: str, **labels: str) -> float | None:
    values = [v for have, v in series.get(name, []) if have.items() >= labels.items()]
    return values[0] if len(values) == 1 else None


def test_each_metric_of_the_dashboards_is_there(busy: Server, exporter: Exporter) -> None:
    for body in (b"one", b"two", b"three"):
        assert request(busy.nsq_http, "POST", "/pub", body, topic="orders").status == 200
    with nsq_peer(busy.nsq) as peer:
        peer.send(b"SUB orders billing\nRDY 3\n")
        peer.expect_frame("response", b"OK")
        first, second, _ = (peer.read_frame() for _ in range(3))
        peer.send(b"FIN " + first.message_id + b"\nREQ " + second.message_id + b" 900000\n")
        channel: dict[str, Any] = {"topic": "orders", "channel": "billing"}
        instance = f"127_0_0_1_{busy.nsq_http.port}"

        def settled() -> bool:
            found = exporter.series()
            return (
                value_of(found, "nsq_topic_channel_deferred_count", **channel) == 1
                and value_of(found, "nsq_topic_channel_requeue_count", **channel) == 1
                and value_of(found, "nsq_topic_channel_clients", **channel) == 1
                and value_of(found, "nsq_topic_message_count", topic="orders") == 3
                and "nsq_topic_channel_e2e_processing_latency_99" in found
                and set(MEMORY) <= set(found)  # in the last datagram of a round
            )

        eventually(settled)
        series = exporter.series()
    asked = {name: {"job", "instance", "topic"} for name in TOPIC}
    asked |= {name: {"job", "instance", "topic", "channel"} for name in CHANNEL}
    asked |= {name: {"job", "instance"} for name in MEMORY}
    assert {name: set(series[name][0][0]) for name in asked if name in series} == asked
    every = {have["instance"] for name in asked for have, _ in series[name]}
    assert every == {instance}
    assert value_of(series, "nsq_topic_message_bytes", topic="orders") == len(b"onetwothree")
    assert value_of(series, "nsq_topic_channel_in_flight_count", **channel) == 1
    assert value_of(series, "nsq_topic_channel_message_count", **channel) == 3
    latency = value_of(series, "nsq_topic_channel_e2e_processing_latency_99", **channel)
    assert latency is not None
    assert latency > 0


def test_rates_are_of_counters(busy: Server, exporter: Exporter) -> None:
    """`rate` of a gauge would be nonsense."""
    eventually(
        lambda: {"nsq_topic_channel_timeout_count", "nsq_mem_gc_runs"} <= set(exporter.series())
    )
    kinds = dict(re.findall(r"^# TYPE (nsq_\w+) (\w+)$", exporter.page(), re.MULTILINE))
    counters = {name for name, kind in kinds.items() if kind == "counter"}
    expected = {name for name in kinds if name.endswith(COUNTERS)} | {"nsq_mem_gc_runs"}
    assert counters == expected


def test_names_with_dots_and_ephemeral_ones(busy: Server, exporter: Exporter) -> None:
    topic, channel = "orders.new", "to.billing#ephemeral"
    with nsq_peer(busy.nsq) as peer:
        peer.send(f"SUB {topic} {channel}\n".encode())
        peer.expect_frame("response", b"OK")

        def settled() -> bool:
            found = exporter.series()
            mine = value_of(found, "nsq_topic_channel_clients", topic=topic, channel=channel)
            return mine == 1 and value_of(found, "nsq_topic_depth", topic=topic) == 0

        eventually(settled)
