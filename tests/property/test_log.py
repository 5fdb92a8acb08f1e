"""A log against a list: runs of all sizes, many files, restarts, crashes, readers at any place."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from support.engine import Rig, bodies_of, scratch, segment_files
from support.state_machines import run_machine

from broker.engine.cursor.local import LocalConsumer
from broker.engine.log.publish import append, outcome

Record = tuple[bytes, bytes, bytes, bytes]  # subject, reply, headers, body
SMALL = st.integers(0, 60)
MARK = 40  # zeros behind the last record of a file that was used before
BODIES = st.lists(SMALL | st.sampled_from([700, 5000]), min_size=1, max_size=25)


class LogMachine(RuleBasedStateMachine):
    inline = False
    sync: str | float = "none"

    @initialize(
        segment=st.sampled_from([256, 1024, 1 << 16]),
        load=st.sampled_from([64, 4096]),
        keep=st.sampled_from([0, 1]),
        short=st.sampled_from([0, 200]),
    )
    def begin(self, segment: int, load: int, keep: int, short: int) -> None:
        self.folder = scratch()
        self.generation = 0
        self.limits: dict[str, Any] = {
            "segment_bytes": segment,
            "load_bytes": load,
            "journal_bytes_min": 300,
            "reclaim_bytes": 128,
            "inline_bytes": 1 << 17 if self.inline else 0,
            "keep_bytes": keep,
            "short_bytes": short,
        }
        self.records: list[Record] = []
        self.done = {"a": 0, "b": 0}  # how many of the records each cursor has finished
        self.frontier = 0  # what has been given to the cursors
        self.paused = False
        self.rig = Rig(self.folder / "0", sync=self.sync, **self.limits)
        self.log = self.rig.log()
        for name in self.done:
            self.log.open_cursor(name)
        self.rig.settle()

    @rule(sizes=BODIES, head=st.binary(max_size=9), reply=st.sampled_from([b"", b"inbox.1"]))
    def publish(self, sizes: list[int], head: bytes, reply: bytes) -> None:
        first = len(self.records)
        tickets = []
        for i, size in enumerate(sizes):
            body = os.urandom(size)
            subject = b"x.y" if i % 5 == 4 else b""
            tickets.append(append(self.log, body, headers=head, reply=reply, subject=subject))
            self.records.append((subject or b"t", reply, head, body))
        self.rig.settle()
        assert [outcome(self.log, ticket) for ticket in tickets] == [1] * len(sizes)
        assert self.log.visible == first + len(sizes) + 1
        if not self.paused:
            self.frontier = len(self.records)

    @rule(sizes=BODIES)
    def publish_in_many_turns(self, sizes: list[int]) -> None:
        """While writes are under way, more comes."""
        for size in sizes:
            body = os.urandom(size)
            append(self.log, body)
            self.rig.loop.run()
            self.records.append((b"t", b"", b"", body))
        self.rig.settle()
        if not self.paused:
            self.frontier = len(self.records)

    @rule(name=st.sampled_from("ab"), count=st.sampled_from([1, 5, 50, 1000]))
    def consume(self, name: str, count: int) -> None:
        """Read some, look at every byte, finish them."""
        consumer = LocalConsumer(self.log.cursors[name], count)
        consumer.heads = []
        self.rig.settle()
        start = self.done[name]
        end = min(start + count, self.frontier)
        seqs = [record[0] for record in consumer.records]
        assert seqs == list(range(start + 1, end + 1))
        bodies = bodies_of(consumer)
        got = [(*head, body) for head, body in zip(consumer.heads, bodies, strict=True)]
        assert got == self.records[start:end]
        consumer.set_credit(0)
        for seq in seqs:
            assert consumer.finish(seq) == 0
        self.done[name] = end
        consumer.leave()
        self.rig.settle()

    @rule(name=st.sampled_from("ab"))
    def look(self, name: str) -> None:
        """Read everything there is for a cursor and give it back."""
        consumer = LocalConsumer(self.log.cursors[name], 1 << 30)
        self.rig.settle()
        assert sorted(r[0] for r in consumer.records) == list(
            range(self.done[name] + 1, self.frontier + 1)
        )
        for seq, _, _, body in consumer.records:
            assert body == self.records[seq - 1][3]
        consumer.leave()
        self.rig.settle()

    @rule()
    def pause(self) -> None:
        self.paused = not self.paused
        if self.paused:
            self.log.pause()
        else:
            self.log.unpause()
            self.frontier = len(self.records)
        self.rig.settle()

    @rule()
    def empty(self) -> None:
        """Of a log that is not paused there is nothing to empty."""
        if not self.paused:
            self.log.empty()
            self.rig.settle()

    @rule(seconds=st.sampled_from([1, 3]))
    def pass_time(self, seconds: int) -> None:
        self.rig.advance(seconds)

    @rule(close=st.booleans())
    def restart(self, close: bool) -> None:
        self.generation += 1
        root = self.folder / str(self.generation)
        if close:
            self.rig.close()
            (self.folder / str(self.generation - 1)).rename(root)
        else:
            self.rig.crash(root)
        clock = (self.rig.loop.now_ns, 0)
        self.rig = Rig(root, sync=self.sync, clock=clock, **self.limits)
        assert self.rig.engine.problems == []
        self.log = self.rig.engine.log("t")

    @invariant()
    def counters_agree(self) -> None:
        log = self.log
        assert log.visible == log.next_seq == len(self.records) + 1
        assert log.frontier == self.frontier + 1
        assert log.depth == len(self.records) - self.frontier
        assert log.waiting_bytes == 0
        for name, done in self.done.items():
            assert log.cursors[name].depth == self.frontier - done
            assert log.cursors[name].acks.floor == done + 1
        assert log.first_seq <= min(self.done.values()) + 1
        assert not self.rig.reports

    @invariant()
    def files_agree(self) -> None:
        files = segment_files(self.rig.root or Path())
        assert [int(file.stem) for file in files] == [s.first_seq for s in self.log.segments]
        # behind the last record of a log that is synced there are zeros, and in a file that was
        # another segment's what is left of that one behind a few zeros
        texts = [file.read_bytes() for file in files]
        behind = [text[s.size :] for text, s in zip(texts, self.log.segments, strict=True)]
        assert all(len(t) >= s.size for t, s in zip(texts, self.log.segments, strict=True))
        assert not any(behind[:-1])
        mark = MARK if self.limits["keep_bytes"] else None
        assert not behind or not behind[-1][:mark].strip(b"\0")
        for before, after in zip(self.log.segments, self.log.segments[1:], strict=False):
            assert before.next_seq == after.first_seq

    def teardown(self) -> None:
        if hasattr(self, "rig"):
            self.rig.abandon()
            shutil.rmtree(self.folder, ignore_errors=True)


class InlineMachine(LogMachine):
    inline = True


class SyncedMachine(LogMachine):
    sync = "always"


@pytest.mark.parametrize("machine", [LogMachine, InlineMachine, SyncedMachine])
def test_log_is_a_list(machine: type[LogMachine]) -> None:
    run_machine(machine, steps=30)
