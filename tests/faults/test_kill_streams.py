"""kill -9 of a process that stores and deletes messages of streams: what was answered stays."""

from __future__ import annotations

import array
import random
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from faults.stream_victim import MANY, ONE, SMALL, body_of
from support.engine import Rig, scratch
from support.killed_scripts import run_and_kill

from broker.engine.stream.store import StreamLimits, open_store

ROUNDS = 5
START_SECONDS = 60
VICTIM = Path(__file__).with_name("stream_victim.py")


class Answers:
    def __init__(self) -> None:
        self.kinds: dict[bytes, set[int]] = {kind: set() for kind in (b"S", b"G", b"D", b"L")}

    def take(self, data: bytes) -> None:
        at = 0
        while at + 5 <= len(data):
            (count,) = struct.unpack_from("<I", data, at + 1)
            end = at + 5 + 8 * count
            if end > len(data):
                break
            self.kinds[data[at : at + 1]].update(array.array("Q", data[at + 5 : end]))
            at = end


def check(folder: Path, copy: Path, answers: Answers) -> None:
    shutil.copytree(folder, copy)
    with Rig(copy, sync="always", **SMALL) as rig:
        assert all("torn" in problem for problem in rig.engine.problems)
        store = open_store(rig.engine, MANY, StreamLimits())
        live = {}
        for seq in range(store.first_seq, store.last_seq + 1):
            message = store.message(seq)
            if message is not None:
                live[seq] = message[4]
        assert all(body == body_of(seq) for seq, body in live.items())
        assert not answers.kinds[b"D"] & live.keys(), "a deleted message came back"
        assert answers.kinds[b"S"] - answers.kinds[b"G"] <= live.keys(), "a message is gone"
        assert store.messages == len(live)
        one = open_store(rig.engine, ONE, StreamLimits(max_msgs_per_subject=1))
        assert one.messages == one.subjects.size <= 3, "a replaced message came back"
        assert one.last_seq >= max(answers.kinds[b"L"], default=0)
        for kept in (store, one):
            for _ in range(3):
                rig.advance(1)
            assert kept.lost_messages == 0
    shutil.rmtree(copy)


@pytest.fixture
def folder() -> Iterator[Path]:
    path = scratch()
    yield path
    shutil.rmtree(path, ignore_errors=True)


def test_kill_9(folder: Path) -> None:
    rng = random.Random("kill streams")
    answers = Answers()
    for round_ in range(ROUNDS):
        said = run_and_kill(
            VICTIM,
            str(folder / "data"),
            str(round_),
            start_s=START_SECONDS,
            seconds=rng.uniform(0.1, 0.8),
        )
        answers.take(said)
        check(folder / "data", folder / "copy", answers)
    assert len(answers.kinds[b"S"]) > 1000
    assert len(answers.kinds[b"D"]) > 50
