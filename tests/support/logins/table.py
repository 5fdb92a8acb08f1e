"""A table of logins: configurations, as text and as settings, and the accepted logins.

Expected results are nats-server's; tests/interop/test_nats_logins.py checks them again.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from broker.protocols.nats.auth import nkeys
from broker.protocols.nats.settings import Account, Authorization, Settings, User

VIOLATION = "Authorization Violation"

# of "pw", cost 4
HASH = "$2b$04$qLGpxgkYC90QyRn1WyXBneOFuolZEnBxSPMQRD6zEimAPq0yg3ZW."
ALICE = nkeys.KeyPair.from_seed("SUADKSF5S7O2M34OZRB3SDHDLCQPT2IRCGBYCDKYPIGQNHAOHOY6WCLTJU")
MALLORY = nkeys.KeyPair(nkeys.USER)


@dataclass(frozen=True)
class Try:
    """One login: CONNECT's fields by the nonce, and the error it ends with ("" = let in)."""

    name: str
    fields: Callable[[str], dict[str, Any]] | None  # None: no CONNECT
    error: str


@dataclass(frozen=True)
class Case:
    """One configuration."""

    name: str
    config: str
    settings: Settings
    tries: tuple[Try, ...] = field(default=())
    required: bool = True  # INFO says auth_required
    nonce: bool = False


def login(name: str, error: str = "", **fields: Any) -> Try:
    return Try(name, lambda _nonce: fields, error)


def silent(error: str) -> Try:
    return Try("no CONNECT", None, error)


def signed(
    name: str, pair: nkeys.KeyPair, error: str = "", *, key: str = "", change: str = "", **more: Any
) -> Try:
    """A login by nkey; `change` modifies the signature."""

    def fields(nonce: str) -> dict[str, Any]:
        raw = pair.sign(b"other" if change == "other text" else nonce.encode())
        url, padded = nkeys.to_base64(raw), standard(raw)
        # Without special letters both kinds of base64 are the same.
        same = url == padded.rstrip("=")
        signature = {
            "padded": url[:-4] if same else url + "==",
            "standard": padded,
            "unpadded standard": url[:-4] if same else padded.rstrip("="),
            "none": "",
            "cut": url[:-4],
        }.get(change, url)
        return {"nkey": key or pair.public, "sig": signature, **more}

    return Try(name, fields, error)


