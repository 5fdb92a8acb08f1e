"""Who somebody is when let in, and whether it still is after a change."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine
from dataclasses import replace
from typing import Any

import pytest
from cryptography import x509
from support.logins.table import ALICE, HASH

from broker.protocols.nats import errors
from broker.protocols.nats.auth import nkeys
from broker.protocols.nats.auth.authenticator import Identity, Login, Refused, TlsPeer
from broker.protocols.nats.auth.local import LocalAuth
from broker.protocols.nats.auth.passwords import Passwords
from broker.protocols.nats.settings import (
    Account,
    Authorization,
    Leafnodes,
    Permissions,
    Rules,
    Settings,
    SubjectRule,
    Tls,
    User,
    Websocket,
)
from tests.unit.protocols.nats.auth.test_certificates import PERSON, make
from tests.unit.protocols.nats.auth.test_passwords import options

DENY = Permissions(publish=Rules(deny=(SubjectRule("secret"),)))
ALL = Permissions()
MAPPING = Tls(verify_and_map=True)


def auth(settings: Settings) -> LocalAuth:
    return LocalAuth(settings, Passwords())


def of(*users: User, **more: Any) -> Settings:
    return Settings(authorization=Authorization(users=users, **more), authorization_given=True)


def now(found: Identity | Awaitable[Identity]) -> Identity:
    assert isinstance(found, Identity)
    return found


def enter(settings: Settings, kind: str = "STANDARD", **fields: str) -> Identity:
    return now(auth(settings).check(Login(options(**fields), kind=kind)))


def test_accounts_and_permissions() -> None:
    """Trap 43: nothing said is the default, an empty block is everything."""
    settings = replace(
        of(User(name="g"), User(name="h", permissions=ALL), default_permissions=DENY),
        accounts=(
            Account("A", users=(User(name="a"), User(name="b", permissions=ALL)),
                    default_permissions=DENY),
            Account("B", users=(User(name="c"), User(nkey=ALICE.public))),
        ),
    )  # fmt: skip
    for user, account, permissions in (
        ("g", "$G", DENY),
        ("h", "$G", ALL),
        ("a", "A", DENY),
        ("b", "A", ALL),
        ("c", "B", None),
    ):
        identity = enter(settings, user=user)
        assert (identity.account, identity.permissions) == (account, permissions)
        assert (identity.user, identity.key) == (user, f"user:{user}")


def test_tokens_are_not_shown() -> None:
    identity = enter(Settings(authorization=Authorization(token="s3cret")), token="s3cret")
    assert identity.user == "[REDACTED]"
    assert "s3cret" not in repr(identity)


def test_secrets_do_not_show() -> None:
    settings = of(User(name="bob", password="s3cret"))
    login = Login(options(user="bob", password="s3cret", jwt="s3cret", signature="s3cret"))
    login.cookie_jwt, login.nonce, login.tls = "s3cret", b"s3cret", TlsPeer(b"s3cret")
    found = now(auth(settings).check(login))
    assert "s3cret" not in repr((settings, login, found))
    with pytest.raises(Refused) as refusal:
        enter(settings, user="bob", password="s3cret2", token="s3cret2")
    assert "s3cret" not in str(refusal.value)


def test_refusals_say_what_the_original_says() -> None:
    with pytest.raises(Refused) as refusal:
        enter(of(User(name="bob", password="x")), user="bob")
    assert refusal.value.error is errors.NATS_AUTHORIZATION
    assert refusal.value.why == errors.NATS_CLOSED_AUTHENTICATION
    assert not refusal.value.silent


# --- kinds of connections


def test_kinds() -> None:
    settings = of(User(name="w", connection_types=frozenset({"WEBSOCKET", "IN_PROCESS"})))
    for kind in ("WEBSOCKET", "IN_PROCESS"):
        assert enter(settings, kind, user="w").user == "w"
    for kind in ("STANDARD", "LEAFNODE", "LEAFNODE_WS"):
        with pytest.raises(Refused):
            enter(settings, kind, user="w")


def test_the_websocket_block_decides_for_its_listener() -> None:
    own = Authorization(user="web", password="pw")
    settings = Settings(
        authorization=Authorization(user="tcp", password="pw"),
        websocket=Websocket(("", 0), authorization=own),
    )
    assert enter(settings, "WEBSOCKET", user="web", password="pw").user == "web"
    assert enter(settings, user="tcp", password="pw").user == "tcp"
    for kind, user in (("WEBSOCKET", "tcp"), ("STANDARD", "web")):
        with pytest.raises(Refused):
            enter(settings, kind, user=user, password="pw")
    open_listener = Settings(websocket=Websocket(("", 0), authorization=Authorization(token="t")))
    assert auth(open_listener).requires_login("WEBSOCKET")
    assert not auth(open_listener).requires_login("STANDARD")
    assert enter(open_listener, token="x").key == ""
    with pytest.raises(Refused):
        enter(open_listener, "WEBSOCKET", token="x")
    assert enter(open_listener, "WEBSOCKET", token="t").key == "token"


def test_the_websocket_listener_has_its_own_no_auth_user() -> None:
    settings = replace(
        of(User(name="bob", password="pw")), websocket=Websocket(("", 0), no_auth_user="bob")
    )
    assert enter(settings, "WEBSOCKET").user == "bob"
    assert enter(settings, "LEAFNODE_WS").user == "bob"
    with pytest.raises(Refused):
        enter(settings)


def test_leaf_nodes_with_one_user() -> None:
    own = Authorization(user="leaf", password="pw")
    settings = replace(
        of(User(name="bob", password="pw")), leafnodes=Leafnodes(authorization=own, account="L")
    )
    identity = enter(settings, "LEAFNODE", user="leaf", password="pw")
    assert (identity.account, identity.user, identity.key) == ("L", "leaf", "leaf")
    for user, password in (("leaf", "x"), ("bob", "pw"), ("", "")):
        with pytest.raises(Refused):
            enter(settings, "LEAFNODE", user=user, password=password)
    with pytest.raises(Refused):
        enter(settings, user="leaf", password="pw")


def test_leaf_nodes_with_users() -> None:
    users = (User(name="x", password="p", account="X"), User(name="g", password="p"))
    settings = Settings(leafnodes=Leafnodes(authorization=Authorization(users=users)))
    assert enter(settings, "LEAFNODE", user="x", password="p").account == "X"
    assert enter(settings, "LEAFNODE", user="g", password="p").account == "$G"
    with pytest.raises(Refused):
        enter(settings, "LEAFNODE", user="x", password="q")
    with pytest.raises(Refused):
        enter(settings, "LEAFNODE")


def test_leaf_nodes_with_an_nkey() -> None:
    settings = Settings(leafnodes=Leafnodes(nkey=ALICE.public, account="L"))

    def leaf(pair: nkeys.KeyPair, nonce: bytes, key: str = "") -> Identity:
        signature = nkeys.to_base64(pair.sign(b"nonce"))
        who = options(nkey=key or pair.public, signature=signature)
        return now(auth(settings).check(Login(who, nonce, kind="LEAFNODE")))

    assert leaf(ALICE, b"nonce").account == "L"
    mallory = nkeys.KeyPair(nkeys.USER)
    for pair, nonce, key in (
        (ALICE, b"other", ""),
        (ALICE, b"", ""),
        (mallory, b"nonce", ""),
        (mallory, b"nonce", ALICE.public),
    ):
        with pytest.raises(Refused):
            leaf(pair, nonce, key)


def test_leaf_nodes_without_credentials() -> None:
    settings = replace(of(User(name="bob", password="pw")), leafnodes=Leafnodes(account="L"))
    assert enter(settings, "LEAFNODE").account == "L"
    assert enter(settings, "LEAFNODE", user="bob", password="pw").user == "bob"
    with pytest.raises(Refused):
        enter(settings, "LEAFNODE", user="eve", password="pw")


# --- certificates


def by_certificate(settings: Settings, der: bytes | None, **fields: str) -> Identity:
    login = Login(options(**fields), tls=TlsPeer(der, "1.3"))
    return now(auth(settings).check(login))


def test_certificates_are_users() -> None:
    name = "CN=bob,OU=eng,O=ACME,C=DE"
    settings = replace(of(User(name=name), User(name="x")), tls=MAPPING)
    bob = make(*PERSON)
    assert by_certificate(settings, bob).user == name
    assert by_certificate(settings, bob, user="x").user == name
    with pytest.raises(Refused):  # users of certificates have no password
        by_certificate(settings, bob, password="pw")
    for der in (None, b"", make([(x509.NameOID.COMMON_NAME, "eve")])):
        with pytest.raises(Refused):
            by_certificate(settings, der, user="x")
    with pytest.raises(Refused):
        enter(settings, user="x")
    unmapped = replace(settings, tls=Tls(verify=True))
    assert by_certificate(unmapped, bob, user="x").user == "x"


def test_certificates_of_other_kinds_of_connections() -> None:
    name = "CN=bob,OU=eng,O=ACME,C=DE"
    other = User(name=name, connection_types=frozenset({"WEBSOCKET"}))
    with pytest.raises(Refused):
        by_certificate(replace(of(other), tls=MAPPING), make(*PERSON))


# --- after a change


def again(before: Settings, after: Settings, **fields: str) -> Identity | Awaitable[Identity]:
    login = Login(options(**fields))
    return auth(after).check_again(now(auth(before).check(login)), login)


BOB = User(name="bob", password="pw")


def test_rights_of_now() -> None:
    found = now(again(of(BOB), of(replace(BOB, permissions=DENY)), user="bob", password="pw"))
    assert found.permissions == DENY


def test_users_who_are_gone_or_moved_are_cut_silently() -> None:
    moved = Settings(accounts=(Account("A", users=(BOB,)),))
    for after in (
        of(User(name="x")),
        moved,
        Settings(),
        Settings(authorization=Authorization(token="t")),
    ):
        with pytest.raises(Refused) as refusal:
            again(of(BOB), after, user="bob", password="pw")
        assert refusal.value.silent


def test_changed_passwords() -> None:
    with pytest.raises(Refused) as refusal:
        again(of(BOB), of(replace(BOB, password="new")), user="bob", password="pw")
    assert not refusal.value.silent


def test_a_hash_that_stays_is_not_compared_again() -> None:
    hashed = User(name="bob", password=HASH)
    login = Login(options(user="bob", password="pw"))
    identity = Identity(user="bob", key="user:bob", proof=HASH)
    found = now(auth(of(replace(hashed, permissions=DENY))).check_again(identity, login))
    assert found.permissions == DENY
    fresh = Identity(user="bob", key="user:bob", proof="another")
    compared = auth(of(hashed)).check_again(fresh, login)
    assert isinstance(compared, Coroutine)
    compared.close()


def test_another_hash_of_the_same_password() -> None:
    login = Login(options(user="bob", password="pw"))
    identity = Identity(user="bob", key="user:bob", proof="pw")

    async def compare() -> Identity:
        found = auth(of(User(name="bob", password=HASH))).check_again(identity, login)
        return await found if not isinstance(found, Identity) else found

    assert asyncio.run(compare()).user == "bob"


def test_nkeys_stay_without_signing_again() -> None:
    signature = nkeys.to_base64(ALICE.sign(b"nonce"))
    login = Login(options(nkey=ALICE.public, signature=signature), b"nonce")
    settings = of(User(nkey=ALICE.public))
    identity = now(auth(settings).check(login))
    login.nonce = b""
    assert now(auth(settings).check_again(identity, login)).key == f"nkey:{ALICE.public}"
    with pytest.raises(Refused) as refusal:
        auth(of(BOB)).check_again(identity, login)
    assert refusal.value.silent


def test_single_users_and_tokens() -> None:
    one = Settings(authorization=Authorization(user="bob", password="pw"))
    assert now(again(one, one, user="bob", password="pw")).user == "bob"
    other = Settings(authorization=Authorization(user="bob", password="pw2"))
    with pytest.raises(Refused):
        again(one, other, user="bob", password="pw")
    token = Settings(authorization=Authorization(token="t"))
    assert now(again(token, token, token="t")).key == "token"
    with pytest.raises(Refused):
        again(token, Settings(authorization=Authorization(token="u")), token="t")


def test_a_server_that_begins_to_ask() -> None:
    with pytest.raises(Refused):
        again(Settings(), of(BOB))
    assert now(again(Settings(), of(BOB), user="bob", password="pw")).user == "bob"


def test_the_user_of_those_who_say_nothing() -> None:
    settings = replace(of(BOB), no_auth_user="bob")
    identity = enter(settings)
    assert identity.user == "bob"
    assert auth(settings).anonymous == identity
    assert now(again(settings, settings)).user == "bob"
    with pytest.raises(Refused):
        again(settings, of(BOB))


def test_those_who_say_nothing_own_the_same_things_after_a_restart() -> None:
    """The user that they are is made up with each start."""
    settings = Settings(accounts=(Account("SYS"),), system_account="SYS")
    before, after = enter(settings), enter(settings)
    assert before.user != after.user
    assert before.owner == after.owner != ""


# --- names for authorization services


def test_names() -> None:
    settings = replace(of(BOB, User(nkey=ALICE.public)), no_auth_user="bob")
    local = auth(settings)
    assert local.name_of(Login(options())) == "bob"
    assert local.name_of(Login(options(user="x"))) == "x"
    assert local.name_of(Login(options(nkey="U"))) == "U"
    assert local.name_of(Login(options(token="t"))) == "t"
    mapped = auth(replace(of(User(name="CN=bob,OU=eng,O=ACME,C=DE")), tls=MAPPING))
    assert mapped.name_of(Login(options(), tls=TlsPeer(make(*PERSON)))).startswith("CN=bob")
    assert mapped.name_of(Login(options(user="x"))) == "x"
