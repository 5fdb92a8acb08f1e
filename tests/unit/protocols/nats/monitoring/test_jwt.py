"""The pages in operator mode, where accounts and users are tokens."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from support import nats_peer
from support.clients.http import request
from support.live.nats import LiveNats
from support.logins.tokens import Company, Tenant, user

from broker.protocols.nats.auth.nkeys import USER, KeyPair, to_base64
from broker.protocols.nats.monitoring.jwt import payload

SYSTEM = Tenant("SYS")
COMPANY = Company(system_account=SYSTEM.public)
BOB, GONE = KeyPair(USER), KeyPair(USER)
TEAM = Tenant(
    "Team",
    tags=["team:red"],
    revocations={GONE.public: 1_700_000_000},
    exports=[{"subject": "svc", "type": "service", "token_req": True}],
)
SIGNED = user(BOB, TEAM.pair, head={"name": "Bob"}, tags=["t:1"])
BEARER = user(BOB, TEAM.pair, head={"name": "Bob"}, bearer_token=True, tags=["t:1"])
CONFIG = f"""
operator: {COMPANY.token}
system_account: {SYSTEM.public}
resolver: MEMORY
resolver_preload {{
  {TEAM.public}: {COMPANY.account(TEAM)}
  {SYSTEM.public}: {COMPANY.account(SYSTEM)}
}}
"""


@pytest.fixture(scope="module")
def server() -> Iterator[LiveNats]:
    with LiveNats(CONFIG) as server, signed_in(server, "here"):
        yield server


@contextmanager
def signed_in(server: LiveNats, name: str) -> Iterator[socket.socket]:
    with socket.create_connection(server.nats) as sock, sock.makefile("rb") as reader:
        nonce = json.loads(reader.readline()[5:])["nonce"].encode()
        fields = {"jwt": SIGNED, "sig": to_base64(BOB.sign(nonce)), "name": name, "verbose": False}
        sock.sendall(b"CONNECT " + json.dumps(fields).encode() + b"\r\nPING\r\n")
        while (line := reader.readline()) != b"PONG\r\n":
            assert line == b"PING\r\n"
        yield sock


def until_gone(server: LiveNats, name: str) -> dict[str, Any]:
    deadline = time.monotonic() + 10
    while True:
        for entry in get(server, "/connz", state="closed", auth=1)["connections"]:
            if entry.get("name") == name:
                found: dict[str, Any] = entry
                return found
        assert time.monotonic() < deadline


def get(server: LiveNats, path: str, **query: object) -> Any:
    return request(server.monitor, "GET", path, **query).json


def test_an_account(server: LiveNats) -> None:
    detail = get(server, "/accountz", acc=TEAM.public)["account_detail"]
    assert detail["account_name"] == TEAM.public
    assert not detail["expired"]
    assert detail["client_connections"] == 1
    assert detail["exports"] == [
        {"subject": "svc", "type": "service", "token_req": True, "response_type": "Singleton"}
    ]
    assert detail["jwt"].startswith("ey")
    assert detail["issuer_key"] == COMPANY.signing.public
    assert (detail["name_tag"], detail["tags"]) == ("Team", ["team:red"])
    assert detail["decoded_jwt"]["sub"] == TEAM.public
    assert list(detail["decoded_jwt"])[-1] == "nats"
    assert detail["revoked_user"] == {GONE.public: "2023-11-14T22:13:20Z"}
    assert list(detail)[-1] == "sublist_stats"


def test_an_account_that_has_ended(server: LiveNats) -> None:
    known = server.server.operator
    assert known is not None
    account = known.tokens.accounts[TEAM.public]
    account.deleted = True
    detail = get(server, "/accountz", acc=TEAM.public)["account_detail"]
    account.deleted = False
    assert detail["expired"]


def test_who_logged_in(server: LiveNats) -> None:
    entry = get(server, "/connz", auth=1)["connections"][0]
    shown = {key: entry[key] for key in ("authorized_user", "account", "jwt", "issuer_key")}
    assert shown == {
        "authorized_user": BOB.public,
        "account": TEAM.public,
        "jwt": SIGNED,
        "issuer_key": TEAM.public,
    }
    assert (entry["name_tag"], entry["tags"]) == ("Bob", ["t:1"])
    assert "jwt" not in get(server, "/connz")["connections"][0]
    assert get(server, "/connz", user=BOB.public)["num_connections"] == 1


def test_who_is_gone(server: LiveNats) -> None:
    with signed_in(server, "gone"):
        pass
    assert until_gone(server, "gone")["jwt"] == SIGNED
    shown = get(server, "/connz", state="closed")["connections"][0]
    assert not {"authorized_user", "jwt", "issuer_key", "tags", "name_tag"} & shown.keys()


def test_the_token_of_a_bearer_is_a_secret(server: LiveNats) -> None:
    """Whoever has read it on a page could log in with it."""
    with nats_peer(server.nats, {"jwt": BEARER, "name": "bearer"}) as peer:
        for query in ({"auth": 1}, {"auth": 1, "subs": "detail"}, {}):
            answer = request(server.monitor, "GET", "/connz", state="any", **query)
            assert BEARER.encode() not in answer.body
            assert b'"bearer"' in answer.body
        peer.half_close()
        peer.read_to_eof()
    assert "jwt" not in until_gone(server, "bearer")
    for path in ("/connz", "/accountz", "/varz", "/leafz", "/subsz"):
        answer = request(server.monitor, "GET", path, auth=1, state="closed", acc=TEAM.public)
        assert BEARER.encode() not in answer.body


def test_who_logged_in_is_not_for_other_sites(server: LiveNats) -> None:
    """A page of another site must not read tokens: neither by CORS nor as a script."""
    answer = request(server.monitor, "GET", "/connz", auth=1)
    assert "access-control-allow-origin" not in answer.headers
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.json["num_connections"] >= 1


def test_the_operators(server: LiveNats) -> None:
    page = get(server, "/varz")
    assert page["trusted_operators_jwt"] == [COMPANY.token]
    assert page["trusted_operators_claim"][0]["nats"]["system_account"] == SYSTEM.public
    assert page["system_account"] == SYSTEM.public


@pytest.mark.parametrize("token", ["", "a", "a.b.c", "a.!.c", "e30.W10.x"])
def test_what_is_no_token_says_nothing(token: str) -> None:
    assert payload(token) == {}
