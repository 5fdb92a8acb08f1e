"""Authenticators that query a service on the bus, except for the service's own logins.

Whether the service is queried depends on the identity that the client has proved (by password,
signature, certificate), never on the name in CONNECT: names and public keys are not secret.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable
from typing import TYPE_CHECKING

from broker.protocols.nats import settings
from broker.protocols.nats.auth.authenticator import Identity, Login, Refused
from broker.protocols.nats.auth.callout import LEAF_KINDS, Caller, Host, Service, without_requests
from broker.protocols.nats.auth.jwt import tokens
from broker.protocols.nats.auth.jwt.operator import (
    Basis,
    OperatorAuth,
    account_of,
    scoped_permissions,
)
from broker.protocols.nats.auth.local import proved_name

if TYPE_CHECKING:
    from broker.protocols.nats.auth.jwt.tokens import Token
    from broker.protocols.nats.auth.local import LocalAuth


def exempt_users(
    accounts: tuple[settings.Account, ...], allowed: tuple[str, ...]
) -> frozenset[str]:
    """The users whose logins the service does not decide: those of accounts that are not in
    `allowed`. None if `allowed` is empty. The service always decides for the global account,
    because unknown users belong to it."""
    return frozenset(
        user.nkey or user.name
        for account in accounts
        if allowed and account.name not in (*allowed, settings.GLOBAL_ACCOUNT)
        for user in account.users
    )


class LocalCallout:
    """Logins with the service in the configuration."""

    def __init__(self, host: Host, local: LocalAuth, config: settings.Callout) -> None:
        self._caller = Caller(host)
        self._local = local
        self._service = Service(config.account, config.issuer, config.xkey)
        self._service_users = frozenset(config.auth_users)
        self._exempt = exempt_users(host.settings.accounts, config.allowed_accounts)
        self._accounts = {account.name: account for account in host.settings.accounts}
        names = [settings.GLOBAL_ACCOUNT]  # of accounts that exist without configuration
        if not host.settings.no_system_account:
            names.append(host.settings.system_account or settings.SYSTEM_ACCOUNT)
        for name in names:
            self._accounts.setdefault(name, settings.Account(name))
        self.required = local.required
        self.must_connect = local.must_connect
        self.wants_nonce = local.wants_nonce
        self.anonymous = local.anonymous

    def requires_login(self, kind: str) -> bool:  # noqa: ARG002
        return True

    def check(self, login: Login) -> Identity | Awaitable[Identity]:
        name = self._local.name_of(login)
        if name in self._exempt and login.kind not in LEAF_KINDS:
            return self._local.check(login)
        if name not in self._service_users:
            return self._ask(login, name)
        return self._decide(self._local.check(login), login)

    def check_again(self, identity: Identity, login: Login) -> Identity | Awaitable[Identity]:
        basis = identity.basis
        if not isinstance(basis, Basis):
            found = self._local.check_again(identity, login)
            if self._local.name_of(login) in self._exempt and login.kind not in LEAF_KINDS:
                return found
            return self._decide(found, login)
        if basis.token.claims.iss == self._service.issuer and identity.account in self._accounts:
            return identity
        return self._ask(login, self._local.name_of(login))

    def _decide(
        self, found: Identity | Awaitable[Identity], login: Login
    ) -> Identity | Awaitable[Identity]:
        if not isinstance(found, Identity):
            return self._decide_later(found, login)
        if proved_name(found) not in self._service_users:
            return self._ask(login, self._local.name_of(login))
        return self._without_requests(found)

    async def _decide_later(self, found: Awaitable[Identity], login: Login) -> Identity:
        decided = self._decide(await found, login)
        return decided if isinstance(decided, Identity) else await decided

    def _without_requests(self, identity: Identity) -> Identity:
        if identity.account != self._service.account:
            return identity
        return dataclasses.replace(identity, permissions=without_requests(identity.permissions))

    async def _ask(self, login: Login, name: str) -> Identity:
        self._local.require_proxy(login, name)
        answer, sealed = await self._caller.answer(self._service, login, name)
        if not sealed and answer.claims.iss != self._service.issuer:
            raise Refused("the authorization service's answer is signed by another key")
        user = self._caller.admitted_user(answer)
        body: tokens.UserBody = user.body
        if body.issuer_account:
            raise Refused("the authorization service names an issuer_account")
        if user.claims.iss != self._service.issuer:
            raise Refused("the authorization service's user is signed by another key")
        account = self._accounts.get(user.claims.aud)
        if account is None:
            raise Refused("the authorization service names an unknown account")
        basis = Basis(user, body, None)
        return self._without_requests(self._caller.identity(basis, account, login, name))


class OperatorCallout:
    """Logins with the service in the token of a user's account, if any."""

    required = True
    must_connect = True
    wants_nonce = True
    anonymous: Identity | None = None

    def __init__(self, host: Host, operator: OperatorAuth) -> None:
        self._caller = Caller(host)
        self.operator = operator

    def requires_login(self, kind: str) -> bool:  # noqa: ARG002
        return True

    def check(self, login: Login) -> Identity | Awaitable[Identity]:
        found = self.operator.check(login)
        if isinstance(found, Identity):
            return self._decide(found, login)
        return self._check_later(found, login)

    def check_again(self, identity: Identity, login: Login) -> Identity | Awaitable[Identity]:
        found = self.operator.check_again(identity, login)
        if not isinstance(found, Identity) or found.permissions == identity.permissions:
            return found
        account = self.operator.accounts.get(found.account)
        if account is None or not account.token.body.authorization.auth_users:
            return found
        return dataclasses.replace(found, permissions=without_requests(found.permissions))

    async def _check_later(self, found: Awaitable[Identity], login: Login) -> Identity:
        decided = self._decide(await found, login)
        return decided if isinstance(decided, Identity) else await decided

    def _decide(self, found: Identity, login: Login) -> Identity | Awaitable[Identity]:
        account = self.operator.accounts.get(found.account)
        if account is None:
            raise Refused("the account has expired")
        body: tokens.AccountBody = account.token.body
        if not body.authorization.auth_users:
            return found
        basis = found.basis
        assert isinstance(basis, Basis)
        user = basis.token.claims.sub
        # A bearer token proves nothing: any client that has seen it could impersonate the service.
        if user in body.authorization.auth_users and not basis.permissions.bearer_token:
            return dataclasses.replace(found, permissions=without_requests(found.permissions))
        return self._ask(account.token, login, user)

    async def _ask(self, account_token: Token, login: Login, name: str) -> Identity:
        external = account_token.body.authorization
        service = Service(account_token.claims.sub, account_token.claims.sub, external.xkey)
        answer, sealed = await self._caller.answer(service, login, name)
        if not sealed:
            self._signed_by_account(answer, account_token.claims.sub)
        user = self._caller.admitted_user(answer)
        target = account_of(user)
        if target != account_token.claims.sub and not (
            external.allowed_accounts == [tokens.ANY] or target in external.allowed_accounts
        ):
            raise Refused("the authorization service may not admit users to that account")
        account = await self.operator.accounts.find(target)
        if user.claims.iss not in account.keys:
            raise Refused("the authorization service's user is not signed by the account")
        scope = account.keys[user.claims.iss]
        basis = Basis(user, scoped_permissions(user, scope, account.token), scope)
        identity = self._caller.identity(basis, account.config, login, name)
        if target == account_token.claims.sub:
            identity = dataclasses.replace(
                identity, permissions=without_requests(identity.permissions)
            )
        return identity

    def _signed_by_account(self, answer: Token, name: str) -> None:
        account = self.operator.accounts.get(name)
        if answer.body.issuer_account not in {"", name}:
            raise Refused("the authorization service answers for another account")
        if account is None or answer.claims.iss not in {name, *account.keys}:
            raise Refused("the authorization service's answer is signed by an unknown key")
