"""The listeners of a NATS server: plain connections, WebSocket connections, monitoring pages.

A WebSocket connection begins with an HTTP request. If that is valid, the connection is handed over
to a session with a WebSocket filter below it; then it is a client or a leaf node like any other.
Source: nats-server websocket.go wsUpgrade.
"""

from __future__ import annotations

import base64
import ipaddress
import logging
from dataclasses import field
from typing import TYPE_CHECKING, Any, Final, Protocol
from urllib.parse import urlsplit

from broker.base.service import ListenerStats
from broker.base.values import dataclass
from broker.net import errors as net_errors
from broker.net import limits as net_limits
from broker.net.conn import Conn
from broker.net.handover import HandoverSession
from broker.net.http.pages import Pages
from broker.net.listener import Listener
from broker.net.proxy_header import ProxyHeader
from broker.net.sockets import join
from broker.net.upgrade import NotUpgraded, PendingUpgrades, Request
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
from broker.protocols.nats import errors, limits
from broker.protocols.nats.client.session import NatsSession
from broker.protocols.nats.tls import peer_of

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Collection, Iterator, Mapping

    from aiohttp import web

    from broker.base.service import Handler
    from broker.net.http.config import HttpConfig
    from broker.net.listener import Runtime
    from broker.protocols.nats import settings as conf
    from broker.protocols.nats.auth.authenticator import TlsPeer
    from broker.protocols.nats.client.frontend import NatsFrontend
    from broker.protocols.nats.leafnodes.session import LeafSession
    from broker.protocols.nats.monitoring.pages import MonitorPages
    from broker.protocols.nats.tls import TlsPolicy

ANY_HOST = "0.0.0.0"  # noqa: S104 - the value in INFO, as in the original
log = logging.getLogger("broker.nats")
CLIENT: Final = "WEBSOCKET"
LEAF: Final = "LEAFNODE_WS"
PMCE: Final = "permessage-deflate; server_no_context_takeover; client_no_context_takeover"
NO_MASKING: Final = "Nats-No-Masking"
LEAF_PATH: Final = "/leafnode"
# Modules of the monitoring pages, including the series of /metrics.
_PAGE_MODULES: Final = ("broker.protocols.nats.monitoring.http", "prometheus_client")
_MQTT_PATH: Final = "/mqtt"
_PORTS: Final = {"https": 443}
_KEY_BYTES: Final = 16  # of Sec-WebSocket-Key
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


class NatsListener(Listener):
    """Accepts NATS clients."""

    def __init__(
        self, frontend: NatsFrontend, runtime: Runtime, listen: tuple[str, int], out_limit: int
    ) -> None:
        super().__init__(runtime, listen, out_limit)
        self.frontend = frontend
        self.proxied = False  # connections may begin with a header of the PROXY protocol

    def new_session(self) -> NatsSession:
        return NatsSession(self.frontend)

    def _accept(self) -> Conn:
        if not self.proxied:
            return super()._accept()
        rt, session = self.runtime, self.new_session()
        session.await_proxy()
        conn = Conn(self, session, rt.shared, rt.turn, rt.pool, self.out_limit)
        ProxyHeader(conn, lambda reason: refuse_header(session, reason))
        return conn

    @property
    def sessions(self) -> Collection[NatsSession]:
        """The open sessions of all listeners with this frontend, in no particular order."""
        return self.frontend.sessions

    def stats(self, name: str) -> ListenerStats:
        """All counters, added up once for a scrape."""
        in_msgs, in_bytes, out_msgs, out_bytes = self.frontend.traffic()
        return ListenerStats(
            name,
            connections=self.connections,
            total_connections=self.total_connections,
            in_msgs=in_msgs,
            out_msgs=out_msgs,
            in_bytes=in_bytes,
            out_bytes=out_bytes,
            slow_consumers=self.slow_consumers,
        )

    @property
    def slow_consumers(self) -> int:
        return self.frontend.slow_consumers

    @property
    def stale(self) -> int:
        return self.frontend.stale


