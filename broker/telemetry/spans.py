"""Spans of NATS messages that carry a W3C `traceparent` header.

    publish orders.new      from the receipt of the message until the end of the loop's turn
      deliver orders.new    from the receipt until the message is in a subscriber's output
    deliver orders.new      from a log: from the publish until the message is sent to a consumer
      ack orders.new        from then until its answer; also requeue, timeout, close, dead

The parent of a publish is the span that the header names; headers are not changed. A message
without the header, with an invalid header or without the sampled flag has no spans. All code here
runs on the loop's thread, once per operation of a client, and only while tracing is on.
"""

from __future__ import annotations

import random
import re
import time
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from broker.protocols.nats.wire.wire import NAMES
from broker.telemetry import limits

if TYPE_CHECKING:
    from collections.abc import Callable

    from broker.protocols.nats.client.session import NatsSession
    from broker.protocols.nats.leafnodes.session import LeafSession

# W3C Trace Context: lower-case hexadecimal; later versions may append fields.
_PARENT: Final = re.compile(
    rb"\r\n(?i:traceparent):[ \t]*([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})"
    rb"(-[^\r\n]*)?[ \t]*\r\n"
)
_STATE: Final = re.compile(rb"\r\ntracestate:[ \t]*([^\r\n]*)\r\n", re.IGNORECASE)
_SAMPLED: Final = 1
_LOW_64: Final = (1 << 64) - 1
_PUB: Final = next(kind for kind, name in NAMES.items() if name == "PUB")
PUBLISH, DELIVER = "publish", "deliver"
FAILED: Final = frozenset({"requeue", "timeout", "close", "dead"})  # outcomes other than ack


class Parent(NamedTuple):
    """The trace context in the headers of a message."""

    trace_id: int
    span_id: int
    flags: int
    state: str


class Span(NamedTuple):
    """A finished span, for the exporter."""

    operation: str  # PUBLISH, DELIVER, or how a delivery from a log ended
    trace_id: int
    span_id: int
    parent_id: int
    flags: int
    state: str
    start_ns: int
    end_ns: int
    subject: str
    body_bytes: int
    envelope_bytes: int  # headers and body
    host: str
    port: int
    client: int  # 0: unknown
    group: str = ""  # the channel or durable subscription
    attempts: int = 0


def parent_of(headers: bytes) -> Parent | None:
    """The parent that a block of headers names; None: it names none, or an invalid one."""
    found = _PARENT.search(headers)
    if found is None:
        return None
    version, trace, span, flags, more = found.groups()
    trace_id, span_id = int(trace, 16), int(span, 16)
    if version == b"ff" or (version == b"00" and more) or not trace_id or not span_id:
        return None
    state = _STATE.search(headers)
    text = state[1].strip().decode("latin-1") if state is not None else ""
    return Parent(trace_id, span_id, int(flags, 16), text[: limits.TRACESTATE_BYTES])


