"""A broker with a log that cannot be opened: it starts, says so everywhere, and serves the rest."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from support.clients.http import nsq_topic, request
from support.clients.peer import nats_peer, nsq_peer
from support.stan.client import StanClient
from support.stan.wire import FIRST

from broker.engine.log.files import crc_of

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import StartBroker
    from support import Server

pytestmark = pytest.mark.only_ours

STAN: dict[str, dict[str, object]] = {"stan": {"enabled": True}}


def metadata(server: Server, topic: str) -> Path:
    return server.data / "logs" / topic / "meta.json"


def publish(server: Server, topic: str, body: bytes = b"x") -> int:
    return request(server.nsq_http, "POST", "/pub", body, topic=topic).status


def make_foreign(path: Path) -> bytes:
    """Let the metadata be of a version to come; what they were."""
    before = path.read_bytes()
    page = {**json.loads(before), "version": 99}
    del page["crc"]
    path.write_text(json.dumps({**page, "crc": crc_of(page)}))
    return before


def test_one_log_that_cannot_be_opened(start_broker: StartBroker) -> None:
    server = start_broker()
    assert publish(server, "bad") == publish(server, "good") == 200
    server.stop()
    before = make_foreign(metadata(server, "bad"))
    server.start()
    health = request(server.monitor, "GET", "/healthz")
    assert health.status == 503
    assert "log bad: quarantined: " in health.json["error"]
    assert "metadata version 99" in health.json["error"]
    ping = request(server.nsq_http, "GET", "/ping")
    assert ping.status == 500
    assert ping.body.startswith(b"NOK - log bad: quarantined")
    stats = request(server.nsq_http, "GET", "/stats", format="json").json
    assert stats["health"].startswith("NOK - log bad")
    metrics = request(server.monitor, "GET", "/metrics").body.decode()
    assert "twinwire_quarantined_logs 1.0" in metrics
    assert "twinwire_storage_problems 1.0" in metrics
    # nobody may use the name, and nobody else notices
    with nsq_peer(server.nsq) as peer:
        peer.command("PUB bad", b"refused")
        assert peer.read_frame().payload.startswith(b"E_PUB_FAILED")
    with nsq_peer(server.nsq) as peer:
        peer.command("SUB bad ch")
        answer = peer.read_frame().payload
        assert answer.startswith(b"E_SUB_FAILED")
        assert b"quarantined" in answer
    with nsq_peer(server.nsq) as peer:
        peer.command("PUB good", b"more")
        assert peer.read_frame().payload == b"OK"
    assert publish(server, "bad") >= 500
    assert nsq_topic(server.nsq_http, "good")["depth"] == 2
    with nats_peer(server.nats) as peer:
        peer.send(b"PUB bad 1\r\nx\r\n")
        peer.ping()
    refused = request(server.bulk, "GET", "/bulk/v1/topics", subscribe="bad")
    assert refused.status == 503
    assert b"quarantined" in refused.body
    place = {"start": 1, "end": 2}
    assert request(server.bulk, "GET", "/bulk/v1/range/bad", **place).status == 503
    assert request(server.bulk, "GET", "/bulk/v1/topics", subscribe="good").status == 200
    # an operator sees it, mends it and opens it
    page = request(server.nsq_http, "GET", "/v1/health").json
    (problem,) = page["problems"]
    assert (problem["kind"], problem["name"]) == ("log", "bad")
    assert page["quarantined"] == {"bad": str(metadata(server, "bad").parent)}
    still = request(server.nsq_http, "POST", "/v1/topic/retry", topic="bad")
    assert still.status == 503
    assert b"metadata version 99" in still.body
    metadata(server, "bad").write_bytes(before)
    opened = request(server.nsq_http, "POST", "/v1/topic/retry", topic="bad")
    assert opened.json == {"opened": True}
    assert nsq_topic(server.nsq_http, "bad")["depth"] == 1
    assert publish(server, "bad") == 200
    assert request(server.monitor, "GET", "/healthz").status == 200
    assert request(server.nsq_http, "POST", "/v1/topic/retry", topic="bad").status == 404


def test_it_is_put_aside(start_broker: StartBroker) -> None:
    server = start_broker()
    assert publish(server, "bad") == 200
    server.stop()
    make_foreign(metadata(server, "bad"))
    server.start()
    assert request(server.nsq_http, "POST", "/v1/topic/put_aside", topic="good").status == 404
    answer = request(server.nsq_http, "POST", "/v1/topic/put_aside", topic="bad").json
    (aside,) = (server.data / "logs").glob(".unreadable-bad-*")
    assert answer == {"path": str(aside)}
    assert request(server.monitor, "GET", "/healthz").status == 200
    assert publish(server, "bad") == 200
    server.restart()
    assert nsq_topic(server.nsq_http, "bad")["depth"] == 1
    assert aside.is_dir()


def test_a_power_cut_before_the_first_sync_of_a_topic(start_broker: StartBroker) -> None:
    server = start_broker({"storage": {"sync": "1h"}})
    assert publish(server, "old") == 200
    server.stop()
    server.start()
    assert publish(server, "new") == 200
    server.kill()
    for file in (server.data / "logs" / "new").iterdir():
        file.write_bytes(b"")
    server.start()
    assert request(server.monitor, "GET", "/healthz").status == 200
    assert nsq_topic(server.nsq_http, "old")["depth"] == 1
    assert nsq_topic(server.nsq_http, "new") is None
    assert publish(server, "new") == 200
    server.restart()
    assert nsq_topic(server.nsq_http, "new")["depth"] == 1


def test_a_durable_of_a_quarantined_channel_is_kept(start_broker: StartBroker) -> None:
    server = start_broker(STAN)
    with StanClient(server, "me") as client:
        durable = client.subscribe("bad", start=FIRST, durable="d")
        assert client.publish("bad", b"1") == client.publish("good", b"1") == ""
        assert durable.next(ack=True)["data"] == b"1"
        client.flush()
    server.stop()
    before = make_foreign(metadata(server, "bad"))
    server.start()
    with StanClient(server, "me") as client:
        assert client.publish("bad", b"refused")
        assert client.subscribe("bad", start=FIRST, durable="d").error
        assert client.publish("good", b"2") == ""
    metadata(server, "bad").write_bytes(before)
    assert request(server.nsq_http, "POST", "/v1/topic/retry", topic="bad").json["opened"]
    with StanClient(server, "me") as client:
        assert client.publish("bad", b"2") == ""
        durable = client.subscribe("bad", start=FIRST, durable="d")
        assert durable.next()["data"] == b"2"  # the first one was acknowledged
