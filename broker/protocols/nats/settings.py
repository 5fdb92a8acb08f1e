"""The settings of a NATS server as plain frozen data: the sections [nats] and [monitor], and the
blocks of nats-server's configuration files.

Durations are nanoseconds, sizes are bytes, 0 means "no limit" unless a field says otherwise.
Secrets do not show in repr().
"""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Final

from broker.base import settings as kinds
from broker.base.gotext import go_quote
from broker.base.units import CONNECTIONS_MAX
from broker.base.values import dataclass
from broker.engine.config import EngineNeeds
from broker.protocols.nats import limits
from broker.protocols.nats.leafnodes.limits import (
    NATS_LEAF_DIAL,
    NATS_LEAF_INFO,
    NATS_LEAF_RECONNECT,
    NATS_LEAF_RTTS,
)
from broker.protocols.nats.monitoring.limits import MONITOR_PORT

if TYPE_CHECKING:
    from collections.abc import Iterator

GLOBAL_ACCOUNT: Final = "$G"
SYSTEM_ACCOUNT: Final = "$SYS"
# What becomes of a connection that does not read in time; `default`: clients are closed, links are
# tried again.
WRITE_TIMEOUTS: Final = ("default", "close", "retry")
COMPRESSIONS: Final = (  # of leaf links
    *("not supported", "off", "accept", "s2_auto"),
    *("s2_fast", "s2_better", "s2_best"),
)
# Policies for a client that does not read, in the order of SLOW_* in client/frontend.pxd.
SLOW_CONSUMERS: Final = ("close", "drop", "pause")

Address = tuple[str, int]


@dataclass(frozen=True, slots=True)
class SubjectRule:
    """A subject pattern, and a pattern of queue groups if only those are meant."""

    subject: str
    queue: str = ""


@dataclass(frozen=True, slots=True)
class Rules:
    """Allowed and denied subjects; `deny` takes precedence."""

    allow: tuple[SubjectRule, ...] | None = None  # None: all
    deny: tuple[SubjectRule, ...] = ()


@dataclass(frozen=True, slots=True)
class ResponseRule:
    """Permission to publish to the reply subjects of delivered messages."""

    max_msgs: int = limits.NATS_RESPONSES_MAX  # per reply subject; negative = no limit
    expires_ns: int = limits.NATS_RESPONSES_EXPIRE  # negative = never


@dataclass(frozen=True, slots=True)
class Permissions:
    """The permissions of one user."""

    publish: Rules = Rules()
    subscribe: Rules = Rules()
    responses: ResponseRule | None = None


@dataclass(frozen=True, slots=True)
class RateLimit:
    """A limit of publishing (a token bucket); 0 = no limit."""

    msgs_per_second: int = 0
    bytes_per_second: int = 0  # headers and body
    burst_ns: int = limits.NATS_RATE_BURST  # the traffic of this time may arrive at once


@dataclass(frozen=True, slots=True)
class User:
    """A user who may log in: by name and password, or by an nkey."""

    name: str = ""
    password: str = field(default="", repr=False)  # plain or bcrypt
    nkey: str = ""  # public
    permissions: Permissions | None = None  # None: the account's or server's default
    connection_types: frozenset[str] | None = None  # None: any; else STANDARD, WEBSOCKET ...
    rate: RateLimit | None = None  # of each of its connections
    account: str = ""  # for logins of leaf nodes; elsewhere the account lists its users
    proxy_required: bool = False  # it may only come through a trusted proxy


@dataclass(frozen=True, slots=True)
class Destination:
    """A destination of a mapping, for a share of the messages."""

    subject: str
    weight: int = 100  # percent
    cluster: str = ""


@dataclass(frozen=True, slots=True)
class Mapping:
    """Maps messages published to `source` to other subjects.

    For each cluster's destinations (and those without a cluster) the weights add up to 100 at most.
    The rest goes to `source` itself, unless that is a destination too: then the rest is dropped.
    """

    source: str
    destinations: tuple[Destination, ...]


