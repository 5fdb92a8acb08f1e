"""What tokens claim, as settings."""

from __future__ import annotations

from typing import Any

import pytest
from support.logins.tokens import ACCOUNT_LIMITS, Company, Tenant, scoped

from broker.base.units import SECOND
from broker.protocols.nats import limits, settings
from broker.protocols.nats.auth.jwt import claims, tokens
from broker.protocols.nats.auth.jwt.tokens import (
    Invalid,
    Permission,
    Responses,
    Token,
    UserPermissions,
    decode,
)
from broker.protocols.nats.auth.nkeys import KeyPair
from broker.protocols.nats.settings import ResponseRule, Rules, SubjectRule
from tests.unit.protocols.nats.auth.jwt.test_tokens import KEYS, TOKENS

COMPANY, BOB = Company(), KeyPair("U")


def rules(*texts: str) -> tuple[SubjectRule, ...]:
    return tuple(SubjectRule(*text.split()) for text in texts)


# --- permissions


def test_permissions() -> None:
    nothing = Permission()
    assert claims.permissions(nothing, nothing, None) is None
    assert claims.permissions(Permission([], []), nothing, None) is None
    assert claims.permissions(Permission(["a"]), nothing, None) == settings.Permissions(
        Rules(rules("a"))
    )
    assert claims.permissions(nothing, Permission(["a", "b q"], ["c"]), None) == (
        settings.Permissions(Rules(), Rules(rules("a", "b q"), rules("c")))
    )
    # nothing may be published where an empty list stands beside what is denied
    assert claims.permissions(Permission([], ["a"]), nothing, None) == settings.Permissions(
        Rules((), rules("a"))
    )
    assert claims.permissions(nothing, Permission([], ["a"]), None) == settings.Permissions(
        Rules(), Rules(None, rules("a"))
    )


def test_responses() -> None:
    found = claims.permissions(Permission(), Permission(), Responses())
    assert found == settings.Permissions(Rules(()), Rules(), ResponseRule())
    assert found.responses == ResponseRule(limits.NATS_RESPONSES_MAX, limits.NATS_RESPONSES_EXPIRE)
    found = claims.permissions(Permission(["a"]), Permission(), Responses(-1, 5))
    assert found == settings.Permissions(Rules(rules("a")), Rules(), ResponseRule(-1, 5))


# --- scopes


def filled(
    template: dict[str, Any], name: str = "bob", tags: list[str] | None = None
) -> UserPermissions:
    tenant = Tenant("A", tags=["team:red", "team:blue"])
    tenant.scope(**template)
    account = decode(COMPANY.account(tenant), "account")
    user = decode(scoped(BOB, tenant, head={"name": name}, tags=tags or []), "user")
    scope = claims.signing_keys(account)[tenant.scoped.public]
    assert scope is not None
    return claims.fill_in(scope.permissions(), user, account)


def published(*texts: str, name: str = "bob", tags: list[str] | None = None) -> list[str] | None:
    return filled({"pub": {"allow": list(texts)}}, name, tags).pub.allow


def test_what_the_original_made() -> None:
    user, account = decode(TOKENS["user_scoped"], "user"), decode(TOKENS["account"], "account")
    scope = claims.signing_keys(account)[KEYS["scoped"]]
    assert scope is not None
    permissions = claims.fill_in(scope.permissions(), user, account)
    assert permissions.pub.allow == [
        f"pub.bob.{KEYS['user']}",
        f"acc.A.{KEYS['account']}",
        "t.a.red",
        "t.b.red",
    ]
    assert (permissions.sub.allow, permissions.sub.deny) == ([], ["d.a", "d.b", ">"])
    assert (permissions.resp, permissions.subs, permissions.payload) == (
        Responses(3, 10**9),
        5,
        500,
    )


def test_places() -> None:
    assert published("a.b", "{{name()}}.x") == ["a.b", "bob.x"]
    assert published("{{NAME()}}") == ["bob"]
    assert published("x.{{subject()}}") == [f"x.{BOB.public}"]
    assert published("{{account-name()}}.*") == ["A.*"]
    assert published("{{tag(d)}}", tags=["d:1", "d:2", "e:3"]) == ["1", "2"]
    assert published("{{account-tag(team)}}.{{tag(d)}}", tags=["d:1", "d:2"]) == [
        "red.1", "red.2", "blue.1", "blue.2",
    ]  # fmt: skip
    assert published("a", "x{{name()}}") == ["a", "x{{name()}}"]  # not a token of its own


def test_what_cannot_be_filled_in_is_left_out() -> None:
    assert published("a", "{{tag(d)}}") == ["a"]
    assert published("a", "{{other()}}") == ["a"]
    assert published("a", "x.{{name()}}", name="") == ["a"]
    assert published("a", "x.{{name()}}", name="b c") == ["a"]
    assert published("a", "{{name()}}.x", name=">") == ["a"]
    assert published("a", "{{tag(d)}}.{{tag(e)}}", tags=["d:1"]) == ["a"]


