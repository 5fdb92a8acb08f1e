"""The section of all HTTP listeners."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, TypeVar

from broker.base import settings as kinds
from broker import limits

T = TypeVar("T")


def _setting(kind: kinds.Kind[Any], default: T) -> T:
    return field(default=default, metadata={"kind": kind})


def check_host(name: str) -> None:
    """Refuse what is no name of a host, *.DOMAIN, or *."""
    if name != "*" and not re.fullmatch(r"(\*\.)?[\w-]+(\.[\w-]+)*\.?", name):
        raise ValueError(f'not a host: {name!r} (write "broker.example", without a port, or "*")')


def check_origin(origin: str) -> None:
    """Refuse what no browser sends as the origin of a page."""
    if not re.fullmatch(r"https?://[^/\s?#@]+", origin):
        raise ValueError(f'not an origin: {origin!r} (write "https://dash.example")')


@dataclass(frozen=True)
class HttpConfig:
    """[http]: what holds for every HTTP listener."""

    allowed_hosts: tuple[str, ...] = _setting(kinds.texts(check_host), ())
    allowed_origins: tuple[str, ...] = _setting(kinds.texts(check_origin), ())
    header_timeout_ns: int = _setting(
        kinds.duration(limits.MS, limits.DURATION_MAX), limits.HTTP_HEADER_TIMEOUT
    )
    idle_timeout_ns: int = _setting(
        kinds.duration(limits.MS, limits.DURATION_MAX), limits.HTTP_IDLE_TIMEOUT
    )
    # of each listener; 0: a share of the files that may be open
    max_connections: int = _setting(kinds.number(0, limits.HTTP_CONNECTIONS_MAX), 0)
