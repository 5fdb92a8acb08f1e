"""What a subscription of NATS Streaming gets: where it starts, what comes again, what is held back.

On ours and on the original.
"""

from __future__ import annotations

import time

import pytest
from support.stan import wire
from support.stan.client import StanClient
from support.stan.servers import Join, join, stan

__all__ = ["join", "stan"]

SECOND_NS = 1_000_000_000


def test_a_message(join: Join, uniq: str) -> None:
    client = join()
    sub = client.subscribe(uniq)
    before = time.time_ns()
    client.publish(uniq, b"one", b"", b"\x00\xff", reply="answer.here")
    found = [sub.next(ack=True) for _ in range(3)]
    stamps = [message.pop("timestamp") for message in found]
    assert before <= stamps[0] <= stamps[1] <= stamps[2] <= time.time_ns()
    plain = {"subject": uniq, "reply": "answer.here", "redelivered": False, "redelivery_count": 0}
    assert found == [
        {"sequence": n, "data": data, "crc32": 0, **plain}
        for n, data in enumerate([b"one", b"", b"\x00\xff"], 1)
    ]


def test_every_subscription_gets_all(join: Join, uniq: str) -> None:
    one, two = join(), join()
    subs = [one.subscribe(uniq), one.subscribe(uniq), two.subscribe(uniq)]
    one.fill(uniq, 5)
    assert [sub.take(5, ack=True) for sub in subs] == [[1, 2, 3, 4, 5]] * 3


@pytest.mark.parametrize(
    ("changes", "first"),
    [
        ({}, 6),
        ({"start": wire.NEW}, 6),
        ({"start": wire.NEW, "start_sequence": 2}, 6),
        ({"start": wire.LAST}, 5),
        ({"start": wire.FIRST}, 1),
        ({"start": wire.SEQUENCE, "start_sequence": 3}, 3),
        ({"start": wire.SEQUENCE, "start_sequence": 5}, 5),
        ({"start": wire.SEQUENCE, "start_sequence": 0}, 1),
        ({"start": wire.SEQUENCE, "start_sequence": 6}, 6),
        ({"start": wire.SEQUENCE, "start_sequence": 100}, 6),
        ({"start": wire.DELTA, "start_delta": 3600 * SECOND_NS}, 1),
        ({"start": wire.DELTA, "start_delta": 0}, 6),
        ({"start": wire.DELTA, "start_delta": -SECOND_NS}, 6),
    ],
)
def test_where_it_starts(join: Join, uniq: str, changes: dict[str, int], first: int) -> None:
    client = join()
    client.fill(uniq, 5)
    sub = client.subscribe(uniq, **changes)
    client.fill(uniq, 1)
    assert sub.take(7 - first) == list(range(first, 7))
    client.quiet(sub)


@pytest.mark.parametrize(
    "changes",
    [
        {"start": wire.NEW},
        {"start": wire.LAST},
        {"start": wire.FIRST},
        {"start": wire.SEQUENCE, "start_sequence": 1},
        {"start": wire.SEQUENCE, "start_sequence": 9},
        {"start": wire.DELTA, "start_delta": SECOND_NS},
    ],
)
def test_where_it_starts_in_an_empty_channel(
    join: Join, uniq: str, changes: dict[str, int]
) -> None:
    client = join()
    sub = client.subscribe(uniq, **changes)
    client.fill(uniq, 2)
    assert sub.take(2) == [1, 2]


def test_it_starts_by_the_time_of_messages(join: Join, uniq: str) -> None:
    client = join()
    probe = client.subscribe(uniq)
    client.fill(uniq, 2)
    old = probe.next()["timestamp"], probe.next()["timestamp"]
    age_ns = time.time_ns() - (old[0] + old[1]) // 2
    # What takes place between asking and looking moves the line: as close as a second is enough.
    sub = client.subscribe(uniq, start=wire.DELTA, start_delta=age_ns + SECOND_NS)
    assert sub.take(2) == [1, 2]


@pytest.mark.parametrize(("delta", "first"), [(-(2**63), 1), (2**63 - 1, 1), (-SECOND_NS, 3)])
def test_it_starts_by_times_that_no_message_can_have(
    join: Join, uniq: str, delta: int, first: int
) -> None:
    client = join()
    client.fill(uniq, 2)
    sub = client.subscribe(uniq, start=wire.DELTA, start_delta=delta % 2**64)
    assert sub.error == ""
    client.fill(uniq, 1)
    assert sub.take(1) == [first]


def test_no_more_than_may_be_unacknowledged(join: Join, uniq: str) -> None:
    client = join()
    sub = client.subscribe(uniq, max_in_flight=3)
    client.fill(uniq, 7)
    assert sub.take(3) == [1, 2, 3]
    client.quiet(sub)
    sub.ack(2)
    assert sub.take(1) == [4]
    client.quiet(sub)
    sub.ack(1, 3, 4)
    assert sub.take(3) == [5, 6, 7]


