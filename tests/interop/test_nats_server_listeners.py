"""What `twinwire nats-server` logs: addresses, listeners that are taken, who was cut off.

Each scenario runs against the original as well (TWINWIRE_TEST_TARGET=original).
"""

from __future__ import annotations

import json
import resource
import socket
import struct
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from support import RawPeer, nats_peer
from support.nats_file import FileServer, plain_info
from support.servers.processes import TARGET_ORIGINAL, ServerError

LISTENERS = """
websocket { listen: "127.0.0.1:-1", no_tls: true }
leafnodes { listen: "127.0.0.1:-1" }
"""


@pytest.fixture
def taken() -> Iterator[int]:
    """A port that somebody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as somebody:
        yield somebody.getsockname()[1]


def shown(server: FileServer) -> tuple[dict[str, object], dict[str, object]]:
    """INFO, and /varz."""
    with RawPeer(server.address) as peer:
        info = plain_info(peer)
    host, port = server.monitor
    with urllib.request.urlopen(f"http://{host}:{port}/varz") as page:
        return info, json.load(page)


def test_the_address_that_clients_get(tmp_path: Path) -> None:
    with closing(FileServer(tmp_path, 'client_advertise: "broker.example.com:5222"')) as server:
        for page in shown(server):
            assert (page["host"], page["port"]) == ("broker.example.com", 5222)
    (tmp_path / "again").mkdir()
    with closing(
        FileServer(tmp_path / "again", 'client_advertise: "broker.example.com"')
    ) as server:
        for page in shown(server):
            assert (page["host"], page["port"]) == ("broker.example.com", server.address.port)
        server.reload('client_advertise: "other.example.com:1"')
        server.await_log("Reloaded server configuration")
        info, _ = shown(server)  # the original's /varz shows the one from before
        assert (info["host"], info["port"]) == ("other.example.com", 1)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("cluster { name: EAST }", "EAST"),
        ("server_name: edge\nleafnodes { remotes [ { url: nats://127.0.0.1:1 } ] }", "edge"),
        ("leafnodes { remotes [ { url: nats://127.0.0.1:1 } ] }", None),
        ("server_name: alone", None),
    ],
)
def test_the_name_of_the_cluster(tmp_path: Path, text: str, name: str | None) -> None:
    with closing(FileServer(tmp_path, text)) as server:
        info, page = shown(server)
        assert info.get("cluster") == name
        assert page["cluster"] == ({"name": name} if name else {})
        assert (f"  Cluster:  {name}" in server.said()) == (name is not None)


def test_a_user_for_those_who_say_nothing(tmp_path: Path) -> None:
    users = "authorization { users: [ {user: a, password: b} ] }\nno_auth_user: a"
    with closing(FileServer(tmp_path, users)) as server:
        info, page = shown(server)
        assert "auth_required" not in info
        assert page["auth_required"] is True


def test_each_listener_is_logged_once(tmp_path: Path) -> None:
    with closing(FileServer(tmp_path, LISTENERS)) as server:
        server.await_log("Server is ready")
        for line in ("websocket clients", "leafnode connections", "client connections"):
            assert server.said().count(f"Listening for {line} on") == 1


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            'http: "127.0.0.1:{}"',
            (
                "Can't start monitoring: can't listen to the monitor port: "
                "listen tcp 127.0.0.1:{}: bind: address already in use"
            ),
        ),
        (
            'websocket {{ listen: "127.0.0.1:{}", no_tls: true }}',
            (
                "Unable to listen for websocket connections: "
                "listen tcp 127.0.0.1:{}: bind: address already in use"
            ),
        ),
        (
            'leafnodes {{ listen: "127.0.0.1:{}" }}',
            (
                "Error listening on leafnode port: {0} - "
                "listen tcp 127.0.0.1:{0}: bind: address already in use"
            ),
        ),
        (
            'listen: "127.0.0.1:{}"',
            (
                'Error listening on port: 127.0.0.1:{0}, "'
                'listen tcp 127.0.0.1:{0}: bind: address already in use"'
            ),
        ),
    ],
)
def test_an_address_in_use_is_named(tmp_path: Path, taken: int, text: str, line: str) -> None:
    with pytest.raises(ServerError) as problem:
        FileServer(tmp_path, text.format(taken))
    assert "ended with 1" in str(problem.value)
    assert "[FTL] " + line.format(taken) in str(problem.value)


def test_a_remote_that_does_not_answer(tmp_path: Path) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # and nobody else gets the port
        port = nobody.getsockname()[1]
        text = f"leafnodes {{ remotes [ {{ url: nats://127.0.0.1:{port} }} ] }}"
        with closing(FileServer(tmp_path, text)) as server:
            server.await_log(f"dial tcp 127.0.0.1:{port}: connect: connection refused")


def test_large_payloads_are_warned_of(tmp_path: Path) -> None:
    with closing(FileServer(tmp_path, "max_payload: 9MB")) as server:
        assert "[WRN] Maximum payloads over 8.00 MB" in server.said()


def test_a_password_that_was_changed(tmp_path: Path) -> None:
    users = "authorization {{ users: [ {{user: joe, password: {}}} ] }}\n"
    with closing(FileServer(tmp_path, users.format("one"))) as server:
        with nats_peer(server.address, {"user": "joe", "pass": "one"}) as peer:
            server.reload(users.format("two"))
            peer.expect(b"-ERR 'Authorization Violation'\r\n")
            peer.expect_close()
        server.await_log(' - authentication error - User "joe"')


def test_fewer_connections_than_there_are(tmp_path: Path) -> None:
    with closing(FileServer(tmp_path, "")) as server, ExitStack() as peers:
        for _ in range(3):
            peers.enter_context(nats_peer(server.address))
        server.reload("max_connections: 1")
        server.await_log("[INF] Closed 2 connections to fall within max_connections")
        server.await_log("[ERR] ", 2)
        assert server.said().count(" - maximum connections exceeded") == 2


def test_fewer_connections_of_an_account_than_there_are(tmp_path: Path) -> None:
    user, limits = "{{user: joe, password: one}}", "{{ max_conn: {} }}"
    text = f"accounts {{{{ A {{{{ users: [ {user} ], limits: {limits} }}}} }}}}\n"
    login = {"user": "joe", "pass": "one"}
    with closing(FileServer(tmp_path, text.format(3))) as server, ExitStack() as peers:
        for _ in range(3):
            peers.enter_context(nats_peer(server.address, login))
        server.reload(text.format(1))
        host, port = server.monitor
        reasons: list[str] = []
        while len(reasons) < 2:
            with urllib.request.urlopen(f"http://{host}:{port}/connz?state=closed") as page:
                reasons = [one["reason"] for one in json.load(page)["connections"]]
        assert reasons == ["Maximum Account Connections Exceeded"] * 2
        with urllib.request.urlopen(f"http://{host}:{port}/connz") as page:
            assert json.load(page)["num_connections"] == 1


def test_why_a_connection_ended(tmp_path: Path) -> None:
    with closing(FileServer(tmp_path, "")) as server:
        with nats_peer(server.address) as peer:
            peer.command("UNSUB 1")
        with nats_peer(server.address) as peer:  # cut off: no FIN, a RST
            peer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        host, port = server.monitor
        found: list[str] = []
        while len(found) < 2:
            with urllib.request.urlopen(f"http://{host}:{port}/connz?state=closed") as page:
                found = [one["reason"] for one in json.load(page)["connections"]]
        assert found == ["Client Closed", "Read Error"]


def test_no_more_files(tmp_path: Path) -> None:
    """Those who are there go on; the log says why others do not get in (each in its own words)."""
    with closing(FileServer(tmp_path, "")) as server, ExitStack() as peers:
        first = peers.enter_context(nats_peer(server.address))
        resource.prlimit(server.child.pid, resource.RLIMIT_NOFILE, (60, 60))
        for _ in range(60):
            peers.enter_context(closing(socket.create_connection(server.address)))
        server.await_log("too many open files")
        first.ping()
        peers.close()
        if not TARGET_ORIGINAL:
            server.await_log("files can be opened again")
        with nats_peer(server.address) as peer:
            peer.ping()
