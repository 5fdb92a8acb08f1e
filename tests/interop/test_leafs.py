"""Clients on both ends of a leaf link: ours and ours, and ours with the original either way."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import NoRespondersError
from support.servers.leafs import (
    Node,
    interest,
    needs_original,
    on_uvloop,
    original,
    ours,
    reached,
    until,
)

LISTENER = 'leafnodes { listen: "127.0.0.1:-1" %s }\n'
REMOTE = 'leafnodes { reconnect: 1, remotes [ { url: "%s" %s } ] }\n'
PAIRS = [
    "ours-ours",
    pytest.param("original-ours", marks=needs_original),
    pytest.param("ours-original", marks=needs_original),
]

both_ways = pytest.mark.parametrize("pair", PAIRS)


@asynccontextmanager
async def pair_of(
    pair: str, folder: Path, *, hub: str = "", spoke: str = "", user: str = "", remote: str = ""
) -> AsyncIterator[tuple[Node, Node]]:
    """A hub, and a leaf of it that is joined."""
    hub_is, spoke_is = pair.split("-")
    config = LISTENER % "" + "server_name: hub\n" + hub
    async with ours(config) if hub_is == "ours" else original(folder, config, "hub") as above:
        config = REMOTE % (above.leaf_url(user), remote) + "server_name: spoke\n" + spoke
        async with (
            ours(config) if spoke_is == "ours" else original(folder, config, "spoke") as below
        ):
            yield above, below


class Received:
    """What one client was given."""

    def __init__(self) -> None:
        self.messages: list[Msg] = []

    async def hear(self, message: Msg) -> None:
        self.messages.append(message)

    @property
    def data(self) -> list[bytes]:
        return [message.data for message in self.messages if message.data != b"probe"]

    async def listen(self, client: Client, subject: str, queue: str = "") -> Received:
        await client.subscribe(subject, queue=queue, cb=self.hear)
        await client.flush()
        return self


@both_ways
@on_uvloop
async def test_messages_in_both_directions(pair: str, tmp_path: Path) -> None:
    async with pair_of(pair, tmp_path) as (hub, spoke):
        above, below = await hub.dial(), await spoke.dial()
        for here, there in ((above, below), (below, above)):
            heard = await Received().listen(there, "news.*")
            await interest(here, "news.x")
            bodies = [b"%d" % i for i in range(500)]
            for body in bodies:
                await here.publish("news.a", body)
            await until(lambda heard=heard: len(heard.data) == 500)
            assert heard.data == bodies
        big = bytes(range(256)) * 4_000
        heard = await Received().listen(above, "big")
        await interest(below, "big")
        await below.publish("big", big, headers={"Kind": "large"})
        await until(lambda: heard.data)
        assert heard.data == [big]
        assert heard.messages[-1].headers == {"Kind": "large"}
        await above.close()
        await below.close()


@both_ways
@on_uvloop
async def test_requests_in_both_directions(pair: str, tmp_path: Path) -> None:
    async with pair_of(pair, tmp_path) as (hub, spoke):
        above, below = await hub.dial(), await spoke.dial()

        async def answer(message: Msg) -> None:
            await message.respond(b"to " + message.data)

        for here, there, name in ((above, below, "up"), (below, above, "down")):
            with pytest.raises(NoRespondersError):
                await here.request(name, b"nobody", timeout=5)
            sub = await there.subscribe(name, cb=answer)
            await there.flush()
            await interest(here, name)
            for i in range(20):
                reply = await here.request(name, b"%d" % i, timeout=5)
                assert reply.data == b"to %d" % i
            await sub.unsubscribe()
        await above.close()
        await below.close()


@both_ways
@on_uvloop
async def test_queue_groups_across(pair: str, tmp_path: Path) -> None:
    """Each message once; those of the own side first."""
    async with pair_of(pair, tmp_path) as (hub, spoke):
        above, below = await hub.dial(), await spoke.dial()
        far = [await Received().listen(below, "work", "crew") for _ in range(2)]
        other = await Received().listen(below, "work", "audit")
        plain = await Received().listen(below, "work")
        groups = ([plain], [other], far)
        members = [one for group in groups for one in group]
        await reached(above, "work", *(lambda one=one: one.messages for one in members))
        for i in range(200):
            await above.publish("work", b"%d" % i)
        await until(lambda: all(sum(len(one.data) for one in group) == 200 for group in groups))
        assert all(len(one.data) > 20 for one in far)
        near = await Received().listen(above, "work", "crew")
        for one in members:
            one.messages.clear()
        for i in range(200):
            await above.publish("work", b"%d" % i)
        await until(lambda: len(plain.data) == len(other.data) == len(near.data) == 200)
        assert sum(len(one.data) for one in far) == 0
        await above.close()
        await below.close()


@both_ways
@on_uvloop
async def test_accounts_stay_apart(pair: str, tmp_path: Path) -> None:
    accounts = """accounts { A { users: [ { user: a, password: p } ] },
        B { users: [ { user: b, password: p } ] } }\n"""
    async with pair_of(
        pair, tmp_path, hub=accounts, spoke=accounts, user="b:p", remote=", account: A"
    ) as (hub, spoke):
        below = await spoke.dial(user="a", password="p")
        heard = await Received().listen(below, ">")
        above = {name: await hub.dial(user=name, password="p") for name in "ab"}
        await interest(above["b"], "hello")
        await above["a"].publish("hello", b"a")
        await above["a"].flush()
        await above["b"].publish("hello", b"b")
        await until(lambda: b"b" in heard.data)
        assert heard.data == [b"b"]
        for client in (below, *above.values()):
            await client.close()


@both_ways
@on_uvloop
async def test_permissions(pair: str, tmp_path: Path) -> None:
    users = """authorization { users: [ { user: leaf, password: p, permissions: {
        publish: "up.>", subscribe: { allow: ["down.>", "_INBOX.>"], deny: "down.no" } } },
        { user: all, password: p } ] }\n"""
    async with pair_of(pair, tmp_path, hub=users, user="leaf:p") as (hub, spoke):
        above, below = await hub.dial(user="all", password="p"), await spoke.dial()
        up, down = await Received().listen(above, ">"), await Received().listen(below, ">")
        await interest(above, "down.x")
        await interest(below, "up.x")
        for subject in ("down.no", "up.a", "other", "down.a"):
            await above.publish(subject, subject.encode())
        await until(lambda: b"down.a" in down.data)
        assert down.data == [b"down.a"]
        await until(lambda: b"down.a" in up.data)
        up.messages.clear()
        for subject in ("down.a", "other", "up.a"):
            await below.publish(subject, subject.encode())
        await until(lambda: b"up.a" in up.data)
        assert up.data == [b"up.a"]
        await above.close()
        await below.close()


@both_ways
@on_uvloop
async def test_denied_by_the_leaf(pair: str, tmp_path: Path) -> None:
    deny = ', deny_imports: "in.no", deny_exports: ["out.no"]'
    async with pair_of(pair, tmp_path, remote=deny) as (hub, spoke):
        above, below = await hub.dial(), await spoke.dial()
        up, down = await Received().listen(above, ">"), await Received().listen(below, "in.>")
        await interest(above, "in.x")
        await interest(below, "out.x")
        for subject in ("in.no", "in.yes"):
            await above.publish(subject, subject.encode())
        await until(lambda: b"in.yes" in down.data)
        assert down.data == [b"in.yes"]
        up.messages.clear()
        for subject in ("out.no", "out.yes"):
            await below.publish(subject, subject.encode())
        await until(lambda: b"out.yes" in up.data)
        assert up.data == [b"out.yes"]
        await above.close()
        await below.close()


@both_ways
@on_uvloop
async def test_the_leaf_as_hub(pair: str, tmp_path: Path) -> None:
    """`hub: true`: who dials is the hub; the other side does not pass hubs' interest on."""
    async with pair_of(pair, tmp_path, remote=", hub: true") as (acceptor, solicitor):
        above, below = await solicitor.dial(), await acceptor.dial()
        for here, there in ((above, below), (below, above)):
            heard = await Received().listen(there, "x.*")
            await interest(here, "x.y")
            await here.publish("x.z", b"hi")
            await until(lambda heard=heard: heard.data == [b"hi"])
        await above.close()
        await below.close()


