"""/config: the settings under nsqd's names, and the two that can be changed while it runs."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

import orjson

from broker.base.redact import redacted
from broker.protocols.nsq.http import errors
from broker.protocols.nsq.http.app import ApiError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from broker.protocols.nsq.http.app import Answer
    from broker.protocols.nsq.listener import NsqSettings

LOOKUPD_ADDRESSES: Final = "nsqlookupd_tcp_addresses"
LOG_LEVEL: Final = "log_level"
AUTH: Final = "auth_http_addresses"

# Every key nsqd shows, with what is said of it when nothing here has that name.
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
    "mem_queue_size": 0,  # nothing waits in memory alone
    "max_bytes_per_file": 0,
    "sync_every": 0,  # by time, not by number
    "sync_timeout": 0,
    "queue_scan_selection_count": 0,  # timers, no scanning
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
# nsqd's numbers for words of ours.
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


class Options:
    """What /config reads and writes.

    `lookupd_addresses` is the one list of nsqlookupds to follow; whoever follows them sets
    `on_lookupd_addresses`, which is called with each new list.
    """

    def __init__(self, config: NsqSettings, facts: Mapping[str, Answer]) -> None:
        """`facts`: what only others know, under nsqd's keys; they win over `config`."""
        self._config = config
        self.facts = dict(facts)
        self.lookupd_addresses = [str(a) for a in getattr(config, LOOKUPD_ADDRESSES, ())]
        self.on_lookupd_addresses: Callable[[list[str]], object] = lambda _addresses: None

    def get(self, key: str) -> Answer:
        """The value in force; INVALID_OPTION when nsqd has no such key."""
        if key not in _KEYS:
            raise ApiError(errors.NSQ_HTTP_OPTION)
        if key == LOOKUPD_ADDRESSES:
            return list(self.lookupd_addresses)
        if key == LOG_LEVEL:
            return logging.getLogger().getEffectiveLevel() // logging.DEBUG
        if key in self.facts:
            return self.facts[key]
        value = getattr(self._config, key, None)
        if value is None:
            value = getattr(self._config, f"{key}_ns", None)
        if isinstance(value, str) and key in _WORDS:
            return _WORDS[key].get(value, 0)
        plain = _plain(value, _KEYS[key])
        # URLs of auth servers may have a password or token of ours in them.
        if key == AUTH and isinstance(plain, list):
            return [redacted(str(url)) for url in plain]
        return plain

    def put(self, key: str, body: bytes) -> None:
        """Change one; INVALID_OPTION, INVALID_VALUE."""
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
        return [item if isinstance(item, int | float) else str(item) for item in value]
    return str(value)


def _addresses(body: bytes) -> list[str]:
    """A JSON list of strings; null is none."""
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
