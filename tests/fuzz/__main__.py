"""Fuzz the parsers and the recovery.

    python tests/fuzz [--seconds N] [--seed N] [--runs N] [--target NAME] [--out DIR] [FILE ...]

Seconds are split among the targets; each runs in a process of its own, which may crash: the input
that did it is in OUT/<target>. FILEs are run instead of fuzzing, with one --target.
`make fuzz` runs this on the build with the address sanitizer, elsewhere it is blind and tolerant.
"""

from __future__ import annotations

import argparse
import importlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from fuzz.engine import CURRENT, Fuzzer, Target, save  # noqa: E402
from fuzz.watch import SANITIZED  # noqa: E402

# Name, where it is made, and its share of the time: what is slow to run needs more of it.
TARGETS = {
    "nats": ("nats_parser", "target", 1),
    "nsq": ("nsq_parser", "target", 1),
    "records": ("recovery", "records_target", 1),
    "segment": ("recovery", "segment_target", 1),
    "journal": ("recovery", "journal_target", 1),
}
GRACE_SECONDS = 120  # for the seeds and the input under way


def load(name: str) -> Target:
    """Make a target; its modules are loaded only now."""
    module, function, _ = TARGETS[name]
    target: Target = getattr(importlib.import_module(f"fuzz.{module}"), function)()
    return target


def work(name: str, options: argparse.Namespace) -> int:
    """Fuzz one target in this process; how many inputs failed."""
    target = load(name)
    start = time.monotonic()
    fuzzer = Fuzzer(target, options.out / name, options.seed)
    kept = options.out / name / "queue"
    if options.files:
        for path in options.files:
            fuzzer.run(path.read_bytes())
    else:
        fuzzer.seed(path.read_bytes() for path in sorted(kept.glob("*.bin")))
        fuzzer.fuzz(options.seconds - (time.monotonic() - start), options.runs)
    if options.keep:
        kept.mkdir(exist_ok=True)
        for data in fuzzer.queue:
            save(kept, "kept", data)
    seconds = time.monotonic() - start
    fuzzer.close()
    target.close()
    print(
        f"{name}: seed {options.seed}, {fuzzer.runs} inputs in {seconds:.1f} s "
        f"({fuzzer.runs / seconds:.0f}/s), {len(fuzzer.queue)} kept, {fuzzer.map.steps} steps, "
        f"{len(fuzzer.failures)} failed",
        flush=True,
    )
    return len(fuzzer.failures)


def watch(name: str, options: argparse.Namespace, seconds: float) -> bool:
    """Run one target in a child; False when an input failed or the child did."""
    command = [sys.executable, __file__, "--child", "--target", name]
    command += ["--seconds", str(seconds), "--seed", str(options.seed), "--runs", str(options.runs)]
    command += ["--out", str(options.out), *(["--keep"] if options.keep else [])]
    command += [str(path) for path in options.files]
    child = subprocess.Popen(command, env={**os.environ, "PYTHONHASHSEED": "0"})
    try:
        code = child.wait(seconds + GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        child.kill()
        code = child.wait()
    except KeyboardInterrupt:
        child.wait()
        raise
    if code in (0, 1):
        return code == 0
    how = signal.Signals(-code).name if code < 0 else f"exit {code}"
    kind = "hung" if code in (-signal.SIGALRM, -signal.SIGKILL) else "crashed"
    current = options.out / name / CURRENT
    if current.exists():
        kept = save(current.parent, kind, current.read_bytes())
        print(f"{name}: {kind} ({how}) on {kept}", flush=True)
    else:
        print(f"{name}: {kind} ({how}) without an input", flush=True)
    return False


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="tests/fuzz", description="fuzz parsers and recovery")
    parser.add_argument("--seconds", type=float, default=10.0, help="for all targets together")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--runs", type=int, default=0, help="inputs per target, 0 = any number")
    parser.add_argument("--target", choices=TARGETS, action="append", help="some of the targets")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "fuzz", help="where to keep")
    parser.add_argument("--keep", action="store_true", help="keep the queue for the next time")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("files", nargs="*", type=Path)
    options = parser.parse_args(argv)
    names = options.target or list(TARGETS)
    if options.files and len(names) != 1:
        parser.error("files need one --target")
    if options.child:
        return int(work(names[0], options) > 0)
    if not SANITIZED:
        print("this build has no sanitizer and no coverage: see `make fuzz`")
    parts = sum(TARGETS[name][2] for name in names)
    good = [watch(name, options, options.seconds * TARGETS[name][2] / parts) for name in names]
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
