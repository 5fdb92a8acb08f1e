"""The heap of deadlines against a sorted list."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from support.native.timers import Alarms

ITEMS = 200
DUE = st.integers(-50, 50) | st.integers(-(2**63), 2**63 - 1)


class HeapMachine(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.alarms = Alarms(ITEMS)
        self.due: dict[int, int] = {}

    @rule(number=st.integers(0, ITEMS - 1), due=DUE)
    def put(self, number: int, due: int) -> None:
        if number in self.due:
            self.alarms.update(number, due)
        else:
            self.alarms.push(number, due)
        self.due[number] = due

    @rule(first=st.integers(0, ITEMS - 1), count=st.integers(1, 60), step=st.integers(-3, 3))
    def put_run(self, first: int, count: int, step: int) -> None:
        for i, number in enumerate(range(first, min(first + count, ITEMS))):
            self.put(number, i * step)

    @rule(number=st.integers(0, ITEMS - 1))
    def remove(self, number: int) -> None:
        """An item that is not there may be removed as well."""
        self.alarms.remove(number)
        self.due.pop(number, None)

    @rule(count=st.integers(1, 80))
    def take_first(self, count: int) -> None:
        for _ in range(min(count, len(self.due))):
            due, number = self.alarms.first()
            assert due == min(self.due.values())
            assert self.due.pop(number) == due
            self.alarms.remove(number)

    @invariant()
    def same(self) -> None:
        assert len(self.alarms) == len(self.due)
        first = self.alarms.first()
        if not self.due:
            assert first is None
        else:
            assert first[0] == min(self.due.values()) == self.due[first[1]]

    def teardown(self) -> None:
        if hasattr(self, "due"):
            self.take_first(ITEMS)
            assert self.alarms.first() is None


TestHeap = HeapMachine.TestCase
TestHeap.settings = settings(max_examples=80, stateful_step_count=40)
