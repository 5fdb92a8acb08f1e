"""/config of nsqd: settings under the names that its file has for them.

Source: nsqd/http.go doConfig; nsqd/options.go.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

import msgspec

from broker import errors
from broker.protocols.nsq.http import ApiError

if TYPE_CHECKING:
    from broker.protocols.nsq.door import NsqDoor

_RENAMED: Final = {
    "tcp_address": "listen",
    "http_address": "http",
    "https_address": "https",
    "id": "node_id",
}
# Our own, which nsqd has no name for.
_UNKNOWN: Final = frozenset({"listen", "http", "https", "node_id", "requeue_on_close"})
_LEVELS: Final = {"debug": 1, "info": 2, "warn": 3, "error": 4, "fatal": 5}
_LOGGING: Final = {
    1: logging.DEBUG,
    2: logging.INFO,
    3: logging.WARNING,
    4: logging.ERROR,
    5: logging.CRITICAL,
}
_TLS_VERSIONS: Final = {"tls1.0": 769, "tls1.1": 770, "tls1.2": 771, "tls1.3": 772}
_TLS_REQUIRED: Final = {"false": 0, "tcp-https": 1, "true": 2}


def read_option(door: NsqDoor, name: str) -> object:
    """The value in force; ApiError when nsqd has no such option."""
    if name == "log_level":
        level = logging.getLogger().level
        return max((n for n, known in _LOGGING.items() if known <= level), default=1)
    if name == "nsqlookupd_tcp_addresses" and door.peers is not None:
        return door.peers.addresses
    attribute = _RENAMED.get(name, name)
    if name in _UNKNOWN:
        raise ApiError(errors.NSQ_HTTP_OPTION)
    config: Any = door.config
    for candidate in (attribute, f"{attribute}_ns"):
        if hasattr(config, candidate):
            return _as_go(name, getattr(config, candidate))
    raise ApiError(errors.NSQ_HTTP_OPTION)


def _as_go(name: str, value: object) -> object:
    if name == "tls_min_version":
        return _TLS_VERSIONS[str(value)]
    if name == "tls_required":
        return _TLS_REQUIRED[str(value)]
    if name.endswith("_address") and not isinstance(value, str):
        return "" if value is None else str(value)
    return list(value) if isinstance(value, tuple) else value


def write_option(door: NsqDoor, name: str, body: bytes) -> None:
    """Change one of the two that can be changed; ApiError."""
    if name == "log_level":
        level = _LEVELS.get(body.decode("utf-8", "replace").lower())
        if level is None:
            raise ApiError(errors.NSQ_HTTP_VALUE)
        logging.getLogger().setLevel(_LOGGING[level])
    elif name == "nsqlookupd_tcp_addresses":
        try:
            addresses = msgspec.json.decode(body, type=list[str] | None) or []
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise ApiError(errors.NSQ_HTTP_VALUE) from None
        if door.peers is not None:
            door.peers.set_addresses(addresses)
    else:
        raise ApiError(errors.NSQ_HTTP_OPTION)
