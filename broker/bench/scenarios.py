"""Benchmark runs: a plan describes the load, and a run of it returns a result."""

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

# Called about ten times a second with the numbers of messages published and received.
Progress = Callable[[int, int], None]


@dataclass(frozen=True, kw_only=True)
class Rate:
    """Messages, and the seconds until the last of them had been processed."""

    msgs: int
    bytes: int
    seconds: float
    msgs_per_second: float


@dataclass(frozen=True, kw_only=True)
class Result:
    """The result of one run. Latencies are microseconds by percentile name: from requests to their
    reply, from NATS Streaming and JetStream messages to their PubAck, from NSQ messages to their
    delivery."""

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
        """The share of one core that the generator used; near 1 it may limit the result."""
        return self.generator_cpu_seconds / self.seconds


@dataclass(frozen=True, kw_only=True)
class NatsFlowPlan:
    """Publishers and subscribers, or publishers alone. `seconds` overrides `msgs`."""

    address: tuple[str, int]
    readers: tuple[str, int] | None = None  # server of the subscribers; None: `address`
    size: Size = limits.NATS_SIZE_BYTES
    msgs: int = limits.MESSAGES
    seconds: float = 0.0
    pubs: int = 1
    subs: int = 0
    subject: str = "bench"
    subjects: int = 1
    headers: int = 0  # of each message
    group: str = ""
    to_one: bool = False  # each subject has one subscriber
    by_name: bool = False  # subscribe to each subject instead of to a wildcard
    ahead_bytes: int = limits.AHEAD_BYTES


@dataclass(frozen=True, kw_only=True)
class NatsRequestPlan:
    """Requesters and one responder."""

    address: tuple[str, int]
    responder: tuple[str, int] | None = None  # server of the responder; None: `address`
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
    """Publishers to the subjects of one stream. Without `stream` the run creates a stream and
    deletes it."""

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
    """Readers of one stream. Without `stream` the run creates and fills a stream before the
    measurement, and deletes it afterwards."""

    address: tuple[str, int]
    size: Size = limits.JETSTREAM_SIZE_BYTES
    msgs: int = limits.MESSAGES
    subs: int = 1
    batch: int = 0  # of each request; 0: the messages are pushed, in order and without acks
    last: bool = False  # read only the last message of each subject, as watchers of buckets do
    subjects: int = 1
    storage: str = "file"
    stream: str = ""


