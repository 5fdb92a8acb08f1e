"""Who may read and write a log, whichever protocol is used: each refusal, and that it harms nobody.

One server has the rights of all: NATS users with permissions, an auth server for NSQ, tokens for
the bulk API, a user of leaf nodes, and what [bridge] says. A cell of the table is one attempt.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from support import RawPeer, Server, nats_peer
from support.clients.bulk import BulkClient
from support.clients.http import request
from support.clients.nsq import ERROR, RESPONSE, Wire, body
from support.clients.peer import PeerError
from support.servers.auth import AuthServer
from support.servers.processes import Address
from support.stan import wire
from support.stan.client import StanClient

pytestmark = pytest.mark.only_ours

BrokerFor = Callable[[dict[str, Any]], Server]
SECRET = b"of payments"

USERS = """
authorization { users: [
  {user: boss, password: p}
  {user: low, password: p, permissions: {
    publish: {deny: ["payments.>", "payments"]}, subscribe: {deny: ["payments.>", "payments"]}}}
  {user: leaf, password: p, permissions: {
    publish: {deny: ["payments.>"]}, subscribe: {deny: ["payments.>"]}}}
] }
leafnodes { listen: "127.0.0.1:-1" }
"""
BOSS = {"user": "boss", "pass": "p"}
LOW = {"user": "low", "pass": "p"}
TOKENS = "boss b-1 read,write,hold\nlow l-1 read,write,hold orders.>\n"


def granted(asked: dict[str, Any]) -> dict[str, Any]:
    topic = ".*" if asked["secret"] == "boss" else "^orders"
    row = {"topic": topic, "channels": [".*"], "permissions": ["subscribe", "publish"]}
    return {"ttl": 3600, "identity": "", "identity_url": "", "authorizations": [row]}


@pytest.fixture(scope="module")
def auth() -> Iterator[AuthServer]:
    with AuthServer(granted) as server:
        yield server


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("rights")
    (found / "users.conf").write_text(USERS)
    (found / "tokens").write_text(TOKENS)
    return found


@pytest.fixture(scope="module")
def guarded(broker_for: BrokerFor, auth: AuthServer, folder: Path) -> Server:
    """Everything that asks for rights, and nothing crosses between NSQ and NATS."""
    server = broker_for(
        {
            "stan": {"enabled": True},
            "nats": {"config_file": str(folder / "users.conf")},
            "nsq": {"auth_http_addresses": [auth.address]},
            "bulk": {"token_file": str(folder / "tokens")},
            "storage": {"sync": "always"},  # the bulk API shows what is on the disk
            "bridge": {"nats_to_nsq": False, "nsq_to_nats": False},
        }
    )
    with StanClient(server, **BOSS) as boss:
        assert boss.publish("payments.channel", SECRET) == ""
    for topic in ("payments", "orders.own"):
        assert request(server.nsq_http, "POST", "/pub", SECRET, topic=topic).status == 200
    return server


# --- attempts: each says what it was answered


def nsq(server: Server, command: str, data: bytes | None = None, secret: bytes = b"low") -> bytes:
    with Wire(server.nsq) as peer:
        peer.identify()
        if secret:
            assert peer.ask(body(b"AUTH", secret))[0] == RESPONSE
        head = command.encode()
        kind, answer = peer.ask(head + b"\n" if data is None else body(head, data))
        assert kind == (RESPONSE if answer == b"OK" else ERROR)
        return answer


def http(server: Server, path: str, data: bytes | None = None, **query: object) -> bytes:
    answer = request(server.nsq_http, "POST", path, data, **query)
    return b"%d %b" % (answer.status, answer.body)


def nats(server: Server, user: dict[str, str], command: str) -> bytes:
    with nats_peer(server.nats, user) as peer:
        peer.send(command.encode() + b"\r\nPING\r\n")
        line = peer.read_line()
        return b"" if line == b"PONG\r\n" else line


def stan_publish(server: Server, user: dict[str, str], channel: str) -> bytes:
    with StanClient(server, **user) as client:
        return client.publish(channel, b"forged").encode()


def stan_read(server: Server, user: dict[str, str], channel: str, **more: Any) -> bytes:
    """The error, or what was in the channel before this."""
    with StanClient(server, **user) as client:
        found = client.subscribe(channel, start=wire.FIRST, **more)
        if found.error:
            return found.error.encode()
        assert client.publish(channel, b"nothing") == ""
        return bytes(found.next()["data"])


def bulk(server: Server, method: str, path: str, data: bytes | None = None) -> bytes:
    with BulkClient(server.bulk, "l-1") as connection:
        answer = connection.ask(method, path, data)
        return b"%d %b" % (answer.status, answer.body)


def leaf(server: Server, command: str) -> bytes:
    """What the server says, but for what it wants of the leaf."""
    ports = json.loads((server.folder / "ports.json").read_text())
    place = ports["leafnodes"]
    address = Address.parse(place) if isinstance(place, str) else Address(*place)
    with RawPeer(address, skips_pings=True) as peer:
        peer.read_line()
        said = {"name": "raw", "headers": True, "user": "leaf", "pass": "p"}
        peer.send(b"CONNECT " + json.dumps(said).encode() + b"\r\nPING\r\n")
        while peer.read_line() != b"PONG\r\n":
            pass
        peer.send(command.encode() + b"\r\nPING\r\n")
        lines = []
        with contextlib.suppress(PeerError):  # a link that asks for too much is closed
            while (line := peer.read_line()) != b"PONG\r\n":
                if not line.startswith((b"LS+", b"LS-", b"INFO")):
                    lines.append(line)
        return b"".join(lines)


class Cell(NamedTuple):
    """An attempt, and what it is answered."""

    name: str
    attempt: Callable[[Server], bytes]
    answer: bytes


UNAUTHORIZED = b'E_UNAUTHORIZED AUTH failed for %b on "payments" "%b"'
DENIED = b"-ERR 'Permissions Violation for %b to \"payments.x\"'\r\n"
FORBIDDEN = b'403 {"error":"low has no permission to %b here"}'
PUBLISH, SUBSCRIBE = b"stan: invalid publish request", b"stan: invalid subject"
INBOX = b"stan: invalid subscription request"

TABLE = [
    Cell("nsq pub", lambda s: nsq(s, "PUB payments", b"x"), UNAUTHORIZED % (b"PUB", b"")),
    Cell("nsq sub", lambda s: nsq(s, "SUB payments c"), UNAUTHORIZED % (b"SUB", b"c")),
    Cell(
        "nsq without a secret",
        lambda s: nsq(s, "PUB payments", b"x", b""),
        b"E_AUTH_FIRST AUTH required before PUB",
    ),
    Cell(
        "nsq to a channel",
        lambda s: nsq(s, "PUB stan/payments.channel", b"x", b"boss"),
        b'E_BAD_TOPIC PUB topic name "stan/payments.channel" is not valid',
    ),
    Cell(
        "nsq http to a channel",
        lambda s: http(s, "/pub", b"x", topic="stan/payments.channel"),
        b'400 {"message":"INVALID_TOPIC"}',
    ),
    Cell(
        "nsq http deletes a channel",
        lambda s: http(s, "/topic/delete", topic="stan/payments.channel"),
        b'404 {"message":"TOPIC_NOT_FOUND"}',
    ),
    Cell("nats pub", lambda s: nats(s, LOW, "PUB payments.x 1\r\nx"), DENIED % b"Publish"),
    Cell("nats sub", lambda s: nats(s, LOW, "SUB payments.x 1"), DENIED % b"Subscription"),
    Cell("nats to a topic", lambda s: nats(s, BOSS, "PUB payments 1\r\nx"), b""),
    Cell("stan pub", lambda s: stan_publish(s, LOW, "payments.channel"), PUBLISH),
    Cell("stan sub", lambda s: stan_read(s, LOW, "payments.channel"), SUBSCRIBE),
    Cell("stan inbox", lambda s: stan_read(s, LOW, "orders.c", inbox="payments.x"), INBOX),
    Cell("stan pub to a topic", lambda s: stan_publish(s, BOSS, "payments"), b""),
    Cell("stan sub to a topic", lambda s: stan_read(s, BOSS, "orders.own"), b"nothing"),
    Cell("bulk read", lambda s: bulk(s, "GET", "range/payments?start=1"), FORBIDDEN % b"read"),
    Cell("bulk write", lambda s: bulk(s, "POST", "append/payments", b""), FORBIDDEN % b"write"),
    Cell(
        "bulk reads a channel",
        lambda s: bulk(s, "GET", "range/stan%2Fpayments.channel?start=1"),
        FORBIDDEN % b"read",
    ),
    Cell(
        "leaf pub",
        lambda s: leaf(s, "LMSG payments.x 1\r\nx"),
        b"-ERR 'Permissions Violation for Publish to \"payments.x\"'\r\n",
    ),
    Cell(
        "leaf sub",
        lambda s: leaf(s, "LS+ payments.x"),
        b"-ERR 'Permissions Violation for Subscription to \"payments.x\"'\r\n",
    ),
]


def facts(server: Server) -> list[Any]:
    """What must not change: all that topic and channel hold."""
    with BulkClient(server.bulk, "b-1") as connection:
        return [
            connection.range(name, start=1).bodies for name in ("payments", "stan/payments.channel")
        ]


@pytest.mark.parametrize("cell", TABLE, ids=[cell.name for cell in TABLE])
def test_what_is_denied(guarded: Server, cell: Cell) -> None:
    before = facts(guarded)
    with contextlib.ExitStack() as open_ones:
        witness = open_ones.enter_context(nats_peer(guarded.nats, BOSS))
        witness.send(b"SUB payments.> 1\r\nSUB others 2\r\n")
        witness.ping()
        other = open_ones.enter_context(Wire(guarded.nsq))
        other.identify()
        assert other.ask(body(b"AUTH", b"boss"))[0] == RESPONSE
        assert cell.attempt(guarded) == cell.answer
        witness.send(b"PUB others 1\r\nx\r\n")
        witness.expect(b"MSG others 2 1\r\nx\r\n")  # and nothing before it
        assert other.ask(body(b"PUB orders.other", b"x")) == (RESPONSE, b"OK")
    assert facts(guarded) == before


ALLOWED = [
    Cell("nsq pub", lambda s: nsq(s, "PUB orders.n", b"x"), b"OK"),
    Cell("nsq sub", lambda s: nsq(s, "SUB orders.n c"), b"OK"),
    Cell("nsq http", lambda s: http(s, "/pub", b"x", topic="orders.h"), b"200 OK"),
    Cell("nats pub", lambda s: nats(s, LOW, "PUB orders.x 1\r\nx"), b""),
    Cell("nats sub", lambda s: nats(s, LOW, "SUB orders.x 1"), b""),
    Cell("stan pub", lambda s: stan_publish(s, LOW, "orders.c"), b""),
    Cell("stan sub", lambda s: stan_read(s, LOW, "orders.d"), b"nothing"),
    Cell("stan boss", lambda s: stan_read(s, BOSS, "payments.other"), b"nothing"),
    Cell("leaf pub", lambda s: leaf(s, "LMSG orders.x 1\r\nx"), b""),
    Cell("leaf sub", lambda s: leaf(s, "LS+ orders.x"), b""),
]


@pytest.mark.parametrize("cell", ALLOWED, ids=[cell.name for cell in ALLOWED])
def test_what_is_allowed(guarded: Server, cell: Cell) -> None:
    assert cell.attempt(guarded) == cell.answer


NOT_SHARED = b"the channel of NATS Streaming of that name is not shared"


@pytest.mark.parametrize("closed", ["stan_to_nsq", "nsq_to_stan"])
def test_one_way_between_nsq_and_streaming(
    start_broker: Callable[..., Server], closed: str
) -> None:
    server = start_broker({"stan": {"enabled": True}, "bridge": {closed: False}})
    with StanClient(server) as client:
        sub = client.subscribe("orders")
        reads, writes = closed != "stan_to_nsq", closed != "nsq_to_stan"
        ok, failed = b"OK", b"E_%b_FAILED %b failed " + NOT_SHARED
        cells = [
            (nsq(server, "SUB orders c", secret=b""), reads, failed % (b"SUB", b"SUB")),
            (nsq(server, "PUB orders", b"x", b""), writes, failed % (b"PUB", b"PUB")),
            (http(server, "/pub", b"y", topic="orders"), writes, b'403 {"message":"FORBIDDEN"}'),
            (
                http(server, "/channel/create", topic="orders", channel="d"),
                reads,
                b'403 {"message":"FORBIDDEN"}',
            ),
        ]
        for answer, allowed, refusal in cells:
            assert (answer in (ok, b"200 OK", b"200 ")) if allowed else (answer == refusal)
        assert client.publish("orders", b"z") == ""
        found = [sub.next()["data"] for _ in range(3 if writes else 1)]
        assert found == ([b"x", b"y", b"z"] if writes else [b"z"])
