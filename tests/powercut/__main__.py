"""Explore states of a disk after power cuts.

python tests/powercut [--states 500] [--seed TEXT] [--jobs N]
python tests/powercut --replay build/powercut/FILE        one state that failed
"""

from __future__ import annotations

import argparse
import os
import pickle
import shutil
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
JOBS = 2 * (os.cpu_count() or 1)  # a process that explores waits for threads most of the time
if __name__ == "__main__":
    sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from powercut.explore import (  # noqa: E402
    SKIPPED,
    Explorer,
    Failure,
    explore_all,
    quiet,
    record_all,
    without,
)
from powercut.recording import SCRATCH, Recorded, library  # noqa: E402
from powercut.serving import small  # noqa: E402
from powercut.workloads import WORKLOADS  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests/powercut")
    parser.add_argument("--states", type=int, default=500)
    parser.add_argument("--seed", default="")
    parser.add_argument("--state", type=int, help="this one only")
    parser.add_argument(
        "--jobs", type=int, default=JOBS, help="processes; twice the number of cores by default"
    )
    parser.add_argument("--workloads", default=",".join(WORKLOADS))
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "powercut")
    parser.add_argument("--records", type=Path, help="take the recordings in this folder")
    parser.add_argument("--keep", type=Path, help="put the recordings into this folder")
    parser.add_argument("--without", choices=list(SKIPPED), help="syncs that are left out")
    parser.add_argument("--replay", type=Path)
    asked = parser.parse_args()
    asked.seed = asked.seed or os.urandom(4).hex()
    if "LD_PRELOAD" not in os.environ and asked.replay is None:
        with tempfile.TemporaryDirectory() as folder:
            # in a process that sees its own file calls: what follows a cut is cut again
            made = library(Path(folder))
            arguments = [sys.executable, *sys.argv]
            if "--seed" not in sys.argv:
                arguments += ["--seed", asked.seed]
            return os.waitstatus_to_exitcode(
                os.waitpid(
                    os.posix_spawn(
                        sys.executable, arguments, {**os.environ, "LD_PRELOAD": str(made)}
                    ),
                    0,
                )[1]
            )
    quiet()
    small()
    if asked.replay is not None:
        return replay(asked.replay)
    return run(asked)


def run(asked: argparse.Namespace) -> int:
    names = asked.workloads.split(",")
    print(f"power cuts: seed {asked.seed}", flush=True)
    started = time.monotonic()
    if asked.records is None:
        recorded = record_all(names, asked.jobs)
    else:
        recorded = [Recorded.load(asked.records / name) for name in names]
    for each in recorded if asked.keep is not None else ():
        each.save(asked.keep / each.name)
    if asked.without is not None:
        recorded = without(recorded, asked.without)
    steps = sum(len(each.history.ops) for each in recorded)
    print(f"recorded {len(names)} workloads, {steps} steps, {time.monotonic() - started:.0f} s")
    sys.stdout.flush()
    started = time.monotonic()
    numbers = range(asked.states) if asked.state is None else range(asked.state, asked.state + 1)
    try:
        outcome = explore_all(recorded, asked.seed, numbers, min(asked.jobs, len(numbers)))
    finally:
        shutil.rmtree(SCRATCH / f"powercut-source-{os.getpid()}", ignore_errors=True)
    took = time.monotonic() - started
    print(f"{outcome.states} states, {outcome.seconds} of them cut twice, {took:.0f} s")
    if not outcome.kinds:
        print(f"no violation; again: make powercut STATES={asked.states} SEED={asked.seed}")
        return 0
    save(asked, recorded, outcome.failures)
    print(f"{outcome.kinds.total()} states with a violation:")
    for kind, count in outcome.kinds.most_common():
        print(f"  {count:6} {kind}")
    return 1


def save(asked: argparse.Namespace, recorded: list[Recorded], failures: list[Failure]) -> None:
    """Keep the evidence of the failures, and print the command that repeats them."""
    folder = asked.out / asked.seed
    folder.mkdir(parents=True, exist_ok=True)
    for each in recorded:
        each.save(folder / each.name)
    shown: set[str] = set()
    for failure in failures:
        path = folder / f"state-{failure.number}"
        path.write_bytes(pickle.dumps(failure))
        if failure.kind not in shown:
            print(f"{failure}\n    make powercut REPLAY={os.path.relpath(path, ROOT)}")
        shown.add(failure.kind)


def replay(path: Path) -> int:
    """Check one state again."""
    failure: Failure = pickle.loads(path.read_bytes())
    explorer = Explorer([], "", second=False)
    try:
        problems, _ = explorer.open(failure.tree, failure.ledger, failure.stage, False)
    finally:
        explorer.close()
    for name in sorted(failure.tree):
        data = failure.tree[name]
        print(f"  {name}/" if data is None else f"  {name}  {len(data)} bytes")
    print(f"before: {failure}")
    print("now: " + ("; ".join(problems) or "no violation"))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
