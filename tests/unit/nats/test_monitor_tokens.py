"""The pages in operator mode, where accounts and users are tokens."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from harness import nats_peer
from harness.http import request
from live_nats import LiveNats

from broker.protocols.nats.monitor_tokens import payload
from broker.protocols.nats.nkeys import USER, KeyPair
from tests.nats_tokens import Company, Tenant, user

SYSTEM = Tenant("SYS")
COMPANY = Company(system_account=SYSTEM.public)
BOB, GONE = KeyPair(USER), KeyPair(USER)
TEAM = Tenant(
    "Team",
    tags=["team:red"],
    revocations={GONE.public: 1_700_000_000},
    exports=[{"subject": "svc", "type": "service", "token_req": True}],
)
TOKEN = user(BOB, TEAM.pair, head={"name": "Bob"}, bearer_token=True, tags=["t:1"])
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
    with LiveNats(CONFIG) as server, nats_peer(server.nats, {"jwt": TOKEN, "name": "here"}):
        yield server


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
    account.gone = True
    detail = get(server, "/accountz", acc=TEAM.public)["account_detail"]
    account.gone = False
    assert detail["expired"]


def test_who_logged_in(server: LiveNats) -> None:
    entry = get(server, "/connz", auth=1)["connections"][0]
    shown = {key: entry[key] for key in ("authorized_user", "account", "jwt", "issuer_key")}
    assert shown == {
        "authorized_user": BOB.public,
        "account": TEAM.public,
        "jwt": TOKEN,
        "issuer_key": TEAM.public,
    }
    assert (entry["name_tag"], entry["tags"]) == ("Bob", ["t:1"])
    assert "jwt" not in get(server, "/connz")["connections"][0]
    assert get(server, "/connz", user=BOB.public)["num_connections"] == 1


def test_who_is_gone(server: LiveNats) -> None:
    with nats_peer(server.nats, {"jwt": TOKEN, "name": "gone"}) as peer:
        peer.half_close()
        peer.read_to_eof()
    deadline = time.monotonic() + 10
    while not (gone := get(server, "/connz", state="closed")["connections"]):
        assert time.monotonic() < deadline
    assert gone[0]["jwt"] == TOKEN
    assert "authorized_user" not in gone[0]


def test_the_operators(server: LiveNats) -> None:
    page = get(server, "/varz")
    assert page["trusted_operators_jwt"] == [COMPANY.token]
    assert page["trusted_operators_claim"][0]["nats"]["system_account"] == SYSTEM.public
    assert page["system_account"] == SYSTEM.public


@pytest.mark.parametrize("token", ["", "a", "a.b.c", "a.!.c", "e30.W10.x"])
def test_what_is_no_token_says_nothing(token: str) -> None:
    assert payload(token) == {}
