"""kill -9 of a broker while a consumer of JetStream acknowledges: a confirmed ack is kept, and no
message without one is lost.

The reader asks for a confirmation of each ack, and does not acknowledge every seventh message.
"""

from __future__ import annotations

import json
import random
import threading
from typing import TYPE_CHECKING, Any

import pytest
from support.clients.nats import NatsClient
from support.clients.peer import PeerError

if TYPE_CHECKING:
    from conftest import StartBroker
    from support import Server

pytestmark = pytest.mark.only_ours

ON: dict[str, Any] = {"storage": {"segment_size": "64KiB"}}
MESSAGES = 2000
ROUNDS = 5
BATCH = 40
KEPT_BACK = 7
ROUND_MAX = MESSAGES // ROUNDS - BATCH  # after so many no more are fetched in a round
LONG = 600 * 10**9  # ns; nothing is delivered again because of it
SHORT = 100 * 10**6


def api(client: NatsClient, verb: str, body: object) -> dict[str, Any]:
    """Ask the API on a connection that receives nothing else."""
    client.pub(f"$JS.API.{verb}", json.dumps(body).encode(), "_INBOX.api")
    answer: dict[str, Any] = json.loads(client.message().data)
    assert "error" not in answer, answer
    return answer


def consumer(ack_wait: int) -> dict[str, Any]:
    config = {"durable_name": "C", "ack_policy": "explicit", "ack_wait": ack_wait}
    return {"stream_name": "S", "config": {**config, "max_ack_pending": -1}}


def seq_of(reply: str) -> int:
    return int(reply.split(".")[5])


class Reader(threading.Thread):
    """Fetches and acknowledges until the server dies."""

    def __init__(self, server: Server, enough: int) -> None:
        super().__init__(daemon=True)
        self.server = server
        self.enough = enough
        self.delivered: list[int] = []
        self.acked: set[int] = set()
        self.confirmed: set[int] = set()
        self.well_under_way = threading.Event()

    def run(self) -> None:
        try:
            client = NatsClient(self.server.nats, no_responders=True)
            client.sub("_INBOX.m")
            client.sub("_INBOX.c.*")
            left = 0
            while True:
                if left == 0 and len(self.delivered) < ROUND_MAX:
                    left = BATCH
                    request = json.dumps({"batch": BATCH}).encode()
                    client.pub("$JS.API.CONSUMER.MSG.NEXT.S.C", request, "_INBOX.m")
                message = client.message()
                if message.subject.startswith("_INBOX.c."):
                    self.confirmed.add(int(message.subject.rpartition(".")[2]))
                    if len(self.confirmed) == self.enough:
                        self.well_under_way.set()
                    continue
                if not message.reply:
                    left = 0  # a status: the consumer was not there yet
                    continue
                left -= 1
                seq = seq_of(message.reply)
                self.delivered.append(seq)
                if seq % KEPT_BACK:
                    self.acked.add(seq)
                    client.pub(message.reply, b"+ACK", f"_INBOX.c.{seq}")
        except (PeerError, OSError):
            pass


def rest(server: Server) -> set[int]:
    """What is still delivered, acknowledging each message.

    On a busy machine an ack may come later than SHORT after the delivery: then the message comes
    again, but not after the confirmation of its ack.
    """
    with NatsClient(server.nats) as client:
        client.sub("_INBOX.api")
        api(client, "CONSUMER.DURABLE.CREATE.S.C", consumer(SHORT))
    got: set[int] = set()
    confirmed: set[int] = set()
    with NatsClient(server.nats) as client:
        client.sub("_INBOX.m")
        client.sub("_INBOX.c.*")
        while True:
            request = json.dumps({"batch": 500, "expires": 10**9}).encode()
            client.pub("$JS.API.CONSUMER.MSG.NEXT.S.C", request, "_INBOX.m")
            count = 0
            while message := client.message():
                if message.subject.startswith("_INBOX.c."):
                    confirmed.add(int(message.subject.rpartition(".")[2]))
                    continue
                if not message.reply:
                    break  # the status that ends the request
                seq = seq_of(message.reply)
                assert seq not in confirmed, "delivered again after its ack"
                got.add(seq)
                client.pub(message.reply, b"+ACK", f"_INBOX.c.{seq}")
                count += 1
                if count == 500:
                    break
            if count == 0:
                return got


@pytest.mark.parametrize("retention", ["limits", "workqueue"])
def test_confirmed_acks_survive_kills(start_broker: StartBroker, retention: str) -> None:
    dice = random.Random(retention)
    server = start_broker(ON)
    with NatsClient(server.nats) as client:
        client.sub("_INBOX.api")
        api(client, "STREAM.CREATE.S", {"name": "S", "subjects": ["s"], "retention": retention})
        api(client, "CONSUMER.DURABLE.CREATE.S.C", consumer(LONG))
        for _ in range(MESSAGES - 1):
            client.pub("s", b"x")
        client.pub("s", b"x", "_INBOX.api")
        assert json.loads(client.message().data)["seq"] == MESSAGES
    acked: set[int] = set()
    confirmed: set[int] = set()
    for _ in range(ROUNDS):
        reader = Reader(server, dice.randrange(30, 200))
        reader.start()
        assert reader.well_under_way.wait(30)
        server.kill()
        reader.join(30)
        assert not reader.is_alive()
        assert not confirmed.intersection(reader.delivered)
        acked |= reader.acked
        confirmed |= reader.confirmed
        server.start()
    got = rest(server)
    assert not confirmed.intersection(got), "a confirmed ack came back"
    assert set(range(1, MESSAGES + 1)) - acked <= got, "a message without an ack is lost"
