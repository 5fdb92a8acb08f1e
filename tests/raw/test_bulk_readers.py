"""Named readers over the socket: progress, holds, lag, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from conftest import BrokerFor
from raw.test_bulk_ranges import numbered, publish
from support import Server
from support.clients.bulk import BulkClient
from support.clients.http import request

from broker.bulk import limits

pytestmark = pytest.mark.only_ours

CONFIG = {"storage": {"sync": "always", "segment_size": "64KiB"}}


@pytest.fixture
def broker(broker_for: BrokerFor) -> Server:
    return broker_for(CONFIG)


@pytest.fixture
def bulk(broker: Server) -> Iterator[BulkClient]:
    with BulkClient(broker.bulk) as client:
        yield client


@pytest.fixture
def topic(broker: Server, bulk: BulkClient, uniq: str) -> str:
    """A topic of several files, with a channel that has read nothing."""
    request(broker.nsq_http, "POST", "/topic/create", topic=uniq)
    request(broker.nsq_http, "POST", "/channel/create", topic=uniq, channel="c")
    for start in range(0, 2000, 200):
        publish(broker, uniq, numbered(200, start, size=100))
    bulk.await_next(uniq, 2001)
    return uniq


def metric(broker: Server, name: str, **labels: str) -> float | None:
    """The value of a series."""
    wanted = name + (
        "{" + ",".join(f'{k}="{v}"' for k, v in labels.items()) + "}" if labels else ""
    )
    for line in request(broker.monitor, "GET", "/metrics").body.decode().splitlines():
        series, _, value = line.rpartition(" ")
        if series == wanted:
            return float(value)
    return None


def put(bulk: BulkClient, name: str, **wish: Any) -> Any:
    answer = bulk.ask("PUT", f"readers/{name}", wish)
    assert answer.status == 200, answer.body
    return answer.json


def test_progress_and_lag(broker: Server, bulk: BulkClient, topic: str) -> None:
    at = {"seq": 501, "incarnation": bulk.topic(topic)["incarnation"]}
    page = put(bulk, topic, ttl_s=60, positions={topic: at})
    assert page["positions"] == {topic: {**at, "state": "ok", "lag": 1500}}
    assert (page["ttl_s"], page["hold"]) == (60, False)
    assert 0 < page["expires_in_s"] <= 60
    shown = bulk.ask("GET", "readers", name=topic).json["readers"]
    assert [reader["positions"] for reader in shown] == [page["positions"]]
    lag = metric(broker, "twinwire_bulk_reader_lag_records", reader=topic, topic=topic)
    assert lag == 1500
    put(bulk, topic, positions={topic: {**at, "seq": 2001}})
    lag = metric(broker, "twinwire_bulk_reader_lag_records", reader=topic, topic=topic)
    assert lag == 0
    assert bulk.topic(topic)["held_from"] is None


def test_a_hold_and_its_end(broker: Server, bulk: BulkClient, topic: str) -> None:
    known = bulk.topic(topic)
    at = {"seq": 701, "incarnation": known["incarnation"]}
    put(bulk, topic, ttl_s=60, positions={topic: at}, hold=True)
    request(broker.nsq_http, "POST", "/channel/empty", topic=topic, channel="c")
    while (found := bulk.topic(topic))["first"] == 1:
        pass
    assert found["held_from"] == 701
    assert found["first"] <= 701
    assert bulk.range(topic, 701).bodies[0] == numbered(1, 700, size=100)[0]
    put(bulk, topic)  # a renewal says nothing else
    assert bulk.topic(topic)["held_from"] == 701
    put(bulk, topic, positions={topic: None})
    assert bulk.topic(topic)["held_from"] is None
    while bulk.topic(topic)["first"] <= 701:
        pass
    page = put(bulk, topic, positions={topic: at})["positions"][topic]
    assert (page["state"], page["first"]) == ("trimmed", bulk.topic(topic)["first"])
    assert bulk.ask("DELETE", f"readers/{topic}").json == {"deleted": True}
    assert bulk.ask("DELETE", f"readers/{topic}").json == {"deleted": False}
    assert bulk.topic(topic)["held_from"] is None


def test_positions_of_what_is_not_there(bulk: BulkClient, topic: str) -> None:
    other = {"seq": 1, "incarnation": "0" * 32}
    page = put(bulk, topic, positions={topic: other, "nobody": other}, hold=True)
    assert {name: at["state"] for name, at in page["positions"].items()} == {
        topic: "other_incarnation",
        "nobody": "no_topic",
    }
    assert page["ttl_s"] == limits.BULK_TTL // 10**9
    assert bulk.topic(topic)["held_from"] is None


@pytest.mark.parametrize(
    "wish",
    [
        {"ttl_s": 0},
        {"ttl_s": 10**9},
        {"ttl_s": "1"},
        {"hold": 1},
        {"positions": {"t": 1}},
        {"positions": {"t": {"seq": 1}}},
        {"positions": {"t": {"seq": -1, "incarnation": "0" * 32}}},
        {"positions": {"t": {"seq": 2**63, "incarnation": "0" * 32}}},
        {"positions": {"t": {"seq": 1, "incarnation": "x"}}},
        [],
    ],
)
def test_what_makes_no_sense(bulk: BulkClient, uniq: str, wish: object) -> None:
    answer = bulk.ask("PUT", f"readers/{uniq}", wish)
    assert (answer.status, answer.json.keys()) == (400, {"error"})
    assert bulk.ask("GET", "readers", name=uniq).json == {"readers": []}


@pytest.mark.parametrize("name", ["x" * 81, "%00", "%0A", "%C3%A4" * 41])
def test_names_that_make_no_sense(bulk: BulkClient, name: str) -> None:
    assert bulk.ask("PUT", f"readers/{name}", {}).status == 400


def test_what_is_counted(broker: Server, bulk: BulkClient, topic: str) -> None:
    before = metric(broker, "twinwire_bulk_records_total")
    assert before is not None
    bulk.all_of(topic, 1, 2001)
    after = metric(broker, "twinwire_bulk_records_total")
    assert after is not None
    assert after >= before + 2000
    for name in ("ranges_total", "sent_bytes_total", "refused_total", "damaged_bytes_total"):
        assert metric(broker, f"twinwire_bulk_{name}") is not None
    assert request(broker.monitor, "GET", "/healthz").status == 200


def test_the_place_survives_kill_9(start_broker: Any, uniq: str) -> None:
    server = start_broker(CONFIG)
    publish(server, uniq, numbered(1000, size=100))
    with BulkClient(server.bulk) as bulk:
        at = {"seq": 401, "incarnation": bulk.await_next(uniq, 1001)["incarnation"]}
        put(bulk, "r", ttl_s=3600, positions={uniq: at}, hold=True)
    server.kill()
    server.start()
    with BulkClient(server.bulk) as bulk:
        assert bulk.topic(uniq)["held_from"] == 401
        page = bulk.ask("GET", "readers").json["readers"][0]
        assert page["positions"][uniq]["seq"] == 401
        assert page["expires_in_s"] > 3500
