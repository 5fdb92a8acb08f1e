"""/stats of nsqd: topics, channels and clients as JSON and as text."""

from __future__ import annotations

import gc
import resource
import sys
import time
from collections.abc import Collection, Iterable, Sequence
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from broker.base.units import MS, SECOND, US
from broker.engine.cursor.latency import quantiles
from broker.engine.engine import Engine
from broker.protocols.nsq import limits
from broker.protocols.nsq.topics import channel_of, channels_of, streams_of
from broker.runtime.pauses import Pauses

if TYPE_CHECKING:
    from broker.engine.cursor.cursor import Cursor
    from broker.engine.log.log import Log
    from broker.protocols.nsq.authorization import AuthState
    from broker.protocols.nsq.session import NsqSession
    from broker.protocols.nsq.topics import Topics
    from broker.protocols.stream_topic import StreamChannel, StreamTopic

    Page = dict[str, Any]


def memory() -> dict[str, int]:
    """Memory statistics under nsqd's names; values that only Go's heap has are 0."""
    return {
        "heap_objects": sys.getallocatedblocks(),
        "heap_idle_bytes": 0,
        "heap_in_use_bytes": _resident_bytes(),
        "heap_released_bytes": 0,
        "gc_pause_usec_100": 0,
        "gc_pause_usec_99": 0,
        "gc_pause_usec_95": 0,
        "next_gc_bytes": 0,
        "gc_total_runs": sum(generation["collections"] for generation in gc.get_stats()),
    }


def _resident_bytes() -> int:
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except (OSError, IndexError, ValueError):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return pages * resource.getpagesize()


def _granted(auth: AuthState | None) -> Page:
    grant = None if auth is None else auth.grant
    if grant is None or not grant.authorizations:
        return {}
    page: Page = {"authed": True}
    if grant.identity:
        page["auth_identity"] = grant.identity
    if grant.identity_url:
        page["auth_identity_url"] = grant.identity_url
    return page


def client_page(session: NsqSession, topic: str) -> Page:
    """One connection, with one topic that it published to, because nsqd shows only one too."""
    who = session.identity
    security = None if session.link is None else session.link.security
    cipher, version, protocol = security or ("", "", "")
    state, ready, in_flight, delivered, finished, requeued = session.numbers()
    page: Page = {
        "client_id": who.client_id,
        "hostname": who.hostname,
        "version": "V2",
        "remote_address": session.remote_address,
        "state": state,
        "ready_count": ready,
        "in_flight_count": in_flight,
        "message_count": delivered,
        "finish_count": finished,
        "requeue_count": requeued,
        "connect_ts": session.start_ns // SECOND,
        "sample_rate": who.sample_rate,
        "deflate": session.compression == "deflate",
        "snappy": session.compression == "snappy",
        "user_agent": who.user_agent,
        **_granted(session.authorization),
        "topology_zone": who.topology_zone,
        "topology_region": who.topology_region,
    }
    for name, count in (session.count_published() or {}).items():
        if not topic or name == topic:
            page["pub_counts"] = [{"topic": name, "count": count}]
            break
    return {
        **page,
        "tls": security is not None,
        "tls_cipher_suite": cipher,
        "tls_version": version,
        "tls_negotiated_protocol": protocol,
        "tls_negotiated_protocol_is_mutual": security is not None,  # as Go reports for any TLS
    }


def _latency(cursors: Iterable[Cursor], percentiles: Sequence[float]) -> Page:
    """Latencies from publish to FIN of these channels together; null, as in nsqd, if disabled or
    without channels."""
    kept = [cursor.latency for cursor in cursors if cursor.latency is not None]
    if not percentiles or not kept:
        return {"count": 0, "percentiles": None}
    count, values = quantiles(kept, percentiles, time.monotonic_ns())
    pairs = zip(percentiles, values, strict=True)
    return {"count": count, "percentiles": [{"quantile": q, "value": v} for q, v in pairs]}


def _go_span(ns: float) -> str:
    """A time in nsqd's human-readable form: 1.5ms."""
    for size, unit in ((SECOND, "s"), (MS, "ms"), (US, "us")):
        if ns > size:
            return f"{ns / size:.1f}{unit}"
    return f"{ns:.1f}ns"


def _latency_text(page: Page) -> str:
    found = page["e2e_processing_latency"]["percentiles"] or ()
    return ", ".join(_go_span(item["value"]) for item in found)


def _local_counts(cursor: Cursor) -> Page:
    """Deliveries by zone and region; counts of 0 are left out."""
    anyone, region, zone = cursor.nearness_counts
    counts = {"zone_local": zone, "region_local": region, "global": anyone}
    return {f"{name}_msg_count": count for name, count in counts.items() if count}


