"""Fuzz the parsers and the recovery.

    python tests/fuzz [--seconds N] [--seed N] [--runs N] [--target NAME] [--out DIR] [FILE ...]

Seconds are split among the targets; each runs in a process of its own, which may crash: the input
that did it is in OUT/<target>. FILEs are run instead of fuzzing, with one --target.
`make fuzz` runs this on the build with the address sanitizer, elsewhere it is blind and tolerant.
"""

from __future__ import annotations

import argparse
import importlib
import logging
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

TARGETS = {
    "nats": ("nats_parser", "target"),
    "leaf": ("leaf_parser", "target"),
    "nsq": ("nsq_parser", "target"),
    "stan": ("stan_messages", "target"),
    "blocks": ("blocks", "target"),
    "frames": ("frames", "target"),
    "records": ("recovery", "records_target"),
    "segment": ("recovery", "segment_target"),
    "journal": ("recovery", "journal_target"),
}
GRACE_SECONDS = 120  # for the seeds and the input under way


class Formatted(logging.Handler):
    """Formats records of the log, and prints none: the lines hid what had failed."""

    def emit(self, record: logging.LogRecord) -> None:
        self.format(record)


def load(name: str) -> Target:
    """Make a target; its modules are loaded only now."""
    module, function = TARGETS[name] if name in TARGETS else name.split(":")
    target: Target = getattr(importlib.import_module(f"fuzz.{module}"), function)()
    return target


def folder_of(name: str, options: argparse.Namespace) -> Path:
    """Where findings and the queue of a target are."""
    out: Path = options.out
    return out / name.replace(":", "-")


def work(name: str, options: argparse.Namespace) -> int:
    """Fuzz one target in this process; how many inputs failed."""
    logging.getLogger().addHandler(Formatted())
    target = load(name)
    start = time.monotonic()
    folder = folder_of(name, options)
    fuzzer = Fuzzer(target, folder, options.seed)
    kept = folder / "queue"
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
    current = folder_of(name, options) / CURRENT
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
    parser.add_argument(
        "--target", action="append", help=f"some of {', '.join(TARGETS)}, or MODULE:FUNCTION"
    )
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "fuzz", help="where to keep")
    parser.add_argument("--keep", action="store_true", help="keep the queue for the next time")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("files", nargs="*", type=Path)
    options = parser.parse_args(argv)
    wrong = {name for name in options.target or () if ":" not in name} - set(TARGETS)
    if wrong:
        parser.error(f"no such target: {', '.join(sorted(wrong))}")
    names = options.target or list(TARGETS)
    if options.files and len(names) != 1:
        parser.error("files need one --target")
    if options.child:
        return int(work(names[0], options) > 0)
    if not SANITIZED:
        print("this build has no sanitizer and no coverage: see `make fuzz`")
    failed = [name for name in names if not watch(name, options, options.seconds / len(names))]
    if failed:
        print(f"failed: {', '.join(failed)}; the inputs and the causes are printed above")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
