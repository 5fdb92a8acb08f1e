"""A NATS server: its accounts, its doors, its life."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from broker.base.units import SECOND
from broker.protocols.nats import authenticators, errors, limits
from broker.protocols.nats import settings as conf
from broker.protocols.nats.accounts.account import Account, Desk
from broker.protocols.nats.accounts.exports import Exchange
from broker.protocols.nats.auth.callout_auth import OperatorCallout
from broker.protocols.nats.auth.jwt.link import OperatorLink
from broker.protocols.nats.auth.nkeys import SERVER, CurvePair, KeyPair
from broker.protocols.nats.auth.passwords import Passwords
from broker.protocols.nats.client.frontend import NatsFace
from broker.protocols.nats.client.handshake import Gate, bucket
from broker.protocols.nats.client.log import ClientLog
from broker.protocols.nats.leafnodes.leafnodes import LeafNodes
from broker.protocols.nats.listener import ANY_HOST, NatsDoor
from broker.protocols.nats.monitoring.closed import ClosedConnections
from broker.protocols.nats.monitoring.door import MonitorDoor
from broker.protocols.nats.monitoring.pages import MonitorPages
from broker.protocols.nats.recheck import Recheck
from broker.protocols.nats.system_server import open_system, renew_system, tell_system
from broker.protocols.nats.tls import TlsPolicy, server_context
from broker.protocols.nats.websocket import WebsocketDoor
from broker.protocols.nats.wire.options import advertised, server_info

if TYPE_CHECKING:
    import ssl
    from collections.abc import Awaitable, Callable, Collection

    from broker.net.listener import Door, Runtime
    from broker.protocols.nats.client.session import NatsSession
    from broker.protocols.nats.system.system import System
    from broker.routing.router import Router

log = logging.getLogger("broker.nats")


def login_timeout_ns(settings: conf.Settings) -> int:
    """How long a client has to log in."""
    if settings.authorization.timeout_ns:
        return settings.authorization.timeout_ns
    if settings.tls is not None:
        return settings.tls.timeout_ns + SECOND
    return limits.NATS_AUTH_TIMEOUT


def https_context(settings: conf.Settings) -> ssl.SSLContext | None:
    """Of the monitoring pages: no certificate is asked for there."""
    if settings.https is None or settings.tls is None:
        return None
    return server_context(replace(settings.tls, verify=False, verify_and_map=False))


def websocket_tls(settings: conf.Settings, former: TlsPolicy | None = None) -> TlsPolicy | None:
    """Of the WebSocket door; None: it is plain, or not there."""
    if settings.websocket is None or settings.websocket.tls is None:
        return None
    return TlsPolicy(settings.websocket.tls, former=former)


class NatsServer:
    """Everything that speaks NATS in this process."""

    def __init__(
        self, settings: conf.Settings, runtime: Runtime, router: Router | None = None
    ) -> None:
        """`router`: the subject space of the global account, if others use it too."""
        self.settings = settings
        self.runtime = runtime
        self.system: System | None = None  # from start to stop, where there is an account for it
        # Reads the configuration file anew and lets it hold; what is wrong with it, if anything.
        self.reread: Callable[[], Awaitable[str]] | None = None
        self.key = KeyPair(SERVER)
        self.xkey = CurvePair()
        self.server_id = self.key.public
        self.server_name = settings.server_name or self.server_id
        self.start_ns = self.reload_ns = time.time_ns()
        self.ports: dict[str, tuple[str, int]] = {}
        self.starting = self.lame = False
        self.closed = ClosedConnections(settings.max_closed_clients)
        self.desk = Desk()
        self.face = NatsFace(runtime.turn, settings)
        self.gate = Gate(self.face)
        self.gate.on_leave.append(self.closed.add)
        ClientLog(self.gate, lambda: self.settings)
        self.leafs = LeafNodes(self)
        self.leafs.on_leave.append(self.closed.add)
        self.pages = MonitorPages(self)
        tell_system(self)
        self.monitor = MonitorDoor(self.pages)
        self.passwords = Passwords()
        self.door: NatsDoor | None = None
        self.websocket: WebsocketDoor | None = None
        self.operator: OperatorLink | None = None
        self.exchange = Exchange(
            runtime.turn, self.desk, server_name=self.server_name, cluster=settings.cluster
        )
        self.make_account(conf.GLOBAL_ACCOUNT, router)
        self.configure(settings)
        if isinstance(self.gate.authenticator, OperatorCallout):
            self.operator = OperatorLink(self, self.gate.authenticator)
            self.gate.find_account = self.operator.find

    # --- accounts

    @property
    def accounts(self) -> dict[str, Account]:
        """All that are there, by name."""
        return self.gate.accounts

    @property
    def system_account(self) -> Account | None:
        """Where the server speaks about itself; None when that is switched off."""
        return self.accounts.get(self.system_name)

    @property
    def system_name(self) -> str:
        """Of the system account; empty when there is none."""
        if self.settings.no_system_account:
            return ""
        if self.operator is not None and self.operator.system_account:
            return self.operator.system_account
        return self.settings.system_account or conf.SYSTEM_ACCOUNT

    @property
    def login_timeout_ns(self) -> int:
        """How long a client has to log in, and a service that is asked about it to answer."""
        return self.gate.login_timeout_ns

    def bus(self, account: str) -> Account | None:
        """Where the server itself may ask somebody."""
        return self.gate.account(account)

    def make_account(self, name: str, router: Router | None = None) -> Account:
        """One that is not there yet."""
        account = Account(name, self.runtime.turn, self.desk, router)
        self.accounts[name] = account
        self.exchange.join(account)
        self.leafs.adopt(account)
        return account

    def configure(self, settings: conf.Settings) -> None:
        """What holds for those who come from here on; who is here is not touched.

        TlsError when certificates cannot be used: then nothing has changed.
        """
        tls = TlsPolicy.of(settings, self.gate.tls)
        self.settings = settings
        self.gate.tls = tls
        self.face.configure(settings)
        self.closed.resize(settings.max_closed_clients)
        self.exchange.rename(settings.cluster)
        self._configure_accounts(settings)
        self.gate.authenticator = authenticators.build(
            settings, self.passwords, self, self.gate.authenticator
        )
        self.gate.login_timeout_ns = login_timeout_ns(settings)
        self.face.must_connect = self.gate.authenticator.must_connect
        self.leafs.configure()

    def _configure_accounts(self, settings: conf.Settings) -> None:
        """Make the accounts that are configured, set their limits; nobody is cut here."""
        configured = {account.name: account for account in settings.accounts}
        self.exchange.system_account = self.system_name
        for name in (*configured, settings.system_account or conf.SYSTEM_ACCOUNT):
            if name not in self.accounts and (name in configured or self.system_name):
                self.make_account(name)
        self.exchange.configure(
            self._limit_account(account, configured.get(name))
            for name, account in self.accounts.items()
        )
        if self.system is not None:
            for account in self.accounts.values():
                self.system.adopt(account)

    def configure_account(self, account: Account, config: conf.Account | None) -> None:
        """Set its limits and what it shares; nobody is cut here."""
        self.exchange.system_account = self.system_name
        self.exchange.update(self._limit_account(account, config))
        self.leafs.adopt(account)
        if self.system is not None:
            self.system.adopt(account)

    def _limit_account(self, account: Account, config: conf.Account | None) -> conf.Account:
        """Set its limits; what it shares."""
        if config is None and self.operator is not None:
            config = self.operator.config(account.name)
        account.config = config
        most = config.limits if config is not None else conf.AccountLimits()
        account.connections_max = most.max_connections
        account.subscriptions_max = most.max_subscriptions
        account.payload_max = most.max_payload
        account.leafs_max = most.max_leafnodes
        account.bucket = bucket(config.rate if config is not None else None)
        shared = config or conf.Account(account.name)
        if account.name == conf.GLOBAL_ACCOUNT:
            shared = replace(shared, mappings=(*self.settings.mappings, *shared.mappings))
        return shared

    # --- life

    async def start(self) -> None:
        """Open every door; OSError when an address is taken, ValueError without a system account
        that is named."""
        self.starting = True  # /healthz says so
        await self.open_pages()
        await self.open_doors()
        self.starting = False

    async def open_doors(self) -> None:
        """Those of clients."""
        settings = self.settings
        if self.operator is not None:
            await self.operator.start()
        self.door = NatsDoor(self.face, self.runtime, settings.listen, settings.max_pending)
        await self.door.open()
        self.ports["nats"] = self.door.address
        if settings.websocket is not None:
            self.websocket = WebsocketDoor(
                self.face,
                self.runtime,
                settings.websocket,
                settings.max_pending,
                websocket_tls(settings),
            )
            await self.websocket.open()
            self.ports["websocket"] = self.websocket.address
        self.tell_info()
        self.system = open_system(self)
        await self.leafs.start()
        if self.leafs.door is not None:
            self.ports["leafnodes"] = self.leafs.door.address
            if self.websocket is not None:
                self.websocket.new_leaf = self.leafs.door.new_session

    async def open_pages(self) -> None:
        """The monitoring door alone."""
        await self.monitor.open(self.settings, https_context(self.settings))
        self.ports |= self.monitor.ports

    def tell_info(self) -> None:
        """Work out INFO anew."""
        assert self.door is not None
        host, port = self.door.address
        info = server_info(
            self.server_id,
            self.server_name,
            advertised(self.settings.client_advertise, (host or ANY_HOST, port)),
            headers=not self.settings.no_header_support,
            max_payload=self.settings.max_payload,
        )
        if self.gate.authenticator.required:
            info["auth_required"] = True
        if self.gate.tls is not None:
            info |= self.gate.tls.info()
        if self.settings.cluster:
            info["cluster"] = self.settings.cluster
        info["xkey"] = self.xkey.public
        if self.lame:
            info["ldm"] = True
        self.gate.set_info(info)
        if self.websocket is not None:
            host, port = self.websocket.address
            self.websocket.info = {"host": host or ANY_HOST, "port": port}
            if self.settings.websocket is not None and self.settings.websocket.tls is not None:
                self.websocket.info |= {"tls_required": True, "tls_available": True}
            # Even where a no_auth_user lets in those who say nothing.
            if self.gate.authenticator.asks("WEBSOCKET"):
                self.websocket.info["auth_required"] = True

    async def reload(self, settings: conf.Settings) -> None:
        """Let these settings hold, and cut whoever has no rights left. What cannot change while
        the server runs (addresses, its name) is the caller's to refuse: see reload.plan.

        TlsError when certificates cannot be used: then nothing has changed.
        """
        pages = https_context(settings)
        websocket = websocket_tls(settings, self.websocket.tls if self.websocket else None)
        self.configure(settings)
        self.reload_ns = time.time_ns()
        self.tell_info()
        if self.operator is not None:
            await self.operator.reload()
        if pages is not None:
            await self.monitor.use(pages)
        if websocket is not None and self.websocket is not None:
            self.websocket.tls = websocket
        renew_system(self)
        await Recheck(self.gate).run()
        await self.leafs.recheck()
        if self.operator is not None:
            return
        configured = {account.name for account in settings.accounts}
        for name, account in list(self.accounts.items()):
            kept = configured | {conf.GLOBAL_ACCOUNT}
            if name not in kept and account is not self.system_account and not account.sessions:
                del self.accounts[name]
                self.exchange.leave(name)
                if self.system is not None:
                    self.system.forget(account)

    async def close(self) -> None:
        """Accept nobody any more; who is here stays."""
        for door in self.doors:
            await door.close()
        await self.leafs.close()

    async def stop(self) -> None:
        """Let every connection write what waits for it, end them all."""
        if self.system is not None:
            self.system.shutdown()
            self.system = None
        for session in list(self.face.sessions):
            session.closing_down()
        await self.leafs.stop()
        for door in self.doors:
            await door.drain()
        for task in list(self.gate.tasks):
            task.cancel()
        await asyncio.gather(*self.gate.tasks, return_exceptions=True)
        if self.operator is not None:
            await self.operator.stop()
        self.passwords.close()
        await self.monitor.close()
        self.exchange.close()

    async def lame_duck(self) -> None:
        """Tell clients to go elsewhere, then close them one by one; returns when all are gone."""
        if self.lame:
            return
        self.lame = True
        if self.system is not None:
            self.system.lame_duck()
        await self.close()
        self.tell_info()
        for session in list(self.face.sessions):
            options = session.options
            if options is not None and options.protocol >= 1 and session.ponged:
                session.send(self.gate.info_line(session))
        if not self.face.sessions:
            return
        settings = self.settings
        await asyncio.sleep(settings.lame_duck_grace_period_ns / SECOND)
        log.info("Closing existing clients")
        left = list(self.face.sessions)
        random.shuffle(left)
        window = settings.lame_duck_duration_ns - settings.lame_duck_grace_period_ns
        pause = min(window / SECOND / max(1, len(left)), 1.0)
        for at, session in enumerate(left):
            if at:
                await asyncio.sleep(random.uniform(0.5, 1.0) * pause)  # noqa: S311 - spreads load
            session.end(None, errors.NATS_CLOSED_SHUTDOWN)

    @property
    def doors(self) -> list[Door]:
        """Those that are open, or were."""
        return [door for door in (self.door, self.websocket) if door is not None]

    # --- what others ask for

    @property
    def sessions(self) -> Collection[NatsSession]:
        """Clients' connections, in no order."""
        return self.face.sessions
