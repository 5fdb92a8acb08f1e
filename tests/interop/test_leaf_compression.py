"""Compression of leaf links: ours and ours, and ours with the original either way."""

from __future__ import annotations

import asyncio
import json
import random
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.authority import Authority
from support.clients.http import request
from support.native.filters import pack, unpack
from support.servers.leafs import Node, interest, on_uvloop, original, ours, until
from support.servers.processes import Address

from broker.net.s2 import S2
from broker.protocols.nats.settings import Compression
from tests.interop.test_leafs import PAIRS, Received

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

HUB = 'http: "127.0.0.1:-1"\nserver_name: hub\nleafnodes { listen: "127.0.0.1:-1" %s }\n'
LEAF = 'http: "127.0.0.1:-1"\nserver_name: leaf\nleafnodes { remotes [ { url: "%s" %s } ] }\n'
OFF, UNCOMPRESSED = "off", "s2_uncompressed"
AUTO = '{ mode: s2_auto, rtt_thresholds: ["1h"] }'  # however busy this machine is
# Modes of hub and leaf, and what each of them finds agreed.
AGREED = {
    ("off", "s2_fast"): (OFF, OFF),
    ("s2_fast", "off"): (OFF, OFF),
    ("accept", "accept"): (OFF, OFF),
    ("accept", "s2_fast"): ("s2_fast", "s2_fast"),
    ("s2_better", "accept"): ("s2_better", "s2_better"),
    ("s2_fast", "s2_best"): ("s2_fast", "s2_best"),
    ("s2_auto", "s2_auto"): (UNCOMPRESSED, UNCOMPRESSED),
    ("s2_auto", "s2_better"): (UNCOMPRESSED, "s2_better"),
    ("not_supported", "s2_fast"): ("not supported", "not supported"),
    ("s2_fast", "not_supported"): ("not supported", "not supported"),
}


def node(kind: str, folder: Path, config: str, name: str) -> AbstractAsyncContextManager[Node]:
    return ours(config) if kind == "ours" else original(folder, config, name)


def monitor(one: Node) -> Address:
    """Where its pages are."""
    if one.server is not None:
        return Address(*one.server.ports["monitor"])
    said = one.said().partition("Starting http monitor on ")[2]
    return Address.parse(said.partition("\n")[0].strip())


async def agreed(one: Node) -> str:
    """What the only leaf connection of a server has agreed."""
    found: list[dict[str, str]] = []

    def page() -> list[dict[str, str]]:
        return list(json.loads(request(monitor(one), "GET", "/leafz").body)["leafs"] or [])

    while not found:
        found = await asyncio.to_thread(page)
    return found[0]["compression"]


async def crosses(here: Node, there: Node) -> None:
    """Messages of all sizes, which do and do not compress, from one server to the other."""
    rng = random.Random(7)
    bodies = [b"", b"x", b"same" * 50_000, rng.randbytes(300_000), b"a" * 900_000]
    bodies += [b"%d " % i * (i % 97) for i in range(2_000)]
    one, other = await here.dial(), await there.dial()
    heard = await Received().listen(other, "cross")
    await interest(one, "cross")
    for body in bodies:
        await one.publish("cross", body)
    await one.flush()
    await until(lambda: len(heard.data) == len(bodies))
    assert heard.data == bodies
    await one.close()
    await other.close()


@pytest.mark.parametrize("modes", AGREED, ids="-".join)
@pytest.mark.parametrize("pair", PAIRS)
@on_uvloop
async def test_what_is_agreed(pair: str, modes: tuple[str, str], tmp_path: Path) -> None:
    hub_is, leaf_is = pair.split("-")
    of_hub, of_leaf = (f", compression: {AUTO if m == 's2_auto' else m}" for m in modes)
    async with node(hub_is, tmp_path, HUB % of_hub, "hub") as hub:
        config = LEAF % (hub.leaf_url(), of_leaf)
        async with node(leaf_is, tmp_path, config, "leaf") as leaf:
            await interest_of_both(hub, leaf)
            assert (await agreed(hub), await agreed(leaf)) == AGREED[modes]
            await crosses(hub, leaf)
            await crosses(leaf, hub)


async def interest_of_both(hub: Node, leaf: Node) -> None:
    """Wait until they are joined."""
    above, below = await hub.dial(), await leaf.dial()
    await Received().listen(below, "joined")
    await interest(above, "joined")
    await above.close()
    await below.close()


