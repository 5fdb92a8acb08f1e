"""Metrics and spans that a real broker sends to a real OTLP receiver."""

from __future__ import annotations

import asyncio
import gzip
import json
import subprocess
import sys
import threading
import zlib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import nats
import pytest
from support.clients.http import request
from support.servers.processes import Broker

from broker.client.nsq import Message, Reader

pytest.importorskip("opentelemetry.proto", reason="the extra otel is not installed")
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

ROOT = Path(__file__).resolve().parents[3]
DEADLINE_S = 30.0
TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SAMPLED = f"00-{TRACE}-{PARENT}-01"
STATE = "vendor=a1,other=b2"


class Receiver:
    """Decodes what it gets with the official messages."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        self.metrics: dict[str, Any] = {}
        self.resource: dict[str, Any] = {}
        self.headers: list[dict[str, str]] = []
        self.changed = threading.Condition()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                coding = self.headers.get("Content-Encoding")
                if coding == "gzip":
                    body = gzip.decompress(body)
                elif coding == "deflate":
                    body = zlib.decompress(body)
                receiver.take(self.path, body, dict(self.headers))
                self.send_response(200)
                self.send_header("Content-Type", "application/x-protobuf")
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def take(self, path: str, body: bytes, headers: dict[str, str]) -> None:
        with self.changed:
            self.headers.append(headers)
            if path == "/v1/traces":
                for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                    self.resource = attributes(resource.resource)
                    for scope in resource.scope_spans:
                        self.spans += scope.spans
            elif path == "/v1/metrics":
                for each in ExportMetricsServiceRequest.FromString(body).resource_metrics:
                    self.resource = attributes(each.resource)
                    for scope in each.scope_metrics:
                        self.metrics |= {metric.name: metric for metric in scope.metrics}
            self.changed.notify_all()

    def wait(self, ready: Any) -> None:
        with self.changed:
            assert self.changed.wait_for(ready, DEADLINE_S), (self.spans, list(self.metrics))


def attributes(message: Any) -> dict[str, Any]:
    return {
        one.key: getattr(one.value, one.value.WhichOneof("value")) for one in message.attributes
    }


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    one = Receiver()
    yield one
    one.server.shutdown()
    one.server.server_close()


def broker_of(tmp_path: Path, receiver: Receiver, **more: Any) -> Broker:
    settings = {
        "endpoint": receiver.url, "interval": "100ms", "headers": ["authorization=Bearer secret"],
        "resource": ["deployment.environment.name=here"], **more,
    }  # fmt: skip
    broker = Broker(tmp_path / "server", {"telemetry": settings})
    broker.start()
    return broker


async def test_spans_of_a_message(tmp_path: Path, receiver: Receiver) -> None:
    broker = broker_of(tmp_path, receiver, metrics=False)
    try:
        client = await nats.connect(broker.nats_url)
        one = await client.subscribe("orders.*")
        two = await client.subscribe("orders.new")
        await client.publish("orders.new", b"plain")
        unsampled = {"traceparent": f"00-{TRACE}-{PARENT}-00"}
        await client.publish("orders.new", b"unsampled", headers=unsampled)
        given = {"traceparent": SAMPLED, "tracestate": STATE, "x": "y"}
        await client.publish("orders.new", b"hello", headers=given)
        await client.flush()
        for subscription in (one, two):
            for body in (b"plain", b"unsampled", b"hello"):
                message = await subscription.next_msg(DEADLINE_S)
                assert message.data == body
            assert message.headers == given  # unchanged
        await client.close()
        receiver.wait(lambda: len(receiver.spans) == 3)
    finally:
        broker.close()
    (publish,) = (span for span in receiver.spans if span.name == "publish orders.new")
    delivers = [span for span in receiver.spans if span.name == "deliver orders.new"]
    assert len(delivers) == 2
    for span in receiver.spans:
        assert span.trace_id.hex() == TRACE
        assert span.trace_state == STATE
        assert span.start_time_unix_nano <= span.end_time_unix_nano
        assert attributes(span)["messaging.system"] == "nats"
        assert attributes(span)["messaging.destination.name"] == "orders.new"
    assert publish.parent_span_id.hex() == PARENT
    assert {span.parent_span_id for span in delivers} == {publish.span_id}
    assert len({span.span_id for span in receiver.spans}) == 3
    found = attributes(publish)
    assert found["messaging.operation.name"] == "publish"
    assert found["messaging.operation.type"] == "send"
    assert found["messaging.message.body.size"] == 5
    assert found["network.peer.address"] == "127.0.0.1"
    assert receiver.resource["service.name"] == "twinwire"
    assert receiver.resource["deployment.environment.name"] == "here"
    assert receiver.headers[0]["authorization"] == "Bearer secret"


async def test_a_run_of_messages_has_each_its_trace(tmp_path: Path, receiver: Receiver) -> None:
    """Messages of one size to one subject are handled as one run."""
    broker = broker_of(tmp_path, receiver, metrics=False)
    traces = [f"{n:032x}" for n in range(1, 51)]
    try:
        client = await nats.connect(broker.nats_url)
        subscription = await client.subscribe("t")
        await client.flush()
        for trace in traces:
            await client.publish("t", b"x", headers={"traceparent": f"00-{trace}-{PARENT}-01"})
        for _ in traces:
            await subscription.next_msg(DEADLINE_S)
        await client.close()
        receiver.wait(lambda: len(receiver.spans) == 2 * len(traces))
    finally:
        broker.close()
    for operation in ("publish", "deliver"):
        spans = [span for span in receiver.spans if span.name.startswith(operation)]
        assert sorted(span.trace_id.hex() for span in spans) == traces
    publishes = {s.trace_id: s.span_id for s in receiver.spans if s.name.startswith("publish")}
    for span in receiver.spans:
        if span.name.startswith("deliver"):
            assert span.parent_span_id == publishes[span.trace_id]


@pytest.mark.parametrize("events", ["", "deliveries"])
async def test_spans_of_a_delivery_from_a_log(
    tmp_path: Path, receiver: Receiver, events: str
) -> None:
    """A NATS message in an NSQ channel: requeued once, then finished."""
    telemetry = {"endpoint": receiver.url, "metrics": False}
    config = {"telemetry": telemetry, "events": {"topic": events, "linger": "off"}}
    broker = Broker(tmp_path / "server", config)
    broker.start()
    done = asyncio.Event()

    def handle(message: Message) -> None:
        if message.attempts == 1:
            message.requeue(0, backoff=False)
        else:
            message.finish()
            done.set()

    try:
        request(broker.nsq_http, "POST", "/topic/create", topic="orders")
        request(broker.nsq_http, "POST", "/channel/create", topic="orders", channel="billing")
        client = await nats.connect(broker.nats_url)
        await client.publish("orders", b"plain")
        given = {"traceparent": SAMPLED, "tracestate": STATE}
        await client.publish("orders", b"hello", headers=given)
        await client.flush()
        await client.close()
        async with Reader("orders", "billing", handle, nsqd=[str(broker.nsq)]):
            await asyncio.wait_for(done.wait(), DEADLINE_S)
            await asyncio.to_thread(receiver.wait, lambda: len(receiver.spans) == 5)
        if events:
            depth = json.loads(request(broker.nsq_http, "GET", "/stats", format="json").body)
            assert events in [topic["topic_name"] for topic in depth["topics"]]
    finally:
        broker.close()
    names = sorted(span.name for span in receiver.spans)
    assert names == [
        "ack orders", "deliver orders", "deliver orders", "publish orders", "requeue orders",
    ]  # fmt: skip
    by_id = {span.span_id: span for span in receiver.spans}
    for name, attempt, failed in (("requeue orders", 1, True), ("ack orders", 2, False)):
        (end,) = (span for span in receiver.spans if span.name == name)
        found = attributes(end)
        assert found["messaging.operation.type"] == "settle"
        assert found["messaging.consumer.group.name"] == "billing"
        assert found["twinwire.delivery.attempt"] == attempt
        assert (end.status.code == end.status.STATUS_CODE_ERROR) == failed
        deliver = by_id[end.parent_span_id]
        assert deliver.parent_span_id.hex() == PARENT
        assert deliver.start_time_unix_nano <= deliver.end_time_unix_nano
        assert deliver.end_time_unix_nano == end.start_time_unix_nano
        assert end.trace_state == deliver.trace_state == STATE


async def test_metrics_are_those_of_the_page(tmp_path: Path, receiver: Receiver) -> None:
    broker = broker_of(tmp_path, receiver)
    try:
        for _ in range(3):
            request(broker.nsq_http, "POST", "/pub", b"x", topic="orders")
        receiver.wait(lambda: value(receiver, "twinwire_topic_messages") == 3)
        page = request(broker.monitor, "GET", "/metrics").body.decode()
    finally:
        broker.close()
    topic = receiver.metrics["twinwire_topic_messages"].sum
    assert topic.is_monotonic
    assert attributes(topic.data_points[0]) == {"topic": "orders"}
    histogram = receiver.metrics["twinwire_log_sync_seconds"].histogram.data_points[0]
    assert sum(histogram.bucket_counts) == histogram.count
    assert len(histogram.bucket_counts) == len(histogram.explicit_bounds) + 1
    on_page = {line.split()[2] for line in page.splitlines() if line.startswith("# TYPE twinwire_")}
    sent = set(receiver.metrics)
    assert {name.removesuffix("_total").removesuffix("_info") for name in on_page} <= sent
    assert "twinwire_telemetry_spans_dropped_total 0.0" in page


def value(receiver: Receiver, name: str) -> float:
    metric = receiver.metrics.get(name)
    points = metric.sum.data_points if metric is not None else ()
    return sum(point.as_double for point in points)


async def test_a_receiver_that_is_gone_stops_nothing(tmp_path: Path, receiver: Receiver) -> None:
    receiver.server.shutdown()
    receiver.server.server_close()
    broker = broker_of(tmp_path, receiver, timeout="100ms", queue_spans=1)
    try:
        client = await nats.connect(broker.nats_url)
        await client.publish("t", b"x", headers={"traceparent": SAMPLED})
        await client.flush()
        await client.close()
        broker.await_log("telemetry cannot be sent")
    finally:
        assert broker.stop() == 0


def test_without_the_section_nothing_of_it_is_imported(tmp_path: Path) -> None:
    script = (
        "import sys; from broker.config.config import Config; from broker.server.server import"
        " Server; Server(Config()); print(*sys.modules)"
    )
    found = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT
    ).stdout.split()
    assert "broker.telemetry.config" in found
    assert not [name for name in found if name.startswith("opentelemetry")]
    assert not {"broker.telemetry.spans", "broker.telemetry.service"} & set(found)
