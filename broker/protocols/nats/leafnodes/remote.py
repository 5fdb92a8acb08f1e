"""A remote: a server that this one joins, dialled again after each disconnect until `stop`.

Attempts are spaced by the configured interval plus a random part of it, and by half a minute after
an error that would be repeated. A hub may be joined through its WebSocket listener:

    dialled -> (TLS) -> GET .../leafnode -> 101 -> LeafSession with a WebSocket filter below it

Source: nats-server leafnode.go, leafNodeSolicitWSConnection.
"""

from __future__ import annotations

import asyncio
import base64
import ipaddress
import logging
import os
import random
import socket
from typing import TYPE_CHECKING, Final
from urllib.parse import SplitResult, unquote, urlsplit

from broker.base.units import SECOND
from broker.net import errors
from broker.net import limits as net_limits
from broker.net.conn import Conn
from broker.net.handover import HandoverSession
from broker.net.openssl import TlsError
from broker.net.sockets import join
from broker.net.upgrade import HEAD_END, Answer, NotHttp, read_answer
from broker.net.websocket import WebSocket, accept_key
from broker.protocols.nats.leafnodes import limits
from broker.protocols.nats.leafnodes.session import LeafSession
from broker.protocols.nats.listener import LEAF, LEAF_PATH, NO_MASKING, PMCE, close_status
from broker.protocols.nats.settings import Tls
from broker.protocols.nats.tls import client_context, is_known, peer_of

if TYPE_CHECKING:
    from urllib.parse import SplitResult

    from broker.net.listener import Runtime
    from broker.protocols.nats.auth.authenticator import TlsPeer
    from broker.protocols.nats.leafnodes.handshake import LeafHandshake
    from broker.protocols.nats.leafnodes.tunnel import Proxy
    from broker.protocols.nats.settings import HttpProxy, Remote
    from broker.runtime.interfaces import Session

log = logging.getLogger("broker.nats")

_WEBSOCKET: Final = frozenset({"ws", "wss"})
_SECURE: Final = frozenset({"tls"})
_PROXY_PORTS: Final = {"http": 80, "https": 443}
_KEY_BYTES: Final = 16
_EXTENSION: Final = "permessage-deflate"
_NO_CONTEXT: Final = frozenset({"server_no_context_takeover", "client_no_context_takeover"})


def read_url(text: str) -> SplitResult:
    """Parse a URL or HOST:PORT; ValueError if it is neither."""
    url = urlsplit(text if "://" in text else f"nats-leaf://{text}")
    if not url.hostname or url.port == 0:
        raise ValueError("not a URL")
    return url


def address_of(url: SplitResult) -> tuple[str, int]:
    """The host and port of a URL."""
    assert url.hostname is not None
    return url.hostname, url.port or limits.NATS_LEAF_PORT


def proxy_of(config: HttpProxy, timeout_ns: int) -> Proxy:
    """The settings of a tunnel; TunnelError if certificates cannot be used."""
    from broker.protocols.nats.leafnodes.tunnel import Proxy, TunnelError

    url, context = urlsplit(config.url), None
    assert url.hostname is not None
    tls = config.tls or Tls("", "")
    if url.scheme == "https":
        try:
            context = client_context(tls)
        except TlsError as problem:
            raise TunnelError(str(problem)) from problem
    return Proxy(
        address=(url.hostname, url.port or _PROXY_PORTS[url.scheme]),
        login=(config.user, config.password) if config.user else None,
        context=context,
        timeout_ns=timeout_ns,
        tls_timeout_ns=tls.timeout_ns,
    )


