"""The server: builds the engine and the doors, starts them, drains and stops them."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aiohttp import web

from broker import limits, stats
from broker.admin.metrics import metrics_page
from broker.core.engine import Engine
from broker.core.router import Router
from broker.core.shared import SYNC_BUCKETS
from broker.lockfile import DataLock
from broker.logs import fields
from broker.net.listener import Runtime
from broker.protocols.nats import monitor
from broker.protocols.nats.door import NatsDoor
from broker.protocols.nsq.api import NsqApi
from broker.protocols.nsq.door import NsqDoor

if TYPE_CHECKING:
    from broker.config import Address, Config
    from broker.net.listener import Door

log = logging.getLogger(__name__)

LOGS_FOLDER = "logs"


class Server:
    """One broker in this process: its data folder, its engine, its doors."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.ports: dict[str, tuple[str, int]] = {}
        self.doors: dict[str, Door] = {}
        self._pages: list[web.AppRunner] = []
        self._lock: DataLock | None = None
        self._engine: Engine | None = None
        self._router: Router | None = None

    @property
    def engine(self) -> Engine:
        """The engine; only after start."""
        assert self._engine is not None
        return self._engine

    async def start(self) -> None:
        """Take the data folder, recover it, open every door. OSError and the like if it cannot."""
        try:
            await self._start()
        except BaseException:
            await self._give_up()
            raise

    async def _start(self) -> None:
        config, runtime = self.config, Runtime()
        data = Path(config.server.data)
        self._lock = DataLock(data)
        self._router = Router(limits.ROUTER_CACHE_SUBJECTS, limits.ROUTER_CACHE_REFS)
        self._engine = Engine(
            runtime.turn,
            self._router,
            str(data / LOGS_FOLDER),
            engine_limits(config),
            self._policy_for,
            report,
            self._retention_for,
        )
        self._engine.open(runtime.loop)
        for problem in self._engine.problems:
            log.warning("recovered: %s", problem)
        if config.nats.listen is not None:
            nats = NatsDoor(config.nats, runtime, self._router, config.server.name)
            await self._open("nats", nats)
        if config.nsq.listen is not None:
            nsq = NsqDoor(config.nsq, runtime, self._engine)
            await self._open("nsq", nsq)
            if config.nsq.http is not None:
                api = NsqApi(nsq, self.health)
                await self._serve("nsq_http", config.nsq.http, api.app())
                api.http_port = self.ports["nsq_http"][1]
        if config.monitor.listen is not None:
            pages = monitor.make_app(self, {"/metrics": metrics_page(self)})
            await self._serve("monitor", config.monitor.listen, pages)

    async def _open(self, name: str, door: Door) -> None:
        await door.open()
        self.doors[name] = door
        self.ports[name] = door.address

    async def _serve(self, name: str, listen: Address, app: web.Application) -> None:
        runner = web.AppRunner(app, access_log=None, handle_signals=False)
        await runner.setup()
        self._pages.append(runner)
        if listen.port == limits.UNIX_SOCKET_PORT:
            await web.UnixSite(runner, listen.host).start()
            self.ports[name] = listen
            return
        await web.TCPSite(runner, *listen, reuse_address=True).start()
        self.ports[name] = (listen[0], runner.addresses[-1][1])

    async def stop(self) -> None:
        """Stop accepting, answer for what was accepted, write and sync everything, let go."""
        for door in self.doors.values():
            await door.close()
        if self._engine is not None:
            await self._engine.settle()
        for door in self.doors.values():
            await door.drain()
        await self._give_up()

    async def _give_up(self) -> None:
        for door in self.doors.values():
            await door.drain()
        for runner in self._pages:
            await runner.cleanup()
        self._pages.clear()
        self.doors.clear()
        if self._engine is not None:
            await self._engine.close()
            self._engine = None
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _policy_for(self, name: str) -> str | float:
        """When appends to a log are synced, in the engine's words."""
        sync = self.config.storage.for_topic(name).sync
        assert sync is not None
        return sync.period_ns / limits.SECOND if sync.mode == "period" else sync.mode

    def _retention_for(self, name: str) -> tuple[int, int, int] | None:
        """What a log may keep: nanoseconds, bytes, records; None = until every reader is done."""
        topic = self.config.storage.for_topic(name)
        kept = (topic.max_age_ns, topic.max_bytes, topic.max_msgs)
        return kept if any(kept) else None

    # --- what the monitoring pages ask for

    def health(self) -> str | None:
        """None when all is well, else what is not."""
        for entry in self.engine.logs.values():
            if entry.last_error:
                return f"log {entry.name}: {os.strerror(entry.last_error)}"
        return None

    def identity(self) -> monitor.Identity:
        """Who we are, for /varz."""
        nats = self.doors.get("nats")
        config = self.config.nats
        host, port = self.ports.get("nats", ("", 0))
        http_host, http_port = self.ports["monitor"]
        server_id = nats.server_id if isinstance(nats, NatsDoor) else ""
        return monitor.Identity(
            server_id=server_id,
            server_name=self.config.server.name or server_id,
            version=limits.NATS_VERSION,
            host=host,
            port=port,
            http_host=http_host,
            http_port=http_port,
            max_connections=config.max_connections,
            max_subscriptions=config.max_subscriptions,
            max_control_line=config.max_control_line,
            max_payload=config.max_payload,
            max_pending=config.max_pending,
            ping_interval_ns=config.ping_interval_ns,
            ping_max=config.ping_max,
            write_deadline_ns=config.write_deadline_ns,
        )

    def snapshot(self) -> stats.Stats:
        """All counters at this moment."""
        shared = self.engine.shared
        return stats.Stats(
            doors=[door_stats(name, door) for name, door in self.doors.items()],
            topics=[topic_stats(entry) for _, entry in sorted(self.engine.logs.items())],
            engine=stats.EngineStats(
                sync_seconds=stats.Histogram(
                    SYNC_BUCKETS, list(shared.sync_buckets), shared.sync_seconds
                ),
                log_bytes_written=shared.bytes_written,
                write_errors=shared.write_errors + shared.sync_errors,
                quarantined_ranges=shared.quarantined_ranges,
                torn_bytes_cut=shared.torn_bytes,
            ),
            subscriptions=self._router.size if self._router is not None else 0,
        )