def refuse_header(session: NatsSession, reason: str) -> None:
    """Close a connection whose PROXY header is invalid."""
    peer = join(session.host, session.port)
    log.warning("Error reading PROXY protocol header from %s: %s", peer, reason)
    session.end(None, errors.NATS_CLOSED_PROTOCOL)


@dataclass(slots=True)
class WebSocketPeer:
    """The facts about a WebSocket connection: `session.websocket_peer`."""

    info: dict[str, Any]
    cookie_jwt: str = field(default="", repr=False)
    login_timeout_ns: int = 0  # 0: the timeout of other clients
    forwarded: str = ""  # client address reported by a proxy: only for logs
    tls_peer: TlsPeer | None = None
    cookies: tuple[tuple[str, str], ...] = field(default=(), repr=False)  # ClientOptions' fields
    ping_interval_ns: int = 0  # 0: that of other clients


class WebsocketListener(Listener):
    """Accepts WebSocket clients for the sessions of one frontend."""

    def __init__(
        self,
        frontend: NatsFrontend,
        runtime: Runtime,
        settings: conf.Websocket,
        out_limit: int,
        tls: TlsPolicy | None,
    ) -> None:
        """`tls`: None for plain connections, which `no_tls` must request."""
        super().__init__(runtime, settings.listen, out_limit)
        self.frontend = frontend
        self.settings = settings
        self.info: dict[str, Any] = {}
        # Creates sessions for leaf nodes over WebSocket; None: they are refused.
        self.new_leaf: Callable[[TlsPeer | None], LeafSession] | None = None
        self.tls = tls  # for new connections
        self._timeout_ns = settings.handshake_timeout_ns or net_limits.WEBSOCKET_HANDSHAKE
        secure = None if tls is None else self._secure
        self._upgrades = PendingUpgrades(self._upgrade, self._timeout_ns, secure)
        self._upgrades.refused = log_refusal
        self._upgrades.insecure = log_insecure
        self._allowed = {parse_origin(one) for one in settings.allowed_origins}

    def new_session(self) -> HandoverSession:
        return HandoverSession(self._upgrades)

    @property
    def decides(self) -> bool:
        """Whether the listener has its own logins."""
        own = self.settings.authorization
        return bool(self.settings.no_auth_user or (own is not None and (own.user or own.token)))

    async def close(self) -> None:
        await super().close()
        self._upgrades.end()

    # --- one request

    def _secure(self, handover: HandoverSession) -> None:
        """Begin TLS, unless the rate limit is reached."""
        assert self.tls is not None
        rate = self.tls.rate
        if rate is not None and not rate.allow():
            handover.link.abort()
            return
        handover.link.secure(self.tls.context, self._timeout_ns)

    def _upgrade(self, request: Request, handover: HandoverSession) -> None:
        key = self._check(request)
        session = self._session(request, handover)
        compress = self.settings.compression and offers_compression(request)
        unmasked = request.first(NO_MASKING.lower()).lower() == "true"
        frames = WebSocket(
            compression=compress, masked=not unmasked, frame_max=frame_max(request, compress)
        )
        frames.status = lambda: close_status(session)
        self._upgrades.done(handover)
        more = self.settings.headers
        handover.send(answer(key, compress=compress, unmasked=unmasked, more=more))
        handover.link.hand_over(session, frames)

    def _check(self, request: Request) -> str:
        """The key of a valid request; NotUpgraded."""
        if request.method != "GET":
            raise NotUpgraded(405, net_errors.WEBSOCKET_METHOD)
        if not request.first("host"):
            raise NotUpgraded(400, net_errors.WEBSOCKET_HOST)
        if not request.has_word("upgrade", "websocket"):
            raise NotUpgraded(400, net_errors.WEBSOCKET_UPGRADE)
        if not request.has_word("connection", "upgrade"):
            raise NotUpgraded(400, net_errors.WEBSOCKET_CONNECTION)
        key = request.first("sec-websocket-key")
        if not key:
            raise NotUpgraded(400, net_errors.WEBSOCKET_KEY)
        if not _is_key(key):
            raise NotUpgraded(400, net_errors.WEBSOCKET_KEY_BAD)
        if not request.has_word("sec-websocket-version", "13"):
            raise NotUpgraded(400, net_errors.WEBSOCKET_VERSION)
        self._check_origin(request)
        return key

    def _check_origin(self, request: Request) -> None:
        settings = self.settings
        origin = request.first("origin") or request.first("sec-websocket-origin")
        if not origin or not (settings.same_origin or self._allowed):
            return
        came_from = parse_origin(origin)
        scheme = "http" if self.tls is None else "https"
        here = parse_origin(f"{scheme}://{request.first('host')}")
        if settings.same_origin and (not came_from[1] or came_from != here):
            raise NotUpgraded(403, net_errors.WEBSOCKET_ORIGIN.format("not same origin"))
        if self._allowed and came_from not in self._allowed:
            raise NotUpgraded(403, net_errors.WEBSOCKET_ORIGIN.format("not in the allowed list"))

    def _session(self, request: Request, handover: HandoverSession) -> NatsSession | LeafSession:
        settings = self.settings
        if request.path.endswith(_MQTT_PATH):
            raise NotUpgraded(404, net_errors.WEBSOCKET_MQTT)
        peer = tls_peer(handover)
        if self.tls is not None and not self.tls.admits(peer.der if peer is not None else None):
            raise NotUpgraded(403, net_errors.WEBSOCKET_PINNED)
        if request.path.endswith(LEAF_PATH):
            if self.new_leaf is None:
                raise NotUpgraded(404, net_errors.WEBSOCKET_LEAF)
            return self.new_leaf(peer)
        own = settings.authorization
        forwarded = request.first("x-forwarded-for").partition(",")[0].strip()
        extra = WebSocketPeer(
            self.info,
            request.cookie(settings.jwt_cookie) if settings.jwt_cookie else "",
            own.timeout_ns if own is not None else 0,
            forwarded if is_address(forwarded) else "",
            peer,
            tuple(self._cookies(request)),
            settings.ping_interval_ns,
        )
        return NatsSession(self.frontend, CLIENT, extra)

    def _cookies(self, request: Request) -> Iterator[tuple[str, str]]:
        """What the configured cookies say of the login."""
        settings = self.settings
        for name, cookie in (
            ("user", settings.user_cookie),
            ("password", settings.pass_cookie),
            ("token", settings.token_cookie),
        ):
            if cookie and (found := request.cookie(cookie)):
                yield name, found


