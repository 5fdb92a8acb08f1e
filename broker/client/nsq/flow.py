"""How many messages each connection may send: RDY, its redistribution, and backing off.

    working --failure--> waiting (RDY 0 everywhere, 2^level seconds) --> testing (RDY 1 on one)
    testing --success--> waiting at level - 1, working again at 0; --failure--> waiting at level + 1

A lane claims max(RDY, messages in flight); the claims together never pass max_in_flight, so a
lane that gave its RDY away is counted until its last message is answered.
"""

from __future__ import annotations

import enum
import random
from typing import Protocol

from broker.client.nsq import defaults
from broker.client.nsq.clock import Clock, Timer


class Lane(Protocol):
    """A subscribed connection as this module sees it."""

    ready: int  # the RDY it was told last
    ready_max: int
    in_flight: int
    proven: bool  # it has delivered: from then on it gets its full share
    heard_s: float  # last message, or when RDY was given
    granted_s: float

    def say_ready(self, count: int) -> None:
        """Send RDY."""


class Outcome(enum.Enum):
    """What a message's answer says about the consumer's health."""

    SUCCESS = enum.auto()
    FAILURE = enum.auto()
    NEUTRAL = enum.auto()  # requeued without backoff


class Flow:
    """Shares max_in_flight among the lanes."""

    def __init__(
        self,
        max_in_flight: int,
        clock: Clock,
        *,
        backoff_s_max: float = defaults.BACKOFF_S_MAX,
        chance: random.Random | None = None,
    ) -> None:
        if max_in_flight < 0:
            raise ValueError("max_in_flight is negative")
        self.max_in_flight = max_in_flight
        self.level = 0
        self.waiting = False
        self.closing = False
        self.lanes: list[Lane] = []
        self._clock = clock
        self._backoff_s_max = backoff_s_max
        self._chance = chance or random.Random()  # noqa: S311  spreads load, guards nothing
        self._wait: Timer | None = None
        self._round: Timer | None = None

    # --- lanes ---

    def start(self) -> None:
        """Begin the rounds of redistribution."""
        self._round = self._clock.call_later(defaults.REDISTRIBUTE_S, self._redistribute)

    def add(self, lane: Lane) -> None:
        """A connection has subscribed."""
        self.lanes.append(lane)
        self.balance()

    def remove(self, lane: Lane) -> None:
        """A connection is gone, and its messages with it."""
        if lane in self.lanes:
            self.lanes.remove(lane)
            self.balance()

    def change(self, max_in_flight: int) -> None:
        """Another max_in_flight; 0 pauses."""
        self.max_in_flight = max_in_flight
        self.balance()

    def arrived(self, lane: Lane) -> None:
        """A message came in."""
        lane.in_flight += 1
        lane.heard_s = self._clock.now()
        if not lane.proven:
            lane.proven = True
            self.balance()

    def left(self, lane: Lane) -> None:
        """A message was answered."""
        lane.in_flight -= 1
        if lane.in_flight >= lane.ready:
            self.balance()  # its claim became smaller: somebody else may have more

    # --- RDY ---

    def balance(self) -> None:
        """Give every lane what it should have, taking first and giving after."""
        if self.closing or self.waiting or not self.lanes or self.max_in_flight == 0:
            self._silence()
        elif self.level:
            self._test()
        else:
            self._share()

    def _silence(self) -> None:
        for lane in self.lanes:
            self._grant(lane, 0)

    def _test(self) -> None:
        if any(lane.ready for lane in self.lanes):
            chosen = next(lane for lane in self.lanes if lane.ready)
        else:
            chosen = self._chance.choice(self.lanes)
        for lane in self.lanes:
            self._grant(lane, 1 if lane is chosen else 0)

    def _share(self) -> None:
        share = max(1, self.max_in_flight // len(self.lanes))
        wanted = {id(lane): min(share, lane.ready_max) if lane.proven else 1 for lane in self.lanes}
        for lane in self.lanes:
            if lane.ready > wanted[id(lane)]:
                self._grant(lane, wanted[id(lane)])
        claimed = sum(max(lane.ready, lane.in_flight) for lane in self.lanes)
        free = self.max_in_flight - claimed
        if free < 0:  # max_in_flight became smaller, or more connections came than it allows
            for lane in self._shuffled():
                if free < 0 and lane.ready:
                    free += max(lane.ready, lane.in_flight) - lane.in_flight
                    self._grant(lane, 0)
        for lane in self._shuffled():
            claim = max(lane.ready, lane.in_flight)
            count = min(wanted[id(lane)], claim + max(free, 0))
            if count > lane.ready:
                free -= max(count, lane.in_flight) - claim
                self._grant(lane, count)

    def _shuffled(self) -> list[Lane]:
        if len(self.lanes) <= self.max_in_flight:
            return self.lanes
        return self._chance.sample(self.lanes, len(self.lanes))

    def _grant(self, lane: Lane, count: int) -> None:
        if lane.ready != count:
            if lane.ready == 0:
                lane.granted_s = lane.heard_s = self._clock.now()
            lane.ready = count
            lane.say_ready(count)

    def _redistribute(self) -> None:
        """Take RDY from lanes that had nothing for a while or had their turn."""
        self._round = self._clock.call_later(defaults.REDISTRIBUTE_S, self._redistribute)
        places = 1 if self.level else self.max_in_flight
        if self.closing or self.waiting or len(self.lanes) <= places:
            return
        now = self._clock.now()
        others = [lane for lane in self.lanes if lane.ready == 0]
        for lane in list(self.lanes):
            idle = now - lane.heard_s > defaults.RDY_IDLE_S
            held = now - lane.granted_s > defaults.RDY_HELD_S
            if lane.ready and others and (idle or held):
                heir = others.pop(self._chance.randrange(len(others)))
                self._grant(lane, 0)
                if lane.in_flight == 0:
                    self._grant(heir, 1)

    # --- backing off ---

    def outcome(self, outcome: Outcome) -> None:
        """An answer's bearing on the backoff; ignored while waiting."""
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
        self._wait = self._clock.call_later(wait_s, self._waited)

    def _waited(self) -> None:
        self.waiting = False
        self.balance()

    def stop(self) -> None:
        """No more messages, no more timers."""
        self.closing = True
        self.balance()
        for timer in (self._wait, self._round):
            if timer is not None:
                timer.cancel()