def _channel_page(cursor: Cursor, clients: list[Page] | None, percentiles: Sequence[float]) -> Page:
    return {
        "channel_name": cursor.name,
        "depth": cursor.depth,
        "backend_depth": 0 if cursor.log.folder is None else cursor.depth,
        "in_flight_count": cursor.in_flight_count,
        "deferred_count": cursor.deferred_count,
        "message_count": cursor.message_count,
        **_local_counts(cursor),
        "requeue_count": cursor.requeue_count,
        "timeout_count": cursor.timeout_count,
        "client_count": cursor.consumers,
        "clients": clients,
        "paused": cursor.paused,
        "e2e_processing_latency": _latency([cursor], percentiles),
    }


def _topic_page(log: Log, channels: list[Page], percentiles: Sequence[float]) -> Page:
    return {
        "topic_name": log.name,
        "channels": channels,
        "depth": log.depth,
        "backend_depth": log.backend_depth,
        "message_count": log.message_count,
        "message_bytes": log.message_bytes,
        "paused": log.paused,
        "e2e_processing_latency": _latency(channels_of(log), percentiles),
    }


def _stream_channel_page(channel: StreamChannel, clients: list[Page] | None) -> Page:
    """A channel of a topic that is a stream; there are no latencies of it."""
    return {
        "channel_name": channel.name,
        "depth": channel.depth,
        "backend_depth": channel.depth,
        "in_flight_count": channel.in_flight_count,
        "deferred_count": channel.deferred_count,
        "message_count": channel.message_count,
        "requeue_count": channel.requeue_count,
        "timeout_count": channel.timeout_count,
        "client_count": channel.consumers,
        "clients": clients,
        "paused": channel.paused,
        "e2e_processing_latency": _latency((), ()),
    }


def _stream_page(topic: StreamTopic, channels: list[Page]) -> Page:
    """A topic that is a stream. Counters are of what NSQ clients published."""
    return {
        "topic_name": topic.name,
        "channels": channels,
        "depth": topic.depth,
        "backend_depth": topic.depth,
        "message_count": topic.message_count,
        "message_bytes": topic.message_bytes,
        "paused": False,
        "e2e_processing_latency": _latency((), ()),
    }


def _by_age(sessions: Iterable[NsqSession]) -> list[NsqSession]:
    return sorted(sessions, key=attrgetter("start_ns"))


def go_duration(ns: int) -> str:
    """A duration as Go prints it: 1h2m3.5s, 0s."""
    seconds, fraction = divmod(ns, SECOND)
    digits = f".{fraction:09d}".rstrip("0").rstrip(".")
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h{minutes}m{seconds}{digits}s"
    return f"{minutes}m{seconds}{digits}s" if minutes else f"{seconds}{digits}s"