def is_address(host: str) -> bool:
    """Whether the host is an IP address and not a name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


class RemoteLink:
    """One configured remote and its connection, if any."""

    def __init__(self, handshake: LeafHandshake, config: Remote) -> None:
        self.handshake = handshake
        self.config = config
        self.delay_ns = 0  # before the next attempt
        self.session: LeafSession | None = None
        self.answers_connect = True  # whether the hub answers CONNECT with an INFO
        self.conns: set[Conn] = set()
        self._configured = [read_url(text) for text in config.urls]
        self._urls = list(self._configured)
        if config.randomize:
            random.shuffle(self._urls)
        self._current: SplitResult | None = None
        self._disconnected = asyncio.Event()
        self._was_connected = False
        self._task: asyncio.Task[None] | None = None
        self._relays: set[asyncio.Task[None]] = set()  # with a proxy over TLS
        self._tls = config.tls is not None or any(url.scheme in _SECURE for url in self._configured)
        self._tls_name = ""
        for url in self._urls:
            self._keep_name(url)

    # --- life cycle

    def start(self) -> None:
        """Begin to dial, unless the remote is disabled."""
        if self.config.disabled:
            return
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Stop dialling; an open connection is kept."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    def reconfigure(self, config: Remote) -> None:
        """Use another configuration with the same URLs: it may disable the remote, or enable it."""
        self.config = config
        self._tls = self._tls or config.tls is not None
        if not config.disabled and self._task is None:
            self.start()
        elif config.disabled and self._task is not None:
            self.leave()

    def leave(self) -> None:
        """Stop dialling, and end the connection."""
        if self._task is not None:
            self._task.cancel()
            self._task = None
        for conn in list(self.conns):
            conn.close()

    async def drain(self) -> None:
        """End the connection after its pending output is written."""
        await self.stop()
        for conn in list(self.conns):
            conn.close()
        try:
            await asyncio.wait_for(self._wait_disconnected(), net_limits.CLOSE_GRACE / SECOND)
        except TimeoutError:
            for conn in list(self.conns):
                conn.abort()
            await self._wait_disconnected()

    async def _wait_disconnected(self) -> None:
        while self.conns:
            await self._disconnected.wait()

    @property
    def peer(self) -> str:
        """The HOST:PORT of the URL in use, or of the first one."""
        host, port = address_of(self._current or self._urls[0])
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    async def _run(self) -> None:
        attempts = 0
        while True:
            if self.delay_ns:
                delay_ns, self.delay_ns = self.delay_ns, 0
                await asyncio.sleep(delay_ns / SECOND)
            self._current = self._next_url()
            try:
                await self._dial(self._current)
            except OSError as problem:
                attempts += 1
                self._report(attempts, problem)
            else:
                attempts = 0
                await self._disconnected.wait()
            await asyncio.sleep(self._pause_ns() / SECOND)

    def _pause_ns(self) -> int:
        interval = self.handshake.config.reconnect_ns
        return interval + random.randrange(interval + 1)  # noqa: S311 - only spreads load

    def _report(self, attempts: int, problem: OSError) -> None:
        """Log the first failure, then every n-th one; after a successful connection, each."""
        settings = self.handshake.context.settings
        every = (
            settings.reconnect_error_reports
            if self._was_connected
            else settings.connect_error_reports
        )
        shown = attempts == 1 or attempts % max(1, every) == 0
        log.log(
            logging.ERROR if shown else logging.DEBUG,
            'Error trying to connect as leafnode to remote server "%s" (attempt %d): %s',
            self.peer,
            attempts,
            _reason(problem, self.peer),
        )

    async def _dial(self, url: SplitResult) -> None:
        loop = self.runtime.loop
        log.debug('Trying to connect as leafnode to remote server on "%s"', self.peer)
        host, port = address_of(url)
        dial_ns = self.config.dial_timeout_ns or self.handshake.config.dial_timeout_ns
        if self.config.proxy is not None:
            await self._dial_through(self.config.proxy, join(host, port), dial_ns)
            return
        async with asyncio.timeout(dial_ns / SECOND):
            found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            address = random.choice(found)[4]  # noqa: S311 - only spreads load
            self._disconnected.clear()
            await loop.create_connection(self._connected, str(address[0]), int(address[1]))

    async def _dial_through(self, config: HttpProxy, target: str, dial_ns: int) -> None:
        """Dial the HOST:PORT through an HTTP proxy."""
        from broker.protocols.nats.leafnodes.tunnel import open_tunnel

        tunnel = await open_tunnel(proxy_of(config, config.timeout_ns or dial_ns), target)
        if tunnel.relay is not None:
            self._relays.add(tunnel.relay)
            tunnel.relay.add_done_callback(self._relays.discard)
        self._disconnected.clear()
        try:
            await self.runtime.loop.create_connection(self._connected, sock=tunnel.sock)
        except BaseException:
            tunnel.sock.close()
            raise

    def _connected(self) -> Conn:
        rt, first = self.runtime, self._first_session()
        return Conn(self, first, rt.shared, rt.turn, rt.pool, limits.NATS_LEAF_PENDING)

    def _first_session(self) -> Session:
        if self._current is not None and self.by_websocket:
            return HandoverSession(WebSocketDial(self, self._current))
        self.session = LeafSession(self.handshake.context.frontend, self.handshake, self)
        return self.session

    # --- called by the connection, for which this is the listener

    @property
    def runtime(self) -> Runtime:
        return self.handshake.context.runtime

    def connection_opened(self, conn: Conn) -> None:
        self.conns.add(conn)

    def connection_closed(self, conn: Conn) -> None:
        self.conns.discard(conn)

    # --- called by the handshake

    def begun(self) -> None:
        """The handshake has succeeded."""
        self._was_connected = True

    def ended(self) -> None:
        """The connection has ended."""
        self.session = None
        self._disconnected.set()

    def credentials(self) -> tuple[str, str]:
        """The name and password in the URL in use, else in a configured one."""
        for url in (self._current, *self._configured):
            if url is not None and url.username:
                return unquote(url.username), unquote(url.password or "")
        return "", ""

    def add_urls(self, texts: tuple[str, ...]) -> None:
        """Add addresses that the hub announces; they are tried before the configured ones."""
        if self.by_websocket or self.config.ignores_discovered:
            return  # they are addresses of another listener, or ignored by the configuration
        known = {address_of(url) for url in self._configured}
        discovered = []
        for text in texts:
            try:
                url = read_url(text)
            except ValueError:
                log.error("Error parsing url %r", text)
                continue
            if address_of(url) not in known:
                discovered.append(url)
                self._keep_name(url)
        self._urls = [*discovered, *self._configured]

    # --- TLS

    @property
    def by_websocket(self) -> bool:
        """Whether the WebSocket listener is dialled."""
        return self._configured[0].scheme in _WEBSOCKET

    @property
    def tls_first(self) -> bool:
        """Whether the TLS handshake comes before INFO."""
        tls = self.config.tls
        return tls is not None and tls.handshake_first and not self.by_websocket

    def uses_tls(self, *, required: bool) -> bool:
        """Whether to use TLS. `required`: the hub requires it."""
        self._tls = self._tls or required
        return self._tls and not self.by_websocket

    def secure(self, session: LeafSession) -> None:
        """Begin TLS; LeafHandshake.secured is called at its end."""
        session.set_deadline(0)
        problem = self.begin_tls(session.link)
        if problem:
            self.handshake.secured(session, problem)

    def begin_tls(self, link: Conn) -> str:
        """Begin TLS; the session is notified of its end. Returns why it cannot begin, or ''."""
        tls = self.config.tls or Tls("", "")
        host = address_of(self._current)[0] if self._current is not None else ""
        name = host if not is_address(host) else self._tls_name or host
        try:
            context = client_context(tls)
        except TlsError as problem:
            return str(problem)
        link.secure(context, tls.timeout_ns, name)
        return ""

    def accepts_certificate(self, certificate: bytes | None) -> bool:
        """Whether the certificate is pinned, or none is."""
        tls = self.config.tls
        return is_known(tls.pinned_certs if tls is not None else frozenset(), certificate)

    # --- addresses

    def _next_url(self) -> SplitResult:
        """The first URL, unless it was the last one tried."""
        last, first = self._current, self._urls[0]
        if last is not None and address_of(last) == address_of(first):
            self._urls.append(self._urls.pop(0))
        return self._urls[0]

    def _keep_name(self, url: SplitResult) -> None:
        """Store the first host that is a name: it is used for certificates if an address is
        dialled."""
        host = address_of(url)[0]
        if not is_address(host):
            self._tls_name = self._tls_name or host


def _reason(problem: OSError, peer: str) -> str:
    """Why the dial failed, in nats-server's words."""
    if isinstance(problem, socket.gaierror):
        return f"lookup {peer.rpartition(':')[0]}: no such host"
    if problem.errno:
        return f"dial tcp {peer}: connect: {os.strerror(problem.errno).lower()}"
    return f"dial tcp {peer}: i/o timeout" if isinstance(problem, TimeoutError) else str(problem)


