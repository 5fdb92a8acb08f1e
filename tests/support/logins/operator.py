"""The table of logins in operator mode."""

from __future__ import annotations

import time
from typing import Any

from broker.protocols.nats.auth import nkeys
from broker.protocols.nats.auth.jwt import tokens
from broker.protocols.nats.auth.nkeys import USER, KeyPair
from broker.protocols.nats.settings import Resolver, Settings
from support.logins.table import VIOLATION, Case, Try, login, silent
from support.logins.tokens import (
    ACCOUNT_LIMITS,
    NO_LIMITS,
    Company,
    Tenant,
    forged,
    scoped,
    user,
    with_header,
)

NOW = int(time.time())
HOUR = 3600


def case(name: str, company: Company, preload: dict[str, str], *tries: Try, **more: Any) -> Case:
    """In memory; `more`: pinned."""
    pinned = more.get("pinned", ())
    lines = [f"operator: {company.token}", "resolver: MEMORY", "resolver_preload {"]
    lines += [f"  {account}: {token}" for account, token in preload.items()]
    lines.append("}")
    if pinned:
        lines.append(f"resolver_pinned_accounts: [{', '.join(pinned)}]")
    resolver = Resolver(
        operators=(company.token,),
        preload=tuple(preload.items()),
        pinned_accounts=frozenset(pinned),
    )
    return Case(name, "\n".join(lines), Settings(resolver=resolver), tries, nonce=True)


def by(
    name: str, pair: KeyPair, token: str, error: str = "", *, sign: str = "nonce", **more: Any
) -> Try:
    """With a token; `sign`: what of the nonce is signed, or nothing."""

    def fields(nonce: str) -> dict[str, Any]:
        text = {"nonce": nonce, "replay": "old"}.get(sign, "")
        signature = nkeys.to_base64(pair.sign(text.encode())) if text else ""
        return {"jwt": token, "sig": signature, **more}

    return Try(name, fields, error)


COMPANY, STRANGERS = Company(), Company()
STRICT = Company(strict_signing_key_usage=True)
BOB, EVE = KeyPair(USER), KeyPair(USER)
A = Tenant("A", tags=["team:red"])
A.scope(pub={"allow": ["a.{{name()}}"]}, sub={"deny": ["x.{{tag(dept)}}"]}, **NO_LIMITS)
B = Tenant("B")
CLOSED = Tenant("CLOSED", limits={**ACCOUNT_LIMITS, "disallow_bearer": True})
REVOKING = Tenant("REVOKING", revocations={BOB.public: NOW + HOUR})
REVOKED_BEFORE = Tenant("BEFORE", revocations={BOB.public: NOW - HOUR})
ALL_REVOKED = Tenant("ALL", revocations={"*": NOW + HOUR})
TWO_SCOPES = Tenant("SCOPES")
NO_SUBJECTS = Tenant(
    "NO_SUBJECTS",
    imports=[{"subject": "a.>.b", "type": "service", "account": A.public, "to": "x"}],
    default_permissions={"pub": {"allow": ["a.>.b"]}},
)
A.body["exports"] = [{"subject": "x", "type": "service"}]
TWO_SCOPES.scope(bearer_token=True, allowed_connection_types=["STANDARD"], **NO_LIMITS)

GOOD = user(BOB, A.pair)
_PRELOAD = {
    tenant.public: COMPANY.account(tenant)
    for tenant in (A, CLOSED, REVOKING, REVOKED_BEFORE, ALL_REVOKED, TWO_SCOPES, NO_SUBJECTS)
}
_TODAY = {"start": "00:00:00", "end": "23:59:59"}
_NEVER = {"start": "12:00:00", "end": "12:00:00"}


def _wrong_kind() -> str:
    head = {"sub": BOB.public}
    return tokens.encode(A.pair, head, {"subject": "x", "kind": "stream"}, "activation")


