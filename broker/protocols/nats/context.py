"""State shared by the parts of one NATS server: its identity, settings and accounts.

The server creates one context and passes it to its parts (leaf nodes, operator mode); no part
imports the server.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from broker.protocols.nats import limits
from broker.protocols.nats import settings as conf
from broker.protocols.nats.accounts.account import Account, CurrentPublisher
from broker.protocols.nats.accounts.exports import Exchange
from broker.protocols.nats.auth.nkeys import SERVER, CurvePair, KeyPair
from broker.protocols.nats.client.frontend import NatsFrontend
from broker.protocols.nats.client.handshake import ClientHandshake, bucket

if TYPE_CHECKING:
    from collections.abc import Callable

    from broker.net.listener import Runtime
    from broker.protocols.nats.system.system import System
    from broker.protocols.nats.views import JetStreamView
    from broker.routing.router import Router

# In place of the version of Go. Without `platform`, whose import takes 2 ms of every start.
PYTHON = f"none ({sys.implementation.name}, Python {sys.version.split()[0]})"


class NatsContext:
    """The shared state of one server, from its start to its end."""

    def __init__(self, settings: conf.Settings, runtime: Runtime) -> None:
        self.settings = settings  # the current settings: a reload replaces them
        self.runtime = runtime
        self.key = KeyPair(SERVER)
        self.xkey = CurvePair()
        self.server_id = self.key.public
        self.server_name = settings.server_name or self.server_id
        self.system: System | None = None  # from start to stop, if it has an account
        self.current_publisher = CurrentPublisher()
        self.frontend = NatsFrontend(runtime.turn, settings)
        self.handshake = ClientHandshake(self.frontend)
        self.exchange = Exchange(
            runtime.turn,
            self.current_publisher,
            server_name=self.server_name,
            cluster=settings.cluster,
        )
        # The service for JetStream clients, from its start to its end.
        self.jetstream: JetStreamView | None = None
        # Called with each new account, and with each account that was configured alone.
        self.on_account: list[Callable[[Account], object]] = []
        # Operator mode: the configured system account, and the accounts from tokens.
        self.operator_system_account = ""
        self.token_config: Callable[[str], conf.Account | None] = lambda _name: None

    @property
    def accounts(self) -> dict[str, Account]:
        """All accounts, by name."""
        return self.handshake.accounts

    @property
    def system_account(self) -> Account | None:
        """The account of the server's own events and requests; None if disabled."""
        return self.accounts.get(self.system_name)

    @property
    def system_name(self) -> str:
        """The name of the system account; empty if it does not exist."""
        if self.settings.no_system_account:
            return ""
        return self.operator_system_account or self.settings.system_account or conf.SYSTEM_ACCOUNT

    def make_account(self, name: str, router: Router | None = None) -> Account:
        """Create an account with a new name. `router`: the router to use; None creates one."""
        account = Account(name, self.runtime.turn, self.current_publisher, router)
        self.accounts[name] = account
        self.exchange.join(account)
        for act in self.on_account:
            act(account)
        return account

    def forget_account(self, account: Account) -> None:
        """Remove an account that no session uses."""
        del self.accounts[account.name]
        self.exchange.leave(account.name)
        if self.system is not None:
            self.system.forget(account)

    def configure_accounts(self) -> None:
        """Create the accounts in the settings and set the limits of all; closes no session."""
        configured = {account.name: account for account in self.settings.accounts}
        self.exchange.system_account = self.system_name
        for name in (*configured, self.settings.system_account or conf.SYSTEM_ACCOUNT):
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
        """Set the limits, imports and exports of one account; closes no session."""
        self.exchange.system_account = self.system_name
        self.exchange.update(self._limit_account(account, config))
        for act in self.on_account:
            act(account)
        if self.system is not None:
            self.system.adopt(account)

    def _limit_account(self, account: Account, config: conf.Account | None) -> conf.Account:
        """Set the limits; returns the configuration with imports and exports to apply."""
        if config is None:
            config = self.token_config(account.name)
        account.config = config
        account.traced = config is not None and bool(config.trace_dest)
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


def server_info(
    server_id: str, server_name: str, address: tuple[str, int], *, headers: bool, max_payload: int
) -> dict[str, Any]:
    """The fields of every INFO of a server, in the original's order; callers add more."""
    return {
        "server_id": server_id,
        "server_name": server_name or server_id,
        "version": limits.NATS_VERSION,
        "proto": 1,
        "go": PYTHON,
        "host": address[0],
        "port": address[1],
        "headers": headers,
        "max_payload": max_payload,
    }
