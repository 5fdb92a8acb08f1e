"""/metrics: every counter of a snapshot, under its name, in both formats."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from pathlib import Path
from typing import Any

import pytest
from aiohttp.test_utils import make_mocked_request
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_open
from prometheus_client.parser import text_string_to_metric_families as parse_text

from broker import __version__
from broker.base.metrics import Block
from broker.base.service import ListenerStats
from broker.bulk.stats import BulkStats, LagStats
from broker.protocols.nats.monitoring.metrics import NatsFacts, nats_block
from broker.protocols.nats.service import subscription_block
from broker.protocols.nsq.http.metrics import ChannelStats, TopicStats, topic_block
from broker.protocols.stan.metrics import stan_block
from broker.server import exposition
from broker.server.exposition import metrics_page, render, server_blocks
from broker.server.stats import EngineStats, Histogram
from tests.unit.protocols.stan.test_metrics import FACTS

HERE = Path(__file__).parent
OPEN_METRICS = "application/openmetrics-text; version=1.0.0"


TOPICS = [
    TopicStats("a", 1, 2, 3, [ChannelStats("x", 4, 5, 6, 7, 8, 9, 10, paused=True)]),
    TopicStats('odd"\n\\name'),
]
LISTENERS = [ListenerStats("nats", 1, 2, 3, 4, 5, 6, 7), ListenerStats("nsq", 11)]
ENGINE = EngineStats(Histogram((0.001, 0.01), [3, 2, 1], 0.5), 12, 13, 2, 3, 14, 15, 17, 18)


@pytest.fixture
def stats() -> list[Block]:
    return [*server_blocks(LISTENERS, ENGINE, 0.25), subscription_block(16), topic_block(TOPICS)]


NATS = NatsFacts(
    server_id="N",
    varz={
        "server_id": "N",
        "connections": 1,
        "start": "2026-01-01T00:00:00.123456789Z",
        "a": {"b": 2},
    },
    subsz={"num_subscriptions": 3},
    routez={"num_routes": 0},
    connz={"num_connections": 1, "limit": 1024},
    leafs=[
        (
            {
                "account": "A",
                "ip": "10.0.0.1",
                "port": 7,
                "name": "edge",
                "in_msgs": 1,
                "out_msgs": 2,
                "in_bytes": 3,
                "out_bytes": 4,
                "subscriptions": 5,
            },
            2_000_000,
        )
    ],
    accounts=[
        {
            "acc": "A",
            "conns": 1,
            "total_conns": 2,
            "num_subscriptions": 3,
            "leafnodes": 4,
            "slow_consumers": 5,
            "sent": {"msgs": 1, "bytes": 2},
            "received": {"msgs": 3, "bytes": 4},
        }
    ],
    health="ok",
)


@pytest.mark.parametrize(("accept", "page"), [("", "txt"), (OPEN_METRICS, "openmetrics")])
def test_the_page_is_the_same_to_the_byte(
    stats: list[Block], accept: str, page: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names, labels, texts and order: dashboards and alerts of users depend on all but the last.

    The pages stem from the version in which one module knew all services.
    """
    monkeypatch.setattr(exposition, "__version__", "0.0.0")
    bulk = BulkStats(*range(20, 35), [LagStats("r", "t", 9)])
    services = [nats_block(NATS), stan_block(FACTS), bulk.block()]  # in any order of positions
    shown, _ = render([*services, *stats], accept)
    assert shown.partition(b"# HELP process_")[0] == (HERE / f"pages/metrics.{page}").read_bytes()


def samples(page: bytes, parse) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in parse(page.decode())
        for sample in family.samples
    }


def value(found, name: str, **labels: str) -> float:
    return found[f"twinwire_{name}", frozenset(labels.items())]


