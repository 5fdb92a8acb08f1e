"""Who changed or deleted something over HTTP is in the log, and publishing is not."""

from __future__ import annotations

import re

import pytest
from conftest import BrokerFor
from support.clients.bulk import BulkClient
from support.clients.http import request

pytestmark = pytest.mark.only_ours

CLIENT = r"\(127\.0\.0\.1:\d+\) \d[\d.]*(ns|µs|ms|s)"


def test_changes_of_topics_and_channels(broker_for: BrokerFor, uniq: str) -> None:
    broker = broker_for({})
    marks = broker.log_marks()
    names = {"topic": uniq, "channel": "c"}
    for path in ("topic/create", "channel/create", "pub", "channel/pause", "channel/empty"):
        request(broker.nsq_http, "POST", f"/{path}", b"m" if path == "pub" else b"", **names)
    request(broker.nsq_http, "PUT", "/v1/topic/settings", b'{"sync": "none"}', topic=uniq)
    request(broker.nsq_http, "GET", "/stats", topic=uniq)
    for path in ("channel/delete", "topic/delete", "topic/delete"):
        request(broker.nsq_http, "POST", f"/{path}", **names)
    log = broker.log_since(marks)
    both = f"topic={uniq}&channel=c"
    for line in (
        rf"TOPIC\({uniq}\): created",
        rf"200 POST /topic/create\?{both} {CLIENT}",
        rf"TOPIC\({uniq}\): new channel\(c\)",
        rf"200 POST /channel/empty\?{both} {CLIENT}",
        rf"200 PUT /v1/topic/settings\?topic={uniq} {CLIENT}",
        rf"TOPIC\({uniq}\): deleting channel c",
        rf"200 POST /channel/delete\?{both} {CLIENT}",
        rf"TOPIC\({uniq}\): deleting",
        rf"200 POST /topic/delete\?{both} {CLIENT}",
        rf"404 POST /topic/delete\?{both} {CLIENT}",
    ):
        assert re.search(rf" INFO .*{line}$", log, re.MULTILINE), (line, log)
    assert "/pub" not in log
    assert "/stats" not in log


def test_ephemeral_names_are_not_logged(broker_for: BrokerFor, uniq: str) -> None:
    broker = broker_for({})
    marks = broker.log_marks()
    request(broker.nsq_http, "POST", "/topic/create", topic=f"{uniq}#ephemeral")
    assert "TOPIC(" not in broker.log_since(marks)


def test_a_line_stays_one_line(broker_for: BrokerFor) -> None:
    broker = broker_for({})
    marks = broker.log_marks()
    request(broker.nsq_http, "POST", "/topic/delete", topic="a\nb INFO forged")
    (line,) = [line for line in broker.log_since(marks).splitlines() if "/topic/delete" in line]
    assert "forged" in line


def test_deleted_readers(broker_for: BrokerFor, uniq: str) -> None:
    broker = broker_for({})
    marks = broker.log_marks()
    with BulkClient(broker.bulk) as bulk:
        assert bulk.ask("PUT", f"readers/{uniq}", {"positions": {}}).status == 200
        assert bulk.ask("DELETE", f"readers/{uniq}").status == 200
    log = broker.log_since(marks)
    assert re.search(rf"reader is deleted reader={uniq} .*client=127\.0\.0\.1:\d+", log), log
