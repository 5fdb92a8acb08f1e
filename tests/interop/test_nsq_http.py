"""NSQ's HTTP API: publishing, and the shapes that tools read."""

from __future__ import annotations

import struct
import time
from typing import Any

import pytest
from support import Server, nsq_peer
from support.clients.http import Answer, nsq_channel, nsq_topic, request
from support.clients.peer import sized

TEXT = "text/plain; charset=utf-8"
JSON = "application/json; charset=utf-8"
NUMBER = (int, float)
CHANNEL: dict[str, Any] = {
    "channel_name": str,
    "depth": int,
    "backend_depth": int,
    "in_flight_count": int,
    "deferred_count": int,
    "message_count": int,
    "requeue_count": int,
    "timeout_count": int,
    "client_count": int,
    "clients": list,
    "paused": bool,
    "e2e_processing_latency": dict,
}
CLIENT: dict[str, Any] = {
    "client_id": str,
    "hostname": str,
    "version": str,
    "remote_address": str,
    "state": int,
    "ready_count": int,
    "in_flight_count": int,
    "message_count": int,
    "finish_count": int,
    "requeue_count": int,
    "connect_ts": int,
    "sample_rate": int,
    "deflate": bool,
    "snappy": bool,
    "user_agent": str,
    "topology_zone": str,
    "topology_region": str,
    "tls": bool,
    "tls_cipher_suite": str,
    "tls_version": str,
    "tls_negotiated_protocol": str,
    "tls_negotiated_protocol_is_mutual": bool,
}
TOPIC: dict[str, Any] = {
    "topic_name": str,
    "channels": list,
    "depth": int,
    "backend_depth": int,
    "message_count": int,
    "message_bytes": int,
    "paused": bool,
    "e2e_processing_latency": dict,
}
INFO: dict[str, Any] = {
    "version": str,
    "broadcast_address": str,
    "hostname": str,
    "http_port": int,
    "tcp_port": int,
    "start_time": int,
    "max_heartbeat_interval": int,
    "max_output_buffer_size": int,
    "max_output_buffer_timeout": int,
    "max_deflate_level": int,
    "topology_zone": str,
    "topology_region": str,
}


def _has_shape(value: dict[str, Any], shape: dict[str, Any]) -> None:
    for key, kind in shape.items():
        assert key in value, f"{key} is missing in {sorted(value)}"
        assert type(value[key]) is kind, f"{key}: {value[key]!r}"


def _refused(answer: Answer, status: int, code: str) -> None:
    assert (answer.status, answer.json) == (status, {"message": code})
    assert answer.headers["content-type"] == JSON
    assert answer.headers["x-nsq-content-type"] == "nsq; version=1.0"


def _bodies(server: Server, topic: str, count: int) -> list[bytes]:
    """The topic's first messages, finished."""
    with nsq_peer(server.nsq) as peer:
        peer.command(f"SUB {topic} ch")
        peer.expect_frame("response", b"OK")
        peer.command(f"RDY {count}")
        frames = [peer.read_frame() for _ in range(count)]
        for frame in frames:
            peer.command(f"FIN {frame.message_id.decode()}")
    return [frame.body for frame in frames]


def test_ping(broker: Server) -> None:
    answer = request(broker.nsq_http, "GET", "/ping")
    assert (answer.status, answer.body) == (200, b"OK")
    assert answer.headers["content-type"] == TEXT


def test_info(broker: Server) -> None:
    answer = request(broker.nsq_http, "GET", "/info")
    assert answer.status == 200
    assert answer.headers["content-type"] == JSON
    assert answer.headers["x-nsq-content-type"] == "nsq; version=1.0"
    info = answer.json
    _has_shape(info, INFO)
    assert info["version"] == "1.3.0"
    assert (info["tcp_port"], info["http_port"]) == (broker.nsq.port, broker.nsq_http.port)
    assert info["max_heartbeat_interval"] == 60 * 10**9
    assert info["max_output_buffer_timeout"] == 30 * 10**9
    assert abs(info["start_time"] - time.time()) < 3600


