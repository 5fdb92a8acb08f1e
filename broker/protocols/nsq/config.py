"""The section [nsq]."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Any

from broker.base import settings as kinds
from broker.base.settings import Address
from broker.base.units import DURATION_MAX, PORT_MAX
from broker.base.values import dataclass
from broker.engine.config import EngineNeeds
from broker.protocols.nsq import limits
from broker.protocols.nsq.lookup.config import peers

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

EXPERIMENTS = (limits.NSQ_TOPOLOGY,)
# In each pair, the first value must not exceed the second.
_DURATIONS = (
    ("nsq.msg_timeout", "nsq.max_msg_timeout"),
    ("nsq.min_output_buffer_timeout", "nsq.output_buffer_timeout"),
    ("nsq.output_buffer_timeout", "nsq.max_output_buffer_timeout"),
)
_SIZES = (
    ("nsq.max_msg_size", "nsq.max_body_size"),
    # A larger message would never be appended, and its publisher would wait for ever.
    ("nsq.max_body_size", "storage.append_buffer_max"),
    ("nsq.max_msg_size", "storage.memory_topic_max"),
)


def _items(text: str) -> list[str]:
    """A list in the form of flags and environment variables: a,b or ["a", "b"]."""
    parts = [part.strip(" \"'") for part in text.strip(" []").split(",")]
    return [part for part in parts if part]


def _listed(value: object) -> Sequence[object]:
    if isinstance(value, str):
        return _items(value)
    if not isinstance(value, list):
        raise ValueError(f"expected an array, got {kinds.type_name(value)} ({value!r})")
    return value


def percentiles() -> kinds.Kind[tuple[float, ...]]:
    """Numbers above 0 and up to 1, in descending order without duplicates."""

    def read(value: object) -> tuple[float, ...]:
        found = set()
        for item in _listed(value):
            try:
                number = float(item) if isinstance(item, int | float | str) else 0.0
            except ValueError:
                raise ValueError(f"must be numbers such as 0.99, got {item!r}") from None
            if not 0.0 < number <= 1.0:
                raise ValueError(f"must be above 0 and at most 1, got {item!r}")
            found.add(number)
        if len(found) > limits.NSQ_PERCENTILES_MAX:
            raise ValueError(f"at most {limits.NSQ_PERCENTILES_MAX} percentiles")
        return tuple(sorted(found, reverse=True))

    return kinds.Kind(read, lambda text: [_maybe_float(item) for item in _items(text)])


def _maybe_float(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def experiments() -> kinds.Kind[tuple[str, ...]]:
    """A list of names from EXPERIMENTS."""

    def read(value: object) -> tuple[str, ...]:
        found = _listed(value)
        for name in found:
            if name not in EXPERIMENTS:
                raise ValueError(f"must be among {', '.join(EXPERIMENTS)}, got {name!r}")
        return tuple(str(name) for name in found)

    return kinds.Kind(read, _items)


@dataclass(frozen=True)
class NsqWatching:
    """The part of [nsq] about monitoring and topology."""

    topology_region: str = kinds.setting(kinds.text(), "")
    topology_zone: str = kinds.setting(kinds.text(), "")
    enable_experiment: tuple[str, ...] = kinds.setting(experiments(), ())
    e2e_processing_latency_percentiles: tuple[float, ...] = kinds.setting(percentiles(), ())
    e2e_processing_latency_window_time_ns: int = kinds.setting(
        kinds.duration(limits.NSQ_LATENCY_WINDOW_MIN, DURATION_MAX),
        limits.NSQ_LATENCY_WINDOW,
    )
    statsd_address: Address | None = kinds.setting(kinds.address(), None)
    statsd_prefix: str = kinds.setting(kinds.text(), "nsq.%s")
    statsd_interval_ns: int = kinds.setting(
        kinds.duration(limits.STATSD_INTERVAL_MIN, DURATION_MAX), limits.STATSD_INTERVAL
    )
    statsd_mem_stats: bool = kinds.setting(kinds.flag(), True)
    statsd_udp_packet_size: int = kinds.setting(
        kinds.size(limits.STATSD_PACKET_MIN, limits.STATSD_PACKET_MAX), limits.STATSD_PACKET
    )
    statsd_exclude_ephemeral: bool = kinds.setting(kinds.flag(), False)


@dataclass(frozen=True)
class NsqConfig(NsqWatching):
    """[nsq]: the listeners for NSQ clients."""

    listen: Address | None = kinds.listen_setting(limits.NSQ_PORT, flag="--nsq", clients=True)
    http: Address | None = kinds.listen_setting(
        limits.NSQ_HTTP_PORT, flag="--nsq-http", clients=True
    )
    https: Address | None = kinds.listen_setting(None)
    broadcast_address: str = kinds.setting(kinds.text(), "")  # empty: the host's name
    broadcast_tcp_port: int = kinds.count_setting(0, 0, PORT_MAX)  # 0: the port of `listen`
    broadcast_http_port: int = kinds.count_setting(0, 0, PORT_MAX)  # 0: the port of `http`
    nsqlookupd_tcp_addresses: tuple[str, ...] = kinds.setting(peers(), ())
    node_id: int = kinds.count_setting(
        -1, -1, limits.NSQ_NODE_ID_MAX
    )  # -1: derived from the host's name
    msg_timeout_ns: int = kinds.duration_setting(limits.NSQ_MSG_TIMEOUT)
    max_msg_timeout_ns: int = kinds.duration_setting(limits.NSQ_MAX_MSG_TIMEOUT)
    max_req_timeout_ns: int = kinds.duration_setting(limits.NSQ_MAX_REQ_TIMEOUT)
    max_defer_ns: int = kinds.duration_setting(
        limits.NSQ_MAX_DEFER, off=True
    )  # 0: same as max_req_timeout
    max_msg_size: int = kinds.message_size_setting(limits.NSQ_MAX_MSG_SIZE)
    max_body_size: int = kinds.message_size_setting(limits.NSQ_MAX_BODY_SIZE)
    max_heartbeat_interval_ns: int = kinds.duration_setting(
        limits.NSQ_MAX_HEARTBEAT_INTERVAL, limits.NSQ_HEARTBEAT_INTERVAL_MIN
    )
    max_rdy_count: int = kinds.count_setting(
        limits.NSQ_MAX_RDY_COUNT, 1, limits.NSQ_RDY_COUNT_CEILING
    )
    max_output_buffer_size: int = kinds.size_setting(
        limits.NSQ_MAX_OUTPUT_BUFFER_SIZE,
        limits.NSQ_OUTPUT_BUFFER_SIZE_MIN,
        limits.NSQ_OUTPUT_BUFFER_SIZE_CEILING,
    )
    max_output_buffer_timeout_ns: int = kinds.duration_setting(limits.NSQ_MAX_OUTPUT_BUFFER_TIMEOUT)
    min_output_buffer_timeout_ns: int = kinds.duration_setting(limits.NSQ_MIN_OUTPUT_BUFFER_TIMEOUT)
    output_buffer_timeout_ns: int = kinds.duration_setting(limits.NSQ_OUTPUT_BUFFER_TIMEOUT)
    max_channel_consumers: int = kinds.count_setting(limits.NSQ_MAX_CHANNEL_CONSUMERS, 0)
    ephemeral_channel_max: int = kinds.count_setting(limits.NSQ_EPHEMERAL_CHANNEL_MAX, 0)
    max_deflate_level: int = kinds.count_setting(
        limits.NSQ_MAX_DEFLATE_LEVEL, 1, limits.NSQ_DEFLATE_LEVEL_CEILING
    )
    requeue_on_close: bool = kinds.setting(kinds.flag(), True)
    debug_peers: str = kinds.setting(kinds.choice("local", "all", "none"), "local")
    tls_cert: str = kinds.file_setting()
    tls_key: str = kinds.file_setting()
    tls_root_ca_file: str = kinds.file_setting()
    tls_client_auth_policy: str = kinds.setting(kinds.choice("", "require", "require-verify"), "")
    tls_required: str = kinds.setting(kinds.choice("false", "true", "tcp-https"), "false")
    tls_min_version: str = kinds.setting(
        kinds.choice("tls1.0", "tls1.1", "tls1.2", "tls1.3"), "tls1.2"
    )
    snappy: bool = kinds.setting(kinds.flag(), True)
    deflate: bool = kinds.setting(kinds.flag(), True)
    auth_http_addresses: tuple[str, ...] = kinds.setting(kinds.texts(kinds.check_http), ())
    auth_http_request_method: str = kinds.setting(kinds.choice("get", "post"), "get")
    http_client_connect_timeout_ns: int = kinds.duration_setting(limits.NSQ_AUTH_CONNECT_TIMEOUT)
    http_client_request_timeout_ns: int = kinds.duration_setting(limits.NSQ_AUTH_REQUEST_TIMEOUT)
    # Not a key: values of nsqd's options that /config shows as `twinwire nsqd` was given them.
    given: Mapping[str, Any] = field(default_factory=dict)

    @property
    def reads_files(self) -> bool:
        """Whether it names files that are read when the server starts."""
        return bool(self.tls_cert)

    @property
    def guards_topics(self) -> bool:
        """Whether clients need a secret to use a topic."""
        return bool(self.auth_http_addresses)

    def engine_needs(self) -> EngineNeeds:
        """Latencies, if percentiles are configured; the longest delay."""
        window_ns = self.e2e_processing_latency_window_time_ns
        return EngineNeeds(
            window_ns if self.e2e_processing_latency_percentiles else 0,
            delay_max_ns=max(self.max_req_timeout_ns, self.max_defer_ns),
        )

    def conflicts(self, config: object) -> Iterator[kinds.Conflict]:
        """Limits that contradict each other; TLS without a certificate."""
        yield from kinds.too_large(config, _DURATIONS, kinds.duration_text)
        yield from kinds.too_large(config, _SIZES)
        if bool(self.tls_cert) != bool(self.tls_key):
            reason = "a certificate and its key go together: give both nsq.tls_cert and nsq.tls_key"
            yield kinds.conflict("nsq.tls_cert", "nsq.tls_key", reason)
        yield from self._unopened()
        if self.tls_cert:
            return
        for key, asked in (
            ("tls_required", self.tls_required != "false"),
            ("tls_client_auth_policy", self.tls_client_auth_policy),
            ("https", self.https is not None),
        ):
            if asked:
                reason = "needs a certificate: give nsq.tls_cert and nsq.tls_key"
                yield kinds.conflict(f"nsq.{key}", "nsq.tls_cert", reason)

    def _unopened(self) -> Iterator[kinds.Conflict]:
        """HTTP listeners that are configured although NSQ is off."""
        if self.listen is not None:
            return
        # Nobody has asked for the default, or for that of the container's image.
        hosts = (kinds.LOOPBACK, "0.0.0.0")  # noqa: S104 (compared)
        usual = [Address(host, limits.NSQ_HTTP_PORT) for host in hosts]
        for key, address in (("http", self.http), ("https", self.https)):
            if address is not None and (key == "https" or address not in usual):
                reason = (
                    f"{address} would not be opened: nsq.listen is empty, which also turns off NSQ "
                    f'over HTTP. Give nsq.listen an address, or nsq.{key} = ""'
                )
                yield kinds.conflict(f"nsq.{key}", "nsq.listen", reason)
