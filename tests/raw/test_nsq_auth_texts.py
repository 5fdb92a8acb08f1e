"""AUTH over the wire, with an auth server of the test's: the same against nsqd and ours."""

from __future__ import annotations

import json
import struct
import threading
from collections.abc import Callable, Iterator

import pytest
from conftest import BrokerFor
from support import RawPeer, Server, nsq_peer
from support.clients.http import nsq_channel, nsq_topic, request
from support.clients.peer import pack_frame, sized
from support.servers.authd import AuthServer, Reply, grant, row

SECRET = b"s3cret"
ANSWER = b'{"identity":"me","identity_url":"http://x","permission_count":1}'
# Who each secret is, for the cases below.
SECRETS = {
    "all": grant(row()),
    "sub": grant(row("^orders$", ("^c$",), "subscribe")),
    "pub": grant(row("^orders$", ("",), "publish")),
    "loose": grant(row("rder", ("x",), "subscribe")),
    "nothing": grant(),
    "null": b'{"ttl":60,"authorizations":null}',
    "nobody": Reply(b"no", 403),
    "broken": Reply(b"oops", 500),
    "empty body": b"",
    "junk": b"{",
    "list": b"[]",
    "string": b'"x"',
    "no ttl": grant(row(), ttl=None),
    "ttl 0": grant(row(), ttl=0),
    "ttl -1": grant(row(), ttl=-1),
    "ttl text": grant(row(), ttl="60"),
    "ttl fraction": grant(row(), ttl=1.5),
    "ttl true": grant(row(), ttl=True),
    "ttl huge": b'{"ttl":9223372036854775808,"authorizations":[{"topic":""}]}',
    "rows text": b'{"ttl":60,"authorizations":"x"}',
    "row text": b'{"ttl":60,"authorizations":["x"]}',
    "identity number": grant(row(), identity=1),
    "bad permission": grant(row(".*", (".*",), "admin")),
    "bad topic": grant(row("(")),
    "bad channel": grant(row(".*", ("[",))),
    "look ahead": grant(row("(?=x)")),
    "no channels": grant(row(".*", ())),
    "channel c": grant(row(".*", ("^c$",))),
    "any case": b'{"TTL":60,"Authorizations":[{"TOPIC":".*","Channels":[".*"],"PERMISSIONS":'
    b'["publish"]}],"IDENTITY":"me","Identity_Url":"http://x"}',
    "marks": grant(row(), identity="<a&b>", identity_url="é"),
    "null row": b'{"ttl":60,"authorizations":[null],"identity":"me","identity_url":"http://x"}',
}
PUB = b"PUB orders\n" + sized(b"x")
DPUB = b"DPUB orders 5\n" + sized(b"x")
MPUB = b"MPUB orders\n" + sized(struct.pack(">i", 1) + sized(b"x"))
FAILED = "E_AUTH_FAILED AUTH failed"


@pytest.fixture(scope="module")
def authd() -> Iterator[AuthServer]:
    with AuthServer() as server:
        server.replies.update(SECRETS)
        yield server


@pytest.fixture(scope="module")
def guarded(authd: AuthServer, broker_for: BrokerFor) -> Server:
    return broker_for({"nsq": {"auth_http_addresses": [str(authd.address)]}})


def _auth(secret: str) -> bytes:
    return b"AUTH\n" + sized(secret.encode())


def _error(text: str) -> bytes:
    return pack_frame("error", text.encode())


def _response(text: bytes) -> bytes:
    return pack_frame("response", text)


