"""What the clients' own test suites ask of a server and no other test of ours did.

Each runs against the original as well (TWINWIRE_TEST_TARGET=original).
"""

from __future__ import annotations

import json
import re
import ssl
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import RawPeer
from support.authority import Authority
from support.clients.websocket import WebPeer, websocket_of
from support.nats_file import FileServer
from support.servers.processes import Address

Start = Callable[[str], FileServer]
WEBSOCKET = 'websocket { listen: "127.0.0.1:-1", no_tls: true }\n'
FOUR, SIX = "127.0.0.1", "::1"
SERVER_HELLO_DONE = b"\x0e\0\0\0"
LEAF_PORT = re.compile(r"Listening for leafnode connections on .*:(\d+)\n")


def info(address: Address) -> dict[str, Any]:
    """What a client gets first."""
    with RawPeer(address) as peer:
        word, _, text = peer.read_line().partition(b" ")
    assert word == b"INFO"
    fields = json.loads(text)
    assert isinstance(fields, dict)
    return fields


def varz(address: Address) -> dict[str, Any]:
    host = f"[{address.host}]" if ":" in address.host else address.host
    with urllib.request.urlopen(f"http://{host}:{address.port}/varz") as answer:
        page = json.load(answer)
    assert isinstance(page, dict)
    return page


def test_clients_get_the_name_of_the_cluster(start_nats: Start) -> None:
    """nats.go TestConnectedServer: a name alone, without routes, is enough."""
    server = start_nats("cluster { name: herd }")
    assert info(server.address)["cluster"] == "herd"
    server.reload("cluster { name: flock }")
    server.await_log("Reloaded server configuration")
    assert info(server.address)["cluster"] == "flock"


def first_flight(address: Address) -> bytes:
    """What a server answers to a ClientHello of TLS 1.2, whose handshake is in plain."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        context.wrap_bio(incoming, outgoing).do_handshake()
    with RawPeer(address) as peer:
        peer.read_line()
        peer.send(outgoing.read())
        return peer.read_until(SERVER_HELLO_DONE)


def test_clients_get_the_authorities_of_their_certificates(
    start_nats: Start, tmp_path: Path
) -> None:
    """nats.go TestClientCertificateReloadOnServerRestart: a client that has no certificate of
    these authorities shows none, and its error says that one is required."""
    pair = Authority(tmp_path, "servers").issue("server")
    first, second = (Authority(tmp_path, name) for name in ("clients one", "clients two"))
    both = tmp_path / "both.pem"
    both.write_bytes(first.file.read_bytes() + second.file.read_bytes())
    tls = f'cert_file: "{pair.certificate}", key_file: "{pair.key}", verify: true, timeout: 10'
    server = start_nats(f'tls {{ {tls}, ca_file: "{both}" }}')
    said = first_flight(server.address)
    for authority in (first, second):
        assert authority.name.public_bytes() in said


def test_who_has_to_log_in_gets_another_answer(start_nats: Start) -> None:
    """With a no_auth_user INFO asks clients for nothing, but WebSocket clients for a login, and
    /varz says that logins are looked at (`nats server info`: Auth Required)."""
    users = "authorization { users: [ {user: a, password: a} ] }\nno_auth_user: a\n"
    server = start_nats(users + WEBSOCKET)
    assert "auth_required" not in info(server.address)
    assert varz(server.monitor)["auth_required"] is True
    with WebPeer(RawPeer(websocket_of(server.folder))) as peer:
        assert peer.info()["auth_required"] is True


def test_where_nobody_logs_in_nothing_is_reported(start_nats: Start) -> None:
    server = start_nats(WEBSOCKET)
    assert "auth_required" not in info(server.address)
    assert "auth_required" not in varz(server.monitor)
    with WebPeer(RawPeer(websocket_of(server.folder))) as peer:
        assert "auth_required" not in peer.info()


def test_without_a_name_no_cluster_is_announced(start_nats: Start) -> None:
    assert "cluster" not in info(start_nats("").address)


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]", ""])
def test_every_interface_is_those_of_both_families(start_nats: Start, host: str) -> None:
    """nats.js "tls - custom ca fails without root": a server on 0.0.0.0, a client to ::1."""
    if not Path("/proc/net/if_inet6").exists():
        pytest.skip("no IPv6 on this host")
    where = f'"{host}:-1"'
    listeners = f"listen: {where}\nhttp: {where}\nwebsocket {{ listen: {where}, no_tls: true }}\n"
    server = start_nats(f"{listeners}leafnodes {{ listen: {where} }}\n")
    [ports] = server.folder.glob("*.ports")
    listed = {
        listener: {Address.parse(url.split("//")[1]) for url in urls}
        for listener, urls in json.loads(ports.read_text()).items()
    }
    for ip in (FOUR, SIX):
        [nats] = (at for at in listed["nats"] if at.host == ip)
        fields = info(nats)
        assert (fields["client_ip"], fields["port"]) == (ip, nats.port)
        [pages] = (at for at in listed["monitoring"] if at.host == ip)
        assert varz(pages)["port"] == nats.port
        [web] = (at for at in listed["websocket"] if at.host == ip)
        with WebPeer(RawPeer(web)) as peer:
            assert peer.info()["client_ip"] == ip
        leafs = Address(ip, int(LEAF_PORT.findall(server.said())[0]))
        assert info(leafs)["port"] == leafs.port
