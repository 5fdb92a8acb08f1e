"""Looking a router over."""

from __future__ import annotations

import itertools

import pytest

from broker.protocols.nats.monitoring.subjects import collide
from broker.routing.local import Ear, publish
from broker.routing.router import Router
from broker.routing.survey import count_local, fanout, holders, takers, window

SUBJECTS = [b"a", b"a.b", b"a.*", b"a.>", b"*.b", b">", b"a.b.c", b"*.*.c", b"a.b.*.d", b"*.>"]


@pytest.fixture
def router() -> Router:
    return Router()


@pytest.fixture
def ear(router: Router) -> Ear:
    ear = Ear(router)
    for number, subject in enumerate(SUBJECTS):
        ear.subscribe(b"%d" % number, subject)
        ear.subscribe(b"q%d" % number, subject, b"group")
    return ear


def test_windows_are_parts_of_the_whole(router: Router, ear: Ear) -> None:
    whole = window(router, 0, 1_000)
    assert sorted(seen[:3] for seen in whole) == sorted(seen[:3] for seen in router.listing())
    assert {seen[3] for seen in whole} == {ear}
    for skip, most in itertools.product((0, 1, 7, 19, 20, 50), (0, 1, 3, 100)):
        assert window(router, skip, most) == whole[skip : skip + most]


def test_takers_are_those_that_a_message_finds(router: Router, ear: Ear) -> None:
    found = {(seen[0], seen[1]) for seen in takers(router, b"a.b")}
    plain = {b"a.b", b"a.*", b"a.>", b"*.b", b">", b"*.>"}
    assert found == {(subject, queue) for subject in plain for queue in (b"", b"group")}
    assert takers(router, b"x.y.z.w") != []
    assert len(ear.heard) == 0  # nothing was delivered


def test_a_count_without_those_of_other_servers(router: Router, ear: Ear) -> None:
    assert count_local(router) == router.size == 2 * len(SUBJECTS)
    assert ear.heard == []


@pytest.mark.parametrize("pattern", [*SUBJECTS, b"x", b"x.*", b"*", b"*.*", b"*.c.>", b"a.*.c"])
def test_who_holds_what_meets_a_pattern(pattern: bytes) -> None:
    router = Router()
    ears = {}
    for number, subject in enumerate(SUBJECTS):
        ears[subject] = Ear(router)
        ears[subject].subscribe(b"1", subject, b"group" if number % 2 else b"")
    wanted = {id(ear) for subject, ear in ears.items() if collide(pattern, subject)}
    assert holders(router, pattern) == wanted


def test_how_wide_messages_spread(router: Router, ear: Ear) -> None:
    assert fanout(router) == (0, 0, 0)
    publish(router, b"a.b")
    publish(router, b"a")
    publish(router, b"nobody.x.y")
    count, total, most = fanout(router)
    assert (count, most) == (3, 12)
    assert total == sum(len(takers(router, s)) for s in (b"a.b", b"a", b"nobody.x.y"))
    assert ear.heard != []
