"""The set of acked records against a set."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from support.native.cursors import Acks

from broker.engine.cursor.acks import AckSet

WINDOW = 10_000
WORDS_MIN = 64
# Where the bitmap is full, to the bit and to the word.
EDGES = [size + near for size in (4096, 8192) for near in (-65, -64, -63, -1, 0, 1, 63)]


class AckMachine(RuleBasedStateMachine):
    @initialize(floor=st.sampled_from([1, 2, 63, 64, 65, 4096, 2**40]))
    def begin(self, floor: int) -> None:
        self.set_floor(Acks(AckSet(floor, WINDOW)), floor)

    def set_floor(self, acks: Acks, floor: int) -> None:
        self.acks = acks
        self.floor = floor
        self.above: set[int] = set()

    def add(self, seq: int) -> None:
        new = seq >= self.floor and seq not in self.above
        assert self.acks.fits(seq)
        assert self.acks.ack(seq) == new
        if new:
            self.above.add(seq)
        while self.floor in self.above:
            self.above.remove(self.floor)
            self.floor += 1

    @rule(distance=st.integers(0, 300))
    def near(self, distance: int) -> None:
        self.add(self.floor + distance)

    @rule(distance=st.integers(0, WINDOW - 64) | st.sampled_from(EDGES))
    def far(self, distance: int) -> None:
        self.add(self.floor + distance)

    @rule(start=st.integers(0, 200), count=st.integers(1, 400))
    def run(self, start: int, count: int) -> None:
        first = self.floor + start
        for seq in range(first, first + count):
            self.add(seq)

    @rule(count=st.integers(1, 100))
    def below(self, count: int) -> None:
        self.add(max(0, self.floor - count))

    @rule()
    def close_the_gap(self) -> None:
        if self.above:
            for seq in range(self.floor, min(self.above)):
                self.add(seq)

    @rule(beyond=st.integers(0, 2**40))
    def too_far(self, beyond: int) -> None:
        assert not self.acks.fits(self.floor + WINDOW + 128 + beyond)
        # the bitmap's size is a power of two, so it may hold more than it must
        seq = self.floor + 2 * WINDOW + 128 + beyond
        assert not self.acks.fits(seq)
        with pytest.raises(OverflowError):
            self.acks.ack(seq)

    @rule(jump=st.integers(0, 1000))
    def reset(self, jump: int) -> None:
        floor = self.floor + jump
        self.acks.reset(floor)
        self.set_floor(self.acks, floor)

    @invariant()
    def same(self) -> None:
        assert self.acks.floor == self.floor
        assert self.acks.count == len(self.above)
        found = [seq for first, count in self.acks.runs() for seq in range(first, first + count)]
        assert found == sorted(self.above)
        for seq in (self.floor - 1, self.floor, self.floor + 1, max(self.above, default=1) + 1):
            assert (seq in self.acks) == (seq < self.floor or seq in self.above)
        assert self.acks.word_count <= 2 * (WINDOW // 64 + 1)


TestAcks = AckMachine.TestCase
TestAcks.settings = settings(max_examples=60, stateful_step_count=40)


def test_memory_stays_what_the_spread_needs() -> None:
    """A million acks in pairs turned around touch no more than the first words."""
    acks = Acks(AckSet(1))
    for seq in range(1, 1_000_001, 2):
        acks.ack(seq + 1)
        acks.ack(seq)
    assert (acks.floor, acks.count, acks.word_count) == (1_000_001, 0, WORDS_MIN)
