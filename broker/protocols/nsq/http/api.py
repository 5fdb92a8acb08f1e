"""nsqd's HTTP API: publish, topics and channels, statistics, and /config.

/config shows the settings under nsqd's names; two of them can be changed at run time.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import socket
import time
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Final

import orjson

from broker.base.durable import sync_path
from broker.base.redact import redacted
from broker.base.units import MS, SECOND
from broker.engine.cursor.cursor import cursors_of
from broker.engine.log.files import CURSORS, QuarantinedError
from broker.engine.log.publish import publish
from broker.engine.names import is_ephemeral, is_name
from broker.net import sockets
from broker.net.http.errors import HttpError, http_error
from broker.protocols.access import READ, WRITE
from broker.protocols.nsq import limits
from broker.protocols.nsq.http import debug, errors, stats
from broker.protocols.nsq.http.app import (
    ApiError,
    Route,
    find_topic,
    make_app,
    make_refusing_app,
    read_body,
    reason_of,
)
from broker.protocols.nsq.http.v1 import dead_letter_routes
from broker.protocols.nsq.topics import channel_of, open_channel, streams_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping

    from aiohttp import web

    from broker.engine.cursor.cursor import Cursor
    from broker.engine.log.log import Log
    from broker.protocols.nsq.config import NsqConfig
    from broker.protocols.nsq.http.app import Answer, Query, Routes
    from broker.protocols.nsq.listener import NsqListener
    from broker.protocols.stream_topic import StreamChannel, StreamTopic

LOOKUPD_ADDRESSES: Final = "nsqlookupd_tcp_addresses"
LOG_LEVEL: Final = "log_level"
AUTH: Final = "auth_http_addresses"

# Every key that nsqd shows; the values are used if no setting has that name.
_KEYS: Final[dict[str, Answer]] = {
    "id": 0,
    LOG_LEVEL: 0,
    "log_prefix": "",
    "tcp_address": "",
    "http_address": "",
    "https_address": "",
    "broadcast_address": "",
    "broadcast_tcp_port": 0,
    "broadcast_http_port": 0,
    LOOKUPD_ADDRESSES: [],
    AUTH: [],
    "auth_http_request_method": "get",
    "http_client_connect_timeout": 0,
    "http_client_request_timeout": 0,
    "topology_region": "",
    "topology_zone": "",
    "data_path": "",
    "mem_queue_size": 0,  # no message waits in memory only
    "max_bytes_per_file": 0,
    "sync_every": 0,  # syncs follow time, not the number of messages
    "sync_timeout": 0,
    "queue_scan_selection_count": 0,  # timers replace nsqd's scanning
    "queue_scan_worker_pool_max": 0,
    "msg_timeout": 0,
    "max_msg_timeout": 0,
    "max_msg_size": 0,
    "max_body_size": 0,
    "max_req_timeout": 0,
    "max_heartbeat_interval": 0,
    "max_rdy_count": 0,
    "max_output_buffer_size": 0,
    "max_output_buffer_timeout": 0,
    "min_output_buffer_timeout": 0,
    "output_buffer_timeout": 0,
    "max_channel_consumers": 0,
    "statsd_address": "",
    "statsd_prefix": "",
    "statsd_interval": 0,
    "statsd_mem_stats": False,
    "statsd_udp_packet_size": 0,
    "statsd_exclude_ephemeral": False,
    "e2e_processing_latency_window_time": 0,
    "e2e_processing_latency_percentiles": [],
    "tls_cert": "",
    "tls_key": "",
    "tls_client_auth_policy": "",
    "tls_root_ca_file": "",
    "tls_required": 0,
    "tls_min_version": 0,
    "deflate": False,
    "max_deflate_level": 0,
    "snappy": False,
    "enable_experiment": [],
}
# nsqd's numbers for values of the configuration.
_WORDS: Final[dict[str, dict[str, int]]] = {
    "tls_required": {"false": 0, "tcp-https": 1, "true": 2},
    "tls_min_version": {"tls1.0": 0x301, "tls1.1": 0x302, "tls1.2": 0x303, "tls1.3": 0x304},
}
_LEVELS: Final = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warn": logging.WARNING,
    "error": logging.ERROR,
    "fatal": logging.CRITICAL,
}
_GO_INT = re.compile(r"[+-]?[0-9]{1,400}", re.ASCII)


def _named(name: str) -> bool:
    return is_name(name.encode("utf-8", "surrogateescape"))


def _wrapped(number: int) -> int:
    """The number as a signed 64-bit integer, which Go's time.Duration is after a multiplication."""
    return (number + 2**63) % 2**64 - 2**63


