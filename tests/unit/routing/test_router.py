"""The router by hand-made cases; tests/property compares it with a naive one."""

from __future__ import annotations

from collections import Counter

import pytest
from support.native.routing import Subscriber

from broker.routing.local import publish, shape
from broker.routing.router import Router


@pytest.fixture
def router() -> Router:
    return Router()


@pytest.fixture
def subscription(router: Router) -> Subscriber:
    return Subscriber(router)


def sids(subscription: Subscriber) -> list[bytes]:
    heard = [message[0] for message in subscription.received]
    subscription.received.clear()
    return sorted(heard)


@pytest.mark.parametrize(
    ("pattern", "subject", "matches"),
    [
        (b"a", b"a", True),
        (b"a", b"b", False),
        (b"a", b"a.b", False),
        (b"a.b", b"a", False),
        (b"*", b"a", True),
        (b"*", b"a.b", False),
        (b"a.*", b"a.b", True),
        (b"a.*", b"a", False),
        (b"*.b", b"a.b", True),
        (b"*.*", b"a.b", True),
        (b">", b"a", True),
        (b">", b"a.b.c", True),
        (b"a.>", b"a.b.c", True),
        (b"a.>", b"a", False),
        (b"a.*.>", b"a.b", False),
        (b"a.*.>", b"a.b.c", True),
        (b"f*o", b"f*o", True),
        (b"f*o", b"foo", False),
        (b"foo>", b"foo>", True),
        (b"foo.*", b"foo.*", True),
        (b"foo.bar", b"foo.*", False),
        (b"foo.>", b"foo.*", True),
        (b"foo.*", b"foo.>", True),
        (b"foo.bar", b"foo.>", False),
        (b">", b"a..b", False),
        (b">", b".a", False),
        (b">", b"a.", False),
        (b"*.*", b"a.", False),
        (b"\x00.\xff", b"\x00.\xff", True),
        (b"a.*.c.*.e", b"a.b.c.d.e", True),
        (b"a.*.c.*.e", b"a.b.x.d.e", False),
    ],
)
def test_one_pattern(
    router: Router, subscription: Subscriber, pattern: bytes, subject: bytes, *, matches: bool
) -> None:
    subscription.subscribe(b"1", pattern)
    for _ in range(2):  # worked out, then from the cache
        assert publish(router, subject) == matches
        assert sids(subscription) == [b"1"] * matches


@pytest.mark.parametrize("subject", [b"", b".", b"a.", b".a", b"a..b", b">.a", b"a.>.b"])
def test_subjects_that_cannot_be_subscribed_to(
    router: Router, subscription: Subscriber, subject: bytes
) -> None:
    with pytest.raises(ValueError, match="subject"):
        subscription.subscribe(b"1", subject)
    assert router.size == 0


@pytest.mark.parametrize(
    ("subject", "expected"),
    [
        (b"a.b", 0),
        (b"", 1),
        (b"a..b", 1),
        (b"a.", 1),
        (b"a.*", 2),
        (b"a.>", 2),
        (b"a.>.b", 4),
        (b">.*..", 7),
        (b"a*.>b", 0),
    ],
)
def test_shape(subject: bytes, expected: int) -> None:
    assert shape(subject) == expected


def test_each_plain_subscription_gets_a_copy(router: Router, subscription: Subscriber) -> None:
    for sid, subject in ((b"1", b"a.b"), (b"2", b"a.b"), (b"3", b"a.*"), (b"4", b">")):
        subscription.subscribe(sid, subject)
    assert publish(router, b"a.b", b"x", reply=b"r") == 4
    assert min(subscription.received) == (b"1", b"a.b", b"r", b"x")
    assert sids(subscription) == [b"1", b"2", b"3", b"4"]


def test_one_member_of_each_group(router: Router, subscription: Subscriber) -> None:
    for i in range(6):
        subscription.subscribe(b"q%d" % i, b"a", b"one")
        subscription.subscribe(b"r%d" % i, b"*", b"two")
    for _ in range(50):
        assert publish(router, b"a") == 2
        assert [sid[:1] for sid in sids(subscription)] == [b"q", b"r"]