class WebSocketDial:
    """One dialled connection: receives the events of its HandoverSession."""

    def __init__(self, remote: RemoteLink, url: SplitResult) -> None:
        self.remote = remote
        self.url = url
        self._key = base64.b64encode(os.urandom(_KEY_BYTES)).decode()
        self._tls_peer: TlsPeer | None = None

    @property
    def _uses_tls(self) -> bool:
        return self.url.scheme == "wss" or self.remote.config.tls is not None

    def opened(self, handover: HandoverSession) -> None:
        """The connection is open."""
        if self._uses_tls:
            problem = self.remote.begin_tls(handover.link)
            if problem:
                self.secured(handover, problem)
        else:
            self._send_request(handover)

    def secured(self, handover: HandoverSession, cause: str | None) -> None:
        """TLS has begun, or has failed for this `cause`."""
        if cause is None and not self.remote.accepts_certificate(handover.link.certificate):
            cause = "certificate not pinned"
        if cause is not None:
            log.error("%s - TLS leafnode handshake error: %s", self.remote.peer, cause)
            handover.link.close()
            return
        self._tls_peer = peer_of(handover.link.security, handover.link.certificate)
        self._send_request(handover)

    def _send_request(self, handover: HandoverSession) -> None:
        config = self.remote.config
        lines = [
            f"GET {self.url.path.rstrip('/')}{LEAF_PATH} HTTP/1.1",
            f"Host: {self.url.netloc.rpartition('@')[2]}",
            "Upgrade: websocket",
            "Connection: Upgrade",
            f"Sec-WebSocket-Key: {self._key}",
            "Sec-WebSocket-Version: 13",
        ]
        if config.ws_compression:
            lines.append(f"Sec-WebSocket-Extensions: {PMCE}")
        if config.ws_no_masking:
            lines.append(f"{NO_MASKING}: true")
        handover.send("\r\n".join([*lines, "", ""]).encode())
        handover.wait(config.first_info_timeout_ns)

    def received(self, handover: HandoverSession, data: bytes) -> None:
        """Process a part of the answer, perhaps with bytes after it."""
        handover.head += data
        head, end, early = bytes(handover.head).partition(HEAD_END)
        if not end:
            if len(head) > net_limits.WEBSOCKET_REQUEST_MAX:
                self._fail(handover, errors.HTTP_TOO_LARGE)
            return
        try:
            answer = read_answer(head)
            compression = self._check(answer)
        except (NotHttp, ValueError) as problem:
            self._fail(handover, str(problem))
            return
        masks = answer.first(NO_MASKING.lower()) != "true"
        frames = WebSocket(compression=compression, masked=False, masks=masks)
        session = LeafSession(
            self.remote.handshake.context.frontend,
            self.remote.handshake,
            self.remote,
            LEAF,
            self._tls_peer,
        )
        frames.status = lambda: close_status(session)
        handover.wait(0)
        self.remote.session = session
        handover.link.hand_over(session, frames, early)

    def _check(self, answer: Answer) -> bool:
        """Whether compression was agreed; ValueError: it is not a WebSocket answer."""
        if (
            answer.status != 101
            or not answer.has_word("upgrade", "websocket")
            or not answer.has_word("connection", "upgrade")
            or answer.first("sec-websocket-accept") != accept_key(self._key)
        ):
            raise ValueError("invalid websocket connection")
        extension = answer.first("sec-websocket-extensions")
        if not extension:
            return False
        name, *parts = (part.strip() for part in extension.split(";"))
        agreed = self.remote.config.ws_compression and name == _EXTENSION
        if not agreed or not _NO_CONTEXT.issubset(parts):
            raise ValueError("compression negotiation error")
        return True

    def _fail(self, handover: HandoverSession, reason: str) -> None:
        log.error("Error soliciting websocket connection: %s", reason)
        handover.wait(0)
        handover.link.abort()

    def timed_out(self, handover: HandoverSession) -> None:
        """Handle an overdue answer."""
        self._fail(handover, "timed out")

    def closed(self, handover: HandoverSession) -> None:  # noqa: ARG002
        """The connection has ended."""
        self.remote.ended()
