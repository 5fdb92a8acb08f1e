"""Accounts in operator mode: their tokens, fetched at the first use and replaced by newer ones."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from broker.protocols.nats import limits, settings
from broker.protocols.nats.auth import nkeys
from broker.protocols.nats.auth.authenticator import Refused
from broker.protocols.nats.auth.jwt import claims, tokens, validate
from broker.protocols.nats.auth.jwt.tokens import Invalid, Scope, Token

if TYPE_CHECKING:
    from broker.protocols.nats.auth.jwt.resolvers import Resolver

log = logging.getLogger("broker.nats")

_REFRESH: Final = 1.0  # seconds between attempts to fetch an expired account again
_TIMER_MAX: Final = 86_400.0  # seconds; until a later end, the timer is set again


@dataclass(slots=True, eq=False)
class Account:
    """A fetched account."""

    token: Token
    config: settings.Account
    keys: dict[str, Scope | None]  # the keys that may sign for it
    fetched: float
    deleted: bool = False
    timer: asyncio.TimerHandle | None = None  # of the next expiry

    def expired(self, now: float) -> bool:
        return self.deleted or 0 < self.token.claims.exp <= int(now)


class AccountTokens:
    """The accounts of the trusted operators."""

    def __init__(
        self,
        config: settings.Resolver,
        resolver: Resolver,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """ValueError: a token of an operator is invalid."""
        self.resolver = resolver
        self.clock = clock
        self.changed: list[Callable[[str], object]] = []  # called with an account's name
        self.accounts: dict[str, Account] = {}
        self._loading: dict[str, asyncio.Task[Account]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._trusted = set(config.trusted_keys)
        self._strict: set[str] = set()  # operators' keys whose accounts sign by signing keys only
        self.operators = [operator_token(text) for text in config.operators]
        for operator in self.operators:
            body: tokens.OperatorBody = operator.body
            self._trusted |= set(body.signing_keys)
            if body.strict_signing_key_usage:
                self._strict |= set(body.signing_keys)
            else:
                self._trusted.add(operator.claims.sub)

    # --- queries

    def get(self, name: str) -> Account | None:
        """A known account that has not expired."""
        account = self.accounts.get(name)
        return None if account is None or account.expired(self.clock()) else account

    async def fetch(self, name: str, depth: int = limits.NATS_TOKEN_DEPTH_MAX) -> Account:
        """Fetch an account, shared by all callers that wait for it; raises Refused."""
        task = self._loading.get(name)
        if task is None:
            if len(self._loading) >= limits.NATS_RESOLVER_FETCHES_MAX:
                raise Refused("too many accounts are being fetched")
            task = asyncio.get_running_loop().create_task(self._fetch(name, depth))
            self._loading[name] = task
            task.add_done_callback(lambda done: self._loaded(name, done))
        return await asyncio.shield(task)

    async def find(self, name: str) -> Account:
        """A known or fetched account; raises Refused."""
        return self.get(name) or await self.fetch(name)

    def trusts(self, key: str) -> bool:
        """Whether accounts signed by this operator key are accepted."""
        return key in self._trusted

    def may_manage(self, key: str) -> bool:
        """Whether this is a key of the first operator, which may delete accounts."""
        if not self.operators:
            return False
        first = self.operators[0]
        own = set() if first.body.strict_signing_key_usage else {first.claims.sub}
        return key in own | set(first.body.signing_keys)

    def verified(self, text: str) -> Token:
        """A verified token of an account; raises Invalid."""
        token = tokens.decode(text.strip(), "account")
        if token.claims.iss not in self._trusted:
            raise Invalid("not signed by a trusted operator")
        if not nkeys.is_public(nkeys.ACCOUNT, token.claims.sub):
            raise Invalid("not of an account")
        validate.check(token, self.clock())
        return token

    def update(self, text: str) -> bool:
        """Apply a newer token of a known account; raises Invalid. False: no change."""
        token = self.verified(text)
        known = self.accounts.get(token.claims.sub)
        if known is None or (known.token.text == token.text and not known.deleted):
            return False
        self._replace(token)
        if self._missing(token):
            self._spawn(self._complete(token))
        return True

    def remove(self, name: str) -> None:
        """Remove a deleted account and close its clients."""
        account = self.accounts.get(name)
        if account is not None and not account.deleted:
            account.deleted = True
            self._announce_change(name)

    def add_without_token(self, name: str) -> None:
        """Add an account that has no token yet, without limits; its own key signs its users."""
        most = tokens.Limits(subs=-1, data=-1, payload=-1, conn=-1, leaf=-1)
        body = tokens.AccountBody(limits=most)
        token = Token(tokens.Claims(sub=name), body, "account", "")
        self.accounts[name] = Account(token, settings.Account(name), {name: None}, self.clock())

    def close(self) -> None:
        for task in (*self._loading.values(), *self._tasks):
            task.cancel()
        for account in self.accounts.values():
            if account.timer is not None:
                account.timer.cancel()

    # --- fetching

    def _loaded(self, name: str, task: asyncio.Task[Account]) -> None:
        del self._loading[name]
        if not task.cancelled():
            task.exception()  # the callers that wait receive it

    async def _fetch(self, name: str, depth: int) -> Account:
        known = self.accounts.get(name)
        if known is not None and self.clock() - known.fetched < _REFRESH:
            raise Refused("the account has expired")
        if not nkeys.is_public(nkeys.ACCOUNT, name):
            raise Refused("not an account")
        try:
            text = await self.resolver.fetch(name)
        except (OSError, ValueError, TimeoutError) as error:
            raise Refused(f"the account is not available: {error}") from error
        if not text:
            raise Refused("the account does not exist")
        try:
            token = self.verified(text)
        except Invalid as error:
            raise Refused(f"account: {error}") from error
        if token.claims.sub != name:
            raise Refused("the resolver returned another account")
        if 0 < token.claims.exp <= int(self.clock()):  # in its last second it still decodes
            raise Refused("the account has expired")
        await self._load_exporters(token, depth)
        return self._replace(token)

    def _missing(self, token: Token) -> list[str]:
        body: tokens.AccountBody = token.body
        names = {one.account for one in body.imports} - {token.claims.sub}
        return sorted(names - self.accounts.keys() - self._loading.keys())

    async def _load_exporters(self, token: Token, depth: int) -> None:
        """Load the exporting accounts, which must be known before the imports are translated."""
        for name in self._missing(token):
            if depth == 0:
                log.warning("account %s: imports are nested too deeply", token.claims.sub)
                return
            if name in self.accounts or name in self._loading:
                continue  # another import is loading it
            try:
                await self.fetch(name, depth - 1)
            except Refused as error:
                log.warning("account %s imports from %s: %s", token.claims.sub, name, error)

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _complete(self, token: Token) -> None:
        await self._load_exporters(token, limits.NATS_TOKEN_DEPTH_MAX)
        account = self.accounts.get(token.claims.sub)
        if account is not None and account.token is token:
            self._translate(account, self.clock())

    # --- expiry

    def _replace(self, token: Token) -> Account:
        name, now = token.claims.sub, self.clock()
        keys = claims.signing_keys(token)
        if token.claims.iss not in self._strict:
            keys[name] = None
        old = self.accounts.get(name)
        if old is not None and old.timer is not None:
            old.timer.cancel()
        account = Account(token, self._config(token, now), keys, now)
        self.accounts[name] = account
        self._set_expiry_timer(account, now)
        if old is not None:
            self._announce_change(name)
        for other in list(self.accounts.values()):
            body: tokens.AccountBody = other.token.body
            if other is not account and any(one.account == name for one in body.imports):
                self._translate(other, now)
        return account

    def _config(self, token: Token, now: float) -> settings.Account:
        return claims.account(token, self._token, now)

    def _token(self, name: str) -> Token | None:
        account = self.get(name)
        return None if account is None else account.token

    def _translate(self, account: Account, now: float) -> None:
        config = self._config(account.token, now)
        if config != account.config:
            account.config = config
            self._announce_change(account.token.claims.sub)

    def _announce_change(self, name: str) -> None:
        for act in self.changed:
            act(name)

    def _set_expiry_timer(self, account: Account, now: float) -> None:
        """Set a timer for the end of the account, or of an import by an activation.

        `now`: the time for which the account was translated. A part that has ended since then was
        translated as valid, so the timer for it is due at once.
        """
        ends = [*claims.activation_ends(account.token), account.token.claims.exp]
        later = [end - now for end in ends if end > now]
        if later:
            loop = asyncio.get_running_loop()
            wait = min([*later, _TIMER_MAX])
            account.timer = loop.call_later(wait, self._ended, account)

    def _ended(self, account: Account) -> None:
        account.timer = None
        if self.accounts.get(account.token.claims.sub) is not account:
            return
        # Read once, because the loop may call a timer shortly before it is due: then both steps
        # use the time before the end, and the timer is set again.
        now = self.clock()
        if account.expired(now):
            self._announce_change(account.token.claims.sub)
            return
        self._translate(account, now)
        self._set_expiry_timer(account, now)


def operator_token(text: str) -> Token:
    """Decode an operator's token; ValueError if it cannot be trusted."""
    try:
        token = tokens.decode(tokens.undecorated(text), "operator")
        fault = next(validate.content_faults(token), None)
    except Invalid as error:
        raise ValueError(f"operator: {error}") from error
    if fault is not None:
        raise ValueError(f"operator: {fault}")
    wanted = validate.server_version(token.body.assert_server_version)
    ours = validate.server_version(limits.NATS_VERSION)
    assert ours is not None
    if wanted is not None and wanted > ours:
        raise ValueError(f"operator: expects server version {token.body.assert_server_version}")
    return token