OK = _response(b"OK")
# What is sent behind the magic, and all that comes back before the server closes.
REFUSALS: dict[str, tuple[bytes, bytes]] = {
    "SUB first": (b"SUB orders c\n", _error("E_AUTH_FIRST AUTH required before SUB")),
    "PUB first": (PUB, _error("E_AUTH_FIRST AUTH required before PUB")),
    "DPUB first": (DPUB, _error("E_AUTH_FIRST AUTH required before DPUB")),
    "MPUB first": (MPUB, _error("E_AUTH_FIRST AUTH required before MPUB")),
    "trap 11: MPUB before its body": (
        b"MPUB orders\n",
        _error("E_AUTH_FIRST AUTH required before MPUB"),
    ),
    "trap 11: MPUB with a bad body": (
        b"MPUB orders\n" + struct.pack(">i", -1),
        _error("E_AUTH_FIRST AUTH required before MPUB"),
    ),
    "trap 11: PUB with a bad body": (
        b"PUB orders\n" + struct.pack(">i", -1),
        _error("E_BAD_MESSAGE PUB invalid message body size -1"),
    ),
    "a bad name comes before": (
        b"PUB or*ders\n",
        _error('E_BAD_TOPIC PUB topic name "or*ders" is not valid'),
    ),
    "MPUB with a bad name": (
        b"MPUB or*ders\n",
        _error('E_BAD_TOPIC E_BAD_TOPIC MPUB topic name "or*ders" is not valid'),
    ),
    "a bad timeout comes before": (
        b"DPUB orders x\n",
        _error("E_INVALID DPUB could not parse timeout x"),
    ),
    "twice": (
        _auth("all") * 2,
        _response(ANSWER) + _error("E_INVALID AUTH already set"),
    ),
    "after SUB": (
        _auth("all") + b"SUB orders c\n" + _auth("all"),
        _response(ANSWER) + OK + _error("E_INVALID cannot AUTH in current state"),
    ),
    "with a parameter": (b"AUTH x\n", _error("E_INVALID AUTH invalid number of parameters")),
    "an empty secret": (
        b"AUTH\n" + struct.pack(">i", 0),
        _error("E_BAD_BODY AUTH invalid body size 0"),
    ),
    "a huge secret": (
        b"AUTH\n" + struct.pack(">i", 5242881),
        _error("E_BAD_BODY AUTH body too big 5242881 > 5242880"),
    ),
    "SUB on another channel": (
        _auth("sub") + b"SUB orders d\n",
        _response(ANSWER) + _error('E_UNAUTHORIZED AUTH failed for SUB on "orders" "d"'),
    ),
    "SUB on another topic": (
        _auth("sub") + b"SUB orders2 c\n",
        _response(ANSWER) + _error('E_UNAUTHORIZED AUTH failed for SUB on "orders2" "c"'),
    ),
    "SUB with publish alone": (
        _auth("pub") + b"SUB orders c\n",
        _response(ANSWER) + _error('E_UNAUTHORIZED AUTH failed for SUB on "orders" "c"'),
    ),
    "PUB with subscribe alone": (
        _auth("sub") + PUB,
        _response(ANSWER) + _error('E_UNAUTHORIZED AUTH failed for PUB on "orders" ""'),
    ),
    "DPUB with subscribe alone": (
        _auth("sub") + DPUB,
        _response(ANSWER) + _error('E_UNAUTHORIZED AUTH failed for DPUB on "orders" ""'),
    ),
    "MPUB with subscribe alone": (
        _auth("sub") + b"MPUB orders\n",
        _response(ANSWER) + _error('E_UNAUTHORIZED AUTH failed for MPUB on "orders" ""'),
    ),
    "trap 26: no channels": (
        _auth("no channels") + PUB,
        _response(ANSWER) + _error('E_UNAUTHORIZED AUTH failed for PUB on "orders" ""'),
    ),
    "trap 26: one channel": (
        _auth("channel c") + PUB,
        _response(ANSWER) + _error('E_UNAUTHORIZED AUTH failed for PUB on "orders" ""'),
    ),
    "a refusal behind good publishes": (
        _auth("pub") + PUB + PUB + b"PUB other\n" + sized(b"x") + PUB,
        _response(ANSWER) + OK + OK + _error('E_UNAUTHORIZED AUTH failed for PUB on "other" ""'),
    ),
    "a row of nothing": (
        _auth("null row") + PUB,
        _response(ANSWER) + _error('E_UNAUTHORIZED AUTH failed for PUB on "orders" ""'),
    ),
    **{
        name: (_auth(name) + PUB, _error("E_UNAUTHORIZED AUTH no authorizations found"))
        for name in ("nothing", "null")
    },
    **{
        name: (_auth(name) + PUB, _error(FAILED))
        for name in (
            "nobody", "broken", "empty body", "junk", "list", "string", "no ttl", "ttl 0",
            "ttl -1", "ttl text", "ttl fraction", "ttl true", "ttl huge", "rows text", "row text",
            "identity number", "bad permission", "bad topic", "bad channel", "look ahead",
        )
    },
}  # fmt: skip


