"""Remotes of a server: through an HTTP proxy, and changed by a reload; here and on the original."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING, Any

import pytest
from support.authority import Authority
from support.clients.http import request
from support.clients.lookup import eventually
from support.clients.nats import NatsClient
from support.http_proxy import http_proxy
from support.nats_file import FileServer, leaf_address

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from support.nats_file import StartServer

HUB = 'leafnodes { listen: "127.0.0.1:-1", reconnect: "100ms" }'
JOINED = "Leafnode connection created for account: $G"


def leaf_conf(*remotes: str) -> str:
    return f'leafnodes {{ reconnect: "50ms", remotes: [ {", ".join(remotes)} ] }}\n'


def remote(place: str, more: str = "") -> str:
    return f'{{ url: "nats-leaf://{place}" {more} }}'


def joined(server: FileServer, many: int) -> None:
    """Wait until so many leaf connections are there."""
    eventually(lambda: request(server.monitor, "GET", "/leafz").json["leafnodes"] == many)


def crosses(here: FileServer, there: FileServer) -> None:
    """Send a message from one server to the other."""
    with NatsClient(here.address) as one, NatsClient(there.address) as other:
        other.sub("crossing")
        eventually(lambda: _answered(one, other))


def _answered(one: NatsClient, other: NatsClient) -> bool:
    one.pub("crossing", b"x" * 70_000)
    one.ping()
    other.send(b"PING\r\n")
    line = other.read_line()
    if line == b"PONG\r\n":
        return False
    assert line == b"MSG crossing 1 70000\r\n"
    assert other.read_exact(70_002) == b"x" * 70_000 + b"\r\n"
    while other.read_line() != b"PONG\r\n":
        other.read_exact(70_002)
    return True


# --- HTTP proxies


@pytest.mark.parametrize("login", [None, ("ann", "pass word")])
def test_through_a_proxy(start_nats: StartServer, login: tuple[str, str] | None) -> None:
    hub = start_nats(HUB)
    place = leaf_address(hub)
    with http_proxy(login=login) as proxy:
        said = f', username: "{login[0]}", password: "{login[1]}"' if login is not None else ""
        how = f', proxy: {{ url: "http://localhost:{proxy.port}" {said} }}'
        leaf = start_nats(leaf_conf(remote(place, how)))
        joined(leaf, 1)
        crosses(leaf, hub)
        crosses(hub, leaf)
        (head,) = proxy.requests
        assert head.startswith(f"CONNECT {place} HTTP/1.1\r\nHost: {place}\r\n".encode())
        proxy.cut()
        eventually(lambda: len(proxy.requests) == 2)
        joined(leaf, 1)
        crosses(leaf, hub)


@pytest.mark.parametrize("known", [True, False])
def test_through_a_proxy_over_tls(start_nats: StartServer, tmp_path: Path, known: bool) -> None:
    authority = Authority(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.issue("proxy"))
    hub = start_nats(HUB)
    with http_proxy(context=context) as proxy:
        trust = f'tls {{ ca_file: "{authority.file}" }}' if known else ""
        how = f', proxy: {{ url: "https://127.0.0.1:{proxy.port}", {trust} }}'
        leaf = start_nats(leaf_conf(remote(leaf_address(hub), how)))
        if not known:
            leaf.await_log("proxy TLS handshake failed")
            assert not proxy.requests
            return
        joined(leaf, 1)
        crosses(leaf, hub)
        crosses(hub, leaf)
        proxy.cut()
        eventually(lambda: len(proxy.requests) == 2)
        joined(leaf, 1)
        crosses(leaf, hub)


REFUSALS = {
    "a login is missing": (b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n",
                           "proxy CONNECT failed: 407 Proxy Authentication Required"),
    "another success": (b"HTTP/1.1 204 No Content\r\n\r\n", "proxy CONNECT failed: 204 No Content"),
    "no HTTP": (b"INFO {}\r\n\r\n", "failed to read proxy response"),
    "an early end": (b"HTTP/1.1 200 OK\r\n", "failed to read proxy response: unexpected EOF"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSALS)
def test_a_proxy_that_refuses(start_nats: StartServer, case: str) -> None:
    answer, why = REFUSALS[case]
    with http_proxy(answer=answer) as proxy:
        how = f', proxy: {{ url: "http://127.0.0.1:{proxy.port}" }}'
        leaf = start_nats(leaf_conf(remote("127.0.0.1:7422", how)))
        leaf.await_log(why)
        eventually(lambda: len(proxy.requests) >= 2)
        with NatsClient(leaf.address) as client:
            client.ping()


def test_a_proxy_that_is_not_there(start_nats: StartServer) -> None:
    with http_proxy() as proxy:
        how = f', proxy: {{ url: "http://127.0.0.1:{proxy.port}" }}'
    leaf = start_nats(leaf_conf(remote("127.0.0.1:7422", how)))
    leaf.await_log("failed to connect to proxy")


# --- reloads


def logged(server: FileServer, texts: Iterable[str]) -> None:
    for text in texts:
        server.await_log(text)


def test_remotes_that_come_and_go(start_nats: StartServer) -> None:
    first, second = start_nats(HUB), start_nats(HUB)
    places = [leaf_address(hub) for hub in (first, second)]
    one, other = map(remote, places)
    leaf = start_nats(leaf_conf(one))
    joined(first, 1)
    leaf.reload(leaf_conf(other, one))
    joined(second, 1)
    assert leaf.said().count(JOINED) == 2, "the first one stays"
    for hub in (first, second):
        crosses(leaf, hub)
        crosses(hub, leaf)
    leaf.reload(leaf_conf(other))
    joined(first, 0)
    logged(leaf, [f'LeafNode Remote urls=["nats-leaf://{places[0]}"], account="$G" removed'])
    joined(second, 1)
    crosses(leaf, second)
    leaf.reload(leaf_conf(one))
    joined(first, 1)
    joined(second, 0)
    leaf.reload(leaf_conf())
    joined(first, 0)
    joined(leaf, 0)


def test_the_first_remote_and_the_last(start_nats: StartServer) -> None:
    hub = start_nats(HUB)
    leaf = start_nats("")
    with NatsClient(leaf.address) as early:
        early.sub("early")
        conf = f"leafnodes {{ remotes: [ {remote(leaf_address(hub))} ] }}"
        leaf.reload(conf)
        joined(hub, 1)
        with NatsClient(hub.address) as client:
            eventually(lambda: _heard(client, early))
        leaf.reload("")
        joined(hub, 0)
        leaf.reload(conf)
        joined(hub, 1)


def _heard(client: NatsClient, early: NatsClient) -> bool:
    client.pub("early", b"x")
    client.ping()
    early.send(b"PING\r\n")
    line = early.read_line()
    if line == b"PONG\r\n":
        return False
    while line != b"PONG\r\n":
        line = early.read_line()
    return True


def compression(server: FileServer) -> str:
    """What its only leaf connection has agreed; empty without one."""
    leafs = request(server.monitor, "GET", "/leafz").json["leafs"] or [{}]
    return str(leafs[0].get("compression", ""))


def test_compression_that_changes(start_nats: StartServer) -> None:
    hub = start_nats(HUB.replace("}", ", compression: s2_fast }"))
    place = leaf_address(hub)
    leaf = start_nats(leaf_conf(remote(place, ", compression: s2_best")))
    eventually(lambda: compression(leaf), "s2_best")
    connected = leaf.said().count(JOINED)
    leaf.reload(leaf_conf(remote(place, ", compression: s2_fast")))  # another level
    eventually(lambda: compression(leaf), "s2_fast")
    leaf.await_log("Compression value is: {s2_fast []}")
    crosses(leaf, hub)
    assert leaf.said().count(JOINED) == connected
    leaf.reload(leaf_conf(remote(place, ", compression: off")))  # another connection
    eventually(lambda: compression(leaf), "off")
    crosses(leaf, hub)
    how = '{ mode: s2_auto, rtt_thresholds: ["0ms", "20s"] }'
    leaf.reload(leaf_conf(remote(place, f", compression: {how}")))
    eventually(lambda: compression(leaf), "s2_fast")
    leaf.await_log("Compression value is: {s2_auto [0s 20s]}")
    crosses(leaf, hub)
    crosses(hub, leaf)
    hub.reload(HUB.replace("}", ", compression: off }"))
    eventually(lambda: compression(hub), "off")
    crosses(hub, leaf)


def test_a_listener_does_not_come_by_a_reload(start_nats: StartServer) -> None:
    server = start_nats("")
    server.reload(HUB)
    server.await_log("Failed to reload server configuration")
    with NatsClient(server.address) as client:
        client.ping()


def test_what_cannot_change_in_a_remote(start_nats: StartServer) -> None:
    leaf = start_nats(leaf_conf(remote("127.0.0.1:7422", ", disabled: true")))
    changes: list[dict[str, Any] | str] = [
        ", disabled: true, hub: true",
        ', disabled: true, proxy: { url: "http://127.0.0.1:1" }',
    ]
    for number, change in enumerate(changes, start=1):
        leaf.reload(leaf_conf(remote("127.0.0.1:7422", str(change))))
        leaf.await_log("Failed to reload server configuration", number)
