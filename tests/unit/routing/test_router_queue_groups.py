"""Queue groups of the router: as many as a client likes on one subject, without quadratic work."""

from __future__ import annotations

import random
from collections import Counter, defaultdict

import pytest
from support.native.routing import Subscriber

from broker.routing.local import publish, subscribers
from broker.routing.router import Router
from broker.routing.trie import groups_probed

GROUPS = 2000
PATTERNS = [b"a", b"*", b">", b"a.b", b"a.*", b"*.b", b"*.*", b"a.>"]


@pytest.mark.parametrize("seed", range(4))
def test_any_order_of_subscribing_and_leaving(seed: int) -> None:
    """Against a model: many groups come and go at nodes that share their names."""
    dice = random.Random(seed)
    router = Router(4, 64)
    subscription = Subscriber(router)
    there: dict[bytes, tuple[bytes, bytes]] = {}
    for step in range(4000):
        grows = dice.random() < (0.7 if step % 1000 < 500 else 0.3)
        if grows or not there:
            sid = b"%d" % step
            there[sid] = (dice.choice(PATTERNS), b"g%d" % dice.randrange(1, 40))
            subscription.subscribe(sid, *there[sid])
        else:
            sid = dice.choice(list(there))
            subscription.unsubscribe(sid)
            del there[sid]
        if step % 100:
            continue
        assert Counter((row[0], row[1], row[2]) for row in router.listing()) == Counter(
            (pattern, queue, sid) for sid, (pattern, queue) in there.items()
        )
        for subject, matching in (
            (b"a", {b"a", b"*", b">"}),
            (b"a.b", {b">", b"a.b", b"a.*", b"*.b", b"*.*", b"a.>"}),
        ):
            wanted = [queue for pattern, queue in there.values() if pattern in matching]
            found = [queue for queue, _ in subscribers(router, subject)]
            assert Counter(found) == Counter(wanted)
            # members of a group stand together, whatever nodes they are at
            assert len(
                [q for q, before in zip(found, [b"", *found], strict=False) if q != before]
            ) == (len(set(wanted)))
            subscription.received.clear()
            assert publish(router, subject, b"x") == len(set(wanted))
    subscription.close()
    assert router.listing() == []
    assert router.size == 0


def test_many_groups_on_one_subject() -> None:
    """A step for each, not one for each pair."""
    router = Router()
    subscription = Subscriber(router)
    before = groups_probed()
    for number in range(GROUPS):
        subscription.subscribe(b"%d" % number, b"foo", b"g%d" % number)
    for number in range(GROUPS):
        subscription.subscribe(b"m%d" % number, b"foo", b"g%d" % number)
    assert groups_probed() - before < 20 * GROUPS
    before = groups_probed()
    for number in range(GROUPS):
        subscription.unsubscribe(b"%d" % number)
        subscription.unsubscribe(b"m%d" % number)
    assert groups_probed() - before < 20 * GROUPS


def test_many_groups_that_match() -> None:
    """Each group of each node is looked at once, when a subject is new."""
    router = Router()
    subscription = Subscriber(router)
    for number in range(GROUPS):
        subscription.subscribe(b"l%d" % number, b"foo", b"g%d" % number)
        subscription.subscribe(b"w%d" % number, b"*", b"g%d" % number)
        subscription.subscribe(b"t%d" % number, b">", b"h%d" % number)
    before = groups_probed()
    assert publish(router, b"foo", b"x") == 2 * GROUPS
    assert groups_probed() - before < 20 * GROUPS


def test_one_group_at_many_nodes() -> None:
    """As many nodes as a client likes match one subject."""
    router = Router()
    subscription = Subscriber(router)
    depth = 10
    for number in range(2**depth):
        tokens = [b"*" if number >> bit & 1 else b"t" for bit in range(depth)]
        subscription.subscribe(b"%d" % number, b".".join(tokens), b"g")
    before = groups_probed()
    assert publish(router, b".".join([b"t"] * depth), b"x") == 1
    assert groups_probed() - before < 20 * 2**depth


def test_a_wildcard_elsewhere_leaves_answers_alone() -> None:
    """It comes and goes, and what it cannot match is not worked out again."""
    router = Router()
    subscription = Subscriber(router)
    heard: defaultdict[bytes, int] = defaultdict(int)
    for number in range(GROUPS):
        subscription.subscribe(b"%d" % number, b"*", b"g%d" % number)
        subscription.subscribe(b"l%d" % number, b"foo", b"g%d" % number)
    assert publish(router, b"foo", b"x") == GROUPS
    before, hits = groups_probed(), router.cache_hits
    for number in range(100):
        subscription.subscribe(b"x", b"other.*" if number % 2 else b"other.>")
        assert publish(router, b"foo", b"x") == GROUPS
        subscription.unsubscribe(b"x")
        heard[b"foo"] += publish(router, b"foo", b"x")
    assert heard[b"foo"] == 100 * GROUPS
    assert groups_probed() == before
    assert router.cache_hits == hits + 200


@pytest.mark.parametrize(
    "pattern", [b">", b"*", b"foo.*", b"*.bar", b"foo.>", b"*.*", b"foo.bar.>"]
)
@pytest.mark.parametrize("many", [1, 40])
def test_a_wildcard_that_matches_is_found(pattern: bytes, many: int) -> None:
    """After one change, and after more than are remembered."""
    router = Router()
    subscription = Subscriber(router)
    subjects = [b"foo", b"foo.bar", b"foo.bar.baz"]
    long = b"x" * 80 + b".*"  # longer than what is remembered
    before = [publish(router, subject, b"x") for subject in subjects]
    subscription.subscribe(b"1", pattern)
    for number in range(many):
        subscription.subscribe(b"s%d" % number, long)
    fresh = Router()
    other = Subscriber(fresh)
    other.subscribe(b"1", pattern)
    assert [publish(router, subject, b"x") for subject in subjects] == [
        publish(fresh, subject, b"x") for subject in subjects
    ]
    subscription.unsubscribe(b"1")
    assert [publish(router, subject, b"x") for subject in subjects] == before
