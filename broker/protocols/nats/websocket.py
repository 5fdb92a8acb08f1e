"""The door for browsers: NATS inside of WebSocket frames.

aiohttp reads the request; once it is found to be a WebSocket's, the connection is handed to a Conn
with a WebSocket filter, and from there on it is a client like any other. Source: nats-server
websocket.go wsUpgrade.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from aiohttp import web

from broker import errors, limits
from broker.net.conn import Conn
from broker.net.listener import Door
from broker.net.pages import Pages
from broker.net.websocket import (
    CLOSE_GOING_AWAY,
    CLOSE_INTERNAL,
    CLOSE_NORMAL,
    CLOSE_POLICY,
    CLOSE_PROTOCOL,
    CLOSE_TOO_BIG,
    WebSocket,
    accept_key,
)
from broker.protocols.nats.session import NatsSession
from broker.protocols.nats.tls_policy import is_known, peer_behind

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

    from broker.core.seams import Session
    from broker.net.listener import Runtime
    from broker.protocols.nats import settings as conf
    from broker.protocols.nats.face import NatsFace

log = logging.getLogger("broker.nats")

CLIENT: Final = "WEBSOCKET"
_PMCE: Final = "permessage-deflate; server_no_context_takeover; client_no_context_takeover"
_NO_MASKING: Final = "Nats-No-Masking"
_LEAF_PATH: Final = "/leafnode"
_MQTT_PATH: Final = "/mqtt"
_PORTS: Final = {"http": 80, "https": 443}
_CODES: Final = {
    errors.NATS_CLOSED_CLIENT: CLOSE_NORMAL,
    errors.NATS_CLOSED_PARSE: CLOSE_PROTOCOL,
    errors.NATS_CLOSED_PROTOCOL: CLOSE_PROTOCOL,
    errors.NATS_CLOSED_PROTOCOL_LEVEL: CLOSE_PROTOCOL,
    errors.NATS_CLOSED_PAYLOAD: CLOSE_TOO_BIG,
    errors.NATS_CLOSED_SHUTDOWN: CLOSE_GOING_AWAY,
    errors.NATS_CLOSED_STALE: CLOSE_GOING_AWAY,
} | dict.fromkeys(
    (
        errors.NATS_CLOSED_AUTHENTICATION,
        errors.NATS_CLOSED_AUTH_TIMEOUT,
        errors.NATS_CLOSED_EXPIRED,
        errors.NATS_CLOSED_REVOKED,
        errors.NATS_CLOSED_PENDING,
        errors.NATS_CLOSED_DEADLINE,
        errors.NATS_CLOSED_CONNECTIONS,
        errors.NATS_CLOSED_ACCOUNT_CONNECTIONS,
        errors.NATS_CLOSED_CONTROL_LINE,
        errors.NATS_CLOSED_MISSING_ACCOUNT,
    ),
    CLOSE_POLICY,
)


class NotWebSocket(Exception):  # noqa: N818 - an answer, not a fault
    """A request that is none; the text goes to the peer."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


@dataclass(slots=True)
class Visitor:
    """What is known of one connection of this door: `session.extra`."""

    info: dict[str, Any]
    authorization: conf.Authorization | None = None
    no_auth_user: str = ""
    cookie_jwt: str = field(default="", repr=False)


class _Upgraded(web.StreamResponse):
    """Stands for an answer that was given already."""

    async def prepare(self, request: web.BaseRequest) -> None:
        """Nothing is left to be sent."""

    async def write_eof(self, data: bytes = b"") -> None:
        """Nor here."""


