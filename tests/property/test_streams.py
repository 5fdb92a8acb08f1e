"""A stream against a dict: any appends, deletes, purges, limits, failures and restarts."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Coroutine
from errno import EIO
from typing import Any

import hypothesis.strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from support.engine import SYNC, WRITE, Rig, scratch
from support.native.stores import kill, last_seq_of, publish, publish_at, skip
from support.state_machines import run_machine

from broker.client.bulk.decode_python import PythonFrame
from broker.client.bulk.frame import head_of
from broker.engine.bulk.ranges import Range
from broker.engine.stream.store import StreamLimits, StreamStore, open_store
from broker.runtime import vfs

NAME = "js.A/S"
SUBJECTS = [b"a.x", b"a.y", b"b.x", b"b", b"S"]
PATTERNS = [b"a.*", b"*.x", b"b.>", b"*", b">"]


def covers(pattern: bytes, subject: bytes) -> bool:
    """Whether a subject, in which wildcards mean nothing, matches the pattern."""
    wide, narrow = pattern.split(b"."), subject.split(b".")
    if wide[-1] == b">" and len(narrow) >= len(wide):
        wide, narrow = wide[:-1], narrow[: len(wide) - 1]
    return len(wide) == len(narrow) and all(
        mine in (b"*", its) for mine, its in zip(wide, narrow, strict=True)
    )


REFUSALS = ("log refuses appends", "sync failed")
FILTERS = ["a.*", "b.>", "b", ">", "a.x", "c"]


def size_of(subject: bytes, headers: bytes, body: bytes) -> int:
    return 22 + len(subject) + len(body) + 8 + (4 + len(headers) if headers else 0)


def matches(pattern: str, subject: bytes) -> bool:
    wanted, found = pattern.encode().split(b"."), subject.split(b".")
    for place, token in enumerate(wanted):
        if token == b">":
            return len(found) > place
        if place >= len(found) or token not in (b"*", found[place]):
            return False
    return len(wanted) == len(found)


class Streams(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = scratch()
        self.limits: dict[str, Any] = {}
        self.model: dict[int, tuple[bytes, bytes, bytes]] = {}  # seq -> subject, headers, body
        self.last = 0
        self.began = 0
        self.start()

    def start(self) -> None:
        self.rig = Rig(self.folder / "0", segment_bytes=4096, journal_bytes_min=256)
        self.store: StreamStore = open_store(self.rig.engine, NAME, StreamLimits(**self.limits))

    def teardown(self) -> None:
        vfs.heal()
        self.rig.abandon()
        shutil.rmtree(self.folder, ignore_errors=True)

    # --- the model

    def total(self) -> int:
        return sum(size_of(*message) for message in self.model.values())

    def put(self, seq: int, subject: bytes, headers: bytes, body: bytes) -> None:
        self.model[seq] = subject, headers, body
        self.last = seq
        self.trim(subject)

    def trim(self, *subjects: bytes) -> None:
        most = self.limits.get("max_msgs_per_subject", 0)
        for subject in subjects:
            own = [seq for seq, message in self.model.items() if message[0] == subject]
            while most and len(own) > most:
                del self.model[own.pop(0)]
        if self.limits.get("discard_new"):
            return
        while 0 < self.limits.get("max_msgs", 0) < len(self.model):
            del self.model[next(iter(self.model))]
        while 0 < self.limits.get("max_bytes", 0) < self.total():
            del self.model[next(iter(self.model))]

    def wait(self, work: Coroutine[Any, Any, Any]) -> Any:
        async def run() -> Any:
            task = asyncio.ensure_future(work)
            while not task.done():
                await asyncio.sleep(0)
                self.rig.loop.serve(1)
                self.rig.loop.run()
            return await task

        return asyncio.run(run())

    # --- what happens

    @rule(
        messages=st.lists(
            st.tuples(
                st.sampled_from(SUBJECTS), st.sampled_from([b"", b"h"]), st.binary(max_size=9)
            ),
            min_size=1,
            max_size=6,
        ),
        failure=st.sampled_from([None, None, None, WRITE, SYNC]),
    )
    def append(self, messages: list[tuple[bytes, bytes, bytes]], failure: int | None) -> None:
        before, reports = (dict(self.model), self.last), len(self.rig.reports)
        if failure is not None:
            vfs.fail(failure, EIO)
        for subject, headers, body in messages:
            seq = publish(self.store, subject, body, headers=headers)
            if failure is not None and seq == 0:
                break  # a file could not be made
            assert seq > self.last
            self.put(seq, subject, headers, body)
        self.compare_totals()
        self.rig.settle()
        if failure is not None:
            vfs.heal()
            # The failed call may have been another one, such as one for the next file, which was
            # tried again: then all messages are there, and nothing was reported. A failure after
            # another one is not reported again.
            reported = any(text.startswith(REFUSALS) for _, text, _ in self.rig.reports[reports:])
            if self.store.last_seq == before[1]:
                assert reported or self.store.log.last_error
                self.model, self.last = before
            else:
                assert not reported
            self.rig.advance(3)

    @rule(subject=st.sampled_from(SUBJECTS), gap=st.sampled_from([0, 1, 3, 500, 2**32 - 3, 2**40]))
    def append_beyond(self, subject: bytes, gap: int) -> None:
        seq = self.store.log.next_seq + gap
        assert publish_at(self.store, seq, subject, b"beyond") == seq
        self.put(seq, subject, b"", b"beyond")
        self.rig.settle()

    @rule(subject=st.sampled_from(SUBJECTS))
    def append_as_a_mirror(self, subject: bytes) -> None:
        """The next seq of the origin, although a failure or a start has left it unused."""
        self.rig.settle()
        self.store.reuse_gap()
        seq = self.store.last_seq + 1
        if self.store.log.next_seq == seq:
            assert publish_at(self.store, seq, subject, b"next") == seq
            self.put(seq, subject, b"", b"next")
            self.rig.settle()

    @rule(
        rollups=st.lists(
            st.tuples(st.sampled_from(SUBJECTS + PATTERNS), st.sampled_from([1, 2, 3])),
            min_size=1,
            max_size=4,
        )
    )
    def roll_up(self, rollups: list[tuple[bytes, int]]) -> None:
        """Several at once: what the first ones replace is still in the index."""
        for subject, rollup in rollups:
            seq = publish(self.store, subject, b"new", rollup=rollup)
            for old, message in list(self.model.items()):
                if (
                    rollup == 2
                    or message[0] == subject
                    or (rollup == 3 and covers(subject, message[0]))
                ):
                    del self.model[old]
            self.put(seq, subject, b"", b"new")
        self.rig.settle()

    @rule()
    def use_up(self) -> None:
        self.last = skip(self.store)
        self.rig.settle()

    def some(self, place: int) -> int:
        seqs = list(self.model)
        return seqs[place % len(seqs)] if seqs else place % 10

    @rule(place=st.integers(0, 99), erase=st.booleans())
    def delete(self, place: int, erase: bool) -> None:
        seq = self.some(place)
        assert self.wait(self.store.delete(seq, erase)) == (seq in self.model)
        self.model.pop(seq, None)

    @rule(place=st.integers(0, 99))
    def kill(self, place: int) -> None:
        seq = self.some(place)
        assert kill(self.store, seq) == (seq in self.model)
        self.model.pop(seq, None)

    @rule(
        pattern=st.sampled_from([None, *FILTERS]),
        place=st.none() | st.integers(0, 99),
        keep=st.sampled_from([0, 0, 1, 3]),
    )
    def purge(self, pattern: str | None, place: int | None, keep: int) -> None:
        seq = 0 if place is None or keep else self.some(place)
        found = [s for s, m in self.model.items() if pattern is None or matches(pattern, m[0])]
        gone = [s for s in found if not seq or s < seq]
        if keep:
            gone = gone[:-keep]
        if pattern in (None, ">") and seq > self.last + 1:
            self.last = seq - 1
        assert self.wait(self.store.purge(pattern, seq=seq, keep=keep)) == len(gone)
        for s in gone:
            del self.model[s]

    @rule(
        max_msgs=st.sampled_from([0, 0, 8, 20]),
        max_bytes=st.sampled_from([0, 0, 300]),
        max_msgs_per_subject=st.sampled_from([0, 0, 1, 3]),
    )
    def limit(self, **limits: int) -> None:
        self.limits = limits
        self.store.set_limits(StreamLimits(**limits))
        self.trim(*SUBJECTS)

    @rule(begin=st.sampled_from([1, 1, 4, 2**39]), bytes_max=st.sampled_from([1, 200, 1 << 20]))
    def read_ranges(self, begin: int, bytes_max: int) -> None:
        """The bulk API has exactly the messages that are there, and no byte of others."""
        self.rig.settle()
        self.rig.advance(2)  # what a start has found is synced
        log, found, at = self.store.log, {}, begin
        assert log.sync.durable_next > max(self.model, default=0)
        while at < log.sync.durable_next:
            one = Range(log, at, 2**63, bytes_max)
            one.read()
            body = one.joined()
            assert not one.add_to_index(log)
            frame = PythonFrame(body, NAME.encode())
            assert (frame.bad, frame.gaps, frame.first) == (0, (), at)
            assert frame.next > at
            at = frame.next
            for record in frame._records:
                found[record.seq] = (record.subject or NAME.encode()[-1:], record.body)
            sizes = [(record.size + 7) & ~7 for record in frame._records]
            assert head_of(body).data_bytes == sum(sizes)
        wanted = {s: (m[0], m[2]) for s, m in self.model.items() if s >= begin}
        assert found == wanted

    @rule()
    def a_while(self) -> None:
        for _ in range(3):
            self.rig.advance(1)

    @rule(crash=st.booleans())
    def open_again(self, crash: bool) -> None:
        self.rig.settle()
        if crash:
            self.rig.crash(self.folder / "1")
            shutil.rmtree(self.folder / "0")
            (self.folder / "1").rename(self.folder / "0")
        else:
            self.rig.close()
        self.start()
        assert not self.rig.engine.problems

    # --- what must be so

    @invariant()
    def compare_totals(self) -> None:
        assert self.store.messages == len(self.model)
        assert self.store.bytes == self.total()
        assert self.store.last_seq == self.last
        assert self.store.first_seq == next(iter(self.model), self.last + 1)
        for subject in SUBJECTS:
            last = max((s for s, m in self.model.items() if m[0] == subject), default=0)
            assert last_seq_of(self.store, subject) == last

    @invariant()
    def compare_messages(self) -> None:
        for seq, (subject, headers, body) in self.model.items():
            found = self.store.message(seq)
            assert found is not None, seq
            assert (found[0], *found[2:]) == (seq, subject, headers, body)
        lost = self.store.deleted(30)
        assert not set(lost) & set(self.model)
        assert all(self.store.message(seq) is None for seq in lost)


def test_stream_is_a_dict() -> None:
    run_machine(Streams, steps=25)
