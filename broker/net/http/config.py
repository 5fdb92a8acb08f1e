"""The section of all HTTP listeners."""

from __future__ import annotations

import re
from typing import TypeVar

from broker.base import settings as kinds
from broker.base.units import DURATION_MAX, MS
from broker.base.values import dataclass
from broker.net import limits

T = TypeVar("T")


def check_host(name: str) -> None:
    """Check that a text is a host name, *.DOMAIN, or *. ValueError."""
    if name != "*" and not re.fullmatch(r"(\*\.)?[\w-]+(\.[\w-]+)*\.?", name):
        raise ValueError(
            f'invalid host {name!r}: expected "broker.example", without a port, or "*"'
        )


def check_origin(origin: str) -> None:
    """Check that a text is an origin as browsers send it. ValueError."""
    if not re.fullmatch(r"https?://[^/\s?#@]+", origin):
        raise ValueError(f'invalid origin {origin!r}: expected "https://dash.example"')


@dataclass(frozen=True)
class HttpConfig:
    """[http]: settings of every HTTP listener."""

    # names, *.DOMAIN for all names below it, or * for any
    allowed_hosts: tuple[str, ...] = kinds.setting(kinds.texts(check_host), ())
    # of pages on other sites that may send requests
    allowed_origins: tuple[str, ...] = kinds.setting(kinds.texts(check_origin), ())
    header_timeout_ns: int = kinds.setting(
        kinds.duration(MS, DURATION_MAX), limits.HTTP_HEADER_TIMEOUT
    )
    idle_timeout_ns: int = kinds.setting(kinds.duration(MS, DURATION_MAX), limits.HTTP_IDLE_TIMEOUT)
    # of each listener; 0: a share of the files that may be open
    max_connections: int = kinds.setting(kinds.number(0, limits.HTTP_CONNECTIONS_MAX), 0)
