"""Tokens: those that the original's library made, and forgeries of every kind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import orjson
import pytest
from support.logins.tokens import NO_LIMITS, Company, Tenant, forged, user, with_header

from broker.protocols.nats.auth import nkeys
from broker.protocols.nats.auth.jwt import tokens, validate
from broker.protocols.nats.auth.jwt.tokens import Invalid, decode
from broker.protocols.nats.auth.nkeys import KeyPair

MADE = json.loads((Path(__file__).parents[1] / "keys_and_tokens.json").read_text())
TOKENS, KEYS = MADE["tokens"], MADE["publics"]


def test_operator() -> None:
    token = decode(TOKENS["operator"], "operator")
    assert (token.claims.sub, token.claims.iss) == (KEYS["operator"], KEYS["operator"])
    assert token.body.signing_keys == [KEYS["operator_signing"]]
    assert token.body.system_account == KEYS["account2"]
    old = decode(TOKENS["operator_v1"], "operator")
    assert (old.claims.name, old.body.signing_keys) == ("O1", [KEYS["operator_signing"]])


def test_account() -> None:
    token = decode(TOKENS["account"], "account")
    body: tokens.AccountBody = token.body
    assert (token.claims.sub, token.claims.iss) == (KEYS["account"], KEYS["operator_signing"])
    assert (body.limits.conn, body.limits.subs, body.limits.payload) == (10, 20, 1000)
    assert body.tags == ["region:eu", "team:red"]
    plain, scope = sorted(body.signing_keys, key=str)
    assert plain == KEYS["account_signing"]
    assert isinstance(scope, tokens.Scope)
    assert (scope.key, scope.permissions().subs, scope.permissions().payload) == (
        KEYS["scoped"],
        5,
        500,
    )
    assert [e.subject for e in body.exports] == ["ev.>", "pos.*.x", "svc.*"]
    assert body.mappings["m.*"][0] == tokens.Weighted("n.$1", 60)
    validate.check(token)
    old = decode(TOKENS["account_v1"], "account")
    assert (old.body.limits.conn, old.body.signing_keys) == (3, [KEYS["account_signing"]])
    assert old.body.tags == ["x"]


def test_user() -> None:
    token = decode(TOKENS["user"], "user")
    body: tokens.UserBody = token.body
    assert body.pub.allow == ["foo.>"]
    assert body.sub.deny == ["bar", "q.x grp"]
    assert body.sources() == ["192.0.2.0/24", "2001:db8::/32"]
    assert (body.subs, body.payload) == (7, 77)
    assert body.has_own_permissions()
    validate.check(token)
    assert not decode(TOKENS["user_scoped"], "user").body.has_own_permissions()
    assert decode(TOKENS["user_scoped_escape"], "user").body.has_own_permissions()
    assert decode(TOKENS["user_bearer"], "user").body.bearer_token
    old = decode(TOKENS["user_v1"], "user")
    assert (old.body.issuer_account, old.body.pub.allow) == (KEYS["account"], ["a"])
    assert (old.body.subs, old.body.payload) == (-1, 5)
    assert old.body.sources() == ["192.0.2.0/24", "198.51.100.0/24"]
    with pytest.raises(Invalid, match="expired"):
        validate.check(decode(TOKENS["user_expired"], "user"))


def test_activation() -> None:
    token = decode(TOKENS["activation"], "activation")
    assert (token.body.subject, token.body.kind) == ("svc.*", "service")
    signed = decode(TOKENS["activation_signing"], "activation")
    assert signed.body.issuer_account == KEYS["account"]
    old = decode(TOKENS["activation_v1"], "activation")
    assert (old.body.subject, old.body.kind) == ("e", "stream")
    validate.check(decode(TOKENS["account2"], "account"))


def test_requests_and_answers() -> None:
    request = decode(TOKENS["auth_request"], "authorization_request")
    assert request.body["connect_opts"] == {"user": "u", "pass": "p", "protocol": 1}
    answer = decode(TOKENS["auth_response"], "authorization_response")
    assert answer.body.jwt == TOKENS["user"]
    refusal = decode(TOKENS["auth_response_error"], "authorization_response")
    assert refusal.body.error == "no"


def test_generic() -> None:
    claims, body = tokens.decode_generic(TOKENS["delete"])
    assert (claims.iss, body["accounts"]) == (KEYS["operator"], [KEYS["account"]])
    old, _ = tokens.decode_generic(TOKENS["operator_v1"])
    assert old.name == "O1"


def test_ours_are_read_again() -> None:
    pair, bob = KeyPair("A"), KeyPair("U")
    text = tokens.encode(pair, {"sub": bob.public, "exp": 5}, {"subs": 1}, "user")
    token = decode(text, "user")
    assert (token.claims.iss, token.claims.exp, token.body.subs) == (pair.public, 5, 1)
    assert token.claims.iat > 0


def test_decorated() -> None:
    text = TOKENS["user"]
    fenced = f"-----BEGIN NATS USER JWT-----\n{text}\n------END NATS USER JWT------\n\n"
    assert (
        tokens.undecorated(fenced + "-----BEGIN USER NKEY SEED-----\nSUX\n------END-----") == text
    )
    assert tokens.undecorated(fenced.replace("\n", "\r\n")) == text
    assert tokens.undecorated(f" {text}\n") == text


def test_tokens_do_not_show() -> None:
    assert TOKENS["user_bearer"] not in repr(decode(TOKENS["user_bearer"], "user"))


# --- forgeries

A, BOB, COMPANY = Tenant(), KeyPair("U"), Company()
GOOD = user(BOB, A.pair)


def claims_signed_as(version: int, **body: Any) -> str:
    """Claims of one version, signed the way of the other."""
    claims = {"sub": BOB.public, "iss": A.public, "nats": {**NO_LIMITS, **body}}
    if version == 1:
        claims["type"] = "user"
    else:
        claims["nats"] |= {"type": "user", "version": 2}
    head = nkeys.to_base64(b'{"typ":"JWT","alg":"ed25519-nkey"}')
    payload = nkeys.to_base64(orjson.dumps(claims))
    signed = payload if version == 2 else f"{head}.{payload}"
    return f"{head}.{payload}.{nkeys.to_base64(A.pair.sign(signed.encode()))}"


@pytest.mark.parametrize(
    "token",
    [
        "",
        "..",
        "a.b.c",
        "eyJ.eyJ.eyJ",
        GOOD + "x",
        GOOD + "\n",
        GOOD.replace(".", "", 1),
        GOOD[:-1] + ("A" if GOOD[-2] != "A" else "B") + "=",
        forged(GOOD, name="x"),
        forged(GOOD, iss=KeyPair("A").public),
        forged(GOOD, iss=BOB.public),
        forged(GOOD, iss="A"),
        forged(GOOD, iss=5),
        forged(GOOD, iss=""),
        forged(GOOD, exp=2**40),
        with_header(GOOD, '{"typ":"JWT","alg":"none"}'),
        with_header(GOOD, '{"typ":"JWT","alg":"none"}', A.pair),
        with_header(GOOD, '{"typ":"JWT","alg":"ed25519-nkey2"}', A.pair),
        with_header(GOOD, '{"typ":"JWT"}', A.pair),
        with_header(GOOD, '{"alg":"ed25519-nkey"}', A.pair),
        with_header(GOOD, "[]", A.pair),
        with_header(GOOD, "5", A.pair),
        user(BOB, BOB),
        user(BOB, COMPANY.pair),
        user(BOB, KeyPair("N")),
        claims_signed_as(1),
        claims_signed_as(2),
        tokens.encode(A.pair, {"sub": BOB.public}, {"subs": "1"}, "user"),
        tokens.encode(A.pair, {"sub": BOB.public}, {"subs": [1]}, "user"),
        tokens.encode(A.pair, {"sub": BOB.public}, {"pub": []}, "user"),
        tokens.encode(A.pair, {"sub": BOB.public}, {"resp": {"max": "x"}}, "user"),
        tokens.encode(A.pair, {"sub": BOB.public}, {}, "account"),
        tokens.encode(A.pair, {"sub": BOB.public}, {}, ""),
        COMPANY.account(A),
        TOKENS["activation"],
    ],
)
def test_forgeries(token: str) -> None:
    with pytest.raises(Invalid):
        decode(token, "user")


def test_newer_versions_are_refused() -> None:
    text = forged(GOOD, nats={"type": "user", "version": 3})
    with pytest.raises(Invalid, match="version"):
        decode(text, "user")


def test_every_byte_of_the_signature_counts() -> None:
    head, body, signature = GOOD.split(".")
    raw = nkeys.from_base64(signature)
    for at in range(len(raw)):
        wrong = raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :]
        with pytest.raises(Invalid):
            decode(f"{head}.{body}.{nkeys.to_base64(wrong)}", "user")


def test_deep_json() -> None:
    deep: Any = []
    for _ in range(200):
        deep = [deep]
    with pytest.raises(Invalid):
        decode(tokens.encode(A.pair, {"sub": "x", "name": deep}, {}, "user"), "user")


# --- what may be wrong although the signature is right


def faulty(kind: str, pair: KeyPair, body: dict[str, Any], **head: Any) -> list[str]:
    text = tokens.encode(pair, {"sub": A.public, **head}, body, kind)
    return list(validate.faults(decode(text, kind), 1000.0))


STREAM = {"subject": "a.*", "type": "stream", "account": "A"}
LIMITS = {"imports": -1, "exports": -1, "wildcards": True}


@pytest.mark.parametrize(
    "body",
    [
        {"exports": [{"subject": "a", "type": "stream"}] * 2},
        {"exports": [{"subject": "a.>", "type": "stream"}, {"subject": "a.b", "type": "stream"}]},
        {"exports": [{"subject": "a", "type": "queue"}]},
        {"exports": [{"subject": "a"}]},
        {"exports": [{"subject": "", "type": "stream"}]},
        {"exports": [{"subject": "a..b", "type": "stream"}]},
        {"exports": [{"subject": "a", "type": "stream", "response_type": "Stream"}]},
        {"exports": [{"subject": "a", "type": "service", "response_type": "x"}]},
        {"exports": [{"subject": "a", "type": "service", "response_threshold": -1}]},
        {"exports": [{"subject": "a", "type": "stream", "response_threshold": 1}]},
        {"exports": [{"subject": "a", "type": "service", "account_token_position": 1}]},
        {"exports": [{"subject": "*.a", "type": "service", "account_token_position": 2}]},
        {"exports": [{"subject": "*.a", "type": "service", "account_token_position": 3}]},
        {"exports": [{"subject": "a", "type": "stream", "service_latency": {"results": "r"}}]},
        {"exports": [{"subject": "a", "type": "service", "service_latency": {"results": "r.*"}}]},
        {
            "exports": [
                {
                    "subject": "a",
                    "type": "service",
                    "service_latency": {"sampling": 101, "results": "r"},
                }
            ]
        },
        {"imports": [{"subject": "a", "type": "stream"}]},
        {"imports": [{"subject": "a", "type": "x", "account": "A"}]},
        {"imports": [{"subject": "a b", "type": "stream", "account": "A"}]},
        {"imports": [{"subject": "a", "type": "stream", "account": "A", "share": True}]},
        {"imports": [{"subject": "a", "type": "stream", "account": "A", "token": "x"}]},
        {"imports": [{"subject": "a", "type": "service", "account": "A"}] * 2},
        {
            "imports": [
                {"subject": "a.*", "type": "service", "account": "A"},
                {"subject": "b.*", "type": "service", "account": "A", "local_subject": "a.$1"},
            ]
        },
        {"imports": [{"subject": "a.*", "type": "stream", "account": "A", "local_subject": "b"}]},
        {
            "imports": [
                {"subject": "a.*", "type": "stream", "account": "A", "local_subject": "b.$2"}
            ]
        },
        {"imports": [{"subject": "a.>", "type": "stream", "account": "A", "local_subject": "b"}]},
        {
            "imports": [
                {"subject": "a", "type": "service", "account": "A", "to": "b", "local_subject": "c"}
            ]
        },
        {"mappings": {"": [{"subject": "a"}]}},
        {"mappings": {"a": [{"subject": ""}]}},
        {"mappings": {"a": [{"subject": "b", "weight": 60}, {"subject": "c", "weight": 60}]}},
        {"mappings": {"a": [{"subject": "b"}, {"subject": "c"}]}},
        {"signing_keys": ["x"]},
        {"signing_keys": [BOB.public]},
        {"signing_keys": [{"kind": "other", "key": A.public}]},
        {"signing_keys": [{"kind": "user_scope", "key": BOB.public}]},
        {"authorization": {"allowed_accounts": [A.public]}},
        {"authorization": {"auth_users": [A.public]}},
        {"authorization": {"auth_users": [BOB.public], "allowed_accounts": ["*", A.public]}},
        {"authorization": {"auth_users": [BOB.public], "allowed_accounts": ["x"]}},
        {"authorization": {"auth_users": [BOB.public], "xkey": BOB.public}},
        {"default_permissions": {"pub": {"allow": ["a b"]}}},
        {"default_permissions": {"sub": {"allow": ["a b c"]}}},
        {"limits": {**LIMITS, "tiered_limits": {"": {"mem_storage": 1}}}},
        {"trace": {"sampling": 1}},
        {"trace": {"dest": "a b"}},
        {"trace": {"dest": "a.*"}},
        {"trace": {"dest": "a", "sampling": -1}},
        {"trace": {"dest": "a", "sampling": 101}},
        {"cluster_traffic": "x"},
        {"info_url": "x"},
        {"info_url": "http://[::1"},
        {"exports": [{"subject": "a", "type": "stream", "allow_trace": True}]},
        {"exports": [{"subject": "a", "type": "stream", "info_url": "x"}]},
        {"imports": [{"subject": "a", "type": "service", "account": "A", "allow_trace": True}]},
        {"limits": {"imports": 0}, "imports": [{"subject": "a", "type": "stream", "account": "A"}]},
        {"limits": {"exports": 0}, "exports": [{"subject": "a", "type": "stream"}]},
        {
            "limits": {"exports": 5, "wildcards": False},
            "exports": [{"subject": "a.*", "type": "stream"}],
        },
    ],
)
def test_faulty_accounts(body: dict[str, Any]) -> None:
    assert faulty("account", COMPANY.pair, {"limits": LIMITS, **body})


def test_accounts_without_fault() -> None:
    body = {
        "limits": LIMITS,
        "exports": [{"subject": "a.*", "type": "service", "account_token_position": 2}],
        "imports": [
            {"subject": "a.*.*", "type": "stream", "account": "A", "local_subject": "$2.*"},
            {"subject": "s", "type": "service", "account": "A"},
            {"subject": "s", "type": "service", "account": "B"},
        ],
        "mappings": {
            "a": [{"subject": "b", "weight": 50}, {"subject": "c", "weight": 100, "cluster": "x"}]
        },
        "authorization": {"auth_users": [BOB.public], "allowed_accounts": ["*"]},
        "trace": {"dest": "a"},
        "cluster_traffic": "owner",
        "info_url": "https://example.com/a",
    }
    assert faulty("account", COMPANY.pair, body) == []


@pytest.mark.parametrize(
    ("head", "body"),
    [
        ({"exp": 999}, {}),
        ({"nbf": 1001}, {}),
        ({}, {"src": ["x"]}),
        ({}, {"src": ["10.0.0.0/33"]}),
        ({}, {"src": ["10.0.0.0/255.0.0.0"]}),
        ({}, {"times": [{}]}),
        ({}, {"times": [{"start": "24:00:00", "end": "01:00:00"}]}),
        ({}, {"times_location": "../etc/passwd"}),
        ({}, {"times_location": "Nowhere"}),
        ({}, {"issuer_account": BOB.public}),
        ({}, {"pub": {"deny": [" "]}}),
        ({}, {"sub": {"deny": ["a "]}}),
    ],
)
def test_faulty_users(head: dict[str, Any], body: dict[str, Any]) -> None:
    assert faulty("user", A.pair, body, **head)


def test_the_last_second() -> None:
    assert faulty("user", A.pair, {}, exp=1000, nbf=1000) == []


@pytest.mark.parametrize(
    "body",
    [
        {"signing_keys": [A.public]},
        {"system_account": COMPANY.pair.public},
        {"account_server_url": "localhost"},
        {"assert_server_version": "2.10"},
    ],
)
def test_faulty_operators(body: dict[str, Any]) -> None:
    assert faulty("operator", COMPANY.pair, body)


# --- places and times of users


@pytest.mark.parametrize(
    ("sources", "host", "may"),
    [
        ([], "", True),
        (["10.0.0.0/8"], "10.1.2.3", True),
        (["10.9.9.9/8"], "10.1.2.3", True),
        (["10.0.0.0/8"], "11.1.2.3", False),
        (["10.0.0.0/8"], "::ffff:10.1.2.3", True),
        (["10.0.0.0/8", "2001:db8::/32"], "2001:db8::1", True),
        (["10.0.0.0/8"], "2001:db8::1", False),
        (["10.0.0.0/8"], "", False),
        (["10.0.0.0/8"], "localhost", False),
        (["x"], "10.1.2.3", False),
    ],
)
def test_places(sources: list[str], host: str, may: bool) -> None:
    assert validate.host_allowed(tokens.UserPermissions(src=sources or None), host) == may


NOON = 1_700_000_000 // 86_400 * 86_400 + 43_200.0  # in UTC


@pytest.mark.parametrize(
    ("start", "end", "left"),
    [
        ("11:00:00", "13:00:00", 3600),
        ("12:00:00", "13:00:00", None),  # not yet: later than the start
        ("11:59:59", "12:00:01", 1),
        ("11:00:00", "12:00:00", None),
        ("11:00:00", "01:00:00", 13 * 3600),  # into the next day
        ("22:00:00", "13:00:00", None),  # the night began yesterday: as the original
        ("11:00:00", "11:00:00", None),
        ("9:00:00", "13:00:00", 3600),
        ("11:00:00.5", "13:00:00", 3600),
    ],
)
def test_times(start: str, end: str, left: float | None) -> None:
    ranges = [tokens.TimeRange("00:00:00", "00:00:01"), tokens.TimeRange(start, end)]
    permissions = tokens.UserPermissions(times=ranges, times_location="UTC")
    assert validate.seconds_left(permissions, NOON) == left


def test_times_elsewhere() -> None:
    permissions = tokens.UserPermissions(times=[tokens.TimeRange("20:00:00", "22:00:00")])
    times = permissions.times  # in Tokyo, NOON is 21:00
    tokyo = tokens.UserPermissions(times=times, times_location="Asia/Tokyo")
    assert validate.seconds_left(tokyo, NOON) == 3600
    assert validate.seconds_left(tokens.UserPermissions(), NOON) == 0
