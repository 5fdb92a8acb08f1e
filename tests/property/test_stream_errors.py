"""A stream whose file calls fail in any order, while its threads are now fast, now slow.

What was answered with 'stored' is there until a delete, a purge or a limit removes it, what was
answered with 'failed' is not, and what was removed does not return. The same holds after a kill.
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
from support.engine import Rig
from support.file_errors import GROUPS, disturb, recover, run_seeds
from support.native.stores import last_seq_of, publish, ticket

from broker.engine.log.publish import outcome
from broker.engine.stream.store import StreamLimits, StreamStore, open_store

NAME = "js.A/S"
SUBJECTS = (b"a.x", b"a.y", b"b.x", b"b")
PATTERNS = {None: SUBJECTS, "a.*": SUBJECTS[:2], "b": SUBJECTS[3:]}
LIMITS: tuple[dict[str, int], ...] = (
    {}, {}, {"max_msgs": 8}, {"max_msgs": 60}, {"max_msgs_per_subject": 1},
    {"max_msgs_per_subject": 20},
)  # fmt: skip
WAIT_SECONDS = 60


@dataclass
class Message:
    """One append, whatever became of it."""

    seq: int
    ticket: int  # 0 = refused at once
    subject: bytes
    body: bytes
    removed: bool = False


class Model:
    """Does things to a stream, and knows what is in it."""

    def __init__(self, rng: random.Random, rig: Rig) -> None:
        self.rng = rng
        self.rig = rig
        self.limits = rng.choice(LIMITS)
        self.store: StreamStore = open_store(rig.engine, NAME, StreamLimits(**self.limits))
        self.messages: list[Message] = []

    def append(self, subject: bytes, body: bytes) -> Message:
        seq = publish(self.store, subject, body)
        new = Message(seq, ticket(self.store) if seq else 0, subject, body)
        self.messages.append(new)
        return new

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
        if rng.random() < 0.7:
            seq, erase = rng.choice(self.messages[-200:]).seq, rng.random() < 0.5
            if not seq:
                return
            gone = [m for m in self.messages if m.seq == seq]
            work = partial(self.store.delete, seq, erase)
        else:
            pattern = rng.choice(tuple(PATTERNS))
            gone = [m for m in self.messages if m.subject in PATTERNS[pattern]]
            work = partial(self.store.purge, pattern)
        try:
            self.wait(work())
        except OSError:
            recover(self.rig)
            self.wait(work())
        for message in gone:
            message.removed = True

    def step(self) -> None:
        rng, rig = self.rng, self.rig
        what = rng.random()
        if what < 0.45:
            body = b":" + b"x" * rng.choice((0, 50, 500))
            for _ in range(rng.choice((1, 1, 3, 40, 150))):
                self.append(rng.choice(SUBJECTS), b"%d" % len(self.messages) + body)
            if rng.random() < 0.7:
                rig.loop.run()
        elif what < 0.95 or self.limits or not self.messages:
            disturb(rng, rig)
        else:
            self.remove()

    def expected(self) -> dict[int, tuple[bytes, bytes]]:
        kept = [m for m in self.messages if self.result(m) == 1 and not m.removed]
        kept = kept[-self.limits.get("max_msgs", 0) :]
        most = self.limits.get("max_msgs_per_subject")
        if most:
            own = {s: [m.seq for m in kept if m.subject == s][-most:] for s in (*SUBJECTS, b"end")}
            kept = [m for m in kept if m.seq in own[m.subject]]
        return {m.seq: (m.subject, m.body) for m in kept}


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
        rig.advance(1)
        shutil.copytree(folder / "a", folder / "b")  # as after kill -9
        expected = model.expected()
        check(model.store, expected)
    with Rig(folder / "b", **engine) as rig:
        store = open_store(rig.engine, NAME, StreamLimits(**model.limits))
        rig.advance(1)
        check(store, expected)


@pytest.mark.parametrize("group", range(GROUPS))
def test_errors_in_any_order(group: int) -> None:
    run_seeds(group, run)
