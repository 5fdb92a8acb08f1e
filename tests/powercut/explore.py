"""Explore many states of disks after power cuts, each defined by its number and a seed."""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import pickle
import re
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from powercut import workloads
from powercut.checker import Checker, Loop
from powercut.disk import KEEP, MODELS, Cut, state
from powercut.history import History, Tree, lay_out, read_tree
from powercut.ledger import Answers, Ledger
from powercut.recording import SCRATCH, Recorded, preloaded

SECOND_SHARE = 0.25  # of the states are cut a second time, in what followed the first
SAVED_MAX = 20  # failures that are kept
SYSTEMATIC = 0.4  # of the states are cut right behind an answer


@dataclass
class Failure:
    """A state with a violation; it can be checked again."""

    number: int
    cut: Cut
    second: Cut | None
    workload: str
    tree: Tree
    ledger: Ledger
    stage: int
    problems: list[str]

    @property
    def kind(self) -> str:
        text = re.sub(r"/dev/shm/\S*?/data|/tmp/\S*?/data", "", self.problems[0])
        return f"{self.cut.model}: " + re.sub(r"\d[\d, .]*", "# ", text)[:120]

    def __str__(self) -> str:
        where = f"{self.workload}, {self.cut.model}, position {self.cut.at}, {self.cut.keep}"
        if self.second is not None:
            where += f"; then position {self.second.at}, {self.second.keep}"
        return f"state {self.number} ({where}): " + "; ".join(self.problems[:3])


@dataclass
class Outcome:
    """The result of an exploration."""

    states: int = 0
    seconds: int = 0  # of them were cut twice
    failures: list[Failure] = field(default_factory=list)
    kinds: Counter[str] = field(default_factory=Counter)

    def add(self, failure: Failure) -> None:
        first = failure.kind not in self.kinds
        self.kinds[failure.kind] += 1
        if first or len(self.failures) < SAVED_MAX:
            self.failures.append(failure)

    def join(self, other: Outcome) -> None:
        self.states += other.states
        self.seconds += other.seconds
        self.failures += other.failures
        self.kinds += other.kinds


class Explorer:
    """Recordings, and the states derived from them."""

    def __init__(self, recorded: list[Recorded], seed: str, second: bool = True) -> None:
        self.recorded = recorded
        self.answers = [Answers(each.answered) for each in recorded]
        self.seed = seed
        self.recorder = preloaded() if second else None
        self.folder = Path(tempfile.mkdtemp(prefix="powercut-", dir=SCRATCH))
        self.loop = Loop()

    def close(self) -> None:
        self.loop.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def cut_of(self, history: History, rng: Random, seed: str, begin: int = 0) -> Cut:
        """A position from `begin` on, often directly after an answer."""
        at = rng.randrange(begin, len(history.ops) + 1)
        if history.marks and rng.random() < SYSTEMATIC:
            at = max(begin, rng.choice(history.marks) + 1)
        return Cut(at, rng.choice(MODELS), rng.choice(KEEP), seed)

    def explore(self, numbers: Iterable[int]) -> Outcome:
        """Check these states."""
        outcome = Outcome()
        asyncio.set_event_loop(self.loop)
        for number in numbers:
            failure = self.look_at(number, outcome)
            outcome.states += 1
            if failure is not None:
                outcome.add(failure)
        return outcome

    def look_at(self, number: int, outcome: Outcome) -> Failure | None:
        seed = f"{self.seed}/{number}"
        rng = Random(seed)
        which = number % len(self.recorded)
        recorded, answers = self.recorded[which], self.answers[which]
        cut = self.cut_of(recorded.history, rng, seed, recorded.begin)
        tree, ledger = state(recorded.history, cut), answers.at(cut.at)
        again = self.recorder is not None and rng.random() < SECOND_SHARE
        problems, history = self.open(tree, ledger, 0, again)
        if problems:
            return Failure(number, cut, None, recorded.name, tree, ledger, 0, problems)
        if history is None:
            return None
        outcome.seconds += 1
        second = self.cut_of(history, rng, seed + "/2")
        ledger = Answers(history, answers.at(cut.at)).at(second.at)
        tree = state(history, second)
        problems, _ = self.open(tree, ledger, 1, False)
        if problems:
            return Failure(number, cut, second, recorded.name, tree, ledger, 1, problems)
        return None

    def open(
        self, tree: Tree, ledger: Ledger, stage: int, recorded: bool
    ) -> tuple[list[str], History | None]:
        """The problems of a state, and the changes made while it was checked."""
        data = self.folder / "data"
        lay_out(str(data), tree)
        recorder = self.recorder
        try:
            if not recorded or recorder is None:
                return self.loop.run_until_complete(Checker(str(data), ledger, stage).run()), None
            record = self.folder / "record"
            _, inodes = read_tree(data)
            recorder.powercut_begin(os.fsencode(data), os.fsencode(record))
            checker = Checker(str(data), ledger, stage, mark=self.mark)
            try:
                problems = self.loop.run_until_complete(checker.run())
            finally:
                recorder.powercut_end()
            if problems:
                return problems, None
            return [], History(tree, inodes).read(record.read_bytes(), str(data))
        finally:
            for thread in threading.enumerate():
                if thread.daemon and "rmtree" in repr(getattr(thread, "_target", None)):
                    thread.join()
            shutil.rmtree(data)

    def mark(self, event: str, **what: Any) -> None:
        import json

        data = json.dumps({"e": event, **what}).encode()
        assert self.recorder is not None
        self.recorder.powercut_mark(data, ctypes.c_size_t(len(data)))


