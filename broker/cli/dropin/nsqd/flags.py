"""The flags of nsqd and nsqlookupd, each with the configuration key that it sets.

`target` is "section.key"; durations set the attribute that ends in _ns. A flag without a target is
handled by name (command.py), or is in NO_EFFECT with the reason.
"""

from __future__ import annotations

import hashlib
import socket
import zlib
from typing import Any

from broker.cli.dropin import errors
from broker.cli.dropin.goflags import (
    BOOL,
    DURATION,
    FLOATS,
    INT,
    LIST,
    STRING,
    Flag,
    Kind,
    WordKind,
)
from broker.protocols.nsq import limits

LEVELS = {word: word for word in ("debug", "info", "warn", "error", "fatal")}


class LevelKind(WordKind):
    """A log level; the usage text has its default in capitals."""

    def __init__(self) -> None:
        super().__init__(LEVELS, errors.NSQD_LOG_LEVEL)

    def default_text(self, default: object) -> str:
        return str(default).upper()


_TLS_REQUIRED_WORDS: dict[str, str] = {"tcp-https": "tcp-https"}
_TLS_REQUIRED_WORDS |= dict.fromkeys(("1", "t", "true"), "true")
_TLS_REQUIRED_WORDS |= dict.fromkeys(("0", "f", "false"), "false")


class TlsRequiredKind(WordKind):
    """true, false or tcp-https; on the command line it is a boolean flag."""

    def __init__(self) -> None:
        super().__init__(_TLS_REQUIRED_WORDS, errors.NSQD_TLS_REQUIRED, boolean=True)

    def default_text(self, default: object) -> str:  # noqa: ARG002
        return ""


LEVEL = LevelKind()
TLS_REQUIRED = TlsRequiredKind()
TLS_VERSION = WordKind(
    {word: word for word in ("tls1.0", "tls1.1", "tls1.2", "tls1.3")},
    errors.NSQD_TLS_VERSION,
    empty=True,
)

# Flags that are accepted without effect, with the reason.
NO_EFFECT = {
    "queue-scan-selection-count": "deadlines are exact, without scanning",
    "queue-scan-worker-pool-max": "deadlines are exact, without scanning",
    "verbose": "deprecated in the original: use --log-level",
    "worker-id": "deprecated in the original: use --node-id",
}
# Flags that are handled by name.
BY_NAME = frozenset(
    {"version", "config", "log-level", "log-prefix", "max-bytes-per-file", "sync-every"}
    | {"sync-timeout", "mem-queue-size"}
)

# Lists that the original does not check: an invalid entry fails when it is used.
UNCHECKED = frozenset({"lookupd-tcp-address", "auth-http-address"})
# Options that /config shows as they were given.
SHOWN_AS_GIVEN = frozenset(
    {"tcp-address", "http-address", "https-address", "broadcast-address", "data-path"}
    | {"log-prefix", "mem-queue-size", "max-bytes-per-file", "sync-every", "sync-timeout"}
    | {"queue-scan-selection-count", "queue-scan-worker-pool-max", "statsd-address"}
)


def default_node_id(hostname: str) -> int:
    """The default node id, which the original derives from the host's name."""
    digest = hashlib.md5(hostname.encode(), usedforsecurity=False).digest()
    return zlib.crc32(digest) % limits.NSQD_NODE_IDS


Row = tuple[str, Kind, Any, str]


def _common(program: str) -> list[Flag]:
    return [
        Flag("version", BOOL, False, "show the version and exit", in_file=False),
        Flag("config", STRING, "", "TOML file with more settings", in_file=False),
        Flag("log-level", LEVEL, "info", "lowest level to log: debug, info, warn, error, fatal"),
        Flag("log-prefix", STRING, f"[{program}] ", "prefix of every log line"),
        Flag("verbose", BOOL, False, "no effect: see --log-level", in_file=False),
    ]


