"""Keys that nats-server has had since 2.11, here and on the original."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from support import RawPeer
from support.clients.http import request
from support.clients.lookup import eventually
from support.clients.nats import NatsClient
from support.clients.websocket import WebPeer, servers, websocket_of
from support.nats_file import leaf_address

if TYPE_CHECKING:
    from support.clients.websocket import Start
    from support.nats_file import FileServer, StartServer

USERS = """
accounts {
  A { users: [ {user: ann, password: secret} ] }
  SYS { users: [ {user: admin, password: admin} ] }
}
system_account: SYS
"""


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    yield from servers(tmp_path_factory)


def varz(server: FileServer) -> dict[str, Any]:
    found: dict[str, Any] = request(server.monitor, "GET", "/varz").json
    return found


# --- what is shown


def test_metadata_and_flags_are_shown(start_nats: StartServer) -> None:
    more = (
        'server_metadata { rack: "7", az: b }\nfeature_flags { js_ack_fc_v2: true, none: true }\n'
    )
    more += "write_timeout: retry\n"
    server = start_nats(USERS + more)
    page = varz(server)
    assert page["write_timeout"] == "retry"
    assert page["metadata"] == {"az": "b", "rack": "7"}
    assert page["feature_flags"]["js_ack_fc_v2"] is True
    assert "none" not in page["feature_flags"]
    names = list(page)
    assert names.index("metadata") + 1 == names.index("feature_flags")
    with NatsClient(server.address, "admin") as client:
        client.sub("reply")
        client.pub("$SYS.REQ.SERVER.PING.IDZ", reply="reply")
        client.pub("$SYS.REQ.SERVER.PING.STATSZ", reply="reply")
        pages = [json.loads(client.message().data) for _ in range(2)]
        (block,) = (page["server"] for page in pages if "statsz" in page)
        assert block["metadata"] == {"az": "b", "rack": "7"}
        assert block["feature_flags"]["js_ack_fc_v2"] is True
    server.reload(USERS + more.replace('"7"', '"8"'))
    server.await_log("Reloaded: metadata")
    assert varz(server)["metadata"]["rack"] == "8"
    server.reload(USERS + more.replace("none: true", "none: false"))
    server.await_log("config reload not supported for FeatureFlags")


# --- WebSocket


COOKIES = 'user_cookie: u, pass_cookie: "p", token_cookie: t'


def enter(server: FileServer, cookie: str, **options: object) -> bytes:
    """The answer to CONNECT and PING of a client with these cookies."""
    peer = WebPeer(RawPeer(websocket_of(server.folder)), {"Cookie": cookie})
    peer.info()
    said = {"verbose": False, "protocol": 0, **options}
    peer.send(b"CONNECT " + json.dumps(said).encode() + b"\r\nPING\r\n")
    line = peer.read_until(b"\r\n")
    peer.raw.close()
    return line


def test_cookies_log_in(start: Start) -> None:
    users = "authorization { users: [ {user: ann, password: secret}, {user: bob, password: b} ] }"
    server = start(COOKIES, users)
    assert enter(server, "u=ann; p=secret") == b"PONG\r\n"
    assert enter(server, "x=1; p=secret", user="ann") == b"PONG\r\n"
    assert enter(server, "u=ann; p=secret", user="bob", **{"pass": "b"}) == b"PONG\r\n"
    for cookie, options in (
        ("u=ann", {}),
        ("u=ann; p=wrong", {}),
        ("u=ann; p=secret", {"user": "bob"}),
        ("user=ann; pass=secret", {}),
    ):
        assert enter(server, cookie, **options) == b"-ERR 'Authorization Violation'\r\n", cookie


def test_a_token_in_a_cookie(start: Start) -> None:
    server = start(COOKIES, "authorization { token: abc }")
    assert enter(server, "t=abc") == b"PONG\r\n"
    assert enter(server, "t=xyz") == b"-ERR 'Authorization Violation'\r\n"


def test_headers_of_the_answer(start: Start) -> None:
    server = start('headers { "X-Frame-Options": "DENY", Server: "twin wire" }')
    peer = WebPeer(RawPeer(websocket_of(server.folder)))
    peer.raw.close()
    lines = peer.answer.split("\r\n")
    assert "X-Frame-Options: DENY" in lines
    assert "Server: twin wire" in lines
    assert lines[-2:] == ["", ""]


def test_pings_of_websocket_clients(start: Start) -> None:
    server = start('ping_interval: "100ms"')
    peer = WebPeer(RawPeer(websocket_of(server.folder)))
    peer.info()
    peer.send(b'CONNECT {"verbose":false,"protocol":0}\r\n')
    for _ in range(3):
        assert peer.read_until(b"\r\n") == b"PING\r\n"
        peer.send(b"PONG\r\n")
    peer.raw.close()


# --- leaf nodes


def test_a_disabled_remote_and_its_reload(start_nats: StartServer) -> None:
    hub = start_nats('leafnodes { listen: "127.0.0.1:-1" }')
    place = leaf_address(hub)
    text = f'leafnodes {{ remotes: [ {{ url: "nats-leaf://{place}", disabled: %s }} ] }}'
    leaf = start_nats(text % "true")
    with NatsClient(leaf.address) as client:
        client.ping()
    assert request(leaf.monitor, "GET", "/leafz").json["leafnodes"] == 0
    leaf.reload(text % "false")
    leaf.await_log("Disabled value is: false")
    leaf.await_log("Leafnode connection created for account: $G")
    leaf.reload(text % "true")
    leaf.await_log("Disabled value is: true")
    leaf.await_log("Leafnode connection closed")
    leaf.reload(text % "false")
    leaf.await_log("Leafnode connection created for account: $G", 2)


ISOLATED = {
    "by the hub": ("isolate_leafnode_interest: true", ""),
    "by request": ("", "request_isolation: true"),
    "not": ("", ""),
}


@pytest.mark.parametrize("how", ISOLATED)
def test_isolated_leafs(start_nats: StartServer, how: str) -> None:
    of_hub, of_leaf = ISOLATED[how]
    hub = start_nats(f'leafnodes {{ listen: "127.0.0.1:-1", {of_hub} }}')
    place = leaf_address(hub)
    url = f'url: "nats-leaf://{place}"'
    first, second = (
        start_nats(f"leafnodes {{ remotes: [ {{ {url}, {more} }} ] }}") for more in (of_leaf, "")
    )
    for leaf in (first, second):
        leaf.await_log("Leafnode connection created for account: $G")
    with (
        NatsClient(hub.address) as middle,
        NatsClient(first.address) as one,
        NatsClient(second.address) as other,
    ):
        other.sub("east")
        other.sub("both")
        middle.sub("both")
        eventually(lambda: {"both", "east"} <= heard(hub))
        eventually(lambda: "both" in heard(first))
        wanted = how == "not"
        if wanted:
            eventually(lambda: "east" in heard(first))
        assert ("east" in heard(first)) is wanted
        one.pub("east", b"1")
        one.pub("both", b"2")
        assert middle.got() == ("both", b"2")
        found = [other.got() for _ in range(2 if wanted else 1)]
        assert min(found) == ("both", b"2")
    leafs = request(hub.monitor, "GET", "/leafz").json["leafs"]
    assert (
        sorted(leaf.get("is_isolated", False) for leaf in leafs)
        == {
            "by the hub": [True, True],
            "by request": [False, True],
            "not": [False, False],
        }[how]
    )
    assert all(next(iter(leaf)) == "id" for leaf in leafs)


def heard(server: FileServer) -> set[str]:
    """The subjects that the other ends of its leaf connections have announced to a server."""
    leafs = request(server.monitor, "GET", "/leafz", subs=1).json["leafs"]
    return {subject for leaf in leafs for subject in leaf.get("subscriptions_list", ())}


# --- traces


def test_traces_of_headers(start_nats: StartServer) -> None:
    server = start_nats("trace_headers: true")
    with NatsClient(server.address) as client:
        client.pub("a", b"the body")
        client.pub("a", b"the body", headers=b"NATS/1.0\r\nColour: red\r\n\r\n")
        client.ping()
    server.await_log("<<- [HPUB a")
    server.await_log(r'<<- MSG_PAYLOAD: ["NATS/1.0\r\nColour: red"]')
    assert "the body" not in server.said()


# --- auth callout


def test_accounts_that_the_callout_does_not_decide_about(start_nats: StartServer) -> None:
    key = "AA5WUJ54Z23KILLCUOUNAKTPBVZWKMQVO4O6EQ5GHLAERIMLLHNCS47C"
    server = start_nats(f"""
        accounts {{
          A {{ users: [ {{user: ann, password: ann}} ] }}
          B {{ users: [ {{user: bob, password: bob}}, {{user: auth, password: auth}} ] }}
        }}
        authorization {{
          timeout: 1
          auth_callout {{ issuer: {key}, auth_users: [auth], account: B, allowed_accounts: [A] }}
        }}
    """)
    answers = {}
    for name, password in (("auth", "auth"), ("bob", "bob"), ("bob", "x"), ("ann", "ann")):
        with RawPeer(server.address) as peer:
            peer.read_line()
            options = {"user": name, "pass": password, "verbose": False, "protocol": 0}
            peer.send(f"CONNECT {json.dumps(options)}\r\nPING\r\n".encode())
            answers[name, password] = peer.read_line()
    assert answers["auth", "auth"] == b"PONG\r\n"
    assert answers["bob", "bob"] == b"PONG\r\n"  # the service has not been asked: nobody serves
    assert answers["bob", "x"] == b"-ERR 'Authorization Violation'\r\n"
    assert answers["ann", "ann"].startswith(b"-ERR 'Auth")
