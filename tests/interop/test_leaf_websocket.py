"""Leaf links through the WebSocket listener: ours to ours, and to and from the original."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from support.authority import Authority
from support.servers.leafs import Node, interest, on_uvloop, original, ours, until

from tests.interop.test_leafs import PAIRS, Received

HUB = """
server_name: hub
leafnodes { listen: "127.0.0.1:-1" }
websocket { listen: "127.0.0.1:-1", %s }
accounts { A { users: [ {user: a, password: p} ] } }
authorization { users: [ {user: g, password: p} ] }
"""
SPOKE = "server_name: spoke\nleafnodes { reconnect: 1, remotes [ { url: %s\n%s } ] }\n"
BIG = b"0123456789" * 20_000


def websocket_address(node: Node) -> str:
    """HOST:PORT."""
    if node.server is not None:
        return "{}:{}".format(*node.server.ports["websocket"])
    assert node.log is not None
    (path,) = node.log.parent.glob("*.ports")
    found: str = json.loads(path.read_text())["websocket"][0].rpartition("/")[2]
    return found


@asynccontextmanager
async def pair_of(
    pair: str, folder: Path, *, listener: str, scheme: str, remote: str
) -> AsyncIterator[tuple[Node, Node]]:
    hub_is, spoke_is = pair.split("-")
    config = HUB % listener
    async with ours(config) if hub_is == "ours" else original(folder, config, "hub") as above:
        url = f"{scheme}://g:p@{websocket_address(above)}".replace("127.0.0.1", "localhost")
        config = SPOKE % (json.dumps(url), remote)
        async with (
            ours(config) if spoke_is == "ours" else original(folder, config, "spoke") as below
        ):
            yield above, below


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("kind", ["ws", "compressed", "unmasked", "both", "wss"])
@on_uvloop
async def test_messages_cross(pair: str, kind: str, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    cert = authority.issue("localhost")
    listener, scheme, remote = "no_tls: true, compression: true", "ws", ""
    if kind == "wss":
        listener = f'tls {{ cert_file: "{cert.certificate}", key_file: "{cert.key}" }}'
        scheme, remote = "wss", f'tls {{ ca_file: "{authority.file}" }}'
    if kind in {"compressed", "both"}:
        remote += "ws_compression: true\n"
    if kind in {"unmasked", "both"}:
        remote += "ws_no_masking: true\n"
    async with pair_of(pair, tmp_path, listener=listener, scheme=scheme, remote=remote) as (
        above,
        below,
    ):
        upper = await above.dial(user="g", password="p")
        lower = await below.dial()
        up = await Received().listen(upper, "up")
        down = await Received().listen(lower, "down")
        await interest(upper, "down")
        await interest(lower, "up")
        for size in (0, 1, 125, 126, 4_096, 70_000, len(BIG)):
            await upper.publish("down", BIG[:size])
            await lower.publish("up", BIG[:size])
        await until(lambda: len(down.data) == len(up.data) == 7)
        for heard in (up, down):
            assert [len(data) for data in heard.data] == [0, 1, 125, 126, 4_096, 70_000, len(BIG)]
            assert heard.data[-1] == BIG
        await upper.close()
        await lower.close()


@on_uvloop
async def test_it_comes_back() -> None:
    async with ours(HUB % "no_tls: true") as above:
        url = json.dumps(f"ws://g:p@{websocket_address(above)}")
        async with ours((SPOKE % (url, "")).replace("reconnect: 1", 'reconnect: "10ms"')) as below:
            assert above.server is not None
            assert below.server is not None
            leafs = above.server.accounts["$G"].leafs
            for _ in range(3):
                await until(lambda: leafs)
                (link,) = leafs
                assert link.kind == "LEAFNODE_WS"
                link.kick()
                await until(lambda link=link: link not in leafs)
            await until(lambda: leafs)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"HTTP/1.1 404 Not Found\r\n\r\n", "invalid websocket connection"),
        (b"HTTP/1.1 101 x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n", "invalid"),
        (b"INFO {}\r\n\r\n", "400 Bad Request"),
        (b"", "timed out"),
    ],
)
@on_uvloop
async def test_addresses_that_are_no_leaf_listener(
    answer: bytes, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    asked = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"GET /base/leafnode HTTP/1.1\r\nHost: 127.0.0.1:")
        writer.write(answer)
        await reader.read()
        asked.set()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with ours(SPOKE % (f'"ws://u:p@127.0.0.1:{port}/base/"', "first_info_timeout: 100ms")):
        await asked.wait()
    server.close()
    assert any("Error soliciting websocket connection" in m and why in m for m in caplog.messages)
