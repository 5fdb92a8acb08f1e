"""Conflicts between valid parts of a configuration, checked after all of it is read.

nats-server finds most of them only at its start (validateOptions), without a position.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.base.values import dataclass
from broker.protocols.nats.auth import nkeys
from broker.protocols.nats.conf import exchange
from broker.protocols.nats.conf.fields import Block
from broker.protocols.nats.settings import GLOBAL_ACCOUNT, SYSTEM_ACCOUNT

if TYPE_CHECKING:
    from broker.protocols.nats.conf.accounts import PositionedAccount
    from broker.protocols.nats.conf.fields import Block, Mistakes
    from broker.protocols.nats.conf.listeners import Leafs
    from broker.protocols.nats.conf.text import Value
from broker.protocols.nats.settings import Settings


@dataclass(slots=True)
class Read:
    """The complete configuration, with positions for error messages."""

    settings: Settings
    mistakes: Mistakes
    positions: dict[str, Value]  # of top-level entries by name
    accounts: list[PositionedAccount]
    leafs: Leafs
    websocket: dict[str, Value]  # its entries by name


def check(read: Read) -> None:
    """Add all conflicts to the mistakes."""
    found = _Conflicts(read)
    found.sizes()
    found.monitoring()
    found.system_account()
    found.operators()
    found.no_auth_user()
    found.callout()
    found.websocket(read.websocket)
    found.leafnodes(read.leafs)
    exchange.check(read.accounts, read.mistakes, not read.settings.no_system_account)


class _Conflicts:
    def __init__(self, read: Read) -> None:
        self.settings = settings = read.settings
        self.mistakes = read.mistakes
        self.positions = read.positions
        self.users = [user for account in settings.accounts for user in account.users]
        self.users += settings.authorization.users
        self.logins = {user.nkey or user.name for user in self.users}
        self.accounts = {account.name for account in settings.accounts} | {GLOBAL_ACCOUNT}

    def wrong(self, reason: str, *names: str) -> None:
        """Add a mistake at the first of these entries that is present."""
        for name in names:
            if name in self.positions:
                self.mistakes.add(self.positions[name], reason)
                return

    @property
    def is_operator_mode(self) -> bool:
        resolver = self.settings.resolver
        return resolver is not None and bool(resolver.operators)

    def sizes(self) -> None:
        it = self.settings
        payload = self.positions.get("max_payload")
        unlimited = payload is not None and payload.it < 0
        if it.max_payload > it.max_pending and not unlimited:
            reason = f"max_payload: {it.max_payload} is more than max_pending ({it.max_pending})"
            self.wrong(reason, "max_payload", "max_pending")
        if it.lame_duck_grace_period_ns >= it.lame_duck_duration_ns:
            reason = "lame_duck_grace_period: has to be shorter than lame_duck_duration"
            self.wrong(reason, "lame_duck_grace_period")

    def monitoring(self) -> None:
        it = self.settings
        https = ("https", "https_port")
        if it.https is not None and it.http is not None:
            self.wrong("https: cannot be combined with http", *https)
        elif it.https is not None and it.tls is None:
            self.wrong("https: tls is missing", *https)

    def system_account(self) -> None:
        it = self.settings
        known = self.accounts
        if it.resolver is None and it.system_account and it.system_account not in known:
            reason = f'system_account: unknown account "{it.system_account}"'
            self.wrong(reason, "system_account", "system")

    def operators(self) -> None:
        it = self.settings
        if not self.is_operator_mode or it.resolver is None:
            return
        names = ("operator", "operators", "root_operator", "root_operators", "root", "roots")
        if it.resolver.kind == "none":
            self.wrong("operator: a resolver is missing", *names)
        if it.resolver.kind == "url" and it.resolver.preload:
            reason = "resolver_preload: this resolver keeps nothing"
            self.wrong(reason, "resolver_preload")
        for key in ("accounts", "mappings", "maps"):
            if it.accounts or it.mappings:
                self.wrong(f"{key}: cannot be combined with operators", key)
        if it.authorization.users:
            self.wrong("authorization: users cannot be combined with operators", "authorization")
        if it.authorization.callout is not None:
            reason = "authorization: auth_callout cannot be combined with operators"
            self.wrong(reason, "authorization")

    def no_auth_user(self) -> None:
        name = self.settings.no_auth_user
        if name:
            reason = self.unknown_user(name)
            if reason:
                self.wrong(f"no_auth_user: {reason}", "no_auth_user")

    def unknown_user(self, name: str) -> str:
        if self.is_operator_mode:
            return "cannot be combined with operators"
        return "" if name in self.logins else f'unknown user "{name}"'

    def callout(self) -> None:
        found = self.settings.authorization.callout
        block = self.positions.get("authorization")
        if found is None or block is None:
            return
        position = Block(block, self.mistakes, "authorization").peek("auth_callout", "auth_hook")
        assert position is not None
        if found.account not in self.accounts:
            reason = f'auth_callout: unknown account "{found.account}": no client can log in'
            self.mistakes.note(position, reason)
        for name in found.allowed_accounts:
            if name not in self.accounts:
                reason = f'allowed_accounts: unknown account "{name}"'
                self.mistakes.add(position, reason)
        for name in found.auth_users:
            if name not in self.logins:
                self.mistakes.note(position, f'auth_callout: unknown user "{name}"')

    def websocket(self, positions: dict[str, Value]) -> None:
        listener = self.settings.websocket
        if listener is None:
            return
        if listener.no_auth_user:
            reason = self.unknown_user(listener.no_auth_user)
            if reason:
                self.mistakes.add(positions["no_auth_user"], f"no_auth_user: {reason}")
        authorization = listener.authorization
        if authorization is not None and self.users and (authorization.user or authorization.token):
            what = "user" if authorization.user else "token"
            position = positions.get("authorization") or positions["authentication"]
            self.mistakes.add(position, f"websocket: {what} cannot be combined with users")
        if listener.jwt_cookie and self.settings.resolver is None:
            reason = "jwt_cookie: needs operators or trusted keys"
            self.mistakes.add(positions["jwt_cookie"], reason)

    def leafnodes(self, leafs: Leafs) -> None:
        if self.settings.leafnodes is None:
            return
        if self.is_operator_mode:
            if leafs.users is not None:
                self.mistakes.add(leafs.users, "users: cannot be combined with operators")
            named = [leafs.single] if leafs.single is not None else []
            for name, position in leafs.remotes + (named if self.settings.leafnodes.listen else []):
                if not nkeys.is_public(nkeys.ACCOUNT, name):
                    reason = "account: has to be the public key of an account (A...)"
                    self.mistakes.add(position, reason)
            return
        known = set(self.accounts)
        if not self.settings.system_account and not self.settings.no_system_account:
            known.add(SYSTEM_ACCOUNT)
        for name, position in leafs.accounts + leafs.remotes:
            if name not in known:
                self.mistakes.add(position, f'account: unknown account "{name}"')
