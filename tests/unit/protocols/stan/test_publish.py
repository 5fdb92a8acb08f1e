"""When publishers of NATS Streaming have their answer: behind the disk, each for its own."""

from __future__ import annotations

import select
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.engine import WAIT_MS, Rig
from support.native.turns import Output
from support.stan import wire

from broker.engine.cursor.cursor import open_cursor
from broker.protocols.access import Access
from broker.protocols.nats.accounts.account import Account, CurrentPublisher, Message
from broker.protocols.stan import limits
from broker.protocols.stan.publish import Channel, Client, Request, Service, Subscription
from broker.protocols.stan.store import SubRecord
from broker.runtime.interfaces import Session


class Case:
    """The service on an engine whose turns end, and whose workers are heard, when a test says."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.account = account = Account("$G", rig.turn, CurrentPublisher(), rig.router)
        self.session = Session()
        self.service = Service(account, rig.engine, Access(), lambda *_: None, self.make)
        self.service.listen(b"_STAN.pub.c", [b"ask"])
        self.service.register(Client("me", "hb", b"conn"))
        self.acks: list[str] = []
        account.listen(b"ack.*", self.acked)

    def make(self, name: str) -> Channel:
        log = self.rig.engine.open_log(name, protocol="stan", retention="limits")
        return Channel(self.service, log)

    def acked(self, message: Message) -> None:
        ack = wire.decode(wire.PUB_ACK, message.data)
        assert ack["error"] == ""
        self.acks.append(ack["guid"])

    def publish(self, guid: str) -> None:
        self.put(guid)
        self.rig.loop.run()

    def put(self, guid: str) -> None:
        """Publish within a turn."""
        data = wire.encode(wire.PUB, client_id="me", guid=guid, subject="t", conn_id=b"conn")
        self.account.publish(b"_STAN.pub.c.t", data, f"ack.{guid}".encode(), session=self.session)

    def finish_job(self, but: int = -1) -> int:
        """What one worker has finished, which is not the one with this descriptor; its own."""
        poll = select.poll()
        for fd in self.rig.loop.readers:
            if fd != but:
                poll.register(fd, select.POLLIN)
        found = poll.poll(WAIT_MS)
        self.rig.loop.readers[found[0][0]]()
        self.rig.loop.run()
        return found[0][0]


@pytest.fixture
def case(tmp_path: Path) -> Iterator[Case]:
    with Rig(tmp_path / "logs", sync="always") as rig:
        yield Case(rig)


def test_a_publisher_is_answered_when_its_message_is_on_the_disk(case: Case) -> None:
    """Neither when it is written, nor when those before it are on the disk."""
    case.publish("first")
    case.rig.settle()
    assert case.acks == ["first"]
    case.publish("one")
    assert case.acks == ["first"]
    writer = case.finish_job()
    log = case.rig.engine.log("t")
    assert log is not None
    assert log.visible == 3
    assert case.acks == ["first"]  # written; the sync has not been heard of
    case.publish("two")
    assert case.finish_job(but=syncer_of(case, writer)) == writer
    assert log.visible == 4
    assert case.acks == ["first"]
    assert case.finish_job(but=writer) != writer
    assert case.acks == ["first", "one"]
    case.rig.settle()
    assert case.acks == ["first", "one", "two"]


def syncer_of(case: Case, writer: int) -> int:
    """Who has begun to sync and must not be heard yet."""
    others = [fd for fd in case.rig.loop.readers if fd != writer]
    poll = select.poll()
    for fd in others:
        poll.register(fd, select.POLLIN)
    return poll.poll(WAIT_MS)[0][0]


def parts_of(case: Case, count: int) -> list[tuple[int, int]]:
    """Publish so many messages in one turn: the turns in which answers left, and how many."""
    case.publish("first")  # the names are on the disk then
    case.rig.settle()
    output = Output(case.rig.turn, case.rig.router, b"ack.*")
    for number in range(count):
        case.put(str(number))
    case.rig.settle()
    assert len(case.acks) == count + 1
    return output.flushed


def test_many_answers_leave_in_parts(case: Case) -> None:
    """All in one turn: those publishers go on while the server makes the other answers."""
    parts = parts_of(case, 300)
    assert [sent for _, sent in parts] == [128, 128, 44]
    assert len({turn for turn, _ in parts}) == 1


def test_so_many_answers_take_several_turns(case: Case) -> None:
    parts = parts_of(case, 10_000)
    assert sum(sent for _, sent in parts) == 10_000
    assert max(sent for _, sent in parts) == 128
    assert len({turn for turn, _ in parts}) > 1


def test_many_requests_take_several_turns(case: Case) -> None:
    """Others are heard in between; the order stays."""
    each = limits.STAN_REQUESTS_TURN
    heard: list[str] = []

    def handle(request: Request) -> None:
        if len(heard) % (each + 1) == 0:
            case.rig.loop.call_soon(lambda: heard.append("another"))
        heard.append(request.data.decode())

    case.service.handle = handle
    for number in range(3 * each):
        case.account.publish(b"ask", b"%d" % number, b"", session=case.session)
    case.rig.loop.run()
    expected = [str(number) for number in range(3 * each)]
    for place in (each, 2 * each + 1, 3 * each + 2):
        expected.insert(place, "another")
    assert heard == expected


def test_subscriptions_are_found_by_their_cursor_and_their_inboxes(case: Case) -> None:
    """Without a search through all of the channel, which may be thousands."""
    channel = case.make("t")
    cursor = open_cursor(channel.log, "stan:q:g")
    client = Client("other", "hb", b"other")

    def member(number: int, inbox: str) -> Subscription:
        record = SubRecord(
            number, "t", cursor.name, "other", inbox, f"ack.{number}", "", "g", 10, 30
        )
        made = Subscription(channel, cursor, record)
        channel.subscriptions.add(made)
        return made

    held = channel.subscriptions
    first, second, third = member(1, "in"), member(2, "in"), member(3, "other")
    assert held.find("in") is held.find("ack.1") is None  # no client yet
    for each in (first, second, third):
        each.attach(client)
    assert (held.first_of(cursor.name), held.count_of(cursor.name)) == (first, 3)
    assert (held.find("in"), held.find("ack.2"), held.find("other")) == (first, second, third)
    first.detach()
    assert held.find("in") is second
    assert held.find("ack.1") is None
    held.remove(first)
    assert (held.first_of(cursor.name), held.count_of(cursor.name)) == (second, 2)
    for each in (second, third):
        each.detach()
    held.clear()
    assert (len(held), list(held), held.count_of(cursor.name)) == (0, [], 0)
    assert held.find("in") is held.first_of(cursor.name) is None
