"""The number of messages that each connection may send: RDY, its redistribution, and backoff.

    working --failure--> waiting (RDY 0 everywhere, 2^level seconds) --> testing (RDY 1 on one)
    testing --success--> waiting at level - 1, working again at 0; --failure--> waiting at level + 1

The claim of a subscription is max(RDY, messages in flight). The sum of all claims never exceeds
max_in_flight, so a subscription without RDY counts until its last message is answered.
"""

from __future__ import annotations

import enum
import random
from typing import Protocol

from broker.client.nsq import limits
from broker.client.nsq.clock import Clock, Timer


class Subscription(Protocol):
    """The interface of a subscribed connection."""

    ready: int  # the RDY that was sent last
    ready_max: int
    in_flight: int
    has_delivered: bool  # whether it has delivered a message; until then its RDY is at most 1
    heard_s: float  # time of the last message, or when RDY became more than 0
    granted_s: float  # time when RDY became more than 0

    def send_rdy(self, count: int) -> None:
        """Send RDY."""


class Outcome(enum.Enum):
    """The result of a message, which controls the backoff."""

    SUCCESS = enum.auto()
    FAILURE = enum.auto()
    NEUTRAL = enum.auto()  # requeued without backoff


class Flow:
    """Divides max_in_flight among the subscriptions."""

    def __init__(
        self,
        max_in_flight: int,
        clock: Clock,
        *,
        backoff_s_max: float = limits.BACKOFF_S_MAX,
        chance: random.Random | None = None,
    ) -> None:
        if max_in_flight < 0:
            raise ValueError("max_in_flight must not be negative")
        self.max_in_flight = max_in_flight
        self.level = 0
        self.waiting = False
        self.closing = False
        self.subscriptions: list[Subscription] = []
        self._clock = clock
        self._backoff_s_max = backoff_s_max
        self._rng = chance or random.Random()  # noqa: S311  distributes load, no secrets
        self._backoff_timer: Timer | None = None
        self._redistribute_timer: Timer | None = None

    # --- subscriptions ---

    def start(self) -> None:
        """Start the timer of the redistribution."""
        self._redistribute_timer = self._clock.call_later(limits.REDISTRIBUTE_S, self._redistribute)

    def add(self, subscription: Subscription) -> None:
        """Add a connection that has subscribed."""
        self.subscriptions.append(subscription)
        self.balance()

    def remove(self, subscription: Subscription) -> None:
        """Remove a connection that was lost."""
        if subscription in self.subscriptions:
            self.subscriptions.remove(subscription)
            self.balance()

    def change(self, max_in_flight: int) -> None:
        """Change max_in_flight; 0 pauses."""
        self.max_in_flight = max_in_flight
        self.balance()

    def received(self, subscription: Subscription) -> None:
        """Called when a message was received."""
        subscription.in_flight += 1
        subscription.heard_s = self._clock.now()
        if not subscription.has_delivered:
            subscription.has_delivered = True
            self.balance()

    def answered(self, subscription: Subscription) -> None:
        """Called when a message was answered."""
        subscription.in_flight -= 1
        if subscription.in_flight >= subscription.ready:
            self.balance()  # the claim has decreased, so another RDY may increase

    # --- RDY ---

    def balance(self) -> None:
        """Compute the RDY of every subscription; send decreases first, then increases."""
        if self.closing or self.waiting or not self.subscriptions or self.max_in_flight == 0:
            self._pause_all()
        elif self.level:
            self._test()
        else:
            self._share()

    def _pause_all(self) -> None:
        for subscription in self.subscriptions:
            self._set_ready(subscription, 0)

    def _test(self) -> None:
        if any(subscription.ready for subscription in self.subscriptions):
            chosen = next(subscription for subscription in self.subscriptions if subscription.ready)
        else:
            chosen = self._rng.choice(self.subscriptions)
        for subscription in self.subscriptions:
            self._set_ready(subscription, 1 if subscription is chosen else 0)

    def _share(self) -> None:
        share = max(1, self.max_in_flight // len(self.subscriptions))
        targets = {
            id(each): min(share, each.ready_max) if each.has_delivered else 1
            for each in self.subscriptions
        }
        for subscription in self.subscriptions:
            if subscription.ready > targets[id(subscription)]:
                self._set_ready(subscription, targets[id(subscription)])
        claimed = sum(
            max(subscription.ready, subscription.in_flight) for subscription in self.subscriptions
        )
        free = self.max_in_flight - claimed
        if free < 0:  # max_in_flight decreased, or there are more connections than it allows
            for subscription in self._shuffled():
                if free < 0 and subscription.ready:
                    free += max(subscription.ready, subscription.in_flight) - subscription.in_flight
                    self._set_ready(subscription, 0)
        for subscription in self._shuffled():
            claim = max(subscription.ready, subscription.in_flight)
            count = min(targets[id(subscription)], claim + max(free, 0))
            if count > subscription.ready:
                free -= max(count, subscription.in_flight) - claim
                self._set_ready(subscription, count)

    def _shuffled(self) -> list[Subscription]:
        if len(self.subscriptions) <= self.max_in_flight:
            return self.subscriptions
        return self._rng.sample(self.subscriptions, len(self.subscriptions))

    def _set_ready(self, subscription: Subscription, count: int) -> None:
        if subscription.ready != count:
            if subscription.ready == 0:
                subscription.granted_s = subscription.heard_s = self._clock.now()
            subscription.ready = count
            subscription.send_rdy(count)

    def _redistribute(self) -> None:
        """If there are more subscriptions than RDY: move RDY from subscriptions that had no message
        for RDY_IDLE_S, or had RDY for RDY_HELD_S, to subscriptions without RDY."""
        self._redistribute_timer = self._clock.call_later(limits.REDISTRIBUTE_S, self._redistribute)
        total = 1 if self.level else self.max_in_flight
        if self.closing or self.waiting or len(self.subscriptions) <= total:
            return
        now = self._clock.now()
        others = [subscription for subscription in self.subscriptions if subscription.ready == 0]
        for subscription in list(self.subscriptions):
            idle = now - subscription.heard_s > limits.RDY_IDLE_S
            expired = now - subscription.granted_s > limits.RDY_HELD_S
            if subscription.ready and others and (idle or expired):
                other = others.pop(self._rng.randrange(len(others)))
                self._set_ready(subscription, 0)
                if subscription.in_flight == 0:
                    self._set_ready(other, 1)

    # --- backoff ---

    def outcome(self, outcome: Outcome) -> None:
        """Change the backoff after an answer; does nothing while waiting."""
        if self.waiting or self.closing or self._backoff_s_max <= 0:
            return
        if outcome is Outcome.FAILURE:
            if 2**self.level < self._backoff_s_max:
                self.level += 1
        elif self.level == 0:
            return
        elif outcome is Outcome.SUCCESS:
            self.level -= 1
            if self.level == 0:
                self.balance()
                return
        self.waiting = True
        self.balance()
        wait_s = min(2.0**self.level, self._backoff_s_max)
        self._backoff_timer = self._clock.call_later(wait_s, self._end_wait)

    def _end_wait(self) -> None:
        self.waiting = False
        self.balance()

    def stop(self) -> None:
        """Request no more messages, and cancel the timers."""
        self.closing = True
        self.balance()
        for timer in (self._backoff_timer, self._redistribute_timer):
            if timer is not None:
                timer.cancel()
