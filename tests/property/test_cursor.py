"""A cursor against a dict: whatever consumers, operators, clocks and crashes do, in any order."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from support.engine import SECOND, Rig, scratch
from support.native.cursors import Acks

from broker.engine.cursor.deadletter import DeadLetters
from broker.engine.cursor.local import LocalConsumer

CONSUMERS = 3
WAITS = (10, 4, 17)  # seconds
WAIT_MAX = 25
KEEP = 10**6 * SECOND

Draw = Callable[[Any], Any]

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
    known: bool = True  # that it is to wait, before it is read


class CursorMachine(RuleBasedStateMachine):
    inline = False
    limit = 0  # deliveries; 0 = any

    @initialize(segment=st.sampled_from([512, 4096]), keep=st.booleans())
    def begin(self, segment: int, keep: bool) -> None:
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
        self.consumers: dict[int, Any] = {}
        self.credit: dict[int, int] = {}
        self.wait: dict[int, int] = {}
        self.paused = self.log_paused = False
        self.log = self.rig.log()
        self.keep = keep
        self.rig.engine.set_settings(self.log, {"keep": KEEP} if keep else {})
        self.cursor = self.log.open_cursor("c")
        self.dead: list[bytes] = []
        self.mark_dead()
        self.join(0, 40)
        self.rig.settle()

    def mark_dead(self) -> None:
        """Records delivered often enough go to the log `d`."""
        if self.limit:
            open_log = self.rig.engine.open_log
            DeadLetters(self.cursor, self.limit, "d", open_log, lambda _c, _f: b"H").begin()

    def join(self, who: int, credit: int, wait: int = WAITS[0]) -> None:
        self.consumers[who] = LocalConsumer(self.cursor, credit, wait, WAIT_MAX)
        self.credit[who], self.wait[who] = credit, wait

    def again(self, entry: Entry) -> None:
        """A delivery came to nothing."""
        entry.state, entry.owner = AGAIN, None
        if self.limit and entry.attempts >= self.limit:
            entry.state = ACKED
            self.dead.append(entry.body)

    @property
    def now(self) -> int:
        return self.rig.loop.now_ns

    def of(self, *states: str) -> list[int]:
        return [seq for seq, entry in self.model.items() if entry.state in states]

    def held(self) -> list[int]:
        return [seq for seq in self.of(SENT) if self.model[seq].owner is not None]

    # --- what happens

    @rule(data=st.data())
    def act(self, data: st.DataObject) -> None:
        """One rule for all, so that the weights are ours."""
        actions = [name for name in ACTIONS if NEEDS.get(name, lambda _: True)(self)]
        getattr(self, data.draw(st.sampled_from(actions)))(data.draw)
        self.take()

    def publish(self, draw: Draw) -> None:
        count = draw(st.integers(1, 30))
        delay = draw(st.sampled_from([0, 0, 0, 3, 12]))
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

    def set_credit(self, draw: Draw) -> None:
        who = draw(st.integers(0, CONSUMERS - 1))
        credit = draw(st.sampled_from([40, 7, 2, 1, 0]))
        if who in self.consumers:
            self.consumers[who].set_credit(credit)
            self.credit[who] = credit
        else:
            self.join(who, credit)

    def set_wait(self, draw: Draw) -> None:
        """Deadlines do not come in the order of deliveries then."""
        who = draw(st.sampled_from(sorted(self.consumers)))
        self.wait[who] = draw(st.sampled_from(WAITS))
        self.consumers[who].set_ack_wait(self.wait[who], WAIT_MAX)

    def finish(self, draw: Draw) -> None:
        for _ in range(draw(st.integers(1, 12))):
            if not self.held():
                break
            entry, consumer, seq = self.pick(draw)
            assert consumer.finish(seq) == 0
            entry.state = ACKED

    def requeue(self, draw: Draw) -> None:
        entry, consumer, seq = self.pick(draw)
        delay = draw(st.sampled_from([0, 2, 11]))
        assert consumer.requeue(seq, delay) == 0
        self.again(entry)
        if delay and entry.state == AGAIN:
            entry.state, entry.due = DEFERRED, self.now + delay * SECOND

    def touch(self, draw: Draw) -> None:
        entry, consumer, seq = self.pick(draw)
        assert consumer.touch(seq) == 0
        wait = self.wait[entry.owner]
        entry.due = min(self.now + wait * SECOND, entry.sent + WAIT_MAX * SECOND)

    def not_theirs(self, draw: Draw) -> None:
        """Nobody can answer for a record that is not with them."""
        who = draw(st.sampled_from(sorted(self.consumers)))
        seq = draw(st.sampled_from(sorted(self.model)))
        entry = self.model[seq]
        if entry.state == SENT and entry.owner == who:
            return
        code = 2 if entry.state == SENT else 1
        consumer = self.consumers[who]
        assert (consumer.finish(seq), consumer.requeue(seq), consumer.touch(seq)) == (
            code,
            code,
            code,
        )

    def pass_time(self, draw: Draw) -> None:
        """From one moment at which something is due to the next."""
        end = self.now + draw(st.sampled_from([1, 2, 5, 8, 30])) * SECOND
        while self.now < end:
            due = [self.model[seq].due for seq in self.of(SENT, DEFERRED)]
            due += [self.model[seq].not_before for seq in self.of(WAITING)]
            step = min([moment for moment in due if moment > self.now] + [end])
            self.rig.advance((step - self.now) / SECOND)
            self.expire()
            self.take()
            self.counters_agree()
        kept = self.log.segments
        needed = 1 if self.keep else min(self.cursor.acks.floor, self.log.frontier)
        assert len(kept) < 2 or kept[1].first_seq > needed

    def leave(self, draw: Draw) -> None:
        who = draw(st.sampled_from(sorted(self.consumers)))
        requeue = draw(st.booleans())
        self.consumers.pop(who).leave(requeue)
        del self.credit[who]
        for seq in self.of(SENT):
            entry = self.model[seq]
            if entry.owner == who:
                entry.owner = None
                if requeue:
                    self.again(entry)

    def pause(self, draw: Draw) -> None:
        self.paused = True
        self.cursor.pause()

    def unpause(self, draw: Draw) -> None:
        self.paused = False
        self.cursor.unpause()

    def pause_log(self, draw: Draw) -> None:
        self.log_paused = True
        self.log.pause()

    def unpause_log(self, draw: Draw) -> None:
        self.log_paused = False
        self.log.unpause()
        for seq in self.of(LOGGED):
            self.model[seq].state = WAITING

    def empty(self, draw: Draw) -> None:
        self.cursor.empty()
        for entry in self.model.values():
            if entry.state != LOGGED:
                entry.state, entry.owner = ACKED, None

    def empty_log(self, draw: Draw) -> None:
        self.log.empty()
        for seq in self.of(LOGGED):
            self.model[seq].state = ACKED

    def rewind(self, draw: Draw) -> None:
        """To any place, also one that is not there any more or not there yet."""
        asked = draw(st.integers(0, len(self.model) + 2))
        place = self.cursor.rewind(asked)
        assert place == min(max(asked, self.log.first_seq), self.log.frontier)
        for seq, entry in self.model.items():
            if entry.state != LOGGED and seq < self.log.frontier:
                entry.state = ACKED if seq < place else WAITING
                entry.owner, entry.attempts, entry.due = None, 0, 0

    def restart(self, draw: Draw) -> None:
        """With the consumers, or without them."""
        self.generation += 1
        root = self.folder / str(self.generation)
        if draw(st.booleans()):
            self.rig.close()
            (self.folder / str(self.generation - 1)).rename(root)
        else:
            self.rig.crash(root)
        self.consumers.clear()
        if draw(st.booleans()):
            self.credit.clear()
        self.rig = Rig(root, clock=(self.now, 0), **self.limits)
        assert not self.rig.engine.problems
        self.log = self.rig.engine.log("t")
        self.cursor = self.log.cursors["c"]
        self.mark_dead()
        for seq in self.of(SENT):
            self.again(self.model[seq])
        for seq, entry in self.model.items():
            # only the last segment is looked through for times to wait for
            entry.known = seq >= self.log.segments[-1].first_seq
        self.expire()
        for who, credit in self.credit.items():
            self.join(who, credit, self.wait[who])

    def pick(self, draw: Draw) -> tuple[Entry, Any, int]:
        """A record with a consumer, and the consumer."""
        seq = draw(st.sampled_from(self.held()))
        entry = self.model[seq]
        assert entry.owner is not None
        return entry, self.consumers[entry.owner], seq

    # --- what must be so

    def expire(self) -> None:
        for seq in self.of(SENT, DEFERRED):
            entry = self.model[seq]
            if entry.due <= self.now:
                self.again(entry)

    def take(self) -> None:
        """Let the engine act, and the model follow what was delivered."""
        self.rig.settle()
        for who, consumer in self.consumers.items():
            records, consumer.records = consumer.records, []
            for seq, attempts, _, body in records:
                entry = self.model[seq]
                assert entry.state in (WAITING, AGAIN), (seq, entry)
                assert entry.not_before <= self.now, (seq, entry)
                assert body == entry.body
                assert attempts == entry.attempts + 1, (seq, attempts, entry)
                entry.state, entry.owner, entry.attempts = SENT, who, attempts
                entry.sent = self.now
                entry.due = self.now + self.wait[who] * SECOND
        for seq in self.of(WAITING):
            entry = self.model[seq]
            if entry.not_before > self.now and seq < self.cursor.next_seq:
                entry.state, entry.due = DEFERRED, entry.not_before

    @invariant()
    def counters_agree(self) -> None:
        cursor = self.cursor
        ahead = [s for s in self.of(WAITING) if self.model[s].not_before > self.now]
        apart = sum(1 for seq in ahead if self.model[seq].known)
        assert cursor.depth == len(self.of(WAITING, AGAIN)) - apart
        assert cursor.in_flight_count == len(self.of(SENT))
        assert cursor.deferred_count == len(self.of(DEFERRED)) + apart
        assert self.log.depth == len(self.of(LOGGED))
        assert cursor.paused == self.paused
        assert self.log.paused == self.log_paused
        entries = len(self.of(SENT, DEFERRED, AGAIN))
        assert cursor.inflight.size == entries
        for who, consumer in self.consumers.items():
            assert consumer.in_flight == sum(
                1 for e in self.model.values() if e.state == SENT and e.owner == who
            )

    @invariant()
    def nothing_waits_for_nothing(self) -> None:
        if self.paused:
            return
        free = [w for w, t in self.consumers.items() if t.in_flight < self.credit[w]]
        assert not (free and self.of(AGAIN))
        ready = [s for s in self.of(WAITING) if self.model[s].not_before <= self.now]
        assert not (free and ready)

    @invariant()
    def acked_is_acked(self) -> None:
        acks = Acks(self.cursor.acks)
        for seq, entry in self.model.items():
            assert (seq in acks) == (entry.state == ACKED), (seq, entry)

    @invariant()
    def the_dead_are_elsewhere(self) -> None:
        log = self.rig.engine.log("d")
        assert (0 if log is None else log.next_seq - 1) == len(self.dead)

    def teardown(self) -> None:
        if hasattr(self, "rig"):
            self.consumers.clear()
            self.rig.abandon()
            shutil.rmtree(self.folder, ignore_errors=True)


# How often each is done; NEEDS says when it can be.
ACTIONS = [
    *["publish"] * 4, *["pass_time"] * 3, *["finish"] * 4, *["requeue"] * 3, *["touch"] * 2,
    *["set_credit"] * 3, *["set_wait"] * 2, *["leave"] * 2, *["restart"] * 2, "not_theirs", "pause",
    *["unpause"] * 4, "pause_log", *["unpause_log"] * 3, "empty", "empty_log",
    *["rewind"] * 2,
]  # fmt: skip
NEEDS: dict[str, Callable[[CursorMachine], object]] = {
    "finish": CursorMachine.held,
    "requeue": CursorMachine.held,
    "touch": CursorMachine.held,
    "not_theirs": lambda m: m.model and m.consumers,
    "leave": lambda m: m.consumers,
    "set_wait": lambda m: m.consumers,
    "pause": lambda m: not m.paused,
    "unpause": lambda m: m.paused,
    "pause_log": lambda m: not m.log_paused,
    "unpause_log": lambda m: m.log_paused,
    "empty": lambda m: m.model,
    "empty_log": lambda m: m.of(LOGGED),
}


class InlineMachine(CursorMachine):
    inline = True


class DeadLetterMachine(CursorMachine):
    limit = 2


SETTINGS = settings(
    max_examples=100,
    report_multiple_bugs=False,
    stateful_step_count=60,
    suppress_health_check=list(HealthCheck),
)


@pytest.mark.parametrize("machine", [CursorMachine, InlineMachine, DeadLetterMachine])
def test_cursor_is_a_dict(machine: type[CursorMachine]) -> None:
    case = machine.TestCase
    case.settings = SETTINGS
    case("runTest").runTest()
