"""Parts of the pages that come from tokens of operator mode."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import orjson

from broker.base.units import SECOND
from broker.protocols.nats.auth import nkeys
from broker.protocols.nats.monitoring.options import filled, rfc3339

if TYPE_CHECKING:
    from broker.protocols.nats.auth.jwt.accounts import Account
    from broker.protocols.nats.views import ServerView

# The order of a token's standard claims on a page.
_CLAIMS: Final = ("aud", "exp", "jti", "iat", "iss", "name", "nbf", "sub")


def payload(token: str) -> dict[str, Any]:
    """The unverified claims of a token; {} if it is invalid."""
    parts = token.split(".")
    try:
        claims = orjson.loads(nkeys.from_base64(parts[1]))
    except (IndexError, ValueError):
        return {}
    if not isinstance(claims, dict):
        return {}
    return {name: claims[name] for name in _CLAIMS if name in claims} | claims


def known(server: ServerView, name: str) -> Account | None:
    """The account with its token in operator mode; None in other modes."""
    if server.operator is None:
        return None
    found: Account | None = server.operator.tokens.accounts.get(name)
    return found


def account_facts(account: Account) -> dict[str, Any]:
    """The fields of /accountz between the imports and the statistics."""
    claims, body = account.token.claims, account.token.body
    revoked = {key: rfc3339(at * SECOND) for key, at in body.revocations.items()}
    return filled(
        {
            "jwt": account.token.text,
            "issuer_key": claims.iss,
            "name_tag": claims.name,
            "tags": list(body.tags),
            "decoded_jwt": payload(account.token.text),
            "revoked_user": revoked,
        }
    )


def operator_facts(server: ServerView) -> dict[str, Any]:
    """The fields of /varz."""
    resolver = server.settings.resolver
    texts = list(resolver.operators) if resolver is not None else []
    claims = [payload(text) for text in texts]
    return filled({"trusted_operators_jwt": texts, "trusted_operators_claim": claims})
