"""/metrics under the exporter's names: what is on the original's pages is there, as it makes it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.clients.http import request
from support.golden.monitor import CONFIG, Traffic, load
from support.live.nats import LiveNats

from broker.protocols.nats.monitoring.metrics import NatsFacts, nats_block, nats_facts, nats_metrics
from broker.server.exposition import metrics_page, render

PAGES = {entry["ask"]: entry["says"][2] for entry in load()}
Series = dict[str, dict[tuple[tuple[str, str], ...], float]]


def read(text: bytes) -> Series:
    """Values by name and labels."""
    found: Series = {}
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
    return found


@pytest.fixture(scope="module")
def server() -> Iterator[LiveNats]:
    page = lambda nats: metrics_page(lambda: [nats_metrics(nats.pages)])  # noqa: E731
    with LiveNats(CONFIG, metrics=page) as server:
        traffic = Traffic(server.nats, server.monitor)
        yield server
        traffic.close()


@pytest.fixture(scope="module")
def series(server: LiveNats) -> Series:
    answer = request(server.monitor, "GET", "/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=")
    return read(answer.body)


def exported(page: dict[str, Any], path: str) -> Iterator[str]:
    """Names that the exporter makes of a page of the original; masked values are numbers."""
    strings = {"server_name", "server_id", "version", "start", "config_load_time"}
    masked_texts = {"now", "uptime", "go", "config_digest"}
    for key, value in page.items():
        name = f"{path}_{key}".replace("/", "_").replace("__", "_").rstrip("_")
        if isinstance(value, dict):
            yield from exported(value, name)
        elif isinstance(value, bool | list) or key in masked_texts:
            continue
        elif value == "*" or key in strings or isinstance(value, int | float):
            yield name


@pytest.mark.parametrize("page", ["varz", "subsz", "routez"])
def test_every_series_of_the_original_is_there(series: Series, page: str) -> None:
    shown = {k: v for k, v in PAGES[f"/{page}"].items() if k != "http_req_stats"}
    wanted = set(exported(shown, f"gnatsd_{page}"))
    assert len(wanted) > 2
    assert wanted - set(series) == set()


def test_values(server: LiveNats, series: Series) -> None:
    me = ("server_id", server.server.server_id)
    varz = request(server.monitor, "GET", "/varz").json
    assert series["gnatsd_varz_connections"] == {(me,): 3}
    assert series["gnatsd_varz_in_msgs"] == {(me,): 3}
    assert series["gnatsd_varz_slow_consumer_stats_clients"] == {(me,): 0}
    assert series["gnatsd_varz_server_name"] == {(me, ("value", "golden")): 1}
    assert series["gnatsd_varz_version"] == {(me, ("value", varz["version"])): 1}
    started = datetime.fromisoformat(varz["start"]).timestamp() * 1000
    assert abs(series["gnatsd_varz_start"][me,] - started) < 2
    assert series["gnatsd_connz_num_connections"] == {(me,): 3}
    assert series["gnatsd_connz_out_bytes"] == {(me,): 6}
    assert series["gnatsd_connz_subscriptions"] == {(me,): 3}
    assert series["gnatsd_connz_limit"] == {(me,): 1024}
    assert series["gnatsd_healthz_status"] == {(me,): 0}
    assert series["gnatsd_healthz_status_value"] == {(me, ("value", "ok")): 1}
    assert series["gnatsd_leafz_conn_nodes_total"] == {(me,): 0}
    account = (("account", "A"), ("account_id", "A"), ("account_name", "A"), me)
    assert series["gnatsd_accstatz_current_connections"][account] == 2
    assert series["gnatsd_accstatz_received_messages"][account] == 3
    assert "process_resident_memory_bytes" in series


def test_what_is_no_number_is_not_shown(series: Series) -> None:
    for name in ("auth_required", "tags", "go", "uptime", "now", "host"):
        assert f"gnatsd_varz_{name}" not in series


class Leaf(SimpleNamespace):
    __hash__ = object.__hash__  # type: ignore[assignment]


def facts(server: LiveNats) -> NatsFacts:
    return server.ask(lambda nats: nats_facts(nats.pages))


def test_a_server_that_is_not_well(server: LiveNats) -> None:
    server.server.pages.broken = lambda: "broken"
    shown = facts(server)
    server.server.pages.broken = lambda: None
    found = read(render([nats_block(shown)])[0])
    assert list(found["gnatsd_healthz_status"].values()) == [1]
    labels, value = next(iter(found["gnatsd_healthz_status_value"].items()))
    assert (("value", "unavailable") in labels, value) == (True, 0)


def test_leafs(server: LiveNats) -> None:
    account = server.server.accounts["A"]
    leaf = Leaf(
        account=account,
        remote_name="edge",
        is_spoke=False,
        isolated=False,
        identity=None,
        compression="",
        client_id=5,
        host="10.0.0.1",
        port=7,
        rtt_ns=2_000_000,
        in_msgs=1,
        in_bytes=2,
        out_msgs=3,
        out_bytes=4,
        subscriptions=5,
        list_subs=lambda _most: [(b"a.>", b"", b"", 0, 0)],
    )
    account.leafs.add(leaf)
    shown = facts(server)
    page = request(server.monitor, "GET", "/leafz", subs=1).json
    varz = request(server.monitor, "GET", "/varz").json
    account.leafs.discard(leaf)
    found = read(render([nats_block(shown)])[0])
    labels = (
        ("account", "A"),
        ("account_id", "A"),
        ("ip", "10.0.0.1"),
        ("name", "edge"),
        ("port", "7"),
        ("server_id", server.server.server_id),
    )
    assert found["gnatsd_leafz_info"] == {labels: 1}
    assert found["gnatsd_leafz_conn_rtt"] == {labels: 0.002}
    assert found["gnatsd_leafz_conn_in_bytes"] == {labels: 2}
    assert list(found["gnatsd_leafz_conn_nodes_total"].values()) == [1]
    assert (page["leafnodes"], varz["leafnodes"]) == (1, 1)
    assert page["leafs"] == [
        {
            "id": 5,
            "name": "edge",
            "is_spoke": False,
            "account": "A",
            "ip": "10.0.0.1",
            "port": 7,
            "rtt": "2ms",
            "in_msgs": 1,
            "out_msgs": 3,
            "in_bytes": 2,
            "out_bytes": 4,
            "subscriptions": 5,
            "subscriptions_list": ["a.>"],
        }
    ]
