"""Leaf links that break and come back, that go round in circles, and that are encrypted."""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from nats.aio.client import Client
from support.authority import Authority
from support.servers.leafs import (
    Node,
    interest,
    needs_original,
    no_interest,
    on_uvloop,
    original,
    ours,
    until,
)

REMOTE = 'leafnodes { reconnect: 300ms, remotes [ { url: "%s" %s } ] }\n'
EITHER = ["ours", pytest.param("original", marks=needs_original)]


def listener(port: int = -1, more: str = "") -> str:
    return f'leafnodes {{ listen: "127.0.0.1:{port}" {more} }}\n'


async def start(kind: str, stack: AsyncExitStack, folder: Path, config: str, name: str) -> Node:
    made = ours(config) if kind == "ours" else original(folder, config, name)
    return await stack.enter_async_context(made)


async def listen(client: Client, subject: str) -> list[bytes]:
    heard: list[bytes] = []

    async def hear(message: Any) -> None:
        if message.data != b"probe":
            heard.append(message.data)

    await client.subscribe(subject, cb=hear)
    await client.flush()
    return heard


@pytest.mark.parametrize("kind", EITHER)
@on_uvloop
async def test_the_hub_dies_and_comes_back(tmp_path: Path, kind: str) -> None:
    async with AsyncExitStack() as stack, AsyncExitStack() as first:
        hub = await start(kind, first, tmp_path, "server_name: hub\n" + listener(), "first")
        assert hub.leaf is not None
        port = hub.leaf[1]
        leaf = await stack.enter_async_context(ours(REMOTE % (hub.leaf_url(), "")))
        below = await leaf.dial()
        heard = await listen(below, "news")
        above = await hub.dial()
        mine = await listen(above, "up")
        await interest(above, "news")
        await interest(below, "up")
        if hub.process is not None:
            hub.process.kill()
            await hub.process.wait()
        await first.aclose()
        await no_interest(below, "up")  # what the hub wanted is forgotten
        hub = await start(kind, stack, tmp_path, "server_name: hub\n" + listener(port), "second")
        above = await hub.dial()
        mine = await listen(above, "up")
        await interest(above, "news")
        await interest(below, "up")
        await above.publish("news", b"again")
        await below.publish("up", b"too")
        await until(lambda: heard == [b"again"] and mine == [b"too"])
        await above.close()
        await below.close()


@pytest.mark.parametrize("kind", EITHER)
@on_uvloop
async def test_the_leaf_dies_and_comes_back(tmp_path: Path, kind: str) -> None:
    async with ours("server_name: hub\n" + listener()) as hub:
        above = await hub.dial()
        await listen(above, "up")
        config = REMOTE % (hub.leaf_url(), "")
        for name in ("first", "second"):
            async with AsyncExitStack() as stack:
                leaf = await start(kind, stack, tmp_path, config, name)
                below = await leaf.dial()
                heard = await listen(below, "news")
                await interest(above, "news")
                await interest(below, "up")
                await above.publish("news", name.encode())
                await until(lambda heard=heard, name=name: heard == [name.encode()])
                if leaf.process is not None:
                    leaf.process.kill()
                    await leaf.process.wait()
            await no_interest(above, "news")
        await above.close()


def failed_to_dial(node: Node, log: str) -> bool:
    """Whether it has tried to reach its hub, as its log says."""
    said = node.log.read_text() if node.log is not None else log
    return "Error trying to connect as leafnode" in said


