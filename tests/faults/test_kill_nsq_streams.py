"""kill -9 of a broker whose NSQ topic is a stream, again and again: what was answered is kept."""

from __future__ import annotations

import json
import random
import threading
from typing import TYPE_CHECKING, Any

import pytest
from support import nsq_peer
from support.clients.nats import NatsClient
from support.clients.peer import PeerError, RawPeer, sized

if TYPE_CHECKING:
    from conftest import StartBroker
    from support import Server

pytestmark = pytest.mark.only_ours

ON: dict[str, Any] = {"storage": {"segment_size": "64KiB"}}
TOPIC = "s.t"
STREAM = {"name": "S", "subjects": ["s.>"], "metadata": {"twinwire.nsq_topic": TOPIC}}
ROUNDS = 5
WINDOW = 64
MARK_EVERY = 20


def api(server: Server, verb: str, body: object) -> dict[str, Any]:
    client = NatsClient(server.nats)
    client.sub("_INBOX.api")
    client.pub(f"$JS.API.{verb}", json.dumps(body).encode() if body else b"", "_INBOX.api")
    answer: dict[str, Any] = json.loads(client.message().data)
    client.close()
    assert "error" not in answer, answer
    return answer


class Publisher(threading.Thread):
    """Publishes numbers with PUB and MPUB until the server dies."""

    def __init__(self, server: Server, first: int, enough: int) -> None:
        super().__init__(daemon=True)
        self.server = server
        self.sent = first
        self.enough = enough
        self.answered: list[int] = []
        self.well_under_way = threading.Event()

    def run(self) -> None:
        waiting: list[list[int]] = []
        try:
            with nsq_peer(self.server.nsq, {"heartbeat_interval": 60_000}) as peer:
                while True:
                    while len(waiting) < WINDOW:
                        waiting.append(self.send(peer))
                    peer.expect_frame("response", b"OK")
                    self.answered += waiting.pop(0)
                    if len(self.answered) >= self.enough:
                        self.well_under_way.set()
        except (PeerError, OSError):
            pass

    def send(self, peer: RawPeer) -> list[int]:
        count = random.choice((1, 1, 5))
        numbers = list(range(self.sent, self.sent + count))
        self.sent += count
        bodies = [b"%d" % number for number in numbers]
        if count == 1:
            peer.command(f"PUB {TOPIC}", bodies[0])
        else:
            peer.command(f"MPUB {TOPIC}", count.to_bytes(4, "big") + b"".join(map(sized, bodies)))
        return numbers


class Reader(threading.Thread):
    """Reads and finishes; a FIN counts once a later publish of the same connection is answered."""

    def __init__(self, server: Server) -> None:
        super().__init__(daemon=True)
        self.server = server
        self.read: list[int] = []
        self.finished: set[int] = set()

    def run(self) -> None:
        marks: list[int] = []  # how many were finished when each publish was sent
        try:
            with nsq_peer(self.server.nsq, {"heartbeat_interval": 60_000}) as peer:
                peer.command(f"SUB {TOPIC} ch")
                peer.expect_frame("response", b"OK")
                peer.command("RDY 50")
                while True:
                    frame = peer.read_frame()
                    if frame.kind == "response":
                        self.finished.update(self.read[: marks.pop(0)])
                        continue
                    number = int(frame.body)
                    self.read.append(number)
                    peer.command(f"FIN {frame.message_id.decode()}")
                    if len(self.read) % MARK_EVERY == 0:
                        peer.command("PUB other", b"x")
                        marks.append(len(self.read))
        except (PeerError, OSError):
            pass


def test_answered_publishes_and_finished_messages_survive(start_broker: StartBroker) -> None:
    server = start_broker(ON)
    api(server, "STREAM.CREATE.S", STREAM)
    answered: list[int] = []
    finished: set[int] = set()
    read: set[int] = set()
    first = 0
    for _ in range(ROUNDS):
        publisher, reader = Publisher(server, first, 500), Reader(server)
        publisher.start()
        reader.start()
        assert publisher.well_under_way.wait(60)
        server.kill()
        publisher.join(60)
        reader.join(60)
        assert not finished.intersection(reader.read)
        answered += publisher.answered
        finished |= reader.finished
        read.update(reader.read)
        first = publisher.sent
        server.start()
    assert finished
    stored = numbers_of(server)
    assert set(answered) <= set(stored)
    assert len(stored) == len(set(stored))
    rest = Reader(server)
    rest.start()
    left = set(answered) - read
    while left - set(rest.read):
        assert rest.is_alive()
        rest.join(0.05)
    assert not finished.intersection(rest.read)
    server.kill()
    rest.join(60)


def numbers_of(server: Server) -> list[int]:
    """The bodies of all messages of the stream on the subject, by a consumer of JetStream."""
    client = NatsClient(server.nats)
    client.sub("_INBOX.api")
    client.sub("_INBOX.m")
    config = {"name": "all", "deliver_subject": "_INBOX.m", "ack_policy": "none"}
    body = json.dumps({"stream_name": "S", "config": config}).encode()
    client.pub("$JS.API.CONSUMER.CREATE.S.all", body, "_INBOX.api")
    found: list[int] = []
    count = None
    while count is None or len(found) < count:
        message = client.message()
        if message.subject == "_INBOX.api":
            answer = json.loads(message.data)
            assert "error" not in answer, answer
            count = answer["num_pending"]
        else:
            found.append(int(message.data))
    client.close()
    return found