# Rows whose target is "nsq." and the name with _ for -.
_PLAIN: tuple[Row, ...] = (
    ("broadcast-tcp-port", INT, 0, "TCP port reported to nsqlookupd (default: the one in use)"),
    ("broadcast-http-port", INT, 0, "HTTP port reported to nsqlookupd (default: the one in use)"),
    ("topology-region", STRING, "", "region of this server"),
    ("topology-zone", STRING, "", "zone of this server, within its region"),
    ("enable-experiment", LIST, (), "enable a feature: topology-aware-consumption"),
    (
        "msg-timeout",
        DURATION,
        limits.NSQ_MSG_TIMEOUT,
        "time that a consumer has to finish a message",
    ),
    (
        "max-msg-timeout",
        DURATION,
        limits.NSQ_MAX_MSG_TIMEOUT,
        "longest time, including extensions by TOUCH",
    ),
    ("max-msg-size", INT, limits.NSQ_MAX_MSG_SIZE, "largest message, bytes"),
    ("max-req-timeout", DURATION, limits.NSQ_MAX_REQ_TIMEOUT, "longest delay of REQ and DPUB"),
    ("max-body-size", INT, limits.NSQ_MAX_BODY_SIZE, "largest body of a command, bytes"),
    (
        "max-heartbeat-interval",
        DURATION,
        limits.NSQ_MAX_HEARTBEAT_INTERVAL,
        "longest heartbeat interval of a client",
    ),
    ("max-rdy-count", INT, limits.NSQ_MAX_RDY_COUNT, "largest RDY of a client"),
    (
        "max-output-buffer-size",
        INT,
        limits.NSQ_MAX_OUTPUT_BUFFER_SIZE,
        "largest output buffer that a client may request, bytes",
    ),
    (
        "max-output-buffer-timeout",
        DURATION,
        limits.NSQ_MAX_OUTPUT_BUFFER_TIMEOUT,
        "longest flush interval that a client may request",
    ),
    (
        "min-output-buffer-timeout",
        DURATION,
        limits.NSQ_MIN_OUTPUT_BUFFER_TIMEOUT,
        "shortest flush interval that a client may request",
    ),
    (
        "output-buffer-timeout",
        DURATION,
        limits.NSQ_OUTPUT_BUFFER_TIMEOUT,
        "flush interval of a client that requests none",
    ),
    ("max-channel-consumers", INT, 0, "most consumers of one channel (0: any number)"),
    ("deflate", BOOL, True, "allow clients to use deflate"),
    ("max-deflate-level", INT, limits.NSQ_MAX_DEFLATE_LEVEL, "highest deflate level, 1 to 9"),
    ("snappy", BOOL, True, "allow clients to use snappy"),
    ("statsd-address", STRING, "", "host:port of a statsd daemon (UDP)"),
    ("statsd-interval", DURATION, limits.NSQD_STATSD_INTERVAL, "interval of reports to statsd"),
    ("statsd-mem-stats", BOOL, True, "also report memory use"),
    ("statsd-prefix", STRING, "nsq.%s", "prefix of every key; %s is replaced with host and port"),
    ("statsd-udp-packet-size", INT, limits.NSQD_STATSD_PACKET, "largest packet, bytes"),
    ("statsd-exclude-ephemeral", BOOL, False, "omit ephemeral topics and channels"),
    (
        "e2e-processing-latency-window-time",
        DURATION,
        limits.NSQD_E2E_WINDOW,
        "period that latency percentiles cover",
    ),
    ("tls-cert", STRING, "", "certificate file (PEM)"),
    ("tls-key", STRING, "", "private key file (PEM)"),
    ("tls-client-auth-policy", STRING, "", "client certificates: require, require-verify"),
    ("tls-root-ca-file", STRING, "", "CAs for client certificates (PEM)"),
    ("tls-required", TLS_REQUIRED, "false", "refuse plain text: true, false, tcp-https"),
    ("tls-min-version", TLS_VERSION, "tls1.0", "lowest version: tls1.0 to tls1.3"),
    ("auth-http-request-method", STRING, "get", "method of requests to auth servers: get or post"),
    (
        "http-client-connect-timeout",
        DURATION,
        limits.NSQD_HTTP_CONNECT_TIMEOUT,
        "timeout of connections to auth servers and nsqlookupds",
    ),
    (
        "http-client-request-timeout",
        DURATION,
        limits.NSQD_HTTP_REQUEST_TIMEOUT,
        "timeout of requests to auth servers and nsqlookupds",
    ),
)
_STORAGE = [
    Flag("data-path", STRING, "", "data folder (default: the working directory)", "server.data"),
    Flag(
        "mem-queue-size", INT, limits.NSQD_MEM_QUEUE_SIZE, "most messages of an #ephemeral channel"
    ),
    Flag("max-bytes-per-file", INT, limits.NSQD_BYTES_PER_FILE, "size of one file, bytes"),
    Flag(
        "sync-every",
        INT,
        limits.NSQD_SYNC_EVERY,
        "1: sync before each answer; other values have no effect",
    ),
    Flag("sync-timeout", DURATION, limits.NSQD_SYNC_TIMEOUT, "interval of syncs"),
    Flag("queue-scan-worker-pool-max", INT, limits.NSQD_SCAN_WORKERS, "no effect"),
    Flag("queue-scan-selection-count", INT, limits.NSQD_SCAN_SELECTION, "no effect"),
]


