"""kill -9 around rewinds and changes of settings: what was answered is so after a restart."""

from __future__ import annotations

import contextlib
import random
import threading
from http.client import HTTPException
from typing import TYPE_CHECKING

import pytest
from support.clients.http import request

if TYPE_CHECKING:
    from conftest import StartBroker
    from support import Server

pytestmark = pytest.mark.only_ours
ROUNDS = 5
MESSAGES = 3000
KEPT = {"keep": "1d"}


def place(server: Server, topic: str) -> int:
    """The first message that waits."""
    page = request(
        server.nsq_http, "GET", "/v1/channel/messages", topic=topic, channel="ch", limit=1
    ).json
    found = page["messages"]
    return int(found[0]["seq"]) if found else MESSAGES + 1


def filled(server: Server, topic: str) -> None:
    request(server.nsq_http, "POST", "/topic/create", topic=topic)
    request(server.nsq_http, "POST", "/channel/create", topic=topic, channel="ch")
    body = b"\n".join(b"%d" % number + b"." * 50 for number in range(MESSAGES))
    assert request(server.nsq_http, "POST", "/mpub", body, topic=topic).body == b"OK"


@pytest.mark.parametrize("sync", ["1s", "always"])
def test_rewinds_and_settings_survive(start_broker: StartBroker, uniq: str, sync: str) -> None:
    rng = random.Random(11)
    server = start_broker({"storage": {"sync": sync, "segment_size": "64KiB"}})
    filled(server, uniq)
    answer = request(server.nsq_http, "PUT", "/v1/topic/settings", b'{"keep": "1d"}', topic=uniq)
    assert answer.json["set"] == KEPT
    for _ in range(ROUNDS):
        seq = rng.choice([1, MESSAGES + 1, rng.randrange(1, MESSAGES)])
        answer = request(
            server.nsq_http, "POST", "/v1/channel/rewind", topic=uniq, channel="ch", seq=seq
        )
        assert answer.json["seq"] == seq
        server.kill()
        server.start()
        assert place(server, uniq) == seq
        shown = request(server.nsq_http, "GET", "/v1/topic/settings", topic=uniq).json
        assert shown["set"] == KEPT
    assert server.stop() == 0


class Asker(threading.Thread):
    """Rewinds again and again until the server is gone."""

    def __init__(self, server: Server, topic: str, rng: random.Random) -> None:
        super().__init__()
        self.address, self.topic, self.rng = server.nsq_http, topic, rng
        self.answered = threading.Event()
        self.asked: list[int] = []

    def run(self) -> None:
        with contextlib.suppress(OSError, HTTPException):
            while True:
                self.asked.append(self.rng.randrange(1, MESSAGES))
                query = {"topic": self.topic, "channel": "ch", "seq": self.asked[-1]}
                request(self.address, "POST", "/v1/channel/rewind", **query)
                self.answered.set()


def test_a_rewind_that_was_not_answered_is_whole_or_not_at_all(
    start_broker: StartBroker, uniq: str
) -> None:
    rng = random.Random(12)
    server = start_broker({"storage": {"segment_size": "64KiB"}})
    filled(server, uniq)
    request(server.nsq_http, "PUT", "/v1/topic/settings", b'{"keep": "1d"}', topic=uniq)
    for _ in range(ROUNDS):
        asker = Asker(server, uniq, rng)
        asker.start()
        assert asker.answered.wait(20)
        server.kill()
        asker.join()
        server.start()
        assert place(server, uniq) in asker.asked[-2:]
    assert server.stop() == 0