def test_one_name_on_several_subjects_is_one_group(
    router: Router, subscription: Subscriber
) -> None:
    for i, subject in enumerate((b"foo.*", b"foo.bar", b"foo.>", b">")):
        subscription.subscribe(b"%d" % i, subject, b"workers")
    seen: Counter[bytes] = Counter()
    for _ in range(400):
        assert publish(router, b"foo.bar") == 1
        seen.update(sids(subscription))
    assert set(seen) == {b"0", b"1", b"2", b"3"}


def test_the_choice_in_a_group_is_uniform(router: Router, subscription: Subscriber) -> None:
    for i in range(4):
        subscription.subscribe(b"%d" % i, b"a", b"q")
    rounds = 8_000
    for _ in range(rounds):
        publish(router, b"a")
    seen = Counter(sids(subscription))
    # eight standard deviations: about one false alarm in 10^15 runs
    assert all(abs(seen[b"%d" % i] - rounds / 4) < 8 * (rounds * 3 / 16) ** 0.5 for i in range(4))


def test_a_member_that_cannot_take_it_is_passed_over(
    router: Router, subscription: Subscriber
) -> None:
    deaf = Subscriber(router)
    deaf.refuses = True
    for i in range(3):
        deaf.subscribe(b"%d" % i, b"a", b"q")
    subscription.subscribe(b"x", b"a", b"q")
    for _ in range(30):
        assert publish(router, b"a") == 1
    assert sids(subscription) == [b"x"] * 30
    subscription.unsubscribe(b"x")
    assert publish(router, b"a") == 0


def test_skip_passes_over_one_sink(router: Router, subscription: Subscriber) -> None:
    other = Subscriber(router)
    for one in (subscription, other):
        one.subscribe(b"p", b"a")
        one.subscribe(b"q", b"a", b"group")
    for _ in range(20):
        assert publish(router, b"a", skip=subscription) == 2
    assert sids(subscription) == []
    assert sids(other) == [b"p"] * 20 + [b"q"] * 20


def test_everything_is_given_back(router: Router, subscription: Subscriber) -> None:
    names = [b"%d" % i for i in range(300)]
    for i, sid in enumerate(names):
        subject = (b"a.%d.b" % i, b"a.*.%d" % i, b"x.>", b"only")[i % 4]
        subscription.subscribe(sid, subject, b"g%d" % (i % 3) if i % 5 == 0 else b"")
    assert router.size == 300
    for sid in names[::-1]:
        subscription.unsubscribe(sid)
    assert router.size == 0
    for subject in (b"a.4.b", b"a.q.1", b"x.y", b"only"):
        assert publish(router, subject) == 0
    assert router.inserts == router.removes == 300


def test_the_cache_is_bounded_and_stays_right(subscription: Subscriber) -> None:
    router = Router(cache_subjects=8, cached_refs_max=64)
    subscription = Subscriber(router)
    for i in range(20):
        subscription.subscribe(b"%d" % i, b"s.*")
    for round_ in range(3):
        for i in range(100):
            assert publish(router, b"s.%d" % i) == 20 - round_
        subscription.unsubscribe(b"%d" % round_)
    hits = router.cache_hits
    for _ in range(3):  # a subject that is new in a full cache enters it the second time
        publish(router, b"s.1")
    assert router.cache_hits > hits


def test_subjects_of_the_same_wildcards_share_their_answer() -> None:
    router = Router(cache_subjects=16384, cached_refs_max=64)
    subscription = Subscriber(router)
    for i in range(40):
        subscription.subscribe(b"%d" % i, b"s.*" if i % 2 else b"s.>")
    subjects = [b"s.%d" % i for i in range(1000)]
    for subject in subjects:
        assert publish(router, subject) == 40
    hits = router.cache_hits
    for subject in subjects:
        assert publish(router, subject) == 40
    # a few share their slots by chance; 40,000 references would have been too many
    assert router.cache_hits >= hits + 950
    subscription.subscribe(b"40", b"s.7")
    subscription.unsubscribe(b"3")
    assert [publish(router, subject) for subject in (b"s.7", b"s.8", b"t.8")] == [40, 39, 0]


