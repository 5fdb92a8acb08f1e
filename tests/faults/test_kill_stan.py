"""kill -9 of a broker that serves NATS Streaming, again and again: what was promised is kept.

A publisher counts its acknowledgements. A durable acknowledges some of what it gets, and now and
then sends a request behind its acks: when that is answered, every ack before it has been taken.
"""

from __future__ import annotations

import random
import shutil
import threading
from typing import TYPE_CHECKING, Any

import pytest
from support import Server
from support.clients.peer import PeerError
from support.stan import wire
from support.stan.client import StanClient
from support.stan.wire import FIRST

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import StartBroker

pytestmark = pytest.mark.only_ours

ON: dict[str, Any] = {"stan": {"enabled": True}, "storage": {"segment_size": "64KiB"}}
ROUNDS = 5
WINDOW = 64
MARK_EVERY = 25
KEPT_BACK = 7  # every seventh message is not acknowledged
PUBLISHER, READER = "publisher", "reader"


def client(server: Server, client_id: str) -> StanClient:
    """Again under the same id, in the place of whoever was killed with the server."""
    return StanClient(server, client_id)  # type: ignore[arg-type]


class Publisher(threading.Thread):
    """Publishes numbers until the server dies."""

    def __init__(self, server: Server, channel: str, first: int, enough: int) -> None:
        super().__init__(daemon=True)
        self.server, self.channel = server, channel
        self.sent = first
        self.enough = enough
        self.acked: list[int] = []
        self.well_under_way = threading.Event()

    def run(self) -> None:
        try:
            with client(self.server, PUBLISHER) as stan:
                waiting: list[tuple[int, str]] = []
                while True:
                    while len(waiting) < WINDOW:
                        waiting.append((self.sent, stan.send(self.channel, b"%d" % self.sent)))
                        self.sent += 1
                    number, inbox = waiting.pop(0)
                    assert stan.acked(inbox)["error"] == ""
                    self.acked.append(number)
                    if len(self.acked) == self.enough:
                        self.well_under_way.set()
        except (OSError, PeerError):
            return


class Reader(threading.Thread):
    """A durable that acknowledges most of what it gets until the server dies."""

    def __init__(self, server: Server, channel: str, book: Book) -> None:
        super().__init__(daemon=True)
        self.server, self.channel, self.book = server, channel, book
        self.problem: BaseException | None = None

    def run(self) -> None:
        try:
            with client(self.server, READER) as stan:
                durable = stan.subscribe(self.channel, durable="d", start=FIRST, ack_wait=60)
                assert durable.error == ""
                acked: list[int] = []
                while True:
                    message = durable.next()
                    self.book.got(message)
                    if message["sequence"] % KEPT_BACK == 0:
                        continue
                    durable.ack(message["sequence"])
                    acked.append(message["sequence"])
                    if len(acked) >= MARK_EVERY:
                        assert stan.ping() == b""  # what was sent before has been taken
                        self.book.confirm(acked)
                        acked.clear()
        except (OSError, PeerError):
            return
        except BaseException as problem:
            self.problem = problem


class Book:
    """What is known of the channel over all its lives."""

    def __init__(self) -> None:
        self.bodies: dict[int, bytes] = {}
        self.fenced: set[int] = set()
        self.again: dict[int, int] = {}  # how often each was redelivered when it came last
        self.confirmed: dict[int, int] = {}  # the same, as the broker has certainly stored it

    def got(self, message: dict[str, Any]) -> None:
        sequence = message["sequence"]
        assert sequence not in self.fenced, "an acknowledged message came back"
        before = self.bodies.setdefault(sequence, message["data"])
        assert before == message["data"], "a sequence has two contents"
        count = message["redelivery_count"]
        assert message["redelivered"] == (count > 0)
        # A delivery may reach the client before the file; an answer after it does not.
        assert count >= self.again.get(sequence, 0), "the count went back"
        assert count > self.confirmed.get(sequence, -1), "a stored delivery is forgotten"
        self.again[sequence] = count

    def confirm(self, acked: list[int]) -> None:
        """The broker has answered a request that was sent after these acks."""
        self.fenced.update(acked)
        self.confirmed.update(self.again)