def test_nothing_left_is_nothing_allowed() -> None:
    permissions = filled({"pub": {"allow": ["{{tag(d)}}"]}, "sub": {"allow": ["{{tag(d)}}"]}})
    assert (permissions.pub.allow, permissions.pub.deny) == ([], [">"])
    found = claims.permissions(permissions.pub, permissions.sub, None)
    assert found is not None
    assert found.publish == Rules((), rules(">"))
    assert found.subscribe == Rules(None, rules(">"))


def test_what_is_denied_must_be_filled_in() -> None:
    for kind in ("pub", "sub"):
        with pytest.raises(Invalid):
            filled({kind: {"deny": ["{{tag(d)}}"]}})


def test_tags_do_not_multiply_without_end() -> None:
    tags = [f"d:{n}" for n in range(30)]
    with pytest.raises(Invalid, match="too many"):
        published("{{tag(d)}}.{{tag(d)}}.{{tag(d)}}", tags=tags)


# --- accounts


def translated(tenant: Tenant, *others: Token) -> settings.Account:
    known = {other.claims.sub: other for other in others}
    token = decode(COMPANY.account(tenant), "account")
    return claims.account(token, known.get, 1000.0)


def jetstream(**given: Any) -> settings.JetStreamLimits:
    """What a token says: 0 for some of what it does not name."""
    zeros = {"max_memory": 0, "max_storage": 0, "max_streams": 0, "max_consumers": 0}
    return settings.JetStreamLimits(**{**zeros, **given})


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, None),
        ({"streams": 5}, None),  # without any storage
        (
            {"mem_storage": -1, "disk_storage": 1000, "streams": 5, "consumer": 3},
            jetstream(max_memory=-1, max_storage=1000, max_streams=5, max_consumers=3),
        ),
        (
            {"disk_storage": 7, "disk_max_stream_bytes": 2, "max_bytes_required": True},
            jetstream(max_storage=7, storage_max_stream_bytes=2, max_bytes_required=True),
        ),
        (
            {"tiered_limits": {"R1": {"disk_storage": 9}, "R3": {"disk_storage": 90}}},
            jetstream(
                max_storage=9,
                tiers=(
                    ("R1", jetstream(max_storage=9)),
                    ("R3", jetstream(max_storage=90)),
                ),
            ),
        ),
        (
            {"disk_storage": 5, "tiered_limits": {"R3": {"disk_storage": 90, "streams": 2}}},
            jetstream(
                max_storage=0,
                tiers=(("R3", jetstream(max_storage=90, max_streams=2)),),
            ),
        ),
        ({"disk_storage": 5, "tiered_limits": {"R1": {"streams": 5}}}, None),
    ],
)
def test_limits_of_jetstream(
    given: dict[str, Any], expected: settings.JetStreamLimits | None
) -> None:
    tenant = Tenant("A", limits={**ACCOUNT_LIMITS, **given})
    token = decode(COMPANY.account(tenant), "account")
    assert claims.account(token, lambda _: None, 0.0).jetstream == expected


def exporter(**export: Any) -> tuple[Tenant, Token]:
    tenant = Tenant("X", exports=[{"subject": "s.*", "type": "service", **export}])
    return tenant, decode(COMPANY.account(tenant), "account")


def activation(by: Tenant, to: Tenant, pair: KeyPair | None = None, **more: Any) -> str:
    head = {"sub": to.public, **more.pop("head", {})}
    body = {"subject": "s.*", "kind": "service", **more}
    return tokens.encode(pair or by.pair, head, body, "activation")


def test_account() -> None:
    config = claims.account(decode(TOKENS["account"], "account"), lambda _: None, 0.0)
    assert config.limits == settings.AccountLimits(10, 20, 1000, -1)
    assert config.default_permissions == settings.Permissions(Rules(None, rules("secret")))
    assert config.mappings == (
        settings.Mapping(
            "m.*", (settings.Destination("n.$1", 60), settings.Destination("o.$1", 40))
        ),
    )
    stream, position, service = config.exports
    assert stream == settings.Export("ev.>", service=False)
    assert position == settings.Export(
        "pos.*.x", service=True, token_position=2, latency_subject="lat2", latency_sampling=-1
    )
    assert service == settings.Export(
        "svc.*",
        service=True,
        accounts=(),
        response_type="stream",
        threshold_ns=SECOND,
        latency_subject="lat",
        latency_sampling=50,
    )


def test_traces() -> None:
    other = Tenant(
        "E",
        exports=[
            {"subject": "q", "type": "service", "allow_trace": True},
            {"subject": "ev", "type": "stream"},
        ],
    )
    token = decode(COMPANY.account(other), "account")
    exported = claims.account(token, lambda _: None, 0.0)
    assert [one.allow_trace for one in exported.exports] == [True, False]
    assert (exported.trace_dest, exported.trace_sampling) == ("", 100)
    imports = [
        {"subject": "q", "type": "service", "account": other.public},
        {"subject": "ev", "type": "stream", "account": other.public, "allow_trace": True},
    ]
    for trace, sampling in (({"dest": "t"}, 100), ({"dest": "t", "sampling": 7}, 7)):
        found = translated(Tenant("I", imports=imports, trace=trace), token)
        assert [one.allow_trace for one in found.imports] == [False, True]
        assert (found.trace_dest, found.trace_sampling) == ("t", sampling)


