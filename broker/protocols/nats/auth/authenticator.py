"""One login attempt and its result: the types shared by sessions and authenticators."""

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
    """The properties of a client's TLS connection."""

    der: bytes | None = field(default=None, repr=False)  # its certificate, if any
    version: str = ""  # 1.3
    cipher: str = ""  # TLS_AES_128_GCM_SHA256
    chain: tuple[bytes, ...] = field(default=(), repr=False)  # its further certificates


@dataclass(slots=True)
class Login:
    """One login attempt."""

    options: ClientOptions = field(repr=False)  # of CONNECT; contains secrets
    nonce: bytes = field(default=b"", repr=False)  # its text in INFO; empty if none was sent
    host: str = ""  # the peer's address
    kind: str = "STANDARD"  # or WEBSOCKET, LEAFNODE, LEAFNODE_WS, IN_PROCESS
    tls: TlsPeer | None = None  # None: no TLS
    cookie_jwt: str = field(default="", repr=False)
    client_id: int = 0
    proxy_key: str = ""  # of the trusted proxy that it came through


@dataclass(frozen=True, slots=True)
class Identity:
    """A client's identity and its permissions."""

    account: str = GLOBAL_ACCOUNT
    user: str = ""  # shown by monitoring
    permissions: Permissions | None = None  # None: everything
    subscriptions_max: int = -1  # -1 = no limit
    payload_max: int = -1
    rate: RateLimit | None = None  # of this connection
    expires_ns: int = 0  # since 1970; 0 = never
    expired: WireError = errors.NATS_USER_EXPIRED  # the error sent at expiry
    jwt: str = field(default="", repr=False)  # shown by monitoring: never a bearer token
    issuer_key: str = ""  # the key that signed it
    name_tag: str = ""
    tags: tuple[str, ...] = ()
    key: str = ""  # to find the user after a reload: user:NAME, nkey:U..., token; "": none
    proxy_key: str = ""  # of the trusted proxy that it came through
    owner: str = ""  # equal for all logins of one user; "": use `key`
    # The stored secret at login: a reload that keeps it needs no new comparison.
    proof: str = field(default="", repr=False, compare=False)
    basis: object = field(default=None, repr=False, compare=False)  # private to the authenticator


class Refused(Exception):  # noqa: N818 - an answer, not a fault
    """The login is refused; `detail` is for the server's log and contains no secrets.

    If an established session is refused later, `silent` means to close without an error.
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
    """Checks logins. It is replaced when the configuration changes."""

    required: bool  # INFO has auth_required
    must_connect: bool  # the first operation must be CONNECT
    wants_nonce: bool  # INFO has a nonce
    anonymous: Identity | None  # for clients without CONNECT, if allowed

    def requires_login(self, kind: str) -> bool:
        """Whether logins of that kind are checked."""

    def check(self, login: Login) -> Identity | Awaitable[Identity]:
        """The client's identity; this or the awaitable raises Refused."""

    def check_again(self, identity: Identity, login: Login) -> Identity | Awaitable[Identity]:
        """Check an established session after a change: its identity now."""
