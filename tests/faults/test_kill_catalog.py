"""kill -9 after starts that believed the catalog of the stop before: nothing that was said later is
forgotten, and none of it is believed a second time."""

from __future__ import annotations

import random
import socket
import struct
from pathlib import Path

import pytest
from support import Broker
from support.clients.http import request

from broker.engine import catalog

pytestmark = pytest.mark.only_ours

TOPICS = [f"t{number}" for number in range(catalog.LOGS_MIN + 5)]
ROUNDS = 2
TIMEOUT_S = 30
OK = struct.pack(">ii", 6, 0) + b"OK"


def pub(topic: str, body: bytes) -> bytes:
    return b"PUB %s\n" % topic.encode() + struct.pack(">i", len(body)) + body


def test_stops_starts_and_kills_in_turn(tmp_path: Path) -> None:
    rng = random.Random(1)
    counts = dict.fromkeys(TOPICS, 0)
    broker = Broker(tmp_path / "server")
    file = broker.data / "logs" / catalog.FILE

    def publish(topics: list[str]) -> None:
        bodies = [b"x" * rng.randrange(1, 400) for _ in topics]
        with socket.create_connection(broker.nsq, timeout=TIMEOUT_S) as link:
            link.sendall(b"  V2" + b"".join(map(pub, topics, bodies)))
            answers = b""
            while len(answers) < len(topics) * len(OK):
                answers += link.recv(1 << 16)
        assert answers == OK * len(topics)
        for topic in topics:
            counts[topic] += 1

    def check() -> None:
        assert not file.exists()
        page = request(broker.nsq_http, "GET", "/stats", format="json").json
        assert {topic["topic_name"]: topic["depth"] for topic in page["topics"]} == counts

    try:
        broker.start()
        publish(TOPICS)
        for _ in range(ROUNDS):
            assert broker.stop() == 0
            assert file.exists()
            broker.start()
            check()
            publish(rng.sample(TOPICS, 20))
            broker.kill()
            broker.start()
            check()
            publish(rng.sample(TOPICS, 20))
    finally:
        broker.close()
