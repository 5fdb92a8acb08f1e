"""kill -9 of a broker that serves JetStream, again and again: what was acknowledged is kept.

A publisher counts its PubAcks. Some messages come in atomic batches, and every message has an id.
"""

from __future__ import annotations

import base64
import json
import random
import shutil
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.clients.nats import NatsClient
from support.clients.peer import PeerError

if TYPE_CHECKING:
    from conftest import StartBroker
    from support import Server

pytestmark = pytest.mark.only_ours

ON: dict[str, Any] = {"storage": {"segment_size": "64KiB"}}
STREAM = {
    "name": "S",
    "subjects": ["s.>"],
    "allow_direct": True,
    "allow_atomic": True,
}
ROUNDS = 5
WINDOW = 64
BATCH = 5
BATCH_EVERY = 7


def headers(**values: object) -> bytes:
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in values.items())
    return f"NATS/1.0\r\n{lines}\r\n".encode()


def api(client: NatsClient, verb: str, body: object) -> dict[str, Any]:
    """Ask the API on a connection that receives nothing else."""
    client.pub(f"$JS.API.{verb}", json.dumps(body).encode(), "_INBOX.api")
    answer: dict[str, Any] = json.loads(client.message().data)
    assert "error" not in answer, answer
    return answer


class Publisher(threading.Thread):
    """Publishes numbers, one each or in batches, until the server dies."""

    def __init__(self, server: Server, first: int, enough: int) -> None:
        super().__init__(daemon=True)
        self.server = server
        self.sent = first
        self.enough = enough
        self.acked: dict[int, int] = {}  # number of a message, or the last one of a batch -> seq
        self.batches: dict[int, int] = {}  # number of the last message of a batch -> seq
        self.well_under_way = threading.Event()

    def run(self) -> None:
        try:
            client = NatsClient(self.server.nats)
            client.sub("_INBOX.p.*")
            waiting = 0
            while True:
                while waiting < WINDOW:
                    waiting += 1
                    self.send(client)
                message = client.message()
                answer = json.loads(message.data)
                assert "error" not in answer, answer
                number = int(message.subject.rpartition(".")[2])
                waiting -= 1
                self.acked[number] = answer["seq"]
                if "batch" in answer:
                    assert answer["count"] == BATCH
                    self.batches[number] = answer["seq"]
                if len(self.acked) == self.enough:
                    self.well_under_way.set()
        except (PeerError, OSError):
            pass

    def send(self, client: NatsClient) -> None:
        if self.sent % BATCH_EVERY:
            client.pub(
                f"s.{self.sent % 10}", b"%d" % self.sent, f"_INBOX.p.{self.sent}",
                headers(Nats_Msg_Id=self.sent),
            )  # fmt: skip
            self.sent += 1
            return
        batch = f"b{self.sent}"
        for place in range(1, BATCH + 1):
            last = place == BATCH
            more = {"Nats_Batch_Commit": 1} if last else {}
            client.pub(
                "s.batch", b"%d" % self.sent, f"_INBOX.p.{self.sent}" if last else "",
                headers(Nats_Msg_Id=self.sent, Nats_Batch_Id=batch, Nats_Batch_Sequence=place,
                        **more),
            )  # fmt: skip
            self.sent += 1


class Stored:
    """What the stream has."""

    def __init__(self, client: NatsClient) -> None:
        self.bodies: dict[int, bytes] = {}
        self.batches: dict[bytes, int] = {}  # id -> messages
        client.sub("_INBOX.get")
        seq = 1
        while seq:
            body = json.dumps({"seq": seq, "batch": 500}).encode()
            client.pub("$JS.API.DIRECT.GET.S", body, "_INBOX.get")
            seq = self.read(client)

    def read(self, client: NatsClient) -> int:
        """Read one answer; where the next one begins, 0 = at the end."""
        last = 0
        while True:
            message = client.message()
            if message.headers.startswith(b"NATS/1.0 404"):
                return 0
            if message.headers.startswith(b"NATS/1.0 204"):
                return last + 1
            lines = dict(
                line.split(b": ", 1) for line in message.headers.split(b"\r\n") if b": " in line
            )
            last = int(lines[b"Nats-Sequence"])
            self.bodies[last] = message.data
            if batch := lines.get(b"Nats-Batch-Id"):
                self.batches[batch] = self.batches.get(batch, 0) + 1