def _parts(body: bytes, message_max: int, body_max: int) -> list[bytes]:
    """[count]{[len][bytes]}: an MPUB without its total size; later bytes are ignored."""
    if len(body) < 4:
        raise ApiError(errors.NSQ_HTTP_BAD_BODY)
    count = int.from_bytes(body[:4], "big", signed=True)
    if not 0 < count <= (body_max - 4) // 5:
        raise ApiError(errors.NSQ_HTTP_BAD_BODY)
    found, at = [], 4
    for _ in range(count):
        size = int.from_bytes(body[at : at + 4], "big", signed=True)
        part = body[at + 4 : at + 4 + max(size, 0)]
        if not 0 < size <= message_max or len(part) < size:
            raise ApiError(errors.NSQ_HTTP_BAD_MESSAGE)
        found.append(part)
        at += 4 + size
    return found


class Options:
    """The options that /config reads and writes.

    `lookupd_addresses` is the list of nsqlookupds that topics are reported to;
    `on_lookupd_addresses` is called with each new list.
    """

    def __init__(self, config: NsqConfig, facts: Mapping[str, Answer]) -> None:
        """`facts`: values under nsqd's keys that are missing in [nsq]; they override `config`."""
        self._config = config
        self.facts = dict(facts)
        self.lookupd_addresses = [str(a) for a in getattr(config, LOOKUPD_ADDRESSES, ())]
        self.on_lookupd_addresses: Callable[[list[str]], object] = lambda _addresses: None

    def get(self, key: str) -> Answer:
        """The value in force; INVALID_OPTION if nsqd does not have that key."""
        if key not in _KEYS:
            raise ApiError(errors.NSQ_HTTP_OPTION)
        if key == LOOKUPD_ADDRESSES:
            return list(self.lookupd_addresses)
        if key == LOG_LEVEL:
            return logging.getLogger().getEffectiveLevel() // logging.DEBUG
        if key in self.facts:
            return _plain(self.facts[key], _KEYS[key])
        value = getattr(self._config, key, None)
        if value is None:
            value = getattr(self._config, f"{key}_ns", None)
        if isinstance(value, str) and key in _WORDS:
            return _WORDS[key].get(value, 0)
        plain = _plain(value, _KEYS[key])
        # URLs of auth servers may contain the operator's password or token.
        if key == AUTH and isinstance(plain, list):
            return [redacted(str(url)) for url in plain]
        return plain

    def put(self, key: str, body: bytes) -> None:
        """Change one option; INVALID_OPTION, INVALID_VALUE."""
        if key == LOG_LEVEL:
            level = _LEVELS.get(body.decode("utf-8", "replace").lower())
            if level is None:
                raise ApiError(errors.NSQ_HTTP_VALUE)
            logging.getLogger().setLevel(level)
        elif key == LOOKUPD_ADDRESSES:
            self.lookupd_addresses = _addresses(body)
            self.on_lookupd_addresses(list(self.lookupd_addresses))
        else:
            raise ApiError(errors.NSQ_HTTP_OPTION)


def _plain(value: object, default: Answer) -> Answer:
    if value is None:
        return default
    if isinstance(value, bool | int | float):
        return value
    if isinstance(default, list) and isinstance(value, list | tuple):
        return [_number(item) if isinstance(item, int | float) else str(item) for item in value]
    return str(value)


def _number(value: float) -> float:
    """As Go writes it: 1, not 1.0."""
    return int(value) if value == int(value) else value