@pytest.mark.parametrize(("accept", "parse"), [("", parse_text), (OPEN_METRICS, parse_open)])
def test_counters_appear_under_their_names(stats: list[Block], accept: str, parse) -> None:
    page, content_type = render(stats, accept)
    assert content_type.startswith(accept.partition(";")[0] or "text/plain")
    found = samples(page, parse)

    assert value(found, "info", version=__version__) == 1
    assert value(found, "connections", door="nats") == 1
    assert value(found, "connections_accepted_total", door="nats") == 2
    assert value(found, "messages_received_total", door="nats") == 3
    assert value(found, "messages_sent_total", door="nats") == 4
    assert value(found, "received_bytes_total", door="nats") == 5
    assert value(found, "sent_bytes_total", door="nats") == 6
    assert value(found, "slow_consumers_total", door="nats") == 7
    assert value(found, "connections", door="nsq") == 11
    assert value(found, "busy_poll_seconds_total") == 0.25
    assert value(found, "subscriptions") == 16
    assert value(found, "topic_depth_messages", topic="a") == 1
    assert value(found, "topic_messages_total", topic="a") == 2
    assert value(found, "topic_bytes_total", topic="a") == 3
    assert value(found, "topic_depth_messages", topic='odd"\n\\name') == 0
    channel = {"topic": "a", "channel": "x"}
    assert value(found, "channel_depth_messages", **channel) == 4
    assert value(found, "channel_in_flight_messages", **channel) == 5
    assert value(found, "channel_deferred_messages", **channel) == 6
    assert value(found, "channel_messages_total", **channel) == 7
    assert value(found, "channel_requeues_total", **channel) == 8
    assert value(found, "channel_timeouts_total", **channel) == 9
    assert value(found, "channel_consumers", **channel) == 10
    assert value(found, "channel_paused", **channel) == 1
    assert value(found, "log_written_bytes_total") == 12
    assert value(found, "log_write_errors_total") == 13
    assert value(found, "quarantined_logs") == 2
    assert value(found, "storage_problems") == 3
    assert value(found, "log_quarantined_ranges_total") == 14
    assert value(found, "log_torn_bytes_total") == 15
    assert value(found, "delivery_events_total") == 17
    assert value(found, "delivery_events_lost_total") == 18


@pytest.mark.parametrize(("accept", "parse"), [("", parse_text), (OPEN_METRICS, parse_open)])
def test_histogram_is_cumulative(stats: list[Block], accept: str, parse) -> None:
    found = samples(render(stats, accept)[0], parse)
    buckets = [value(found, "log_sync_seconds_bucket", le=le) for le in ("0.001", "0.01", "+Inf")]
    assert buckets == [3, 5, 6]
    assert value(found, "log_sync_seconds_count") == 6
    assert value(found, "log_sync_seconds_sum") == 0.5


def test_an_empty_broker_has_a_page() -> None:
    found = samples(render(server_blocks([], EngineStats()))[0], parse_text)
    assert value(found, "log_sync_seconds_count") == 0
    assert any(name == "process_resident_memory_bytes" for name, _ in found)


def test_every_number_of_the_snapshot_is_on_the_page() -> None:
    """Numbers nobody else uses are written into all fields; each must come out."""
    numbers = iter(range(1_001, 2_000))

    def filled(kind: type, **rest: object) -> Any:
        ints = (f.name for f in dataclasses.fields(kind) if f.type == "int")
        return kind(**{name: next(numbers) for name in ints}, **rest)

    channel = filled(ChannelStats, name="c")
    blocks = [
        *server_blocks([filled(ListenerStats, name="d")], filled(EngineStats)),
        topic_block([filled(TopicStats, name="t", channels=[channel])]),
        subscription_block(next(numbers)),
        filled(BulkStats, lags=[filled(LagStats, reader="r", topic="t")]).block(),
    ]
    last = next(numbers)
    shown = {int(v) for v in samples(render(blocks)[0], parse_text).values() if 1_000 < v < last}
    assert shown >= set(range(1_001, last))


def test_pages_are_rendered_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several threads that render would leave the loop a fraction of the interpreter's time."""
    started, ended = threading.Event(), threading.Event()
    copies: list[int] = []

    def slow(*_: object) -> tuple[bytes, str]:
        started.set()
        assert ended.wait(30)
        return b"page", "text/plain"

    def source() -> list[Block]:
        copies.append(len(copies))
        return []

    async def run() -> None:
        serve = metrics_page(source)
        requests = [make_mocked_request("GET", "/metrics") for _ in range(4)]
        tasks = [asyncio.ensure_future(serve(request)) for request in requests]
        assert await asyncio.to_thread(started.wait, 30)
        assert copies == [0]
        requests[3]._protocol.transport = None  # this client has gone
        ended.set()
        pages = await asyncio.gather(*tasks)
        assert copies == [0, 1, 2]
        assert [page.body for page in pages] == [b"page"] * 3 + [None]

    monkeypatch.setattr(exposition, "render", slow)
    asyncio.run(run())