def standard(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


def users(*given: User) -> Settings:
    return Settings(authorization=Authorization(users=given), authorization_given=True)


_LOCAL = User(name="bob", password="pw")
_KEY = User(nkey=ALICE.public)

CASES = (
    Case(
        "open",
        "",
        Settings(),
        (silent(""), login("nothing"), login("what nobody looks at", user="x", **{"pass": "y"})),
        required=False,
    ),
    Case(
        "token",
        "authorization { token: s3cret }",
        Settings(authorization=Authorization(token="s3cret"), authorization_given=True),
        (
            silent(VIOLATION),
            login("nothing", VIOLATION),
            login("right", auth_token="s3cret"),
            login("wrong", VIOLATION, auth_token="s3cre"),
            login("as a password", VIOLATION, **{"pass": "s3cret"}),
            login("with a user beside it", auth_token="s3cret", user="x"),
        ),
    ),
    Case(
        "hashed token",
        f'authorization {{ token: "{HASH}" }}',
        Settings(authorization=Authorization(token=HASH), authorization_given=True),
        (
            login("right", auth_token="pw"),
            login("wrong", VIOLATION, auth_token="pw2"),
            login("the hash", VIOLATION, auth_token=HASH),
        ),
    ),
    Case(
        "single user",
        "authorization { user: bob, password: pw }",
        Settings(authorization=Authorization(user="bob", password="pw"), authorization_given=True),
        (
            silent(VIOLATION),
            login("right", user="bob", **{"pass": "pw"}),
            login("wrong password", VIOLATION, user="bob", **{"pass": "pw "}),
            login("no password", VIOLATION, user="bob"),
            login("wrong user", VIOLATION, user="Bob", **{"pass": "pw"}),
            login("password alone", VIOLATION, **{"pass": "pw"}),
            login("an account is named", VIOLATION, user="bob", account="A", **{"pass": "pw"}),
        ),
    ),
    Case(
        "users",
        f"""authorization {{ users: [
            {{ user: bob, password: pw }}, {{ user: hash, password: "{HASH}" }},
            {{ user: old, password: "{HASH.replace("2b", "2a")}" }},
            {{ user: php, password: "{HASH.replace("2b", "2y")}" }},
            {{ user: torn, password: "{HASH[:-1]}" }},
            {{ user: cert, password: "" }}
        ] }}""",
        users(
            _LOCAL,
            User(name="hash", password=HASH),
            User(name="old", password=HASH.replace("2b", "2a")),
            User(name="php", password=HASH.replace("2b", "2y")),
            User(name="torn", password=HASH[:-1]),
            User(name="cert"),
        ),
        (
            silent(VIOLATION),
            login("nothing", VIOLATION),
            login("right", user="bob", **{"pass": "pw"}),
            login("wrong", VIOLATION, user="bob", **{"pass": "w"}),
            login("hashed", user="hash", **{"pass": "pw"}),
            login("hashed and wrong", VIOLATION, user="hash", **{"pass": "w"}),
            login("the hash as password", VIOLATION, user="hash", **{"pass": HASH}),
            login("of the 2a kind", user="old", **{"pass": "pw"}),
            login("of the 2y kind", user="php", **{"pass": "pw"}),
            login("a torn hash", VIOLATION, user="torn", **{"pass": "pw"}),
            login("nobody", VIOLATION, user="eve", **{"pass": "pw"}),
            login("an empty password", user="cert"),
            login("an empty password, and one", VIOLATION, user="cert", **{"pass": "x"}),
            login("as token", VIOLATION, auth_token="pw"),
            login("null keeps what was", user="bob", nkey=None, **{"pass": "pw"}),
        ),
    ),
    Case(
        "nkeys",
        f"authorization {{ users: [ {{ nkey: {ALICE.public} }}, {{ user: bob, password: pw }} ] }}",
        users(_KEY, _LOCAL),
        (
            silent(VIOLATION),
            signed("right", ALICE),
            signed("standard base64", ALICE, change="standard"),
            signed("padded URL base64", ALICE, VIOLATION, change="padded"),
            signed("standard base64 without padding", ALICE, VIOLATION, change="unpadded standard"),
            signed("another text", ALICE, VIOLATION, change="other text"),
            signed("no signature", ALICE, VIOLATION, change="none"),
            signed("half a signature", ALICE, VIOLATION, change="cut"),
            signed("an unknown key", MALLORY, VIOLATION),
            signed("another's key", MALLORY, VIOLATION, key=ALICE.public),
            login("by name", user="bob", **{"pass": "pw"}),
            signed(
                "unknown, with a right password", MALLORY, VIOLATION, user="bob", **{"pass": "pw"}
            ),
        ),
        nonce=True,
    ),
    Case(
        "no_auth_user",
        "no_auth_user: bob\nauthorization { users: [ {user: bob, password: pw}, {user: al} ] }",
        Settings(
            no_auth_user="bob",
            authorization=Authorization(users=(_LOCAL, User(name="al"))),
            authorization_given=True,
        ),
        (
            silent(""),
            login("nothing"),
            login("wrong password", VIOLATION, user="bob", **{"pass": "x"}),
            login("password alone", VIOLATION, **{"pass": "pw"}),
            login("token alone", VIOLATION, auth_token="pw"),
            login("another", user="al"),
        ),
        required=False,
    ),
    Case(
        "no_auth_user with a hash",
        f'no_auth_user: bob\nauthorization {{ users: [ {{user: bob, password: "{HASH}"}} ] }}',
        Settings(
            no_auth_user="bob",
            authorization=Authorization(users=(User(name="bob", password=HASH),)),
            authorization_given=True,
        ),
        (login("nothing", VIOLATION), login("right", user="bob", **{"pass": "pw"})),
        required=False,
    ),
    Case(
        "no_auth_user by nkey",
        f"no_auth_user: {ALICE.public}\nauthorization {{ users: [ {{nkey: {ALICE.public}}} ] }}",
        Settings(
            no_auth_user=ALICE.public,
            authorization=Authorization(users=(_KEY,)),
            authorization_given=True,
        ),
        (
            silent(VIOLATION),
            login("nothing"),
            login("a user", VIOLATION, user="x"),
            signed("unsigned", ALICE, change="none"),
        ),
        required=False,
        nonce=True,
    ),
    Case(
        "kinds of connections",
        """authorization { users: [
            { user: ws, password: pw, allowed_connection_types: [WEBSOCKET] },
            { user: any, password: pw, allowed_connection_types: [standard, MQTT] } ] }""",
        users(
            User(name="ws", password="pw", connection_types=frozenset({"WEBSOCKET"})),
            User(name="any", password="pw", connection_types=frozenset({"STANDARD", "MQTT"})),
        ),
        (
            login("another kind", VIOLATION, user="ws", **{"pass": "pw"}),
            login("this kind", user="any", **{"pass": "pw"}),
        ),
    ),
    Case(
        "accounts",
        """accounts { A { users: [ {user: a, password: pw} ] }, B { users: [ {user: b} ] } }
        authorization { users: [ {user: g, password: pw} ] }""",
        Settings(
            accounts=(
                Account("A", users=(User(name="a", password="pw"),)),
                Account("B", users=(User(name="b"),)),
            ),
            authorization=Authorization(users=(User(name="g", password="pw"),)),
            authorization_given=True,
        ),
        (
            silent(VIOLATION),
            login("of an account", user="a", **{"pass": "pw"}),
            login("of another, without password", user="b"),
            login("of none", user="g", **{"pass": "pw"}),
        ),
    ),
    Case(
        "the system's account alone",
        "accounts { SYS { users: [ {user: s, password: pw} ] } }\nsystem_account: SYS",
        Settings(
            accounts=(Account("SYS", users=(User(name="s", password="pw"),)),), system_account="SYS"
        ),
        (
            silent(""),
            login("nothing"),
            login("the system's", user="s", **{"pass": "pw"}),
            login("wrong", VIOLATION, user="s", **{"pass": "x"}),
            login("nobody", VIOLATION, user="x"),
        ),
    ),
    Case(
        "the system's account and a block",
        """accounts { SYS { users: [ {user: s, password: pw} ] } }
        system_account: SYS
        authorization { timeout: 5 }""",
        Settings(
            accounts=(Account("SYS", users=(User(name="s", password="pw"),)),),
            system_account="SYS",
            authorization_given=True,
        ),
        (silent(VIOLATION), login("nothing", VIOLATION)),
    ),
)
