"""The flags of nsqd and nsqlookupd, and what they are here.

Sources: apps/nsqd/options.go, apps/nsqlookupd/main.go, nsqd/options.go.
"""

from __future__ import annotations

from typing import Any, Final

from broker import limits
from broker.cli.goflags import Flag

_S: Final = limits.SECOND
_M: Final = limits.MINUTE

NSQD: Final = (
    Flag("version", "bool", False, "print version string"),
    Flag("config", "string", "", "path to config file"),
    Flag("log-level", "level", "info", "set log verbosity: debug, info, warn, error, or fatal"),
    Flag("log-prefix", "string", "[nsqd] ", "log message prefix"),
    Flag("verbose", "bool", False, "[deprecated] has no effect, use --log-level"),
    Flag("node-id", "int", -1, "unique part for message IDs, in range [0,1024)", "id"),
    Flag("worker-id", "bool", False, "[deprecated] use --node-id"),
    Flag("https-address", "string", "0.0.0.0:4152", "<addr>:<port> for HTTPS clients"),
    Flag("http-address", "string", "0.0.0.0:4151", "<addr>:<port> for HTTP clients"),
    Flag("tcp-address", "string", "0.0.0.0:4150", "<addr>:<port> for TCP clients"),
    Flag("broadcast-address", "string", "", "address that will be registered with lookupd"),
    Flag("broadcast-tcp-port", "int", 0, "TCP port that will be registered with lookupd"),
    Flag("broadcast-http-port", "int", 0, "HTTP port that will be registered with lookupd"),
    Flag(
        "lookupd-tcp-address",
        "list",
        (),
        "lookupd TCP address (may be given multiple times)",
        "nsqlookupd_tcp_addresses",
    ),
    Flag("http-client-connect-timeout", "duration", 2 * _S, "timeout for HTTP connect"),
    Flag("http-client-request-timeout", "duration", 5 * _S, "timeout for HTTP request"),
    Flag("data-path", "string", "", "path to store messages"),
    Flag("mem-queue-size", "int", 10_000, "number of messages to keep in memory"),
    Flag("max-bytes-per-file", "int", 100 * limits.MIB, "number of bytes per file"),
    Flag("sync-every", "int", 2_500, "number of messages per fsync"),
    Flag("sync-timeout", "duration", 2 * _S, "duration of time per fsync"),
    Flag("queue-scan-worker-pool-max", "int", 4, "has no effect"),
    Flag("queue-scan-selection-count", "int", 20, "has no effect"),
    Flag("msg-timeout", "duration", 60 * _S, "time to wait before requeuing a message"),
    Flag("max-msg-timeout", "duration", 15 * _M, "maximum duration before a message times out"),
    Flag("max-msg-size", "int", limits.MIB, "maximum size of a single message in bytes"),
    Flag("max-req-timeout", "duration", 60 * _M, "maximum requeuing timeout for a message"),
    Flag("max-body-size", "int", 5 * limits.MIB, "maximum size of a single command body"),
    Flag("max-heartbeat-interval", "duration", 60 * _S, "maximum time between heartbeats"),
    Flag("max-rdy-count", "int", 2_500, "maximum RDY count for a client"),
    Flag("max-output-buffer-size", "int", 64 * limits.KIB, "maximum size of an output buffer"),
    Flag("max-output-buffer-timeout", "duration", 30 * _S, "maximum time between flushes"),
    Flag("min-output-buffer-timeout", "duration", 25 * limits.MS, "minimum time between flushes"),
    Flag("output-buffer-timeout", "duration", 250 * limits.MS, "time between flushes"),
    Flag("max-channel-consumers", "int", 0, "maximum consumers of a channel (0: unlimited)"),
    Flag("statsd-address", "string", "", "UDP <addr>:<port> of a statsd daemon"),
    Flag("statsd-interval", "duration", 60 * _S, "duration between pushing to statsd"),
    Flag("statsd-mem-stats", "bool", True, "send memory and GC stats to statsd"),
    Flag("statsd-prefix", "string", "nsq.%s", "prefix of keys (%s for host replacement)"),
    Flag("statsd-udp-packet-size", "int", 508, "the size in bytes of statsd UDP packets"),
    Flag("statsd-exclude-ephemeral", "bool", False, "skip ephemeral topics and channels"),
    Flag(
        "e2e-processing-latency-percentile",
        "list",
        (),
        "message processing time percentiles (as float (0, 1.0]) to track",
        "e2e_processing_latency_percentiles",
    ),
    Flag(
        "e2e-processing-latency-window-time",
        "duration",
        10 * _M,
        "calculate latency quantiles for this duration of time",
    ),
    Flag("tls-cert", "string", "", "path to certificate file"),
    Flag("tls-key", "string", "", "path to key file"),
    Flag("tls-client-auth-policy", "string", "", "'require' or 'require-verify'"),
    Flag("tls-root-ca-file", "string", "", "path to certificate authority file"),
    Flag("tls-required", "required", "false", "require TLS (true, false, tcp-https)"),
    Flag("tls-min-version", "version", "tls1.0", "tls1.0, tls1.1, tls1.2 or tls1.3"),
    Flag(
        "auth-http-address",
        "list",
        (),
        "<addr>:<port> or a full url to query auth server",
        "auth_http_addresses",
    ),
    Flag("auth-http-request-method", "string", "get", "HTTP method for auth server requests"),
    Flag("deflate", "bool", True, "enable deflate feature negotiation"),
    Flag("max-deflate-level", "int", 6, "max deflate compression level a client can negotiate"),
    Flag("snappy", "bool", True, "enable snappy feature negotiation"),
    Flag("enable-experiment", "list", (), "enable experimental feature"),
    Flag("topology-region", "string", "", "a larger domain made up of one or more zones"),
    Flag("topology-zone", "string", "", "a logical failure domain"),
)

