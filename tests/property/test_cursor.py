"""A cursor against a dict: whatever consumers, operators, clocks and crashes do, in any order."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from typing import Any

import pytest
from harness.engine import SECOND, Rig, scratch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from broker.core.taker import Taker

CONSUMERS = 3
WAIT = 10.0
WAIT_MAX = 25.0

LOGGED = "logged"  # with the log itself: it is paused
WAITING = "waiting"
SENT = "sent"
DEFERRED = "deferred"
AGAIN = "again"
ACKED = "acked"


@dataclass
class Entry:
    """One record as the model sees it."""

    body: bytes
    state: str
    not_before: int = 0  # monotonic ns; 0 = at once
    attempts: int = 0
    owner: int | None = None
    due: int = 0
    sent: int = 0


class CursorMachine(RuleBasedStateMachine):
    inline = False

    @initialize(segment=st.sampled_from([512, 4096]))
    def begin(self, segment: int) -> None:
        self.folder = scratch()
        self.generation = 0
        self.limits: dict[str, Any] = {
            "segment_bytes": segment,
            "load_bytes": 256,
            "journal_bytes_min": 300,
            "reclaim_bytes": 1024,
            "inline_bytes": 1 << 17 if self.inline else 0,
        }
        self.rig = Rig(self.folder / "0", **self.limits)
        self.model: dict[int, Entry] = {}
        self.takers: dict[int, Any] = {}
        self.credit: dict[int, int] = {}
        self.paused = self.log_paused = False
        self.log = self.rig.log()
        self.cursor = self.log.open_cursor("c")
        self.rig.settle()

    @property
    def now(self) -> int:
        return self.rig.loop.now_ns

    def of(self, *states: str) -> list[int]:
        return [seq for seq, entry in self.model.items() if entry.state in states]

    # --- what happens

    @rule(count=st.integers(1, 30), delay=st.sampled_from([0, 0, 0, 3, 12]))
    def publish(self, count: int, delay: int) -> None:
        first = len(self.model) + 1
        bodies = [b"%d" % (first + i) + b"." * (i % 9) for i in range(count)]
        due = self.rig.turn.wall_ns + delay * SECOND if delay else 0
        for i, body in enumerate(bodies):
            self.model[first + i] = Entry(
                body,
                LOGGED if self.log_paused else WAITING,
                self.now + delay * SECOND if delay else 0,
            )
        assert self.rig.publish(self.log, bodies, not_before_ns=due) == [1] * count
        if delay and not self.log_paused:
            for seq in range(first, first + count):
                entry = self.model[seq]
                entry.state, entry.due = DEFERRED, entry.not_before
        self.take()

    @rule(who=st.integers(0, CONSUMERS - 1), credit=st.sampled_from([0, 1, 2, 7, 40]))
    def set_credit(self, who: int, credit: int) -> None:
        if who in self.takers:
            self.takers[who].set_credit(credit)
        else:
            self.takers[who] = Taker(self.cursor, credit, WAIT, WAIT_MAX)
        self.credit[who] = credit
        self.take()

    @rule(data=st.data(), count=st.integers(1, 12))
    def finish(self, data: st.DataObject, count: int) -> None:
        held = self.of(SENT)
        for _ in range(min(count, len(held))):
            seq = data.draw(st.sampled_from(held))
            held.remove(seq)
            entry = self.model[seq]
            if entry.owner is None:
                continue
            assert self.takers[entry.owner].finish(seq) == 0
            entry.state = ACKED
        self.take()

    @rule(data=st.data(), delay=st.sampled_from([0, 0, 2, 11]))
    def requeue(self, data: st.DataObject, delay: int) -> None:
        held = [seq for seq in self.of(SENT) if self.model[seq].owner is not None]
        if held:
            seq = data.draw(st.sampled_from(held))
            entry = self.model[seq]
            assert entry.owner is not None
            assert self.takers[entry.owner].requeue(seq, delay) == 0
            entry.owner = None
            entry.state = DEFERRED if delay else AGAIN
            entry.due = self.now + delay * SECOND
        self.take()

    @rule(data=st.data())
    def touch(self, data: st.DataObject) -> None:
        held = [seq for seq in self.of(SENT) if self.model[seq].owner is not None]
        if held:
            seq = data.draw(st.sampled_from(held))
            entry = self.model[seq]
            assert entry.owner is not None
            assert self.takers[entry.owner].touch(seq) == 0
            entry.due = min(self.now + int(WAIT) * SECOND, entry.sent + int(WAIT_MAX) * SECOND)
        self.take()

    @rule(data=st.data(), who=st.integers(0, CONSUMERS - 1))
    def not_theirs(self, data: st.DataObject, who: int) -> None:
        """Nobody can answer for a record that is not with them."""
        if who not in self.takers or not self.model:
            return
        seq = data.draw(st.sampled_from(sorted(self.model)))
        entry = self.model[seq]
        if entry.state == SENT and entry.owner == who:
            return
        code = 2 if entry.state == SENT else 1
        taker = self.takers[who]
        assert (taker.finish(seq), taker.requeue(seq), taker.touch(seq)) == (code, code, code)

    @rule(seconds=st.sampled_from([1, 2, 5, 10, 30]))
    def pass_time(self, seconds: int) -> None:
        """From one moment at which something is due to the next."""
        end = self.now + seconds * SECOND
        while self.now < end:
            due = [self.model[seq].due for seq in self.of(SENT, DEFERRED)]
            due += [self.model[seq].not_before for seq in self.of(WAITING)]
            step = min([moment for moment in due if moment > self.now] + [end])
            self.rig.advance((step - self.now) / SECOND)
            self.expire()
            self.take()
        kept = self.log.segments
        assert len(kept) < 2 or kept[1].first_seq > min(self.cursor.acks.floor, self.log.frontier)

    @rule(who=st.integers(0, CONSUMERS - 1), give_back=st.booleans())
    def leave(self, who: int, give_back: bool) -> None:
        if who not in self.takers:
            return
        self.takers.pop(who).leave(give_back)
        del self.credit[who]
        for seq in self.of(SENT):
            entry = self.model[seq]
            if entry.owner == who:
                entry.owner = None
                if give_back:
                    entry.state = AGAIN
        self.take()

    @rule()
    def pause(self) -> None:
        self.paused = not self.paused
        (self.cursor.pause if self.paused else self.cursor.unpause)()
        self.take()

    @rule()
    def pause_log(self) -> None:
        self.log_paused = not self.log_paused
        if self.log_paused:
            self.log.pause()
        else:
            self.log.unpause()
            for seq in self.of(LOGGED):
                self.model[seq].state = WAITING
        self.take()

    @precondition(lambda self: self.model)
    @rule()
    def empty(self) -> None:
        self.cursor.empty()
        for entry in self.model.values():
            if entry.state != LOGGED:
                entry.state, entry.owner = ACKED, None
        self.take()

    @precondition(lambda self: self.of(LOGGED))
    @rule()
    def empty_log(self) -> None:
        self.log.empty()
        for seq in self.of(LOGGED):
            self.model[seq].state = ACKED
        self.take()

    @rule(how=st.sampled_from(["close", "crash"]))
    def restart(self, how: str) -> None:
        self.generation += 1
        root = self.folder / str(self.generation)
        clock = (self.now, 0)
        if how == "close":
            self.rig.close()
            (self.folder / str(self.generation - 1)).rename(root)
        else:
            self.rig.crash(root)
        self.takers.clear()
        self.credit.clear()
        self.rig = Rig(root, clock=clock, **self.limits)
        assert not self.rig.engine.problems
        self.log = self.rig.engine.log("t")
        self.cursor = self.log.cursors["c"]
        for seq in self.of(SENT):
            self.model[seq].state = AGAIN
            self.model[seq].owner = None
        self.expire()
        self.take()

    # --- what must be so

    def expire(self) -> None:
        for seq in self.of(SENT, DEFERRED):
            entry = self.model[seq]
            if entry.due <= self.now:
                entry.state, entry.owner = AGAIN, None

    def take(self) -> None:
        """Let the engine act, and the model follow what was delivered."""
        self.rig.settle()
        for who, taker in self.takers.items():
            records, taker.records = taker.records, []
            for seq, attempts, _, body in records:
                entry = self.model[seq]
                assert entry.state in (WAITING, AGAIN), (seq, entry)
                assert entry.not_before <= self.now, (seq, entry)
                assert body == entry.body
                assert attempts == entry.attempts + 1, (seq, attempts, entry)
                entry.state, entry.owner, entry.attempts = SENT, who, attempts
                entry.sent = self.now
                entry.due = self.now + int(WAIT) * SECOND
        for seq in self.of(WAITING):
            entry = self.model[seq]
            if entry.not_before > self.now and seq < self.cursor.next_seq:
                entry.state, entry.due = DEFERRED, entry.not_before

    @invariant()
    def counters_agree(self) -> None:
        cursor = self.cursor
        assert cursor.depth == len(self.of(WAITING, AGAIN))
        assert cursor.in_flight_count == len(self.of(SENT))
        assert cursor.deferred_count == len(self.of(DEFERRED))
        assert self.log.depth == len(self.of(LOGGED))
        assert cursor.paused == self.paused
        assert self.log.paused == self.log_paused
        entries = len(self.of(SENT, DEFERRED, AGAIN))
        assert cursor.inflight.size == entries
        for who, taker in self.takers.items():
            assert taker.in_flight == sum(
                1 for e in self.model.values() if e.state == SENT and e.owner == who
            )

    @invariant()
    def nothing_waits_for_nothing(self) -> None:
        if self.paused:
            return
        free = [w for w, t in self.takers.items() if t.in_flight < self.credit[w]]
        assert not (free and self.of(AGAIN))
        ready = [s for s in self.of(WAITING) if self.model[s].not_before <= self.now]
        assert not (free and ready)

    @invariant()
    def acked_is_acked(self) -> None:
        acks = self.cursor.acks
        for seq, entry in self.model.items():
            assert (seq in acks) == (entry.state == ACKED), (seq, entry)

    def teardown(self) -> None:
        if hasattr(self, "rig"):
            self.takers.clear()
            self.rig.abandon()
            shutil.rmtree(self.folder, ignore_errors=True)


class InlineMachine(CursorMachine):
    inline = True


SETTINGS = settings(
    max_examples=100,
    report_multiple_bugs=False,
    stateful_step_count=60,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


@pytest.mark.parametrize("machine", [CursorMachine, InlineMachine])
def test_cursor_is_a_dict(machine: type[CursorMachine]) -> None:
    case = machine.TestCase
    case.settings = SETTINGS
    case("runTest").runTest()