@dataclass(frozen=True, slots=True)
class Export:
    """A stream or service that others may import."""

    subject: str
    service: bool
    accounts: tuple[str, ...] | None = None  # None: any account; (): those with a token
    response_type: str = "singleton"  # or stream, chunked; of services
    threshold_ns: int = limits.NATS_RESPONSE_THRESHOLD
    token_position: int = 0  # index of the importing account's name in the subject, from 1
    latency_subject: str = ""
    latency_sampling: int = 0  # percent; 0 = off, -1 = as the request's headers demand
    allow_trace: bool = False  # of services: traces of requests continue in this account


@dataclass(frozen=True, slots=True)
class Import:
    """An import from another account."""

    account: str
    subject: str  # in the exporting account
    service: bool
    to: str = ""  # in the importing account, "" = the same
    prefix: str = ""  # of streams
    share: bool = False  # whether client info of the requester is passed on
    granted: bool = False  # a token grants it: Export.accounts need not list the importer
    allow_trace: bool = False  # of streams: traces of messages continue in this account


@dataclass(frozen=True, slots=True)
class AccountLimits:
    """The limits of an account; -1 = no limit."""

    max_connections: int = -1
    max_subscriptions: int = -1
    max_payload: int = -1
    max_leafnodes: int = -1


@dataclass(frozen=True, slots=True)
class JetStreamLimits:
    """The limits of an account's streams and consumers; -1 = no limit."""

    max_memory: int = -1  # bytes of all streams in memory
    max_storage: int = -1  # bytes of all file streams
    max_streams: int = -1
    max_consumers: int = -1  # of one stream
    max_ack_pending: int = -1  # of one consumer
    memory_max_stream_bytes: int = -1
    storage_max_stream_bytes: int = -1
    max_bytes_required: bool = False
    # The limits of each tier, by its name. With tiers the fields above are those of R1, which
    # applies to streams with one replica.
    tiers: tuple[tuple[str, JetStreamLimits], ...] = ()


@dataclass(frozen=True, slots=True)
class JetStream:
    """The block `jetstream` of nats-server's files, and its flags; 0 = the default."""

    enabled: bool = True
    store_dir: str = ""
    sync_ns: int = 0
    sync_always: bool = False
    max_memory: int = 0
    max_storage: int = 0
    domain: str = ""
    strict: bool = True
    max_ack_pending: int = 0
    max_request_batch: int = 0
    max_consumers: int = 0  # of streams without a limit of their own
    duplicate_window_ns: int = 0
    request_queue: int = 0


@dataclass(frozen=True, slots=True)
class Account:
    """An account: a separate subject space."""

    name: str
    nkey: str = ""
    users: tuple[User, ...] = ()
    exports: tuple[Export, ...] = ()
    imports: tuple[Import, ...] = ()
    mappings: tuple[Mapping, ...] = ()
    limits: AccountLimits = AccountLimits()
    jetstream: JetStreamLimits | None = None  # None: not enabled for it
    trace_dest: str = ""  # where messages with a sampled `traceparent` are traced to
    trace_sampling: int = 100  # percent of them
    rate: RateLimit | None = None  # of all its connections together
    default_permissions: Permissions | None = None


@dataclass(frozen=True, slots=True)
class Callout:
    """A service on the bus that decides about logins."""

    issuer: str  # public account key that signs the answers
    account: str = GLOBAL_ACCOUNT
    auth_users: tuple[str, ...] = ()  # names and nkeys of users that log in as the service
    xkey: str = ""  # public curve key for which requests are encrypted
    allowed_accounts: tuple[str, ...] = ()  # whose users it decides about; empty: all


@dataclass(frozen=True, slots=True)
class Authorization:
    """Logins outside of accounts; if all is empty, every client is admitted."""

    user: str = ""
    password: str = field(default="", repr=False)
    token: str = field(default="", repr=False)
    timeout_ns: int = 0  # 0: NATS_AUTH_TIMEOUT, or with TLS its timeout plus a second
    users: tuple[User, ...] = ()
    default_permissions: Permissions | None = None  # of `users`; not of `user` and `token`
    callout: Callout | None = None
    proxy_required: bool = False  # of `user` and `token`, and of all leaf nodes


