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
from support.clients.peer import nats_peer
from support.clients.websocket import WebPeer, websocket_of
from support.logins.tokens import ACCOUNT_LIMITS, Company, Tenant, bob, user
from support.nats_file import FileServer
from support.servers.processes import Address

Start = Callable[[str], FileServer]
WEBSOCKET = 'websocket { listen: "127.0.0.1:-1", no_tls: true }\n'
FOUR, SIX = "127.0.0.1", "::1"
SERVER_HELLO_DONE = b"\x0e\0\0\0"
EXPLICIT = {"ack_policy": "explicit"}
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


def api(peer: RawPeer, subject: str, **body: Any) -> dict[str, Any]:
    """The answer of JetStream, to a client that subscribes to `in`."""
    text = json.dumps(body).encode()
    peer.send(b"PUB $JS.API.%s in %d\r\n%s\r\n" % (subject.encode(), len(text), text))
    answer = json.loads(peer.read_exact(int(peer.read_line().split()[3]) + 2))
    assert isinstance(answer, dict)
    return answer


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


def test_clients_learn_how_much_their_account_may_send(start_nats: Start) -> None:
    """nats.py: with 0 the client refuses every message itself."""
    server = start_nats(
        "accounts { A { users: [{ user: a, password: a }], limits: { max_payload: 7 } } }"
    )
    assert info(server.address)["max_payload"] == 2**20
    with RawPeer(server.address, skips_pings=True) as peer:
        peer.read_line()
        peer.send(b'CONNECT {"user":"a","pass":"a","verbose":false,"protocol":1}\r\nPING\r\n')
        assert peer.read_line() == b"PONG\r\n"
        fields = json.loads(peer.read_line().removeprefix(b"INFO "))
    assert (fields["max_payload"], fields["remote_account"]) == (7, "A")
    assert "nonce" not in fields


def test_limits_of_the_server_for_consumers(start_nats: Start, tmp_path: Path) -> None:
    """nats.js: those that a consumer gets, and those that refuse it or a request of its."""
    server = start_nats(
        f'jetstream {{ store_dir: "{tmp_path}/js", limits {{ max_ack_pending: 7,'
        " max_request_batch: 10, default_max_consumers: 1 } }"
    )
    with RawPeer(server.address, skips_pings=True) as peer:
        peer.read_line()
        peer.send(b'CONNECT {"verbose":false,"headers":true}\r\nSUB in 1\r\n')
        api(peer, "STREAM.CREATE.S", name="S", subjects=["s"], persist_mode="default")
        made = api(peer, "CONSUMER.CREATE.S.c", stream_name="S", config={"name": "c"} | EXPLICIT)
        assert (made["config"]["max_ack_pending"], made["config"]["max_batch"]) == (7, 10)
        peer.send(b'PUB $JS.API.CONSUMER.MSG.NEXT.S.c in 12\r\n{"batch":11}\r\n')
        peer.read_line()
        status = b"NATS/1.0 409 Exceeded MaxRequestBatch of 10\r\n\r\n\r\n"
        assert peer.read_exact(len(status)) == status
        other = api(peer, "CONSUMER.CREATE.S.d", stream_name="S", config={"name": "d"} | EXPLICIT)
        assert other["error"]["err_code"] == 10026
        assert "persist_mode" not in api(peer, "STREAM.INFO.S")["config"]


def with_operator(start: Start, folder: Path, limits: dict[str, Any]) -> tuple[FileServer, bytes]:
    """A server whose accounts are tokens, and the token of a user of one with these limits."""
    tenant, system = Tenant(limits=limits), Tenant("SYS")
    company = Company(system_account=system.public)
    accounts = "\n".join(f"{one.public}: {company.account(one)}" for one in (tenant, system))
    server = start(
        f"operator: {company.token}\nresolver: MEMORY\nresolver_preload {{ {accounts} }}\n"
        f'jetstream {{ store_dir: "{folder}/js" }}'
    )
    return server, user(bob(), tenant.pair, bearer_token=True).encode()


def test_a_request_that_comes_with_the_login_of_a_new_account(
    start_nats: Start, tmp_path: Path
) -> None:
    """The server learns of an operator's account by its first client."""
    limits = {**ACCOUNT_LIMITS, "disk_storage": 9_000}
    server, token = with_operator(start_nats, tmp_path, limits)
    with RawPeer(server.address, skips_pings=True) as peer:
        peer.read_line()
        login = b'CONNECT {"jwt":"%s","verbose":false}\r\n' % token
        peer.send(login + b"SUB in 1\r\nPUB $JS.API.INFO in 0\r\n\r\n")
        found = json.loads(peer.read_exact(int(peer.read_line().split()[3]) + 2))
    assert found["limits"]["max_storage"] == 9_000


@pytest.mark.parametrize("tier", ["R1", "R3"])
def test_accounts_with_tiers(start_nats: Start, tmp_path: Path, tier: str) -> None:
    """nats.js: the limits of each tier; a stream needs one of its number of replicas."""
    limits = {**ACCOUNT_LIMITS, "tiered_limits": {tier: {"disk_storage": 9_000}}}
    server, token = with_operator(start_nats, tmp_path, limits)
    with RawPeer(server.address, skips_pings=True) as peer:
        peer.read_line()
        peer.send(b'CONNECT {"jwt":"%s","verbose":false}\r\nSUB in 1\r\n' % token)
        found = api(peer, "INFO")
        assert set(found["limits"].values()) == {0}
        assert list(found["tiers"]) == [tier]
        limits = found["tiers"][tier]["limits"]
        assert (limits["max_storage"], limits["max_streams"]) == (9_000, 0)
        made = api(peer, "STREAM.CREATE.S", name="S", max_bytes=1_000)
        if tier == "R3":
            assert made["error"]["err_code"] == 10120
            return
        assert made["did_create"]
        used = api(peer, "INFO")
        assert (used["streams"], used["reserved_storage"]) == (1, 1_000)
        assert (used["tiers"][tier]["streams"], used["tiers"][tier]["reserved_storage"]) == (
            1,
            1_000,
        )
        large = api(peer, "STREAM.CREATE.L", name="L", subjects=["l"], max_bytes=10_000)
        assert large["error"]["err_code"] == 10047


def test_who_imports_the_api_of_another_account_gets_no_answers_of_its_own(
    start_nats: Start,
) -> None:
    """nats.go TestJetStreamImportDirectOnly: that nobody answers tells a client that it may not
    ask for a consumer; it goes on with its subscription."""
    users = "users: [ {{ user: {0}, password: {0} }} ]"
    exports = 'exports: [ { service: "$JS.API.INFO" } ]'
    imports = 'imports: [ { service: { account: JS, subject: "$JS.API.INFO" } } ]'
    server = start_nats(
        "jetstream: enabled\naccounts {\n"
        f"JS {{ jetstream: enabled, {users.format('js')}, {exports} }}\n"
        f"IN {{ {users.format('in')}, {imports} }}\n"
        f"OUT {{ {users.format('out')} }}\n}}\n"
    )
    for name, answer in (("in", b"NATS/1.0 503"), ("out", b"JetStream not enabled for account")):
        with nats_peer(server.address, {"user": name, "pass": name, "no_responders": True}) as peer:
            peer.send(b"SUB in 1\r\nPUB $JS.API.STREAM.NAMES in 0\r\n\r\n")
            peer.read_until(answer)