def test_acknowledging_what_was_not_sent(join: Join, uniq: str) -> None:
    client = join()
    sub = client.subscribe(uniq, max_in_flight=1)
    client.fill(uniq, 3)
    assert sub.take(1) == [1]
    sub.ack(2, 3, 77)
    client.pub(sub.ack_inbox, b"\xff\xff")
    for fields in ({}, {"subject": f"{uniq}.other"}):  # of no channel, and of another one
        client.pub(sub.ack_inbox, wire.encode(wire.ACK, sequence=1, **fields))
    client.quiet(sub)
    sub.ack(1)
    assert sub.take(1) == [2]


def again(sub: object, sequence: int, count: int, data: bytes) -> None:
    message = sub.next()  # type: ignore[attr-defined]
    assert message["redelivered"], message
    assert (message["sequence"], message["redelivery_count"]) == (sequence, count)
    assert message["data"] == data


def test_what_is_not_acknowledged_comes_again(join: Join, uniq: str) -> None:
    client = join()
    sub = client.subscribe(uniq, ack_wait=1)
    client.publish(uniq, b"a", b"b", b"c")
    begin = time.monotonic()
    assert sub.take(3) == [1, 2, 3]
    sub.ack(2)
    again(sub, 1, 1, b"a")
    assert time.monotonic() - begin > 0.9
    again(sub, 3, 1, b"c")
    sub.ack(3)
    again(sub, 1, 2, b"a")
    sub.ack(1)
    client.quiet(sub)


def test_a_full_subscription_gets_what_comes_again(join: Join, uniq: str) -> None:
    client = join()
    sub = client.subscribe(uniq, ack_wait=1, max_in_flight=2)
    client.fill(uniq, 3)
    assert sub.take(2) == [1, 2]
    again(sub, 1, 1, b"1")
    again(sub, 2, 1, b"2")
    sub.ack(1)
    assert sub.next()["sequence"] == 3


def test_new_messages_are_not_held_up_by_old_ones(join: Join, uniq: str) -> None:
    client = join()
    sub = client.subscribe(uniq, ack_wait=1)
    client.fill(uniq, 1)
    assert sub.take(1) == [1]
    client.fill(uniq, 1)
    assert sub.take(1) == [2]
    sub.ack(2)
    again(sub, 1, 1, b"1")


def test_messages_come_before_their_publisher_knows(join: Join, uniq: str) -> None:
    client = join()
    sub = client.subscribe(uniq)
    for _ in range(20):
        inbox = client.send(uniq, b"x")
        client.acked(inbox)
        assert client.order.index(sub.inbox) < client.order.index(inbox)
        sub.next(ack=True)
        client.order.clear()


def test_the_answer_comes_before_the_first_message(join: Join, uniq: str) -> None:
    client = join()
    client.fill(uniq, 3)
    for _ in range(20):
        client.order.clear()
        sub = client.subscribe(uniq, start=wire.FIRST)
        assert sub.take(3) == [1, 2, 3]
        assert client.order[1:] == [sub.inbox] * 3
        assert sub.close() == ""


def test_acknowledgements_before_a_close_count(join: Join, uniq: str) -> None:
    client = join()
    sub = client.subscribe(uniq, durable="d")
    client.fill(uniq, 500)
    assert sub.take(500) == list(range(1, 501))
    sub.ack(*range(1, 501))
    assert sub.close() == ""
    sub = client.subscribe(uniq, durable="d")
    client.fill(uniq, 1)
    assert sub.take(1) == [501]


def test_publishes_before_a_close_are_stored(join: Join, uniq: str) -> None:
    client, other = join(), join()
    sub = other.subscribe(uniq)
    inboxes = [client.send(uniq, b"x") for _ in range(200)]
    assert client.close() == ""
    assert {client.acked(inbox)["error"] for inbox in inboxes} == {""}
    assert sub.take(200) == list(range(1, 201))


def test_many_publishers_are_stored_in_one_order(join: Join, uniq: str) -> None:
    clients: list[StanClient] = [join() for _ in range(4)]
    reader = join()
    subs = [reader.subscribe(uniq), reader.subscribe(uniq)]
    for number in range(100):
        for index, client in enumerate(clients):
            client.send(uniq, b"%d %d" % (index, number))
    found = [[sub.next(ack=True) for _ in range(400)] for sub in subs]
    assert found[0] == found[1]
    assert [message["sequence"] for message in found[0]] == list(range(1, 401))
    for index in range(4):
        own = [m["data"] for m in found[0] if m["data"].startswith(b"%d " % index)]
        assert own == [b"%d %d" % (index, number) for number in range(100)]
