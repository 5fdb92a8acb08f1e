"""The line about what a start found in the data folder."""

from __future__ import annotations

import re

import pytest
from conftest import StartBroker
from support.clients.http import request

pytestmark = pytest.mark.only_ours


def opened(log: str) -> list[tuple[str, ...]]:
    return re.findall(r"data folder is open logs=(\d+) records=(\d+) .*last_stop=(\w+)", log)


def test_what_a_start_found(start_broker: StartBroker, uniq: str) -> None:
    broker = start_broker({"storage": {"sync": "always"}})
    assert opened(broker.log_since()) == []
    for topic in (f"{uniq}-a", f"{uniq}-b"):
        request(broker.nsq_http, "POST", "/topic/create", topic=topic)
        request(broker.nsq_http, "POST", "/channel/create", topic=topic, channel="c")
    for _ in range(3):
        assert request(broker.nsq_http, "POST", "/pub", b"x", topic=f"{uniq}-a").status == 200
    broker.restart()
    assert opened(broker.log_since()) == [("2", "3", "clean")]
    broker.kill()
    broker.start()
    assert opened(broker.log_since()) == [("2", "3", "unclean")]