def test_acknowledged_messages_survive_kills(start_broker: StartBroker) -> None:
    dice = random.Random("jetstream")
    server = start_broker(ON)
    with NatsClient(server.nats) as client:
        client.sub("_INBOX.api")
        api(client, "STREAM.CREATE.S", STREAM)
    acked: dict[int, int] = {}
    batches: dict[int, int] = {}
    sent = 0
    for _ in range(ROUNDS):
        publisher = Publisher(server, sent, dice.randrange(50, 600))
        publisher.start()
        assert publisher.well_under_way.wait(30)
        server.kill()
        publisher.join(30)
        assert not publisher.is_alive()
        sent = publisher.sent
        acked |= publisher.acked
        batches |= publisher.batches
        server.start()
        with NatsClient(server.nats) as client:
            stored = Stored(client)
            kept = {
                number for number, seq in acked.items() if stored.bodies.get(seq) == b"%d" % number
            }
            assert kept == set(acked)
            assert set(stored.batches.values()) <= {BATCH}, "a part of a batch is stored"
            assert batches, "no batch was committed"
            client.sub("_INBOX.again")
            number = max(acked)
            client.pub("s.1", b"again", "_INBOX.again", headers(Nats_Msg_Id=number))
            answer = json.loads(client.message().data)
            assert answer == {"stream": "S", "seq": acked[number], "duplicate": True}


def test_mirrors_and_sources_survive_kills(start_broker: StartBroker) -> None:
    """Each message of the origin is in the mirror and in the stream that sources it, once."""
    dice = random.Random("origins")
    server = start_broker(ON)
    with NatsClient(server.nats) as client:
        client.sub("_INBOX.api")
        api(client, "STREAM.CREATE.S", STREAM)
        api(client, "STREAM.CREATE.M", {"name": "M", "mirror": {"name": "S"}})
        api(client, "STREAM.CREATE.C", {"name": "C", "sources": [{"name": "S"}]})
    sent = 0
    for _ in range(ROUNDS):
        publisher = Publisher(server, sent, dice.randrange(50, 600))
        publisher.start()
        assert publisher.well_under_way.wait(30)
        server.kill()
        publisher.join(30)
        assert not publisher.is_alive()
        sent = publisher.sent
        server.start()
        with NatsClient(server.nats) as client:
            client.sub("_INBOX.api")
            origin = api(client, "STREAM.INFO.S", {})["state"]
            for name in ("M", "C"):
                while (found := api(client, f"STREAM.INFO.{name}", {})["state"])["messages"] < (
                    origin["messages"]
                ):
                    pass
                assert found["messages"] == origin["messages"]
    with NatsClient(server.nats) as client:
        client.sub("_INBOX.api")
        # A kill while a log begins a new file may leave sequences before that file unused.
        state = api(client, "STREAM.INFO.C", {"deleted_details": True})["state"]
        unused = set(state.get("deleted", ()))
        copies = set()
        for seq in range(1, int(state["last_seq"]) + 1):
            if seq in unused:
                continue
            copied = api(client, "STREAM.MSG.GET.C", {"seq": seq})["message"]
            line = base64.b64decode(copied["hdrs"]).rpartition(b"Nats-Stream-Source: S ")[2]
            of = int(line.split(b" ")[0])
            assert of not in copies, "a message was copied twice"
            copies.add(of)
            first = api(client, "STREAM.MSG.GET.S", {"seq": of})["message"]
            same = api(client, "STREAM.MSG.GET.M", {"seq": of})["message"]
            assert copied["data"] == first["data"] == same["data"]
            assert same["time"] == first["time"]
        assert len(copies) == origin["messages"]


def ask(client: NatsClient, subject: str, body: object = b"") -> dict[str, Any]:
    """The answer to a request, an error too."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    client.pub(subject, data, "_INBOX.api")
    answer: dict[str, Any] = json.loads(client.message().data)
    return answer


def block_log(server: Server) -> Path:
    """Let the log of stream S have no place to go to; returns what is in the way."""
    (log,) = (server.data / "logs").glob("js.*S")
    log_id = json.loads((log / "meta.json").read_bytes())["log_id"]
    blocked = log.with_name(f".deleted-{log_id}")
    (blocked / "full").mkdir(parents=True)
    return blocked


def test_a_stream_made_after_a_delete_that_failed_stays(start_broker: StartBroker) -> None:
    server = start_broker(ON)
    with NatsClient(server.nats) as client:
        client.sub("_INBOX.api")
        api(client, "STREAM.CREATE.S", STREAM)
        assert ask(client, "s.a", b"old")["seq"] == 1
        blocked = block_log(server)
        assert "error" in ask(client, "$JS.API.STREAM.DELETE.S")
        assert "error" in ask(client, "$JS.API.STREAM.CREATE.S", STREAM)
        shutil.rmtree(blocked)
        assert api(client, "STREAM.CREATE.S", STREAM)["state"]["last_seq"] == 0
        assert ask(client, "s.a", b"new")["seq"] == 1
    server.kill()
    server.start()
    with NatsClient(server.nats) as client:
        client.sub("_INBOX.api")
        found = api(client, "STREAM.MSG.GET.S", {"seq": 1})["message"]["data"]
        assert base64.b64decode(found) == b"new"
