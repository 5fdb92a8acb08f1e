"""Limits of single records against a list: whatever is published, changed, damaged or restarted."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from support.engine import SECOND, Rig, flip_bit, limit, scratch, segment_files
from support.state_machines import run_machine

from broker.engine.cursor.cursor import Cursor
from broker.engine.cursor.local import LocalConsumer

FILE_HEADER_BYTES = 64
HEADER = 40  # of a record
PADDING = 4  # of those here, as the limiter guesses it of records that it does not read
COUNTS = st.sampled_from([0, 1, 2, 7, 30, 90])
AGES = st.sampled_from([0, 1, 5, 40])
Draw = Callable[[Any], Any]


def own(cursor: Cursor) -> Cursor:
    """A cursor of the log's protocol: limits do not wait for it."""
    consumer = LocalConsumer(cursor, 0)
    consumer.redeliver_first()
    consumer.leave()
    return cursor


class LimiterMachine(RuleBasedStateMachine):
    in_files = True
    by_bytes = True
    damages = False

    @initialize(size=st.sampled_from([4, 12, 100]), segment=st.sampled_from([512, 2048]))
    def begin(self, size: int, segment: int) -> None:
        self.folder = scratch()
        self.generation = 0
        self.size = size
        self.more = {"segment_bytes": segment, "load_bytes": 256, "memory_segment_bytes": segment}
        self.rig = Rig(self.folder / "0" if self.in_files else None, **self.more)
        self.log = self.rig.engine.open_log("t", protocol="x", retention="limits")
        self.stored: list[int] = []  # when; the record of seq n is n - 1
        self.unreadable: set[int] = set()
        self.floor = 1
        self.msgs = self.bytes = self.age = 0
        self.limiter = limit(self.log)
        self.own = own(self.log.open_cursor("own", start=1))
        self.done: set[int] = set()  # seqs that `own` has finished
        self.passed: set[int] = set()  # that were dropped once, before `own` was given them

    def body(self, seq: int) -> bytes:
        return (b"%d" % seq).ljust(self.size, b".")[: self.size]

    def enforce(self) -> None:
        while (left := len(self.stored) + 1 - self.floor) > 0:
            over = (self.msgs and left > self.msgs) or (
                self.bytes and left > 1 and left * self.size > self.bytes
            )
            age_ns = self.age * SECOND
            old = age_ns and self.stored[self.floor - 1] + age_ns <= self.rig.loop.now_ns
            if not over and not old:
                break
            self.passed.add(self.floor)
            self.floor += 1

    @property
    def there(self) -> list[int]:
        return [n for n in range(self.floor, len(self.stored) + 1) if n not in self.unreadable]

    @rule(count=st.sampled_from([1, 3, 40]), turns=st.booleans())
    def publish(self, count: int, turns: bool) -> None:
        for part in [1] * count if turns else [count]:
            first = len(self.stored) + 1
            bodies = [self.body(seq) for seq in range(first, first + part)]
            assert self.rig.publish(self.log, bodies) == [1] * part
            self.stored += [self.rig.loop.now_ns] * part
            self.enforce()

    @rule(seconds=st.sampled_from([0.5, 1, 3, 20]))
    def pass_time(self, seconds: float) -> None:
        self.rig.advance(seconds)
        self.enforce()

    @rule(msgs=COUNTS, count=COUNTS, age=AGES)
    def change(self, msgs: int, count: int, age: int) -> None:
        self.msgs, self.age = msgs, age
        self.bytes = count * self.size if self.by_bytes else 0
        self.limiter.set_limits(self.msgs, self.bytes, self.age * SECOND)
        self.rig.settle()
        self.enforce()

    @rule(every=st.sampled_from([1, 2, 3]), credit=st.sampled_from([1, 10, 1000]))
    def consume(self, every: int, credit: int) -> None:
        """Take some, finish some of them, give the others back."""
        consumer = LocalConsumer(self.own, 0)
        consumer.redeliver_first()
        consumer.set_credit(credit)
        self.rig.settle()
        found = [seq for seq, *_ in consumer.records]
        assert [body for *_, body in consumer.records] == [self.body(seq) for seq in found]
        wanted = [seq for seq in self.there if seq not in self.done]
        assert set(found) <= set(wanted)
        assert len(found) == len(set(found))
        assert len(found) >= min(credit, len(set(wanted) - self.passed))
        for seq in found[::every]:
            assert consumer.settle(seq)
            self.done.add(seq)
        consumer.leave()
        self.rig.settle()

    @precondition(lambda self: self.in_files)
    @rule(close=st.booleans(), hurt=st.integers(0, 1 << 30))
    def restart(self, close: bool, hurt: int) -> None:
        self.generation += 1
        root = self.folder / str(self.generation)
        if close:
            self.rig.close()
            (self.folder / str(self.generation - 1)).rename(root)
        else:
            self.rig.crash(root)
        if self.damages and hurt % 3:
            self.damage(root, hurt)
        clock = (self.rig.loop.now_ns, 0)
        self.rig = Rig(root, clock=clock, **self.more)
        self.log = self.rig.engine.log("t")
        self.own = own(self.log.cursors["own"])
        self.limiter = limit(self.log, self.msgs, self.bytes, self.age * SECOND)
        self.rig.settle()
        # what was dropped before and is still in a file is there again if the limits allow it
        self.floor = max(min(self.floor, self.log.first_seq), 1)
        self.enforce()

    def damage(self, root: Any, hurt: int) -> None:
        """One bit of one record, not in the last file."""
        files = segment_files(root)
        if len(files) < 2:
            return
        file = files[hurt % (len(files) - 1)]
        step = HEADER + self.size + PADDING
        count = (file.stat().st_size - FILE_HEADER_BYTES) // step
        index, at = hurt // 7 % count, hurt // 11 % (HEADER + self.size)
        seq = int(file.stem) + index
        if seq not in self.unreadable:  # a second time would heal it
            flip_bit(file, FILE_HEADER_BYTES + index * step + at, hurt % 8)
            self.unreadable.add(seq)

    @invariant()
    def what_is_there(self) -> None:
        cursor = self.log.open_cursor("new", ephemeral=True, start=self.log.first_seq)
        consumer = LocalConsumer(cursor, 1 << 30)
        consumer.redeliver_first()
        self.rig.settle()
        found = [seq for seq, *_ in consumer.records]
        assert [body for *_, body in consumer.records] == [self.body(seq) for seq in found]
        consumer.leave()
        assert found == self.there
        assert self.log.visible == len(self.stored) + 1
        assert self.log.first_seq == self.floor or self.unreadable
        if not self.damages:
            assert self.limiter.bytes == self.size * len(found)
            assert not self.rig.reports

    @invariant()
    def files_go(self) -> None:
        if len(self.log.segments) > 2 and not self.damages:
            assert self.log.segments[0].next_seq > self.floor

    def teardown(self) -> None:
        if hasattr(self, "rig"):
            self.rig.abandon()
            shutil.rmtree(self.folder, ignore_errors=True)


class MemoryMachine(LimiterMachine):
    in_files = False


class DamageMachine(LimiterMachine):
    by_bytes = False
    damages = True


@pytest.mark.parametrize("machine", [LimiterMachine, MemoryMachine, DamageMachine])
def test_limits_of_a_list(machine: type[LimiterMachine]) -> None:
    run_machine(machine, steps=25)