# --- many, on several processes


def record_all(names: list[str], jobs: int) -> list[Recorded]:
    """Run workloads, several at a time, each in its own process."""
    folder = Path(tempfile.mkdtemp(prefix="powercut-", dir=SCRATCH))
    try:
        waiting, running = list(names), {}
        while waiting or running:
            while waiting and len(running) < jobs:
                name = waiting.pop(0)
                pid = os.fork()
                if pid == 0:
                    _exit_after(lambda name=name: workloads.record(name).save(folder / name))
                running[pid] = name
            pid, status = os.waitpid(-1, 0)
            name = running.pop(pid)
            if status:
                raise RuntimeError(f"the workload {name} was not recorded")
        return [Recorded.load(folder / name) for name in names]
    finally:
        shutil.rmtree(folder)


def explore_all(
    recorded: list[Recorded], seed: str, numbers: range, jobs: int, second: bool = True
) -> Outcome:
    """Explore states with several processes."""
    folder = Path(tempfile.mkdtemp(prefix="powercut-", dir=SCRATCH))
    pids = []
    try:
        for job in range(jobs):
            pid = os.fork()
            if pid == 0:
                _exit_after(
                    lambda job=job: _explore(
                        recorded, seed, numbers[job::jobs], second, folder / str(job)
                    )
                )
            pids.append(pid)
        outcome = Outcome()
        statuses = [os.waitpid(pid, 0)[1] for pid in pids]
        if any(statuses):
            raise RuntimeError(f"an exploring process ended with {statuses}")
        for job in range(jobs):
            outcome.join(pickle.loads((folder / str(job)).read_bytes()))
        return outcome
    finally:
        shutil.rmtree(folder)


def _explore(recorded: list[Recorded], seed: str, numbers: range, second: bool, to: Path) -> None:
    explorer = Explorer(recorded, seed, second)
    try:
        to.write_bytes(pickle.dumps(explorer.explore(numbers)))
    finally:
        explorer.close()


def _exit_after(work: Any) -> None:
    code = 1
    try:
        work()
        code = 0
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


# Mends of the past, put back by leaving their syncs out of the record.
SKIPPED: dict[str, tuple[str, ...]] = {  # what is synced, by patterns of its path
    "segments": (r"logs/[^/]+/\d+\.seg$",),
    "folders of logs": (r"logs/[^/]+$",),
    "the folder of all logs": (r"logs$",),
    "metadata": (r"logs/[^/]+/meta\.json.*",),
    "journals": (r"logs/[^/]+/cursors/.+",),
    "folders of journals": (r"logs/[^/]+/cursors$",),
    "the data folder": (r"$",),
    "clients": (r"stan/clients.*",),
    "the folder of clients": (r"stan$",),
    "staged blocks": (r"staged/[^.].*\.blk",),
    "folders of what is staged": (r"staged(/[^/]+)?$", r"staged/[^/]+/\d+$"),
    "readers": (r"bulk(/readers(/.+)?)?$",),
    "configurations of streams": (r"jetstream/.+\.json.*",),
    "folders of streams": (r"jetstream(/[^/]+)*$",),
    "acks of consumers": (r"jetstream/.+\.acks.*",),
    "deletions": (r"logs/[^/]+/deletes\.cur.*",),
    "commits": (r"staged/\.intents/.+", r"staged/[^/]+/state\.json.*"),
}


def without(recorded: list[Recorded], what: str) -> list[Recorded]:
    """Without these syncs, as if they had not been requested."""
    found = [re.compile(pattern) for pattern in SKIPPED[what]]
    return [
        each.without(lambda path: any(pattern.match(path) for pattern in found))
        for each in recorded
    ]


def quiet() -> None:
    """Switch off logging: thousands of brokers are started here."""
    logging.disable(logging.CRITICAL)


def now() -> float:
    return time.monotonic()