def _is_key(text: str) -> bool:
    """Whether this is base64 of 16 bytes."""
    try:
        return len(base64.b64decode(text, validate=True)) == _KEY_BYTES
    except ValueError:
        return False


def log_refusal(peer: Any, reason: str) -> None:
    """Log why a request was refused."""
    who = f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else "-"
    log.error(net_errors.WEBSOCKET_REFUSED, who, reason)


def log_insecure(peer: Any, cause: str) -> None:
    """Log that TLS with a peer failed."""
    who = f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else "-"
    log.error("%s - websocket: TLS handshake error: %s", who, cause)


def tls_peer(handover: HandoverSession) -> TlsPeer | None:
    """The facts from TLS about the peer; None without TLS."""
    link = handover.link
    if link.security is None:
        return None
    peer = peer_of(link.security, link.certificate)
    peer.chain = link.chain
    return peer


def offers_compression(request: Request) -> bool:
    """Whether the peer offers permessage-deflate."""
    return any(
        part.partition(";")[0].strip(" \t").lower() == PMCE.partition(";")[0]
        for value in request.headers.get("sec-websocket-extensions", [])
        for part in value.split(",")
    )


def frame_max(request: Request, compress: bool) -> int:
    """The largest frame for this peer, in bytes; 0: any."""
    agent = request.first("user-agent")
    if not agent.startswith("Mozilla/"):
        return 0
    if compress and "Version/" in agent and "Safari/" in agent:
        return 0  # Safari cannot join compressed frames
    return limits.WEBSOCKET_BROWSER_FRAME