CASES = (
    case(
        "who signs",
        COMPANY,
        _PRELOAD,
        silent(VIOLATION),
        login("nothing", VIOLATION),
        login("a password", VIOLATION, user="x", **{"pass": "y"}),
        by("the account", BOB, GOOD),
        by("its signing key", BOB, user(BOB, A.signing, A)),
        by("its signing key, without saying whose", BOB, user(BOB, A.signing), VIOLATION),
        by("another account's key", BOB, user(BOB, B.pair, A), VIOLATION),
        by("an account that is not there", BOB, user(BOB, B.pair), VIOLATION),
        by("the user itself", BOB, user(BOB, BOB), VIOLATION),
        by("the operator", BOB, user(BOB, COMPANY.pair, A), VIOLATION),
        by("nobody: changed claims", BOB, forged(GOOD, sub=BOB.public, name="x"), VIOLATION),
        by("somebody else's claims", EVE, forged(GOOD, sub=EVE.public), VIOLATION),
        by("another kind of token", BOB, _wrong_kind(), VIOLATION),
        by("an account's token", BOB, COMPANY.account(A), VIOLATION),
    ),
    case(
        "what is signed",
        COMPANY,
        _PRELOAD,
        by("an old nonce", BOB, GOOD, VIOLATION, sign="replay"),
        by("nothing", BOB, GOOD, VIOLATION, sign="no"),
        by("by another user", EVE, GOOD, VIOLATION),
        by("no algorithm", BOB, with_header(GOOD, '{"typ":"JWT","alg":"none"}'), VIOLATION),
        by(
            "another algorithm",
            BOB,
            with_header(GOOD, '{"typ":"JWT","alg":"HS256"}', A.pair),
            VIOLATION,
        ),
        by(
            "another type",
            BOB,
            with_header(GOOD, '{"typ":"JWE","alg":"ed25519-nkey"}', A.pair),
            VIOLATION,
        ),
        by(
            "letters of other size",
            BOB,
            with_header(GOOD, '{"alg":"Ed25519-NKEY","typ":"jwt"}', A.pair),
        ),
        by("no signature", BOB, GOOD.rsplit(".", 1)[0] + ".", VIOLATION),
        by("two parts", BOB, GOOD.rsplit(".", 1)[0], VIOLATION),
        by("four parts", BOB, GOOD + ".x", VIOLATION),
        by("not base64", BOB, GOOD + "=", VIOLATION),
        by("junk", BOB, "junk", VIOLATION),
    ),
    case(
        "bearers",
        COMPANY,
        _PRELOAD,
        by("without a signature", BOB, user(BOB, A.pair, bearer_token=True), sign="no"),
        by(
            "not in this account",
            BOB,
            user(BOB, CLOSED.pair, bearer_token=True),
            VIOLATION,
            sign="no",
        ),
        by("this account, signed", BOB, user(BOB, CLOSED.pair)),
        by("by scope", BOB, scoped(BOB, TWO_SCOPES), sign="no"),
    ),
    case(
        "times",
        COMPANY,
        _PRELOAD,
        by("expired", BOB, user(BOB, A.pair, head={"exp": NOW - 10}), VIOLATION),
        by("not yet", BOB, user(BOB, A.pair, head={"nbf": NOW + HOUR}), VIOLATION),
        by(
            "both in order",
            BOB,
            user(BOB, A.pair, head={"exp": NOW + HOUR, "nbf": NOW - HOUR}),
        ),
        by("all day", BOB, user(BOB, A.pair, times=[_TODAY], times_location="UTC")),
        by("never", BOB, user(BOB, A.pair, times=[_NEVER]), VIOLATION),
        by(
            "no such place", BOB, user(BOB, A.pair, times=[_TODAY], times_location="X/Y"), VIOLATION
        ),
        by("no such time", BOB, user(BOB, A.pair, times=[{"start": "25:00:00"}]), VIOLATION),
        by("revoked", BOB, user(BOB, REVOKING.pair), VIOLATION),
        by("another user is revoked", EVE, user(EVE, REVOKING.pair)),
        by("revoked before it was issued", BOB, user(BOB, REVOKED_BEFORE.pair)),
        by("all are revoked", EVE, user(EVE, ALL_REVOKED.pair), VIOLATION),
    ),
    case(
        "places",
        COMPANY,
        _PRELOAD,
        by("from here", BOB, user(BOB, A.pair, src=["192.0.2.0/24", "127.0.0.1/8"])),
        by("from elsewhere", BOB, user(BOB, A.pair, src=["192.0.2.0/24"]), VIOLATION),
        by("a list in one string", BOB, user(BOB, A.pair, src="192.0.2.0/24, 127.0.0.0/8")),
        by("not a network", BOB, user(BOB, A.pair, src=["127.0.0.1"]), VIOLATION),
        by("this kind", BOB, user(BOB, A.pair, allowed_connection_types=["standard"])),
        by(
            "another kind",
            BOB,
            user(BOB, A.pair, allowed_connection_types=["WEBSOCKET"]),
            VIOLATION,
        ),
        by("an unknown kind", BOB, user(BOB, A.pair, allowed_connection_types=["X"]), VIOLATION),
        by("and a known one", BOB, user(BOB, A.pair, allowed_connection_types=["X", "STANDARD"])),
    ),
    case(
        "scopes",
        COMPANY,
        _PRELOAD,
        by("within", BOB, scoped(BOB, A, head={"name": "bob"}, tags=["dept:a"])),
        by("more rights", BOB, scoped(BOB, A, pub={"allow": [">"]}), VIOLATION),
        by("no limits", BOB, scoped(BOB, A, **NO_LIMITS), VIOLATION),
        by("a bearer by itself", BOB, scoped(BOB, A, bearer_token=True), VIOLATION, sign="no"),
        by(
            "another's scope",
            BOB,
            tokens.encode(A.scoped, {"sub": BOB.public}, {"issuer_account": B.public}, "user"),
            VIOLATION,
        ),
        by("a deny without its tag", BOB, scoped(BOB, A, head={"name": "bob"}), VIOLATION),
        by(
            "a deny that is not a subject",
            BOB,
            scoped(BOB, A, head={"name": "bob"}, tags=["dept:a b"]),
            VIOLATION,
        ),
    ),
    case(
        "what the token says",
        COMPANY,
        _PRELOAD,
        by("a subject with a blank", BOB, user(BOB, A.pair, pub={"allow": ["a b"]}), VIOLATION),
        by("a queue group", BOB, user(BOB, A.pair, sub={"allow": ["a b"]})),
        by("an empty subject", BOB, user(BOB, A.pair, sub={"deny": [""]}), VIOLATION),
        by("a number for a list", BOB, user(BOB, A.pair, sub=5), VIOLATION),
        by("a null", BOB, user(BOB, A.pair, sub=None, resp=None)),
        by("a key for the issuer's", BOB, user(BOB, A.pair, issuer_account="A"), VIOLATION),
        by("fields nobody knows", BOB, user(BOB, A.pair, colour="red")),
        by("> within a subject", BOB, user(BOB, A.pair, pub={"allow": ["a.>.b"]})),
        by("> within a subject of the account", BOB, user(BOB, NO_SUBJECTS.pair)),
    ),
    case(
        "accounts",
        COMPANY,
        {
            A.public: STRANGERS.account(A),
            B.public: COMPANY.account(B, COMPANY.pair),
            CLOSED.public: COMPANY.account(CLOSED, CLOSED.pair),
            REVOKING.public: COMPANY.account(REVOKING, head={"exp": NOW - 10}),
            ALL_REVOKED.public: COMPANY.account(REVOKED_BEFORE),
        },
        by("of another operator", BOB, GOOD, VIOLATION),
        by("signed by the operator's first key", BOB, user(BOB, B.pair)),
        by("signed by itself", BOB, user(BOB, CLOSED.pair), VIOLATION),
        by("expired", EVE, user(EVE, REVOKING.pair), VIOLATION),
        by("under another's name", EVE, user(EVE, ALL_REVOKED.pair), VIOLATION),
    ),
    case(
        "strict operators",
        STRICT,
        {A.public: STRICT.account(A), B.public: STRICT.account(B, STRICT.pair)},
        by("by the account itself", BOB, user(BOB, A.pair), VIOLATION),
        by("by its signing key", BOB, user(BOB, A.signing, A)),
        by("of an account that the operator's first key signed", BOB, user(BOB, B.pair), VIOLATION),
    ),
    case(
        "pinned accounts",
        COMPANY,
        {A.public: COMPANY.account(A), B.public: COMPANY.account(B)},
        by("one of them", BOB, GOOD),
        by("another", BOB, user(BOB, B.pair), VIOLATION),
        pinned=(A.public,),
    ),
)
