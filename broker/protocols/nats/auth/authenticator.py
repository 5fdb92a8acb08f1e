"""One attempt to log in, and what comes of it; sessions and those who check logins meet here."""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import field
from typing import Protocol

from broker.base.errors import WireError
from broker.base.values import dataclass
from broker.protocols.nats import errors
from broker.protocols.nats.settings import GLOBAL_ACCOUNT, Permissions, RateLimit
from broker.protocols.nats.wire.options import ClientOptions


@dataclass(slots=True)
class TlsPeer:
    """What TLS knows of the client."""

    der: bytes | None = field(default=None, repr=False)  # its certificate, if it showed one
    version: str = ""  # 1.3
    cipher: str = ""  # TLS_AES_128_GCM_SHA256
    chain: tuple[bytes, ...] = field(default=(), repr=False)  # what it showed after its own


@dataclass(slots=True)
class Login:
    """One attempt."""

    options: ClientOptions = field(repr=False)  # of CONNECT; secrets are in it
    nonce: bytes = field(default=b"", repr=False)  # its text in INFO; empty: none was sent
    host: str = ""  # the peer's address
    kind: str = "STANDARD"  # or WEBSOCKET, LEAFNODE, LEAFNODE_WS, IN_PROCESS
    tls: TlsPeer | None = None  # None: plain
    cookie_jwt: str = field(default="", repr=False)
    client_id: int = 0


@dataclass(frozen=True, slots=True)
class Identity:
    """A client's identity, and what it may do."""

    account: str = GLOBAL_ACCOUNT
    user: str = ""  # as monitoring shows it
    permissions: Permissions | None = None  # None: everything
    subscriptions_max: int = -1  # -1 = no limit
    payload_max: int = -1
    rate: RateLimit | None = None  # of this connection
    expires_ns: int = 0  # since 1970; 0 = never
    expired: WireError = errors.NATS_USER_EXPIRED  # what is said then
    jwt: str = field(default="", repr=False)  # shown to others: never a bearer's
    issuer_key: str = ""  # who signed it
    name_tag: str = ""
    tags: tuple[str, ...] = ()
    key: str = ""  # how a reload finds it again: user:NAME, nkey:U..., token; "": none
    owner: str = ""  # the same with each login of one user; "": the key is
    # What the password was compared with: while that stays, it need not be compared again.
    proof: str = field(default="", repr=False, compare=False)
    basis: object = field(default=None, repr=False, compare=False)  # of the authenticator's own


class Refused(Exception):  # noqa: N818 - an answer, not a fault
    """The login is turned down; `detail` is for our log and holds no secrets.

    When one who was let in is turned down later, `silent` says to close without an error.
    """

    def __init__(
        self,
        detail: str = "",
        *,
        error: WireError = errors.NATS_AUTHORIZATION,
        why: str = errors.NATS_CLOSED_AUTHENTICATION,
        silent: bool = False,
    ) -> None:
        super().__init__(detail or error.text)
        self.error = error
        self.why = why
        self.silent = silent


class Authenticator(Protocol):
    """Decides about logins; replaced when the configuration changes."""

    required: bool  # INFO says auth_required
    must_connect: bool  # nothing but CONNECT may come first
    wants_nonce: bool  # INFO carries a nonce
    anonymous: Identity | None  # of one who begins with something else, where that is allowed

    def asks(self, kind: str) -> bool:
        """Whether logins of that kind are looked at."""

    def check(self, login: Login) -> Identity | Awaitable[Identity]:
        """The client's identity; raises Refused, as the awaitable does."""

    def check_again(self, identity: Identity, login: Login) -> Identity | Awaitable[Identity]:
        """The same after a change, of one who was let in before it: who it is now."""
