"""The server: builds the engine and the doors, starts them, drains and stops them."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

from broker.base.lockfile import DataLock
from broker.bulk.read.readers import Readers
from broker.bulk.service import BULK_FOLDER, IDENTITY_PROBLEM, READERS_FOLDER, Bulk
from broker.bulk.write.service import Writes
from broker.engine import limits
from broker.engine.engine import Engine
from broker.engine.state import SYNC_BUCKETS
from broker.net.http.guard import HttpSettings
from broker.net.http.pages import Pages
from broker.net.listener import Runtime
from broker.net.listening import ListenError
from broker.net.openssl import TlsError
from broker.protocols.access import APART
from broker.protocols.nats.server import NatsServer
from broker.protocols.nats.service import nats_settings, reload_nats
from broker.protocols.nsq.channels import channels_of
from broker.protocols.nsq.http.api import NsqApi
from broker.protocols.nsq.http.v1 import Extras
from broker.protocols.nsq.listener import NsqDoor
from broker.protocols.nsq.lookup.peers import LookupPeers
from broker.protocols.nsq.lookup.server import LookupServer
from broker.protocols.nsq.statsd import Statsd, full_prefix
from broker.protocols.stan.monitor import StreamingPages
from broker.protocols.stan.names import name_channels
from broker.protocols.stan.service import stan_settings
from broker.protocols.stan.store import StateVersionError
from broker.protocols.stan.streaming import Streaming
from broker.routing.router import Router
from broker.server import stats
from broker.server.engine import (
    LOGS_FOLDER,
    STAN_FOLDER,
    access_of,
    broken_log,
    delivery_events,
    engine_options,
    report,
)
from broker.server.metrics import metrics_page
from broker.server.topics import TopicSettings, sync_words

if TYPE_CHECKING:
    import ssl

    from aiohttp import web

    from broker.config.load import Address, Config
    from broker.engine.cursor.events import EventLog
    from broker.net.listener import Door
    from broker.net.tls import Certificates

log = logging.getLogger("broker.server")


class Server:
    """One broker in this process: its data folder, its engine, its doors."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.access = access_of(config)
        self.ports: dict[str, tuple[str, int]] = {}
        self.doors: dict[str, Door] = {}
        self._pages: dict[str, Pages] = {}
        self._lookup: LookupServer | None = None
        self.lookup_peers: LookupPeers | None = None  # the nsqlookupds that we tell
        self.nats: NatsServer | None = None
        self.streaming: Streaming | None = None
        self.bulk: Bulk | None = None
        self._writes: Writes | None = None
        self._lock: DataLock | None = None
        self._engine: Engine | None = None
        self._router: Router | None = None
        self._events: EventLog | None = None
        self._statsd: asyncio.Task[None] | None = None

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
            engine_options(config),
            self._policy_for,
            report,
            self._retention_for,
        )
        self._writes = Writes(data, data / LOGS_FOLDER)
        await self._open_logs(self._writes, runtime.loop)
        self._events = delivery_events(self._engine, config)
        if config.nsqlookupd.enabled:
            self._lookup = LookupServer(config.nsqlookupd, http=http_settings(config))
            await self._lookup.start()
            for door, bound in self._lookup.ports.items():
                self.ports["nsqlookupd" if door == "tcp" else f"nsqlookupd_{door}"] = bound
        self.nats = NatsServer(nats_settings(config), runtime, self._router)
        self.nats.pages.broken = self.health
        streaming = StreamingPages()
        metrics = metrics_page(self, self.nats.pages, streaming)
        self.nats.monitor.more = {"/metrics": metrics}
        self.nats.monitor.http = http_settings(config)
        if config.stan.enabled:
            await self._open_streaming(self.nats, streaming)
        if config.nats.listen is not None:
            await self.nats.open_doors()
            assert self.nats.door is not None
            self.doors["nats"] = self.nats.door
            self.ports |= self.nats.ports
        if config.nsq.listen is not None:
            nsq = NsqDoor(config.nsq, runtime, self._engine, self.access)
            nsq.dead_letters.begin(config.storage.for_topic)
            await self._open("nsq", nsq)
            api = NsqApi(nsq, self.health, nsq_facts(config))
            api.extra_routes = Extras(nsq, TopicSettings(self.engine)).routes()
            await self._open_nsq_pages(api, nsq.certificates)
            if config.nsq.statsd_address is not None:
                host = config.nsq.broadcast_address or socket.gethostname()
                port = self.ports.get("nsq_http", self.ports["nsq"])[1]
                prefix = full_prefix(config.nsq.statsd_prefix, host, port)
                self._statsd = asyncio.create_task(Statsd(nsq, config.nsq, prefix).run())
            self.lookup_peers = LookupPeers(config.nsq, self._engine)
            api.options.on_lookupd_addresses = self.lookup_peers.set_addresses
            tcp, http = (self.ports.get(name, ("", 0))[1] for name in ("nsq", "nsq_http"))
            self.lookup_peers.start(tcp, http, config.nsq.nsqlookupd_tcp_addresses)
        if self.bulk is not None and not self.bulk.closed:
            await self._open_bulk(self.bulk)
        await self.nats.open_pages()  # the last one: whoever asks /healthz finds all doors open
        self.ports |= self.nats.ports

    async def _open_streaming(self, nats: NatsServer, pages: StreamingPages) -> None:
        settings, folder = stan_settings(self.config), Path(self.config.server.data) / STAN_FOLDER
        try:
            self.streaming = Streaming(settings, self.engine, nats, folder, self.access)
        except (OSError, StateVersionError) as problem:  # the rest can be served
            self.engine.shared.health.add("stan", settings.cluster_id, str(problem))
            log.error("NATS Streaming is not served: %s", problem)
            return
        await self.streaming.start()
        pages.found = self.streaming
        nats.monitor.more = {**(nats.monitor.more or {}), **pages.handlers()}

    async def _open_bulk(self, bulk: Bulk) -> None:
        try:
            self.ports["bulk"] = await bulk.open()
        except ListenError:
            raise
        except OSError as problem:  # the disk failed; the rest can be served
            self.engine.shared.health.add(IDENTITY_PROBLEM, "disk", str(problem))
            log.error("the bulk API is not served: %s", problem)

    async def _open_logs(self, writes: Writes, loop: asyncio.AbstractEventLoop) -> None:
        writes.look()
        if self.config.stan.enabled:
            data = Path(self.config.server.data)
            name_channels(data / LOGS_FOLDER, data / STAN_FOLDER, self.access)
        self.engine.open(loop)
        for problem in self.engine.problems:
            log.warning("recovered: %s", problem)
        # first of all, before the housekeeping looks what can go: what readers hold
        if self.config.bulk.listen is not None:
            self.bulk = Bulk(self.config, self.engine)
            self.bulk.door.readers.share(writes.keeping)
        else:
            # Without a listener nobody can be heard of, so nobody is forgotten either.
            folder = Path(self.config.server.data) / BULK_FOLDER / READERS_FOLDER
            holds = Readers(self.engine, folder, asyncio.to_thread)
            holds.share(writes.keeping)
            holds.load()
        await writes.start(self.engine)  # without a door too: what has begun is finished
        if self.bulk is not None:
            self.bulk.take(writes)

    async def _open(self, name: str, door: Door) -> None:
        await door.open()
        self.doors[name] = door
        self.ports[name] = door.address

    async def _open_nsq_pages(self, api: NsqApi, certificates: Certificates | None) -> None:
        config = self.config.nsq
        if certificates is not None and config.https is not None:
            await self._serve("nsq_https", config.https, api.app(), certificates.context)
            api.https_port = self.ports["nsq_https"][1]
        if config.http is not None:
            # one kind of policy lets nobody in without a certificate
            only_tls = config.tls_required == "true" or (
                config.tls_required == "false" and config.tls_client_auth_policy != ""
            )
            app = api.refusing_app() if only_tls else api.app()
            await self._serve("nsq_http", config.http, app)
            api.http_port = self.ports["nsq_http"][1]

    async def _serve(
        self,
        name: str,
        listen: Address,
        app: web.Application,
        context: ssl.SSLContext | None = None,
    ) -> None:
        names = (self.config.nsq.broadcast_address,)
        pages = self._pages[name] = Pages(app, context, http_settings(self.config), names=names)
        await pages.open(listen)
        self.ports[name] = pages.address

    async def reload(self) -> None:
        """Read certificates and the NATS file again; what is wrong changes nothing and is told."""
        if self.nats is not None and self.config.nats.config_file:
            await reload_nats(self.nats, self.config)
        if self.bulk is not None:
            await self.bulk.reload()
        nsq = self.doors.get("nsq")
        if not isinstance(nsq, NsqDoor) or nsq.certificates is None:
            return
        try:
            nsq.certificates.reload()
        except TlsError as problem:
            log.error("certificates stay as they were: %s", problem)
            return
        if "nsq_https" in self._pages:
            await self._pages["nsq_https"].use(nsq.certificates.context)
        log.info("certificates were read again")

    async def stop(self) -> None:
        """Stop accepting, answer for what was accepted, write and sync everything, let go."""
        if self.lookup_peers is not None:
            await self.lookup_peers.stop()
        for door in self.doors.values():
            await door.close()
        if self.bulk is not None:
            await self.bulk.stop()  # before the threads and files that its requests need
        if self._writes is not None:
            await self._writes.stop()
        if self._engine is not None:
            await self._engine.settle()
        for door in self.doors.values():
            await door.drain()
        await self._give_up()

    async def _give_up(self) -> None:
        if self._statsd is not None:
            self._statsd.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._statsd
            self._statsd = None
        if self.lookup_peers is not None:
            await self.lookup_peers.stop()
            self.lookup_peers = None
        if self.streaming is not None:
            await self.streaming.stop()
            self.streaming = None
        if self.nats is not None:
            await self.nats.stop()
            self.nats = None
        for door in self.doors.values():
            await door.drain()
        if self.bulk is not None:
            await self.bulk.close()
            self.bulk = None
        if self._writes is not None:
            await self._writes.stop()
            self._writes = None
        await asyncio.gather(*(pages.close() for pages in self._pages.values()))
        self._pages.clear()
        self.doors.clear()
        if self._lookup is not None:
            await self._lookup.stop()
            self._lookup = None
        if self._events is not None:
            self._events.end()
            self._events = None
        if self._engine is not None:
            await self._engine.close()
            self._engine = None
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _policy_for(self, name: str) -> str | float:
        """When appends to a log are synced, in the engine's words."""
        sync = self.config.storage.for_topic(name.removeprefix(APART)).sync
        assert sync is not None
        return sync_words(sync)

    def _retention_for(self, name: str) -> tuple[int, int, int, int, int] | None:
        """What a log keeps, in the engine's words; None = until every reader is done."""
        topic = self.config.storage.for_topic(name.removeprefix(APART))
        kept = (topic.max_age_ns, topic.max_bytes, topic.max_msgs, topic.keep_ns, topic.keep_bytes)
        return kept if any(kept) else self.config.events.kept(name)

    # --- what the monitoring pages ask for

    def health(self) -> str | None:
        """None when all is well, else what is not."""
        return broken_log(self.engine)

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
                quarantined_logs=len(self.engine.quarantined),
                problems=len(shared.health.problems()),
                quarantined_ranges=shared.quarantined_ranges,
                torn_bytes_cut=shared.torn_bytes,
                delivery_events=self._events.written if self._events is not None else 0,
                delivery_events_lost=self._events.lost if self._events is not None else 0,
            ),
            subscriptions=self._router.size if self._router is not None else 0,
            bulk=self.bulk.stats() if self.bulk is not None else None,
        )


def http_settings(config: Config) -> HttpSettings:
    """What holds for every HTTP listener."""
    return HttpSettings(**dataclasses.asdict(config.http))


def nsq_facts(config: Config) -> dict[str, Any]:
    """What /config of nsqd shows and [nsq] does not know."""
    sync = config.storage.sync
    return {
        "id": max(config.nsq.node_id, 0),
        "http_address": str(config.nsq.http or ""),
        "data_path": str(Path(config.server.data).resolve()),
        "max_bytes_per_file": config.storage.segment_size,
        "sync_every": int(sync.mode == "always"),
        "sync_timeout": sync.period_ns,
    }


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
    """One log and those of its cursors that are channels: the others come and go with clients."""
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
            for cursor in channels_of(entry)
        ],
    )