@dataclass(frozen=True, kw_only=True)
class NsqFlowPlan:
    """Publishers and the consumers of each channel, or publishers alone (subs = 0), or consumers
    alone (pubs = 0), which receive `msgs` earlier messages of each channel."""

    address: tuple[str, int]
    size: Size = limits.NSQ_SIZE_BYTES
    msgs: int = limits.MESSAGES
    seconds: float = 0.0
    pubs: int = 1
    subs: int = 1  # of each channel of each topic
    topics: int = 1
    channels: int = 1  # of each topic
    batch: int = 1
    window: int = 0  # 0: PUB_WINDOW or MPUB_WINDOW
    rdy: int = 0  # 0: RDY or ROUND_TRIP_RDY
    rate: float = 0.0
    round_trip: bool = False  # each command waits for all deliveries of the previous one
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
    """Run the load to its end; return the CPU seconds of this thread. LoadError."""
    cpu = time.thread_time()
    moved, moved_at = load.moved, time.monotonic()
    while not load.step(limits.STEP_MS):
        now = time.monotonic()
        if load.moved != moved:
            moved, moved_at = load.moved, now
        elif now - moved_at > limits.STALL_SECONDS:
            sent, received = counts()
            raise LoadError(
                f"no progress for {limits.STALL_SECONDS:.0f} s"
                f" ({sent} messages sent, {received} received)"
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
    main = delivered or published
    return Result(
        scenario=scenario,
        msgs=main.msgs,
        bytes=main.bytes,
        seconds=main.seconds,
        msgs_per_second=main.msgs_per_second,
        published=published,
        delivered=delivered,
        **more,  # type: ignore[arg-type]
    )


def _close(dialled: list[Dialled]) -> None:
    for sock, _ in dialled:
        sock.close()


def _recv_bytes(size: Size) -> int:
    """The size of the receive buffer: two whole messages with their lines, at least the default."""
    return max(limits.RECV_BUFFER_BYTES, 2 * bounds(size)[1] + 65536)


def _subjects(plan: NatsFlowPlan) -> list[str]:
    """The subjects; with `to_one` the token before the last one is the number of the subscriber."""
    if plan.to_one:
        return [f"{plan.subject}.{i % plan.subs}.{i}" for i in range(plan.subjects)]
    if plan.subjects == 1:
        return [plan.subject]
    return [f"{plan.subject}.{i}" for i in range(plan.subjects)]


def _subscriptions(plan: NatsFlowPlan, subscriber: int) -> list[bytes]:
    """The SUBs of one subscriber."""
    if plan.by_name:
        own = slice(subscriber, None, plan.subs) if plan.to_one else slice(None)
        subjects = _subjects(plan)[own]
    elif plan.to_one:
        subjects = [f"{plan.subject}.{subscriber}.*"]
    else:
        subjects = [f"{plan.subject}.*" if plan.subjects > 1 else plan.subject]
    return [f"SUB {name} {plan.group} {sid}".encode() for sid, name in enumerate(subjects, 1)]


def _header(headers: int, rng: random.Random) -> bytes:
    """A header block with this many lines, whose values have random lengths."""
    lines = b"".join(
        b"Header-%d: %s\r\n" % (i, b"v" * rng.randint(*limits.HEADER_VALUE_BYTES))
        for i in range(headers)
    )
    return b"NATS/1.0\r\n" + lines + b"\r\n"


def _nats_units(plan: NatsFlowPlan, period: Period) -> list[bytes]:
    """The commands of a period: PUB, or HPUB with headers."""
    names = [name.encode() for name in _subjects(plan)]
    rng = random.Random(limits.SEED)  # noqa: S311
    units = []
    for name, (size,) in period.units():
        body = b"x" * size
        if plan.headers:
            head = _header(plan.headers, rng)
            total = len(head) + size
            units.append(b"HPUB %s %d %d\r\n%s%s\r\n" % (names[name], len(head), total, head, body))
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
    # Bytes as delivered: MSG has the bytes of PUB and a sid.
    ahead = max(1, plan.ahead_bytes * len(units) // sum(len(unit) + 2 for unit in units))
    readers: list[Dialled] = []
    publishers: list[Dialled] = []
    load = NatsFlow()
    headers = plan.headers > 0
    try:
        address = plan.readers or plan.address
        for k in range(plan.subs):
            readers.append(dial_nats(address, _subscriptions(plan, k), headers=headers))
        publishers.extend(dial_nats(plan.address, headers=headers) for _ in range(plan.pubs))
        if ready is not None:
            ready()
        duration_ns = int(plan.seconds * 1e9)
        load.open(readers, publishers, _recv_bytes(plan.size), duration_ns, spin=False)
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
        address = plan.responder or plan.address
        wildcard = "" if plan.subjects == 1 else ".*"
        readers.append(dial_nats(address, [f"SUB {plan.subject}{wildcard} 1".encode()]))
        if ready is not None:
            ready()
        duration_ns = int(plan.seconds * 1e9)
        load.open(readers, [], _recv_bytes(plan.size), duration_ns, spin=plan.spin)
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
    sent = load.published()
    return _result(
        "nats request",
        _rate(sent, period.body_bytes(0, sent), published_ns),
        _rate(*load.received(), delivered_ns),
        latency_us=_percentiles(load.latencies()),
        generator_cpu_seconds=cpu,
    )


def run_jetstream_publish(plan: JetStreamPublishPlan, progress: Progress | None = None) -> Result:
    """`twinwire bench js pub`: until the last PubAck."""
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
        load.open([], publishers, _recv_bytes(plan.size), duration_ns, spin=False)
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
    if not plan.batch:  # the configuration that the usual clients use for ordered consumers
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
        started_ns = time.perf_counter_ns()
        ask_jetstream(
            plan.address,
            f"CONSUMER.CREATE.{stream}.{name}",
            {"stream_name": stream, "config": config},
        )
        create_ns = time.perf_counter_ns() - started_ns
        load.open(readers, [], _recv_bytes(plan.size), 0, spin=False)
        target = min(plan.msgs, plan.subjects) if plan.last else plan.msgs
        load.begin(requests, plan.batch, target, acks=bool(plan.batch))
        cpu = drive(load, lambda: (0, load.received()[0]), progress)
    finally:
        _close(readers)
    published_ns, delivered_ns, _ = load.times_ns()
    # With acks the run ends when the server has processed the last ack, else with the last message.
    end_ns = create_ns + (published_ns if plan.batch else delivered_ns)
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
    """The commands of a period: PUB, or MPUB of a batch."""
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
    backlog = 0 if plan.pubs else plan.msgs * plan.topics * plan.channels
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
        timed_ns = 0 if plan.rate else duration_ns
        load.open(readers, publishers, _recv_bytes(plan.size), timed_ns, spin=False)
        load.begin(
            Block(_nsq_units(plan, period), limits.BLOCK_BYTES),
            [] if plan.rate else commands,
            window,
            max(1, window // limits.WINDOW_REFILL_DIVISOR),
            plan.batch,
            plan.channels,
            stamped,
            plan.round_trip,
            backlog,
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
    service = Streaming(plan.address, plan.cluster, plan.channel)
    peers: list[StanPeer] = []
    load = StanFlow()
    end_client = False
    # Each publisher has separate messages in memory: with many publishers each has fewer of them.
    period = Period(1, plan.size, bodies=1, copies=plan.pubs)
    duration_ns = int(plan.seconds * 1e9)
    try:
        peers.extend(StanPeer(service) for _ in range(plan.subs + plan.pubs))
        readers, publishers = peers[: plan.subs], peers[plan.subs :]
        subscribed = [peer.subscribe(plan.max_in_flight) for peer in readers]
        units = [[peer.unit(b"x" * size) for _, (size,) in period.units()] for peer in publishers]
        load.open(
            [peer.dialled() for peer in readers],
            [peer.dialled() for peer in publishers],
            _recv_bytes(plan.size),
            duration_ns,
            spin=False,
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
            peer.resume(unread)
        end_client = True
    finally:
        for peer in peers:
            peer.close(end_client=end_client)
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