def _addresses(body: bytes) -> list[str]:
    """A JSON list of strings; null is an empty list."""
    try:
        found = orjson.loads(body)
    except orjson.JSONDecodeError:
        raise ApiError(errors.NSQ_HTTP_VALUE) from None
    if found is None:
        return []
    if not isinstance(found, list):
        raise ApiError(errors.NSQ_HTTP_VALUE)
    if not all(isinstance(address, str) for address in found):
        raise ApiError(errors.NSQ_HTTP_VALUE)
    return found


class NsqApi:
    """The request handlers of one listener."""

    def __init__(
        self,
        listener: NsqListener,
        health: Callable[[], str | None],
        facts: Mapping[str, Answer] | None = None,
    ) -> None:
        """`health()` returns the current problem, or None; `facts`: see Options."""
        self.listener = listener
        self.engine = listener.engine
        self.topics = listener.topics
        self.config = listener.config
        self.health = health
        self.hostname = socket.gethostname()
        self.http_port = self.https_port = 0  # set once they are known
        self.options = Options(self.config, facts or {})
        self.start_ns = listener.start_ns
        # Built by one request at a time: each that builds one has a part in every turn of the loop.
        self._stats_page = asyncio.Lock()
        self.extra_routes: Routes = {}  # additional ones, set before `app`

    def routes(self) -> Routes:
        """All paths and their handlers."""
        routes = {
            "/ping": {"GET": Route(self.ping, versioned=False)},
            "/info": {"GET": Route(self.info)},
            "/stats": {"GET": Route(self.stats)},
            "/pub": {"POST": Route(self.pub, publishes=True)},
            "/mpub": {"POST": Route(self.mpub, publishes=True)},
            "/topic/create": {"POST": Route(self.topic_create)},
            "/topic/delete": {"POST": Route(self.topic_delete)},
            "/topic/empty": {"POST": Route(self.topic_empty)},
            "/topic/pause": {"POST": Route(self.topic_pause)},
            "/topic/unpause": {"POST": Route(self.topic_unpause)},
            "/config/:": {"GET": Route(self.option), "PUT": Route(self.set_option)},
            "/channel/create": {"POST": Route(self.channel_create)},
            "/channel/delete": {"POST": Route(self.channel_delete)},
            "/channel/empty": {"POST": Route(self.channel_empty)},
            "/channel/pause": {"POST": Route(self.channel_pause)},
            "/channel/unpause": {"POST": Route(self.channel_unpause)},
            **debug.routes(self.config.debug_peers),
        }
        routes |= dead_letter_routes(self.listener)
        return {**routes, **self.extra_routes}

    def app(self) -> web.Application:
        """The application with all routes."""
        return make_app(self.routes(), self.config.max_body_size + 1)

    def refusing_app(self) -> web.Application:
        """The application for plain HTTP if TLS is required: it names the HTTPS port."""
        return make_refusing_app(
            HTTPStatus.FORBIDDEN,
            lambda: errors.NSQ_HTTP_TLS_REQUIRED.replace("{port}", str(self.https_port)),
        )

    # --- information

    async def ping(self, _request: web.Request, _query: Query) -> Answer:
        """OK, or the problem with the data folder."""
        problem = self.health()
        if problem is None:
            return "OK"
        raise ApiError(errors.NSQ_HTTP_INTERNAL, text=f"NOK - {problem}")

    async def info(self, _request: web.Request, _query: Query) -> Answer:
        """Version, addresses and limits."""
        config = self.config
        return {
            "version": limits.NSQ_VERSION,
            "broadcast_address": config.broadcast_address or self.hostname,
            "hostname": self.hostname,
            "http_port": self.http_port,
            "tcp_port": self.listener.address[1],
            "start_time": self.start_ns // SECOND,
            "max_heartbeat_interval": config.max_heartbeat_interval_ns,
            "max_output_buffer_size": config.max_output_buffer_size,
            "max_output_buffer_timeout": config.max_output_buffer_timeout_ns,
            "max_deflate_level": config.max_deflate_level,
            "topology_zone": config.topology_zone,
            "topology_region": config.topology_region,
        }

    async def stats(self, _request: web.Request, query: Query) -> Answer:
        """Topics, channels, clients."""
        async with self._stats_page:
            return await self._stats(query)

    async def _stats(self, query: Query) -> Answer:
        topic, channel = query.get("topic") or "", query.get("channel") or ""
        include_clients = query.flag("include_clients", True)
        memory = stats.memory() if query.flag("include_mem", True) else None
        as_json = query.get("format") == "json"
        pages = stats.StatsPage(
            self.topics,
            self.listener.sessions if include_clients else None,
            topic,
            channel,
            packed=as_json,
        )
        topics = await pages.topics(self.config.e2e_processing_latency_percentiles)
        producers = await pages.producers()
        problem = self.health()
        health = "OK" if problem is None else f"NOK - {problem}"
        if not as_json:
            return await pages.text(topics, producers, memory, health, self.start_ns)
        page: dict[str, object] = {
            "version": limits.NSQ_VERSION,
            "health": health,
            "start_time": self.start_ns // SECOND,
            "topics": topics,
        }
        if memory is not None:
            page["memory"] = memory
        return {**page, "producers": producers}

    # --- settings

    async def option(self, request: web.Request, _query: Query) -> Answer:
        """The value of one setting."""
        key = request.path.rpartition("/")[2]
        listener = self.listener
        config, tcp_port = self.config, sockets.port_of(listener.address)
        self.options.facts.update(
            {
                "tcp_address": sockets.text_of(listener.address),
                "broadcast_address": config.broadcast_address or self.hostname,
                "broadcast_tcp_port": config.broadcast_tcp_port or tcp_port,
                "broadcast_http_port": config.broadcast_http_port or max(0, self.http_port),
                **config.given,
            }
        )
        return self.options.get(key)

    async def set_option(self, request: web.Request, query: Query) -> Answer:
        """Change one setting; the answer is its new value."""
        error = errors.NSQ_HTTP_VALUE_SIZE
        body = await read_body(request, self.config.max_msg_size, error)
        if not body:
            raise ApiError(error)
        self.options.put(request.path.rpartition("/")[2], body)
        return await self.option(request, query)

    # --- publish

    async def pub(self, request: web.Request, query: Query) -> Answer:
        """Publish the body as one message."""
        body = await read_body(request, self.config.max_msg_size, errors.NSQ_HTTP_BIG)
        if not body:
            raise ApiError(errors.NSQ_HTTP_EMPTY)
        stream = self._stream(query, WRITE)
        if stream is not None:
            if self._delay_ns(query):
                raise ApiError(errors.NSQ_HTTP_STREAM_DEFER)
            await self._publish_to_stream(stream, [body])
            return "OK"
        log = self._writable(query)
        delay_ns = self._delay_ns(query)
        await self._publish(log, [body], time.time_ns() + delay_ns if delay_ns else 0)
        return "OK"

    async def mpub(self, request: web.Request, query: Query) -> Answer:
        """Publish the body: one message per line, or with `binary` an MPUB."""
        config = self.config
        if (request.content_length or 0) > config.max_body_size:
            raise ApiError(errors.NSQ_HTTP_BODY_BIG, close=True)
        log = None if self._stream(query, WRITE) is not None else self._writable(query)
        body = await read_body(request, config.max_body_size, errors.NSQ_HTTP_BODY_BIG)
        if query.get("binary") is not None and query.flag("binary", True):
            parts = _parts(body, config.max_msg_size, config.max_body_size)
        else:
            parts = [line for line in body.split(b"\n") if line]
            if any(len(line) > config.max_msg_size for line in parts):
                raise ApiError(errors.NSQ_HTTP_BIG)
        stream = self._stream(query, WRITE)
        if stream is not None:
            await self._publish_to_stream(stream, parts)
        else:
            await self._publish(log or self._writable(query), parts, 0)
        return "OK"

    def _delay_ns(self, query: Query) -> int:
        text = query.get("defer")
        if text is None:
            return 0
        if not _GO_INT.fullmatch(text) or not -(2**63) <= int(text) < 2**63:
            raise ApiError(errors.NSQ_HTTP_DEFER)
        delay_ns = _wrapped(int(text) * MS)
        most = max(self.config.max_req_timeout_ns, self.config.max_defer_ns)
        if not 0 <= delay_ns <= most:
            raise ApiError(errors.NSQ_HTTP_DEFER)
        return delay_ns

    async def _publish(self, log: Log, bodies: list[bytes], not_before_ns: int) -> None:
        try:
            await publish(log, bodies, not_before_ns)
        except OSError as problem:
            raise ApiError(errors.NSQ_HTTP_EXITING) from problem
        self.listener.count_published(bodies)

    async def _publish_to_stream(self, stream: StreamTopic, bodies: list[bytes]) -> None:
        try:
            await stream.publish_all(bodies)
        except OSError as problem:
            raise ApiError(_refusal(problem)) from problem
        self.listener.count_published(bodies)

    # --- topics

    def _stream(self, query: Query, right: int) -> StreamTopic | None:
        """The stream that stands for the topic, which NSQ must have this right to; None: none does.
        ApiError."""
        name = self._topic_name(query)
        if name not in self.engine.reserved:
            return None
        if not self.topics.access.may_use_stream(right):
            raise ApiError(errors.NSQ_HTTP_FORBIDDEN)
        stream: StreamTopic | None = self.engine.reserved[name]
        if stream is None:
            raise ApiError(errors.NSQ_HTTP_STREAM_OFFLINE)
        return stream

    def _topic_name(self, query: Query) -> str:
        name = query.get("topic")
        if name is None:
            raise ApiError(errors.NSQ_HTTP_NO_TOPIC)
        return name

    def _make_topic(self, query: Query) -> Log:
        name = self._topic_name(query)
        if not _named(name):
            raise ApiError(errors.NSQ_HTTP_TOPIC)
        try:
            return self.engine.open_log(name, ephemeral=is_ephemeral(name.encode()))
        except QuarantinedError as problem:
            raise ApiError(errors.NSQ_HTTP_QUARANTINED) from problem

    def _writable(self, query: Query) -> Log:
        log = self._make_topic(query)
        if not self.topics.access.may_topic(log, WRITE):
            raise ApiError(errors.NSQ_HTTP_FORBIDDEN)
        return log

    def _topic(self, query: Query, *rights: int) -> Log:
        return find_topic(self.topics, self._topic_name(query), *rights)

    async def topic_create(self, _request: web.Request, query: Query) -> Answer:
        """Create the topic if it does not exist."""
        if self._stream(query, WRITE) is not None:
            return None
        await self._make_topic(query).sync.created()
        return None

    async def topic_delete(self, _request: web.Request, query: Query) -> Answer:
        """Delete the topic with its channels; disconnect their consumers."""
        log = self._topic(query, READ, WRITE)
        folder = log.folder
        self._disconnect(list(cursors_of(log).values()), lambda: self.engine.delete_log(log.name))
        if folder is not None:
            await _sync_folder(Path(folder).parent)
        return None

    async def topic_empty(self, _request: web.Request, query: Query) -> Answer:
        """Drop the messages that no channel has received yet."""
        if not _named(self._topic_name(query)):
            raise ApiError(errors.NSQ_HTTP_TOPIC)
        log = self._topic(query, READ, WRITE)
        log.empty()
        # the channels of a paused topic have not received them yet
        await asyncio.gather(*(cursor.synced() for cursor in cursors_of(log).values()))
        return None

    async def topic_pause(self, _request: web.Request, query: Query) -> Answer:
        """Pass no messages to channels until /topic/unpause."""
        self._topic(query, READ, WRITE).pause()
        return None

    async def topic_unpause(self, _request: web.Request, query: Query) -> Answer:
        """Pass messages to channels again."""
        self._topic(query, READ, WRITE).unpause()
        return None

    # --- channels

    def _channel_name(self, query: Query) -> str:
        for name, missing, invalid in (
            ("topic", errors.NSQ_HTTP_NO_TOPIC, errors.NSQ_HTTP_ARG_TOPIC),
            ("channel", errors.NSQ_HTTP_NO_CHANNEL, errors.NSQ_HTTP_ARG_CHANNEL),
        ):
            value = query.get(name)
            _require(value is not None, missing)
            _require(_named(value or ""), invalid)
        return query.get("channel") or ""

    def _channel(self, query: Query, *rights: int) -> Cursor:
        name = self._channel_name(query)
        log = self._topic(query, *rights)
        cursor = channel_of(log, name)
        if cursor is None:
            raise ApiError(errors.NSQ_HTTP_UNKNOWN_CHANNEL)
        return cursor

    async def channel_create(self, _request: web.Request, query: Query) -> Answer:
        """Create the channel if it does not exist; the topic must exist."""
        name = self._channel_name(query)
        stream = self._stream(query, READ)
        if stream is not None:
            channels = stream.channels
            await _asked(channels.open(name, self.config.msg_timeout_ns, channels.next_seq))
            return None
        log = self._topic(query, READ)
        cursor = open_channel(log, name, self.config.ephemeral_channel_max)
        await log.sync.created()
        await cursor.synced()
        return None

    async def channel_delete(self, _request: web.Request, query: Query) -> Answer:
        """Delete the channel and disconnect its consumers. This requires no right to the topic:
        otherwise a channel that NSQ may no longer read would keep its messages for ever."""
        name = self._channel_name(query)
        stream = streams_of(self.engine).get(self._topic_name(query))
        if stream is not None:
            await _asked(stream.channels.delete(_found(stream, name)))
            return None
        cursor = self._channel(query)
        log = cursor.log
        self._disconnect([cursor], lambda: log.delete_cursor(cursor.name))
        if log.folder is not None:
            await _sync_folder(Path(log.folder, CURSORS))
        return None

    async def channel_empty(self, _request: web.Request, query: Query) -> Answer:
        """Drop all messages of the channel: waiting, deferred, in flight."""
        cursor = self._channel(query, READ)
        cursor.empty()
        await cursor.synced()
        return None

    async def channel_pause(self, _request: web.Request, query: Query) -> Answer:
        """Deliver nothing to consumers until /channel/unpause."""
        if await self._pause_in_stream(query, paused=True):
            return None
        cursor = self._channel(query, READ)
        cursor.pause()
        await cursor.synced()
        return None

    async def channel_unpause(self, _request: web.Request, query: Query) -> Answer:
        """Deliver to consumers again."""
        if await self._pause_in_stream(query, paused=False):
            return None
        cursor = self._channel(query, READ)
        cursor.unpause()
        await cursor.synced()
        return None

    async def _pause_in_stream(self, query: Query, paused: bool) -> bool:
        """Pause a channel, or let it go on, if its topic is a stream; whether it is."""
        name = self._channel_name(query)
        stream = self._stream(query, READ)
        if stream is None:
            return False
        await _asked(stream.channels.pause(_found(stream, name), paused))
        return True

    def _disconnect(self, cursors: Iterable[Cursor], delete: Callable[[], object]) -> None:
        """Delete cursors, then disconnect the sessions that were subscribed to them."""
        deleted = set(cursors)
        found = [s for s in self.listener.sessions if s.cursor in deleted]
        delete()
        for session in found:
            session.disconnect()


def _found(stream: StreamTopic, name: str) -> StreamChannel:
    """The channel of a topic that is a stream; ApiError if there is none."""
    try:
        found = stream.channels.find(name)
    except OSError as problem:
        raise ApiError(_refusal(problem)) from problem
    if found is None:
        raise ApiError(errors.NSQ_HTTP_UNKNOWN_CHANNEL)
    return found


async def _asked(waiting: Awaitable[object]) -> None:
    """Wait until JetStream has done a request; ApiError if it refuses."""
    try:
        await waiting
    except OSError as problem:
        raise ApiError(_refusal(problem)) from problem


def _refusal(problem: OSError) -> HttpError:
    return http_error(errors.NSQ_HTTP_STREAM_REFUSED, reason=reason_of(problem))


async def _sync_folder(folder: Path) -> None:
    """Sync a folder, so that a power failure does not restore files deleted in it."""
    # the folder itself may be deleted, or not be created before the first record
    with contextlib.suppress(FileNotFoundError):
        await asyncio.to_thread(sync_path, folder)


def _require(condition: bool, error: HttpError) -> None:
    if not condition:
        raise ApiError(error)
