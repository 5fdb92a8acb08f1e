"""Traps and errors of the NATS protocol that need a configuration, each on ours and the original.

Traps 1 to 24, 30, 31, 34, 36, 37 and 48 are transcripts in tests/golden/nats; 18 and 35 stand in
test_nats_raw.py. In tests/unit/protocols/nats are 27 and 28 (accounts/test_mapping.py), 42
(conf/test_parser.py) and 41 (auth/test_nkeys.py); 45 to 47 are about leaf nodes.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import RawPeer, nats_peer
from support.nats_file import FileServer, StartServer, plain_info

USERS = """
authorization {
  users = [
    {user: all, password: a}
    {user: bob, password: b, permissions: {
      publish: {allow: ["p.*", "q.>"], deny: "p.no"}
      subscribe: {allow: ["s.*", "w.>", "q.x grp", "_INBOX.>"], deny: ["w.secret", "w.q never"]}
    }}
    {user: free, password: f, permissions: {}}
    {user: svc, password: s, permissions: {
      subscribe: "req.>", allow_responses: {max: 2, expires: "1m"}
    }}
  ]
  default_permissions: {publish: "d.>", subscribe: "d.>"}
}
"""


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FileServer]:
    """A server with users and permissions."""
    server = FileServer(tmp_path_factory.mktemp("guarded") / "server", USERS)
    yield server
    server.close()


def user(server: FileServer, name: str, password: str, **options: object) -> RawPeer:
    """A client that has logged in."""
    return nats_peer(server.address, {"user": name, "pass": password, **options})


def talk(server: FileServer, first: bytes) -> bytes:
    """What follows INFO when the connection begins like this, up to its end."""
    with RawPeer(server.address) as peer:
        plain_info(peer)
        peer.send(first)
        return peer.read_to_eof()


VIOLATION = b"-ERR 'Authorization Violation'\r\n"


# --- logins


@pytest.mark.parametrize(
    "first",
    [b"\r\n", b"PING\r\n", b"PUB a 1\r\nx\r\n", b" CONNECT {}\r\n", b"SUB a 1\r\n", b"x"],
)
def test_trap_33_nothing_but_connect_comes_first(guarded: FileServer, first: bytes) -> None:
    assert talk(guarded, first) == VIOLATION


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"user": "all"},
        {"user": "all", "pass": "b"},
        {"user": "nobody", "pass": "a"},
        {"auth_token": "a"},
        {"user": "all", "pass": "a", "account": "X"},
        {"user": "all", "pass": "a", "new_account": True},
    ],
)
def test_wrong_credentials(guarded: FileServer, options: dict[str, object]) -> None:
    assert talk(guarded, b"CONNECT " + json.dumps(options).encode() + b"\r\n") == VIOLATION


def test_who_says_nothing_is_cut_in_time(start_nats: StartServer) -> None:
    server = start_nats("authorization { user: u, password: p, timeout: 0.3 }\n")
    assert talk(server, b"") == b"-ERR 'Authentication Timeout'\r\n"


NO_AUTH = """
no_auth_user: guest
authorization { users = [ {user: guest, password: g}, {user: u, password: p} ] }
"""


def test_trap_32_wrong_credentials_fail_with_a_no_auth_user(start_nats: StartServer) -> None:
    server = start_nats(NO_AUTH)
    with RawPeer(server.address) as peer:
        assert "auth_required" not in plain_info(peer)
        peer.send(b"SUB a 1\r\nPING\r\n")
        peer.expect(b"+OK\r\nPONG\r\n")
    assert talk(server, b'CONNECT {"user":"u","pass":"wrong"}\r\n') == VIOLATION
    assert talk(server, b'CONNECT {"user":"other"}\r\n') == VIOLATION
    with nats_peer(server.address) as peer:
        peer.ping()


def test_info_says_that_a_login_is_needed(guarded: FileServer) -> None:
    with RawPeer(guarded.address) as peer:
        assert plain_info(peer)["auth_required"] is True


# --- permissions


def denied(what: str) -> bytes:
    return f"-ERR 'Permissions Violation for {what}'\r\n".encode()


@pytest.mark.parametrize(
    ("operation", "answer"),
    [
        (b"PUB p.a 1\r\nx\r\n", b""),
        (b"PUB q.a.b 1\r\nx\r\n", b""),
        (b"PUB p.no 1\r\nx\r\n", denied('Publish to "p.no"')),
        (b"PUB p.a.b 1\r\nx\r\n", denied('Publish to "p.a.b"')),
        (b"PUB other 1\r\nx\r\n", denied('Publish to "other"')),
        (b"HPUB other 0 1\r\nx\r\n", denied('Publish to "other"')),
        (b"PUB p.a _R_.x 1\r\nx\r\n", denied('Publish with Reply of "_R_.x"')),
        (b"PUB p.a $JS.ACK.x 1\r\nx\r\n", denied('Publish with Reply of "$JS.ACK.x"')),
        (b"PUB p.a _GR_.x 1\r\nx\r\n", denied('Publish with Reply of "_GR_.x"')),
        (b"SUB s.a 1\r\n", b""),
        (b"SUB other 1\r\n", denied('Subscription to "other"')),
        (b"SUB other grp 1\r\n", denied('Subscription to "other" using queue "grp"')),
        (b"SUB w.secret 1\r\n", denied('Subscription to "w.secret"')),
        (b"SUB q.x grp 1\r\n", b""),
        (b"SUB q.x 1\r\n", denied('Subscription to "q.x"')),
        (b"SUB q.x other 1\r\n", denied('Subscription to "q.x" using queue "other"')),
        (b"SUB w.q never 1\r\n", denied('Subscription to "w.q" using queue "never"')),
        (b"SUB w.q some 1\r\n", b""),
        (b"SUB s.a _sys_ 1\r\n", denied('Subscription to "s.a" using queue "_sys_"')),
    ],
)
def test_trap_24_and_44_refused_operations_keep_the_connection(
    guarded: FileServer, operation: bytes, answer: bytes
) -> None:
    with user(guarded, "bob", "b") as peer:
        peer.send(operation + b"PING\r\n")
        peer.expect(answer + b"PONG\r\n")


def test_trap_25_a_star_admits_a_tail(guarded: FileServer) -> None:
    with user(guarded, "bob", "b") as peer, user(guarded, "free", "f") as publisher:
        peer.send(b"SUB s.> 1\r\n")
        peer.ping()
        publisher.send(b"PUB s.a.b 1\r\nx\r\n")
        peer.expect(b"MSG s.a.b 1 1\r\nx\r\n")


def test_trap_26_what_overlaps_a_denial_is_filtered_at_delivery(guarded: FileServer) -> None:
    with user(guarded, "bob", "b") as peer, user(guarded, "free", "f") as publisher:
        peer.send(b"SUB w.> 1\r\n")
        peer.ping()
        publisher.send(b"PUB w.secret 1\r\ns\r\n" * 3 + b"PUB w.open 1\r\no\r\n")
        peer.expect(b"MSG w.open 1 1\r\no\r\n")
        peer.ping()


def test_trap_43_no_block_means_the_default_and_an_empty_one_everything(
    guarded: FileServer,
) -> None:
    with user(guarded, "all", "a") as peer:
        peer.send(b"PUB x 0\r\n\r\nPUB d.x 0\r\n\r\nSUB x 1\r\nPING\r\n")
        peer.expect(denied('Publish to "x"') + denied('Subscription to "x"') + b"PONG\r\n")
    with user(guarded, "free", "f") as peer:
        peer.send(b"SUB x 1\r\nPUB x 0\r\n\r\n")
        peer.expect(b"MSG x 1 0\r\n\r\n")


def test_replies_may_be_published_as_often_as_allowed(guarded: FileServer) -> None:
    with user(guarded, "svc", "s") as service, user(guarded, "free", "f") as client:
        service.send(b"SUB req.a 1\r\nPUB reply 0\r\n\r\nPING\r\n")
        service.expect(denied('Publish to "reply"') + b"PONG\r\n")
        client.send(b"SUB reply 9\r\nPUB req.a reply 1\r\nq\r\n")
        service.expect(b"MSG req.a 1 reply 1\r\nq\r\n")
        service.send(b"PUB reply 1\r\n1\r\nPUB reply 1\r\n2\r\nPUB reply 1\r\n3\r\n")
        service.expect(denied('Publish to "reply"'))
        client.expect(b"MSG reply 9 1\r\n1\r\nMSG reply 9 1\r\n2\r\n")


# --- mappings


MAPPED = """
mappings {
  "a": "b"
  "b": "c"
  "w.*": "m.{{wildcard(1)}}"
  "lost": [ {destination: "lost", weight: 0}, {destination: "kept", weight: 0} ]
}
authorization { users = [ {user: u, password: p, permissions: {
  publish: ["b", "c", "m.>", "kept"], subscribe: ">"
}} ] }
"""


def test_trap_27_mapped_subjects_do_not_chain_and_are_the_ones_checked(
    start_nats: StartServer,
) -> None:
    server = start_nats(MAPPED)
    with user(server, "u", "p") as peer:
        peer.send(b"SUB > 1\r\nPING\r\n")
        peer.expect(b"PONG\r\n")
        peer.send(b"PUB a 1\r\nx\r\nPUB w.1 1\r\ny\r\nPUB other 1\r\nz\r\nPING\r\n")
        peer.expect(b"MSG b 1 1\r\nx\r\nMSG m.1 1 1\r\ny\r\n")
        peer.expect(denied('Publish to "other"') + b"PONG\r\n")


def test_trap_28_a_listed_source_loses_what_lacks_to_a_hundred(start_nats: StartServer) -> None:
    server = start_nats('mappings { "a": [ {destination: "a", weight: 0} ] }\n')
    with nats_peer(server.address, {"verbose": True}) as peer:
        peer.send(b"SUB a 1\r\nPUB a 1\r\nx\r\n")
        peer.expect(b"+OK\r\n+OK\r\n")
        peer.ping()


def test_trap_29_mappings_hold_from_the_first_message_on(start_nats: StartServer) -> None:
    server = start_nats('mappings { "a": "b" }\n')
    with RawPeer(server.address) as peer:
        plain_info(peer)
        peer.send(b'CONNECT {"verbose":false}\r\nSUB > 1\r\nPUB a 1\r\nx\r\n')
        peer.expect(b"MSG b 1 1\r\nx\r\n")


# --- limits


def test_connections_of_an_account(start_nats: StartServer) -> None:
    server = start_nats(
        "accounts { A: { users: [{user: u, password: p}], limits: {max_connections: 1} } }\n"
    )
    with user(server, "u", "p"):
        said = talk(server, b'CONNECT {"user":"u","pass":"p"}\r\n')
    assert said == b"-ERR 'maximum account active connections exceeded'\r\n"


def test_payload_and_subscriptions_of_an_account(start_nats: StartServer) -> None:
    server = start_nats(
        "accounts { A: { users: [{user: u, password: p}],"
        " limits: {max_payload: 4, max_subscriptions: 1} } }\n"
    )
    with user(server, "u", "p") as peer:
        peer.send(b"SUB a 1\r\nSUB b 2\r\nPUB a 4\r\n1234\r\n")
        peer.expect(b"-ERR 'maximum subscriptions exceeded'\r\nMSG a 1 4\r\n1234\r\n")
        peer.send(b"PUB a 5\r\n")
        peer.expect(b"-ERR 'Maximum Payload Violation'\r\n")
        peer.expect_close()


def test_accounts_do_not_hear_each_other(start_nats: StartServer) -> None:
    one_user = "{{ users: [{{user: {0}, password: p}}] }}".format
    server = start_nats(f"accounts {{ A: {one_user('a')}, B: {one_user('b')} }}\n")
    with user(server, "a", "p") as one, user(server, "b", "p") as other:
        one.send(b"SUB > 1\r\n")
        one.ping()
        other.send(b"PUB x 1\r\nx\r\n")
        other.ping()
        one.ping()


# --- second CONNECT, INFO later, the end


def test_trap_30_a_second_connect_drops_the_subscriptions(start_nats: StartServer) -> None:
    server = start_nats("")
    with nats_peer(server.address, {"echo": False}) as peer:
        peer.send(b'SUB a 1\r\nCONNECT {"verbose":false}\r\nPUB a 1\r\nx\r\n')
        peer.ping()
        peer.send(b'CONNECT {"verbose":false,"echo":true}\r\nPUB a 1\r\ny\r\n')
        peer.ping()
        peer.send(b"SUB a 1\r\nPUB a 1\r\nz\r\n")
        peer.expect(b"MSG a 1 1\r\nz\r\n")


DUCK = 'lame_duck_duration: "30s"\nlame_duck_grace_period: "28s"\n'


def test_trap_38_lame_duck_is_announced_to_those_who_can_read_it(tmp_path: Path) -> None:
    server = FileServer(tmp_path / "server", DUCK)
    with (
        nats_peer(server.address, {"protocol": 1}) as modern,
        nats_peer(server.address, {"protocol": 0}) as old,
        RawPeer(server.address) as silent,
    ):
        plain_info(silent)
        silent.send(b'CONNECT {"protocol":1,"verbose":false}\r\n')
        server.child.send_signal(signal.SIGUSR2)
        assert plain_info(modern)["remote_account"] == "$G"
        assert plain_info(modern)["ldm"] is True
        old.ping()
        with pytest.raises(OSError):  # noqa: PT011 - refused, or reset
            RawPeer(server.address)
    server.child.kill()  # it does not listen to TERM any more
    server.child.wait()


def test_trap_39_a_single_server_names_no_others(start_nats: StartServer) -> None:
    server = start_nats("")
    with RawPeer(server.address) as peer:
        assert "connect_urls" not in plain_info(peer)


def test_trap_40_a_space_stands_before_the_end_of_info(start_nats: StartServer) -> None:
    server = start_nats("")
    with RawPeer(server.address) as peer:
        assert peer.read_line().endswith(b"} \r\n")


def test_trap_49_the_exit_code_after_term(tmp_path: Path) -> None:
    server = FileServer(tmp_path / "server", "")
    server.child.terminate()
    assert server.child.wait(20) == 0
