"""RDY, its redistribution and backing off, with a clock that stands until it is moved."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable

import pytest

from broker.client.nsq.clock import Timer
from broker.client.nsq.flow import Flow, Outcome


class _Timer:
    def __init__(self) -> None:
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class HandClock:
    """Time that a test moves."""

    def __init__(self) -> None:
        self.time_s = 0.0
        self._due: list[tuple[float, int, _Timer, Callable[[], object]]] = []
        self._order = itertools.count()

    def now(self) -> float:
        return self.time_s

    def call_later(self, delay_s: float, callback: Callable[[], object]) -> Timer:
        timer = _Timer()
        heapq.heappush(self._due, (self.time_s + delay_s, next(self._order), timer, callback))
        return timer

    def advance(self, seconds: float) -> None:
        until_s = self.time_s + seconds
        while self._due and self._due[0][0] <= until_s:
            self.time_s, _, timer, callback = heapq.heappop(self._due)
            if not timer.cancelled:
                callback()
        self.time_s = until_s


class FakeSubscription:
    """A connection that notes what it was sent."""

    def __init__(self, ready_max: int = 2500) -> None:
        self.ready = self.in_flight = 0
        self.ready_max = ready_max
        self.has_delivered = False
        self.heard_s = self.granted_s = 0.0
        self.said: list[int] = []

    def send_rdy(self, count: int) -> None:
        self.said.append(count)


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


def make(clock: HandClock, max_in_flight: int, subscriptions: int, **options: float) -> Flow:
    flow = Flow(max_in_flight, clock, chance=random.Random(1), **options)
    flow.start()
    for _ in range(subscriptions):
        flow.add(FakeSubscription())
    return flow


def prove(flow: Flow) -> None:
    """Each subscription has delivered and been answered."""
    for subscription in list(flow.subscriptions):
        subscription.has_delivered = True
    flow.balance()


def ready(flow: Flow) -> list[int]:
    return sorted(subscription.ready for subscription in flow.subscriptions)


def claims(flow: Flow) -> int:
    return sum(
        max(subscription.ready, subscription.in_flight) for subscription in flow.subscriptions
    )


def test_a_connection_starts_at_one_and_gets_its_share_when_it_delivers(clock: HandClock) -> None:
    flow = make(clock, 10, 1)
    assert ready(flow) == [1]
    flow.received(flow.subscriptions[0])
    assert ready(flow) == [10]


def test_shares_are_equal_and_never_more_than_allowed(clock: HandClock) -> None:
    flow = make(clock, 10, 3)
    prove(flow)
    assert ready(flow) == [3, 3, 3]
    flow.remove(flow.subscriptions[0])
    assert ready(flow) == [5, 5]


def test_the_server_s_max_rdy_count_is_kept(clock: HandClock) -> None:
    flow = make(clock, 5000, 0)
    flow.add(FakeSubscription(ready_max=2500))
    prove(flow)
    assert ready(flow) == [2500]


def test_rdy_is_only_sent_when_it_changes(clock: HandClock) -> None:
    flow = make(clock, 10, 1)
    subscription = flow.subscriptions[0]
    for _ in range(50):
        flow.received(subscription)
        flow.outcome(Outcome.SUCCESS)
        flow.answered(subscription)
    assert subscription.said == [1, 10]


def test_a_newcomer_waits_for_what_is_in_flight(clock: HandClock) -> None:
    """The old connection has all of max_in_flight in hand; together they stay below it."""
    flow = make(clock, 4, 1)
    old = flow.subscriptions[0]
    for _ in range(4):
        flow.received(old)
    new = FakeSubscription()
    flow.add(new)
    assert (old.ready, new.ready) == (2, 0)
    flow.answered(old)
    assert (old.ready, new.ready) == (2, 1)
    assert claims(flow) <= 4


def test_more_connections_than_max_in_flight_take_turns(clock: HandClock) -> None:
    flow = make(clock, 2, 6)
    assert ready(flow) == [0, 0, 0, 0, 1, 1]
    had: set[int] = set()
    for _ in range(60):
        clock.advance(5)
        assert sum(ready(flow)) == 2
        had |= {id(subscription) for subscription in flow.subscriptions if subscription.ready}
    assert len(had) == 6


def test_a_busy_connection_gives_up_after_thirty_seconds_and_an_idle_one_after_ten(
    clock: HandClock,
) -> None:
    flow = make(clock, 1, 2)
    holder = next(subscription for subscription in flow.subscriptions if subscription.ready)
    for _ in range(6):
        clock.advance(5)
        assert holder.ready == 1
        holder.heard_s = clock.now()
    clock.advance(5)
    assert holder.ready == 0
    other = next(subscription for subscription in flow.subscriptions if subscription.ready)
    clock.advance(10)
    assert other.ready == 1
    clock.advance(5)
    assert other.ready == 0


def test_rdy_moves_only_when_the_message_is_answered(clock: HandClock) -> None:
    flow = make(clock, 1, 2)
    holder = next(subscription for subscription in flow.subscriptions if subscription.ready)
    flow.received(holder)
    clock.advance(16)
    assert ready(flow) == [0, 0]
    flow.answered(holder)
    assert ready(flow) == [0, 1]


def test_zero_pauses(clock: HandClock) -> None:
    flow = make(clock, 10, 2)
    prove(flow)
    flow.change(0)
    assert ready(flow) == [0, 0]
    flow.change(4)
    assert ready(flow) == [2, 2]


def test_a_failure_stops_everything_and_then_one_connection_tests(clock: HandClock) -> None:
    flow = make(clock, 10, 2)
    prove(flow)
    flow.outcome(Outcome.FAILURE)
    assert (flow.level, ready(flow)) == (1, [0, 0])
    clock.advance(1.9)
    assert ready(flow) == [0, 0]
    clock.advance(0.2)
    assert ready(flow) == [0, 1]
    flow.outcome(Outcome.SUCCESS)
    assert (flow.level, ready(flow)) == (0, [5, 5])


def test_answers_while_waiting_do_not_count(clock: HandClock) -> None:
    flow = make(clock, 10, 2)
    for _ in range(5):
        flow.outcome(Outcome.FAILURE)
    flow.outcome(Outcome.SUCCESS)
    assert flow.level == 1


def test_each_level_waits_twice_as_long_up_to_two_minutes(clock: HandClock) -> None:
    flow = make(clock, 10, 1)
    waits = []
    for _ in range(9):
        flow.outcome(Outcome.FAILURE)
        started = clock.now()
        while flow.waiting:
            clock.advance(1)
        waits.append(clock.now() - started)
    assert waits == [2, 4, 8, 16, 32, 64, 120, 120, 120]
    for level in range(6, 0, -1):
        flow.outcome(Outcome.SUCCESS)
        assert (flow.level, flow.waiting) == (level, True)
        clock.advance(120)
    flow.outcome(Outcome.SUCCESS)
    assert (flow.level, ready(flow)) == (0, [1])


def test_requeueing_without_backoff_keeps_the_level(clock: HandClock) -> None:
    flow = make(clock, 10, 1)
    flow.outcome(Outcome.NEUTRAL)
    assert (flow.level, flow.waiting) == (0, False)
    flow.outcome(Outcome.FAILURE)
    clock.advance(2)
    flow.outcome(Outcome.NEUTRAL)
    assert (flow.level, flow.waiting) == (1, True)


def test_the_testing_connection_is_lost(clock: HandClock) -> None:
    flow = make(clock, 10, 2)
    flow.outcome(Outcome.FAILURE)
    clock.advance(2)
    flow.remove(next(subscription for subscription in flow.subscriptions if subscription.ready))
    assert ready(flow) == [1]


def test_backoff_can_be_switched_off(clock: HandClock) -> None:
    flow = make(clock, 10, 1, backoff_s_max=0)
    flow.outcome(Outcome.FAILURE)
    assert (flow.level, flow.waiting) == (0, False)


def test_stopping(clock: HandClock) -> None:
    flow = make(clock, 10, 2)
    flow.outcome(Outcome.FAILURE)
    flow.stop()
    clock.advance(1000)
    assert ready(flow) == [0, 0]


@pytest.mark.parametrize("seed", range(20))
def test_claims_never_pass_max_in_flight(clock: HandClock, seed: int) -> None:
    chance = random.Random(seed)
    flow = make(clock, chance.randrange(1, 12), 0)
    for _ in range(400):
        step = chance.randrange(6)
        busy = [subscription for subscription in flow.subscriptions if subscription.in_flight]
        open_ = [
            subscription
            for subscription in flow.subscriptions
            if subscription.in_flight < subscription.ready
        ]
        if step == 0 and len(flow.subscriptions) < 8:
            flow.add(FakeSubscription())
        elif step == 1 and flow.subscriptions and chance.random() < 0.2:
            flow.remove(chance.choice(flow.subscriptions))
        elif step == 2 and busy:
            flow.outcome(chance.choice(list(Outcome)))
            flow.answered(chance.choice(busy))
        elif step == 3:
            clock.advance(chance.random() * 10)
        elif open_:
            flow.received(chance.choice(open_))
        assert claims(flow) <= flow.max_in_flight
