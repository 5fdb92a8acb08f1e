"""Durable subscriptions and queue groups of NATS Streaming, on ours and on the original."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
from support.stan import wire
from support.stan.client import StanClient, StanServer, Subscription
from support.stan.servers import Join, join, stan, start_stan

__all__ = ["join", "stan", "start_stan"]

DUPLICATE = "stan: duplicate durable registration"


def flags(*subs: Subscription, count: int) -> dict[int, tuple[bool, int]]:
    """What so many messages of these say about themselves, by sequence."""
    found: dict[int, tuple[bool, int]] = {}
    client = subs[0].client
    while len(found) < count:
        for sub in subs:
            while client.queues[sub.inbox]:
                message = sub.next()
                redelivered = message["redelivered"], message["redelivery_count"]
                assert found.setdefault(message["sequence"], redelivered) == redelivered
        if len(found) < count:
            client.wait()
    return found


def test_a_durable_goes_on_where_it_stood(join: Join, uniq: str) -> None:
    client = join()
    sub = client.subscribe(uniq, durable="d", start=wire.FIRST)
    client.fill(uniq, 3)
    assert sub.take(3) == [1, 2, 3]
    sub.ack(1, 3)
    assert sub.close() == ""
    client.fill(uniq, 2)
    sub = client.subscribe(uniq, durable="d", start=wire.NEW)
    found = [sub.next() for _ in range(3)]
    assert [(m["sequence"], m["redelivered"]) for m in found] == [
        (2, True),
        (4, False),
        (5, False),
    ]
    assert found[0]["redelivery_count"] == 1
    client.quiet(sub)


def test_a_resumed_durable_has_what_it_asks_for_now(join: Join, uniq: str) -> None:
    client = join()
    first = client.subscribe(uniq, durable="d", max_in_flight=1)
    client.fill(uniq, 4)
    assert first.take(1) == [1]
    assert first.close() == ""
    sub = client.subscribe(uniq, durable="d", max_in_flight=3)
    assert sub.ack_inbox != first.ack_inbox
    assert sub.take(3) == [1, 2, 3]
    client.quiet(sub, first)


def test_unacknowledged_messages_of_a_durable_come_at_once_and_first(join: Join, uniq: str) -> None:
    client = join()
    sub = client.subscribe(uniq, durable="d", ack_wait=30)
    client.fill(uniq, 5)
    assert sub.take(5) == [1, 2, 3, 4, 5]
    sub.ack(3)
    assert sub.close() == ""
    client.fill(uniq, 2)
    sub = client.subscribe(uniq, durable="d", ack_wait=30)
    assert sub.take(6) == [1, 2, 4, 5, 6, 7]


def test_a_durable_that_is_in_use(join: Join, uniq: str) -> None:
    client, other = join(), join()
    sub = client.subscribe(uniq, durable="d")
    assert client.subscribe(uniq, durable="d").error == DUPLICATE
    assert client.subscribe(uniq, durable="e").error == ""
    assert other.subscribe(uniq, durable="d").error == ""  # of another client: another one
    assert client.subscribe(f"{uniq}.other", durable="d").error == ""
    assert sub.close() == ""
    assert client.subscribe(uniq, durable="d").error == ""


def test_a_durable_may_be_taken_over_where_that_is_wanted(
    start_stan: Callable[..., StanServer], uniq: str
) -> None:
    server = start_stan("-replace_durable")
    with StanClient(server) as client:
        old = client.subscribe(uniq, durable="d")
        client.fill(uniq, 2)
        assert old.take(2) == [1, 2]
        sub = client.subscribe(uniq, durable="d")
        assert sub.error == ""
        assert sub.take(2) == [1, 2]
        client.fill(uniq, 1)
        assert sub.take(1) == [3]
        client.quiet(old, sub)


def test_closing_the_connection_keeps_durables_only(join: Join, uniq: str) -> None:
    client = join()
    durable, plain = client.subscribe(uniq, durable="d"), client.subscribe(uniq)
    client.fill(uniq, 1)
    assert durable.take(1) == plain.take(1) == [1]
    assert client.close() == ""
    assert client.register()["error"] == ""
    client.fill(uniq, 1)
    client.quiet(durable, plain)
    sub = client.subscribe(uniq, durable="d")
    assert sub.take(2) == [1, 2]


def test_unsubscribing_deletes_a_durable(join: Join, uniq: str) -> None:
    client = join()
    sub = client.subscribe(uniq, durable="d")
    client.fill(uniq, 2)
    assert sub.take(2, ack=True) == [1, 2]
    assert sub.unsubscribe() == ""
    sub = client.subscribe(uniq, durable="d", start=wire.FIRST)
    assert sub.take(2) == [1, 2]


def test_an_offline_durable_cannot_be_left(join: Join, uniq: str) -> None:
    client = join()
    sub = client.subscribe(uniq, durable="d")
    assert sub.close() == ""
    assert sub.unsubscribe() == "stan: invalid subscription"
    assert sub.close() == "stan: invalid subscription"


def test_a_group_shares_the_messages(join: Join, uniq: str) -> None:
    client, other = join(), join()
    subs = [client.subscribe(uniq, queue="q"), client.subscribe(uniq, queue="q")]
    subs.append(other.subscribe(uniq, queue="q"))
    alone = client.subscribe(uniq, queue="r")
    client.fill(uniq, 30)
    assert alone.take(30) == list(range(1, 31))
    client.quiet()
    other.flush()
    shares = [sub.waiting() for sub in subs]
    assert sorted(itertools.chain(*shares)) == list(range(1, 31))
    assert all(len(share) == 10 for share in shares)  # nobody has acknowledged: the least is next


def test_later_members_join_where_the_group_stands(join: Join, uniq: str) -> None:
    client = join()
    client.fill(uniq, 5)
    one = client.subscribe(uniq, queue="q", start=wire.SEQUENCE, start_sequence=4)
    assert one.take(2, ack=True) == [4, 5]
    two = client.subscribe(uniq, queue="q", start=wire.FIRST)
    client.quiet(one, two)
    client.fill(uniq, 2)
    client.quiet()
    assert sorted(one.waiting() + two.waiting()) == [6, 7]


def test_what_a_member_does_not_acknowledge_reaches_another(join: Join, uniq: str) -> None:
    client = join()
    well = client.subscribe(uniq, queue="q")
    deaf = client.subscribe(uniq, queue="q", ack_wait=1)
    client.fill(uniq, 2)
    [first] = well.take(1, ack=True)
    [second] = deaf.take(1)
    while not well.waiting() and not deaf.waiting():
        client.wait()
    assert (well.waiting(), deaf.waiting()) == ([second], [])
    assert {first, second} == {1, 2}


def test_a_full_member_is_passed_over(join: Join, uniq: str) -> None:
    client = join()
    small = client.subscribe(uniq, queue="q", max_in_flight=1)
    large = client.subscribe(uniq, queue="q", max_in_flight=5)
    client.fill(uniq, 8)
    client.quiet()
    assert (len(small.waiting()), len(large.waiting())) == (1, 5)
    taken = sorted(small.waiting() + large.waiting())
    assert taken == [1, 2, 3, 4, 5, 6]
    large.ack(*large.take(5))
    client.quiet()
    assert sorted(small.waiting()[1:] + large.waiting()) == [7, 8]


@pytest.mark.parametrize("path", ["unsub_requests", "sub_close_requests"])
def test_who_leaves_a_group_hands_over(join: Join, uniq: str, path: str) -> None:
    client = join()
    leaving = client.subscribe(uniq, queue="q", ack_wait=30)
    client.fill(uniq, 4)
    assert leaving.take(4) == [1, 2, 3, 4]
    staying = client.subscribe(uniq, queue="q", ack_wait=30)
    leaving.ack(2)
    assert client.leave(path, uniq, leaving.ack_inbox) == ""
    assert flags(staying, count=3) == {1: (True, 1), 3: (True, 1), 4: (True, 1)}
    staying.ack(1, 3, 4)
    client.quiet(leaving, staying)


def test_an_ack_from_the_member_before_counts(join: Join, uniq: str) -> None:
    client = join()
    one = client.subscribe(uniq, queue="q", ack_wait=1, max_in_flight=1)
    client.fill(uniq, 1)
    assert one.take(1) == [1]
    two = client.subscribe(uniq, queue="q", ack_wait=1, max_in_flight=1)
    seen = flags(one, two, count=1)  # somebody of the two has it again
    assert seen == {1: (True, 1)}
    one.ack(1)
    client.fill(uniq, 2)
    client.quiet()
    assert {2, 3} <= set(one.waiting() + two.waiting())


def test_a_group_that_is_left_by_all_is_forgotten(join: Join, uniq: str) -> None:
    client = join()
    client.fill(uniq, 3)
    sub = client.subscribe(uniq, queue="q", start=wire.FIRST)
    assert sub.take(3) == [1, 2, 3]
    assert sub.close() == ""
    sub = client.subscribe(uniq, queue="q", start=wire.LAST)
    assert sub.take(1) == [3]


def test_a_durable_group_is_kept_when_the_last_closes(join: Join, uniq: str) -> None:
    client, other = join(), join()
    sub = client.subscribe(uniq, queue="q", durable="d")
    client.fill(uniq, 3)
    assert sub.take(3) == [1, 2, 3]
    sub.ack(1)
    assert sub.close() == ""
    other.fill(uniq, 1)
    sub = other.subscribe(uniq, queue="q", durable="d", start=wire.NEW)
    found = [sub.next() for _ in range(3)]
    assert [(m["sequence"], m["redelivered"]) for m in found] == [
        (2, True),
        (3, True),
        (4, False),
    ]


def test_a_durable_group_is_deleted_when_the_last_unsubscribes(join: Join, uniq: str) -> None:
    client = join()
    one = client.subscribe(uniq, queue="q", durable="d")
    two = client.subscribe(uniq, queue="q", durable="d")
    client.fill(uniq, 2)
    assert one.unsubscribe() == ""  # the group has another member: it stays
    assert set(flags(two, count=2)) == {1, 2}
    two.ack(1, 2)
    assert two.unsubscribe() == ""
    sub = client.subscribe(uniq, queue="q", durable="d", start=wire.FIRST)
    assert sub.take(2) == [1, 2]


def test_a_durable_group_and_one_that_is_not(join: Join, uniq: str) -> None:
    client = join()
    plain = client.subscribe(uniq, queue="q")
    durable = client.subscribe(uniq, queue="q", durable="d")
    client.fill(uniq, 2)
    assert plain.take(2) == durable.take(2) == [1, 2]


def test_a_group_whose_client_fails_goes_on(
    start_stan: Callable[..., StanServer], uniq: str
) -> None:
    server = start_stan("-hbi", "200ms", "-hbt", "100ms", "-hbf", "2")
    with StanClient(server) as client, StanClient(server) as failing:
        gone = failing.subscribe(uniq, queue="q", max_in_flight=2)
        client.fill(uniq, 3)
        assert gone.take(2) == [1, 2]
        sub = client.subscribe(uniq, queue="q", max_in_flight=9)
        failing.answers = False
        assert set(flags(sub, count=3)) == {1, 2, 3}
        assert client.heartbeats > 0
        assert failing.ping() != b""