def test_only_minus_one_is_no_limit() -> None:
    below = {**ACCOUNT_LIMITS, "conn": -2, "subs": -3, "payload": -4, "leaf": -5}
    assert translated(Tenant("A", limits=below)).limits == settings.AccountLimits(0, 0, 0, 0)
    assert translated(Tenant("A", limits=ACCOUNT_LIMITS)).limits == settings.AccountLimits()


def test_imports() -> None:
    known = {KEYS["account"]: decode(TOKENS["account"], "account")}
    config = claims.account(decode(TOKENS["account2"], "account"), known.get, 2_000_000_000.0)
    assert config.imports == (
        settings.Import(KEYS["account"], "ev.a.>", service=False, to="in.>"),
        settings.Import(
            KEYS["account"], "svc.*", service=True, to="my.$1", share=True, granted=True
        ),
    )
    assert claims.account(decode(TOKENS["account2"], "account"), {}.get, 0.0).imports == ()


def test_the_older_way_to_write_imports() -> None:
    _, other = exporter()
    name = other.claims.sub
    tenant = Tenant(
        "I", imports=[{"subject": "r.a", "type": "service", "account": name, "to": "s.a"}]
    )
    assert translated(tenant, other).imports == (
        settings.Import(name, "s.a", service=True, to="r.a"),
    )
    stream = Tenant("X", exports=[{"subject": "ev", "type": "stream"}])
    token = decode(COMPANY.account(stream), "account")
    tenant = Tenant(
        "I", imports=[{"subject": "ev", "type": "stream", "account": stream.public, "to": "pre"}]
    )
    assert translated(tenant, token).imports == (
        settings.Import(stream.public, "ev", service=False, prefix="pre"),
    )


def test_only_what_is_exported_is_imported() -> None:
    _, other = exporter()
    name = other.claims.sub
    for subject, kind, there in (
        ("s.a", "service", True),
        ("s.*", "service", True),
        ("s.>", "service", False),
        ("s", "service", False),
        ("s.a", "stream", False),
    ):
        tenant = Tenant("I", imports=[{"subject": subject, "type": kind, "account": name}])
        assert bool(translated(tenant, other).imports) == there


def importing(by: Tenant, other: Token, token: str) -> bool:
    name = other.claims.sub
    one = {"subject": "s.a", "type": "service", "account": name, "token": token}
    by.body["imports"] = [one]
    try:
        found = translated(by, other).imports
    except Invalid:
        return False
    return bool(found) and found[0].granted


def test_activations() -> None:
    tenant, other = exporter(token_req=True)
    by, somebody = Tenant("I"), Tenant("S")
    assert importing(by, other, activation(tenant, by))
    assert importing(
        by, other, activation(tenant, by, tenant.signing, issuer_account=tenant.public)
    )
    assert importing(by, other, activation(tenant, by, head={"exp": 2000}))
    for token in (
        "",
        "x",
        activation(somebody, by),
        activation(tenant, somebody),
        activation(tenant, by, somebody.pair, issuer_account=tenant.public),
        activation(tenant, by, tenant.signing),
        activation(tenant, by, head={"exp": 999}),
        activation(tenant, by, head={"nbf": 1001}),
    ):
        assert not importing(by, other, token)


def test_revoked_activations() -> None:
    by = Tenant("I")
    for revocations, there in (
        ({by.public: 2**40}, False),
        ({"*": 2**40}, False),
        ({by.public: 5}, True),
        ({Tenant().public: 2**40}, True),
    ):
        tenant, other = exporter(token_req=True, revocations=revocations)
        assert importing(by, other, activation(tenant, by)) == there


def test_the_account_in_the_subject_is_right_enough() -> None:
    _, other = exporter(token_req=True, account_token_position=2)
    by = Tenant("I", imports=[{"subject": "s.x", "type": "service", "account": other.claims.sub}])
    assert translated(by, other).imports[0].granted is False
    config = claims.account(other, lambda _: None, 0.0)
    assert (config.exports[0].accounts, config.exports[0].token_position) == (None, 2)


# --- revocations


def test_revocations() -> None:
    assert claims.is_revoked({"U": 5}, "U", 5)
    assert claims.is_revoked({"U": 5}, "U", 4)
    assert not claims.is_revoked({"U": 5}, "U", 6)
    assert not claims.is_revoked({"U": 5}, "V", 1)
    assert claims.is_revoked({"*": 5}, "V", 5)
    assert not claims.is_revoked({}, "V", 0)
