"""The flags of nats-streaming-server: its own, and those of the embedded NATS server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from broker.cli.dropin import errors
from broker.cli.dropin.goflags import DURATION, INT, FlagError, parse
from broker.cli.dropin.nats_server import flags
from broker.cli.dropin.nats_server.flags import flags_of, row
from broker.protocols.nats.conf.parser import parse_text
from broker.protocols.nats.conf.text import ConfError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PROGRAM: Final = "nats-streaming-server"

_LIMITS: Final = (
    row("mc max_channels", "max_channels", "channels (default 100; 0: any number)", "N", INT),
    row("msu max_subs", "max_subs", "subscriptions of a channel (default 1000)", "N", INT),
    row("mm max_msgs", "max_msgs", "messages in a channel (default 1000000)", "N", INT),
    row(
        "mb max_bytes",
        "max_bytes",
        "bytes of messages in a channel, such as 10MB (default 1024000000)",
        "SIZE",
    ),
    row("ma max_age", "max_age", "maximum age of a message (0s: no limit)", "TIME", DURATION),
    row(
        "mi max_inactivity",
        "max_inactivity",
        "a channel that is unused for this long is deleted",
        "TIME",
        DURATION,
    ),
)
_TUNING: Final = (
    row("file_compact_enabled", "", "the next: no effect on the log of this broker"),
    row("file_compact_frag", "", "", "N", INT),
    row("file_compact_interval", "", "", "N", INT),
    row("file_compact_min_size", "", "", "SIZE"),
    row("file_buffer_size", "", "", "SIZE"),
    row("file_read_buffer_size", "", "", "SIZE"),
    row("file_crc", "", ""),
    row("file_crc_poly", "", "", "N", INT),
    row("file_slice_max_msgs", "", "", "N", INT),
    row("file_slice_max_bytes", "", "", "SIZE"),
    row("file_slice_max_age", "", "", "TIME", DURATION),
    row("file_fds_limit", "", "", "N", INT),
    row("file_parallel_recovery", "", "", "N", INT),
    row("file_truncate_bad_eof", "", ""),
    row("io_batch_size", "", "", "N", INT),
    row("io_sleep_time", "", "", "N", INT),
    row("secure", "", "the next: no effect, nothing is connected to"),
    row("tls_client_cert", "", "", "FILE"),
    row("tls_client_key", "", "", "FILE"),
    row("tls_client_cacert", "", "", "FILE"),
    row("syslog_name", "", "no effect: of Windows", "NAME"),
    row("encryption_cipher", "", "the next: no effect without what is refused", "NAME"),
    row("cluster_node_id", "", "", "ID"),
    row("cluster_bootstrap", "", ""),
    row("cluster_peers", "", "", "IDS"),
    row("cluster_log_path", "", "", "DIR"),
    row("cluster_log_cache_size", "", "", "N", INT),
    row("cluster_log_snapshots", "", "", "N", INT),
    row("cluster_trailing_logs", "", "", "N", INT),
    row("cluster_sync", "", ""),
    row("cluster_raft_logging", "", ""),
    row("cluster_proceed_on_restore_failure", "", ""),
    row("cluster_allow_add_remove_node", "", ""),
    row("sql_driver", "", "", "NAME"),
    row("sql_source", "", "", "URL"),
    row("sql_no_caching", "", ""),
    row("sql_max_open_conns", "", "", "N", INT),
    row("sql_bulk_insert_limit", "", "", "N", INT),
)
GROUPS: Final = (
    (
        "Streaming",
        (
            row("cid cluster_id", "cluster_id", "name of the service (test-cluster)", "NAME"),
            row("st store", "store", "store of messages: MEMORY (default) or FILE", "KIND"),
            row("dir", "dir", "folder of the messages, for FILE", "DIR"),
            row(
                "sc stan_config",
                "stan_config",
                "configuration file of the service, if not in that of -c",
                "FILE",
            ),
            row("replace_durable", "replace_durable", "a subscription replaces a durable in use"),
            row(
                "file_sync",
                "file_sync",
                "acknowledge only messages that are on the disk (default true)",
            ),
            row(
                "file_auto_sync",
                "file_auto_sync",
                "without -file_sync: interval of syncs (default 60s; 0: never)",
                "TIME",
                DURATION,
            ),
        ),
    ),
    ("Limits", _LIMITS),
    (
        "Heartbeats",
        (
            row(
                "hbi hb_interval",
                "hb_interval",
                "interval of heartbeats (default 30s)",
                "TIME",
                DURATION,
            ),
            row(
                "hbt hb_timeout",
                "hb_timeout",
                "time for the answer (default 10s)",
                "TIME",
                DURATION,
            ),
            row(
                "hbf hb_fail_count",
                "hb_fail_count",
                "failures before a client is closed (default 10)",
                "N",
                INT,
            ),
        ),
    ),
    (
        "Log of the service",
        (
            row("SD stan_debug", "stan_debug", "log more"),
            row("SV stan_trace", "stan_trace", "log requests and messages"),
            row("SDV", "SDV", "both"),
        ),
    ),
    (
        "Refused",
        (
            row("ns nats_server", "nats_server", "another NATS server", "URL"),
            row("clustered", "clustered", "a cluster of servers"),
            row("ft_group", "ft_group", "a group of servers with one store", "NAME"),
            row("encrypt", "encrypt", "encryption of what is stored"),
            row("encryption_key", "encryption_key", "its key", "KEY"),
            row("file_slice_archive_script", "archive_script", "a script for old files", "FILE"),
        ),
    ),
    ("Accepted without effect", _TUNING),
)
FLAGS: Final = flags_of(GROUPS)
_ALL: Final = flags.FLAGS | FLAGS
_SIZES: Final = ("max_bytes",)


def read(args: Sequence[str]) -> tuple[dict[str, Any], dict[str, Any], list[str]]:
    """The values for the service, those for the NATS server, and the words after the flags.
    FlagError.

    The names of flags without effect are under "".
    """
    found = parse(_ALL, args)
    own: dict[str, Any] = {}
    nats: dict[str, Any] = {}
    idle: list[str] = []
    for name, value in found.given.items():
        if name not in FLAGS:
            nats[flags.FLAGS[name].target] = value
        elif FLAGS[name].target:
            own[FLAGS[name].target] = value
        else:
            idle.append(f"--{name}")
    if idle:
        own[""] = idle
    return own, nats, found.rest


def sizes(own: Mapping[str, Any]) -> dict[str, Any]:
    """The values with sizes as numbers. FlagError."""
    return {name: _size(name, it) if name in _SIZES else it for name, it in own.items()}


def _size(name: str, text: str) -> int:
    try:
        size = parse_text(f"bytes: {text}", {})["bytes"].it
    except ConfError:
        size = text
    if type(size) is not int:
        raise FlagError(errors.STAN_SIZE.format(name, text))
    return size


def usage() -> str:
    """The usage text of -h."""
    return flags.usage(PROGRAM, (*GROUPS, *flags.GROUPS))
