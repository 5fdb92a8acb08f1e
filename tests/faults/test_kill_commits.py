"""kill -9 and power cuts before each step of a commit: every row is published exactly once."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from faults.commit_victim import PARTS, TOPICS, rows
from support.engine import scratch
from support.native.logs import scan_records

from broker.engine.log.files import load_meta

KILLED = 9
REFUSED = 256
ENDS = 22  # steps at the beginning and at the end of a commit
FILE_HEADER = 64


class Runner:
    """The victim's process, and what its children said."""

    def __init__(self, process: subprocess.Popen[str], folder: Path) -> None:
        self.process = process
        self.folder = folder
        self.data = folder / "data"
        self.answers = folder / "answers"
        self.consume = True

    def run(self, what: str, sync: str | float, *, kill: int = -1, cut: int = PARTS) -> int:
        """The exit status of one child."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        order = {"folder": str(self.data), "answers": str(self.answers), "consume": self.consume}
        self.process.stdin.write(
            json.dumps({**order, "kill": kill, "sync": sync, "what": what, "cut": cut})
        )
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())

    def said(self, what: str) -> list[dict[str, Any]]:
        lines = self.answers.read_text().splitlines() if self.answers.exists() else []
        found = [json.loads(line) for line in lines if line.endswith("}")]
        return [line for line in found if what in line]

    def reset(self) -> None:
        shutil.rmtree(self.data, ignore_errors=True)
        self.answers.unlink(missing_ok=True)
        self.data.mkdir()

    def places(self) -> dict[tuple[str, str], set[int]]:
        """Where each row was ever seen: by a consumer, or in the log."""
        found: dict[tuple[str, str], set[int]] = defaultdict(set)
        for line in self.said("seq"):
            found[line["topic"], line["body"]].add(line["seq"])
        for topic in TOPICS:
            folder = self.data / "logs" / topic
            meta = load_meta(str(folder))
            assert meta is not None
            for path in folder.glob("*.seg"):
                records, _, _ = scan_records(
                    path.read_bytes()[FILE_HEADER:],
                    bytes.fromhex(meta["log_id"]),
                    int(path.stem),
                )
                for seq, _, _, _, body in records:
                    if not body.startswith(b"other"):
                        found[topic, body.decode()].add(seq)
        return found

    def check(self) -> None:
        """All rows, each in one place."""
        expected = {(t, row.decode()) for t in TOPICS for n in range(PARTS) for row in rows(t, n)}
        places = self.places()
        assert places.keys() == expected
        assert {row: seqs for row, seqs in places.items() if len(seqs) != 1} == {}

    def cut_power(self, rng: random.Random) -> None:
        """Of what was not synced some is gone, in each file on its own."""
        synced = {line["synced"]: line["size"] for line in self.said("synced")}
        if str(self.data / "logs") not in synced and rng.random() < 0.5:
            shutil.rmtree(self.data / "logs")
        for path in [*self.data.rglob("*.seg"), *self.data.rglob("*.blk")]:
            size, safe = path.stat().st_size, synced.get(str(path), 0)
            if safe == 0 and rng.random() < 0.5:
                path.unlink()
            elif safe < size:
                with path.open("r+b") as file:
                    file.truncate(rng.choice((safe, rng.randrange(safe, size + 1))))


@pytest.fixture
def runner() -> Iterator[Runner]:
    folder = scratch()
    victim = Path(__file__).with_name("commit_victim.py")
    with subprocess.Popen(
        [sys.executable, str(victim)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield Runner(process, folder)
        finally:
            process.kill()
    shutil.rmtree(folder, ignore_errors=True)


def finish(runner: Runner, sync: str | float, cut: int) -> None:
    """The driver comes back: stages once more, cut otherwise, and commits again."""
    assert runner.run("stage", sync, cut=cut) == 0
    assert runner.run("commit", sync, cut=cut) == 0
    (done,) = runner.said("done")[-1:]
    assert {page["records"] for page in done["done"].values()} == {PARTS * len(rows("t", 0))}
    runner.check()


EVERY = pytest.param(1, marks=pytest.mark.slow)
SOME = 6  # so that the whole suite stays quick: other ones each time


def steps_of(runner: Runner, sync: str, every: int) -> list[int]:
    """Where a commit is to be killed: at each step but for those in which it appends."""
    runner.reset()
    assert runner.run("stage", sync) == 0
    assert runner.run("commit", sync) == 0
    runner.check()
    count: int = runner.said("steps")[-1]["steps"]
    assert count > ENDS
    steps = [n for n in range(count) if n < ENDS or n >= count - ENDS or n % 4 == 0]
    return steps[random.randrange(every) :: every]


@pytest.mark.timeout(240)
@pytest.mark.parametrize("every", [SOME, EVERY])
@pytest.mark.parametrize("sync", ["none", "always"])
def test_killed_at_each_step_of_a_commit(runner: Runner, sync: str, every: int) -> None:
    rng = random.Random(f"kill {sync}")
    for step in steps_of(runner, sync, every):
        runner.reset()
        assert runner.run("stage", sync) == 0
        assert runner.run("commit", sync, kill=step) in (0, KILLED)
        if rng.random() < 0.5:  # and again while it is finished
            assert runner.run("commit", sync, kill=rng.randrange(40)) in (0, KILLED)
        finish(runner, sync, cut=rng.choice((1, 2, 7)))


@pytest.mark.timeout(240)
@pytest.mark.parametrize("every", [SOME, EVERY])
def test_power_cut_at_each_step_of_a_commit(runner: Runner, every: int) -> None:
    rng = random.Random("power")
    runner.consume = False  # who got what was lost afterwards gets it again
    for step in steps_of(runner, "none", every):
        runner.reset()
        assert runner.run("stage", "none") == 0
        assert runner.run("commit", "none", kill=step) in (0, KILLED)
        runner.cut_power(rng)
        if rng.random() < 0.5:
            # what was staged may be gone: then the commit is refused
            assert runner.run("commit", "none", kill=rng.randrange(40)) in (0, KILLED, REFUSED)
            if rng.random() < 0.5:
                runner.cut_power(rng)
        finish(runner, "none", cut=rng.choice((1, 2, 7)))


def test_staging_is_killed(runner: Runner) -> None:
    step = 0
    while True:
        runner.reset()
        if runner.run("stage", "none", kill=step) == 0:
            break
        finish(runner, "none", cut=PARTS)
        step += 1
    assert step >= PARTS * len(TOPICS)
