"""A stream whose file calls fail in any order, while its threads are now fast, now slow.

What was answered with 'stored' is there until a delete, a purge, a rollup, a limit or its age
removes it, what was answered with 'failed' is not, and what was removed does not return. The same
holds after a kill.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.engine import SECOND, Rig
from support.file_errors import GROUPS, disturb, recover, run_seeds
from support.native.stores import last_seq_of, publish, ticket

from broker.engine.log.publish import outcome
from broker.engine.stream.store import StreamLimits, StreamStore, open_store

NAME = "js.A/S"
SUBJECTS = (b"a.x", b"a.y", b"b.x", b"b")
PATTERNS = {None: SUBJECTS, "a.*": SUBJECTS[:2], "b": SUBJECTS[3:]}
LIMITS: tuple[dict[str, int], ...] = (
    {}, {}, {"max_msgs": 8}, {"max_msgs": 60}, {"max_msgs_per_subject": 1},
    {"max_msgs_per_subject": 20}, {"max_msgs": 60, "max_msgs_per_subject": 3},
)  # fmt: skip
ROLL_UP_SUBJECT, ROLL_UP_ALL = 1, 2  # store.pxd Rollup
WAIT_SECONDS = 60


@dataclass
class Message:
    """One append, whatever became of it."""

    seq: int
    ticket: int  # 0 = refused at once
    subject: bytes
    body: bytes
    rollup: int = 0
    expires_ns: int = 0  # wall clock; 0 = never


Left = list[Message]
Change = Callable[[Left], Left]


def limited(left: Left, limits: dict[str, int], subjects: tuple[bytes, ...]) -> Left:
    """What a change of the limits, or a message of these subjects, leaves."""
    most = limits.get("max_msgs_per_subject", 0)
    for subject in subjects if most else ():
        kept = [m for m in left if m.subject == subject][-most:]
        left = [m for m in left if m.subject != subject or m in kept]
    return left[-limits.get("max_msgs", 0) :]


class Model:
    """Does things to a stream, and knows what is in it.

    What an append replaces is known only when it is answered: all that happened is kept, and done
    again with a list.
    """

    def __init__(self, rng: random.Random, rig: Rig) -> None:
        self.rng = rng
        self.rig = rig
        self.limits = rng.choice(LIMITS)
        # A message that expires before a limit removes another one would leave room for that.
        self.expiring = not self.limits and rng.random() < 0.5
        self.rolling = rng.random() < 0.5
        self.store: StreamStore = open_store(rig.engine, NAME, StreamLimits(**self.limits))
        self.messages: list[Message] = []
        self.changes: list[Change] = []

    def append(self, subject: bytes, body: bytes) -> Message:
        rollup = ttl_ns = 0
        if self.rolling and self.rng.random() < 0.1:
            rollup = self.rng.choice((ROLL_UP_SUBJECT, ROLL_UP_SUBJECT, ROLL_UP_ALL))
        if self.expiring and self.rng.random() < 0.3:
            ttl_ns = self.rng.choice((1, 3)) * SECOND
        due_ns = self.rig.turn.wall_ns + ttl_ns if ttl_ns else 0
        seq = publish(self.store, subject, body, rollup=rollup, ttl_ns=ttl_ns)
        new = Message(seq, ticket(self.store) if seq else 0, subject, body, rollup, due_ns)
        self.messages.append(new)
        self.changes.append(partial(self.appended, new, self.limits))
        return new

    def appended(self, new: Message, limits: dict[str, int], left: Left) -> Left:
        if self.result(new) != 1:
            return left
        if new.rollup == ROLL_UP_ALL:
            left = []
        elif new.rollup == ROLL_UP_SUBJECT:
            left = [m for m in left if m.subject != new.subject]
        return limited([*left, new], limits, (new.subject,))

    def result(self, message: Message) -> int:
        return outcome(self.store.log, message.ticket) if message.ticket else -1

    def wait(self, work: Coroutine[Any, Any, Any]) -> None:
        """Until this has been done. OSError: it may have been done or not."""

        async def run() -> None:
            task = asyncio.ensure_future(work)
            deadline = time.monotonic() + WAIT_SECONDS
            while not task.done():
                assert time.monotonic() < deadline, "it does not end"
                await asyncio.sleep(0)
                self.rig.loop.serve(1)
                self.rig.loop.run()
            await task

        asyncio.run(run())

    def remove(self) -> None:
        """Delete a message or purge, and once more if that fails."""
        rng = self.rng
        work: Callable[[], Coroutine[Any, Any, Any]]
        change: Change
        seq, erase = rng.choice(self.messages[-200:]).seq, rng.random() < 0.5
        if not seq:
            return
        if rng.random() < 0.6:
            work = partial(self.store.delete, seq, erase)
            change = partial(self.deleted, seq)
        else:
            pattern, keep = rng.choice(tuple(PATTERNS)), rng.choice((0, 0, 3))
            below = seq if not keep and rng.random() < 0.4 else 0
            if keep and self.expiring:
                return  # those that have expired by now count as well
            work = partial(self.store.purge, pattern, below, keep)
            change = partial(self.purged, pattern, below, keep)
        try:
            self.wait(work())
        except OSError:
            recover(self.rig)
            self.wait(work())
        self.changes.append(change)

    def deleted(self, seq: int, left: Left) -> Left:
        return [m for m in left if m.seq != seq]

    def purged(self, pattern: str | None, below: int, keep: int, left: Left) -> Left:
        found = [m for m in left if m.subject in PATTERNS[pattern]]
        found = [m for m in found if not below or m.seq < below]
        gone = found[:-keep] if keep else found
        return [m for m in left if m not in gone]

    def change_limits(self) -> None:
        self.rig.settle()
        if self.expiring or self.store.is_settling:
            return
        self.limits = self.rng.choice(LIMITS)
        self.store.set_limits(StreamLimits(**self.limits))
        limits = self.limits
        self.changes.append(lambda left: limited(left, limits, SUBJECTS))

    def step(self) -> None:
        rng, rig = self.rng, self.rig
        what = rng.random()
        if what < 0.45:
            body = b":" + b"x" * rng.choice((0, 50, 500))
            for _ in range(rng.choice((1, 1, 3, 40, 150))):
                self.append(rng.choice(SUBJECTS), b"%d" % len(self.messages) + body)
            if rng.random() < 0.7:
                rig.loop.run()
        elif what < 0.9 or not self.messages:
            disturb(rng, rig)
        elif what < 0.98:
            self.remove()
        else:
            self.change_limits()

    def expected(self) -> dict[int, tuple[bytes, bytes]]:
        left: Left = []
        for change in self.changes:
            left = change(left)
        now_ns = self.rig.turn.wall_ns
        return {m.seq: (m.subject, m.body) for m in left if not 0 < m.expires_ns <= now_ns}


def check(store: StreamStore, expected: dict[int, tuple[bytes, bytes]]) -> None:
    found = {}
    for seq in range(1, store.last_seq + 1):
        message = store.message(seq)
        if message is not None:
            found[seq] = (message[2], message[4])
    assert found == expected
    assert store.messages == len(expected)
    for subject in SUBJECTS:
        own = [seq for seq, message in expected.items() if message[0] == subject]
        assert last_seq_of(store, subject) == max(own, default=0)


def run(rng: random.Random, folder: Path) -> None:
    engine: dict[str, Any] = {
        "sync": "always",
        "segment_bytes": rng.choice((4096, 20_000)),
        "inline_bytes": rng.choice((0, 0, 4096)),
        "journal_bytes_min": 256,
    }
    with Rig(folder / "a", **engine) as rig:
        model = Model(rng, rig)
        for _ in range(rng.randrange(5, 40)):
            model.step()
        recover(rig)
        assert 0 not in map(model.result, model.messages), "an append is not answered"
        last = model.append(b"end", b"end")
        rig.settle()
        assert model.result(last) == 1, "it does not recover"
        rig.advance(4)
        rig.advance(1)
        shutil.copytree(folder / "a", folder / "b")  # as after kill -9
        expected = model.expected()
        check(model.store, expected)
        clock = (rig.loop.now_ns, rig.turn.wall_ns)
    with Rig(folder / "b", clock=clock, **engine) as rig:
        store = open_store(rig.engine, NAME, StreamLimits(**model.limits))
        rig.advance(1)
        check(store, expected)


@pytest.mark.parametrize("group", range(GROUPS))
def test_errors_in_any_order(group: int) -> None:
    run_seeds(group, run)
