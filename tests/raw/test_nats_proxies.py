"""Trusted proxies, here and on the original: who may only come through one, and who does."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from support import RawPeer
from support.clients.http import request
from support.clients.lookup import eventually
from support.logins.tokens import NO_LIMITS, Company, Tenant, scoped, user
from support.nats_file import FileServer, leaf_address
from support.servers.processes import Address

from broker.protocols.nats.auth import nkeys
from broker.protocols.nats.auth.nkeys import KeyPair, to_base64

if TYPE_CHECKING:
    from support.nats_file import StartServer

VIOLATION = b"-ERR 'Authorization Violation'\r\n"
PROXY = KeyPair(nkeys.SERVER)
OTHER = KeyPair(nkeys.USER)
STRANGER = KeyPair(nkeys.USER)
SIGNER = KeyPair(nkeys.USER)
TRUST = f"""
proxies {{ trusted: [ {{ key: {PROXY.public} }}, {{ public_key: {OTHER.public} }} ] }}
"""
USERS = f"""
authorization {{
  users: [
    {{ user: bob, password: secret }}
    {{ user: ann, password: secret, proxy_required: true }}
    {{ nkey: {SIGNER.public}, proxy_required: true }}
  ]
}}
"""
ANN = {"user": "ann", "pass": "secret"}
BOB = {"user": "bob", "pass": "secret"}


class Caller(RawPeer):
    """A client that may come through a proxy."""

    def __init__(
        self,
        address: Address,
        options: dict[str, Any],
        proxy: KeyPair | None = None,
        signer: KeyPair | None = None,
    ) -> None:
        super().__init__(address)
        self.info = json.loads(self.read_line()[5:])
        nonce = self.info.get("nonce", "").encode()
        said = {"verbose": False, "protocol": 0, **options}
        if proxy is not None:
            said["proxy_sig"] = to_base64(proxy.sign(nonce))
        if signer is not None:
            said |= {"sig": to_base64(signer.sign(nonce))}
            said |= {} if "jwt" in said else {"nkey": signer.public}
        self.send(f"CONNECT {json.dumps(said)}\r\nPING\r\n".encode())

    def admitted(self) -> bool:
        """Whether the login is answered with a PONG."""
        line = self.read_line()
        assert line in {b"PONG\r\n", VIOLATION}
        return line == b"PONG\r\n"


def connections(server: FileServer, query: str = "") -> list[dict[str, Any]]:
    page = request(server.monitor, "GET", f"/connz?{query}").json
    return list(page["connections"])


def last_reason(server: FileServer, many: int) -> str:
    """Why the latest connection was closed, once so many have been."""
    query = "state=closed"
    eventually(lambda: len(connections(server, query)) == many)
    return str(max(connections(server, query), key=lambda row: int(row["cid"]))["reason"])


@pytest.mark.parametrize("proxy", [PROXY, OTHER])
def test_who_has_to_come_through_a_proxy(start_nats: StartServer, proxy: KeyPair) -> None:
    server = start_nats(TRUST + USERS)
    assert not Caller(server.address, ANN).admitted()
    assert last_reason(server, 1) == "Proxy Required"
    assert not Caller(server.address, {}, signer=SIGNER).admitted()
    assert last_reason(server, 2) == "Proxy Required"
    with Caller(server.address, ANN, proxy) as ann, Caller(server.address, BOB) as bob:
        assert ann.admitted()
        assert bob.admitted()
        rows = {row["cid"]: row.get("proxy") for row in connections(server)}
        assert rows == {
            ann.info["client_id"]: {"key": proxy.public},
            bob.info["client_id"]: None,
        }
    with Caller(server.address, {}, proxy, SIGNER) as signer:
        assert signer.admitted()
    closed = connections(server, "state=closed")
    assert {row["proxy"]["key"] for row in closed if "proxy" in row} <= {proxy.public}
    keys = request(server.monitor, "GET", "/varz").json["proxies"]["trusted"]
    assert keys == [{"key": PROXY.public}, {"key": OTHER.public}]


def test_a_proxy_that_is_not_known(start_nats: StartServer) -> None:
    """Its connections are refused, also those of users who need no proxy."""
    server = start_nats(TRUST + USERS)
    assert not Caller(server.address, ANN, STRANGER).admitted()
    assert last_reason(server, 1) == "Proxy Not Trusted"
    assert not Caller(server.address, BOB, STRANGER).admitted()
    assert last_reason(server, 2) == "Proxy Not Trusted"
    assert not Caller(server.address, {**BOB, "proxy_sig": "*"}).admitted()
    assert last_reason(server, 3) == "Proxy Not Trusted"
    # A proxy proves nothing about the user.
    assert not Caller(server.address, {**ANN, "pass": "wrong"}, PROXY).admitted()
    assert last_reason(server, 4) == "Authentication Failure"


def test_without_proxies_signatures_do_not_count(start_nats: StartServer) -> None:
    server = start_nats(USERS)
    assert Caller(server.address, BOB, STRANGER).admitted()
    assert not Caller(server.address, ANN, PROXY).admitted()


@pytest.mark.parametrize("who", ["token: t", "user: t, password: t"])
def test_a_token_and_a_single_user(start_nats: StartServer, who: str) -> None:
    server = start_nats(TRUST + f"authorization {{ {who}, proxy_required: true }}")
    said = {"auth_token": "t"} if "token" in who else {"user": "t", "pass": "t"}
    assert not Caller(server.address, said).admitted()
    assert last_reason(server, 1) == "Proxy Required"
    assert Caller(server.address, said, PROXY).admitted()


def test_a_server_without_logins(start_nats: StartServer) -> None:
    server = start_nats(TRUST)
    with Caller(server.address, {}, PROXY) as peer:
        assert peer.admitted()
        assert [row["proxy"] for row in connections(server)] == [{"key": PROXY.public}]
    assert Caller(server.address, {}).admitted()
    assert not Caller(server.address, {}, STRANGER).admitted()


def test_who_needs_no_login_may_need_a_proxy(start_nats: StartServer) -> None:
    server = start_nats(TRUST + USERS + "no_auth_user: ann\n")
    with RawPeer(server.address) as peer:
        peer.read_line()
        peer.send(b"PING\r\n")
        assert peer.read_line() == VIOLATION
    assert not Caller(server.address, {}).admitted()
    assert Caller(server.address, {}, PROXY).admitted()


def test_a_proxy_that_is_no_longer_trusted(start_nats: StartServer) -> None:
    server = start_nats(TRUST + USERS)
    with (
        Caller(server.address, ANN, OTHER) as stays,
        Caller(server.address, BOB) as direct,
        Caller(server.address, BOB, PROXY) as gone,
    ):
        for peer in (gone, stays, direct):
            assert peer.admitted()
        server.reload(f"proxies {{ trusted: [ {{ key: {OTHER.public} }} ] }}" + USERS)
        server.await_log(f'Reloaded: proxies trusted keys ["{PROXY.public}"] were removed')
        assert gone.read_line() == VIOLATION
        assert last_reason(server, 1) == "Proxy Not Trusted"
        for peer in (stays, direct):
            peer.send(b"PING\r\n")
            assert peer.read_line() == b"PONG\r\n"
        server.reload(TRUST + USERS)
        server.await_log(f'Reloaded: proxies trusted keys ["{PROXY.public}"] were added')
        with Caller(server.address, ANN, PROXY) as back:
            assert back.admitted()


def test_users_of_an_operator(start_nats: StartServer) -> None:
    tenant, system = Tenant(), Tenant("SYS")
    company = Company(system_account=system.public)
    tenant.scope(proxy_required=True, **NO_LIMITS)
    lines = [f"operator: {company.token}", "resolver: MEMORY", "resolver_preload {"]
    lines += [f"{one.public}: {company.account(one)}" for one in (tenant, system)]
    server = start_nats(TRUST + "\n".join([*lines, "}"]))
    free = user(SIGNER, tenant.pair)
    bound = user(SIGNER, tenant.pair, proxy_required=True)
    by_scope = scoped(SIGNER, tenant)
    for token, proxy, admitted in (
        (free, None, True),
        (free, STRANGER, False),
        (bound, None, False),
        (bound, PROXY, True),
        (by_scope, None, False),
        (by_scope, OTHER, True),
    ):
        with Caller(server.address, {"jwt": token}, proxy, SIGNER) as peer:
            assert peer.admitted() == admitted


LEAFS = """
leafnodes {
  listen: "127.0.0.1:-1"
  authorization { %s }
}
"""


@pytest.mark.parametrize(
    ("who", "required"),
    [
        ("user: ann, password: secret, proxy_required: true", True),
        ("users: [ {user: ann, password: secret, proxy_required: true} ]", True),
        ("users: [ {user: ann, password: secret} ], proxy_required: true", True),
        ("users: [ {user: ann, password: secret} ]", False),
    ],
)
def test_leaf_nodes(start_nats: StartServer, who: str, required: bool) -> None:
    server = start_nats(TRUST + LEAFS % who)
    place = Address.parse(leaf_address(server))
    said = {**ANN, "name": "leaf"}
    with Caller(place, said) as direct:
        assert direct.read_line().startswith(VIOLATION if required else b"INFO ")
    with Caller(place, said, STRANGER) as strange:
        assert strange.read_line() == VIOLATION
    with Caller(place, said, PROXY) as peer:
        assert peer.read_line().startswith(b"INFO ")

        def keys() -> list[dict[str, str] | None]:
            page = request(server.monitor, "GET", "/leafz").json
            return [leaf.get("proxy") for leaf in page["leafs"]]

        eventually(lambda: {"key": PROXY.public} in keys())
