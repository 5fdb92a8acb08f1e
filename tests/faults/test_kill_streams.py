"""kill -9 of a process that stores and deletes messages of streams: what was answered stays."""

from __future__ import annotations

import array
import os
import random
import select
import shutil
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from faults.stream_victim import MANY, ONE, SMALL, body_of
from support.engine import Rig, scratch

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


def run_and_kill(folder: Path, seed: int, seconds: float) -> bytes:
    said = bytearray()
    with subprocess.Popen(
        [sys.executable, str(VICTIM), str(folder), str(seed)], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        pipe = process.stdout.fileno()
        end = time.monotonic() + START_SECONDS
        try:
            while (left := end - time.monotonic()) > 0:
                if not select.select([pipe], [], [], left)[0]:
                    break
                data = os.read(pipe, 1 << 20)
                assert data, "it died by itself"
                if not said:
                    end = time.monotonic() + seconds
                said += data
        finally:
            process.kill()
        while data := os.read(pipe, 1 << 20):
            said += data
    assert said
    return bytes(said)


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
        answers.take(run_and_kill(folder / "data", round_, rng.uniform(0.1, 0.8)))
        check(folder / "data", folder / "copy", answers)
    assert len(answers.kinds[b"S"]) > 1000
    assert len(answers.kinds[b"D"]) > 50
