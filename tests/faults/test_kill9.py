"""kill -9 in the midst of work, again and again: what was promised before is kept after."""

from __future__ import annotations

import array
import random
import shutil
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from faults.victim import SMALL, body_of
from support.engine import Rig, scratch
from support.fakes.loop import START_NS, WALL_NS
from support.killed_scripts import run_and_kill

from broker.engine.cursor.local import LocalConsumer

ROUNDS = 12
START_SECONDS = 20
VICTIM = Path(__file__).with_name("victim.py")


class Answers:
    """The answers to the processes, all together."""

    def __init__(self) -> None:
        self.stored: set[int] = set()
        self.kept: set[int] = set()
        self.about: set[int] = set()
        self.finished: set[int] = set()
        self.attempts: dict[int, int] = {}

    def take(self, data: bytes) -> None:
        at = 0
        while at + 5 <= len(data):
            kind = data[at : at + 1]
            (count,) = struct.unpack_from("<I", data, at + 1)
            end = at + 5 + 8 * count
            if end > len(data):
                break
            values = array.array("Q", data[at + 5 : end])
            at = end
            if kind == b"D":
                for seq, attempts in zip(values[::2], values[1::2], strict=True):
                    self.attempts[seq] = max(attempts, self.attempts.get(seq, 0))
                continue
            {b"S": self.stored, b"K": self.kept, b"I": self.about, b"F": self.finished}[
                kind
            ].update(values)


def check(folder: Path, copy: Path, answers: Answers) -> None:
    shutil.copytree(folder, copy)
    clock = (START_NS + time.time_ns() - WALL_NS, 0)
    with Rig(copy, clock=clock, **SMALL) as rig:
        assert all("torn tail" in p or "at the end" in p for p in rig.engine.problems)
        audit = LocalConsumer(rig.engine.log("kept").cursors["audit"], 1 << 30)
        rig.settle()
        kept = {seq: body for seq, _, _, body in audit.records}
        assert answers.kept <= kept.keys(), "an acknowledged record is gone"
        assert all(body == body_of(seq) for seq, body in kept.items())
        cursor = rig.engine.log("t").cursors["c"]
        depth = cursor.depth + cursor.deferred_count
        consumer = LocalConsumer(cursor, 1 << 30, ack_wait=1000, ack_wait_max=1000)
        for _ in range(3):
            rig.advance(1)
        there = {seq: attempts for seq, attempts, _, _ in consumer.records}
        assert len(there) == len(consumer.records) == depth
        assert all(body == body_of(seq) for seq, _, _, body in consumer.records)
        assert not answers.finished & there.keys(), "a finished record came back"
        assert answers.stored - answers.about <= there.keys(), "an acknowledged record is gone"
        for seq, attempts in there.items():
            assert attempts > answers.attempts.get(seq, 0), "attempts went down"
    shutil.rmtree(copy)


@pytest.fixture
def folder() -> Iterator[Path]:
    path = scratch()
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.mark.parametrize("sync", ["none", "always"])
def test_kill_9(folder: Path, sync: str) -> None:
    rng = random.Random(f"kill {sync}")
    answers = Answers()
    for round_ in range(ROUNDS // 2):
        said = run_and_kill(
            VICTIM,
            str(folder / "data"),
            sync,
            str(round_),
            start_s=START_SECONDS,
            seconds=rng.uniform(0.05, 0.8),
        )
        answers.take(said)
        check(folder / "data", folder / "copy", answers)
    assert len(answers.stored) > 1000
    assert answers.finished
    assert max(answers.attempts.values()) > 1
