"""The pages below /streaming: fields, order, paging, what is not found."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from broker.base.units import HOUR
from broker.protocols.stan.config import StanChannelConfig, StanConfig
from broker.protocols.stan.monitor import StreamingPages
from broker.protocols.stan.store import SubRecord


class Sub:
    def __init__(
        self,
        client_id: str,
        *,
        durable_name: str = "",
        queue_name: str = "",
        is_offline: bool = False,
    ) -> None:
        names = (client_id, "in", "ack", durable_name, queue_name)
        self.record = SubRecord(1, "foo", "stan:1", *names, 10, 30)
        self.is_offline = is_offline
        self.last_sent = self.pending_count = 0
        self.cursor = SimpleNamespace(next_seq=1)
        self.is_stalled = False


@dataclass
class Channel:
    name: str
    msgs: int = 0
    bytes: int = 0
    first_seq: int = 0
    last_seq: int = 0
    subscriptions: list[Sub] = field(default_factory=list)


@dataclass
class Client:
    client_id: str
    hb_inbox: str = "hb"
    subscriptions: set[Sub] = field(default_factory=set)


@dataclass
class Service:
    settings: StanConfig = field(default_factory=lambda: StanConfig(cluster_id="c", store="memory"))
    server_id: str = "id"
    start_ns: int = field(default_factory=time.time_ns)
    clients: dict[str, Client] = field(default_factory=dict)
    channels: dict[str, Channel] = field(default_factory=dict)
    in_msgs: int = 1
    in_bytes: int = 2
    out_msgs: int = 3
    out_bytes: int = 4


@pytest.fixture
def service() -> Service:
    plain, durable = Sub("one"), Sub("two", durable_name="d", is_offline=True)
    queue = Sub("one", queue_name="q")
    return Service(
        clients={"two": Client("two"), "one": Client("one", subscriptions={plain, queue})},
        channels={
            "foo": Channel("foo", 2, 20, 1, 2, [queue, durable, plain]),
            "bar": Channel("bar", 1, 7, 3, 3),
        },
    )


@pytest.fixture
async def ask(service: Service):
    app = web.Application()
    for path, handler in StreamingPages(lambda: cast("Any", service)).handlers().items():
        app.router.add_get(path, handler)
    async with TestClient(TestServer(app)) as client:

        async def ask(path: str) -> tuple[int, Any]:
            answer = await client.get(f"/streaming{path}")
            text = await answer.text()
            return answer.status, json.loads(text) if text.startswith("{") else text

        yield ask


async def test_serverz(ask) -> None:
    status, page = await ask("/serverz")
    assert status == 200
    assert list(page) == [
        "cluster_id",
        "server_id",
        "version",
        "go",
        "state",
        "now",
        "start_time",
        "uptime",
        "clients",
        "subscriptions",
        "channels",
        "total_msgs",
        "total_bytes",
        "in_msgs",
        "in_bytes",
        "out_msgs",
        "out_bytes",
        "open_fds",
        "max_fds",
    ]
    assert (page["version"], page["state"], page["uptime"]) == ("0.25.6", "STANDALONE", "0s")
    assert (page["clients"], page["subscriptions"], page["channels"]) == (2, 3, 2)
    assert (page["total_msgs"], page["total_bytes"]) == (3, 27)
    assert [page[f"{way}_{what}"] for way in ("in", "out") for what in ("msgs", "bytes")] == [
        *(1, 2, 3, 4)
    ]
    assert 0 < page["open_fds"] <= page["max_fds"]


async def test_storez(ask, service: Service) -> None:
    _, page = await ask("/storez")
    plain = {
        "max_msgs": 1_000_000,
        "max_bytes": 1_024_000_000,
        "max_age": 0,
        "max_subscriptions": 1_000,
        "max_inactivity": 0,
    }
    assert page["type"] == "MEMORY"
    assert page["limits"] == {"max_channels": 100, **plain}
    assert list(page)[-2:] == ["total_msgs", "total_bytes"]
    service.settings = StanConfig(
        max_age_ns=HOUR,
        channel=(StanChannelConfig("b", max_msgs=0), StanChannelConfig("*", max_subs=5)),
    )
    _, page = await ask("/storez")
    assert list(page["limits"])[-1] == "channels"
    assert list(page["limits"]["channels"].items()) == [
        ("*", {**plain, "max_age": HOUR, "max_subscriptions": 5}),
        ("b", {**plain, "max_age": HOUR, "max_subscriptions": 5, "max_msgs": 0}),
    ]


async def test_clients_by_name(ask) -> None:
    _, page = await ask("/clientsz")
    assert list(page) == [
        "cluster_id",
        "server_id",
        "now",
        "offset",
        "limit",
        "count",
        "total",
        "clients",
    ]
    assert page["clients"] == [
        {"id": "one", "hb_inbox": "hb", "subs_count": 2},
        {"id": "two", "hb_inbox": "hb", "subs_count": 0},
    ]
    _, page = await ask("/clientsz?offset=1&limit=1")
    assert (page["offset"], page["limit"], page["count"], page["total"]) == (1, 1, 1, 2)
    assert [client["id"] for client in page["clients"]] == ["two"]
    _, page = await ask("/clientsz?subs=1")
    one, two = page["clients"]
    assert [sub.get("queue_name") for sub in one["subscriptions"]["foo"]] == ["q", None]
    assert "subscriptions" not in two


async def test_one_client(ask) -> None:
    assert await ask("/clientsz?client=two") == (
        200,
        {"id": "two", "hb_inbox": "hb", "subs_count": 0},
    )
    assert await ask("/clientsz?client=none") == (404, "Client none not found\n")


async def test_channels_by_name(ask) -> None:
    _, page = await ask("/channelsz")
    assert page["names"] == ["bar", "foo"]
    assert "channels" not in page
    _, page = await ask("/channelsz?subs=1&offset=1")
    assert "names" not in page
    (foo,) = page["channels"]
    assert list(foo) == [
        "name",
        "msgs",
        "bytes",
        "first_seq",
        "last_seq",
        "subs_count",
        "subscriptions",
    ]
    kinds = [(s.get("durable_name"), s.get("queue_name")) for s in foo["subscriptions"]]
    assert kinds == [(None, None), ("d", None), (None, "q")]
    assert foo["subscriptions"][1]["client_id"] == "two"


async def test_one_channel(ask) -> None:
    expected = {"name": "bar", "msgs": 1, "bytes": 7, "first_seq": 3, "last_seq": 3}
    assert await ask("/channelsz?channel=bar") == (200, {**expected, "subs_count": 0})
    assert await ask("/channelsz?channel=bar&subs=1") == (200, {**expected, "subs_count": 0})
    assert await ask("/channelsz?channel=nix") == (404, "Channel nix not found\n")


@pytest.mark.parametrize(
    ("query", "offset", "limit", "count"),
    [
        ("offset=-1&limit=-1", 0, 1024, 2),
        ("offset=x&limit=y", 0, 1024, 2),
        ("offset=9&limit=%2B1", 9, 1, 0),
        ("limit=0", 0, 1024, 2),
    ],
)
async def test_paging(ask, query: str, offset: int, limit: int, count: int) -> None:
    _, page = await ask(f"/channelsz?{query}")
    assert (page["offset"], page["limit"], page["count"]) == (offset, limit, count)
    assert ("names" in page) == bool(count)


async def test_the_others(ask) -> None:
    assert await ask("/isFTActive") == (204, "")
    status, text = await ask("")
    assert status == 200
    assert "./streaming/channelsz" in text
    _, page = await ask("/storez?callback=show")
    assert "cluster_id" in page  # no script


async def test_before_the_service_is_there() -> None:
    app = web.Application()
    for path, handler in StreamingPages(lambda: None).handlers().items():
        app.router.add_get(path, handler)
    async with TestClient(TestServer(app)) as client:
        answer = await client.get("/streaming/serverz")
        assert (answer.status, await answer.text()) == (503, "NATS Streaming is being started\n")
        assert (await client.get("/streaming/isFTActive")).status == 204
