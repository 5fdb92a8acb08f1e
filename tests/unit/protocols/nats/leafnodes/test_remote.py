"""Our server as the one that dials: what it does with hubs that lie, and when it comes back."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from support.servers.leafs import DEADLINE_S, Node, Raw, on_uvloop, ours, until

from broker.base.units import SECOND
from broker.protocols.nats import limits as nats_limits
from broker.protocols.nats.auth import nkeys
from broker.protocols.nats.leafnodes import limits as leaf_limits

INFO: dict[str, Any] = {
    "server_id": "NHUB",
    "server_name": "hub",
    "version": "2.10.22",
    "proto": 1,
    "headers": True,
    "max_payload": 1048576,
    "client_id": 5,
    "nonce": "abcdefghijklmno",
    "info_on_connect": True,
    "leafnode_urls": [],
}


def info(**fields: Any) -> bytes:
    said = {**INFO, **fields}
    said = {name: value for name, value in said.items() if value is not None}
    return b"INFO " + json.dumps(said).encode() + b" \r\n"


class Hub:
    """A listening socket in our hands."""

    def __init__(self, server: asyncio.Server, peers: asyncio.Queue[Raw]) -> None:
        self.server = server
        self.peers = peers
        self.port = server.sockets[0].getsockname()[1]

    @property
    def url(self) -> str:
        return f"nats-leaf://127.0.0.1:{self.port}"

    async def next(self) -> Raw:
        """The next one who dials."""
        return await asyncio.wait_for(self.peers.get(), DEADLINE_S)

    async def greeted(self, **fields: Any) -> tuple[Raw, dict[str, Any]]:
        """The next one, behind its CONNECT."""
        peer = await self.next()
        peer.send(info(**fields))
        line = await peer.line()
        assert line.startswith(b"CONNECT ")
        return peer, json.loads(line.removeprefix(b"CONNECT "))

    async def joined(self, **fields: Any) -> Raw:
        """The next one, behind the handshake; `wants`: what it asks for at first."""
        peer, _ = await self.greeted()
        peer.send(info(connect_info=True, remote_account="HUB", nonce=None, **fields))
        peer.wants = await peer.lines_until_pong()
        return peer


@asynccontextmanager
async def hub() -> AsyncIterator[Hub]:
    peers: asyncio.Queue[Raw] = asyncio.Queue()
    server = await asyncio.start_server(
        lambda reader, writer: peers.put_nowait(Raw(reader, writer)), "127.0.0.1", 0
    )
    try:
        yield Hub(server, peers)
    finally:
        server.close()


@asynccontextmanager
async def leaf_of(
    above: Hub, remote: str = "", rest: str = "", url: str = ""
) -> AsyncIterator[Node]:
    text = (
        f'leafnodes {{ reconnect: 300ms, remotes: [ {{ url: "{url or above.url}" {remote} }} ] }}\n'
    )
    async with ours(f"server_name: leaf\n{text}{rest}") as node:
        yield node


def remote_of(node: Node) -> Any:
    assert node.server is not None
    return node.server.leafs.remotes[0]


@on_uvloop
async def test_what_we_say() -> None:
    async with hub() as above, leaf_of(above, ", deny_imports: [no.x, no.y]") as node:
        peer, said = await above.greeted()
        assert node.server is not None
        assert said == {
            "version": nats_limits.NATS_VERSION,
            "server_id": node.server.server_id,
            "name": "leaf",
            "cluster": "leaf",
            "headers": True,
            "deny_pub": ["no.x", "no.y"],
            "remote_account": "$G",
            "compress_mode": "not supported",
        }
        client = await node.dial()
        await client.subscribe("here")
        await client.flush()
        assert await peer.lines_until_pong() == []  # not before the hub has answered
        peer.send(info(connect_info=True))
        assert b"LS+ here" in await peer.lines_until_pong()
        await client.close()


@on_uvloop
async def test_a_hub_that_does_not_answer_connect() -> None:
    """Older ones do not; they say so."""
    async with hub() as above, leaf_of(above):
        peer, _ = await above.greeted(info_on_connect=False)
        assert any(line.startswith(b"LS+ $LDS.") for line in await peer.lines_until_pong())


@on_uvloop
async def test_user_and_password_of_the_url() -> None:
    async with hub() as above:
        url = f"nats-leaf://some%40one:p%3Aw@127.0.0.1:{above.port}"
        async with leaf_of(above, url=url):
            _, said = await above.greeted()
            assert (said["user"], said["pass"]) == ("some@one", "p:w")


@on_uvloop
async def test_credentials_files(tmp_path: Path) -> None:
    key = nkeys.KeyPair(nkeys.USER)
    path = tmp_path / "user.creds"
    path.write_text(
        "-----BEGIN NATS USER JWT-----\neyJ.token.x\n------END NATS USER JWT------\n\n"
        "************************* IMPORTANT *************************\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{key.seed}\n------END USER NKEY SEED------\n"
    )
    async with hub() as above, leaf_of(above, f', credentials: "{path}"'):
        _, said = await above.greeted()
        assert said["jwt"] == "eyJ.token.x"
        assert nkeys.verify_nonce(key.public, b"abcdefghijklmno", said["sig"])
    async with hub() as above, leaf_of(above, f", nkey: {key.seed}"):
        _, said = await above.greeted()
        assert said["nkey"] == key.public
        assert nkeys.verify_nonce(key.public, b"abcdefghijklmno", said["sig"])


@on_uvloop
async def test_a_broken_credentials_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "user.creds"
    path.write_text("-----BEGIN NATS USER JWT-----\nSECRET\n------END NATS USER JWT------\n")
    async with hub() as above, leaf_of(above, f', credentials: "{path}"'):
        peer = await above.next()
        peer.send(info())
        assert await peer.end() == b""
        await until(lambda: "is malformed" in caplog.text)
        assert "SECRET" not in caplog.text


WRONG = [
    (b"INFO {\r\n", ""),
    (b"INFO []\r\n", ""),
    (info(client_id="5"), ""),
    (info(leafnode_urls="x"), ""),
    (info(export={"allow": "x"}), ""),
    (info(export={"allow": ["a..b"]}), ""),
    (info(leafnode_urls=None), "attempted to connect to wrong port"),
    (info(client_id=None), "attempted to connect to wrong port"),
    (b"PING\r\nNONSENSE\r\n", ""),
    (b'CONNECT {"name":"hub"}\r\n', ""),
]


@pytest.mark.parametrize(("said", "logged"), WRONG, ids=[str(i) for i in range(len(WRONG))])
@on_uvloop
async def test_a_wrong_info_ends_it(
    caplog: pytest.LogCaptureFixture, said: bytes, logged: str
) -> None:
    """And it is not dialled again at once."""
    async with hub() as above, leaf_of(above) as node:
        peer = await above.next()
        before = asyncio.get_running_loop().time()
        peer.send(said)
        rest = await peer.end()
        assert b"CONNECT" not in rest
        assert logged in caplog.text
        await above.next()
        assert asyncio.get_running_loop().time() - before > 0.25
        assert remote_of(node).session is not None


@on_uvloop
async def test_a_hub_that_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "broker.nats")
    async with hub() as above, leaf_of(above):
        silent = await above.next()
        assert await silent.end() == b""
        assert "Leafnode connection closed: Read Error" in caplog.text
        peer, _ = await above.greeted()
        assert await peer.end() == b"-ERR 'Stale Leaf Node Connection - Closing'\r\n"


@on_uvloop
async def test_errors_of_the_hub(caplog: pytest.LogCaptureFixture) -> None:
    async with hub() as above, leaf_of(above) as node:
        peer = await above.joined()
        peer.send(b"-ERR 'Permissions Violation for Publish to \"x\"'\r\n")
        assert await peer.lines_until_pong() == []  # it is written down, no more
        assert "Leafnode Error 'Permissions Violation" in caplog.text
        peer.send(b"-ERR 'remote leafnode has same cluster name'\r\n")
        await peer.lines_until_pong()
        assert remote_of(node).delay_ns == leaf_limits.NATS_LEAF_DELAY
        assert "Delaying attempt to reconnect for 30s" in caplog.text


@on_uvloop
async def test_a_loop_said_by_the_hub() -> None:
    async with hub() as above, leaf_of(above) as node:
        peer = await above.joined()
        peer.send(b"-ERR 'Loop detected for leafnode account=\"A\". Delaying'\r\n")
        assert await peer.end() == b""
        assert remote_of(node).delay_ns == leaf_limits.NATS_LEAF_DELAY


@on_uvloop
async def test_a_loop_found_here() -> None:
    async with hub() as above, leaf_of(above) as node:
        peer = await above.joined()
        (loop,) = [line for line in peer.wants if line.startswith(b"LS+ $LDS.")]
        peer.send(loop + b"\r\n")
        assert await peer.end() == (
            b'-ERR \'Loop detected for leafnode account="$G". '
            b"Delaying attempt to reconnect for 30s'\r\n"
        )
        assert remote_of(node).delay_ns == leaf_limits.NATS_LEAF_DELAY


@on_uvloop
async def test_rights_that_the_hub_tells() -> None:
    async with hub() as above, leaf_of(above, ", deny_exports: up.no") as node:
        rights = {"export": {"allow": ["up.>"]}, "import": {"allow": ["in.>"], "deny": ["in.no"]}}
        peer = await above.joined(**rights)
        client = await node.dial()
        for subject in ("in.no", "in.yes", "other", "in.*"):
            await client.subscribe(subject)
        await peer.expect(b"LS+ in.yes", b"LS+ in.*")
        peer.send(b"LS+ >\r\nLS+ out.of.reach\r\n")
        assert await peer.lines_until_pong() == []
        for subject in ("other", "up.no", "up.yes"):
            await client.publish(subject, b"x")
        await peer.expect(b"LMSG up.yes 1", b"x")
        peer.send(info(connect_info=False, export={"allow": ["other"]}))
        await peer.lines_until_pong()
        for subject in ("up.yes", "other"):
            await client.publish(subject, b"x")
        await peer.expect(b"LMSG other 1", b"x")
        await client.close()


@on_uvloop
async def test_what_is_not_imported_is_not_taken() -> None:
    """Even if the hub sends it: a subscription to > is announced."""
    async with hub() as above, leaf_of(above, ", deny_imports: [no.>]") as node:
        peer = await above.joined()
        client = await node.dial()
        got: list[str] = []

        async def hear(message: Any) -> None:
            got.append(message.subject)

        await client.subscribe(">", cb=hear)
        await peer.expect(b"LS+ >")
        for subject in (b"no.x", b"_R_.x", b"$JS.ACK.x", b"yes"):
            peer.send(b"LMSG %b 0\r\n\r\n" % subject)
        assert await peer.lines_until_pong() == []  # and no error is sent
        await until(lambda: "yes" in got)
        assert got == ["_R_.x", "$JS.ACK.x", "yes"]
        await client.close()


@on_uvloop
async def test_addresses_that_the_hub_tells() -> None:
    """They are tried before those that are configured, round and round."""
    async with hub() as one, hub() as two, leaf_of(one) as node:
        peer = await one.joined(leafnode_urls=[f"127.0.0.1:{two.port}", "no url: at all"])
        peer.close()
        second = await two.joined(leafnode_urls=[f"127.0.0.1:{two.port}"])
        second.close()
        await one.next()
        assert [url.port for url in remote_of(node)._urls] in (
            [two.port, one.port],
            [one.port, two.port],
        )


@on_uvloop
async def test_addresses_that_are_not_wanted() -> None:
    more = ", ignore_discovered_servers: true"
    async with hub() as one, hub() as two, leaf_of(one, more) as node:
        peer = await one.joined(leafnode_urls=[f"127.0.0.1:{two.port}"])
        peer.close()
        await one.next()
        assert [url.port for url in remote_of(node)._urls] == [one.port]
        assert two.peers.empty()


@on_uvloop
async def test_a_hub_whose_info_is_late() -> None:
    """Later than the default allows."""
    async with hub() as above, leaf_of(above, ", first_info_timeout: 60s"):
        peer = await above.next()
        await asyncio.sleep(1.2 * leaf_limits.NATS_LEAF_INFO / SECOND)
        peer.send(info())
        assert (await peer.line()).startswith(b"CONNECT ")


@pytest.mark.parametrize(
    ("block", "remote", "wanted"), [("", "", 1), ("3s", "", 3), ("3s", ", dial_timeout: 5s", 5)]
)
@on_uvloop
async def test_the_time_for_a_connection(
    block: str, remote: str, wanted: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[float] = []
    timeout = asyncio.timeout
    monkeypatch.setattr(asyncio, "timeout", lambda s: given.append(s) or timeout(s))
    async with hub() as above:
        remotes = f'remotes: [ {{ url: "{above.url}" {remote} }} ]'
        times = f"dial_timeout: {block}, " if block else ""
        async with ours(f"server_name: leaf\nleafnodes {{ {times}{remotes} }}\n"):
            await above.next()
    assert wanted in given


@on_uvloop
async def test_nobody_there(caplog: pytest.LogCaptureFixture) -> None:
    """The first failure is logged; attempts keep their distance."""
    async with hub() as above:
        port = above.port
    async with leaf_of(above, url=f"nats-leaf://127.0.0.1:{port}"):
        await until(lambda: "(attempt 1)" in caplog.text)
        assert f'as leafnode to remote server "127.0.0.1:{port}" (attempt 1)' in "\n".join(
            caplog.messages
        )
        await asyncio.sleep(0.5)
        assert "(attempt 3)" not in caplog.text


@on_uvloop
async def test_a_hub_that_lies_about_messages() -> None:
    """LMSG for groups that nobody has, interest that was never there, a flood of it."""
    async with hub() as above, leaf_of(above) as node:
        peer = await above.joined()
        client = await node.dial()
        heard = []

        async def hear(message: Any) -> None:
            heard.append(message.data)

        await client.subscribe("a", queue="real", cb=hear)
        await client.flush()
        await peer.expect(b"LS+ a real 1")
        peer.send(b"LMSG a | unreal 1\r\nx\r\nLS- nothing\r\nLS- a real\r\n")
        peer.send(b"LMSG a | real 1\r\ny\r\n")
        assert await peer.lines_until_pong() == []
        await until(lambda: heard)
        assert heard == [b"y"]
        peer.send(b"".join(b"LS+ flood.%d q 9\r\n" % i for i in range(20_000)))
        assert await peer.lines_until_pong() == []
        assert remote_of(node).session.subscriptions == 20_000
        peer.close()
        assert node.server is not None
        router = node.server.accounts["$G"].router
        await until(lambda: router.size < 100)
        await client.close()


@on_uvloop
async def test_messages_that_are_too_large() -> None:
    async with hub() as above, leaf_of(above):
        peer = await above.joined()
        peer.send(b"LMSG a %d\r\n" % (leaf_limits.NATS_LEAF_PAYLOAD_MAX + 1))
        assert await peer.end() == b"-ERR 'Maximum Payload Violation'\r\n"
        peer = await above.joined()
        peer.send(b"LS+ " + b"a" * 70_000)
        assert await peer.end() == b"-ERR 'maximum control line exceeded'\r\n"


@on_uvloop
async def test_messages_above_the_hubs_limit_are_not_sent() -> None:
    """The hub would end the link for each of them, and it would be joined again."""
    async with hub() as place, ours(f'leafnodes {{ remotes: [ {{url: "{place.url}"}} ] }}') as leaf:
        peer, _ = await place.greeted(max_payload=1_000)
        peer.send(info(connect_info=True, remote_account="HUB", nonce=None))
        await peer.lines_until_pong()
        client = await leaf.dial()
        peer.send(b"LS+ big\r\nPING\r\n")
        await peer.lines_until_pong()
        await client.publish("big", b"x" * 1_001)
        await client.publish("big", b"y" * 1_000)
        while not (line := await peer.line()).startswith(b"LMSG"):
            pass
        assert line == b"LMSG big 1000"