@pytest.mark.parametrize("pair", PAIRS)
@on_uvloop
async def test_with_the_defaults(pair: str, tmp_path: Path) -> None:
    """Ours compresses if the other side wants it."""
    hub_is, leaf_is = pair.split("-")
    async with (
        node(hub_is, tmp_path, HUB % "", "hub") as hub,
        node(leaf_is, tmp_path, LEAF % (hub.leaf_url(), ""), "leaf") as leaf,
    ):
        await interest_of_both(hub, leaf)
        expected = OFF if pair == "ours-ours" else "s2_"  # and a level by the round trip
        for one in (hub, leaf):
            assert (await agreed(one)).startswith(expected)
        await crosses(hub, leaf)
        await crosses(leaf, hub)


@pytest.mark.parametrize("pair", PAIRS)
@on_uvloop
async def test_inside_tls(pair: str, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    cert, key = authority.issue("hub")
    hub_is, leaf_is = pair.split("-")
    tls = f'tls {{ cert_file: "{cert}", key_file: "{key}" }}'
    async with node(hub_is, tmp_path, HUB % f", compression: s2_fast, {tls}", "hub") as hub:
        trust = f', compression: s2_fast, tls {{ ca_file: "{authority.file}" }}'
        url = hub.leaf_url().replace("nats-leaf", "tls")
        async with node(leaf_is, tmp_path, LEAF % (url, trust), "leaf") as leaf:
            await interest_of_both(hub, leaf)
            assert (await agreed(hub), await agreed(leaf)) == ("s2_fast", "s2_fast")
            await crosses(hub, leaf)
            await crosses(leaf, hub)


@pytest.mark.parametrize("pair", PAIRS)
@on_uvloop
async def test_websocket_links_are_not_compressed(pair: str, tmp_path: Path) -> None:
    hub_is, leaf_is = pair.split("-")
    websocket = 'websocket { listen: "127.0.0.1:-1", no_tls: true, compression: true }\n'
    async with node(hub_is, tmp_path, HUB % ", compression: s2_fast" + websocket, "hub") as hub:
        if hub.server is not None:
            port = hub.server.ports["websocket"][1]
        else:
            mark = "Listening for websocket clients on ws://127.0.0.1:"
            port = int(hub.said().partition(mark)[2].partition("\n")[0])
        more = ", compression: s2_fast, ws_compression: true"
        config = LEAF % (f"ws://127.0.0.1:{port}", more)
        async with node(leaf_is, tmp_path, config, "leaf") as leaf:
            await interest_of_both(hub, leaf)
            await crosses(hub, leaf)
            await crosses(leaf, hub)


EARLY = {
    "a subscription": b"LS+ early\r\n",
    "INFO once more": b'INFO {"compression":"s2_fast"}\r\n',
    "a line that is too long": b"CONNECT {" + b" " * 70_000,
    "more than a line may have": b"CONNECT {" + b" " * 1_000_000,
}


@pytest.mark.parametrize("what", EARLY)
@on_uvloop
async def test_a_peer_that_has_not_logged_in(what: str) -> None:
    """After the negotiation CONNECT comes, and nothing that takes much memory."""
    async with ours(HUB % ", compression: s2_fast") as hub:
        assert hub.leaf is not None
        reader, writer = await asyncio.open_connection(*hub.leaf)
        assert b'"compression":"s2_fast"' in await reader.readline()
        writer.write(b'INFO {"compression":"s2_fast"}\r\n')
        stream = S2(packs=True)
        answer = b""
        while not answer.endswith(b"\r\n"):
            answer += unpack(stream, await reader.read(65_536), 65_536)
        assert answer.startswith(b"INFO {")
        writer.write(pack(stream, EARLY[what]))
        left = await reader.read()  # to the end: the hub closes
        refusal = unpack(stream, left, 65_536) if left else b""
        assert refusal in (
            b"",
            b"-ERR 'Authorization Violation'\r\n",
            b"-ERR 'maximum control line exceeded'\r\n",
        )
        assert hub.server is not None
        assert not hub.server.accounts["$G"].leafs
        writer.close()


@on_uvloop
async def test_a_level_that_is_set_by_a_reload_stays() -> None:
    """Before, it followed the round trip."""
    async with (
        ours(HUB % ", compression: s2_fast") as hub,
        ours(LEAF % (hub.leaf_url(), f", compression: {AUTO}")) as leaf,
    ):
        await interest_of_both(hub, leaf)
        assert leaf.server is not None
        (session,) = leaf.server.accounts["$G"].leafs
        assert (session.compression, session.by_rtt) == (UNCOMPRESSED, True)
        settings = leaf.server.settings
        assert settings.leafnodes is not None
        remotes = tuple(
            replace(one, compression=Compression("s2_fast")) for one in settings.leafnodes.remotes
        )
        leafnodes = replace(settings.leafnodes, remotes=remotes)
        await leaf.server.reload(replace(settings, leafnodes=leafnodes))
        assert (session.compression, session.by_rtt) == ("s2_fast", False)
        assert not session.ending
        await crosses(leaf, hub)