def _client_line(page: Page, now_ns: int) -> str:
    port = page["remote_address"].rpartition(":")[2]
    name = f"{page['hostname']}:{port} {page['user_agent']}"
    connected = go_duration(max(0, now_ns // SECOND - page["connect_ts"]) * SECOND)
    if counts := page.get("pub_counts"):
        topics = ",".join(f"{c['topic']}={c['count']}" for c in counts)
        total = sum(c["count"] for c in counts)
        return f"[V2 {name:<21}] msgs: {total:<8} topics: {topics} connected: {connected}"
    return (
        f"[V2 {name:<21}] state: {page['state']} inflt: {page['in_flight_count']:<4} "
        f"rdy: {page['ready_count']:<4} fin: {page['finish_count']:<8} "
        f"re-q: {page['requeue_count']:<8} msgs: {page['message_count']:<8} "
        f"connected: {connected}"
    )


def _topic_lines(page: Page, now_ns: int) -> Iterable[str]:
    mark = "*P " if page["paused"] else "   "
    yield (
        f"\n{mark}[{page['topic_name']:<15}] depth: {page['depth']:<5} "
        f"be-depth: {page['backend_depth']:<5} msgs: {page['message_count']:<8} "
        f"e2e%: {_latency_text(page)}"
    )
    for channel in page["channels"]:
        mark = "   *P " if channel["paused"] else "      "
        yield (
            f"{mark}[{channel['channel_name']:<25}] depth: {channel['depth']:<5} "
            f"be-depth: {channel['backend_depth']:<5} inflt: {channel['in_flight_count']:<4} "
            f"def: {channel['deferred_count']:<4} re-q: {channel['requeue_count']:<5} "
            f"timeout: {channel['timeout_count']:<5} msgs: {channel['message_count']:<8} "
            f"e2e%: {_latency_text(channel)}"
        )
        for client in channel["clients"] or ():
            yield f"        {_client_line(client, now_ns)}"


class StatsPage:
    """One page of topics, channels and clients, built while other tasks run in between: ten
    thousand clients take a tenth of a second. With `packed` clients are encoded JSON."""

    def __init__(
        self,
        engine: Engine | Topics,
        sessions: Collection[NsqSession] | None,
        topic: str = "",
        channel: str = "",
        *,
        packed: bool = False,
    ) -> None:
        """Of all topics and channels, or of the named ones. Without `sessions` the clients are left
        out; otherwise these are the open ones at any moment."""
        self.engine = engine
        self.sessions = sessions
        self.topic = topic
        self.channel = channel
        self.packed = packed
        self._pauses = Pauses(limits.NSQ_STATS_TURN)

    async def _clients(self, sessions: Iterable[NsqSession]) -> list[Page]:
        pages: list[Any] = []
        for session in _by_age(sessions):
            if self.sessions is not None and session in self.sessions:
                page = client_page(session, self.topic)
                pages.append(orjson.Fragment(orjson.dumps(page)) if self.packed else page)
            await self._pauses.pause_if_step_over()
        return pages

    def _by_channel(self) -> dict[object, list[NsqSession]]:
        found: dict[object, list[NsqSession]] = {}
        for session in self.sessions or ():
            channel = session.cursor or session.channel
            if channel is not None:
                found.setdefault(channel, []).append(session)
        return found

    def _streams(self) -> dict[str, tuple[Page, list[StreamChannel]]]:
        """Topics that are streams, and their channels: at once, because streams may be deleted."""
        engine = self.engine
        streams = streams_of(engine) if isinstance(engine, Engine) else engine.streams
        found = {}
        for name, stream in streams.items():
            if self.topic in {"", name}:
                wanted = [c for c in stream.channels.all() if self.channel in {"", c.name}]
                shown = [_stream_channel_page(c, None) for c in wanted]
                found[name] = (_stream_page(stream, shown), wanted)
        return found

    async def topics(self, percentiles: Sequence[float] = ()) -> list[Page] | None:
        """Topics in order of name, or the one of the given name; None if it does not exist."""
        logs, streams = dict(self.engine.logs), self._streams()
        if self.topic and self.topic not in logs and self.topic not in streams:
            return None
        clients = self._by_channel()
        pages = []
        for name in [self.topic] if self.topic else sorted({*logs, *streams}):
            channels: Sequence[Cursor | StreamChannel]
            if name in streams:
                page, channels = streams[name]
            else:
                only = channel_of(logs[name], self.channel)
                found = [] if self.channel else channels_of(logs[name])
                channels = cursors = found if only is None else [only]
                shown = [_channel_page(c, None, percentiles) for c in cursors]
                page = _topic_page(logs[name], shown, percentiles)
            if channels or not self.channel:
                pages.append(page)
            if self.sessions is not None:
                for channel, each in zip(channels, page["channels"], strict=True):
                    each["clients"] = await self._clients(clients.get(channel, ()))
            await self._pauses.pause_if_step_over()
        return pages

    async def producers(self) -> list[Page] | None:
        """Connections that have published."""
        found = []
        for session in list(self.sessions or ()):
            if session.count_published():
                found.append(session)
            await self._pauses.pause_if_step_over()
        return await self._clients(found) or None

    async def text(
        self,
        topics: list[Page] | None,
        producers: list[Page] | None,
        memory_page: dict[str, int] | None,
        health: str,
        start_ns: int,
    ) -> str:
        """The page as text."""
        now_ns = time.time_ns()
        start = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(start_ns // SECOND))
        built = f"{sys.version_info.major}.{sys.version_info.minor}"
        lines = [f"nsqd v{limits.NSQ_VERSION} (built w/python{built})"]
        lines += [f"start_time {start}", f"uptime {go_duration(max(0, now_ns - start_ns))}"]
        lines += ["", f"Health: {health}"]
        if memory_page is not None:
            lines += ["", "Memory:", *(f"   {name:<25}\t{n}" for name, n in memory_page.items())]
        lines += ["", "Topics:" if topics else "Topics: None"]
        for number, page in enumerate(topics or ()):
            begun = len(lines)
            for line in _topic_lines(page, now_ns):
                lines.append(line)
                await self._pauses.pause_if_step_over()
            if number == 0:
                lines[begun] = lines[begun].removeprefix("\n")
        lines += ["", "Producers:" if producers else "Producers: None"]
        for page in producers or ():
            lines.append(f"   {_client_line(page, now_ns)}")
            await self._pauses.pause_if_step_over()
        return "\n".join(lines) + "\n"
