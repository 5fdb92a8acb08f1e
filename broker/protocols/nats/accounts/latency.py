"""Service latency: which requests are measured, and the events published about them.

Source: nats-server accounts.go (shouldSample, ServiceLatency and its senders).
"""

from __future__ import annotations

import string
import time
from dataclasses import field
from typing import TYPE_CHECKING, Any, Final

from broker.base.values import dataclass
from broker.protocols.nats import errors
from broker.protocols.nats.auth.client_info import client_info, go_json, go_time

if TYPE_CHECKING:
    from collections.abc import Mapping

TYPE: Final = "io.nats.server.metric.v1.service_latency"
_ID_LETTERS: Final = string.digits + string.ascii_uppercase + string.ascii_lowercase
_ID_LENGTH: Final = 22
_UBER_PARTS: Final = 4

Headers = dict[str, list[str]]


@dataclass(slots=True)
class Sample:
    """One measured request."""

    requester: object  # the session, or None
    share: bool
    headers: Headers  # those that requested the measurement
    start_ns: int = field(default_factory=time.time_ns)


def parse_headers(block: bytes) -> Headers:
    """The headers of a message by their canonical names."""
    found: Headers = {}
    for line in block.split(b"\r\n")[1:]:
        name, colon, value = line.partition(b":")
        if colon:
            key = "-".join(part.capitalize() for part in name.decode("latin-1").split("-"))
            found.setdefault(key, []).append(value.strip(b" \t").decode("utf-8", "replace"))
    return found


def sampling_headers(sampling: int, block: bytes) -> Headers | None:
    """The headers that request a measurement (empty: chosen by chance); None: do not measure.

    `sampling` is in percent; -1 means that only headers decide."""
    if sampling == 0:
        return None
    import random  # imported here, because it would take a millisecond of each start

    # As in the original, which samples one percent more than configured.
    if sampling > 0 and (sampling >= 100 or random.randrange(100) <= sampling):  # noqa: S311
        return {}
    return _traced(parse_headers(block)) if block else None


def _traced(h: Headers) -> Headers | None:
    """The sampling headers of tracing systems: Jaeger, Zipkin in two forms, W3C."""
    if h.get("Uber-Trace-Id"):
        parts = h["Uber-Trace-Id"][0].split(":")
        flags = parts[-1] if len(parts) == _UBER_PARTS else ""
        more = [name for name in h if name.startswith("Uberctx-")]
        return _pick(h, "Uber-Trace-Id", *more) if _is_odd_hex(flags) else None
    if h.get("X-B3-Sampled", [""])[0] in {"0", "1"} or "X-B3-Traceid" in h:
        if h.get("X-B3-Sampled", [""])[0] == "0":
            return None
        return _pick(h, "X-B3-Sampled", "X-B3-Traceid", "X-B3-Parentspanid", "X-B3-Spanid")
    if h.get("B3"):
        parts = h["B3"][0].split("-")
        denied = parts[2:3] == ["0"] or parts == ["0"]
        return None if denied else _pick(h, "B3")
    if h.get("Traceparent"):
        parts = h["Traceparent"][0].split("-")
        sampled = len(parts) == _UBER_PARTS and parts[3] == "01"
        return _pick(h, "Traceparent", "Tracestate") if sampled else None
    return None


def _is_odd_hex(text: str) -> bool:
    hexadecimal = bool(text) and len(text) <= 2 and all(c in string.hexdigits for c in text)
    return hexadecimal and int(text, 16) & 1 == 1


def _pick(headers: Headers, *names: str) -> Headers:
    return {name: headers[name] for name in names if name in headers}


def answered(sample: Sample, responder: object, server: Mapping[str, str]) -> bytes:
    """The event for the first answer; `responder`: its session."""
    now_ns = time.time_ns()
    took = now_ns - sample.start_ns
    requester = client_info(sample.requester, server if sample.share else None)
    service = client_info(responder, server)
    requester_rtt, service_rtt = requester.get("rtt", 0), service.get("rtt", 0)
    system = time.time_ns() - now_ns if service_rtt else 0
    times = {
        "start": go_time(sample.start_ns - requester_rtt),
        "service": max(0, took - service_rtt),
        "system": system,
        "total": requester_rtt + took + system,
    }
    return _event(sample, 200, {"requestor": requester, "responder": service}, times)


def failed(sample: Sample, status: int, server: Mapping[str, str]) -> bytes:
    """The event for a request without an answer. Status: 400 no answer requested, 408 the requester
    has disconnected, 503 no responder, 504 timeout."""
    requester = client_info(sample.requester, server if sample.share else None)
    start = go_time(sample.start_ns - requester.get("rtt", 0))
    times = {"start": start, "service": 0, "system": 0, "total": 0}
    return _event(sample, status, {"requestor": requester}, times)


def _event(
    sample: Sample, status: int, clients: dict[str, dict[str, Any]], times: dict[str, Any]
) -> bytes:
    import secrets

    event: dict[str, Any] = {
        "type": TYPE,
        "id": "".join(secrets.choice(_ID_LETTERS) for _ in range(_ID_LENGTH)),
        "timestamp": go_time(time.time_ns()),
        "status": status,
    }
    if status in errors.NATS_LATENCY_STATUS:
        event["description"] = errors.NATS_LATENCY_STATUS[status]
    event |= {role: info for role, info in clients.items() if info}
    if sample.headers:
        event["header"] = dict(sorted(sample.headers.items()))
    return go_json(event | times)