def is_address(text: str) -> bool:
    """Whether the text is an IP address."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def parse_origin(origin: str) -> tuple[str, str, int]:
    """Scheme, host and port of an origin; the port may be left out."""
    try:
        parts = urlsplit(origin)
        port = _PORTS.get(parts.scheme, 80) if parts.port is None else parts.port
    except ValueError:
        return "", "", 0
    return parts.scheme, (parts.hostname or "").lower(), port


def answer(
    key: str, *, compress: bool, unmasked: bool, more: tuple[tuple[str, str], ...] = ()
) -> bytes:
    """The server's half of the handshake; `more`: configured headers."""
    lines = [
        "HTTP/1.1 101 Switching Protocols",
        "Upgrade: websocket",
        "Connection: Upgrade",
        f"Sec-WebSocket-Accept: {accept_key(key)}",
    ]
    if compress:
        lines.append(f"Sec-WebSocket-Extensions: {PMCE}")
    if unmasked:
        lines.append(f"{NO_MASKING}: true")
    lines += [f"{name}: {text}" for name, text in more]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def close_status(session: Any) -> tuple[int, str]:
    """The code and reason in the CLOSE frame of an ended session."""
    why = session.closed_because or errors.NATS_CLOSED_CLIENT
    return _CODES.get(why, CLOSE_INTERNAL), why


class HasPages(Protocol):
    """The server of the pages."""

    @property
    def pages(self) -> MonitorPages: ...


class MonitorListener:
    """The listener for the pages of one server."""

    def __init__(self, server: HasPages) -> None:
        self.server = server
        # Further paths with their handlers, requested at the first connection.
        self.more: Callable[[], Mapping[str, Handler]] = dict
        self.http: HttpConfig | None = None  # set before `open`; None: the defaults
        self.ports: dict[str, tuple[str, int]] = {}  # monitor; monitor_https if both are open
        self._plain: Pages | None = None
        self._secure: Pages | None = None

    async def open(self, settings: conf.Settings, context: ssl.SSLContext | None = None) -> None:
        """Listen as configured; OSError if an address is in use or not local.

        `context`: TLS for HTTPS, without client certificates.
        """
        login = None
        if settings.monitor_user or settings.monitor_password:
            login = (settings.monitor_user, settings.monitor_password)
        # Without a login pages are public, for scripts of other sites too, as in nats-server.
        public = login is None

        def make() -> web.Application:
            from broker.protocols.nats.monitoring.http import MonitorHttp

            base = settings.http_base_path
            return MonitorHttp(self.server.pages, self.more(), base=base, login=login).app()

        def pages(context: ssl.SSLContext | None) -> Pages:
            found = Pages(make, context, self.http, public=public)
            found.modules += _PAGE_MODULES
            return found

        try:
            if settings.http is not None:
                self._plain = pages(None)
                await self._plain.open(settings.http)
                self.ports["monitor"] = self._plain.address
            if settings.https is not None:
                assert context is not None
                self._secure = pages(context)
                await self._secure.open(settings.https)
                name = "monitor" if settings.http is None else "monitor_https"
                self.ports[name] = self._secure.address
        except OSError:
            await self.close()
            raise

    async def use(self, context: ssl.SSLContext) -> None:
        """Use reloaded certificates."""
        if self._secure is not None:
            await self._secure.use(context)

    async def close(self) -> None:
        """Stop listening, and end all connections."""
        for listener in (self._plain, self._secure):
            if listener is not None:
                await listener.close()
        self._plain = self._secure = None
        self.ports.clear()
