"""Logins with users of the configuration: token, user and password, many users, nkeys.

Checked in this order: nkeys, then users (by the client's certificate if TLS maps it), then the
token, then the single user. Passwords stored as bcrypt hashes are awaited.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Final, TypeVar

from broker.base.values import dataclass
from broker.protocols.nats.auth import nkeys, proxies
from broker.protocols.nats.auth.authenticator import Identity, Login, Refused
from broker.protocols.nats.auth.passwords import Busy, Passwords, is_hash, same
from broker.protocols.nats.settings import GLOBAL_ACCOUNT, Authorization, User

if TYPE_CHECKING:
    from collections.abc import Mapping

    from broker.protocols.nats.settings import Permissions, Settings, Tls

_Found = TypeVar("_Found")

REDACTED: Final = "[REDACTED]"
LEAF_KINDS: Final = frozenset({"LEAFNODE", "LEAFNODE_WS"})
_PROVED: Final = frozenset({"user", "nkey", "leaf"})  # beginnings of keys with a proved identity
_SIGNED: Final = "signed"  # the proof of an nkey


@dataclass(frozen=True, slots=True)
class _ConfiguredUser:
    """A user of the configuration."""

    user: User
    account: str
    permissions: Permissions | None
    owner: str = ""  # see Identity

    def allows_kind(self, kind: str) -> bool:
        return not self.user.connection_types or kind in self.user.connection_types

    def identity(self) -> Identity:
        name = self.user.nkey or self.user.name
        return Identity(
            account=self.account,
            user=name,
            permissions=self.permissions,
            key=f"{'nkey' if self.user.nkey else 'user'}:{name}",
            proof=_SIGNED if self.user.nkey else self.user.password,
            rate=self.user.rate,
            owner=self.owner,
        )


@dataclass(frozen=True, slots=True)
class _Listener:
    """The logins of one listener."""

    authorization: Authorization
    no_auth_user: str
    maps_certificates: bool


class LocalAuth:
    """Checks logins with the users of the configuration."""

    def __init__(self, settings: Settings, passwords: Passwords) -> None:
        self._settings = settings
        self._passwords = passwords
        self._users: dict[str, _ConfiguredUser] = {}
        self._nkeys: dict[str, _ConfiguredUser] = {}
        for account in settings.accounts:
            self._add(account.users, account.name, account.default_permissions)
        own = settings.authorization
        self._add(own.users, GLOBAL_ACCOUNT, own.default_permissions)
        self._no_auth_user = settings.no_auth_user
        self._checks_logins = bool(self._users or self._nkeys or own.user or own.token)
        self.required = self._checks_logins and not self._no_auth_user
        if self._only_system_account_configured():
            self._open_global_account()
        self.wants_nonce = bool(self._nkeys)
        self.anonymous: Identity | None = None if self._checks_logins else Identity()
        no_auth = self._users.get(self._no_auth_user)
        if no_auth is not None and not no_auth.user.proxy_required:
            self.anonymous = no_auth.identity()
        self.must_connect = self.anonymous is None
        # The refusal of an unknown name must take as long as that of a wrong password.
        self._decoy = next((p for k in self._users.values() if is_hash(p := k.user.password)), "")

    def _add(self, users: tuple[User, ...], account: str, default: Permissions | None) -> None:
        for user in users:
            permissions = default if user.permissions is None else user.permissions
            table = self._nkeys if user.nkey else self._users
            table[user.nkey or user.name] = _ConfiguredUser(user, account, permissions)

    def _only_system_account_configured(self) -> bool:
        settings = self._settings
        names = {account.name for account in settings.accounts} - {GLOBAL_ACCOUNT}
        return (
            names == {settings.system_account}
            and not settings.no_auth_user
            and not settings.authorization_given
        )

    def _open_global_account(self) -> None:
        """Admit clients without credentials as a user whose name no client can know; INFO still
        requires a login."""
        name, password = (base64.b32encode(os.urandom(5)).decode().lower() for _ in range(2))
        user = User(name=f"nats-{name}", password=password)
        # The name changes with each start and reload.
        self._users[user.name] = _ConfiguredUser(user, GLOBAL_ACCOUNT, None, owner="anybody")
        self._no_auth_user = user.name
        self._checks_logins = self.required = True

    # --- queries

    def requires_login(self, kind: str) -> bool:
        return self._checks_logins or (kind == "WEBSOCKET" and self._websocket_decides())

    def check(self, login: Login) -> Identity | Awaitable[Identity]:
        return self._check(login, "")

    def check_again(self, identity: Identity, login: Login) -> Identity | Awaitable[Identity]:
        kind_of_key, _, name = identity.key.partition(":")
        if kind_of_key in {"user", "nkey"}:
            known = (self._users if kind_of_key == "user" else self._nkeys).get(name)
            single = kind_of_key == "user" and name == self._listener(login).authorization.user
            if known is None and not single:
                raise Refused("the user was removed", silent=True)
            if known is not None and known.account != identity.account:
                raise Refused("the user belongs to another account now", silent=True)
        return self._check(login, identity.proof)

    def name_of(self, login: Login) -> str:
        """The name of a user: an nkey or a name, also by certificate or from `no_auth_user`."""
        listener, options = self._listener(login), login.options
        nkey = self._nkey_of(login, listener)
        if nkey:
            return nkey
        if self._users and listener.maps_certificates:
            found = self._by_certificate(login)
            return options.user if found is None else found.user.name
        return self._user_of(login, listener) or options.token

    def require_proxy(self, login: Login, name: str) -> None:
        """Refuse a login that needs a trusted proxy by the configuration, and has none."""
        known = self._nkeys.get(name) or self._users.get(name)
        rule = self._settings.authorization if known is None else known.user
        if rule.proxy_required:
            proxies.require_proxy(login)

    # --- one login

    def _listener(self, login: Login) -> _Listener:
        settings = self._settings
        websocket, leafnodes = settings.websocket, settings.leafnodes
        tls, no_auth_user, own = settings.tls, self._no_auth_user, settings.authorization
        if login.kind == "WEBSOCKET":
            tls = websocket.tls if websocket is not None else None
            if websocket is not None and self._websocket_decides():
                own = websocket.authorization or Authorization()
                no_auth_user = websocket.no_auth_user
        elif login.kind in LEAF_KINDS:
            tls = leafnodes.tls if leafnodes is not None else None
            if login.kind == "LEAFNODE_WS" and websocket is not None and websocket.no_auth_user:
                no_auth_user = websocket.no_auth_user
        return _Listener(own, no_auth_user, _maps(tls))

    def _websocket_decides(self) -> bool:
        listener = self._settings.websocket
        own = listener.authorization if listener is not None else None
        named = own is not None and bool(own.user or own.token)
        return named or (listener is not None and bool(listener.no_auth_user))

    def _check(self, login: Login, proof: str) -> Identity | Awaitable[Identity]:
        if login.kind in LEAF_KINDS and self._settings.leafnodes is not None:
            leaf = self._leaf(login, proof)
            if leaf is not None:
                return leaf
        if not self.requires_login(login.kind):
            return Identity()
        listener = self._listener(login)
        nkey = self._nkey_of(login, listener)
        if nkey and self._nkeys:
            return self._by_nkey(nkey, login, listener, proof)
        if self._users:
            known = self._user(login, listener)
            if known is not None:
                self.require_proxy(login, known.user.name)
                no_auth = known.user.name == listener.no_auth_user and self._has_no_credentials(
                    login
                )
                given = known.user.password if no_auth else login.options.password
                return self._compare(known.user.password, given, known.identity(), proof)
            if login.options.user:
                return self._unknown(login)
        return self._by_listener(login, listener, proof)

    def _has_no_credentials(self, login: Login) -> bool:
        options = login.options
        return not (options.user or options.password or options.token)

    def _nkey_of(self, login: Login, listener: _Listener) -> str:
        if not login.options.nkey and self._has_no_credentials(login):
            return listener.no_auth_user if listener.no_auth_user in self._nkeys else ""
        return login.options.nkey

    def _user_of(self, login: Login, listener: _Listener) -> str:
        if self._has_no_credentials(login) and listener.no_auth_user in self._users:
            return listener.no_auth_user
        return login.options.user

    def _by_nkey(self, nkey: str, login: Login, listener: _Listener, proof: str) -> Identity:
        known = self._nkeys.get(nkey)
        if known is None or not known.allows_kind(login.kind):
            raise Refused("the nkey is unknown, or may not use this kind of connection")
        self.require_proxy(login, nkey)
        signed = proof == _SIGNED or nkey == listener.no_auth_user
        if not signed and not nkeys.verify_nonce(nkey, login.nonce, login.options.signature):
            raise Refused("the nonce is not signed by the nkey")
        return known.identity()

    def _user(self, login: Login, listener: _Listener) -> _ConfiguredUser | None:
        if listener.maps_certificates:
            known = self._by_certificate(login)
            if known is None:
                raise Refused("no user matches the certificate")
            return known
        known = self._users.get(self._user_of(login, listener))
        if known is not None and not known.allows_kind(login.kind):
            raise Refused("the user may not use this kind of connection")
        return known

    def _by_certificate(self, login: Login) -> _ConfiguredUser | None:
        if login.tls is None or login.tls.der is None:
            return None
        allowed = {name: k for name, k in self._users.items() if k.allows_kind(login.kind)}
        found = _find_user(login.tls.der, allowed)
        return None if found is None else found[1]

    def _unknown(self, login: Login) -> Identity | Awaitable[Identity]:
        if self._decoy:
            return self._refuse_slowly(login.options.password)
        raise Refused("the user is unknown")

    async def _refuse_slowly(self, given: str) -> Identity:
        await self._awaited(self._decoy, given, Identity())
        raise Refused("the user is unknown")

    def _by_listener(
        self, login: Login, listener: _Listener, proof: str
    ) -> Identity | Awaitable[Identity]:
        own, options = listener.authorization, login.options
        if self._settings.authorization.proxy_required:
            proxies.require_proxy(login)
        if login.kind in LEAF_KINDS:
            leafnodes = self._settings.leafnodes
            account = leafnodes.account if leafnodes is not None else ""
            return Identity(account=account or GLOBAL_ACCOUNT, user=options.user)
        if own.token:
            identity = Identity(user=REDACTED, key="token", proof=own.token)
            return self._compare(own.token, options.token, identity, proof)
        if own.user and same(own.user, options.user):
            identity = Identity(user=own.user, key=f"user:{own.user}", proof=own.password)
            return self._compare(own.password, options.password, identity, proof)
        raise Refused("neither token nor user")

    def _leaf(self, login: Login, proof: str) -> Identity | Awaitable[Identity] | None:
        """Check a login with the block of leaf nodes; None if it has no user."""
        leafnodes = self._settings.leafnodes
        assert leafnodes is not None
        own, options = leafnodes.authorization or Authorization(), login.options
        account = leafnodes.account or GLOBAL_ACCOUNT
        if own.proxy_required and (own.user or leafnodes.nkey or own.users):
            proxies.require_proxy(login)
        if own.user:
            single = User(name=own.user, password=own.password, account=account)
            return self._leaf_user({own.user: single}, options.user, login, proof)
        if leafnodes.nkey:
            signed = proof == _SIGNED or nkeys.verify_nonce(
                leafnodes.nkey, login.nonce, options.signature
            )
            if options.nkey != leafnodes.nkey or not signed:
                raise Refused("the nonce is not signed by the nkey of leaf nodes")
            return Identity(account=account, user=leafnodes.nkey, key="leaf", proof=_SIGNED)
        if not own.users:
            return None
        users = {user.name: user for user in own.users}
        name = options.user
        if _maps(leafnodes.tls):
            der = login.tls.der if login.tls is not None else None
            found = _find_user(der, users) if der is not None else None
            if found is None:
                raise Refused("no user of leaf nodes matches the certificate")
            name = found[0]
        return self._leaf_user(users, name, login, proof)

    def _leaf_user(
        self, users: dict[str, User], name: str, login: Login, proof: str
    ) -> Identity | Awaitable[Identity]:
        user = users.get(name)
        if user is None:
            raise Refused("the user is not one of leaf nodes")
        if user.proxy_required:
            proxies.require_proxy(login)
        identity = Identity(
            account=user.account or GLOBAL_ACCOUNT, user=name, key="leaf", proof=user.password
        )
        return self._compare(user.password, login.options.password, identity, proof)

    # --- passwords

    def _compare(
        self, stored: str, given: str, identity: Identity, proof: str
    ) -> Identity | Awaitable[Identity]:
        if proof and same(stored, proof):
            return identity
        if is_hash(stored):
            return self._awaited(stored, given, identity)
        if not same(stored, given):
            raise Refused("wrong password or token")
        return identity

    async def _awaited(self, stored: str, given: str, identity: Identity) -> Identity:
        try:
            if not await self._passwords.matches(stored, given):
                raise Refused("wrong password or token")
        except Busy:
            raise Refused("too many passwords are being checked") from None
        return identity


def proved_name(identity: Identity) -> str:
    """The user name that a login has proved; empty if it was admitted without a check."""
    return identity.user if identity.key.partition(":")[0] in _PROVED else ""


def _maps(tls: Tls | None) -> bool:
    return tls is not None and tls.verify_and_map


def _find_user(der: bytes, users: Mapping[str, _Found]) -> tuple[str, _Found] | None:
    """The user for a client's certificate."""
    from broker.protocols.nats.auth.certificates import find_user

    return find_user(der, users)
