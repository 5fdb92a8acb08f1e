"""A raw peer at the listener for leafs, of ours and of the original: the same bytes come back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from support.servers.leafs import DEADLINE_S, LOOP, Node, Raw, on_uvloop, serve


@on_uvloop
async def test_handshake(target: str, tmp_path: Path) -> None:
    async with serve(target, tmp_path) as hub:
        assert hub.leaf is not None
        peer = await Raw.dial(hub.leaf)
        first = peer.info
        assert len(first.pop("nonce")) == 15
        place = f"127.0.0.1:{hub.leaf[1]}"
        expected = {
            "server_name": "hub",
            "proto": 3 if target == "original" else 1,  # 3: it can continue message traces
            "host": "127.0.0.1",
            "port": hub.leaf[1],
            "headers": True,
            "auth_required": True,
            "max_payload": 1048576,
            "ip": place,
            "info_on_connect": True,
            "leafnode_urls": [place],
        }
        assert {name: first[name] for name in expected} == expected
        assert first["client_id"] > 0
        peer.connect(remote_account="FAR")
        line = await peer.line()
        assert line.startswith(b"INFO {")
        assert line.endswith(b"} ")
        peer.info = {}
        second = line.removeprefix(b"INFO ")
        for part in (b'"connect_info":true', b'"remote_account":"$G"', b'"info_on_connect":true'):
            assert part in second
        assert b"nonce" not in second
        lines = await peer.lines_until_pong()
        (loop,) = [line for line in lines if line.startswith(LOOP)]
        assert len(loop) == len(LOOP) + 22
        peer.close()


REFUSED = [
    (b'CONNECT {"lang":"go"}\r\n', b"attempted to connect to leaf node port"),
    (b'CONNECT {"cluster":"a b"}\r\n', b"cluster name cannot contain spaces"),
    (b'CONNECT {"cluster":"own"}\r\n', b"remote leafnode has same cluster name"),
    (b'CONNECT {"gateway":"g"}\r\n', b'Rejecting connection from gateway "g" on the leafnode port'),
    (b'CONNECT {"account":"a"}\r\n', b"Authorization Violation"),
    (b"PING\r\n", b"Authorization Violation"),
    (b"LS+ a\r\n", b"Authorization Violation"),
    (b"LMSG a 1\r\nx\r\n", b"Authorization Violation"),
    (b"\r\n", b"Authorization Violation"),
    (b"CONNECT {\r\n", b""),
    (b'CONNECT {"name":1}\r\n', b""),
    (b'CONNECT {"deny_pub":"a"}\r\n', b""),
    (b'CONNECT {"is_hub":"yes"}\r\n', b""),
    (b"CONNEX\r\n", b"Unknown Protocol Operation"),
]


@pytest.mark.parametrize(("said", "error"), REFUSED, ids=[said[:30] for said, _ in REFUSED])
@on_uvloop
async def test_who_is_refused(target: str, tmp_path: Path, said: bytes, error: bytes) -> None:
    rest = "server_name: hub\ncluster { name: own }\n"
    async with serve(target, tmp_path, rest=rest) as hub:
        assert hub.leaf is not None
        peer = await Raw.dial(hub.leaf)
        peer.send(said)
        assert await peer.end() == (b"-ERR '%b'\r\n" % error if error else b"")
        peer.close()


BROKEN = [
    (b"LS+ a q\r\n", b""),
    (b"LS+ a q 1 2\r\n", b""),
    (b"LMSG a r q 1\r\nx\r\n", b""),
    (b"LMSG a * q 1\r\nx\r\n", b""),
    (b"LMSG a\r\n", b""),
    (b"LMSG a x\r\n", b""),
    (b"HMSG a 3 2\r\nab\r\n", b""),
    (b"HMSG a 1\r\nx\r\n", b""),
    (b"LS*\r\n", b"Unknown Protocol Operation"),
    (b"LMSG a 1\r\nxx\r\n", b"Unknown Protocol Operation"),
    (b"MSG a 1 1\r\nx\r\n", b"Unknown Protocol Operation"),
]


@pytest.mark.parametrize(("said", "error"), BROKEN, ids=[said[:20] for said, _ in BROKEN])
@on_uvloop
async def test_what_ends_a_link(target: str, tmp_path: Path, said: bytes, error: bytes) -> None:
    async with serve(target, tmp_path) as hub:
        peer = await Raw.join(hub)
        peer.send(said)
        assert await peer.end() == (b"-ERR '%b'\r\n" % error if error else b"")
        peer.close()


@on_uvloop
async def test_what_does_not_end_a_link(target: str, tmp_path: Path) -> None:
    async with serve(target, tmp_path) as hub:
        peer = await Raw.join(hub)
        for said, answer in (
            (b"LS+ a..b\r\n", b"-ERR 'Invalid Subscription'"),
            (b"LS- never.announced\r\n", None),
            (b"LS- a b c d\r\n", None),
            (b"+OK\r\n", None),
            (b"-ERR 'whatever'\r\n", None),
            (b"LMSG nobody 1\r\nx\r\n", None),
        ):
            peer.send(said)
            assert await peer.lines_until_pong() == ([answer] if answer else [])
        peer.close()


@on_uvloop
async def test_a_loop_is_found(target: str, tmp_path: Path) -> None:
    async with serve(target, tmp_path) as hub:
        peer = await Raw.join(hub)
        (loop,) = [line for line in peer.wants if line.startswith(LOOP)]
        peer.send(loop + b"\r\n")
        assert await peer.end() == (
            b'-ERR \'Loop detected for leafnode account="$G". '
            b"Delaying attempt to reconnect for 30s'\r\n"
        )
        peer.close()


@on_uvloop
async def test_the_same_server_again(target: str, tmp_path: Path) -> None:
    async with serve(target, tmp_path) as hub:
        old = await Raw.join(hub, remote_account="A")
        others = [
            await Raw.join(hub, remote_account="B"),
            await Raw.join(hub, name="x", remote_account="A"),
            await Raw.join(hub, cluster="c", remote_account="A"),
        ]
        new = await Raw.join(hub, remote_account="A")
        assert await old.end() == b"-ERR 'Duplicate Remote LeafNode Connection'\r\n"
        for peer in (*others, new):
            await peer.lines_until_pong()
            peer.close()


@on_uvloop
async def test_logins(target: str, tmp_path: Path) -> None:
    leafnodes = """, authorization { timeout: 0.3, users: [
        { user: a, password: pw, account: A }, { user: b, password: pw } ] }"""
    rest = "server_name: hub\naccounts { A { users: [ { user: u, password: p } ] } }\n"
    async with serve(target, tmp_path, leafnodes, rest) as hub:
        peer = await Raw.join(hub, user="a", **{"pass": "pw"})
        assert peer.info["remote_account"] == "A"
        other = await Raw.join(hub, user="b", **{"pass": "pw"})
        assert other.info["remote_account"] == "$G"
        client = await hub.dial(user="u", password="p")
        await client.subscribe("only.a")
        await peer.expect(b"LS+ only.a")
        assert await other.lines_until_pong() == []
        assert hub.leaf is not None
        for user, password in (("a", "x"), ("", ""), ("u", "p"), ("nobody", "pw")):
            wrong = await Raw.dial(hub.leaf)
            wrong.connect(user=user, **{"pass": password})
            assert await wrong.end() == b"-ERR 'Authorization Violation'\r\n"
            wrong.close()
        silent = await Raw.dial(hub.leaf)
        assert await silent.end() == b"-ERR 'Authentication Timeout'\r\n"
        for one in (peer, other, silent):
            one.close()
        await client.close()


@on_uvloop
async def test_the_users_of_clients_log_leafs_in_too(target: str, tmp_path: Path) -> None:
    rest = """server_name: hub
    accounts { A { users: [ { user: u, password: p, permissions: {
        publish: { allow: ["in.>", "both"], deny: "in.no" },
        subscribe: { allow: ["out.>", "both"], deny: ["out.no"] } } },
            { user: w, password: p } ] }, B {
        users: [ { user: v, password: p } ], limits { max_leafnodes: 1 } } }\n"""
    async with serve(target, tmp_path, rest=rest) as hub:
        peer = await Raw.join(hub, user="u", **{"pass": "p"})
        assert peer.info["import"] == {"allow": ["out.>", "both"], "deny": ["out.no"]}
        assert peer.info["export"] == {"allow": ["in.>", "both"], "deny": ["in.no"]}
        client = await hub.dial(user="w", password="p")
        await client.subscribe("out.a")  # not of what the leaf may send
        await client.subscribe("both")
        await client.flush()
        await peer.expect(b"LS+ both")
        peer.send(b"LS+ out.*\r\nLS+ out.no.further\r\nLS+ >\r\n")
        assert await peer.lines_until_pong() == []
        for subject in ("in.x", "both"):
            await client.publish(subject, b"x")
        await peer.expect(b"LMSG both 1", b"x")
        peer.send(b"LS+ out.no\r\n")
        assert await peer.end() == (
            b"-ERR 'Permissions Violation for Subscription to \"out.no\"'\r\n"
        )
        assert hub.leaf is not None
        one = await Raw.join(hub, user="v", **{"pass": "p"})
        two = await Raw.dial(hub.leaf)
        two.connect(user="v", **{"pass": "p"})
        assert (await two.end()).startswith(
            b"-ERR 'maximum account active connections exceeded'\r\n"
        )
        for each in (peer, one, two):
            each.close()
        await client.close()


@on_uvloop
async def test_subscriptions_are_limited(target: str, tmp_path: Path) -> None:
    async with serve(target, tmp_path, rest="max_subscriptions: 3\n") as hub:
        peer = await Raw.join(hub)
        peer.send(b"".join(b"LS+ s.%d\r\n" % i for i in range(4)))
        assert await peer.lines_until_pong() == [b"-ERR 'maximum subscriptions exceeded'"]
        peer.close()


@on_uvloop
async def test_a_server_that_is_too_old(target: str, tmp_path: Path) -> None:
    async with serve(target, tmp_path, ", min_version: 2.9.0") as hub:
        assert hub.leaf is not None
        peer = await Raw.dial(hub.leaf)
        peer.connect(version="2.8.4")
        assert b"connect_info" in await peer.line()
        await peer.expect(b"-ERR 'connection rejected since minimum version required is \"2.9.0\"'")
        peer.close()
        await (await Raw.join(hub, version="2.9.0")).lines_until_pong()


@asynccontextmanager
async def client_port(target: str, folder: Path) -> AsyncIterator[Node]:
    async with serve(target, folder) as node:
        yield node


@on_uvloop
async def test_a_leaf_at_the_listener_of_clients(target: str, tmp_path: Path) -> None:
    """That INFO has no leafnode_urls, and LS+ is no operation there."""
    async with client_port(target, tmp_path) as hub:
        peer = await Raw.dial(hub.client)
        assert "leafnode_urls" not in peer.info
        peer.connect()
        peer.send(b"LS+ a\r\n")
        assert (await peer.end()).endswith(b"-ERR 'Unknown Protocol Operation'\r\n")
        peer.close()


@on_uvloop
async def test_pings(target: str, tmp_path: Path) -> None:
    """The first one comes after about a second."""
    async with serve(target, tmp_path) as hub:
        peer = await Raw.join(hub)
        assert await asyncio.wait_for(peer.reader.readline(), DEADLINE_S) == b"PING\r\n"
        peer.close()