NSQLOOKUPD: Final = (
    Flag("version", "bool", False, "print version string"),
    Flag("config", "string", "", "path to config file"),
    Flag("log-level", "level", "info", "set log verbosity: debug, info, warn, error, or fatal"),
    Flag("log-prefix", "string", "[nsqlookupd] ", "log message prefix"),
    Flag("verbose", "bool", False, "[deprecated] has no effect, use --log-level"),
    Flag("tcp-address", "string", "0.0.0.0:4160", "<addr>:<port> for TCP clients"),
    Flag("http-address", "string", "0.0.0.0:4161", "<addr>:<port> for HTTP clients"),
    Flag("broadcast-address", "string", "", "address of this lookupd node"),
    Flag("inactive-producer-timeout", "duration", 300 * _S, "time since the last ping"),
    Flag("tombstone-lifetime", "duration", 45 * _S, "time a producer remains tombstoned"),
)

# Flags of nsqd that set a key of [nsq] under another name; the others have the same name.
RENAMED: Final = {
    "tcp-address": "listen",
    "http-address": "http",
    "https-address": "https",
    "lookupd-tcp-address": "nsqlookupd_tcp_addresses",
    "auth-http-address": "auth_http_addresses",
    "e2e-processing-latency-percentile": "e2e_processing_latency_percentiles",
}
# Those that set no key of [nsq].
ELSEWHERE: Final = frozenset(
    {
        *("version", "config", "log-level", "log-prefix", "data-path"),
        *("sync-timeout", "max-bytes-per-file"),
    }
)
# Those that have no effect; it is said once in the log when one of them is given.
WITHOUT_EFFECT: Final = frozenset(
    {
        *("verbose", "worker-id", "mem-queue-size", "sync-every"),
        *("queue-scan-worker-pool-max", "queue-scan-selection-count"),
    }
)


def _text(flag: Flag, value: Any) -> object:
    """A flag's value as the configuration takes it."""
    return f"{value // limits.US}us" if flag.kind == "duration" else value


def nsq_settings(values: dict[str, Any]) -> dict[tuple[str, str], tuple[str, object]]:
    """Keys of the configuration, each with the flag that it comes from."""
    found: dict[tuple[str, str], tuple[str, object]] = {}
    for flag in NSQD:
        if flag.name in ELSEWHERE or flag.name in WITHOUT_EFFECT:
            continue
        key = RENAMED.get(flag.name, flag.name.replace("-", "_"))
        value = values[flag.name]
        found["nsq", key] = (
            f"-{flag.name}",
            list(value) if flag.kind == "list" else _text(flag, value),
        )
    if not values["tls-cert"]:
        found["nsq", "https"] = "-https-address", ""  # nsqd opens it with a certificate only
    period = max(values["sync-timeout"], limits.STORAGE_SYNC_PERIOD_MIN)
    segment = min(
        max(values["max-bytes-per-file"], limits.STORAGE_SEGMENT_SIZE_MIN),
        limits.STORAGE_SEGMENT_SIZE_MAX,
    )
    buffer = max(limits.STORAGE_APPEND_BUFFER_MAX, values["max-body-size"])
    memory = max(limits.STORAGE_MEMORY_TOPIC_MAX, values["max-msg-size"])
    return {
        **found,
        ("server", "data"): ("-data-path", values["data-path"] or "."),
        ("nats", "listen"): ("nsqd", ""),
        ("monitor", "listen"): ("nsqd", ""),
        ("storage", "sync"): ("-sync-timeout", f"{period // limits.US}us"),
        ("storage", "segment_size"): ("-max-bytes-per-file", segment),
        ("storage", "append_buffer_max"): ("-max-body-size", buffer),
        ("storage", "memory_topic_max"): ("-max-msg-size", memory),
        ("nats", "max_payload"): ("nsqd", min(limits.NATS_MAX_PAYLOAD, buffer)),
    }


def lookup_settings(values: dict[str, Any]) -> dict[tuple[str, str], tuple[str, object]]:
    """The same for nsqlookupd."""
    durations = ("inactive-producer-timeout", "tombstone-lifetime")
    return {
        ("nsqlookupd", "listen"): ("-tcp-address", values["tcp-address"]),
        ("nsqlookupd", "http"): ("-http-address", values["http-address"]),
        ("nsqlookupd", "broadcast_address"): ("-broadcast-address", values["broadcast-address"]),
        **{
            ("nsqlookupd", name.replace("-", "_")): (f"-{name}", f"{values[name] // limits.US}us")
            for name in durations
        },
    }
