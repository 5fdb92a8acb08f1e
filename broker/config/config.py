"""The sections of the configuration, each a frozen dataclass with one attribute per key.

Attributes carry the names of the keys; durations end in _ns because they are nanoseconds, sizes
are bytes. Who reads them from where is not known here.
"""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass, field
from typing import Any, TypeVar

from broker.base import settings as kinds
from broker import limits
from broker.bulk.config import BulkConfig
from broker.engine.config import EventsConfig
from broker.net.http.config import HttpConfig
from broker.protocols.nsq.lookup.config import LookupConfig, peers
from broker.protocols.nsq.config import NsqWatching
from broker.base.settings import Address, SyncPolicy
from broker.protocols.stan.section import StanConfig

T = TypeVar("T")
_LOOPBACK = "127.0.0.1"


def _setting(kind: kinds.Kind[Any], default: T, *, shown: bool = True) -> T:
    return field(default=default, repr=shown, metadata={"kind": kind})


def _duration(default: int, low: int = limits.MS, *, off: bool = False) -> int:
    return _setting(kinds.duration(low, limits.DURATION_MAX, off=off), default)


def _size(default: int, low: int, high: int) -> int:
    return _setting(kinds.size(low, high), default)


def _count(default: int, low: int, high: int = limits.COUNT_MAX) -> int:
    return _setting(kinds.number(low, high), default)


def _message_size(default: int) -> int:
    return _size(default, 1, limits.MESSAGE_SIZE_CEILING)


def _door(port: int) -> Address | None:
    return _setting(kinds.address(), Address(_LOOPBACK, port))


@dataclass(frozen=True)
class ServerConfig:
    """[server]: the process as a whole."""

    name: str = _setting(kinds.text(), "")  # empty: the server's id
    data: str = _setting(kinds.text(), "./data")


@dataclass(frozen=True)
class LogConfig:
    """[log]: what is written to standard error."""

    level: str = _setting(kinds.choice("debug", "info", "warning", "error"), "info")
    format: str = _setting(kinds.choice("text", "json"), "text")
    utc: bool = _setting(kinds.flag(), False)


@dataclass(frozen=True)
class NatsConfig:
    """[nats]: the door for NATS clients."""

    listen: Address | None = _door(limits.NATS_PORT)
    config_file: str = _setting(kinds.text(), "")  # in nats-server's language; "": the keys here
    max_control_line: int = _size(
        limits.NATS_MAX_CONTROL_LINE,
        limits.NATS_MAX_CONTROL_LINE_MIN,
        limits.NATS_MAX_CONTROL_LINE_MAX,
    )
    max_payload: int = _message_size(limits.NATS_MAX_PAYLOAD)
    max_pending: int = _size(limits.NATS_MAX_PENDING, 1, limits.NATS_MAX_PENDING_MAX)
    max_connections: int = _count(limits.NATS_MAX_CONNECTIONS, 1, limits.CONNECTIONS_MAX)
    max_subscriptions: int = _count(limits.NATS_MAX_SUBSCRIPTIONS, 0)
    max_sub_tokens: int = _count(limits.NATS_MAX_SUB_TOKENS, 0)
    ping_interval_ns: int = _duration(limits.NATS_PING_INTERVAL)
    ping_max: int = _count(limits.NATS_PING_MAX, 1, limits.NATS_PING_MAX_MAX)
    write_deadline_ns: int = _duration(limits.NATS_WRITE_DEADLINE)


@dataclass(frozen=True)
class MonitorConfig:
    """[monitor]: the HTTP door with /healthz, /varz, /metrics."""

    listen: Address | None = _door(limits.MONITOR_PORT)
    user: str = _setting(kinds.text(), "")  # empty: nobody is asked, or those of nats.config_file
    password: str = _setting(kinds.text(), "", shown=False)