def test_pub(broker: Server, uniq: str) -> None:
    body = b"any \x00\r\n\xff bytes"
    answer = request(broker.nsq_http, "POST", "/pub", body, topic=uniq)
    assert (answer.status, answer.body) == (200, b"OK")
    assert answer.headers["content-type"] == TEXT
    assert answer.headers["x-nsq-content-type"] == "nsq; version=1.0"
    assert _bodies(broker, uniq, 1) == [body]


def test_pub_deferred(broker: Server, uniq: str) -> None:
    with nsq_peer(broker.nsq) as peer:
        peer.command(f"SUB {uniq} ch")
        peer.expect_frame("response", b"OK")
        peer.command("RDY 2")
        started = time.monotonic()
        for defer, body in ((500, b"later"), (0, b"now")):
            answer = request(broker.nsq_http, "POST", "/pub", body, topic=uniq, defer=defer)
            assert answer.body == b"OK"
        assert peer.read_frame().body == b"now"
        assert peer.read_frame().body == b"later"
        assert time.monotonic() - started > 0.49


def test_pub_refusals(broker: Server, uniq: str) -> None:
    def pub(body: bytes = b"x", **query: object) -> Answer:
        return request(broker.nsq_http, "POST", "/pub", body, **query)

    _refused(pub(b"x" * ((1 << 20) + 1), topic=uniq), 413, "MSG_TOO_BIG")
    _refused(pub(b"", topic=uniq), 400, "MSG_EMPTY")
    _refused(pub(), 400, "MISSING_ARG_TOPIC")
    _refused(pub(topic="no*"), 400, "INVALID_TOPIC")
    _refused(pub(topic=""), 400, "INVALID_TOPIC")
    _refused(pub(b""), 400, "MSG_EMPTY")
    for defer in ("soon", "-1", "3600001", "1.5", ""):
        _refused(pub(topic=uniq, defer=defer), 400, "INVALID_DEFER")
    assert pub(b"x" * (1 << 20), topic=uniq).status == 200


def test_mpub_lines(broker: Server, uniq: str) -> None:
    answer = request(broker.nsq_http, "POST", "/mpub", b"one\n\ntwo\r\nthree", topic=uniq)
    assert (answer.status, answer.body) == (200, b"OK")
    assert _bodies(broker, uniq, 3) == [b"one", b"two\r", b"three"]
    assert request(broker.nsq_http, "POST", "/mpub", b"", topic=uniq).body == b"OK"


@pytest.mark.parametrize("flag", ["true", "1", "", "yes"])
def test_trap_21_mpub_binary(broker: Server, uniq: str, flag: str) -> None:
    body = struct.pack(">i", 2) + sized(b"one\n") + sized(b"\x00two") + b"trailing"
    answer = request(broker.nsq_http, "POST", "/mpub", body, topic=uniq, binary=flag)
    assert (answer.status, answer.body) == (200, b"OK")
    assert _bodies(broker, uniq, 2) == [b"one\n", b"\x00two"]


@pytest.mark.parametrize("flag", ["false", "0"])
def test_mpub_not_binary(broker: Server, uniq: str, flag: str) -> None:
    request(broker.nsq_http, "POST", "/mpub", b"one\ntwo", topic=uniq, binary=flag)
    assert _bodies(broker, uniq, 2) == [b"one", b"two"]


def test_mpub_refusals(broker: Server, uniq: str) -> None:
    def mpub(body: bytes, **query: object) -> Answer:
        return request(broker.nsq_http, "POST", "/mpub", body, **query)

    _refused(mpub(b"x"), 400, "MISSING_ARG_TOPIC")
    _refused(mpub(b"x", topic="no*"), 400, "INVALID_TOPIC")
    _refused(mpub(b"x" * ((1 << 20) + 1), topic=uniq), 413, "MSG_TOO_BIG")
    _refused(mpub(b"x" * ((5 << 20) + 1), topic=uniq), 413, "BODY_TOO_BIG")
    _refused(mpub(struct.pack(">i", 0), topic=uniq, binary="true"), 413, "BAD_BODY")
    _refused(mpub(b"\x00", topic=uniq, binary="true"), 413, "BAD_BODY")
    short = struct.pack(">i", 2) + sized(b"one") + struct.pack(">i", 9) + b"half"
    _refused(mpub(short, topic=uniq, binary="true"), 413, "BAD_MESSAGE")


