"""A log that falls behind its disk: publishers are held back, and nothing is dropped."""

from __future__ import annotations

import urllib.request
from typing import TYPE_CHECKING

import orjson
import pytest
from support.clients.peer import RawPeer, sized

if TYPE_CHECKING:
    from conftest import StartBroker
    from support import Server

pytestmark = pytest.mark.only_ours

# No more than this may wait for the disk: one read of a connection brings far more.
SMALL: dict[str, dict[str, object]] = {
    "storage": {"append_buffer_max": "16KiB", "segment_size": "1MiB"},
    "nats": {"max_payload": "4KiB"},
    "nsq": {"max_msg_size": "4KiB", "max_body_size": "8KiB"},
}
MESSAGES = 20_000
BODY = b"x" * 500


def depth(server: Server, topic: str) -> int:
    """What waits in the topic and in its channel."""
    url = f"http://{server.nsq_http}/stats?format=json&topic={topic}"
    with urllib.request.urlopen(url) as answer:
        (page,) = orjson.loads(answer.read())["topics"]
    return int(page["depth"] + sum(channel["depth"] for channel in page["channels"]))


def test_nats_publishers_wait_for_the_disk(start_broker: StartBroker, uniq: str) -> None:
    server = start_broker(SMALL)
    with RawPeer(server.nsq) as nsq, RawPeer(server.nats) as nats:
        nsq.send(b"  V2SUB %s ch\n" % uniq.encode())
        nsq.read_frame()
        nats.read_until(b"\r\n")
        nats.send(b'CONNECT {"verbose":false}\r\n')
        block = (b"PUB %s %d\r\n%s\r\n" % (uniq.encode(), len(BODY), BODY)) * 1000
        for _ in range(MESSAGES // 1000):
            nats.send(block)
        nats.send(b"PING\r\n")
        nats.read_until(b"PONG\r\n")
        # the answer to one more publish comes when everything before it is in the log
        nsq.send(b"PUB %s\n" % uniq.encode() + sized(b"last"))
        assert nsq.read_frame().payload == b"OK"
    assert depth(server, uniq) == MESSAGES + 1


def test_nsq_publishers_wait_for_the_disk(start_broker: StartBroker, uniq: str) -> None:
    server = start_broker(SMALL)
    with RawPeer(server.nsq) as nsq:
        block = (b"PUB %s\n" % uniq.encode() + sized(BODY)) * 500
        nsq.send(b"  V2")
        for _ in range(MESSAGES // 500):
            nsq.send(block)
            for _ in range(500):
                assert nsq.read_frame().payload == b"OK"
    assert depth(server, uniq) == MESSAGES
