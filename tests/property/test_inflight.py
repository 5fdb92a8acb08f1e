"""Entries by seq against a dict, and the queue of those to be given again against a list."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from support.native.cursors import Entries

from broker.engine.cursor.inflight import Inflight

SLAB = 64
# Seqs of one bucket and its neighbours, of a run, and far apart.
SEQS = st.integers(1, 40) | st.integers(1, 4000) | st.integers(1, 2**62).map(lambda n: n * 2 + 1)


class InflightMachine(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.inflight = Entries(Inflight())
        self.index: dict[int, int] = {}
        self.queue: list[int] = []
        self.most = 0

    def make(self, seq: int) -> None:
        if seq not in self.index:
            self.index[seq] = self.inflight.make(seq)
            self.most = max(self.most, len(self.index))

    @rule(seq=SEQS)
    def one(self, seq: int) -> None:
        self.make(seq)

    @rule(first=st.integers(1, 3000), count=st.integers(1, 1500), step=st.sampled_from([1, 2, 64]))
    def many(self, first: int, count: int, step: int) -> None:
        for seq in range(first, first + count * step, step):
            self.make(seq)

    @rule(data=st.data(), count=st.integers(1, 1000))
    def drop(self, data: st.DataObject, count: int) -> None:
        free = sorted(self.index.keys() - set(self.queue))
        if free:
            start = data.draw(st.integers(0, len(free) - 1))
            for seq in free[start : start + count]:
                self.inflight.free(seq)
                del self.index[seq]

    @rule(data=st.data(), count=st.integers(1, 20))
    def push(self, data: st.DataObject, count: int) -> None:
        free = sorted(self.index.keys() - set(self.queue))
        for seq in data.draw(st.permutations(free[:count])):
            self.inflight.push_again(seq)
            self.queue.append(seq)

    @rule(count=st.integers(1, 20))
    def pop(self, count: int) -> None:
        for _ in range(count):
            expected = self.queue.pop(0) if self.queue else None
            assert self.inflight.pop_again() == expected

    @rule()
    def clear(self) -> None:
        self.inflight.clear()
        self.index.clear()
        self.queue.clear()
        self.most = 0
        assert self.inflight.slab_count == (-(-(self.most + 1) // SLAB) if self.most else 0)

    @invariant()
    def same(self) -> None:
        assert self.inflight.size == len(self.index)
        assert self.inflight.again == len(self.queue)
        assert all(seq in self.inflight for seq in self.index)
        for seq in (1, 2, 39, 2**50):
            assert (seq in self.inflight) == (seq in self.index)
        # index 0 means none, so the first slab has one less
        assert self.inflight.slab_count == (-(-(self.most + 1) // SLAB) if self.most else 0)

    @invariant()
    def an_index_is_given_once(self) -> None:
        assert len(set(self.index.values())) == len(self.index)
        assert 0 not in self.index.values()


TestInflight = InflightMachine.TestCase
TestInflight.settings = settings(max_examples=40, stateful_step_count=30)


def test_a_million_records_pass_through_the_slabs_of_a_thousand() -> None:
    inflight = Entries(Inflight())
    for first in range(1, 1_000_001, 1000):
        for seq in range(first, first + 1000):
            inflight.make(seq)
        for seq in range(first, first + 1000):
            inflight.free(seq)
    assert (inflight.size, inflight.slab_count) == (0, 1001 // SLAB + 1)
