"""The monitoring door over HTTP."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator

import pytest
from aiohttp.test_utils import TestClient, TestServer

from broker import __version__
from broker.admin.metrics import metrics_page
from broker.protocols.nats.monitor import Identity, make_app, rfc3339, uptime
from broker.stats import DoorStats, Stats


class Source:
    """A server that only says how it is."""

    def __init__(self) -> None:
        self.error: str | None = None

    def health(self) -> str | None:
        return self.error

    def snapshot(self) -> Stats:
        doors = [DoorStats("nsq", 9, 9, 9, 9, 9, 9, 9), DoorStats("nats", 1, 2, 3, 4, 5, 6, 7)]
        return Stats(doors=doors, subscriptions=8)

    def identity(self) -> Identity:
        return Identity(
            server_id="NID",
            server_name="one",
            version="2.9.10",
            host="127.0.0.1",
            port=4222,
            http_host="127.0.0.1",
            http_port=8222,
            max_connections=10,
            max_subscriptions=0,
            max_control_line=4096,
            max_payload=100,
            max_pending=200,
            ping_interval_ns=120_000_000_000,
            ping_max=2,
            write_deadline_ns=10_000_000_000,
            start_ns=1_700_000_000_120_000_000,
        )


@pytest.fixture
def source() -> Source:
    return Source()


@pytest.fixture
async def client(source: Source) -> AsyncIterator[TestClient]:
    app = make_app(source, {"/metrics": metrics_page(source)})
    async with TestClient(TestServer(app)) as client:
        yield client


async def test_healthz_is_compact(client: TestClient) -> None:
    answer = await client.get("/healthz")
    assert (answer.status, await answer.text()) == (200, '{"status":"ok"}')
    assert answer.content_type == "application/json"


async def test_healthz_says_what_is_wrong(client: TestClient, source: Source) -> None:
    source.error = "log orders: disk full"
    answer = await client.get("/healthz")
    assert answer.status == 503
    assert await answer.json() == {"status": "unavailable", "error": "log orders: disk full"}


async def test_healthz_refuses_a_bad_switch(client: TestClient) -> None:
    assert (await client.get("/healthz?js-enabled-only=true")).status == 200
    answer = await client.get("/healthz?js-server-only=xx")
    assert answer.status == 400
    assert answer.content_type == "text/plain"
    assert "js-server-only" in await answer.text()


async def test_varz(client: TestClient) -> None:
    await client.get("/healthz")
    answer = await client.get("/varz")
    text, page = await answer.text(), await answer.json()
    assert text.startswith('{\n  "server_id": "NID",\n')
    expected = {
        "server_name": "one",
        "version": "2.9.10",
        "twinwire": __version__,
        "port": 4222,
        "connections": 1,
        "total_connections": 2,
        "in_msgs": 3,
        "out_msgs": 4,
        "in_bytes": 5,
        "out_bytes": 6,
        "slow_consumers": 7,
        "subscriptions": 8,
        "ping_interval": 120_000_000_000,
        "start": "2023-11-14T22:13:20.12Z",
        "http_req_stats": {"/healthz": 1, "/varz": 1},
    }
    assert {key: page[key] for key in expected} == expected
    assert "max_subscriptions" not in page
    assert page["mem"] > 1_000_000
    assert re.fullmatch(r"(\d+y)?(\d+d)?(\d+h)?(\d+m)?\d+s", page["uptime"])


async def test_callback_must_be_a_name(client: TestClient) -> None:
    answer = await client.get("/healthz?callback=jQuery_1.done")
    assert await answer.text() == 'jQuery_1.done({"status":"ok"})'
    assert answer.content_type == "application/javascript"
    answer = await client.get("/healthz?callback=alert(1)//")
    assert await answer.text() == '{"status":"ok"}'


async def test_metrics_and_unknown_pages(client: TestClient) -> None:
    answer = await client.get("/metrics")
    assert answer.status == 200
    assert answer.headers["Content-Type"].startswith("text/plain; version=")
    assert 'twinwire_messages_received_total{door="nats"} 3.0' in await answer.text()
    assert (await client.get("/nope")).status == 404
    assert "/nope" not in (await (await client.get("/varz")).json())["http_req_stats"]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (59, "59s"),
        (60, "1m0s"),
        (3_600, "1h0m0s"),
        (90_061, "1d1h1m1s"),
        (365 * 86_400, "1y0d0h0m0s"),
    ],
)
def test_uptime(seconds: int, text: str) -> None:
    assert uptime(seconds) == text


def test_times_have_no_trailing_zeros() -> None:
    assert rfc3339(1_700_000_000_000_000_000) == "2023-11-14T22:13:20Z"
    assert rfc3339(1_700_000_000_000_000_001) == "2023-11-14T22:13:20.000000001Z"
