"""Operators, accounts and users for tests of operator mode."""

from __future__ import annotations

from typing import Any

import orjson

from broker.protocols.nats.auth import nkeys
from broker.protocols.nats.auth.jwt import tokens
from broker.protocols.nats.auth.nkeys import ACCOUNT, OPERATOR, USER, KeyPair

NO_LIMITS = {"subs": -1, "data": -1, "payload": -1}
ACCOUNT_LIMITS = {
    **NO_LIMITS,
    "imports": -1,
    "exports": -1,
    "wildcards": True,
    "conn": -1,
    "leaf": -1,
}


class Company:
    """An operator with its keys."""

    def __init__(self, **body: Any) -> None:
        self.pair = KeyPair(OPERATOR)
        self.signing = KeyPair(OPERATOR)
        self.token = tokens.encode(
            self.pair,
            {"sub": self.pair.public, "name": "O"},
            {"signing_keys": [self.signing.public], **body},
            "operator",
        )

    def account(self, tenant: Tenant, pair: KeyPair | None = None, **more: Any) -> str:
        """A token for the account, as it is now."""
        head = {"sub": tenant.public, "name": tenant.name} | more.pop("head", {})
        return tokens.encode(pair or self.signing, head, tenant.body | more, "account")


class Tenant:
    """An account with its keys."""

    def __init__(self, name: str = "A", **body: Any) -> None:
        self.pair = KeyPair(ACCOUNT)
        self.signing = KeyPair(ACCOUNT)
        self.scoped = KeyPair(ACCOUNT)
        self.name = name
        self.body: dict[str, Any] = {
            "limits": ACCOUNT_LIMITS,
            "signing_keys": [self.signing.public],
            **body,
        }

    @property
    def public(self) -> str:
        return self.pair.public

    def scope(self, **template: Any) -> None:
        """Give the scoped key this template."""
        self.body["signing_keys"] = [
            self.signing.public,
            {"kind": "user_scope", "key": self.scoped.public, "template": template},
        ]


def user(
    pair: KeyPair, signer: KeyPair, of: Tenant | None = None, *, head: Any = None, **body: Any
) -> str:
    """A user's token; `of`: the account, when one of its signing keys signs."""
    issuer = {"issuer_account": of.public} if of is not None else {}
    return tokens.encode(
        signer, {"sub": pair.public, **(head or {})}, {**NO_LIMITS, **issuer, **body}, "user"
    )


def scoped(pair: KeyPair, of: Tenant, *, head: Any = None, **body: Any) -> str:
    """A user's token signed by the scoped key, which sets all rights."""
    return tokens.encode(
        of.scoped,
        {"sub": pair.public, **(head or {})},
        {"issuer_account": of.public, **body},
        "user",
    )


def bob() -> KeyPair:
    return KeyPair(USER)


def forged(token: str, **fields: Any) -> str:
    """The same with other claims, under the signature of the old ones."""
    head, body, signature = token.split(".")
    claims = orjson.loads(nkeys.from_base64(body)) | fields
    return f"{head}.{nkeys.to_base64(orjson.dumps(claims))}.{signature}"


def with_header(token: str, header: str, pair: KeyPair | None = None) -> str:
    """The same claims with another header, signed again if a key is given."""
    signed = f"{nkeys.to_base64(header.encode())}.{token.split('.')[1]}"
    signature = nkeys.to_base64(pair.sign(signed.encode())) if pair else ""
    return f"{signed}.{signature}"
