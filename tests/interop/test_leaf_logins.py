"""Leafs that log in with credentials, and what a reload of the hub means for those that are in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.logins.tokens import Company, Tenant, user
from support.servers.leafs import (
    Node,
    Raw,
    interest,
    needs_original,
    on_uvloop,
    original,
    ours,
    until,
)

from broker.protocols.nats.auth import nkeys
from broker.protocols.nats.auth.nkeys import USER, KeyPair
from broker.protocols.nats.conf.reader import read_text
from broker.protocols.nats.trace import Tracer

HUBS = ["ours", pytest.param("original", marks=needs_original)]
LISTENER = 'leafnodes { listen: "127.0.0.1:-1", compression: off }\n'


def credentials(folder: Path, pair: KeyPair, token: str) -> Path:
    path = folder / f"{pair.public}.creds"
    path.write_text(
        f"-----BEGIN NATS USER JWT-----\n{token}\n------END NATS USER JWT------\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{pair.seed}\n------END USER NKEY SEED------\n"
    )
    return path


@pytest.mark.parametrize("hub", HUBS)
@on_uvloop
async def test_credentials(tmp_path: Path, hub: str) -> None:
    """The token says which account is joined, and what may be done in it."""
    company, tenant, other = Company(), Tenant("A"), Tenant("B")
    preload = "".join(f"{t.public}: {company.account(t)}\n" for t in (tenant, other))
    config = f"""{LISTENER} operator: {company.token}\nresolver: MEMORY
        resolver_preload {{ {preload} }}\n"""
    leaf, client = KeyPair(USER), KeyPair(USER)
    mine = user(leaf, tenant.signing, tenant, pub={"allow": ["up.>", "_INBOX.>"]})
    path = credentials(tmp_path, leaf, mine)
    theirs = credentials(tmp_path, client, user(client, tenant.signing, tenant))
    start = ours(config) if hub == "ours" else original(tmp_path, config)
    async with start as above:
        remote = (
            f'leafnodes {{ remotes [ {{ url: "{above.leaf_url()}", credentials: "{path}" }} ] }}'
        )
        async with ours(remote) as below:
            there = await above.dial(user_credentials=str(theirs))
            here = await below.dial()
            heard: list[str] = []

            async def hear(message: Any) -> None:
                if message.data != b"probe":
                    heard.append(message.subject)

            await there.subscribe(">", cb=hear)
            await there.flush()
            await interest(here, "up.x")
            for subject in ("down", "up.a"):
                await here.publish(subject, b"x")
            await until(lambda: "up.a" in heard)
            assert "down" not in heard
            await there.close()
            await here.close()


@on_uvloop
async def test_a_stranger_with_credentials(tmp_path: Path) -> None:
    company, tenant = Company(), Tenant("A")
    config = f"""{LISTENER} operator: {company.token}\nresolver: MEMORY
        resolver_preload {{ {tenant.public}: {company.account(tenant)} }}\n"""
    leaf, thief = KeyPair(USER), KeyPair(USER)
    token = user(leaf, tenant.signing, tenant)
    async with ours(config) as hub:
        assert hub.leaf is not None
        for jwt, pair in ((token, thief), (token, None), ("", leaf)):
            peer = await Raw.dial(hub.leaf)
            nonce = peer.info["nonce"].encode()
            signature = nkeys.to_base64(pair.sign(nonce)) if pair else ""
            peer.connect(jwt=jwt, sig=signature)
            assert await peer.end() == b"-ERR 'Authorization Violation'\r\n"
            peer.close()


async def reload(node: Node, config: str) -> None:
    assert node.server is not None
    settings, _ = read_text(f'listen: "127.0.0.1:-1"\n{config}', {})
    await node.server.reload(settings)


@on_uvloop
async def test_a_reload_of_the_hub() -> None:
    """Who is gone is cut, who has other rights comes back with them, the others stay."""

    def users(**rights: str) -> str:
        rows = ", ".join(f"{{ user: {n}, password: p {more} }}" for n, more in rights.items())
        return f"accounts {{ A {{ users: [ {rows} ] }} }}\n"

    before = users(u1="", u2="", u3="")
    after = users(u1="", u2=", permissions: { publish: up }")
    async with ours(LISTENER + before) as hub:
        peers = [
            await Raw.join(hub, name=name, user=name, **{"pass": "p"})
            for name in ("u1", "u2", "u3")
        ]
        await reload(hub, LISTENER + after)
        assert await peers[1].end() == b""
        assert await peers[2].end() == b""
        await peers[0].lines_until_pong()
        again = await Raw.join(hub, name="u2", user="u2", **{"pass": "p"})
        assert again.info["export"] == {"allow": ["up"]}
        for peer in (*peers, again):
            peer.close()


@on_uvloop
async def test_mappings_that_come_with_a_reload() -> None:
    async with ours(LISTENER) as hub:
        peer = await Raw.join(hub)
        await reload(hub, LISTENER + "mappings { old: new }\n")
        await peer.expect(b"LS+ old")
        await reload(hub, LISTENER)
        await peer.expect(b"LS- old")
        peer.close()


@on_uvloop
async def test_what_a_trace_shows(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(1, "broker.nats")
    async with ours(LISTENER) as hub:
        assert hub.server is not None
        hub.server.frontend.tracer = Tracer(0, "")
        peer = await Raw.join(hub, user="u", **{"pass": "SECRET"})
        peer.send(b"LS+ a.b q 3\r\nLS- a.b q\r\nLS+ c\r\nLMSG a | q 2\r\nhi\r\n-ERR 'a\x1b[2J'\r\n")
        await peer.lines_until_pong()
        hub.server.accounts["$G"].publish(b"c", b"x")
        await peer.expect(b"LMSG c 1", b"x")
        peer.close()
    said = "\n".join(caplog.messages)  # PySpark, where it was used, changes how text looks
    for line in (
        "<<- [LS+ a.b q 3]",
        "<<- [LS- a.b q]",
        "<<- [LMSG a | q 2]",
        '<<- MSG_PAYLOAD: ["hi"]',
        "->> [LS+ $LDS.",
        "->> [LMSG c 1]",
        " - lid:",
    ):
        assert line in said
    assert "SECRET" not in said
    assert "Leafnode Error 'a?[2J'" in said