def _whole(peer: RawPeer, data: bytes) -> None:
    peer.send(data)


def _bytewise(peer: RawPeer, data: bytes) -> None:
    for index in range(len(data)):
        peer.send(data[index : index + 1])


@pytest.mark.parametrize("feed", [_whole, _bytewise])
@pytest.mark.parametrize("name", REFUSALS)
def test_refused(guarded: Server, name: str, feed: Callable[[RawPeer, bytes], None]) -> None:
    said, answer = REFUSALS[name]
    with nsq_peer(guarded.nsq) as peer:
        feed(peer, said)
        peer.expect(answer)
        peer.expect_close()
    guarded.check_alive()


def test_everything_behind_auth_keeps_its_order(guarded: Server, uniq: str) -> None:
    """AUTH, a channel, publishes of all kinds, sent in one go while the answer is on its way."""
    name = uniq.encode()
    with nsq_peer(guarded.nsq) as peer:
        said = _auth("all") + b"SUB %s c\n" % name + b"RDY 5\nNOP\n"
        for body in (b"1", b"2"):
            said += b"PUB %s\n" % name + sized(body)
        said += b"MPUB %s\n" % name + sized(struct.pack(">i", 1) + sized(b"3"))
        peer.send(said)
        peer.expect(_response(ANSWER) + OK)
        frames = [peer.read_frame() for _ in range(6)]
        assert [f.payload for f in frames if f.kind == "response"] == [b"OK"] * 3
        assert [f.body for f in frames if f.kind == "message"] == [b"1", b"2", b"3"]


def test_patterns_are_not_anchored(guarded: Server) -> None:
    with nsq_peer(guarded.nsq) as peer:
        peer.send(_auth("loose") + b"SUB border axb\n")
        peer.expect(_response(ANSWER) + OK)


def test_keys_in_any_case_and_marks(guarded: Server) -> None:
    with nsq_peer(guarded.nsq) as peer:
        peer.send(_auth("any case") + PUB)
        peer.expect(_response(ANSWER) + OK)
    with nsq_peer(guarded.nsq) as peer:
        peer.send(_auth("marks"))
        escaped = rb'{"identity":"\u003ca\u0026b\u003e","identity_url":"'
        peer.expect(_response(escaped + 'é","permission_count":1}'.encode()))


def test_identify_says_that_auth_is_required(guarded: Server, shared_broker: Server) -> None:
    for server, required in ((guarded, True), (shared_broker, False)):
        with nsq_peer(server.nsq) as peer:
            peer.command("IDENTIFY", b'{"feature_negotiation":true}')
            assert json.loads(peer.read_frame().payload)["auth_required"] is required


def test_what_is_asked_by_get(guarded: Server, authd: AuthServer) -> None:
    secret = "a b&c=d/é+%"
    with nsq_peer(guarded.nsq) as peer:
        peer.send(_auth(secret))
        peer.expect(_response(ANSWER))
    asked = authd.wait_asked(secret)
    assert (asked.method, asked.path) == ("GET", "/auth")
    assert asked.values == {
        "secret": [secret], "remote_ip": ["127.0.0.1"], "tls": ["false"], "common_name": [""],
    }  # fmt: skip
    assert asked.headers["Accept"] == "application/vnd.nsq; version=1.0"


def test_what_is_asked_by_post(authd: AuthServer, broker_for: BrokerFor) -> None:
    address = f"http://{authd.address}/own/path?x=1"
    config = {"auth_http_addresses": [address], "auth_http_request_method": "post"}
    with nsq_peer(broker_for({"nsq": config}).nsq) as peer:
        peer.send(_auth("by post"))
        peer.expect(_response(ANSWER))
    asked = authd.wait_asked("by post")
    assert (asked.method, asked.path) == ("POST", "/own/path?x=1")
    assert asked.values == {
        "secret": ["by post"], "remote_ip": ["127.0.0.1"], "tls": ["false"], "common_name": [""],
    }  # fmt: skip
    assert asked.headers["Content-Type"] == "application/json"