class SpanTracer:
    """Collects spans. Sessions call it for every operation, as they call the tracer of the log."""

    def __init__(
        self,
        queue_max: int,
        ratio: float,
        call_soon: Callable[[Callable[[], None]], object],
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        """`ratio`: share of the sampled traces to record; all brokers record the same traces."""
        self.queue: deque[Span] = deque()
        self.collected = 0  # spans since start, including dropped ones
        self.dropped = 0  # spans for which the queue had no room, since start
        self._queue_max = queue_max
        self._bound = round(ratio * (1 << 64))
        self._call_soon = call_soon
        self._clock = clock
        self._ids = random.Random()  # noqa: S311 - ids, no secrets
        # The publishes in progress. A run of messages that differ only in their bytes is first
        # received completely and then delivered completely, to one subscriber after the other.
        self._run: list[Span | None] = []
        self._missing = 0  # messages of the run that are not received yet
        self._total = b""  # size of headers and body, as in the first line of a delivery
        self._next: dict[tuple[int, bytes], int] = {}  # subscription -> next message of the run
        self._deliveries = 0  # delivery spans of the run

    # --- calls of sessions

    def received(
        self,
        session: NatsSession,
        kind: int,
        words: tuple[bytes, bytes, bytes],
        data: bytes,
        count: int,
    ) -> None:
        """Called when an operation of a client was received; `count`: messages of the run."""
        if self._missing and kind == _PUB:
            self._missing -= 1
        else:
            self.finish()
            self._missing = count - 1 if kind == _PUB else 0
        if kind == _PUB and b" " in words[2]:  # with headers
            size, _, total = words[2].partition(b" ")
            self._begin(session, words[0], data, int(size), total.strip())

    def received_by_link(self, session: LeafSession, line: bytes, data: bytes | None) -> None:
        """Called when an operation of another server was received."""
        self.finish()
        parts = line.split()
        if data is not None and parts[0] == b"HMSG" and parts[-2].isdigit():
            self._begin(session, parts[1], data, int(parts[-2]), parts[-1])

    def sent(self, session: NatsSession | LeafSession, line: bytes, count: int = 1) -> None:
        """Called when a line was sent; of a message, its first line."""
        if not self._run or not line.startswith((b"HMSG ", b"MSG ")):
            return
        parts = line.split()
        # In the same turn the loop may also deliver stored messages, which are not of the run.
        if line[:1] == b"H" and parts[-1] != self._total:
            return
        key = id(session), parts[2]
        first = self._next.get(key, 0)
        self._next[key] = first + count
        for span in self._run[first : first + count]:
            if span is not None:
                self._add_delivery(session, span, parts[1])

    def settled(
        self,
        headers: bytes,
        names: tuple[str, str, str],
        times_ns: tuple[int, int, int],
        attempts: int,
        envelope: int,
    ) -> None:
        """Called when a delivery from a log has ended. `names`: subject, cursor, outcome;
        `times_ns`: of the publish, of the delivery, of the consumer's answer."""
        subject, group, outcome = names
        stored_ns, sent_ns, now_ns = times_ns
        parent = parent_of(headers)
        if parent is None or not self._is_selected(parent):
            return
        delivery = Span(
            DELIVER, parent.trace_id, self._new_id(), parent.span_id, parent.flags, parent.state,
            min(stored_ns, sent_ns), sent_ns, subject, envelope - len(headers), envelope, "", 0, 0,
            group, attempts,
        )  # fmt: skip
        self._put(delivery)
        self._put(
            delivery._replace(
                operation=outcome,
                span_id=self._new_id(),
                parent_id=delivery.span_id,
                start_ns=sent_ns,
                end_ns=max(now_ns, sent_ns),
            )
        )

    def finish(self) -> None:
        """End the spans of the publishes in progress."""
        if self._run:
            now_ns = self._clock()
            for span in self._run:
                if span is not None:
                    self._put(span._replace(end_ns=now_ns))
            self._run.clear()
            self._next.clear()

    # --- collecting

    def _begin(
        self,
        session: NatsSession | LeafSession,
        subject: bytes,
        data: bytes,
        size: int,
        total: bytes,
    ) -> None:
        span = None
        parent = parent_of(data[:size])
        if parent is not None and self._is_selected(parent):
            now_ns, envelope = self._clock(), int(total)
            span = Span(
                PUBLISH, parent.trace_id, self._new_id(), parent.span_id, parent.flags,
                parent.state, now_ns, now_ns, _text(subject), envelope - size, envelope,
                session.host, session.port, session.client_id,
            )  # fmt: skip
            if not any(self._run):
                self._deliveries = 0
                self._call_soon(self.finish)
        self._total = total
        self._run.append(span)

    def _is_selected(self, parent: Parent) -> bool:
        return bool(parent.flags & _SAMPLED) and parent.trace_id & _LOW_64 < self._bound

    def _add_delivery(self, session: NatsSession | LeafSession, span: Span, subject: bytes) -> None:
        self._deliveries += 1
        if self._deliveries > limits.DELIVERIES_MAX:
            self.collected += 1
            self.dropped += 1
            return
        self._put(
            span._replace(
                operation=DELIVER,
                span_id=self._new_id(),
                parent_id=span.span_id,
                end_ns=self._clock(),
                subject=_text(subject),
                host=session.host,
                port=session.port,
                client=session.client_id,
            )
        )

    def _put(self, span: Span) -> None:
        self.collected += 1
        if len(self.queue) >= self._queue_max:
            self.dropped += 1
        else:
            self.queue.append(span)

    def _new_id(self) -> int:
        return self._ids.getrandbits(64) or 1


def _text(subject: bytes) -> str:
    return subject.decode("utf-8", "replace")