def test_unknown_paths_and_methods(broker: Server) -> None:
    _refused(request(broker.nsq_http, "GET", "/nowhere"), 404, "NOT_FOUND")
    answer = request(broker.nsq_http, "GET", "/pub")
    _refused(answer, 405, "METHOD_NOT_ALLOWED")
    assert "POST" in answer.headers["allow"]


def test_stats_shape(broker: Server, uniq: str) -> None:
    request(broker.nsq_http, "POST", "/mpub", b"one\ntwo\nthree", topic=uniq)
    with nsq_peer(broker.nsq, {"client_id": "me", "hostname": "here"}) as peer:
        peer.command(f"SUB {uniq} ch")
        peer.expect_frame("response", b"OK")
        peer.command("RDY 1")
        first = peer.read_frame()
        peer.command(f"FIN {first.message_id.decode()}")
        peer.read_frame()
        answer = request(broker.nsq_http, "GET", "/stats", format="json", topic=uniq)
        stats = answer.json
    assert answer.headers["content-type"] == JSON
    assert (stats["version"], stats["health"], type(stats["start_time"])) == ("1.3.0", "OK", int)
    assert type(stats["memory"]) is dict
    topic = stats["topics"][0]
    _has_shape(topic, TOPIC)
    assert (topic["topic_name"], topic["message_count"], topic["message_bytes"]) == (uniq, 3, 11)
    channel = topic["channels"][0]
    _has_shape(channel, CHANNEL)
    assert (channel["channel_name"], channel["depth"], channel["in_flight_count"]) == ("ch", 1, 1)
    assert (channel["message_count"], channel["client_count"]) == (3, 1)
    client = channel["clients"][0]
    _has_shape(client, CLIENT)
    assert (client["client_id"], client["hostname"], client["version"]) == ("me", "here", "V2")
    assert (client["message_count"], client["finish_count"]) == (2, 1)


def test_stats_counts_what_is_deferred(broker: Server, uniq: str) -> None:
    with nsq_peer(broker.nsq) as peer:
        peer.command(f"SUB {uniq} ch")
        peer.expect_frame("response", b"OK")
        peer.command("RDY 1")
        peer.command(f"PUB {uniq}", b"x")
        frames = [peer.read_frame(), peer.read_frame()]
        message = next(f for f in frames if f.kind == "message")
        peer.command(f"REQ {message.message_id.decode()} 60000")
        peer.command("CLS")  # its answer says that REQ is done
        peer.expect_frame("response", b"CLOSE_WAIT")
        channel = nsq_channel(broker.nsq_http, uniq, "ch")
    counts = [channel[k] for k in ("depth", "in_flight_count", "deferred_count", "requeue_count")]
    assert counts == [0, 0, 1, 1]


def test_trap_23_stats_null_or_empty(broker: Server, uniq: str) -> None:
    def stats(**query: object) -> Any:
        return request(broker.nsq_http, "GET", "/stats", format="json", **query).json

    assert stats(topic=f"{uniq}.none")["topics"] is None
    request(broker.nsq_http, "POST", "/pub", b"x", topic=uniq)
    _bodies(broker, uniq, 1)
    assert stats(topic=uniq, channel="none")["topics"] == []
    entry = stats(topic=uniq, include_clients="false")
    assert entry["topics"][0]["channels"][0]["clients"] is None
    assert entry["producers"] is None
    assert "memory" not in stats(topic=uniq, include_mem="false")


def test_stats_text(broker: Server, uniq: str) -> None:
    request(broker.nsq_http, "POST", "/pub", b"x", topic=uniq)
    _bodies(broker, uniq, 1)
    answer = request(broker.nsq_http, "GET", "/stats", topic=uniq)
    assert answer.headers["content-type"] == TEXT
    text = answer.body.decode()
    assert text.startswith("nsqd v1.3.0 (built w/")
    assert "Health: OK" in text
    assert f"[{uniq}" in text
    assert "[ch" in text


def test_a_topic_without_channel_keeps_its_backlog(broker: Server, uniq: str) -> None:
    request(broker.nsq_http, "POST", "/mpub", b"one\ntwo", topic=uniq)
    topic = nsq_topic(broker.nsq_http, uniq)
    assert (topic["depth"], topic["channels"]) == (2, [])