def test_subjects_that_are_used_once_do_not_replace_others() -> None:
    router = Router(cache_subjects=64)
    subscription = Subscriber(router)
    subscription.subscribe(b"1", b"again.*")
    subscription.subscribe(b"2", b"once.*.*")
    again = [b"again.%d" % i for i in range(30)]
    for _ in range(3):
        assert [publish(router, subject) for subject in again] == [1] * len(again)
    for i in range(5_000):
        assert publish(router, b"once.%d.reply" % i) == 1
    hits = router.cache_hits
    assert [publish(router, subject) for subject in again] == [1] * len(again)
    assert router.cache_hits - hits >= 25  # some never had a place


def test_a_subject_that_is_used_again_replaces_another_one() -> None:
    router = Router(cache_subjects=4)
    subscription = Subscriber(router)
    subscription.subscribe(b"1", b">")
    for i in range(100):
        publish(router, b"old.%d" % i)
    for _ in range(3):
        assert publish(router, b"new") == 1
    assert router.cache_hits == 1


def test_a_match_without_a_place_follows_changes() -> None:
    router = Router(cache_subjects=4)
    subscription = Subscriber(router)
    subscription.subscribe(b"1", b"s.*.x")
    for i in range(100):
        assert publish(router, b"s.%d.x" % i) == 1
        assert publish(router, b"s.%d.y" % i) == 0
    subscription.subscribe(b"2", b"s.*.x")
    subscription.subscribe(b"3", b"s.7.x")
    assert [publish(router, b"s.%d.x" % i) for i in (6, 7, 8)] == [2, 3, 2]
    subscription.unsubscribe(b"1")
    subscription.unsubscribe(b"3")
    assert [publish(router, b"s.%d.x" % i) for i in (6, 7, 8, 200)] == [1, 1, 1, 1]
    subscription.unsubscribe(b"2")
    assert [publish(router, b"s.%d.x" % i) for i in (6, 7, 8, 200)] == [0, 0, 0, 0]


@pytest.mark.parametrize("size", [1, 7, 8, 41, 42, 43, 64, 65, 300])
def test_subjects_of_any_length_are_cached(
    router: Router, subscription: Subscriber, size: int
) -> None:
    first, second = b"a" * size, b"a" * (size - 1) + b"b"
    subscription.subscribe(b"1", first)
    for _ in range(2):
        assert [publish(router, subject) for subject in (first, second)] == [1, 0]
    assert router.cache_hits == 2
    subscription.subscribe(b"2", second)
    assert [publish(router, subject) for subject in (first, second)] == [1, 1]
    assert router.cache_hits == 3


@pytest.mark.parametrize("size", [0, 3, 6])
def test_a_cache_is_a_power_of_two(size: int) -> None:
    with pytest.raises(ValueError, match="power of two"):
        Router(cache_subjects=size)


def test_a_literal_change_leaves_other_answers_alone(
    router: Router, subscription: Subscriber
) -> None:
    subscription.subscribe(b"1", b"a.b")
    subscription.subscribe(b"2", b"c.d")
    publish(router, b"a.b")
    hits = router.cache_hits
    subscription.subscribe(b"3", b"c.d")
    publish(router, b"a.b")
    assert router.cache_hits == hits + 1
    assert publish(router, b"c.d") == 2


def test_deep_subjects(router: Router, subscription: Subscriber) -> None:
    deep = b".".join([b"t"] * 3_000)
    subscription.subscribe(b"1", deep)
    subscription.subscribe(b"2", b".".join([b"*"] * 3_000))
    subscription.subscribe(b"3", b"t.>")
    assert publish(router, deep) == 3
    subscription.close()
    assert router.size == 0
