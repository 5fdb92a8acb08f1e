"""Benchmark runs: a plan describes the load, its run returns a result. Used by `twinwire bench`."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from broker.bench import limits
from broker.bench.consume import JetStreamConsume
from broker.bench.dial import (
    Dialled,
    StanPeer,
    Streaming,
    ask_jetstream,
    dial_nats,
    dial_nsq,
)
from broker.bench.frames import Block
from broker.bench.jetstream import JetStreamPublish
from broker.bench.loadgen import Load, LoadError
from broker.bench.nats import NatsFlow, NatsRequest
from broker.bench.nsq import NsqFlow
from broker.bench.stan import StanFlow
from broker.bench.traffic import Period, Size, bounds

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
    """The result of one run. Latencies are microseconds by percentile name: of requests to their
    reply, of NATS Streaming messages to their PubAck, of NSQ messages to their delivery."""

    scenario: str
    msgs: int
    bytes: int
    seconds: float
    msgs_per_second: float
    published: Rate
    delivered: Rate | None
    latency_us: dict[str, float] | None = None
    ack_latency_us: dict[str, float] | None = None  # from an NSQ command to its OK
    redelivered: int = 0
    refused: int = 0  # published and answered with an error
    generator_cpu_seconds: float = 0.0

    @property
    def generator_busy(self) -> float:
        """The generator's share of one core; near 1 the result may be its limit."""
        return self.generator_cpu_seconds / self.seconds


@dataclass(frozen=True, kw_only=True)
class NatsFlowPlan:
    """Publishers and subscribers, or publishers alone. `seconds` overrides `msgs`."""

    address: tuple[str, int]
    readers: tuple[str, int] | None = (
        None  # server of the subscribers; None: that of the publishers
    )
    size: Size = limits.NATS_SIZE_BYTES
    msgs: int = limits.MESSAGES
    seconds: float = 0.0
    pubs: int = 1
    subs: int = 0
    subject: str = "bench"
    subjects: int = 1
    headers: int = 0  # of each message
    group: str = ""
    to_one: bool = False  # each message goes to the one subscriber of its part of the subjects
    by_name: bool = False  # subscribe to each subject instead of to a wildcard
    ahead_bytes: int = limits.AHEAD_BYTES


@dataclass(frozen=True, kw_only=True)
class NatsRequestPlan:
    """Requesters and one responder."""

    address: tuple[str, int]
    responder: tuple[str, int] | None = None  # its server; None: that of the requesters
    size: Size = limits.NATS_SIZE_BYTES
    msgs: int = limits.REQUESTS
    seconds: float = 0.0
    clients: int = 1
    in_flight: int = limits.REQUESTS_IN_FLIGHT  # of each client
    subject: str = "bench"
    subjects: int = 1
    spin: bool = False


@dataclass(frozen=True, kw_only=True)
class JetStreamPublishPlan:
    """Publishers to the subjects of one stream, which is made for the run unless it is named."""

    address: tuple[str, int]
    size: Size = limits.JETSTREAM_SIZE_BYTES
    msgs: int = limits.MESSAGES
    seconds: float = 0.0
    pubs: int = 1
    window: int = limits.JETSTREAM_WINDOW  # PubAcks that a publisher waits for
    subjects: int = 1
    storage: str = "file"
    stream: str = ""


@dataclass(frozen=True, kw_only=True)
class JetStreamConsumePlan:
    """Readers of one stream, which is made and filled before the run unless it is named."""

    address: tuple[str, int]
    size: Size = limits.JETSTREAM_SIZE_BYTES
    msgs: int = limits.MESSAGES
    subs: int = 1
    batch: int = 0  # of each request; 0: the messages are pushed, in order and without acks
    last: bool = False  # the last message of each subject only, as watchers of buckets read it
    subjects: int = 1
    storage: str = "file"
    stream: str = ""


@dataclass(frozen=True, kw_only=True)
class NsqFlowPlan:
    """Publishers and the consumers of each channel, or publishers alone (subs = 0), or consumers
    alone (pubs = 0): they receive `msgs` messages that wait on each channel."""

    address: tuple[str, int]
    size: Size = limits.NSQ_SIZE_BYTES
    msgs: int = limits.MESSAGES
    seconds: float = 0.0
    pubs: int = 1
    subs: int = 1  # of each channel of each topic
    topics: int = 1
    channels: int = 1  # of each topic
    batch: int = 1
    window: int = 0  # 0: the usual one
    rdy: int = 0  # 0: the usual one
    rate: float = 0.0
    round_trip: bool = False  # the next PUB waits for the FIN
    topic: str = field(default_factory=lambda: f"bench_{os.urandom(4).hex()}")
    channel: str = "bench"


