"""The name of a cluster, of which nothing else is here: who gets it, also of another one."""

from __future__ import annotations

import asyncio
import dataclasses
import json

from support import Address, RawPeer
from support.live.nats import LiveNats

from broker.protocols.nats.server import NatsServer

TEXT = 'cluster { name: "ONE" }\nleafnodes { listen: "127.0.0.1:-1", %s }\n'


def cluster_of(address: Address) -> str | None:
    with RawPeer(address) as peer:
        name: str | None = json.loads(peer.read_until(b"\r\n")[5:]).get("cluster")
        return name


def rename(server: LiveNats, name: str) -> None:
    async def act() -> None:
        settings = dataclasses.replace(server.server.settings, cluster_name=name)
        await server.server.reload(settings)

    asyncio.run_coroutine_threadsafe(act(), server.loop).result(30)


def leaf_address(server: LiveNats) -> Address:
    return Address(*server.server.ports["leafnodes"])


def test_a_reload_renames() -> None:
    with LiveNats(TEXT % "") as server:
        assert cluster_of(server.nats) == cluster_of(leaf_address(server)) == "ONE"
        rename(server, "TWO")
        assert cluster_of(server.nats) == cluster_of(leaf_address(server)) == "TWO"
        assert server.ask(lambda s: s.context.exchange.crossing.server["cluster"]) == "TWO"
        rename(server, "")
        assert cluster_of(server.nats) is cluster_of(leaf_address(server)) is None


def test_a_link_is_made_anew_under_another_name() -> None:
    with LiveNats('leafnodes { listen: "127.0.0.1:-1" }') as hub:
        text = 'cluster { name: "ONE" }\nleafnodes { reconnect: "10ms", remotes: [{url: "%s"}] }'
        with LiveNats(text % f"nats-leaf://{leaf_address(hub)}") as leaf:
            wait_for(hub, "ONE")
            rename(leaf, "TWO")
            wait_for(hub, "TWO")


def wait_for(hub: LiveNats, name: str) -> None:
    def clusters(server: NatsServer) -> set[str]:
        return {leaf.peer_cluster for leaf in server.accounts["$G"].leafs}

    async def until() -> None:
        async with asyncio.timeout(20):
            while clusters(hub.server) != {name}:  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    asyncio.run_coroutine_threadsafe(until(), hub.loop).result(30)