def _named(hostname: str) -> list[Flag]:
    node_id = default_node_id(hostname)
    lookupd = "nsqlookupd_tcp_addresses"
    percentiles = "e2e_processing_latency_percentiles"
    return [
        Flag("node-id", INT, node_id, "part of message ids, 0 to 1023", "nsq.node_id", "id"),
        Flag("worker-id", BOOL, False, "no effect: see --node-id", in_file=False),
        Flag("https-address", STRING, "0.0.0.0:4152", "host:port for HTTPS", "nsq.https"),
        Flag("http-address", STRING, "0.0.0.0:4151", "host:port or path for HTTP", "nsq.http"),
        Flag("tcp-address", STRING, "0.0.0.0:4150", "host:port or path for TCP", "nsq.listen"),
        Flag(
            "broadcast-address",
            STRING,
            hostname,
            "address reported to nsqlookupd",
            "nsq.broadcast_address",
        ),
        Flag(
            "lookupd-tcp-address", LIST, (), "an nsqlookupd; repeatable", f"nsq.{lookupd}", lookupd
        ),
        Flag(
            "auth-http-address",
            LIST,
            (),
            "host:port or URL of an auth server; repeatable",
            "nsq.auth_http_addresses",
            "auth_http_addresses",
        ),
        Flag(
            "e2e-processing-latency-percentile",
            FLOATS,
            (),
            "latency percentiles to keep, above 0 to 1.0; repeatable, or separated by commas",
            f"nsq.{percentiles}",
            percentiles,
        ),
    ]


def nsqd(hostname: str | None = None) -> dict[str, Flag]:
    """The flags of nsqd on this host."""
    plain = [Flag(*row, "nsq." + row[0].replace("-", "_")) for row in _PLAIN]
    named = _named(hostname or socket.gethostname())
    return {flag.name: flag for flag in [*_common("nsqd"), *named, *_STORAGE, *plain]}


def nsqlookupd(hostname: str | None = None) -> dict[str, Flag]:
    """The flags of nsqlookupd on this host."""
    rows: tuple[tuple[str, Kind, Any, str, str], ...] = (
        ("tcp-address", STRING, "0.0.0.0:4160", "host:port for nsqd", "listen"),
        ("http-address", STRING, "0.0.0.0:4161", "host:port for HTTP clients", "http"),
        (
            "broadcast-address",
            STRING,
            hostname or socket.gethostname(),
            "address of this host, reported to clients",
            "broadcast_address",
        ),
        (
            "inactive-producer-timeout",
            DURATION,
            limits.NSQLOOKUPD_INACTIVE,
            "time after its last ping that an nsqd is listed",
            "inactive_producer_timeout",
        ),
        (
            "tombstone-lifetime",
            DURATION,
            limits.NSQLOOKUPD_TOMBSTONE,
            "time that a tombstone hides a producer",
            "tombstone_lifetime",
        ),
    )
    flags = [Flag(*row[:4], f"nsqlookupd.{row[4]}") for row in rows]
    return {flag.name: flag for flag in [*_common("nsqlookupd"), *flags]}