@dataclass(frozen=True, kw_only=True)
class StanFlowPlan:
    """Publishers and the subscribers of one channel, or publishers alone (subs = 0)."""

    address: tuple[str, int]
    size: Size = limits.STAN_SIZE_BYTES
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


def _rate(msgs: int, nbytes: int, nanoseconds: int) -> Rate:
    seconds = max(nanoseconds, 1) / 1e9
    return Rate(msgs=msgs, bytes=nbytes, seconds=seconds, msgs_per_second=round(msgs / seconds, 1))


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


def _recv_bytes(size: Size) -> int:
    """Space for two whole messages with their lines, at least the default."""
    return max(limits.RECV_BUFFER_BYTES, 2 * bounds(size)[1] + 65536)


def _subjects(plan: NatsFlowPlan) -> list[str]:
    """The subjects; with `to_one` the token before the last says whose they are."""
    if plan.to_one:
        return [f"{plan.subject}.{i % plan.subs}.{i}" for i in range(plan.subjects)]
    if plan.subjects == 1:
        return [plan.subject]
    return [f"{plan.subject}.{i}" for i in range(plan.subjects)]


def _subscriptions(plan: NatsFlowPlan, subscriber: int) -> list[bytes]:
    """The SUBs of one subscriber."""
    if plan.by_name:
        mine = slice(subscriber, None, plan.subs) if plan.to_one else slice(None)
        subjects = _subjects(plan)[mine]
    elif plan.to_one:
        subjects = [f"{plan.subject}.{subscriber}.*"]
    else:
        subjects = [f"{plan.subject}.*" if plan.subjects > 1 else plan.subject]
    return [f"SUB {name} {plan.group} {sid}".encode() for sid, name in enumerate(subjects, 1)]


def _header(headers: int, dice: random.Random) -> bytes:
    """A header block with so many lines; values of random length."""
    lines = b"".join(
        b"Header-%d: %s\r\n" % (i, b"v" * dice.randint(*limits.HEADER_VALUE_BYTES))
        for i in range(headers)
    )
    return b"NATS/1.0\r\n" + lines + b"\r\n"


def _nats_units(plan: NatsFlowPlan, period: Period) -> list[bytes]:
    """What publishers send: PUB, or HPUB with headers."""
    names = [name.encode() for name in _subjects(plan)]
    dice = random.Random(limits.SEED)  # noqa: S311
    units = []
    for name, (size,) in period.units():
        body = b"x" * size
        if plan.headers:
            head = _header(plan.headers, dice)
            whole = len(head) + size
            units.append(b"HPUB %s %d %d\r\n%s%s\r\n" % (names[name], len(head), whole, head, body))
        else:
            units.append(b"PUB %s %d\r\n%s\r\n" % (names[name], size, body))
    return units