@both_ways
@on_uvloop
async def test_two_leafs_and_weights(pair: str, tmp_path: Path) -> None:
    """A hub chooses among leafs; what one publishes reaches the other."""
    spoke_is = pair.split("-")[1]
    async with pair_of(pair, tmp_path) as (hub, one):
        config = REMOTE % (hub.leaf_url(), "") + "server_name: second\n"
        start = ours(config) if spoke_is == "ours" else original(tmp_path, config, "second")
        async with start as two:
            clients = [await node.dial() for node in (hub, one, two)]
            got: Counter[int] = Counter()
            probed: Counter[int] = Counter()

            def counts(at: int) -> Any:
                async def count(message: Msg) -> None:
                    (probed if message.data == b"probe" else got)[at] += 1

                return count

            await clients[1].subscribe("w", queue="q", cb=counts(1))
            for _ in range(3):
                await clients[2].subscribe("w", queue="q", cb=counts(2))
            for client in clients[1:]:
                await client.flush()
            await reached(clients[0], "w", lambda: probed[1], lambda: probed[2])
            for _ in range(400):
                await clients[0].publish("w", b"x")
            await until(lambda: got.total() == 400)
            assert got[1] > 20
            assert got[2] > 20
            heard = await Received().listen(clients[2], "chat")
            await interest(clients[1], "chat")
            await clients[1].publish("chat", b"across")
            await until(lambda: heard.data == [b"across"])
            for client in clients:
                await client.close()


@both_ways
@on_uvloop
async def test_mappings_of_the_hub(pair: str, tmp_path: Path) -> None:
    """The hub asks its leafs for what it maps, and maps what comes of them."""
    async with pair_of(pair, tmp_path, hub='mappings { "old.*": "new.$1" }\n') as (hub, spoke):
        above, below = await hub.dial(), await spoke.dial()
        heard = await Received().listen(above, "new.*", "group")
        await interest(below, "old.x")
        await below.publish("old.a", b"hi")
        await until(lambda: heard.data)
        assert [m.subject for m in heard.messages if m.data == b"hi"] == ["new.a"]
        await above.close()
        await below.close()
