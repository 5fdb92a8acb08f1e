"""Operator mode: tokens decide about logins.

An operator signs accounts, an account signs users. A login presents the user's token and signs the
nonce with the user's key; the account's token is fetched at its first use. After a change of an
account, the caller checks its sessions again with check_again().
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Awaitable, Callable
from typing import Final

from broker.base.units import COUNT_MAX, SECOND
from broker.base.values import dataclass
from broker.protocols.nats import errors, settings
from broker.protocols.nats.auth import nkeys, proxies
from broker.protocols.nats.auth.authenticator import Identity, Login, Refused
from broker.protocols.nats.auth.jwt import claims, tokens, validate
from broker.protocols.nats.auth.jwt.accounts import Account, AccountTokens
from broker.protocols.nats.auth.jwt.tokens import Invalid, Scope, Token, UserPermissions

CONNECTION_TYPES: Final = frozenset(
    {"STANDARD", "WEBSOCKET", "LEAFNODE", "LEAFNODE_WS", "MQTT", "MQTT_WS"}
)


@dataclass(frozen=True, slots=True)
class Basis:
    """The token and the permissions that a login was accepted with."""

    token: Token
    permissions: UserPermissions  # the scope's, or the token's own
    scope: Scope | None


class OperatorAuth:
    """Checks logins by tokens."""

    required = True
    must_connect = True
    wants_nonce = True
    anonymous: Identity | None = None

    def __init__(
        self,
        accounts: AccountTokens,
        pinned: frozenset[str] = frozenset(),
        system_account: str = "",
        sentinel: str = "",
    ) -> None:
        """`sentinel`: the token for clients that present no readable one; empty: none."""
        self.accounts = accounts
        self.clock: Callable[[], float] = accounts.clock
        named = [operator.body.system_account for operator in accounts.operators]
        self.system_account = system_account or (named[0] if len(named) == 1 else "")
        self._pinned: frozenset[str] = frozenset()
        self.sentinel = sentinel
        self.pin(pinned)

    def pin(self, accounts: frozenset[str]) -> None:
        """Admit only users of these accounts and of the system account; of all if empty."""
        self._pinned = accounts | {self.system_account} if accounts else accounts

    def requires_login(self, kind: str) -> bool:  # noqa: ARG002
        return True

    # --- logins

    def check(self, login: Login) -> Identity | Awaitable[Identity]:
        user = self._user(login)
        name = account_of(user)
        account = self.accounts.get(name)
        if account is None:
            return self._check_later(user, name, login)
        return self._admit(user, account, login)

    async def _check_later(self, user: Token, name: str, login: Login) -> Identity:
        return self._admit(user, await self.accounts.fetch(name), login)

    def _user(self, login: Login) -> Token:
        text = login.options.jwt or login.cookie_jwt
        if not (text or self.sentinel):
            raise Refused("no token")
        try:
            user = self._decoded(text)
            validate.check(user, self.clock())
        except Invalid as error:
            raise Refused(f"token: {error}") from error
        if self._pinned and account_of(user) not in self._pinned:
            raise Refused("the account is not pinned")
        return user

    def _decoded(self, text: str) -> Token:
        """The client's token, or the default one if the client's cannot be decoded. Invalid."""
        if self.sentinel:
            with contextlib.suppress(Invalid):
                return tokens.decode(text, "user")
            text = self.sentinel
        return tokens.decode(text, "user")

    def _admit(self, user: Token, account: Account, login: Login) -> Identity:
        now, body = self.clock(), user.body
        basis = self._basis(user, account)
        permissions = basis.permissions
        if permissions.bearer_token and account.token.body.limits.disallow_bearer:
            raise Refused("the account does not allow bearer tokens")
        if permissions.proxy_required:
            proxies.require_proxy(login)
        if not kind_allowed(permissions, login.kind):
            raise Refused("the user may not use this kind of connection")
        signed = permissions.bearer_token or nkeys.verify_nonce(
            user.claims.sub, login.nonce, login.options.signature
        )
        if not signed:
            raise Refused("the nonce is not signed by the user")
        if claims.is_revoked(account.token.body.revocations, user.claims.sub, user.claims.iat):
            raise Refused("the user is revoked")
        if not validate.host_allowed(permissions, login.host):
            raise Refused("the user may not connect from this address")
        left = validate.seconds_left(permissions, now)
        if left is None:
            raise Refused("the user may not connect at this time")
        own = claims.permissions(permissions.pub, permissions.sub, permissions.resp)
        return Identity(
            account=account.token.claims.sub,
            user=user.claims.sub,  # not the name in CONNECT, which is not verified
            permissions=account.config.default_permissions if own is None else own,
            subscriptions_max=claims.at_least(permissions.subs),
            payload_max=claims.at_least(permissions.payload),
            expires_ns=expiry_ns(user, left, now),
            jwt="" if permissions.bearer_token else user.text,  # shown; bearer tokens are secret
            issuer_key=user.claims.iss if body.issuer_account else account.token.claims.sub,
            name_tag=user.claims.name,
            tags=tuple(body.tags),
            key=f"jwt:{user.claims.sub}",
            basis=basis,
        )

    def _basis(self, user: Token, account: Account) -> Basis:
        if user.claims.iss not in account.keys:
            raise Refused("not signed by the account")
        scope = account.keys[user.claims.iss]
        return Basis(user, scoped_permissions(user, scope, account.token), scope)

    # --- after the login

    def check_again(self, identity: Identity, login: Login) -> Identity | Awaitable[Identity]:
        basis = identity.basis
        if not isinstance(basis, Basis):
            return self.check(login)
        account = self.accounts.get(identity.account)
        if account is None:
            raise Refused(
                "the account has expired",
                error=errors.NATS_ACCOUNT_EXPIRED,
                why=errors.NATS_CLOSED_EXPIRED,
            )
        body: tokens.AccountBody = account.token.body
        user = basis.token.claims
        if basis.permissions.bearer_token and body.limits.disallow_bearer:
            raise Refused("the account no longer allows bearer tokens")
        if claims.is_revoked(body.revocations, user.sub, user.iat):
            raise Refused(
                "the user is revoked",
                error=errors.NATS_USER_REVOKED,
                why=errors.NATS_CLOSED_REVOKED,
            )
        if user.iss not in account.keys or account.keys[user.iss] != basis.scope:
            raise Refused("the signing key was removed or has another scope", silent=True)
        return self._with_defaults(identity, basis.permissions, account)

    def _with_defaults(
        self, identity: Identity, permissions: UserPermissions, account: Account
    ) -> Identity:
        """The identity with the account's current default permissions, if the user's token has no
        permissions."""
        if claims.permissions(permissions.pub, permissions.sub, permissions.resp) is not None:
            return identity
        return dataclasses.replace(identity, permissions=account.config.default_permissions)

    def config(self, name: str) -> settings.Account | None:
        """The settings in the account's token; None if it was not fetched or has expired."""
        account = self.accounts.get(name)
        return None if account is None else account.config


def account_of(user: Token) -> str:
    """The account of a user."""
    return user.body.issuer_account or user.claims.iss


def scoped_permissions(user: Token, scope: Scope | None, account: Token) -> UserPermissions:
    """The user's own permissions, or those of the scoped key that signed its token."""
    body: tokens.UserBody = user.body
    if scope is None:
        return body
    if body.has_own_permissions():
        raise Refused("the user's token has permissions, but its signing key has a scope")
    try:
        return claims.fill_in(scope.permissions(), user, account)
    except Invalid as error:
        raise Refused(str(error)) from error


def kind_allowed(permissions: UserPermissions, kind: str) -> bool:
    """Whether a kind of connection is allowed. A list that has only unknown kinds allows none."""
    wanted = {text.upper() for text in permissions.allowed_connection_types or ()}
    return not wanted or kind in wanted & CONNECTION_TYPES


def expiry_ns(user: Token, left: float, now: float) -> int:
    """The end of the login, by its token or by the time of day. 0 = never."""
    ends = [user.claims.exp * SECOND] if user.claims.exp else []
    if left:
        ends.append(int((now + left) * SECOND))
    return min(*ends, COUNT_MAX) if ends else 0
