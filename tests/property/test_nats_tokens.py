"""Whatever a peer sends where a key, a name or a token should be, it is refused in order."""

from __future__ import annotations

import contextlib

from hypothesis import given
from hypothesis import strategies as st
from support.logins.tokens import Company, Tenant, scoped, user

from broker.protocols.nats.auth import certificates, nkeys
from broker.protocols.nats.auth.jwt import claims, tokens, validate
from broker.protocols.nats.auth.jwt.tokens import Invalid
from broker.protocols.nats.auth.nkeys import KeyPair

TENANT, COMPANY, BOB = Tenant(), Company(), KeyPair("U")
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=9),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner, max_size=4)
    ),
    max_leaves=12,
)
BODY = st.dictionaries(
    st.sampled_from(
        sorted(
            set(tokens.UserBody.__struct_fields__)
            | set(tokens.AccountBody.__struct_fields__)
            | set(tokens.OperatorBody.__struct_fields__)
        )
    ),
    JSON,
)


@given(st.text(max_size=80) | st.text("ABCDEFGHIJKLMNOPQRSTUVWXYZ234567", min_size=50, max_size=60))
def test_keys(text: str) -> None:
    nkeys.is_any_public(text)
    with contextlib.suppress(ValueError):
        nkeys.KeyPair.from_seed(text)
    nkeys.decode_signature(text)
    nkeys.verify_nonce(text, b"nonce", text)


@given(st.sampled_from("NCOAU"), st.binary(min_size=32, max_size=32))
def test_keys_there_and_back(kind: str, raw: bytes) -> None:
    pair = KeyPair(kind, raw)
    assert KeyPair.from_seed(pair.seed).public == pair.public
    assert nkeys.decode(pair.public)[0] == kind


@given(st.text(max_size=80))
def test_names_of_certificates(text: str) -> None:
    certificates.parse_name(text)


@given(st.binary(max_size=200))
def test_certificates(der: bytes) -> None:
    assert certificates.find_user(der, {"x": 1}) is None


@given(st.data())
def test_mutations(data: st.DataObject) -> None:
    """No byte of a token can be changed."""
    text = user(BOB, TENANT.pair)
    at = data.draw(st.integers(0, len(text) - 1))
    letter = data.draw(st.characters())
    changed = text[:at] + letter + text[at + 1 :]
    try:
        found = tokens.decode(changed, "user")
    except Invalid:
        return
    # The last letter of a part has bits that mean nothing.
    assert found.claims == tokens.decode(text, "user").claims


@given(st.sampled_from(["user", "account", "operator", "activation"]), BODY)
def test_bodies(kind: str, body: dict[str, object]) -> None:
    """Signed by whom it may be, and still nonsense."""
    pair = COMPANY.pair if kind in {"account", "operator"} else TENANT.pair
    try:
        text = tokens.encode(pair, {"sub": TENANT.public}, body, kind)
    except TypeError:  # a number that JSON has no room for
        return
    try:
        token = tokens.decode(text, kind)
        validate.check(token)
        if kind == "account":
            claims.account(token, lambda _: None, 0.0)
    except Invalid:
        pass


@given(st.lists(st.text(max_size=20), max_size=4), st.lists(st.text(max_size=12), max_size=4))
def test_templates(subjects: list[str], tags: list[str]) -> None:
    tenant = Tenant()
    tenant.scope(pub={"allow": subjects}, sub={"allow": [f"{{{{tag({t})}}}}" for t in tags]})
    account = tokens.decode(COMPANY.account(tenant), "account")
    somebody = tokens.decode(scoped(BOB, tenant, tags=tags), "user")
    scope = claims.signing_keys(account)[tenant.scoped.public]
    assert scope is not None
    permissions = claims.fill_in(scope.permissions(), somebody, account)
    if subjects:  # never more than was allowed: an empty list would mean everything
        found = claims.permissions(permissions.pub, permissions.sub, None)
        assert found is not None
        assert found.publish.allow is not None