@dataclass(frozen=True, slots=True)
class Tls:
    """Certificates, and requirements for the peer's."""

    cert_file: str = ""
    key_file: str = ""
    certificates: tuple[tuple[str, str], ...] = ()  # alternatively: pairs of certificate and key
    ca_file: str = ""
    verify: bool = False
    verify_and_map: bool = False
    insecure: bool = False  # of outgoing connections
    timeout_ns: int = limits.NATS_TLS_TIMEOUT
    cipher_suites: tuple[str, ...] = ()
    curve_preferences: tuple[str, ...] = ()
    pinned_certs: frozenset[str] = frozenset()  # SHA-256 of the key, lower-case hex
    connection_rate_limit: int = 0  # handshakes per second
    handshake_first: bool = False
    handshake_first_wait_ns: int = 0  # > 0: send INFO if the client has not begun by then
    min_version: str = "1.2"


@dataclass(frozen=True, slots=True)
class Websocket:
    """The WebSocket listener."""

    listen: Address
    tls: Tls | None = None  # None: no_tls
    advertise: str = ""
    same_origin: bool = False
    allowed_origins: tuple[str, ...] = ()
    handshake_timeout_ns: int = 0  # 0: none
    compression: bool = False
    authorization: Authorization | None = None
    jwt_cookie: str = ""
    user_cookie: str = ""
    pass_cookie: str = ""
    token_cookie: str = ""
    headers: tuple[tuple[str, str], ...] = ()  # of the answer to the request
    ping_interval_ns: int = 0  # 0: that of other clients
    no_auth_user: str = ""


def _without_password(url: str) -> str:
    """A URL for the log."""
    from urllib.parse import urlsplit

    parts = urlsplit(url)
    if parts.password is None:
        return url
    address = parts.netloc.rpartition("@")[2]
    return parts._replace(netloc=f"{parts.username}:xxxxx@{address}").geturl()


@dataclass(frozen=True, slots=True)
class Compression:
    """Whether and how what is sent over a leaf link is compressed."""

    mode: str = COMPRESSIONS[2]
    thresholds_ns: tuple[int, ...] = NATS_LEAF_RTTS  # of s2_auto, ascending


@dataclass(frozen=True, slots=True)
class HttpProxy:
    """An HTTP proxy through which a remote is dialled."""

    url: str  # http or https
    user: str = ""
    password: str = field(default="", repr=False)
    timeout_ns: int = 0  # 0: the remote's dial_timeout
    tls: Tls | None = None  # None with https: the system's authorities


@dataclass(frozen=True, slots=True)
class Remote:
    """A server that this one joins as a leaf."""

    urls: tuple[str, ...] = field(repr=False)  # may contain a password; default port 7422
    account: str = GLOBAL_ACCOUNT
    credentials: str = ""  # file
    nkey: str = field(default="", repr=False)  # seed of a user
    tls: Tls | None = None
    hub: bool = False
    deny_imports: tuple[str, ...] = ()
    deny_exports: tuple[str, ...] = ()
    randomize: bool = True
    ws_compression: bool = False
    ws_no_masking: bool = False
    disabled: bool = False  # it is not dialled
    dial_timeout_ns: int = 0  # 0: that of the block
    first_info_timeout_ns: int = NATS_LEAF_INFO
    ignores_discovered: bool = False  # only the configured URLs are dialled
    isolated: bool = False  # what other leafs subscribe to is not announced to the hub
    requests_isolation: bool = False  # and the hub is asked not to announce it here
    proxy: HttpProxy | None = None
    compression: Compression = Compression()

    @property
    def key(self) -> tuple[object, ...]:
        """What it joins, and as whom: no other remote of a server has the same."""
        return self.urls, self.account, self.credentials, self.nkey

    @property
    def shown(self) -> str:
        """The same for the log, without passwords and seeds."""
        urls = " ".join(go_quote(_without_password(url)) for url in self.urls)
        login = f", credentials={go_quote(self.credentials)}" if self.credentials else ""
        if self.nkey:
            login = ', nkey="[REDACTED]"'
        return f"urls=[{urls}], account={go_quote(self.account)}{login}"