def engine_limits(config: Config) -> dict[str, Any]:
    """The engine's numbers, under the names its Shared has for them."""
    storage = config.storage
    return {
        "segment_bytes": storage.segment_size,
        "append_bytes_max": storage.append_buffer_max,
        "memory_bytes_max": storage.memory_topic_max,
        "memory_segment_bytes": min(limits.MEMORY_SEGMENT_BYTES, storage.memory_topic_max),
        "load_bytes": limits.LOAD_BYTES,
        "journal_bytes_min": limits.JOURNAL_BYTES_MIN,
        "reclaim_bytes": limits.RECLAIM_BYTES,
        "pump_bytes_max": limits.PUMP_BYTES_MAX,
        "inline_bytes": limits.INLINE_BYTES,
        "inline_stall_ns": limits.INLINE_STALL,
        "inline_pause_ns": limits.INLINE_PAUSE,
        "inline_pause_max_ns": limits.INLINE_PAUSE_MAX,
        "retry_ns": limits.APPEND_RETRY,
        "entries_max": limits.CURSOR_ENTRIES_MAX,
        "window_max": limits.CURSOR_WINDOW_MAX,
        "settle_poll": limits.SETTLE_POLL / limits.SECOND,
        "to_live": config.bridge.nsq_to_nats,
        "from_live": config.bridge.nats_to_nsq,
    }


def report(level: str, text: str, **details: object) -> None:
    """A log line of the engine."""
    log.log(logging.getLevelNamesMapping()[level.upper()], text, extra=fields(**details))


def door_stats(name: str, door: Door) -> stats.DoorStats:
    """The counters of one door; those it does not keep are 0."""
    return stats.DoorStats(
        name=name,
        connections=door.connections,
        total_connections=door.total_connections,
        **{
            key: getattr(door, key, 0)
            for key in ("in_msgs", "out_msgs", "in_bytes", "out_bytes", "slow_consumers")
        },
    )


def topic_stats(entry: Any) -> stats.TopicStats:
    """One log and its cursors."""
    return stats.TopicStats(
        name=entry.name,
        depth=entry.depth,
        message_count=entry.message_count,
        message_bytes=entry.message_bytes,
        paused=entry.paused,
        channels=[
            stats.ChannelStats(
                name=cursor.name,
                depth=cursor.depth,
                in_flight=cursor.in_flight_count,
                deferred=cursor.deferred_count,
                message_count=cursor.message_count,
                requeue_count=cursor.requeue_count,
                timeout_count=cursor.timeout_count,
                consumers=cursor.consumers,
                paused=cursor.paused,
            )
            for _, cursor in sorted(entry.cursors.items())
        ],
    )