def test_what_was_promised_survives(start_broker: StartBroker, uniq: str) -> None:
    rng = random.Random("stan")
    server = start_broker(ON)
    book = Book()
    acked: set[int] = set()
    sent = 0
    for _ in range(ROUNDS):
        publisher = Publisher(server, uniq, sent, rng.randrange(100, 600))
        reader = Reader(server, uniq, book)
        publisher.start()
        reader.start()
        assert publisher.well_under_way.wait(30)
        server.kill()
        publisher.join()
        reader.join()
        if reader.problem is not None:
            raise reader.problem
        acked.update(publisher.acked)
        sent = publisher.sent
        server.start()
    assert book.fenced, "no ack was ever confirmed: the test shows nothing"
    with client(server, "auditor") as stan:
        every = stan.subscribe(uniq, start=FIRST, max_in_flight=1 << 30)
        stan.publish(uniq, b"end")
        found: dict[int, int] = {}
        while (message := every.next())["data"] != b"end":
            sequence, body = message["sequence"], message["data"]
            found[sequence] = int(body)
            assert book.bodies.get(sequence, body) == body
    assert sorted(found) == list(range(1, len(found) + 1))
    assert acked <= set(found.values()), "an acknowledged message is gone"
    assert len(set(found.values())) == len(found)
    with client(server, READER) as stan:
        durable = stan.subscribe(uniq, durable="d", max_in_flight=1 << 30)
        while (message := durable.next())["data"] != b"end":
            book.got(message)
    assert set(book.again) | book.fenced >= set(found)


def test_who_was_subscribed_is_so_after_a_kill(start_broker: StartBroker, uniq: str) -> None:
    """Clients and subscriptions need not come again: the connection is all they lost."""
    server = start_broker(ON)
    with client(server, READER) as before:
        plain = before.subscribe(uniq)
        before.publish(uniq, b"1")
        assert plain.next()["sequence"] == 1
        server.kill()
        server.start()
    with Again(server, before) as after, client(server, PUBLISHER) as other:
        assert other.publish(uniq, b"2") == ""
        got = [after.message(plain.inbox) for _ in range(2)]
        assert [(m["sequence"], m["redelivery_count"]) for m in got] == [(1, 1), (2, 0)]


class Again(StanClient):
    """Another connection of a client that is registered."""

    def __init__(self, server: Server, before: StanClient) -> None:
        super().__init__(server, before.client_id, register=False)  # type: ignore[arg-type]
        self.peer.send(f"SUB {before.home}.> 2\r\n".encode())
        self.flush()

    def message(self, inbox: str) -> dict[str, Any]:
        return wire.decode(wire.MESSAGE, self.take(inbox))


def filled(start_broker: StartBroker, channel: str, count: int) -> Server:
    """A server that was killed with that many messages, the first half of them acknowledged."""
    server = start_broker(ON)
    with client(server, READER) as stan:
        durable = stan.subscribe(channel, durable="d", start=FIRST)
        stan.fill(channel, count)
        durable.take(count)
        durable.ack(*range(1, count // 2 + 1))
        assert stan.ping() == b""
    server.kill()
    return server


@pytest.mark.parametrize("what", ["segment", "journal", "clients"])
def test_torn_at_any_place(start_broker: StartBroker, tmp_path: Path, uniq: str, what: str) -> None:
    """The end of a file is missing: what is left of it counts, and everything goes on."""
    count = 20
    server = filled(start_broker, uniq, count)
    pattern = {"segment": "*.seg", "journal": "*stan*", "clients": "clients.state"}[what]
    (file,) = [path for path in server.data.rglob(pattern) if path.is_file()]
    size = file.stat().st_size
    place = file.relative_to(server.data)
    rng = random.Random(what)
    for cut in [0, 1, size - 1, *(rng.randrange(size) for _ in range(3))]:
        copy = tmp_path / f"copy{cut}"
        shutil.copytree(server.data, copy, ignore=shutil.ignore_patterns("*.lock"))
        with (copy / place).open("r+b") as torn:
            torn.truncate(cut)
        again = start_broker(ON, copy)
        with client(again, "auditor") as stan:
            assert stan.publish(uniq, b"more") == ""
            every = stan.subscribe(uniq, start=FIRST)
            found = []
            while not found or found[-1]["data"] != b"more":
                found.append(every.next())
            bodies = [message["data"] for message in found[:-1]]
            whole = [b"%d" % number for number in range(1, count + 1)]
            assert bodies == (whole[: len(bodies)] if what == "segment" else whole)
        with client(again, READER) as stan:
            durable = stan.subscribe(uniq, durable="d", start=FIRST)
            assert durable.error == ""
            last = durable.next()
            if what == "clients" and cut == size - 1:
                assert last["sequence"] >= count // 2
            while last["data"] != b"more":
                last = durable.next()
        assert again.stop() == 0