def test_one_that_is_down_is_passed_over(authd: AuthServer, broker_for: BrokerFor) -> None:
    """Port 1 is not listened on; whichever is asked first, everybody gets in."""
    server = broker_for({"nsq": {"auth_http_addresses": ["127.0.0.1:1", str(authd.address)]}})
    for _ in range(10):
        with nsq_peer(server.nsq) as peer:
            peer.send(_auth("all"))
            peer.expect(_response(ANSWER))


def test_all_down(broker_for: BrokerFor) -> None:
    server = broker_for({"nsq": {"auth_http_addresses": ["127.0.0.1:1"]}})
    with nsq_peer(server.nsq) as peer:
        peer.send(_auth("all"))
        peer.expect(_error(FAILED))
        peer.expect_close()


def test_too_slow(authd: AuthServer, broker_for: BrokerFor) -> None:
    released = threading.Event()
    authd.replies["slow"] = Reply(grant(row()), released=released)
    settings = {
        "auth_http_addresses": [str(authd.address)],
        "http_client_request_timeout": "300ms",
    }
    try:
        with nsq_peer(broker_for({"nsq": settings}).nsq) as peer:
            peer.send(_auth("slow"))
            peer.expect(_error(FAILED))
            peer.expect_close()
    finally:
        released.set()


def test_one_slow_answer_holds_nobody_else(guarded: Server, authd: AuthServer, uniq: str) -> None:
    released = threading.Event()
    authd.replies["held"] = Reply(grant(row()), released=released)
    with nsq_peer(guarded.nsq) as held, nsq_peer(guarded.nsq) as other:
        try:
            held.send(_auth("held") + b"PUB %s\n" % uniq.encode() + sized(b"x"))
            authd.wait_asked("held")
            other.send(_auth("all") + PUB)
            other.expect(_response(ANSWER) + OK)
            assert nsq_topic(guarded.nsq_http, uniq) is None
            assert not held.pending
        finally:
            released.set()
        held.expect(_response(ANSWER) + OK)


def test_asked_again_when_its_time_is_over(guarded: Server, authd: AuthServer, uniq: str) -> None:
    """The channel goes on, the next publish is asked about, and refused by what is said now."""
    replies = iter([grant(row(), ttl=1), grant(row(uniq, (".*",), "subscribe"))])
    authd.replies["short"] = lambda: next(replies)
    with nsq_peer(guarded.nsq, {"heartbeat_interval": 1100}) as peer:
        peer.send(_auth("short") + b"SUB %s c\nRDY 1\n" % uniq.encode())
        peer.expect(_response(ANSWER) + OK)
        assert peer.read_frame().payload == b"_heartbeat_"
        assert request(guarded.nsq_http, "POST", "/pub", b"m", topic=uniq).status == 200
        message = peer.read_frame()
        assert message.body == b"m"
        peer.command(f"FIN {message.message_id.decode()}")
        peer.send(b"PUB %s\n" % uniq.encode() + sized(b"x"))
        peer.expect(_error(f'E_UNAUTHORIZED AUTH failed for PUB on "{uniq}" ""'))
        peer.expect_close()
    authd.wait_asked("short", 2)


def test_stats_show_who_it_is(guarded: Server, uniq: str) -> None:
    with nsq_peer(guarded.nsq) as peer:
        peer.send(_auth("all") + b"SUB %s c\n" % uniq.encode())
        peer.expect(_response(ANSWER) + OK)
        (client,) = nsq_channel(guarded.nsq_http, uniq, "c")["clients"]
        assert client["authed"] is True
        assert (client["auth_identity"], client["auth_identity_url"]) == ("me", "http://x")


def test_stats_without_auth(broker: Server, uniq: str) -> None:
    with nsq_peer(broker.nsq) as peer:
        peer.send(b"SUB %s c\n" % uniq.encode())
        peer.expect(OK)
        (client,) = nsq_channel(broker.nsq_http, uniq, "c")["clients"]
        assert not {"authed", "auth_identity", "auth_identity_url"} & set(client)


def test_http_is_not_authenticated(guarded: Server, uniq: str) -> None:
    assert request(guarded.nsq_http, "POST", "/pub", b"x", topic=uniq).status == 200
