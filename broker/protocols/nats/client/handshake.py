"""The handshake of clients, from INFO to the login; sessions call it at the beginning and the end
of a connection."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import orjson

from broker.base.units import SECOND
from broker.protocols.nats import errors, limits
from broker.protocols.nats.auth.authenticator import Identity, Login, Refused
from broker.protocols.nats.auth.proxies import TrustedProxies
from broker.protocols.nats.client.permissions import permit_for
from broker.protocols.nats.client.rate_limit import Bucket
from broker.protocols.nats.tls import TlsHandshake
from broker.protocols.nats.trace import Violations
from broker.protocols.nats.wire.options import ClientOptions

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from broker.protocols.nats.accounts.account import Account
    from broker.protocols.nats.auth.authenticator import Authenticator, TlsPeer
    from broker.protocols.nats.client.frontend import NatsFrontend
    from broker.protocols.nats.client.message_trace import MessageTrace
    from broker.protocols.nats.client.session import NatsSession
    from broker.protocols.nats.settings import RateLimit
    from broker.protocols.nats.tls import TlsPolicy

log = logging.getLogger("broker.nats")


class NoLogin:
    """The authenticator of a server without users."""

    required = False
    must_connect = False
    wants_nonce = False
    anonymous: Identity | None = Identity()

    def requires_login(self, kind: str) -> bool:  # noqa: ARG002
        """No kind of client needs a login."""
        return False

    def check(self, login: Login) -> Identity:  # noqa: ARG002
        """All clients have the same identity."""
        return Identity()

    def check_again(self, identity: Identity, login: Login) -> Identity:  # noqa: ARG002
        """The identity never changes."""
        return identity


class ClientHandshake:
    """The handshake and login of each client of one server."""

    def __init__(self, frontend: NatsFrontend) -> None:
        self.frontend = frontend
        self.authenticator: Authenticator = NoLogin()
        self.proxies = TrustedProxies()
        self.accounts: dict[str, Account] = {}
        self.violations = Violations()
        self.login_timeout_ns = limits.NATS_AUTH_TIMEOUT
        self.tls: TlsPolicy | None = None  # of the TCP listener
        self.info: dict[str, Any] = {}  # fields of every INFO
        self.tasks: set[asyncio.Task[None]] = set()  # pending logins
        self.find_account: Callable[[str], Account | None] = lambda _name: None
        self.is_system: Callable[[Account], bool] = lambda _account: False
        self.server_block: Callable[[], dict[str, Any]] = dict  # of events, see system/envelope
        self.on_open: list[Callable[[NatsSession], object]] = []  # called for a new connection
        self.on_connect: list[Callable[[NatsSession], object]] = []  # called after a login
        self.on_refuse: list[Callable[[NatsSession, Login, str], object]] = []
        self.on_close: list[Callable[[NatsSession], object]] = []  # even without a login
        frontend.handshake = self

    # --- queries

    def account(self, name: str) -> Account | None:
        """The account of this name; None if it does not exist."""
        return self.accounts.get(name) or self.find_account(name)

    # --- called by sessions

    def opened(self, session: NatsSession) -> None:
        """Begin the handshake of a new connection."""
        for act in self.on_open:
            act(session)
        tls = self.tls if session.websocket_peer is None else None
        frontend = self.frontend
        if len(frontend.sessions) > frontend.connections_max:
            if tls is None or not tls.first:
                session.send(self.info_line(session))
            session.end(errors.NATS_CONNECTIONS, errors.NATS_CLOSED_CONNECTIONS)
        elif tls is None:
            self.greet(session)
        else:
            session.start_tls(TlsHandshake(tls, session, self.send_tls_info, self.begin))

    def greet(self, session: NatsSession) -> None:
        """Send INFO, and wait for a login if required."""
        session.send(self.info_line(session))
        self.begin(session, None)

    def send_tls_info(self, session: NatsSession, first: bool) -> None:
        """Send INFO, unencrypted or (`first`) after a TLS handshake that preceded it."""
        more = {} if not first or "tls_required" in self.info else {"tls_required": True}
        session.send(self.info_line(session, **more))

    def begin(self, session: NatsSession, peer: TlsPeer | None) -> None:
        """Wait for a login if required."""
        session.finish_tls(peer)
        if self.authenticator.requires_login(session.kind):
            websocket = session.websocket_peer
            own_ns = websocket.login_timeout_ns if websocket is not None else 0
            session.expect_login(own_ns or self.login_timeout_ns)
        else:
            session.expect_login(0)

    def info_line(self, session: NatsSession, **more: object) -> bytes:
        """The INFO line for this client. It has a space before CRLF, which clients expect."""
        if self.authenticator.wants_nonce or self.proxies.keys:
            session.make_nonce()
        head = self.frontend.info_head
        fields: dict[str, object] = {"client_id": session.client_id}
        if session.host and not session.behind_proxy:
            fields["client_ip"] = session.host
        if session.nonce and session.options is None:
            fields["nonce"] = session.nonce.decode()
        own = dict(session.websocket_peer.info) if session.websocket_peer is not None else {}
        if session.payload_max < self.frontend.payload_max:
            own["max_payload"] = session.payload_max  # of its account or its user
        for name, value in more.items():
            (own if name in self.info else fields)[name] = value
        if own:
            head = b"INFO " + orjson.dumps(self.info | own)[:-1]
        return head + b"," + orjson.dumps(fields)[1:] + b" \r\n"

    def set_info(self, fields: dict[str, Any]) -> None:
        """Set the fields of every INFO; those of a single client are added to them."""
        self.info = fields
        self.frontend.info_head = b"INFO " + orjson.dumps(fields)[:-1]

    def connected(self, session: NatsSession) -> None:
        """After the first PONG, send INFO again, with the client's account."""
        options = session.options
        if session.account is None or options is None or options.protocol < 1:
            return
        more: dict[str, object] = {"connect_info": True, "remote_account": session.account.name}
        if self.is_system(session.account):
            more["acc_is_sys"] = True
        session.send(self.info_line(session, **more))

    def begin_trace(
        self, session: NatsSession, headers: bytes, subject: bytes, size: int
    ) -> MessageTrace | str | None:
        """See message_trace.begin."""
        from broker.protocols.nats.client.message_trace import begin

        return begin(session, headers, subject, size, session.may_send)

    def before_connect(self, session: NatsSession) -> None:
        """Handle a first operation other than CONNECT."""
        anonymous = self.authenticator.anonymous
        if anonymous is None:
            self.refuse(session, "not CONNECT")
            return
        self._admit(session, self.login(session), anonymous)

    def connect(self, session: NatsSession, raw: bytes) -> None:
        """Handle CONNECT, the first or a later one."""
        again = session.options is not None
        options = session.options or ClientOptions()
        try:
            options.merge(raw)
        except ValueError:
            session.end(None, errors.NATS_CLOSED_PARSE)
            return
        if session.websocket_peer is not None:
            options.complete(session.websocket_peer.cookies)
        if again:
            session.unsubscribe_all(partial(self._log_in, session, options))
        else:
            self._log_in(session, options)

    def _log_in(self, session: NatsSession, options: ClientOptions) -> None:
        session.apply_options(options)
        self._check(session, self.login(session))

    def closed(self, session: NatsSession) -> None:
        """Handle the end of a connection."""
        for act in self.on_close:
            act(session)

    def refuse(self, session: NatsSession, reason: str) -> None:
        """Reject a client whose first operation is not a valid CONNECT."""
        self.reject(session, self.login(session), Refused(reason))

    # --- logins

    def login(self, session: NatsSession) -> Login:
        """The facts about a client for the authenticator."""
        return Login(
            options=session.options or ClientOptions(),
            nonce=session.nonce or b"",
            host=session.host,
            kind=session.kind,
            tls=session.tls_peer,
            cookie_jwt=getattr(session.websocket_peer, "cookie_jwt", ""),
            client_id=session.client_id,
        )

    def _check(self, session: NatsSession, login: Login) -> None:
        try:
            answer = self.identify(login)
        except Refused as refusal:
            self.reject(session, login, refusal)
            return
        if isinstance(answer, Identity):
            self._admit(session, login, answer)
            return
        session.pause_input()
        task = asyncio.get_running_loop().create_task(self._check_later(session, login, answer))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def identify(self, login: Login) -> Identity | Awaitable[Identity]:
        """The identity of a client or leaf node, perhaps later; this or the awaitable raises
        Refused."""
        login.proxy_key = self.proxies.key_of(login)
        return _with_proxy_key(self.authenticator.check(login), login.proxy_key)

    def identify_again(self, identity: Identity, login: Login) -> Identity | Awaitable[Identity]:
        """The same for an identity that was admitted before a change of the configuration."""
        login.proxy_key = self.proxies.key_still(identity.proxy_key, login)
        return _with_proxy_key(self.authenticator.check_again(identity, login), login.proxy_key)

    async def resolve(self, login: Login, answer: Awaitable[Identity]) -> Identity:
        """The identity from an authenticator that answers later; Refused. It is checked again if a
        reload has replaced the authenticator meanwhile."""
        asked = self.authenticator
        identity = await answer
        if self.authenticator is not asked:
            again = self.identify_again(identity, login)
            identity = again if isinstance(again, Identity) else await again
        return identity

    async def _check_later(
        self, session: NatsSession, login: Login, answer: Awaitable[Identity]
    ) -> None:
        try:
            identity = await self.resolve(login, answer)
            if session.link is None:  # the client has disconnected
                return
            self._admit(session, login, identity)
        except Refused as refusal:
            if session.link is not None:
                self.reject(session, login, refusal)
            return
        except Exception:
            log.exception("login of client %d", session.client_id)
            if session.link is not None:
                self.reject(session, login, Refused("internal error"))
            return
        session.unpause_input()

    def reject(self, session: NatsSession, login: Login, refusal: Refused) -> None:
        """Close a session whose login was rejected or is no longer valid."""
        for act in self.on_refuse:
            act(session, login, str(refusal))
        session.end(refusal.error, refusal.why)

    def _admit(self, session: NatsSession, login: Login, identity: Identity) -> None:
        account = self.account(identity.account)
        if account is None:
            self.reject(session, login, Refused(f"account {identity.account} is not there"))
            return
        newcomer = session.account is not account
        most = account.connections_max
        if newcomer and most >= 0 and len(account.sessions) >= most:
            refusal = Refused(
                error=errors.NATS_ACCOUNT_CONNECTIONS,
                why=errors.NATS_CLOSED_ACCOUNT_CONNECTIONS,
            )
            self.reject(session, login, refusal)
            return
        options = session.options
        if options is not None and (options.account or options.new_account):
            self.reject(session, login, Refused("an account is named in CONNECT"))
            return
        begin = partial(self._begin, session, account, identity)
        if newcomer:
            session.unsubscribe_all(begin)  # those of an anonymous client before its CONNECT
        else:
            begin()

    def _begin(self, session: NatsSession, account: Account, identity: Identity) -> None:
        newcomer, options = session.account is not account, session.options
        session.bind(account, identity, permit_for(identity.permissions))
        apply_rate_limits(session, account, identity)
        if options is None:
            return
        if options.protocol not in (0, 1):
            session.end(errors.NATS_PROTOCOL_LEVEL, errors.NATS_CLOSED_PROTOCOL_LEVEL)
        elif options.no_responders and not options.headers:
            session.end(errors.NATS_RESPONDERS_NEED_HEADERS, errors.NATS_CLOSED_NO_HEADERS)
        else:
            session.ok()
            if newcomer:
                for act in self.on_connect:
                    act(session)


def _with_proxy_key(
    found: Identity | Awaitable[Identity], proxy_key: str
) -> Identity | Awaitable[Identity]:
    """The identity, with the key of the proxy that the connection came through, if any."""
    if not proxy_key:
        return found
    if isinstance(found, Identity):
        return replace(found, proxy_key=proxy_key)

    async def later() -> Identity:
        return replace(await found, proxy_key=proxy_key)

    return later()


def bucket(rate: RateLimit | None) -> Bucket | None:
    """A full bucket for this limit; None without a limit."""
    if rate is None:
        return None
    return Bucket(rate.msgs_per_second, rate.bytes_per_second, rate.burst_ns / SECOND)


def apply_rate_limits(session: NatsSession, account: Account, identity: Identity) -> None:
    """Apply the rate limits of the account (shared by its sessions) and of the user."""
    own = bucket(identity.rate)
    both = [one for one in (account.bucket, own) if one is not None]
    if both or session.rate_limited:
        session.limit_rate(tuple(both))
