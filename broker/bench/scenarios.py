"""Benchmark runs: a plan describes the load, its run returns a result. Used by `twinwire bench`."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from broker.bench import limits
from broker.bench.dial import Dialled, StanPeer, Streaming, dial_nats, dial_nsq
from broker.bench.frames import Block
from broker.bench.loadgen import Load, LoadError
from broker.bench.nats import NatsFlow, NatsRequest
from broker.bench.nsq import NsqFlow
from broker.bench.stan import StanFlow

if TYPE_CHECKING:
    from broker.bench.histogram import Histogram

# Called about ten times a second with messages published and received so far.
Progress = Callable[[int, int], None]


@dataclass(frozen=True, kw_only=True)
class Rate:
    """Messages, and the seconds until the last of them had arrived."""

    msgs: int
    bytes: int
    seconds: float
    msgs_per_second: float


@dataclass(frozen=True, kw_only=True)
class Result:
    """The result of one run. Latencies are microseconds by percentile name."""

    scenario: str
    msgs: int
    bytes: int
    seconds: float
    msgs_per_second: float
    published: Rate
    delivered: Rate | None
    latency_us: dict[str, float] | None = None
    redelivered: int = 0
    refused: int = 0  # published and answered with an error
    generator_cpu_seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class NatsFlowPlan:
    """Publishers and subscribers, or publishers alone. `seconds` overrides `msgs`."""

    address: tuple[str, int]
    readers: tuple[str, int] | None = (
        None  # server of the subscribers; None: that of the publishers
    )
    size: int = limits.NATS_SIZE_BYTES
    msgs: int = limits.MESSAGES
    seconds: float = 0.0
    pubs: int = 1
    subs: int = 0
    subject: str = "bench"
    subjects: int = 1
    group: str = ""
    ahead_bytes: int = limits.AHEAD_BYTES


@dataclass(frozen=True, kw_only=True)
class NatsRequestPlan:
    """One requester, one responder."""

    address: tuple[str, int]
    responder: tuple[str, int] | None = None  # server of the responder; None: that of the requester
    size: int = limits.NATS_SIZE_BYTES
    msgs: int = limits.REQUESTS
    seconds: float = 0.0
    in_flight: int = limits.REQUESTS_IN_FLIGHT
    subject: str = "bench"
    spin: bool = False


@dataclass(frozen=True, kw_only=True)
class NsqFlowPlan:
    """Publishers and the consumers of one channel, or publishers alone (subs = 0)."""

    address: tuple[str, int]
    size: int = limits.NSQ_SIZE_BYTES
    msgs: int = limits.MESSAGES
    seconds: float = 0.0
    pubs: int = 1
    subs: int = 1
    batch: int = 1
    window: int = 0
    rdy: int = limits.RDY
    rate: float = 0.0
    topic: str = field(default_factory=lambda: f"bench_{os.urandom(4).hex()}")
    channel: str = "bench"


@dataclass(frozen=True, kw_only=True)
class StanFlowPlan:
    """Publishers and the subscribers of one channel, or publishers alone (subs = 0)."""

    address: tuple[str, int]
    size: int = limits.STAN_SIZE_BYTES
    msgs: int = limits.MESSAGES
    seconds: float = 0.0
    pubs: int = 1
    subs: int = 0
    window: int = limits.STAN_WINDOW
    max_in_flight: int = limits.STAN_IN_FLIGHT
    cluster: str = limits.STAN_CLUSTER
    channel: str = field(default_factory=lambda: f"bench_{os.urandom(4).hex()}")


def drive(load: Load, counts: Callable[[], tuple[int, int]], progress: Progress | None) -> float:
    """Run to the end; return the generator's own CPU seconds."""
    cpu = time.thread_time()
    moved, moved_at = load.moved, time.monotonic()
    while not load.step(limits.STEP_MS):
        now = time.monotonic()
        if load.moved != moved:
            moved, moved_at = load.moved, now
        elif now - moved_at > limits.STALL_SECONDS:
            sent, got = counts()
            raise LoadError(
                f"no progress for {limits.STALL_SECONDS:.0f} s"
                f" ({sent} messages sent, {got} received)"
            )
        if progress is not None:
            progress(*counts())
    return time.thread_time() - cpu


