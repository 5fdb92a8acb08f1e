"""Our server as the NSQ listener of somebody else's NATS: topics and subjects over a leaf link."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nats
import pytest
from support import RawPeer, Server, nsq_peer
from support.clients.http import request
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

if TYPE_CHECKING:
    from conftest import StartBroker

pytestmark = pytest.mark.only_ours
LISTENER = 'server_name: hub\nleafnodes { listen: "127.0.0.1:-1" }\n'
HUBS = ["ours", pytest.param("original", marks=needs_original)]


@asynccontextmanager
async def nsq_below_hub(
    folder: Path, start_broker: StartBroker, hub: str
) -> AsyncIterator[tuple[Node, Server]]:
    """A hub, and `twinwire serve` joined to it."""
    async with ours(LISTENER) if hub == "ours" else original(folder, LISTENER, "hub") as above:
        file = folder / "leaf.conf"
        file.write_text(
            f'leafnodes {{ reconnect: 1, remotes [ {{ url: "{above.leaf_url()}" }} ] }}'
        )
        below = await in_thread(lambda: start_broker({"nats": {"config_file": str(file)}}))
        yield above, below


async def in_thread(call: Any) -> Any:
    """Something that waits for another program, while a server of this loop goes on."""
    return await asyncio.to_thread(call)


def publish(server: Server, topic: str, *bodies: bytes) -> None:
    with nsq_peer(server.nsq) as peer:
        for body in bodies:
            peer.command(f"PUB {topic}", body)
            peer.expect_frame("response", b"OK")


def consumer(server: Server, topic: str) -> RawPeer:
    peer = nsq_peer(server.nsq)
    peer.command(f"SUB {topic} ch")
    peer.expect_frame("response", b"OK")
    peer.command("RDY 100")
    return peer


@pytest.mark.parametrize("hub", HUBS)
@on_uvloop
async def test_nsq_to_the_hub(
    tmp_path: Path, start_broker: StartBroker, uniq: str, hub: str
) -> None:
    async with nsq_below_hub(tmp_path, start_broker, hub) as (above, below):
        client = await above.dial()
        heard: list[Any] = []

        async def hear(message: Any) -> None:
            heard.append(message)

        await client.subscribe(f"{uniq}.>", cb=hear)
        await client.subscribe(f"{uniq}.*", "group", cb=hear)
        probe = await nats_below(below)
        await interest(probe, f"{uniq}.probe")
        await until(lambda: len(heard) == 2)
        heard.clear()
        await in_thread(lambda: publish(below, f"{uniq}.a", *(b"%d" % i for i in range(50))))
        await until(lambda: len(heard) == 100)
        assert sorted(message.data for message in heard) == sorted(
            b"%d" % i for i in range(50) for _ in "12"
        )
        assert {message.subject for message in heard} == {f"{uniq}.a"}
        await probe.close()
        await client.close()


async def nats_below(server: Server) -> Any:
    return await nats.connect(server.nats_url)


@pytest.mark.parametrize("hub", HUBS)
@on_uvloop
async def test_the_hub_to_nsq(
    tmp_path: Path, start_broker: StartBroker, uniq: str, hub: str
) -> None:
    """A topic is interest, from its first message or consumer on until it is deleted."""
    async with nsq_below_hub(tmp_path, start_broker, hub) as (above, below):
        client = await above.dial()
        peer = await in_thread(lambda: consumer(below, uniq))
        await interest(client, uniq)
        for i in range(50):
            await client.publish(uniq, b"%d" % i, headers={"K": "v"} if i % 2 else None)
        await client.flush()
        frames = await in_thread(lambda: [peer.read_frame() for _ in range(51)])
        assert [frame.body for frame in frames] == [b"probe", *(b"%d" % i for i in range(50))]
        for frame in frames:
            peer.command(f"FIN {frame.message_id.decode()}")
        peer.close()
        await in_thread(lambda: request(below.nsq_http, "POST", "/topic/delete", topic=uniq))
        await no_interest(client, uniq)
        await client.close()


@pytest.mark.parametrize("hub", HUBS)
@on_uvloop
async def test_a_message_is_stored_once(
    tmp_path: Path, start_broker: StartBroker, uniq: str, hub: str
) -> None:
    """What NSQ publishes does not come back from the hub, nor what the hub publishes."""
    async with nsq_below_hub(tmp_path, start_broker, hub) as (above, below):
        client = await above.dial()
        heard: list[bytes] = []

        async def hear(message: Any) -> None:
            heard.append(message.data)

        await client.subscribe(uniq, cb=hear)
        peer = await in_thread(lambda: consumer(below, uniq))
        probe = await nats_below(below)
        await interest(probe, uniq)
        await in_thread(lambda: publish(below, uniq, b"from nsq"))
        await until(lambda: b"from nsq" in heard)
        await interest(client, uniq)
        await client.publish(uniq, b"from the hub")
        await client.flush()
        bodies = []
        while b"from the hub" not in bodies:
            frame = await in_thread(peer.read_frame)
            bodies.append(frame.body)
        assert [body for body in bodies if body != b"probe"] == [b"from nsq", b"from the hub"]
        peer.close()
        await probe.close()
        await client.close()
