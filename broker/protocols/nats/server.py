"""A NATS server: listeners, life cycle, system account. Its parts share a NatsContext."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

from broker.base.units import SECOND
from broker.protocols.nats import errors, limits
from broker.protocols.nats import settings as conf
from broker.protocols.nats.auth.local import LocalAuth
from broker.protocols.nats.auth.passwords import Passwords
from broker.protocols.nats.auth.proxies import TrustedProxies
from broker.protocols.nats.client.log import ClientLog
from broker.protocols.nats.client.recheck import Recheck
from broker.protocols.nats.context import NatsContext, server_info
from broker.protocols.nats.listener import (
    ANY_HOST,
    MonitorListener,
    NatsListener,
    WebsocketListener,
)
from broker.protocols.nats.monitoring.closed import ClosedConnections
from broker.protocols.nats.monitoring.process import CpuMeter
from broker.protocols.nats.system.envelope import Envelope, ServerIdentity, Station
from broker.protocols.nats.system.errors import (
    KICK_UNKNOWN,
    LAME_DUCK_UNABLE,
    LAME_DUCK_UNKNOWN,
    RELOAD_NO_FILE,
)
from broker.protocols.nats.system.requests import Actions
from broker.protocols.nats.system.system import System
from broker.protocols.nats.tls import TlsPolicy, client_context, server_context
from broker.protocols.nats.wire.options import advertised

if TYPE_CHECKING:
    import ssl
    from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping

    from broker.net.listener import Listener, Runtime
    from broker.protocols.nats.accounts.account import Account
    from broker.protocols.nats.accounts.asking import Bus
    from broker.protocols.nats.auth import callout
    from broker.protocols.nats.auth.authenticator import Authenticator, Login
    from broker.protocols.nats.auth.jwt.link import OperatorLink
    from broker.protocols.nats.client.session import NatsSession
    from broker.protocols.nats.leafnodes.leafnodes import LeafNodes
    from broker.protocols.nats.leafnodes.session import LeafSession
    from broker.protocols.nats.monitoring.pages import MonitorPages
    from broker.protocols.nats.settings import Settings
    from broker.protocols.nats.views import JetStreamView
    from broker.routing.router import Router

    class Host(callout.Host, Protocol):
        """The interface of the server for authenticators."""

        @property
        def system_account(self) -> Bus | None: ...


log = logging.getLogger("broker.nats")


def login_timeout_ns(settings: conf.Settings) -> int:
    """The time for a client to log in."""
    if settings.authorization.timeout_ns:
        return settings.authorization.timeout_ns
    if settings.tls is not None:
        return settings.tls.timeout_ns + SECOND
    return limits.NATS_AUTH_TIMEOUT


def https_context(settings: conf.Settings) -> ssl.SSLContext | None:
    """The TLS context of the monitoring pages, which require no client certificate."""
    if settings.https is None or settings.tls is None:
        return None
    return server_context(replace(settings.tls, verify=False, verify_and_map=False))


def websocket_tls(settings: conf.Settings, former: TlsPolicy | None = None) -> TlsPolicy | None:
    """The TLS policy of the WebSocket listener; None without TLS or without a listener."""
    if settings.websocket is None or settings.websocket.tls is None:
        return None
    return TlsPolicy(settings.websocket.tls, former=former)


class NatsServer:
    """All listeners and connections of the NATS protocol in this process."""

    def __init__(
        self, settings: conf.Settings, runtime: Runtime, router: Router | None = None
    ) -> None:
        """`router`: the subject space of the global account, if other protocols share it."""
        self.context = context = NatsContext(settings, runtime)
        self.runtime = runtime
        self.server_id, self.server_name = context.server_id, context.server_name
        self.key, self.xkey = context.key, context.xkey
        self.frontend, self.handshake = context.frontend, context.handshake
        self.accounts = context.accounts
        # Reads the configuration file again and applies it; returns its error, or "".
        self.reread: Callable[[], Awaitable[str]] | None = None
        self.start_ns = self.reload_ns = time.time_ns()
        self.ports: dict[str, tuple[str, int]] = {}
        self.starting = self.lame = False
        self.closed = ClosedConnections(settings.max_closed_clients)
        self.handshake.on_close.append(self.closed.add)
        self.handshake.server_block = self._server_block
        self.handshake.is_system = lambda account: account is self.system_account
        ClientLog(self.handshake, lambda: self.settings)
        self.leafs = self._make_leafs()
        # Returns the problem of the rest of this process, for /healthz; set before `pages` is used.
        self.broken: Callable[[], str | None] = lambda: None
        self.cpu = CpuMeter()
        self.handshake.on_connect.append(self._connected)
        self.handshake.on_close.append(self._disconnected)
        self.handshake.on_refuse.append(self._refused)
        self.monitor = MonitorListener(self)
        self.passwords = Passwords()
        self.listener: NatsListener | None = None
        self.websocket: WebsocketListener | None = None
        self.operator: OperatorLink | None = None
        context.make_account(conf.GLOBAL_ACCOUNT, router)
        self.configure(settings)
        if has_operators(settings):
            from broker.protocols.nats.auth.callout_auth import OperatorCallout
            from broker.protocols.nats.auth.jwt.link import OperatorLink

            authenticator = self.handshake.authenticator
            assert isinstance(authenticator, OperatorCallout)
            self.operator = OperatorLink(context, authenticator, self._recheck_leafs)

    # --- queries

    @property
    def settings(self) -> conf.Settings:
        """The current settings."""
        return self.context.settings

    @property
    def system(self) -> System | None:
        """The service of the system account, from start to stop; None without one."""
        return self.context.system

    @property
    def jetstream(self) -> JetStreamView | None:
        """The service for JetStream clients, from its start to its end; None without one."""
        return self.context.jetstream

    @property
    def system_account(self) -> Account | None:
        """The account of the server's own events and requests; None if disabled."""
        return self.context.system_account

    @cached_property
    def pages(self) -> MonitorPages:
        """The monitoring pages; imported at the first use."""
        from broker.protocols.nats.monitoring.pages import MonitorPages

        return MonitorPages(self, self.broken)

    def page(self, name: str, given: Mapping[str, Any]) -> dict[str, Any]:
        """A monitoring page, for requests to the system account."""
        return self.pages.page(name, given)

    @property
    def sessions(self) -> Collection[NatsSession]:
        """The connections of clients, in no particular order."""
        return self.frontend.sessions

    @property
    def login_timeout_ns(self) -> int:
        """The time for a client to log in, and for an authorization service to answer."""
        return self.handshake.login_timeout_ns

    def bus(self, account: str) -> Account | None:
        """The account of this name, for the server's own requests; None if it does not exist."""
        return self.handshake.account(account)

    def configure(self, settings: conf.Settings) -> None:
        """Apply settings to future connections; open ones are not changed.

        TlsError if certificates cannot be used: then nothing has changed.
        """
        tls = TlsPolicy.of(settings, self.handshake.tls)
        self.context.settings = settings
        self.handshake.tls = tls
        self.frontend.configure(settings)
        self.closed.resize(settings.max_closed_clients)
        self.context.exchange.rename(settings.cluster)
        self.context.configure_accounts()
        self.handshake.authenticator = make_authenticator(
            settings, self.passwords, self, self.handshake.authenticator
        )
        self.handshake.proxies = TrustedProxies(settings.trusted_proxies)
        self.handshake.login_timeout_ns = login_timeout_ns(settings)
        self.frontend.must_connect = self.handshake.authenticator.must_connect
        if self.leafs is not None:
            self.leafs.configure()

    # --- life cycle

    async def start(self) -> None:
        """Open every listener; OSError if an address is in use, ValueError if the configured system
        account does not exist."""
        self.starting = True  # reported by /healthz
        await self.open_pages()
        await self.open_listeners()
        self.starting = False

    async def open_listeners(self) -> None:
        """Open the listeners of clients, WebSocket clients and leaf nodes."""
        settings = self.settings
        if self.operator is not None:
            await self.operator.start()
        self.listener = NatsListener(
            self.frontend, self.runtime, settings.address, settings.max_pending
        )
        self.listener.proxied = settings.proxy_protocol
        await self.listener.open()
        self.ports["nats"] = self.listener.address
        if settings.websocket is not None:
            self.websocket = WebsocketListener(
                self.frontend,
                self.runtime,
                settings.websocket,
                settings.max_pending,
                websocket_tls(settings),
            )
            await self.websocket.open()
            self.ports["websocket"] = self.websocket.address
        self.update_info()
        self.context.system = self._open_system()
        if self.leafs is not None:
            await self._start_leafs(self.leafs)

    def _make_leafs(self) -> LeafNodes | None:
        """The leaf nodes; None if none are configured. A reload may configure the first ones."""
        if self.settings.leafnodes is None:
            return None
        from broker.protocols.nats.leafnodes.leafnodes import LeafNodes

        leafs = LeafNodes(self.context)
        leafs.handshake.on_establish.append(self._connected)
        leafs.handshake.on_close += [self.closed.add, self._disconnected]
        leafs.handshake.on_refuse.append(self._refused)
        self.context.on_account.append(leafs.adopt)
        return leafs

    async def _start_leafs(self, leafs: LeafNodes) -> None:
        await leafs.start()
        if leafs.listener is not None:
            self.ports["leafnodes"] = leafs.listener.address
            if self.websocket is not None:
                self.websocket.new_leaf = leafs.listener.new_websocket_session

    async def _recheck_leafs(self, sessions: Iterable[LeafSession] | None = None) -> None:
        if self.leafs is not None:
            await self.leafs.recheck(sessions)

    async def open_pages(self) -> None:
        """Open the monitoring listener only."""
        await self.monitor.open(self.settings, https_context(self.settings))
        self.ports |= self.monitor.ports

    def update_info(self) -> None:
        """Build the current INFO."""
        assert self.listener is not None
        host, port = self.listener.address
        info = server_info(
            self.server_id,
            self.server_name,
            advertised(self.settings.client_advertise, (host or ANY_HOST, port)),
            headers=not self.settings.no_header_support,
            max_payload=self.settings.max_payload,
        )
        if self.handshake.authenticator.required:
            info["auth_required"] = True
        if self.handshake.tls is not None:
            info |= self.handshake.tls.info()
        if self.settings.cluster:
            info["cluster"] = self.settings.cluster
        info["xkey"] = self.xkey.public
        if self.context.jetstream is not None:
            info |= self.context.jetstream.info()
        if self.lame:
            info["ldm"] = True
        self.handshake.set_info(info)
        if self.websocket is not None:
            host, port = self.websocket.address
            self.websocket.info = {"host": host or ANY_HOST, "port": port}
            if self.settings.websocket is not None and self.settings.websocket.tls is not None:
                self.websocket.info |= {"tls_required": True, "tls_available": True}
            # Even if a no_auth_user admits clients without a login.
            if self.handshake.authenticator.requires_login("WEBSOCKET"):
                self.websocket.info["auth_required"] = True

    async def reload(self, settings: conf.Settings) -> None:
        """Apply these settings, and close connections whose login is no longer valid. The caller
        rejects what cannot change while the server runs (addresses, its name): see reload.plan.

        TlsError if certificates cannot be used: then nothing has changed.
        """
        pages = https_context(settings)
        websocket = websocket_tls(settings, self.websocket.tls if self.websocket else None)
        self.configure(settings)
        self.reload_ns = time.time_ns()
        listens = self.listener is not None  # else no INFO and no system account exist yet
        if listens:
            self.update_info()
        if self.operator is not None:
            await self.operator.reload()
        if pages is not None:
            await self.monitor.use(pages)
        if websocket is not None and self.websocket is not None:
            self.websocket.tls = websocket
        if listens:
            self._renew_system()
            if self.leafs is None:
                self.leafs = self._make_leafs()
                if self.leafs is not None:
                    await self._start_leafs(self.leafs)
        await Recheck(self.handshake).run()
        await self._recheck_leafs()
        if self.operator is None:
            self._forget_accounts(settings)
        if self.context.jetstream is not None:
            self.context.jetstream.accounts_changed()

    def _forget_accounts(self, settings: conf.Settings) -> None:
        """Remove accounts that are no longer configured and have no connections."""
        configured = {account.name for account in settings.accounts}
        for name, account in list(self.accounts.items()):
            kept = configured | {conf.GLOBAL_ACCOUNT}
            if name not in kept and account is not self.system_account and not account.sessions:
                self.context.forget_account(account)

    async def close(self) -> None:
        """Stop accepting connections; open ones stay."""
        for listener in self.listeners:
            await listener.close()
        if self.leafs is not None:
            await self.leafs.close()

    async def stop(self) -> None:
        """End every connection after its pending output is written."""
        if self.system is not None:
            self.system.shutdown()
            self.context.system = None
        for session in list(self.frontend.sessions):
            session.closing_down()
        if self.leafs is not None:
            await self.leafs.stop()
        for listener in self.listeners:
            await listener.drain()
        for task in list(self.handshake.tasks):
            task.cancel()
        await asyncio.gather(*self.handshake.tasks, return_exceptions=True)
        if self.operator is not None:
            await self.operator.stop()
        self.passwords.close()
        await self.monitor.close()
        self.context.exchange.close()

    async def lame_duck(self) -> None:
        """Send clients the INFO that makes them reconnect to other servers, then close them one by
        one; returns when all are closed."""
        if self.lame:
            return
        self.lame = True
        if self.system is not None:
            self.system.lame_duck()
        await self.close()
        self.update_info()
        for session in list(self.frontend.sessions):
            options = session.options
            if options is not None and options.protocol >= 1 and session.ponged:
                session.send(self.handshake.info_line(session))
        if not self.frontend.sessions:
            return
        settings = self.settings
        await asyncio.sleep(settings.lame_duck_grace_period_ns / SECOND)
        log.info("Closing existing clients")
        import random  # only here: it takes a start a millisecond

        left = list(self.frontend.sessions)
        random.shuffle(left)
        window = settings.lame_duck_duration_ns - settings.lame_duck_grace_period_ns
        pause = min(window / SECOND / max(1, len(left)), 1.0)
        for at, session in enumerate(left):
            if at:
                await asyncio.sleep(random.uniform(0.5, 1.0) * pause)  # noqa: S311 - spreads load
            session.end(None, errors.NATS_CLOSED_SHUTDOWN)

    @property
    def listeners(self) -> list[Listener]:
        """The listeners for clients, open or closed again."""
        return [listener for listener in (self.listener, self.websocket) if listener is not None]

    # --- the system account

    def _server_block(self) -> dict[str, Any]:
        """What events say of this server."""
        if self.system is not None:
            return self.system.envelope.server()
        return self._envelope().server()

    def _envelope(self) -> Envelope:
        return Envelope(self._identity(), lambda: self.jetstream is not None)

    def _identity(self) -> ServerIdentity:
        """The server's identity in its events."""
        return ServerIdentity(
            self.server_name,
            self.handshake.info["host"],
            self.server_id,
            limits.NATS_VERSION,
            cluster=self.settings.cluster,
            tags=self.settings.server_tags,
            metadata=self.settings.server_metadata,
            flags=tuple(self.settings.flags.items()),
        )

    def _open_system(self) -> System | None:
        """Start the service after the client listener is open; None without a system account."""
        account = self.system_account
        if account is None:
            return None
        actions = _SystemActions(self)
        system = System(
            Station(self, account, self._envelope(), self),
            Actions(actions.reload, actions.kick, actions.lame_duck),
        )
        system.start()
        return system

    # Reports of sessions' begins and ends to the system account, while it exists.

    def _connected(self, session: NatsSession | LeafSession) -> None:
        if self.system is not None:
            self.system.connected(session)

    def _disconnected(self, session: NatsSession | LeafSession) -> None:
        if self.system is not None:
            why = session.closed_because or errors.NATS_CLOSED_CLIENT
            self.system.disconnected(session, why)

    def _refused(self, session: NatsSession | LeafSession, _login: Login, _detail: str) -> None:
        if self.system is not None:
            self.system.refused(session)

    def _renew_system(self) -> None:
        """Update the service after a reload: rename it, or replace it."""
        system = self.system
        if system is not None and system.account is self.system_account:
            system.rename(self._identity())
            return
        if system is not None:
            system.stop()
        self.context.system = self._open_system()