def run_nats_flow(
    plan: NatsFlowPlan, progress: Progress | None = None, ready: Callable[[], None] | None = None
) -> Result:
    """`twinwire bench nats pub` and `pubsub`. `ready` is called when all are connected."""
    if plan.to_one and plan.subjects < plan.subs:
        raise LoadError("each subscriber needs a subject of its own")
    period = Period(plan.subjects, plan.size)
    units = _nats_units(plan, period)
    # As delivered: MSG has as many bytes as PUB, and a sid.
    ahead = max(1, plan.ahead_bytes * len(units) // sum(len(unit) + 2 for unit in units))
    readers: list[Dialled] = []
    publishers: list[Dialled] = []
    load = NatsFlow()
    headers = plan.headers > 0
    try:
        there = plan.readers or plan.address
        for k in range(plan.subs):
            readers.append(dial_nats(there, _subscriptions(plan, k), headers=headers))
        publishers.extend(dial_nats(plan.address, headers=headers) for _ in range(plan.pubs))
        if ready is not None:
            ready()
        duration_ns = int(plan.seconds * 1e9)
        load.open(readers, publishers, _recv_bytes(plan.size), duration_ns, False)
        load.begin(
            Block(units, limits.BLOCK_BYTES),
            [] if duration_ns else share(plan.msgs, plan.pubs),
            ahead,
            max(1, ahead // limits.AHEAD_RESUME_DIVISOR),
            bool(plan.group) or plan.to_one,
        )
        cpu = drive(load, lambda: (load.published(), load.received()[0]), progress)
    finally:
        _close(readers + publishers)
    published_ns, delivered_ns, _ = load.times_ns()
    sent = sum(period.body_bytes(first, count) for first, count in load.published_each())
    return _result(
        "nats pubsub" if plan.subs else "nats pub",
        _rate(load.published(), sent, published_ns),
        _rate(*load.received(), delivered_ns) if plan.subs else None,
        generator_cpu_seconds=cpu,
    )


def run_nats_request(
    plan: NatsRequestPlan,
    progress: Progress | None = None,
    ready: Callable[[], None] | None = None,
) -> Result:
    """`twinwire bench nats request`. `ready` is called when all are connected."""
    inboxes = [f"_INBOX.{os.urandom(8).hex()}" for _ in range(plan.clients)]
    period = Period(plan.subjects, plan.size)
    heads, rests = [], []
    for name, (size,) in period.units():
        subject = plan.subject if plan.subjects == 1 else f"{plan.subject}.{name}"
        heads.append(b"PUB %s " % subject.encode())
        rests.append(b" %d\r\n%s\r\n" % (size, b"x" * size))
    readers: list[Dialled] = []
    load = NatsRequest()
    try:
        for inbox in inboxes:
            readers.append(dial_nats(plan.address, [f"SUB {inbox}.* 1".encode()]))
        there = plan.responder or plan.address
        wildcard = "" if plan.subjects == 1 else ".*"
        readers.append(dial_nats(there, [f"SUB {plan.subject}{wildcard} 1".encode()]))
        if ready is not None:
            ready()
        duration_ns = int(plan.seconds * 1e9)
        load.open(readers, [], _recv_bytes(plan.size), duration_ns, plan.spin)
        load.begin(
            heads,
            [f"{inbox}.".encode() for inbox in inboxes],
            rests,
            plan.in_flight,
            0 if duration_ns else plan.msgs,
        )
        cpu = drive(load, lambda: (load.published(), load.received()[0]), progress)
    finally:
        _close(readers)
    published_ns, delivered_ns, _ = load.times_ns()
    asked = load.published()
    return _result(
        "nats request",
        _rate(asked, period.body_bytes(0, asked), published_ns),
        _rate(*load.received(), delivered_ns),
        latency_us=_percentiles(load.latencies()),
        generator_cpu_seconds=cpu,
    )


def run_jetstream_publish(plan: JetStreamPublishPlan, progress: Progress | None = None) -> Result:
    """`twinwire bench js pub`: until the last PubAck. A stream that is made for it is deleted."""
    stream = plan.stream or f"BENCH_{os.urandom(4).hex()}"
    inboxes = [f"_INBOX.{os.urandom(8).hex()}" for _ in range(plan.pubs)]
    period = Period(plan.subjects, plan.size)
    heads, rests = [], []
    for name, (size,) in period.units():
        subject = stream if plan.subjects == 1 else f"{stream}.{name}"
        heads.append(b"PUB %s " % subject.encode())
        rests.append(b" %d\r\n%s\r\n" % (size, b"x" * size))
    publishers: list[Dialled] = []
    load = JetStreamPublish()
    if not plan.stream:
        ask_jetstream(
            plan.address,
            f"STREAM.CREATE.{stream}",
            {"name": stream, "subjects": [stream, f"{stream}.>"], "storage": plan.storage},
        )
    try:
        for inbox in inboxes:
            line = f"SUB {inbox}.* 1".encode()
            publishers.append(dial_nats(plan.address, [line], headers=True, no_responders=True))
        duration_ns = int(plan.seconds * 1e9)
        load.open([], publishers, _recv_bytes(plan.size), duration_ns, False)
        load.begin(
            heads,
            [f"{inbox}.".encode() for inbox in inboxes],
            rests,
            plan.window,
            0 if duration_ns else plan.msgs,
        )
        cpu = drive(load, lambda: (load.acknowledged(), 0), progress)
    finally:
        _close(publishers)
        if not plan.stream:
            ask_jetstream(plan.address, f"STREAM.DELETE.{stream}")
    refused, reason = load.refused()
    if refused == load.published():
        raise LoadError(f"the server refused every message: {reason}")
    published_ns, _, _ = load.times_ns()
    acked = load.acknowledged()
    sent = period.body_bytes(0, load.published())
    return _result(
        "js pub",
        _rate(acked, round(sent * acked / (acked + refused)), published_ns),
        None,
        latency_us=_percentiles(load.latencies()),
        refused=refused,
        generator_cpu_seconds=cpu,
    )


def run_jetstream_consume(plan: JetStreamConsumePlan, progress: Progress | None = None) -> Result:
    """`twinwire bench js consume` and `fetch`: from the request for a consumer until the last
    message, or its ack."""
    stream = plan.stream or f"BENCH_{os.urandom(4).hex()}"
    if not plan.stream:
        ask_jetstream(
            plan.address,
            f"STREAM.CREATE.{stream}",
            {"name": stream, "subjects": [stream, f"{stream}.>"], "storage": plan.storage},
        )
    try:
        if not plan.stream:
            run_jetstream_publish(
                JetStreamPublishPlan(
                    address=plan.address,
                    size=plan.size,
                    msgs=plan.msgs,
                    subjects=plan.subjects,
                    stream=stream,
                )
            )
        return _consume(plan, stream, progress)
    finally:
        if not plan.stream:
            ask_jetstream(plan.address, f"STREAM.DELETE.{stream}")


def _consume(plan: JetStreamConsumePlan, stream: str, progress: Progress | None) -> Result:
    subs = plan.subs if plan.batch else 1
    inboxes = [f"_INBOX.{os.urandom(8).hex()}" for _ in range(subs)]
    name = f"bench_{os.urandom(4).hex()}"
    config: dict[str, object] = {"name": name, "durable_name": name, "ack_policy": "explicit"}
    if not plan.batch:  # as the usual clients make ordered consumers
        config = {
            "name": name,
            "deliver_subject": inboxes[0],
            "ack_policy": "none",
            "max_deliver": 1,
            "flow_control": True,
            "idle_heartbeat": 5 * 10**9,
            "mem_storage": True,
            "num_replicas": 1,
        }
    if plan.last:
        config |= {"deliver_policy": "last_per_subject", "filter_subjects": [f"{stream}.*"]}
    requests = []
    if plan.batch:
        body = b'{"expires":%d,"batch":%d}' % (30 * 10**9, plan.batch)
        for inbox in inboxes:
            head = f"PUB $JS.API.CONSUMER.MSG.NEXT.{stream}.{name} {inbox} {len(body)}\r\n"
            requests.append(head.encode() + body + b"\r\n")
    readers: list[Dialled] = []
    load = JetStreamConsume()
    try:
        for inbox in inboxes:
            readers.append(dial_nats(plan.address, [f"SUB {inbox} 1".encode()], headers=True))
        begun = time.perf_counter_ns()
        ask_jetstream(
            plan.address,
            f"CONSUMER.CREATE.{stream}.{name}",
            {"stream_name": stream, "config": config},
        )
        before_ns = time.perf_counter_ns() - begun
        load.open(readers, [], _recv_bytes(plan.size), 0, False)
        wanted = min(plan.msgs, plan.subjects) if plan.last else plan.msgs
        load.begin(requests, plan.batch, wanted, bool(plan.batch))
        cpu = drive(load, lambda: (0, load.received()[0]), progress)
    finally:
        _close(readers)
    published_ns, delivered_ns, _ = load.times_ns()
    end_ns = before_ns + (published_ns if plan.batch else delivered_ns)  # the last ack, or message
    return _result(
        "js fetch" if plan.batch else "js consume",
        _rate(0, 0, end_ns),
        _rate(*load.received(), end_ns),
        generator_cpu_seconds=cpu,
    )


def _topics(plan: NsqFlowPlan) -> list[str]:
    return [plan.topic] if plan.topics == 1 else [f"{plan.topic}_{i}" for i in range(plan.topics)]


def _channels(plan: NsqFlowPlan) -> list[str]:
    if plan.channels == 1:
        return [plan.channel]
    return [f"{plan.channel}_{i}" for i in range(plan.channels)]


def _nsq_units(plan: NsqFlowPlan, period: Period) -> list[bytes]:
    """PUB, or MPUB of a batch, each to one topic."""
    topics = [topic.encode() for topic in _topics(plan)]
    units = []
    for name, sizes in period.units():
        bodies = b"".join(size.to_bytes(4, "big") + b"x" * size for size in sizes)
        if plan.batch == 1:
            units.append(b"PUB %s\n%s" % (topics[name], bodies))
        else:
            payload = plan.batch.to_bytes(4, "big") + bodies
            size = len(payload).to_bytes(4, "big")
            units.append(b"MPUB %s\n%s%s" % (topics[name], size, payload))
    return units


def run_nsq_flow(
    plan: NsqFlowPlan, progress: Progress | None = None, ready: Callable[[], None] | None = None
) -> Result:
    """`twinwire bench nsq pub`, `pubfin` and `sub`. `msgs` is rounded up to whole MPUBs. `ready` is
    called when all are connected."""
    window = plan.window or (limits.PUB_WINDOW if plan.batch == 1 else limits.MPUB_WINDOW)
    rdy = plan.rdy or (limits.ROUND_TRIP_RDY if plan.round_trip else limits.RDY)
    if plan.round_trip:
        window = 1
    period = Period(plan.topics, plan.size, plan.batch)
    has_stamp = plan.subs > 0 and plan.batch == 1 and bounds(plan.size)[0] >= limits.STAMP_BYTES
    stamped = has_stamp and (window == 1 or plan.rate > 0)
    readers: list[Dialled] = []
    publishers: list[Dialled] = []
    load = NsqFlow()
    duration_ns = int(plan.seconds * 1e9)
    waiting = 0 if plan.pubs else plan.msgs * plan.topics * plan.channels
    commands = []
    if plan.pubs and not duration_ns:
        commands = share(-(-plan.msgs // plan.batch), plan.pubs)
    try:
        for topic in _topics(plan):
            for channel in _channels(plan) * plan.subs:
                readers.append(dial_nsq(plan.address, (topic, channel), rdy))
        publishers.extend(dial_nsq(plan.address) for _ in range(plan.pubs))
        if ready is not None:
            ready()
        load.open(
            readers, publishers, _recv_bytes(plan.size), 0 if plan.rate else duration_ns, False
        )
        load.begin(
            Block(_nsq_units(plan, period), limits.BLOCK_BYTES),
            [] if plan.rate else commands,
            window,
            max(1, window // limits.WINDOW_REFILL_DIVISOR),
            plan.batch,
            plan.channels,
            stamped,
            plan.round_trip,
            waiting,
        )
        if plan.rate:
            paced = max(1, int(plan.seconds * plan.rate)) if plan.seconds else plan.msgs
            load.pace_at(plan.rate, paced)
        cpu = drive(load, lambda: (load.acknowledged(), load.received()[0]), progress)
    finally:
        _close(readers + publishers)
    published_ns, _, finished_ns = load.times_ns()
    sent = sum(period.body_bytes(first, count) for first, count in load.published_each())
    scenario = "nsq pubfin" if plan.subs else "nsq pub"
    return _result(
        scenario if plan.pubs else "nsq sub",
        _rate(load.published(), sent, published_ns),
        _rate(*load.received(), finished_ns) if plan.subs else None,
        latency_us=_percentiles(load.latencies()) if stamped else None,
        ack_latency_us=_percentiles(load.ack_latencies()) if window == 1 else None,
        redelivered=load.redelivered(),
        generator_cpu_seconds=cpu,
    )


def run_stan_flow(plan: StanFlowPlan, progress: Progress | None = None) -> Result:
    """`twinwire bench stan pub` and `pubsub`: until the last PubAck and the last processed Ack."""
    where = Streaming(plan.address, plan.cluster, plan.channel)
    peers: list[StanPeer] = []
    load = StanFlow()
    politely = False
    # Each publisher has messages of its own, so each has fewer if there are many.
    period = Period(1, plan.size, bodies=1, copies=plan.pubs)
    duration_ns = int(plan.seconds * 1e9)
    try:
        peers.extend(StanPeer(where) for _ in range(plan.subs + plan.pubs))
        readers, publishers = peers[: plan.subs], peers[plan.subs :]
        subscribed = [peer.subscribe(plan.max_in_flight) for peer in readers]
        units = [[peer.unit(b"x" * size) for _, (size,) in period.units()] for peer in publishers]
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
    acked = load.acknowledged()
    sent = sum(period.body_bytes(0, count) for count in load.published_each())
    return _result(
        "stan pubsub" if plan.subs else "stan pub",
        _rate(acked, round(sent * acked / (acked + refused)), published_ns),
        _rate(*load.received(), finished_ns) if plan.subs else None,
        latency_us=_percentiles(load.latencies()),
        redelivered=load.redelivered(),
        refused=refused,
        generator_cpu_seconds=cpu,
    )
