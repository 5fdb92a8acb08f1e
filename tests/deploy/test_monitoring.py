"""Dashboards and alert rules against the page /metrics of a broker with traffic of every kind.

Each metric and each label that an expression names must be on that page. Where Prometheus is
installed it scrapes the broker itself, and each query must find something.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import nats
import pytest
from conftest import BrokerFor
from prometheus_client.parser import text_string_to_metric_families
from support import Server
from support.bulk.writer import BulkWriter
from support.clients.bulk import BulkClient
from support.clients.http import request
from support.clients.lookup import eventually
from support.clients.peer import RawPeer, nsq_peer
from support.servers.processes import Address, _Process
from support.stan.client import StanClient
from support.stan.wire import FIRST

promql = pytest.importorskip("promql_parser")
yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).resolve().parents[2]
MONITORING = ROOT / "deploy" / "monitoring"
ALERTS = MONITORING / "alerts.yaml"
CASES = Path(__file__).with_name("alert_cases.yaml")
DASHBOARDS = sorted((MONITORING / "dashboards").glob("*.json"))
CONFIG = {
    "stan": {"enabled": True},
    "events": {"topic": "deliveries"},
    "storage": {"sync": "always"},
    "bulk": {"allow_anonymous": True},
}
TARGET = {"job", "instance"}  # labels that Prometheus adds
OF_PROMETHEUS = {"up": set[str]()}
# The queries of the dashboards that come with prometheus-nats-exporter.
EXPORTER = (
    *(f"gnatsd_varz_{n}" for n in ("connections", "cpu", "mem", "slow_consumers", "subscriptions")),
    *(f"gnatsd_varz_{n}" for n in ("in_bytes", "in_msgs", "out_bytes", "out_msgs")),
    *(f"gnatsd_varz_jetstream_config_max_{n}" for n in ("memory", "storage")),
    *(f"gnatsd_varz_jetstream_stats_{n}" for n in ("memory", "storage")),
)
# Those of its dashboard for JetStream.
EXPORTER_JETSTREAM = (
    *(f"jetstream_server_{n}" for n in ("jetstream_disabled", "total_streams", "total_consumers")),
    *(f"jetstream_server_{n}" for n in ("total_messages", "total_message_bytes", "max_storage")),
    *(f"jetstream_account_{n}" for n in ("max_memory", "memory_used", "storage_used")),
    *(f"jetstream_stream_{n}" for n in ("total_messages", "total_bytes", "first_seq", "last_seq")),
    *(f"jetstream_stream_{n}" for n in ("consumer_count", "subject_count", "mirror_lag")),
    *(f"jetstream_consumer_{n}" for n in ("num_pending", "num_ack_pending", "num_waiting")),
    *(f"jetstream_consumer_{n}" for n in ("ack_floor_stream_seq", "last_delivery_seconds")),
    "jetstream_consumer_delivered_consumer_seq",
)

pytestmark = pytest.mark.only_ours

Scraped = dict[str, set[str]]


class Query(NamedTuple):
    """An expression and where it stands."""

    place: str
    expression: str


# --- a broker with traffic


async def nats_traffic(server: Server) -> None:
    client = await nats.connect(server.nats_url)
    taken = await client.subscribe("live.>")
    await client.flush()
    await client.publish("live.a", b"x" * 100)
    await taken.next_msg(30)
    js = client.jetstream()
    await js.add_stream(name="LIVE", subjects=["kept.>"])
    await js.add_stream(name="COPY", mirror={"name": "LIVE"})
    await js.publish("kept.a", b"1")
    reader = await js.pull_subscribe("kept.>", durable="reader")
    [message] = await reader.fetch(1, timeout=30)
    await message.ack_sync()
    await client.close()


def consume(server: Server, topic: str) -> RawPeer:
    """A consumer that has finished one message and stays."""
    peer = nsq_peer(server.nsq)
    peer.send(f"SUB {topic} billing\nRDY 1\n".encode())
    peer.expect_frame("response", b"OK")
    frame = peer.read_frame()
    assert frame.kind == "message"
    peer.send(b"FIN " + frame.message_id + b"\n")
    return peer


@contextlib.contextmanager
def traffic(server: Server) -> Iterator[None]:
    """Clients of each protocol that have sent and received, and stay."""
    request(server.nsq_http, "POST", "/topic/create", topic="orders")
    request(server.nsq_http, "POST", "/channel/create", topic="orders", channel="billing")
    for body in (b"one", b"two", b"three"):
        assert request(server.nsq_http, "POST", "/pub", body, topic="orders").status == 200
    asyncio.run(nats_traffic(server))
    client = BulkClient(server.bulk)
    writer = BulkWriter(client, "job")
    part = writer.stage(0, "orders", 0, "a", [b"staged"])
    writer.committed(0, {"orders": [part]})
    topic = client.topic("orders")
    positions = {"orders": {"seq": topic["first"], "incarnation": topic["incarnation"]}}
    client.ask("PUT", "readers/archive", {"ttl_s": 3600, "positions": positions})
    with consume(server, "orders"), StanClient(server, "clerk") as stan:
        assert stan.publish("audit", b"1", b"2") == ""
        durable = stan.subscribe("audit", start=FIRST, durable="d")
        durable.next(ack=True)
        stan.flush()
        yield


def scrape(server: Server) -> Scraped:
    """Labels of each series of the page, by the names that Prometheus stores."""
    page = request(server.monitor, "GET", "/metrics").body.decode()
    found: Scraped = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


@pytest.fixture(scope="module")
def busy(broker_for: BrokerFor) -> Iterator[Server]:
    server = broker_for(CONFIG)
    with traffic(server):
        yield server


@pytest.fixture(scope="module")
def scraped(busy: Server) -> Scraped:
    return scrape(busy) | OF_PROMETHEUS


# --- expressions


def plain(expression: str) -> str:
    """The expression as Grafana sends it, with all of each variable chosen."""
    return expression.replace("$__rate_interval", "1m").replace("$datasource", "")


def selectors(node: Any) -> Iterator[Any]:
    """The selectors below a node of the tree."""
    if isinstance(node, promql.MatrixSelector):
        yield node.vector_selector
    elif isinstance(node, promql.VectorSelector):
        yield node
    for name in ("expr", "lhs", "rhs", "param"):
        if (child := getattr(node, name, None)) is not None:
            yield from selectors(child)
    for child in getattr(node, "args", ()):
        yield from selectors(child)


def grouped_by(node: Any) -> Iterator[tuple[set[str], Any]]:
    """Labels of each aggregation and each matching, and the tree that must have them."""
    modifier = getattr(node, "modifier", None)
    if isinstance(node, promql.AggregateExpr) and modifier is not None:
        yield set(modifier.labels), node
    for name in ("expr", "lhs", "rhs"):
        if (child := getattr(node, name, None)) is not None:
            yield from grouped_by(child)
    for child in getattr(node, "args", ()):
        yield from grouped_by(child)


def faults_of(expression: str, scraped: Scraped) -> list[str]:
    """What the expression names and the broker does not have."""
    tree = promql.parse(plain(expression))
    found = []
    used = list(selectors(tree))
    if not used:
        found.append("no metric")
    for selector in used:
        labels = scraped.get(selector.name)
        if labels is None:
            found.append(f"no metric {selector.name}")
            continue
        named = {matcher.name for matcher in selector.matchers.matchers} - {"__name__"}
        found += [f"{selector.name} has no {name}" for name in named - labels - TARGET]
    for labels, part in grouped_by(tree):
        inner = [scraped.get(selector.name, set()) for selector in selectors(part)]
        have = set.intersection(*inner) if inner else set()
        found += [f"grouped by {name}" for name in labels - have - TARGET]
    return found


def panels(page: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for panel in page["panels"]:
        if panel["type"] != "row":
            yield panel


def queries_of(dashboard: Path) -> list[Query]:
    page = json.loads(dashboard.read_text())
    return [
        Query(f"{dashboard.name}: {panel['title']}", target["expr"])
        for panel in panels(page)
        for target in panel["targets"]
    ]


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load(ALERTS.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def test_the_check_sees_what_is_not_there(scraped: Scraped) -> None:
    assert faults_of("sum by (topic) (rate(twinwire_topic_bytes_total[5m]))", scraped) == []
    for wrong in (
        "twinwire_nothing",
        'twinwire_info{topic="a"}',
        "sum by (channel) (twinwire_topic_depth_messages)",
        "1 + 1",
        "rate(twinwire_topic_bytes[5m])",
        "absent(up) or min_over_time(twinwire_nothing[5m])",
    ):
        assert faults_of(wrong, scraped), wrong


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda path: path.stem)
def test_a_dashboard_asks_for_what_a_broker_has(dashboard: Path, scraped: Scraped) -> None:
    queries = queries_of(dashboard)
    assert queries
    faults = {q.place: f for q in queries if (f := faults_of(q.expression, scraped))}
    assert faults == {}


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda path: path.stem)
def test_the_variables_and_legends_of_a_dashboard(dashboard: Path, scraped: Scraped) -> None:
    page = json.loads(dashboard.read_text())
    assert page["uid"] == dashboard.stem
    variables = {each["name"]: each for each in page["templating"]["list"]}
    for each in variables.values():
        if each["type"] == "query":
            asked = re.fullmatch(r"label_values\((.*), (\w+)\)", each["query"]["query"])
            assert asked, each
            assert faults_of(asked[1], scraped) == []
            (selector,) = selectors(promql.parse(asked[1]))
            assert asked[2] in scraped[selector.name] | TARGET
    text = json.dumps([panel["targets"] for panel in panels(page)])
    used = set(re.findall(r"\$\{?(?!__)(\w+)", text))
    assert used <= set(variables)
    for panel in panels(page):
        assert panel["description"]
        for target in panel["targets"]:
            legend = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
            (*_, every) = [
                set(),
                *(scraped[s.name] for s in selectors(promql.parse(plain(target["expr"])))),
            ]
            assert legend <= every | TARGET, panel["title"]


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda path: path.stem)
def test_panels_do_not_overlap(dashboard: Path) -> None:
    page = json.loads(dashboard.read_text())
    taken: set[tuple[int, int]] = set()
    for panel in page["panels"]:
        at = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert max(x for x, _ in cells) < 24
        assert not cells & taken, panel["title"]
        taken |= cells
    ids = [panel["id"] for panel in page["panels"]]
    assert len(set(ids)) == len(ids)


def test_dashboards_of_the_exporter_find_their_series(scraped: Scraped) -> None:
    every = EXPORTER + EXPORTER_JETSTREAM
    assert [name for name in every if "server_id" not in scraped.get(name, set())] == []
    # what they choose and group by
    for kind, label in (("stream", "stream_name"), ("consumer", "consumer_name")):
        names = [name for name in every if name.startswith(f"jetstream_{kind}_")]
        assert [name for name in names if label not in scraped[name]] == []


# --- alerts


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule["alert"])
def test_an_alert_names_a_page_and_a_metric(rule: dict[str, Any], scraped: Scraped) -> None:
    assert faults_of(rule["expr"], scraped) == []
    assert rule["labels"]["severity"] in {"page", "ticket"}
    page = ROOT / rule["annotations"]["runbook"]
    assert page.parent == ROOT / "docs" / "operate" / "runbooks"
    text = page.read_text()
    assert f"`{rule['alert']}`" in text
    for heading in ("## Meaning", "## Check", "## Solve"):
        assert f"\n{heading}\n" in text


def test_every_runbook_is_of_an_alert() -> None:
    named = {Path(rule["annotations"]["runbook"]).name for rule in rules()}
    assert {path.name for path in (ROOT / "docs/operate/runbooks").glob("*.md")} == named


def test_promtool_accepts_the_rules_and_they_fire_when_they_should(tmp_path: Path) -> None:
    """Each alert has a case in which it fires and one in which it does not."""
    cases = yaml.safe_load(CASES.read_text())["tests"]
    for fires in (True, False):
        tried = {
            one["alertname"]
            for case in cases
            for one in case["alert_rule_test"]
            if bool(one.get("exp_alerts")) == fires
        }
        assert tried == {rule["alert"] for rule in rules()}
    if shutil.which("promtool") is None:
        pytest.skip("not on PATH: promtool")
    shutil.copy2(ALERTS, tmp_path)
    shutil.copy2(CASES, tmp_path)
    for words in (["check", "rules", ALERTS.name], ["test", "rules", CASES.name]):
        found = subprocess.run(
            ["promtool", *words], capture_output=True, text=True, check=False, cwd=tmp_path
        )
        assert found.returncode == 0, found.stdout + found.stderr


# --- Prometheus itself


class Prometheus:
    """A server that scrapes one broker each second."""

    def __init__(self, folder: Path, target: Address) -> None:
        shutil.copy2(ALERTS, folder)
        (folder / "prometheus.yml").write_text(
            "global: {scrape_interval: 1s}\n"
            f"rule_files: [{ALERTS.name}]\n"
            "scrape_configs:\n"
            f"  - {{job_name: twinwire, static_configs: [{{targets: ['{target}']}}]}}\n"
        )
        self.process = _Process(folder / "prometheus.log")
        self.process.spawn(
            ["prometheus", f"--config.file={folder}/prometheus.yml",
             f"--storage.tsdb.path={folder}/db", "--web.listen-address=127.0.0.1:0"]
        )  # fmt: skip
        eventually(lambda: "Server is ready" in self.process.output())
        found = re.search(r'msg="Listening on" address=(\S+)', self.process.output())
        assert found is not None
        self.address = Address.parse(found[1])

    def ask(self, expression: str) -> list[Any]:
        answer = request(self.address, "GET", "/api/v1/query", query=expression).json
        assert answer["status"] == "success", (expression, answer)
        result: list[Any] = answer["data"]["result"]
        return result


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("prometheus") is None, reason="not on PATH: prometheus")
def test_prometheus_finds_something_for_each_query(busy: Server, tmp_path: Path) -> None:
    prometheus = Prometheus(tmp_path, busy.monitor)
    try:
        enough = "count_over_time(twinwire_info[1m])"
        eventually(lambda: [int(r["value"][1]) >= 3 for r in prometheus.ask(enough)], [True])
        empty = []
        for query in [query for dashboard in DASHBOARDS for query in queries_of(dashboard)]:
            expression = re.sub(r"\$\w+", ".*", plain(query.expression))
            if not prometheus.ask(expression):
                empty.append(query.place)
        # nothing was consumed at a rate, so there is no time to tell
        assert empty == ["twinwire-nsq.json: Depth in time at the present rate"]
        firing = request(prometheus.address, "GET", "/api/v1/rules").json["data"]["groups"]
        assert {r["health"] for group in firing for r in group["rules"]} <= {"ok", "unknown"}
    finally:
        prometheus.process.end(signal.SIGTERM)