def share(total: int, parts: int) -> list[int]:
    """Split a total into parts that differ by at most one."""
    return [total // parts + (i < total % parts) for i in range(parts)]


def _rate(msgs: int, size: int, nanoseconds: int) -> Rate:
    seconds = max(nanoseconds, 1) / 1e9
    return Rate(
        msgs=msgs, bytes=msgs * size, seconds=seconds, msgs_per_second=round(msgs / seconds, 1)
    )


def _percentiles(latency: Histogram) -> dict[str, float]:
    names = {f"p{p:g}": latency.percentile_ns(p) / 1000 for p in limits.PERCENTILES}
    return names | {"max": latency.max_ns() / 1000}


def _result(scenario: str, published: Rate, delivered: Rate | None, **more: object) -> Result:
    whole = delivered or published
    return Result(
        scenario=scenario,
        msgs=whole.msgs,
        bytes=whole.bytes,
        seconds=whole.seconds,
        msgs_per_second=whole.msgs_per_second,
        published=published,
        delivered=delivered,
        **more,  # type: ignore[arg-type]
    )


def _close(dialled: list[Dialled]) -> None:
    for sock, _ in dialled:
        sock.close()


def _recv_bytes(size: int) -> int:
    """Space for two whole messages with their lines, at least the default."""
    return max(limits.RECV_BUFFER_BYTES, 2 * size + 65536)


def _nats_block(plan: NatsFlowPlan) -> tuple[Block, bytes]:
    """The publishers' units, and the subject that matches all of them."""
    body = b"x" * plan.size
    if plan.subjects == 1:
        names, match = [plan.subject], plan.subject
    else:
        names = [f"{plan.subject}.{i}" for i in range(plan.subjects)]
        match = f"{plan.subject}.*"
    units = [b"PUB %s %d\r\n%s\r\n" % (name.encode(), plan.size, body) for name in names]
    return Block(units, limits.BLOCK_BYTES), match.encode()


def run_nats_flow(
    plan: NatsFlowPlan, progress: Progress | None = None, ready: Callable[[], None] | None = None
) -> Result:
    """`twinwire bench nats pub` and `pubsub`. `ready` is called when all are connected."""
    block, match = _nats_block(plan)
    group = b" " + plan.group.encode() if plan.group else b""
    ahead = max(1, plan.ahead_bytes // (len(match) + plan.size + 12))
    readers: list[Dialled] = []
    publishers: list[Dialled] = []
    load = NatsFlow()
    try:
        subscribe = [b"SUB " + match + group + b" 1"]
        there = plan.readers or plan.address
        readers.extend(dial_nats(there, subscribe) for _ in range(plan.subs))
        publishers.extend(dial_nats(plan.address) for _ in range(plan.pubs))
        if ready is not None:
            ready()
        duration_ns = int(plan.seconds * 1e9)
        load.open(readers, publishers, _recv_bytes(plan.size), duration_ns, False)
        load.begin(
            block,
            [] if duration_ns else share(plan.msgs, plan.pubs),
            ahead,
            max(1, ahead // limits.AHEAD_RESUME_DIVISOR),
            bool(plan.group),
        )
        cpu = drive(load, lambda: (load.published(), load.received()[0]), progress)
    finally:
        _close(readers + publishers)
    published_ns, delivered_ns, _ = load.times_ns()
    received = load.received()[0]
    return _result(
        "nats pubsub" if plan.subs else "nats pub",
        _rate(load.published(), plan.size, published_ns),
        _rate(received, plan.size, delivered_ns) if plan.subs else None,
        generator_cpu_seconds=cpu,
    )


def run_nats_request(
    plan: NatsRequestPlan,
    progress: Progress | None = None,
    ready: Callable[[], None] | None = None,
) -> Result:
    """`twinwire bench nats request`. `ready` is called when both are connected."""
    inbox = f"_INBOX.{os.urandom(8).hex()}"
    readers: list[Dialled] = []
    load = NatsRequest()
    try:
        readers.append(dial_nats(plan.address, [f"SUB {inbox}.* 1".encode()]))
        there = plan.responder or plan.address
        readers.append(dial_nats(there, [f"SUB {plan.subject} 1".encode()]))
        if ready is not None:
            ready()
        duration_ns = int(plan.seconds * 1e9)
        load.open(readers, [], _recv_bytes(plan.size), duration_ns, plan.spin)
        wanted = 0 if duration_ns else plan.msgs
        load.begin(plan.subject.encode(), inbox.encode(), plan.size, plan.in_flight, wanted)
        cpu = drive(load, lambda: (load.published(), load.received()[0]), progress)
    finally:
        _close(readers)
    published_ns, delivered_ns, _ = load.times_ns()
    return _result(
        "nats request",
        _rate(load.published(), plan.size, published_ns),
        _rate(load.received()[0], plan.size, delivered_ns),
        latency_us=_percentiles(load.latencies()),
        generator_cpu_seconds=cpu,
    )


def _nsq_block(plan: NsqFlowPlan) -> Block:
    body = b"x" * plan.size
    head = plan.size.to_bytes(4, "big")
    if plan.batch == 1:
        unit = b"PUB %s\n%s%s" % (plan.topic.encode(), head, body)
    else:
        payload = plan.batch.to_bytes(4, "big") + (head + body) * plan.batch
        size = len(payload).to_bytes(4, "big")
        unit = b"MPUB %s\n%s%s" % (plan.topic.encode(), size, payload)
    # A fixed rate writes into copies of a single unit.
    return Block([unit], len(unit) if plan.rate else limits.BLOCK_BYTES)


def run_nsq_flow(plan: NsqFlowPlan, progress: Progress | None = None) -> Result:
    """`twinwire bench nsq pub` and `pubfin`. `msgs` is rounded up to whole MPUBs."""
    window = plan.window or (limits.PUB_WINDOW if plan.batch == 1 else limits.MPUB_WINDOW)
    readers: list[Dialled] = []
    publishers: list[Dialled] = []
    load = NsqFlow()
    duration_ns = int(plan.seconds * 1e9)
    commands = [] if duration_ns else share(-(-plan.msgs // plan.batch), plan.pubs)
    try:
        place = (plan.topic, plan.channel)
        readers.extend(dial_nsq(plan.address, place, plan.rdy) for _ in range(plan.subs))
        publishers.extend(dial_nsq(plan.address) for _ in range(plan.pubs))
        load.open(
            readers, publishers, _recv_bytes(plan.size), 0 if plan.rate else duration_ns, False
        )
        refill = max(1, window // limits.WINDOW_REFILL_DIVISOR)
        load.begin(
            _nsq_block(plan), [] if plan.rate else commands, window, refill, plan.batch, plan.size
        )
        if plan.rate:
            paced = max(1, int(plan.seconds * plan.rate)) if plan.seconds else plan.msgs
            load.pace_at(plan.rate, paced)
        cpu = drive(load, lambda: (load.acknowledged(), load.received()[0]), progress)
    finally:
        _close(readers + publishers)
    published_ns, _, finished_ns = load.times_ns()
    return _result(
        "nsq pubfin" if plan.subs else "nsq pub",
        _rate(load.published(), plan.size, published_ns),
        _rate(load.received()[0], plan.size, finished_ns) if plan.subs else None,
        latency_us=_percentiles(load.latencies()) if plan.rate and plan.subs else None,
        redelivered=load.redelivered(),
        generator_cpu_seconds=cpu,
    )


def run_stan_flow(plan: StanFlowPlan, progress: Progress | None = None) -> Result:
    """`twinwire bench stan pub` and `pubsub`: until the last PubAck and the last processed Ack."""
    where = Streaming(plan.address, plan.cluster, plan.channel)
    peers: list[StanPeer] = []
    load = StanFlow()
    politely = False
    duration_ns = int(plan.seconds * 1e9)
    try:
        peers.extend(StanPeer(where) for _ in range(plan.subs + plan.pubs))
        readers, publishers = peers[: plan.subs], peers[plan.subs :]
        subscribed = [peer.subscribe(plan.max_in_flight) for peer in readers]
        units = [peer.unit(b"x" * plan.size) for peer in publishers]
        load.open(
            [peer.dialled() for peer in readers],
            [peer.dialled() for peer in publishers],
            _recv_bytes(plan.size),
            duration_ns,
            False,
        )
        load.begin(
            units,
            subscribed,
            [] if duration_ns else share(plan.msgs, plan.pubs),
            plan.window,
            max(1, plan.window // limits.WINDOW_REFILL_DIVISOR),
            limits.STAN_AHEAD,
        )
        cpu = drive(load, lambda: (load.acknowledged(), load.received()[0]), progress)
        for peer, unread in zip(peers, load.unread(), strict=True):
            peer.take_back(unread)
        politely = True
    finally:
        for peer in peers:
            peer.close(politely=politely)
    refused, reason = load.refused()
    if refused == load.published():
        raise LoadError(f"the server refused every message: {reason}")
    published_ns, _, finished_ns = load.times_ns()
    return _result(
        "stan pubsub" if plan.subs else "stan pub",
        _rate(load.acknowledged(), plan.size, published_ns),
        _rate(load.received()[0], plan.size, finished_ns) if plan.subs else None,
        latency_us=_percentiles(load.latencies()),
        redelivered=load.redelivered(),
        refused=refused,
        generator_cpu_seconds=cpu,
    )
