"""What a leaf's user may do, and how many leafs an account may have, while links are there."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from support.logins.tokens import ACCOUNT_LIMITS, Company, Tenant, user
from support.servers.leafs import Raw, on_uvloop, ours, until

from broker.protocols.nats.auth import nkeys
from broker.protocols.nats.auth.nkeys import USER, KeyPair
from tests.interop.test_leaf_logins import LISTENER, reload

ANSWERS = """accounts { A { users: [
    { user: leaf, password: p, permissions: { allow_responses: { max: 2 } } }
    { user: asker, password: p }
] } }
"""
VIOLATION = b"-ERR 'Permissions Violation for Publish to \"%b\"'"


@on_uvloop
async def test_a_leaf_that_may_only_answer() -> None:
    async with ours(LISTENER + ANSWERS) as hub:
        leaf = await Raw.join(hub, user="leaf", **{"pass": "p"})
        leaf.send(b"LS+ help\r\n")
        await leaf.lines_until_pong()
        asker = await hub.dial(user="asker", password="p")
        got: list[bytes] = []

        async def hear(message: Any) -> None:
            got.append(message.data)

        await asker.subscribe("answer", cb=hear)
        await asker.subscribe("other", cb=hear)
        await asker.flush()
        assert sorted(await leaf.lines_until_pong()) == [b"LS+ answer", b"LS+ other"]
        leaf.send(b"LMSG answer 1\r\n0\r\n")
        assert await leaf.lines_until_pong() == [VIOLATION % b"answer"]
        await asker.publish("help", b"?", reply="answer")
        await leaf.expect(b"LMSG help answer 1", b"?")
        leaf.send(b"".join(b"LMSG answer 1\r\n%d\r\n" % i for i in (1, 2, 3)))
        leaf.send(b"LMSG other 1\r\nx\r\n")
        assert await leaf.lines_until_pong() == [VIOLATION % b"answer", VIOLATION % b"other"]
        await until(lambda: len(got) == 2)
        await asker.flush()
        assert got == [b"1", b"2"]
        await asker.close()
        leaf.close()


MAPPED = """accounts { A {
    users: [
        { user: leaf, password: p, permissions: { publish: {allow: ["ok.>"], deny: "ok.no"} } }
        { user: other, password: p, permissions: { publish: {deny: "in.>"} } }
        { user: client, password: p }
    ]
    mappings: { ok.in: inner, in.x: ok.x, ok.no: ok.y }
} }
"""


@on_uvloop
async def test_rights_are_those_to_the_subject_that_a_leaf_sends() -> None:
    """Not those to what a mapping makes of it."""
    async with ours(LISTENER + MAPPED) as hub:
        client = await hub.dial(user="client", password="p")
        got: list[str] = []

        async def hear(message: Any) -> None:
            got.append(message.subject)

        await client.subscribe(">", cb=hear)
        await client.flush()
        for user, subjects, denied in (
            ("leaf", (b"ok.in", b"in.x", b"ok.no", b"ok.z"), [b"ok.x", b"ok.y"]),
            ("other", (b"ok.in", b"in.x", b"ok.no", b"ok.z"), [b"ok.x"]),
        ):
            leaf = await Raw.join(hub, name=user, user=user, **{"pass": "p"})
            await leaf.lines_until_pong()
            for subject in subjects:
                leaf.send(b"LMSG %b 0\r\n\r\n" % subject)
            assert await leaf.lines_until_pong() == [VIOLATION % subject for subject in denied]
            leaf.close()
        await client.flush()
        await until(lambda: got[-1:] == ["ok.z"] and len(got) == 5)
        assert got == ["inner", "ok.z", "inner", "ok.y", "ok.z"]
        await client.close()


SERVICE = """accounts {
    A { users: [
            { user: leaf, password: p, permissions: { publish: "ok.>" } }
            { user: client, password: p }
        ], exports: [ { service: q } ] }
    B { users: [ { user: b, password: p } ], imports: [ { service: { account: A, subject: q } } ] }
}
"""


@on_uvloop
async def test_a_leaf_may_answer_other_accounts_and_acknowledge() -> None:
    async with ours(LISTENER + SERVICE) as hub:
        leaf = await Raw.join(hub, user="leaf", **{"pass": "p"})
        leaf.send(b"LS+ q\r\n")
        await leaf.lines_until_pong()
        asker = await hub.dial(user="b", password="p")
        asked = asyncio.create_task(asker.request("q", b"?", timeout=20))
        line = await leaf.line()
        assert line.startswith(b"HMSG q _R_.")
        leaf.send(b"LMSG %b 2\r\nhi\r\n" % line.split()[2])
        assert (await asked).data == b"hi"
        await asker.close()
        client = await hub.dial(user="client", password="p")
        acks = await client.subscribe("$JS.ACK.>")
        await client.flush()
        leaf.send(b"LMSG $JS.ACK.s.c 4\r\n+ACK\r\n")
        assert (await acks.next_msg(timeout=20)).data == b"+ACK"
        await client.close()
        leaf.close()


@on_uvloop
async def test_a_hub_that_dials_hears_nothing_of_what_is_not_taken() -> None:
    """As one that was dialled: it sends what a subscription of the leaf to > asks for."""
    async with ours(LISTENER + SERVICE) as node:
        client = await node.dial(user="client", password="p")
        found = await client.subscribe(">")
        await client.flush()
        peer = await Raw.join(node, user="leaf", is_hub=True, **{"pass": "p"})
        peer.send(b"LMSG no 0\r\n\r\nLMSG ok.x 0\r\n\r\n")
        assert await peer.lines_until_pong() == []
        assert (await found.next_msg(timeout=20)).subject == "ok.x"
        await client.close()
        peer.close()


@on_uvloop
async def test_a_reload_to_fewer_leafs() -> None:
    text = "accounts { A { users: [ {user: a, password: p} ], limits: { max_leafnodes: %d } } }\n"
    async with ours(LISTENER + text % 3) as hub:
        peers = [await Raw.join(hub, name=f"n{i}", user="a", **{"pass": "p"}) for i in range(3)]
        await reload(hub, LISTENER + text % 1)
        for peer in peers[1:]:  # the newest
            assert b"maximum account active connections exceeded" in await peer.end()
        await peers[0].lines_until_pong()
        late = await Raw.dial(peers_address(hub))
        late.connect(name="late", user="a", **{"pass": "p"})
        assert b"maximum account active connections exceeded" in await late.end()
        await reload(hub, LISTENER + text % 2)
        (await Raw.join(hub, name="n1", user="a", **{"pass": "p"})).close()


def peers_address(hub: Any) -> tuple[str, int]:
    address: tuple[str, int] = hub.leaf
    return address


@pytest.mark.parametrize("change", ["revoked", "fewer"])
@on_uvloop
async def test_an_account_that_changes(tmp_path: Path, change: str) -> None:
    """Its token says that a leaf's user is no longer welcome, or that it may have fewer leafs."""
    company, tenant = Company(), Tenant("A")
    old = company.account(tenant, limits={**ACCOUNT_LIMITS, "leaf": 2}, head={"iat": 1_000})
    config = f"""{LISTENER} operator: {company.token}\nresolver: MEMORY
        resolver_preload {{ {tenant.public}: {old} }}\n"""
    async with ours(config) as hub:
        pairs = [KeyPair(USER), KeyPair(USER)]
        peers = []
        for pair in pairs:
            peer = await Raw.dial(peers_address(hub))
            signature = nkeys.to_base64(pair.sign(peer.info["nonce"].encode()))
            peer.connect(name=pair.public, jwt=user(pair, tenant.signing, tenant), sig=signature)
            await peer.lines_until_pong()
            peers.append(peer)
        assert hub.server is not None
        assert hub.server.operator is not None
        limits = {**ACCOUNT_LIMITS, "leaf": 2}
        more: dict[str, Any] = {"limits": limits, "revocations": {pairs[1].public: 2_000_000_000}}
        if change == "fewer":
            more = {"limits": {**limits, "leaf": 1}}
        hub.server.operator.tokens.update(company.account(tenant, **more))
        assert await peers[1].end()
        await peers[0].lines_until_pong()
        for peer in peers:
            peer.close()
