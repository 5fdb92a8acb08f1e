"""Checks of HTTP requests: those of web pages of other sites are refused.

A browser on the same machine or network can reach the listeners, and sends the requests of any open
page. Three headers that pages cannot set show where a request comes from:

    Host             the name in the requested address. If a page points its own name at this
                     address (DNS rebinding), it is that name: 421
    Origin           the site of the page, with each request that changes something: 403 unless it
                     is the requested site, or a configured one
    Sec-Fetch-Site   "cross-site": likewise, for requests without Origin, for example of images;
                     but a link may be followed, because the linking page cannot read the result

Programs send neither Origin nor Sec-Fetch-Site, and a request without them is answered. The names
of a listener that other machines reach are unknown, so Host is checked on loopback addresses, and
everywhere once names are configured.
"""

from __future__ import annotations

import re
import socket
from typing import TYPE_CHECKING, Final

import orjson
from aiohttp import web

from broker.net.http import errors

if TYPE_CHECKING:
    from collections.abc import Iterable

    from multidict import CIMultiDictProxy

    from broker.net.http.config import HttpConfig

_PORT: Final = re.compile(r":[0-9]*\Z")
_DEFAULT_PORTS: Final = {"http": ":80", "https": ":443"}
ANY_HOST: Final = "*"


def _is_address(name: str) -> bool:
    if name.startswith("["):
        return name.endswith("]")
    return re.fullmatch(r"[0-9.]+", name) is not None


class HttpGuard:
    """The checks of one listener."""

    def __init__(
        self,
        settings: HttpConfig,
        names: Iterable[str] = (),
        *,
        loopback: bool = False,
        public: bool = False,
    ) -> None:
        """`names`: of this machine and listener, accepted in addition to those of the settings.
        `public`: pages of other sites may read the content (nats-server's pages)."""
        known = {"localhost", socket.gethostname(), *names, *settings.allowed_hosts}
        self._names = {name.lower().rstrip(".") for name in known if name}
        self._domains = tuple(name[1:] for name in self._names if name.startswith("*."))
        self._origins = frozenset(origin.lower() for origin in settings.allowed_origins)
        strict = loopback or bool(settings.allowed_hosts)
        self.any_host = not strict or ANY_HOST in self._names
        self.public = public and not strict

    def is_host(self, host: str) -> bool:
        """Whether requests for this Host are accepted; browsers always send one."""
        if self.any_host or not host:
            return True
        name = _PORT.sub("", host.strip()).lower().rstrip(".")
        return name in self._names or name.endswith(self._domains) or _is_address(name)

    def refusal(self, method: str, headers: CIMultiDictProxy[str]) -> web.Response | None:
        """The error answer of a refused request; None: it is accepted."""
        hosts = headers.getall("Host", ())
        if not all(self.is_host(host) for host in hosts):
            return _refuse(errors.HTTP_HOST)
        origin = headers.get("Origin")
        reads = method in ("GET", "HEAD")
        if origin is None and (
            headers.get("Sec-Fetch-Site") != "cross-site" or (reads and _is_link(headers))
        ):
            return None
        if self.public and reads:
            return None
        if origin is None or not self._is_own(origin.lower(), hosts[0] if hosts else ""):
            return _refuse(errors.HTTP_ORIGIN)
        return None

    def _is_own(self, origin: str, host: str) -> bool:
        if origin in self._origins:
            return True
        # A proxy may terminate TLS, so the scheme is not compared.
        scheme, _, site = origin.partition("://")
        return site != "" and site == host.lower().removesuffix(_DEFAULT_PORTS.get(scheme, "\n"))


def _is_link(headers: CIMultiDictProxy[str]) -> bool:
    """Whether a browser follows a link: the linking page cannot read the result."""
    return (
        headers.get("Sec-Fetch-Mode") == "navigate" and headers.get("Sec-Fetch-Dest") == "document"
    )


def _refuse(error: errors.HttpError) -> web.Response:
    body = orjson.dumps({"message": error.code, "error": error.code})  # keys of NSQ, of bulk
    return web.Response(status=error.status, body=body, content_type="application/json")
