"""A whole server that is configured to send statsd and to keep latencies."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import pytest
from support import nsq_peer
from support.clients.http import nsq_channel, request

if TYPE_CHECKING:
    from conftest import StartBroker

pytestmark = pytest.mark.only_ours


def test_statsd_and_latency(start_broker: StartBroker) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver:
        receiver.bind(("127.0.0.1", 0))
        receiver.settimeout(20)
        settings = {
            "statsd_address": f"127.0.0.1:{receiver.getsockname()[1]}",
            "statsd_interval": "20ms",
            "statsd_udp_packet_size": 60_000,
            "broadcast_address": "10.0.0.1",
            "e2e_processing_latency_percentiles": [0.5, 1.0],
        }
        server = start_broker({"nsq": settings})
        with nsq_peer(server.nsq) as peer:
            peer.command("SUB t c")
            peer.expect_frame("response", b"OK")
            peer.command("RDY 1")
            assert request(server.nsq_http, "POST", "/pub", b"x", topic="t").body == b"OK"
            peer.command(f"FIN {peer.read_frame().message_id.decode()}")
            name = f"nsq.10_0_0_1_{server.nsq_http.port}.topic.t.channel.c"
            for _ in range(1000):  # until a round has seen the FIN
                lines = receiver.recv(65536).decode().splitlines()
                found = dict(line.split(":") for line in lines)
                if found.get(f"{name}.e2e_processing_latency_100", "0|g") != "0|g":
                    break
            assert found[f"{name}.clients"] == "1|g"
        latency = nsq_channel(server.nsq_http, "t", "c")["e2e_processing_latency"]
        assert latency["count"] == 1
        assert [p["quantile"] for p in latency["percentiles"]] == [1.0, 0.5]


def test_trap_22_codes_of_channel_create(start_broker: StartBroker) -> None:
    """The topic must be there, and its code is another than that of /topic/create."""
    server = start_broker({})
    for path, status, code in (
        ("/channel/create?topic=none&channel=c", 404, "TOPIC_NOT_FOUND"),
        ("/channel/create?topic=*&channel=c", 400, "INVALID_ARG_TOPIC"),
        ("/topic/create?topic=*", 400, "INVALID_TOPIC"),
    ):
        answer = request(server.nsq_http, "POST", path)
        assert (answer.status, answer.json) == (status, {"message": code})


def test_trap_10_and_17_defer(start_broker: StartBroker) -> None:
    """A bad `defer` still makes the topic; a good one outlives the server."""
    server = start_broker({})
    bad = request(server.nsq_http, "POST", "/pub", b"x", topic="made", defer="x")
    assert (bad.status, bad.json) == (400, {"message": "INVALID_DEFER"})
    names = [
        t["topic_name"]
        for t in request(server.nsq_http, "GET", "/stats?format=json").json["topics"]
    ]
    assert names == ["made"]
    assert request(server.nsq_http, "POST", "/channel/create?topic=made&channel=c").status == 200
    late = request(server.nsq_http, "POST", "/pub", b"x", topic="made", defer=3_000_000)
    assert late.body == b"OK"
    server.restart()
    channel = nsq_channel(server.nsq_http, "made", "c")
    assert (channel["deferred_count"], channel["depth"]) == (1, 0)