def has_operators(settings: Settings) -> bool:
    """Whether accounts and users come from tokens signed by an operator."""
    trust = settings.resolver
    return trust is not None and bool(trust.operators or trust.trusted_keys)


def make_authenticator(
    settings: Settings, passwords: Passwords, host: Host, previous: Authenticator | None = None
) -> Authenticator:
    """The authenticator for these settings.

    ValueError if operators' tokens are invalid, OSError if the folder of accounts cannot be used,
    TlsError. In operator mode, `previous` is reused: its fetched accounts stay.
    """
    trust = settings.resolver
    if trust is not None and has_operators(settings):
        from broker.protocols.nats.auth.callout_auth import OperatorCallout
        from broker.protocols.nats.auth.jwt import resolvers
        from broker.protocols.nats.auth.jwt.accounts import AccountTokens
        from broker.protocols.nats.auth.jwt.operator import OperatorAuth

        if isinstance(previous, OperatorCallout):
            previous.operator.pin(trust.pinned_accounts)
            previous.operator.sentinel = settings.default_sentinel
            return previous
        context = client_context(trust.tls) if trust.tls is not None else None
        resolver = resolvers.make(trust, lambda: host.system_account, context)
        accounts = AccountTokens(trust, resolver)
        operator = OperatorAuth(
            accounts, trust.pinned_accounts, settings.system_account, settings.default_sentinel
        )
        return OperatorCallout(host, operator)
    local = LocalAuth(settings, passwords)
    if settings.authorization.callout is not None:
        from broker.protocols.nats.auth.callout_auth import LocalCallout

        return LocalCallout(host, local, settings.authorization.callout)
    return local


class _SystemActions:
    """Actions of the server for requests to the system account."""

    def __init__(self, server: NatsServer) -> None:
        self.server = server

    async def reload(self) -> str:
        """Reload the configuration file."""
        if self.server.reread is None:
            return RELOAD_NO_FILE
        return await self.server.reread()

    def _client(self, client_id: int) -> NatsSession | None:
        return next((s for s in self.server.sessions if s.client_id == client_id), None)

    def kick(self, client_id: int) -> str:
        """Close a client, or a leaf node."""
        client = self._client(client_id)
        leafs = (leaf for account in self.server.accounts.values() for leaf in account.leafs)
        peer = client or next((leaf for leaf in leafs if leaf.client_id == client_id), None)
        if peer is None:
            return KICK_UNKNOWN
        peer.kick()
        return ""

    def lame_duck(self, client_id: int) -> str:
        """Send a client the INFO that makes it reconnect to another server."""
        client = self._client(client_id)
        if client is None:
            return LAME_DUCK_UNKNOWN
        options = client.options
        if options is None or options.protocol < 1 or not client.ponged:
            return LAME_DUCK_UNABLE
        client.send(self.server.handshake.info_line(client, ldm=True))
        return ""
