"""Looking a router over."""

from __future__ import annotations

import itertools

import pytest
from support.native.routing import Subscriber

from broker.routing.local import publish
from broker.routing.router import (
    Router,
    count_local,
    count_matching,
    fanout,
    holders,
    matching,
    window,
)
from broker.routing.subjects import overlap

SUBJECTS = [b"a", b"a.b", b"a.*", b"a.>", b"*.b", b">", b"a.b.c", b"*.*.c", b"a.b.*.d", b"*.>"]


@pytest.fixture
def router() -> Router:
    return Router()


@pytest.fixture
def subscription(router: Router) -> Subscriber:
    subscription = Subscriber(router)
    for number, subject in enumerate(SUBJECTS):
        subscription.subscribe(b"%d" % number, subject)
        subscription.subscribe(b"q%d" % number, subject, b"group")
    return subscription


def test_windows_are_parts_of_the_whole(router: Router, subscription: Subscriber) -> None:
    whole = window(router, 0, 1_000)
    assert sorted(seen[:3] for seen in whole) == sorted(seen[:3] for seen in router.listing())
    assert {seen[3] for seen in whole} == {subscription}
    for skip, most in itertools.product((0, 1, 7, 19, 20, 50), (0, 1, 3, 100)):
        assert window(router, skip, most) == whole[skip : skip + most]


def test_subscribers_are_those_that_a_message_finds(
    router: Router, subscription: Subscriber
) -> None:
    found = {(seen[0], seen[1]) for seen in matching(router, b"a.b")}
    plain = {b"a.b", b"a.*", b"a.>", b"*.b", b">", b"*.>"}
    assert found == {(subject, queue) for subject in plain for queue in (b"", b"group")}
    assert matching(router, b"x.y.z.w") != []
    whole = matching(router, b"a.b")
    assert count_matching(router, b"a.b") == len(whole) == 12
    for skip, most in itertools.product((0, 1, 7, 12, 20), (0, 1, 3, 100)):
        assert matching(router, b"a.b", False, skip, most) == whole[skip : skip + most]
    assert len(subscription.received) == 0  # nothing was delivered


def test_a_count_without_those_of_other_servers(router: Router, subscription: Subscriber) -> None:
    assert count_local(router) == router.size == 2 * len(SUBJECTS)
    assert subscription.received == []


@pytest.mark.parametrize("pattern", [*SUBJECTS, b"x", b"x.*", b"*", b"*.*", b"*.c.>", b"a.*.c"])
def test_who_holds_what_meets_a_pattern(pattern: bytes) -> None:
    router = Router()
    subscriptions = {}
    for number, subject in enumerate(SUBJECTS):
        subscriptions[subject] = Subscriber(router)
        subscriptions[subject].subscribe(b"1", subject, b"group" if number % 2 else b"")
    wanted = {
        id(subscription)
        for subject, subscription in subscriptions.items()
        if overlap(pattern, subject)
    }
    assert holders(router, pattern) == wanted


def test_how_wide_messages_spread(router: Router, subscription: Subscriber) -> None:
    assert fanout(router) == (0, 0, 0)
    publish(router, b"a.b")
    publish(router, b"a")
    publish(router, b"nobody.x.y")
    count, total, most = fanout(router)
    assert (count, most) == (3, 12)
    assert total == sum(len(matching(router, s)) for s in (b"a.b", b"a", b"nobody.x.y"))
    assert subscription.received != []