@dataclass(frozen=True)
class NsqConfig(NsqWatching):
    """[nsq]: the doors for NSQ clients."""

    listen: Address | None = _door(limits.NSQ_PORT)
    http: Address | None = _door(limits.NSQ_HTTP_PORT)
    https: Address | None = _setting(kinds.address(), None)
    broadcast_address: str = _setting(kinds.text(), "")  # empty: the host's name
    broadcast_tcp_port: int = _count(0, 0, limits.PORT_MAX)  # 0: the door's, here and below
    broadcast_http_port: int = _count(0, 0, limits.PORT_MAX)
    nsqlookupd_tcp_addresses: tuple[str, ...] = _setting(peers(), ())
    node_id: int = _count(-1, -1, limits.NSQ_NODE_ID_MAX)  # -1: made from the host's name
    msg_timeout_ns: int = _duration(limits.NSQ_MSG_TIMEOUT)
    max_msg_timeout_ns: int = _duration(limits.NSQ_MAX_MSG_TIMEOUT)
    max_req_timeout_ns: int = _duration(limits.NSQ_MAX_REQ_TIMEOUT)
    max_defer_ns: int = _duration(limits.NSQ_MAX_DEFER, off=True)  # 0: as max_req_timeout
    max_msg_size: int = _message_size(limits.NSQ_MAX_MSG_SIZE)
    max_body_size: int = _message_size(limits.NSQ_MAX_BODY_SIZE)
    max_heartbeat_interval_ns: int = _duration(
        limits.NSQ_MAX_HEARTBEAT_INTERVAL, limits.NSQ_HEARTBEAT_INTERVAL_MIN
    )
    max_rdy_count: int = _count(limits.NSQ_MAX_RDY_COUNT, 1, limits.NSQ_RDY_COUNT_CEILING)
    max_output_buffer_size: int = _size(
        limits.NSQ_MAX_OUTPUT_BUFFER_SIZE,
        limits.NSQ_OUTPUT_BUFFER_SIZE_MIN,
        limits.NSQ_OUTPUT_BUFFER_SIZE_CEILING,
    )
    max_output_buffer_timeout_ns: int = _duration(limits.NSQ_MAX_OUTPUT_BUFFER_TIMEOUT)
    min_output_buffer_timeout_ns: int = _duration(limits.NSQ_MIN_OUTPUT_BUFFER_TIMEOUT)
    output_buffer_timeout_ns: int = _duration(limits.NSQ_OUTPUT_BUFFER_TIMEOUT)
    max_channel_consumers: int = _count(limits.NSQ_MAX_CHANNEL_CONSUMERS, 0)
    max_deflate_level: int = _count(
        limits.NSQ_MAX_DEFLATE_LEVEL, 1, limits.NSQ_DEFLATE_LEVEL_CEILING
    )
    requeue_on_close: bool = _setting(kinds.flag(), True)
    debug_peers: str = _setting(kinds.choice("local", "all", "none"), "local")
    tls_cert: str = _setting(kinds.text(), "")
    tls_key: str = _setting(kinds.text(), "")
    tls_root_ca_file: str = _setting(kinds.text(), "")
    tls_client_auth_policy: str = _setting(kinds.choice("", "require", "require-verify"), "")
    tls_required: str = _setting(kinds.choice("false", "true", "tcp-https"), "false")
    tls_min_version: str = _setting(kinds.choice("tls1.0", "tls1.1", "tls1.2", "tls1.3"), "tls1.2")
    snappy: bool = _setting(kinds.flag(), True)
    deflate: bool = _setting(kinds.flag(), True)
    auth_http_addresses: tuple[str, ...] = _setting(kinds.texts(kinds.check_http), ())
    auth_http_request_method: str = _setting(kinds.choice("get", "post"), "get")
    http_client_connect_timeout_ns: int = _duration(limits.NSQ_AUTH_CONNECT_TIMEOUT)
    http_client_request_timeout_ns: int = _duration(limits.NSQ_AUTH_REQUEST_TIMEOUT)


