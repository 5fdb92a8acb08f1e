"""Trusted proxies: CONNECT of a connection through one has its signature of the nonce in INFO.

    proxies.key_of(login) -> the public key of the proxy, "" without one      raises Refused

A proxy proves only that a connection came through it; the login is still that of the client.
Source: nats-server auth.go, proxyCheck.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from broker.protocols.nats import errors
from broker.protocols.nats.auth import nkeys
from broker.protocols.nats.auth.authenticator import Refused

if TYPE_CHECKING:
    from broker.protocols.nats.auth.authenticator import Login

NOT_TRUSTED: Final = "proxy is not trusted"
REQUIRED: Final = "proxy connection required"


class TrustedProxies:
    """The proxies of a server; without any, signatures are ignored."""

    def __init__(self, keys: tuple[str, ...] = ()) -> None:
        """`keys`: their public keys."""
        self.keys = keys

    def key_of(self, login: Login) -> str:
        """The key of the proxy that signed the nonce; "" without a signature or without trusted
        proxies. Refused if the signature is not that of a trusted proxy."""
        text = login.options.proxy_signature
        if not text or not self.keys:
            return ""
        try:
            signature = nkeys.from_base64(text)
        except ValueError:
            raise untrusted() from None
        for key in self.keys:
            if login.nonce and nkeys.verify(key, login.nonce, signature):
                return key
        raise untrusted()

    def key_still(self, key: str, login: Login) -> str:
        """The same after a reload, for a connection that came through the proxy of this key, or
        through none. Refused if that proxy is no longer trusted."""
        if not key:
            return self.key_of(login)
        if key not in self.keys:
            raise untrusted()
        return key


def untrusted() -> Refused:
    """The refusal of a connection that came through another proxy."""
    return Refused(NOT_TRUSTED, why=errors.NATS_CLOSED_PROXY_NOT_TRUSTED)


def require_proxy(login: Login) -> None:
    """Refuse a connection that has not come through a trusted proxy."""
    if not login.proxy_key:
        raise Refused(REQUIRED, why=errors.NATS_CLOSED_PROXY_REQUIRED)