class WebsocketDoor(Door):
    """Accepts WebSocket clients for the sessions of one face."""

    def __init__(
        self,
        face: NatsFace,
        runtime: Runtime,
        settings: conf.Websocket,
        out_limit: int,
        context: ssl.SSLContext | None,
    ) -> None:
        """`context`: TLS; None: plain, which has to be asked for by `no_tls`."""
        super().__init__(runtime, settings.listen, out_limit)
        self.face = face
        self.settings = settings
        self.info: dict[str, Any] = {}
        # Makes the session of a server that comes by WebSocket; None: they are not served.
        self.new_leaf: Callable[[], Session] | None = None
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._come_in)
        self._pages = Pages(app, context)
        self._gone: dict[Conn, asyncio.Event] = {}

    def new_session(self) -> NatsSession:
        session = NatsSession(self.face)
        session.kind = CLIENT
        return session

    async def open(self) -> None:
        await self._pages.open(self.listen)
        self._address = (self.listen[0], self._pages.address[1])

    async def use(self, context: ssl.SSLContext) -> None:
        """Shake hands with this context from now on."""
        await self._pages.use(context)

    async def close(self) -> None:
        await self._pages.stop_listening()

    async def drain(self, grace_ns: int = limits.CLOSE_GRACE) -> None:
        await super().drain(grace_ns)
        await self._pages.close()

    def left(self, conn: Conn) -> None:
        super().left(conn)
        gone = self._gone.pop(conn, None)
        if gone is not None:
            gone.set()

    # --- one request

    async def _come_in(self, request: web.Request) -> web.StreamResponse:
        try:
            key = self._check(request)
            session = self._session(request)
        except NotWebSocket as no:
            return web.Response(status=no.status, text=f"{no}\n")
        transport = request.transport
        if transport is None:
            return _Upgraded()
        compress = self.settings.compression and "permessage-deflate" in ",".join(
            request.headers.getall("Sec-WebSocket-Extensions", [])
        )
        unmasked = request.headers.get(_NO_MASKING, "").lower() == "true"
        browser = request.headers.get("User-Agent", "").startswith("Mozilla/")
        runtime = self.runtime
        frames = WebSocket(
            compression=compress,
            masked=not unmasked,
            frame_max=limits.WEBSOCKET_BROWSER_FRAME if browser and not compress else 0,
        )
        frames.status = lambda: close_status(session)
        conn = Conn(self, session, runtime.shared, runtime.turn, runtime.pool, self.out_limit)
        conn.frame(frames)
        transport.write(answer(key, compress=compress, unmasked=unmasked))
        gone = self._gone[conn] = asyncio.Event()
        transport.set_protocol(conn)
        conn.connection_made(transport)
        forwarded = request.headers.get("X-Forwarded-For", "").split(",")[0].strip()
        if is_address(forwarded):
            session.host = forwarded
        await gone.wait()
        return _Upgraded()

    def _check(self, request: web.Request) -> str:
        """The key of a proper request; NotWebSocket."""
        headers = request.headers
        if request.method != "GET":
            raise NotWebSocket(405, errors.WEBSOCKET_METHOD)
        if not headers.get("Host"):
            raise NotWebSocket(400, errors.WEBSOCKET_HOST)
        if not says(headers.getall("Upgrade", []), "websocket"):
            raise NotWebSocket(400, errors.WEBSOCKET_UPGRADE)
        if not says(headers.getall("Connection", []), "upgrade"):
            raise NotWebSocket(400, errors.WEBSOCKET_CONNECTION)
        key = headers.get("Sec-WebSocket-Key", "")
        if not key:
            raise NotWebSocket(400, errors.WEBSOCKET_KEY)
        if not says(headers.getall("Sec-WebSocket-Version", []), "13"):
            raise NotWebSocket(400, errors.WEBSOCKET_VERSION)
        self._check_origin(request)
        return key

    def _check_origin(self, request: web.Request) -> None:
        settings = self.settings
        origin = request.headers.get("Origin", "")
        if not origin or not (settings.same_origin or settings.allowed_origins):
            return
        came_from = place(origin)
        scheme = "https" if settings.tls is not None else "http"
        here = place(f"{scheme}://{request.host}")
        if settings.same_origin and came_from[1:] != here[1:]:
            raise NotWebSocket(403, errors.WEBSOCKET_ORIGIN.format("not same origin"))
        allowed = {place(one) for one in settings.allowed_origins}
        if allowed and came_from not in allowed:
            raise NotWebSocket(403, errors.WEBSOCKET_ORIGIN.format("not in the allowed list"))

    def _session(self, request: web.Request) -> Any:
        settings = self.settings
        if request.path.endswith(_MQTT_PATH):
            raise NotWebSocket(404, errors.WEBSOCKET_MQTT)
        if request.path.endswith(_LEAF_PATH):
            if self.new_leaf is None:
                raise NotWebSocket(404, errors.WEBSOCKET_LEAF)
            return self.new_leaf()
        session = self.new_session()
        if settings.tls is not None and request.transport is not None:
            session.tls_peer = peer_behind(request.transport.get_extra_info("ssl_object"))
            if not is_known(settings.tls.pinned_certs, session.tls_peer.der):
                raise NotWebSocket(403, errors.WEBSOCKET_PINNED)
        cookie = request.cookies.get(settings.jwt_cookie, "") if settings.jwt_cookie else ""
        session.extra = Visitor(self.info, settings.authorization, settings.no_auth_user, cookie)
        return session


def says(values: list[str], word: str) -> bool:
    """Whether one of a header's values has the word in it."""
    return any(part.strip().lower() == word for value in values for part in value.split(","))


def is_address(text: str) -> bool:
    """Whether it is an IP address."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def place(origin: str) -> tuple[str, str, int]:
    """Scheme, host and port of an origin; the port may go without saying."""
    parts = urlsplit(origin)
    try:
        port = parts.port or _PORTS.get(parts.scheme, 0)
    except ValueError:
        return parts.scheme, "", 0
    return parts.scheme, (parts.hostname or "").lower(), port


def answer(key: str, *, compress: bool, unmasked: bool) -> bytes:
    """The server's half of the handshake."""
    lines = [
        "HTTP/1.1 101 Switching Protocols",
        "Upgrade: websocket",
        "Connection: Upgrade",
        f"Sec-WebSocket-Accept: {accept_key(key)}",
    ]
    if compress:
        lines.append(f"Sec-WebSocket-Extensions: {_PMCE}")
    if unmasked:
        lines.append(f"{_NO_MASKING}: true")
    return "\r\n".join([*lines, "", ""]).encode()


def close_status(session: Any) -> tuple[int, str]:
    """Code and reason of the CLOSE frame for a session that has ended."""
    why = session.closed_because or errors.NATS_CLOSED_CLIENT
    return _CODES.get(why, CLOSE_INTERNAL), why