@dataclass(frozen=True, slots=True)
class Leafnodes:
    """Servers that join this one, and servers that it joins."""

    listen: Address | None = None
    authorization: Authorization | None = None
    account: str = ""  # of logins with the single user or nkey of the block
    nkey: str = ""  # public key that may log in instead of a user with password
    tls: Tls | None = None
    advertise: str = ""
    no_advertise: bool = False
    reconnect_ns: int = NATS_LEAF_RECONNECT
    min_version: str = ""
    isolated: bool = False  # what a leaf subscribes to is not announced to other leafs
    dial_timeout_ns: int = NATS_LEAF_DIAL
    write_deadline_ns: int = 0  # 0: that of the server
    write_timeout: str = WRITE_TIMEOUTS[0]
    compression: Compression = Compression()
    remotes: tuple[Remote, ...] = ()


@dataclass(frozen=True, slots=True)
class Resolver:
    """Operator mode: trusted operators, and the resolver of account tokens."""

    operators: tuple[str, ...] = ()  # their tokens, checked
    kind: str = "memory"  # or full, cache (folders), url; none: finds no account
    directory: str = ""
    url: str = ""  # ends in /
    preload: tuple[tuple[str, str], ...] = field(default=(), repr=False)  # account key, token
    allow_delete: bool = False
    hard_delete: bool = False  # otherwise deleted tokens are only renamed
    interval_ns: int = limits.NATS_RESOLVER_INTERVAL  # full: between exchanges
    limit: int = 0  # tokens kept, 0 = no limit
    ttl_ns: int = 0  # cache: tokens are dropped after this time; 0 = never
    timeout_ns: int = limits.NATS_RESOLVER_TIMEOUT
    trusted_keys: tuple[str, ...] = ()  # operator keys, if no operator's token is configured
    pinned_accounts: frozenset[str] = frozenset()  # if not empty, only these may log in
    tls: Tls | None = None  # for url


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings. Fields with a kind are keys of [nats]; the others exist only in nats-server's
    files and flags, or come from [server] and [monitor]."""

    listen: Address | None = kinds.listen_setting(limits.NATS_PORT, flag="--nats", clients=True)
    # A file in nats-server's language with all settings but `listen`; empty: use the keys here.
    config_file: str = kinds.file_setting()
    server_name: str = ""
    client_advertise: str = ""
    http: Address | None = None
    https: Address | None = None
    http_base_path: str = ""
    monitor_user: str = ""  # "": the monitoring listener requires no login
    monitor_password: str = field(default="", repr=False)
    debug: bool = False
    trace: bool = False
    trace_verbose: bool = False
    trace_headers: bool = False  # of messages only the headers are traced
    logtime: bool = True
    logtime_utc: bool = False
    logfile: str = ""
    logfile_size_limit: int = 0
    logfile_max_num: int = 0
    syslog: bool = False
    remote_syslog: str = ""
    pid_file: str = ""
    digest: str = field(default="", compare=False)  # of the configuration file: conf/digest
    ports_file_dir: str = ""
    max_traced_msg_len: int = 0
    max_control_line: int = kinds.size_setting(
        limits.NATS_MAX_CONTROL_LINE,
        limits.NATS_MAX_CONTROL_LINE_MIN,
        limits.NATS_MAX_CONTROL_LINE_MAX,
    )
    max_payload: int = kinds.message_size_setting(limits.NATS_MAX_PAYLOAD)
    max_pending: int = kinds.size_setting(limits.NATS_MAX_PENDING, 1, limits.NATS_MAX_PENDING_MAX)
    # in nats-server's files, negative means no limit
    max_connections: int = kinds.count_setting(limits.NATS_MAX_CONNECTIONS, 1, CONNECTIONS_MAX)
    max_subscriptions: int = kinds.count_setting(limits.NATS_MAX_SUBSCRIPTIONS, 0)
    max_sub_tokens: int = kinds.count_setting(limits.NATS_MAX_SUB_TOKENS, 0)
    connect_error_reports: int = limits.NATS_CONNECT_ERROR_REPORTS
    reconnect_error_reports: int = limits.NATS_RECONNECT_ERROR_REPORTS
    ping_interval_ns: int = kinds.duration_setting(limits.NATS_PING_INTERVAL)
    ping_max: int = kinds.count_setting(limits.NATS_PING_MAX, 1, limits.NATS_PING_MAX_MAX)
    write_deadline_ns: int = kinds.duration_setting(limits.NATS_WRITE_DEADLINE)
    write_timeout: str = WRITE_TIMEOUTS[0]
    trusted_proxies: tuple[str, ...] = ()  # their public keys
    proxy_protocol: bool = False  # clients may come through a proxy that says their address
    lame_duck_duration_ns: int = limits.NATS_LAME_DUCK_DURATION
    lame_duck_grace_period_ns: int = limits.NATS_LAME_DUCK_GRACE
    no_auth_user: str = ""
    # In operator mode: the token of clients that show none; of a bearer, or of a scoped key.
    default_sentinel: str = field(default="", repr=False)
    system_account: str = ""  # "": $SYS, unless it is disabled
    no_system_account: bool = False
    no_header_support: bool = False
    disable_sublist_cache: bool = False
    max_closed_clients: int = limits.NATS_CLOSED_CLIENTS
    allow_non_tls: bool = False
    mappings: tuple[Mapping, ...] = ()  # of the global account
    accounts: tuple[Account, ...] = ()
    authorization: Authorization = Authorization()
    authorization_given: bool = False  # a block is present, even if empty
    tls: Tls | None = None
    websocket: Websocket | None = None
    leafnodes: Leafnodes | None = None
    resolver: Resolver | None = None
    jetstream: JetStream | None = None  # None: not mentioned
    cluster_name: str = ""  # as configured
    server_tags: tuple[str, ...] = ()
    server_metadata: tuple[tuple[str, str], ...] = ()
    feature_flags: tuple[tuple[str, bool], ...] = ()  # as configured; see `flags`
    slow_consumer: str = SLOW_CONSUMERS[0]  # or drop (its messages), pause (its publishers)

    @property
    def reads_files(self) -> bool:
        """Whether it names files that are read when the server starts."""
        return bool(self.config_file)

    @property
    def flags(self) -> dict[str, bool]:
        """The known feature flags; unknown ones are left out."""
        known = limits.NATS_FEATURE_FLAGS
        return {**known, **{name: on for name, on in self.feature_flags if name in known}}

    @property
    def cluster(self) -> str:
        """The cluster's name; without one, a server that joins others uses its own name."""
        joins = self.leafnodes is not None and self.leafnodes.remotes
        return self.cluster_name or (self.server_name if joins else "")

    @property
    def address(self) -> Address:
        """The address of the client listener; ("", 0) without one."""
        return self.listen or ("", 0)

    def engine_needs(self) -> EngineNeeds:
        """The response subjects, each of which is for one client."""
        return EngineNeeds(private_subjects=(b"_INBOX.",))

    def conflicts(self, config: object) -> Iterator[kinds.Conflict]:
        """Conflicts of sizes: a message must fit into each buffer, or it would never be stored."""
        pairs = [
            ("nats.max_payload", "nats.max_pending"),
            ("nats.max_payload", "storage.append_buffer_max"),
        ]
        return kinds.too_large(config, pairs)


# The defaults of nats-server without a file and flags: it listens on every interface.
ORIGINAL: Final = Settings(listen=("0.0.0.0", limits.NATS_PORT))  # noqa: S104 - as documented


@dataclass(frozen=True)
class MonitorConfig:
    """[monitor]: the HTTP listener with /healthz, /varz, /metrics."""

    listen: Address | None = kinds.listen_setting(MONITOR_PORT, flag="--monitor")
    # empty: no login, or that of nats.config_file
    user: str = kinds.setting(kinds.text(), "")
    password: str = kinds.setting(kinds.text(), "", shown=False)

    def conflicts(self, _config: object) -> Iterator[kinds.Conflict]:
        """A user without a password, or the reverse, is an invalid login."""
        if bool(self.user) != bool(self.password):
            reason = (
                "a user and a password go together: give both monitor.user and monitor.password"
            )
            yield kinds.conflict("monitor.user", "monitor.password", reason)
