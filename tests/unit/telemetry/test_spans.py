"""Which headers have a span, and what does not fit into the queue."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from broker.protocols.nats.wire.wire import NAMES
from broker.telemetry import limits
from broker.telemetry.spans import DELIVER, PUBLISH, Parent, SpanTracer, parent_of

PUB = next(kind for kind, name in NAMES.items() if name == "PUB")
PING = next(kind for kind, name in NAMES.items() if name == "PING")
TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
GOOD = f"00-{TRACE}-{PARENT}-01"
SESSION: Any = SimpleNamespace(host="h", port=1, client_id=7)


def block(*lines: str) -> bytes:
    return "\r\n".join(("NATS/1.0", *lines, "", "")).encode()


@pytest.mark.parametrize(
    "text",
    [
        GOOD,
        f"  {GOOD}  ",
        f"01-{TRACE}-{PARENT}-01-more",  # a later version
    ],
)
def test_headers_with_a_parent(text: str) -> None:
    found = parent_of(block("a: b", f"TraceParent:{text}", "tracestate: v=1 "))
    assert found == Parent(int(TRACE, 16), int(PARENT, 16), 1, "v=1")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        GOOD.upper(),
        f"ff-{TRACE}-{PARENT}-01",
        f"00-{'0' * 32}-{PARENT}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE}-{PARENT}-01-more",
        f"00-{TRACE[1:]}-{PARENT}-01",
    ],
)
def test_headers_without(text: str) -> None:
    assert parent_of(block(f"traceparent: {text}")) is None
    assert parent_of(block(f"not-traceparent: {GOOD}")) is None


def publish(tracer: SpanTracer, text: str = GOOD, body: bytes = b"x", count: int = 1) -> bytes:
    headers = block(f"traceparent: {text}")
    total = b"%d" % (len(headers) + len(body))
    words = (b"t", b"", b"%d %s" % (len(headers), total))
    tracer.received(SESSION, PUB, words, headers + body, count)
    return total


def tracer_of(queue_max: int = 100, ratio: float = 1.0) -> tuple[SpanTracer, list[Any]]:
    soon: list[Any] = []
    return SpanTracer(queue_max, ratio, soon.append, iter(range(10**9)).__next__), soon


def test_a_publish_ends_with_the_turn() -> None:
    tracer, soon = tracer_of()
    total = publish(tracer)
    tracer.sent(SESSION, b"HMSG t 1 9 " + total + b"\r\n")
    assert [span.operation for span in tracer.queue] == [DELIVER]
    (end,) = soon
    end()
    end()
    assert [span.operation for span in tracer.queue] == [DELIVER, PUBLISH]
    tracer.sent(SESSION, b"HMSG t 1 9 " + total + b"\r\n")  # of a stored message, later
    assert len(tracer.queue) == 2


def test_other_lines_are_no_deliveries() -> None:
    tracer, _ = tracer_of()
    publish(tracer)
    for line in (b"PONG\r\n", b"+OK\r\n", b"HMSG t 1 9 99999\r\n", b"-ERR 'MSG '\r\n"):
        tracer.sent(SESSION, line)
    assert not tracer.queue
    tracer.received(SESSION, PING, (b"", b"", b""), b"", 0)
    assert [span.operation for span in tracer.queue] == [PUBLISH]


def test_a_run_is_delivered_in_parts_to_each_subscriber() -> None:
    tracer, _ = tracer_of()
    traces = [f"{n:032x}" for n in range(1, 4)]
    for trace in traces:
        total = publish(tracer, f"00-{trace}-{PARENT}-01", count=3)
    line = b"HMSG t %d 9 " + total + b"\r\n"
    for sid, count in ((1, 2), (1, 1), (2, 1), (2, 2)):
        tracer.sent(SESSION, line % sid, count)
    found = [f"{span.trace_id:032x}" for span in tracer.queue]
    assert found == [*traces, *traces]
    tracer.finish()
    assert [f"{span.trace_id:032x}" for span in tracer.queue][6:] == traces


def test_what_does_not_fit_is_counted() -> None:
    tracer, _ = tracer_of(queue_max=2)
    for _ in range(5):
        publish(tracer)
    tracer.finish()
    assert (len(tracer.queue), tracer.collected, tracer.dropped) == (2, 5, 3)


def test_deliveries_of_one_message_are_limited() -> None:
    tracer, _ = tracer_of(queue_max=10**6)
    total = publish(tracer)
    for sid in range(limits.DELIVERIES_MAX + 5):
        tracer.sent(SESSION, b"HMSG t %d 9 %s\r\n" % (sid, total))
    assert (len(tracer.queue), tracer.dropped) == (limits.DELIVERIES_MAX, 5)


def test_a_share_of_the_traces() -> None:
    """By the trace's id: all brokers choose the same ones."""
    chosen = []
    for _ in range(2):
        tracer, _ = tracer_of(queue_max=10**6, ratio=0.25)
        for n in range(1000):
            publish(tracer, f"00-{n * 0x9E3779B97F4A7C15 + 1:032x}-{PARENT}-01")
        tracer.finish()
        chosen.append({span.trace_id for span in tracer.queue})
    assert chosen[0] == chosen[1]
    assert 200 < len(chosen[0]) < 300
    tracer, _ = tracer_of(ratio=0.0)
    publish(tracer)
    tracer.finish()
    assert tracer.collected == 0
