"""AUTH: what an auth server allows, how it is asked, and what its failures cost."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support import Server
from support.authority import Authority
from support.clients.http import request
from support.clients.nsq import ERROR, MESSAGE, RESPONSE, Wire, body
from support.servers.auth import Asked, AuthServer, everything

OK = (RESPONSE, b"OK")
StartBroker = Callable[..., Server]


def grant(*entries: dict[str, Any], ttl: int = 3600) -> dict[str, Any]:
    return {"ttl": ttl, "identity": "", "identity_url": "", "authorizations": list(entries)}


def entry(topic: str, channels: list[str], *permissions: str) -> dict[str, Any]:
    return {"topic": topic, "channels": channels, "permissions": list(permissions)}


@pytest.fixture(scope="module")
def shared_auth() -> Iterator[AuthServer]:
    with AuthServer(lambda _: everything()) as server:
        yield server


@pytest.fixture
def auth(shared_auth: AuthServer) -> AuthServer:
    shared_auth.answer = lambda _: everything()
    while not shared_auth.asked.empty():
        shared_auth.asked.get()
    return shared_auth


@pytest.fixture
def guarded(broker_for: StartBroker, auth: AuthServer) -> Server:
    return broker_for({"nsq": {"auth_http_addresses": [auth.address]}})


def publish(topic: str) -> bytes:
    return body(f"PUB {topic}".encode(), b"x")


def login(wire: Wire, secret: bytes = b"secret") -> tuple[int, bytes]:
    return wire.ask(body(b"AUTH", secret))


def test_the_way_it_should_be(guarded: Server, auth: AuthServer, uniq: str) -> None:
    with Wire(guarded.nsq) as wire:
        assert wire.identify()["auth_required"] is True
        kind, answer = login(wire)
        assert (kind, answer) == (
            RESPONSE,
            b'{"identity":"me","identity_url":"http://me","permission_count":1}',
        )
        asked = auth.asked.get(timeout=5)
        assert asked == {
            "common_name": "",
            "remote_ip": "127.0.0.1",
            "secret": "secret",
            "tls": "false",
            "method": "GET",
            "path": "/auth",
            "accept": "application/vnd.nsq; version=1.0",
        }
        assert wire.ask(publish(uniq)) == OK
        assert wire.ask(f"SUB {uniq} c\n".encode()) == OK
        wire.send(b"RDY 1\n")
        assert wire.frame()[0] == MESSAGE
        page = request(guarded.nsq_http, "GET", "/stats", format="json", topic=uniq).json
        (client,) = page["topics"][0]["channels"][0]["clients"]
        assert client["authed"] is True
        assert client["auth_identity"] == "me"
        assert client["auth_identity_url"] == "http://me"
        assert auth.asked.empty()


def test_post(start_broker: StartBroker, auth: AuthServer) -> None:
    url = f"http://{auth.address}/elsewhere"
    server = start_broker(
        {"nsq": {"auth_http_addresses": [url], "auth_http_request_method": "post"}}
    )
    with Wire(server.nsq) as wire:
        assert login(wire, b"a&b=\xc3\xa9")[0] == RESPONSE
    asked = auth.asked.get(timeout=5)
    assert (asked["method"], asked["path"]) == ("POST", "/elsewhere")
    assert (asked["secret"], asked["tls"], asked["common_name"]) == (["a&b=é"], ["false"], [""])


def test_who_the_client_is_by_its_certificate(
    start_broker: StartBroker, auth: AuthServer, tmp_path: Any
) -> None:
    authority = Authority(tmp_path)
    pair = authority.issue("server")
    server = start_broker(
        {
            "nsq": {
                "auth_http_addresses": [auth.address],
                "tls_cert": str(pair.certificate),
                "tls_key": str(pair.key),
                "tls_client_auth_policy": "require",
            }
        }
    )
    with Wire(server.nsq) as wire:
        wire.identify(authority.client(authority.issue("worker-7")), tls_v1=True)
        assert login(wire)[0] == RESPONSE
    asked = auth.asked.get(timeout=5)
    assert (asked["tls"], asked["common_name"]) == ("true", "worker-7")


NOT_FIRST = [
    (publish("t"), b"PUB"),
    (body(b"DPUB t 1", b"x"), b"DPUB"),
    (body(b"MPUB t", b"\0\0\0\1\0\0\0\1x"), b"MPUB"),
    (b"SUB t c\n", b"SUB"),
]


@pytest.mark.parametrize(("command", "name"), NOT_FIRST)
def test_auth_first(guarded: Server, command: bytes, name: bytes) -> None:
    with Wire(guarded.nsq) as wire:
        assert wire.ask(command) == (ERROR, b"E_AUTH_FIRST AUTH required before " + name)
        assert wire.is_closed()


def test_other_errors_come_before_it(guarded: Server) -> None:
    with Wire(guarded.nsq) as wire:
        assert wire.ask(b"SUB t\n") == (
            ERROR,
            b"E_INVALID SUB insufficient number of parameters",
        )
    with Wire(guarded.nsq) as wire:
        assert wire.ask(body(b"PUB $", b"x")) == (
            ERROR,
            b'E_BAD_TOPIC PUB topic name "$" is not valid',
        )


def test_twice(guarded: Server) -> None:
    with Wire(guarded.nsq) as wire:
        assert login(wire)[0] == RESPONSE
        assert login(wire) == (ERROR, b"E_INVALID AUTH already set")
        assert wire.is_closed()


def test_no_authorizations(guarded: Server, auth: AuthServer) -> None:
    auth.answer = lambda _: grant()
    with Wire(guarded.nsq) as wire:
        assert login(wire) == (ERROR, b"E_UNAUTHORIZED AUTH no authorizations found")
        assert wire.is_closed()


LIES: list[Any] = [
    b"not json",
    b"[]",
    b"",
    {"ttl": 0, "authorizations": [entry(".*", [".*"], "publish")]},
    {"ttl": -5, "authorizations": [entry(".*", [".*"], "publish")]},
    {"authorizations": [entry(".*", [".*"], "publish")]},
    {"ttl": "5", "authorizations": []},
    everything(authorizations=[entry("(", [".*"], "publish")]),
    everything(authorizations=[entry(".*", ["["], "publish")]),
    everything(authorizations=[entry(".*", [".*"], "admin")]),
    (403, b'{"message":"NOT_ALLOWED"}'),
    (500, b"oops"),
]


@pytest.mark.parametrize("lie", LIES, ids=repr)
def test_an_answer_that_is_no_grant(guarded: Server, auth: AuthServer, lie: Any) -> None:
    auth.answer = lambda _: lie
    with Wire(guarded.nsq) as wire:
        assert login(wire) == (ERROR, b"E_AUTH_FAILED AUTH failed")
        assert wire.is_closed()


RULES = [
    (entry("^a$", ["^c$"], "subscribe"), b"SUB a c\n", True),
    (entry("^a$", ["^c$"], "subscribe"), b"SUB b c\n", False),
    (entry("^a$", ["^c$"], "subscribe"), b"SUB a d\n", False),
    (entry("^a$", ["^c$"], "publish"), b"SUB a c\n", False),
    (entry("a", ["c"], "subscribe"), b"SUB xay ecf\n", True),  # patterns match anywhere
    (entry("^a$", [".*"], "publish"), publish("a"), True),
    (entry("^a$", [".*"], "subscribe"), publish("a"), False),
    (entry("^b$", [".*"], "publish"), publish("a"), False),
]


@pytest.mark.parametrize(("rule", "command", "allowed"), RULES)
def test_rules(
    guarded: Server, auth: AuthServer, rule: dict[str, Any], command: bytes, allowed: bool
) -> None:
    auth.answer = lambda _: grant(rule)
    with Wire(guarded.nsq) as wire:
        assert login(wire)[0] == RESPONSE
        found = wire.ask(command)
        if allowed:
            assert found == OK
        else:
            assert found[0] == ERROR
            assert found[1].startswith(b"E_UNAUTHORIZED AUTH failed for ")
            assert wire.is_closed()


def test_what_is_said_of_a_refusal(guarded: Server, auth: AuthServer) -> None:
    auth.answer = lambda _: grant(entry("^x$", [".*"], "publish"))
    with Wire(guarded.nsq) as wire:
        login(wire)
        assert wire.ask(b"SUB t c\n")[1] == b'E_UNAUTHORIZED AUTH failed for SUB on "t" "c"'
    with Wire(guarded.nsq) as wire:
        login(wire)
        assert wire.ask(publish("t"))[1] == b'E_UNAUTHORIZED AUTH failed for PUB on "t" ""'


@pytest.mark.parametrize("channels", [[], ["^c$"]])
def test_trap_26_publishing_needs_a_channel_pattern_that_matches_nothing(
    guarded: Server, auth: AuthServer, channels: list[str]
) -> None:
    auth.answer = lambda _: grant(entry(".*", channels, "publish", "subscribe"))
    with Wire(guarded.nsq) as wire:
        assert login(wire)[0] == RESPONSE
        assert wire.ask(publish("t"))[1] == b'E_UNAUTHORIZED AUTH failed for PUB on "t" ""'


def test_trap_11_mpub_is_authorised_before_its_body(guarded: Server) -> None:
    with Wire(guarded.nsq) as wire:
        wire.send(b"MPUB t\n\x00\x00\x10\x00")
        assert wire.frame() == (ERROR, b"E_AUTH_FIRST AUTH required before MPUB")


def test_commands_behind_auth_keep_their_order(guarded: Server, auth: AuthServer) -> None:
    go_on = threading.Event()

    def slowly(_: Asked) -> Any:
        go_on.wait(10)
        return everything()

    auth.answer = slowly
    with Wire(guarded.nsq) as wire, Wire(guarded.nsq) as other:
        wire.send(body(b"AUTH", b"s") + publish("t") * 3 + b"SUB t c\n")
        auth.asked.get(timeout=5)
        # one client's question holds up nobody else
        assert other.ask(b"SUB t\n")[0] == ERROR
        go_on.set()
        assert wire.frame()[1].startswith(b'{"identity":"me"')
        assert [wire.frame() for _ in range(4)] == [OK] * 4


def test_a_grant_is_asked_for_again_when_it_is_too_old(guarded: Server, auth: AuthServer) -> None:
    auth.answer = lambda _: everything(ttl=1)
    with Wire(guarded.nsq) as wire:
        assert login(wire)[0] == RESPONSE
        auth.asked.get(timeout=5)
        auth.answer = lambda _: grant(entry("^t$", [".*"], "publish"))
        while auth.asked.empty():  # each publish within a second of AUTH asks nobody
            assert wire.ask(publish("t")) == OK
        assert auth.asked.get()["secret"] == "secret"
        assert wire.ask(publish("u"))[1] == b'E_UNAUTHORIZED AUTH failed for PUB on "u" ""'


def test_a_grant_that_cannot_be_had_again(guarded: Server, auth: AuthServer) -> None:
    auth.answer = lambda _: everything(ttl=1)
    with Wire(guarded.nsq) as wire:
        assert login(wire)[0] == RESPONSE
        auth.answer = lambda _: (500, b"")
        found = OK
        while found == OK:
            found = wire.ask(publish("t"))
        assert found == (ERROR, b"E_AUTH_FAILED AUTH failed")
        assert wire.is_closed()


def test_the_next_server_is_asked_when_one_is_down(
    start_broker: StartBroker, auth: AuthServer
) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        down = f"127.0.0.1:{closed.getsockname()[1]}"
        server = start_broker({"nsq": {"auth_http_addresses": [down, auth.address, down]}})
        for _ in range(5):
            with Wire(server.nsq) as wire:
                assert login(wire)[0] == RESPONSE


def test_a_server_that_never_answers(start_broker: StartBroker) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        times = {"http_client_connect_timeout": "200ms", "http_client_request_timeout": "300ms"}
        server = start_broker({"nsq": {"auth_http_addresses": [address], **times}})
        with Wire(server.nsq) as wire:
            assert login(wire) == (ERROR, b"E_AUTH_FAILED AUTH failed")


@pytest.mark.only_ours
def test_an_answer_without_end_is_cut_off(guarded: Server, auth: AuthServer) -> None:
    auth.answer = lambda _: json.dumps(everything(identity="x" * 3_000_000)).encode()
    with Wire(guarded.nsq) as wire:
        assert login(wire) == (ERROR, b"E_AUTH_FAILED AUTH failed")


def test_without_auth_servers(broker: Server) -> None:
    with Wire(broker.nsq) as wire:
        assert wire.identify()["auth_required"] is False
        assert login(wire) == (ERROR, b"E_AUTH_DISABLED AUTH disabled")
        assert wire.is_closed()