@dataclass(frozen=True)
class TopicConfig:
    """[[storage.topic]]: what differs for the topics that a pattern matches."""

    pattern: str = _setting(kinds.text(kinds.check_pattern), "")
    sync: SyncPolicy | None = _setting(kinds.sync(), None)  # None: as [storage]
    max_age_ns: int = _duration(0, off=True)  # 0: no limit, here and below
    max_bytes: int = _size(0, 0, limits.COUNT_MAX)
    max_msgs: int = _count(0, 0)
    keep_ns: int = _duration(0, off=True)  # for what every channel is done with
    keep_bytes: int = _size(0, 0, limits.COUNT_MAX)
    max_attempts: int = _count(0, 0, limits.NSQ_ATTEMPTS_MAX)  # then to dead_letter_topic
    dead_letter_topic: str = _setting(kinds.text(kinds.check_topic), "")  # empty: <topic>.dead


@dataclass(frozen=True)
class StorageConfig:
    """[storage]: the logs."""

    sync: SyncPolicy = _setting(kinds.sync(), SyncPolicy("period", limits.STORAGE_SYNC_PERIOD))
    segment_size: int = _size(
        limits.STORAGE_SEGMENT_SIZE,
        limits.STORAGE_SEGMENT_SIZE_MIN,
        limits.STORAGE_SEGMENT_SIZE_MAX,
    )
    append_buffer_max: int = _size(
        limits.STORAGE_APPEND_BUFFER_MAX,
        limits.STORAGE_APPEND_BUFFER_MIN,
        limits.NATS_MAX_PENDING_MAX,
    )
    memory_topic_max: int = _size(
        limits.STORAGE_MEMORY_TOPIC_MAX, limits.STORAGE_APPEND_BUFFER_MIN, limits.COUNT_MAX
    )
    topic: tuple[TopicConfig, ...] = ()

    def for_topic(self, name: str) -> TopicConfig:
        """What holds for this topic: the first entry that matches, completed with the defaults."""
        for entry in self._entries:
            if kinds.pattern_matches(entry.pattern, name):
                return entry
        return self._others

    # It is asked for each log, twice, when the server starts.

    @functools.cached_property
    def _entries(self) -> tuple[TopicConfig, ...]:
        return tuple(
            dataclasses.replace(entry, sync=entry.sync or self.sync) for entry in self.topic
        )

    @functools.cached_property
    def _others(self) -> TopicConfig:
        return TopicConfig(pattern=">", sync=self.sync)


@dataclass(frozen=True)
class BridgeConfig:
    """[bridge]: which messages cross from one protocol to the other."""

    nsq_to_nats: bool = _setting(kinds.flag(), True)
    nats_to_nsq: bool = _setting(kinds.flag(), True)
    stan_to_nats: bool = _setting(kinds.flag(), True)
    nats_to_stan: bool = _setting(kinds.flag(), True)
    # None ("auto"): unless [nsq] has auth servers, see Config.shares_channels
    stan_to_nsq: bool | None = _setting(kinds.flag_or_auto(), None)
    nsq_to_stan: bool | None = _setting(kinds.flag_or_auto(), None)


@dataclass(frozen=True)
class Config:
    """Everything, one attribute per section."""

    server: ServerConfig = ServerConfig()
    log: LogConfig = LogConfig()
    nats: NatsConfig = NatsConfig()
    monitor: MonitorConfig = MonitorConfig()
    http: HttpConfig = HttpConfig()
    nsq: NsqConfig = NsqConfig()
    nsqlookupd: LookupConfig = LookupConfig()
    stan: StanConfig = StanConfig()
    storage: StorageConfig = StorageConfig()
    bridge: BridgeConfig = BridgeConfig()
    bulk: BulkConfig = BulkConfig()
    events: EventsConfig = EventsConfig()

    def crosses(self, switch: str) -> bool:
        """What a switch of [bridge] comes to. Those between NSQ and NATS Streaming are off by
        themselves where secrets say who may use a topic: clients of NATS Streaming have none."""
        wanted: bool | None = getattr(self.bridge, switch)
        return not self.nsq.auth_http_addresses if wanted is None else wanted