@pytest.mark.parametrize("kind", EITHER)
@on_uvloop
async def test_a_circle_of_servers(
    tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A is B's leaf and B is A's: one of them finds out, and the link that closes it stays away."""
    caplog.set_level(logging.INFO, "broker.nats")
    async with AsyncExitStack() as stack:
        probe = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
        port = probe.sockets[0].getsockname()[1]
        probe.close()
        await probe.wait_closed()
        config = f"""server_name: one\nleafnodes {{ listen: "127.0.0.1:-1", reconnect: 300ms,
            remotes [ {{ url: "nats-leaf://127.0.0.1:{port}" }} ] }}\n"""
        one = await start(kind, stack, tmp_path, config, "one")
        # Both at the same moment would find the circle, and both stay away.
        await until(lambda: failed_to_dial(one, caplog.text), "a dial in vain")
        config = f"""server_name: two\nleafnodes {{ listen: "127.0.0.1:{port}", reconnect: 300ms,
            remotes [ {{ url: "{one.leaf_url()}" }} ] }}\n"""
        two = await start("ours", stack, tmp_path, config, "two")
        await until(lambda: "oop detected" in caplog.text)
        assert "Delaying attempt to reconnect for 30s" in caplog.text
        here, there = await one.dial(), await two.dial()
        heard = await listen(there, "x")
        await interest(here, "x")
        await here.publish("x", b"once")
        await here.publish("x", b"end")
        await until(lambda: b"end" in heard)
        assert heard == [b"once", b"end"]
        await here.close()
        await there.close()


TLS = ", tls {{ cert_file: '{0.certificate}', key_file: '{0.key}', ca_file: '{1.file}' {2} }}"


@pytest.mark.parametrize("first", ["", ", handshake_first: true"])
@pytest.mark.parametrize("verify", ["", ", verify: true"])
@pytest.mark.parametrize(
    ("hub_is", "leaf_is"),
    [
        ("ours", "ours"),
        pytest.param("original", "ours", marks=needs_original),
        pytest.param("ours", "original", marks=needs_original),
    ],
)
@on_uvloop
async def test_tls(tmp_path: Path, hub_is: str, leaf_is: str, verify: str, first: str) -> None:
    authority = Authority(tmp_path)
    files = TLS.format(authority.issue("server"), authority, verify + first)
    mine = TLS.format(authority.issue("client"), authority, first)
    async with AsyncExitStack() as stack:
        hub = await start(
            hub_is, stack, tmp_path, "server_name: hub\n" + listener(-1, files), "hub"
        )
        config = REMOTE % (hub.leaf_url(), mine)
        leaf = await start(leaf_is, stack, tmp_path, config, "leaf")
        above, below = await hub.dial(), await leaf.dial()
        heard = await listen(below, "news")
        await interest(above, "news")
        big = bytes(300_000)
        for body in (b"one", big, b"two"):
            await above.publish("news", body)
        await until(lambda: len(heard) == 3)
        assert heard == [b"one", big, b"two"]
        if hub.server is not None:
            (link,) = hub.server.leafs.handshake.sessions
            assert link.tls_peer is not None
            assert link.tls_peer.version == "1.3"
            assert (link.tls_peer.der is not None) == bool(verify)
        await above.close()
        await below.close()


@on_uvloop
async def test_a_certificate_of_somebody_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The leaf does not tell its password to a hub that it does not know."""
    authority, stranger = Authority(tmp_path), Authority(tmp_path, "stranger")
    files = TLS.format(stranger.issue("server"), authority, "")
    remote = f", tls {{ ca_file: '{authority.file}' }}"
    async with (
        ours(listener(-1, files)) as hub,
        ours(REMOTE % (hub.leaf_url("u:p"), remote)) as leaf,
    ):
        await until(lambda: caplog.text.count("TLS leafnode handshake error") > 1)
        assert "certificate verify failed" in caplog.text
        assert leaf.server is not None
        assert hub.server is not None
        assert not hub.server.accounts["$G"].leafs
        assert not leaf.server.accounts["$G"].leafs


@on_uvloop
async def test_a_hub_that_asks_for_tls(tmp_path: Path) -> None:
    """It is enough that the hub says so; but then the system's authorities count."""
    authority = Authority(tmp_path)
    files = TLS.format(authority.issue("server"), authority, "")
    async with ours(listener(-1, files)) as hub:
        async with ours(REMOTE % (hub.leaf_url(), ", tls { insecure: true }")) as leaf:
            assert hub.server is not None
            await until(lambda: all(one.server.accounts["$G"].leafs for one in (hub, leaf)))
            (link,) = leaf.server.accounts["$G"].leafs
            assert link.tls_peer.version == "1.3"
        async with ours(REMOTE % (hub.leaf_url(), "")) as leaf:
            await until(lambda: leaf.server.closed.total > 0)
            assert not hub.server.accounts["$G"].leafs


@on_uvloop
async def test_monitoring_shows_links() -> None:
    async with ours("server_name: hub\n" + listener()) as hub:
        async with ours("server_name: leaf\n" + REMOTE % (hub.leaf_url(), "")) as leaf:
            below = await leaf.dial()
            await listen(below, "news")
            above = await hub.dial()
            await interest(above, "news")
            assert hub.server is not None
            assert leaf.server is not None
            page = hub.server.pages.page("LEAFZ", {"subscriptions": True})
            (row,) = page["leafs"]
            assert (row["name"], row["is_spoke"], row["account"]) == ("leaf", False, "$G")
            assert "news" in row["subscriptions_list"]
            assert row["out_msgs"] == 1
            (row,) = leaf.server.pages.page("LEAFZ", {})["leafs"]
            assert (row["name"], row["is_spoke"]) == ("hub", True)
            assert leaf.server.pages.page("VARZ", {})["leafnodes"] == 1
            await above.close()
            await below.close()
        await until(lambda: hub.server.closed.total == 2)
        kinds = {row.kind for row in hub.server.closed}
        assert kinds == {"STANDARD", "LEAFNODE"}
