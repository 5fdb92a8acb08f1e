"""Makes the authenticator that a configuration asks for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from broker.protocols.nats.auth import callout
from broker.protocols.nats.auth.callout_auth import LocalCallout, OperatorCallout
from broker.protocols.nats.auth.jwt import resolvers
from broker.protocols.nats.auth.jwt.accounts import AccountTokens
from broker.protocols.nats.auth.jwt.operator import OperatorAuth
from broker.protocols.nats.auth.local import LocalAuth
from broker.protocols.nats.tls import client_context

if TYPE_CHECKING:
    from broker.protocols.nats.accounts.asking import Bus
    from broker.protocols.nats.auth.authenticator import Authenticator
    from broker.protocols.nats.auth.passwords import Passwords
    from broker.protocols.nats.settings import Settings


class Host(callout.Host, Protocol):
    """What is needed of the server."""

    @property
    def system_account(self) -> Bus | None: ...


def build(
    settings: Settings, passwords: Passwords, host: Host, previous: Authenticator | None = None
) -> Authenticator:
    """Whoever decides about logins.

    ValueError when operators' tokens are no good, OSError when the folder of accounts cannot be
    had, TlsError. In operator mode `previous` goes on: what it knows of accounts stays.
    """
    trust = settings.resolver
    if trust is not None and (trust.operators or trust.trusted_keys):
        if isinstance(previous, OperatorCallout):
            previous.operator.pin(trust.pinned_accounts)
            return previous
        context = client_context(trust.tls) if trust.tls is not None else None
        resolver = resolvers.make(trust, lambda: host.system_account, context)
        accounts = AccountTokens(trust, resolver)
        operator = OperatorAuth(accounts, trust.pinned_accounts, settings.system_account)
        return OperatorCallout(host, operator)
    local = LocalAuth(settings, passwords)
    if settings.authorization.callout is not None:
        return LocalCallout(host, local, settings.authorization.callout)
    return local
