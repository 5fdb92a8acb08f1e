"""Greybox fuzzing: inputs that take new ways through the code are kept and mutated further.

A target names its seeds and checks one input; everything random comes from one seed, so that
`--runs` repeats exactly what it did before. The input under way stands in a file, so that a crash
of the interpreter leaves it behind.
"""

from __future__ import annotations

import gc
import hashlib
import os
import random
import signal
import sys
import time
import traceback
import zlib
from array import array
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from fuzz.watch import Map, allocated

CURRENT = "current"  # the input under way
FAILED_MAX = 10  # different failures are enough to look at
HANG_SECONDS = 60  # no input takes nearly as long, on no machine
RECENT = 40  # inputs kept last are mutated as often as all the others
IGNORED_MAX = 1_000  # exceptions while running one input
COLLECT_EVERY = 200
LEAK_RUNS = 50
LEAK_BYTES = 16  # the least that malloc gives
STEADY = 0.95  # of the greatest growth that was seen
LATER = 5  # times LEAK_RUNS, for a second look
SUSPICIONS_MAX = 20  # to be looked into: that takes a while
SPLICE = 0.25
NUMBERS = (0, 1, 2, 7, 8, 63, 64, 127, 128, 255, 256, 4095, 4096, 2**15, 2**16, 2**31, 2**32 - 1)


@dataclass(frozen=True)
class Target:
    """What is fuzzed. `check` raises when an input is treated wrongly."""

    name: str
    check: Callable[[bytes], None]
    seeds: Sequence[bytes]
    tokens: Sequence[bytes] = ()
    length_max: int = 8_000
    # what makes a mutated input worth running: sums that fit, a greeting
    repair: Callable[[random.Random, bytearray], None] | None = None
    leaks: bool = True  # what one input takes, it gives back
    close: Callable[[], None] = field(default=lambda: None)


def rng_of(data: bytes) -> random.Random:
    """What is random about running one input depends on the input alone."""
    return random.Random(zlib.crc32(data))


def cuts_of(data: bytes, at_most: int = 20) -> list[int]:
    """Where reads end: a few places, or after every byte."""
    rng = rng_of(data)
    if len(data) < 120 and rng.random() < 0.3:
        return list(range(1, len(data)))
    return sorted(rng.randrange(len(data) + 1) for _ in range(rng.choice((1, 3, at_most))))


def corpus(name: str) -> list[Path]:
    """Inputs that failed once."""
    return sorted((Path(__file__).parent / "corpus" / name).glob("*.bin"))


class Mutator:
    """New inputs out of old ones."""

    def __init__(self, rng: random.Random, tokens: Sequence[bytes]) -> None:
        self.rng = rng
        self.tokens = tokens
        self.ways: list[Callable[[bytearray], None]] = [
            self._flip, self._byte, self._number, self._remove, self._repeat, self._move,
            self._swell, *[self._token] * (3 if tokens else 0),
        ]  # fmt: skip

    def mutate(self, data: bytes, other: bytes) -> bytearray:
        """`data` with some damage, sometimes with a part of `other` in it."""
        rng, new = self.rng, bytearray(data)
        if rng.random() < SPLICE:
            start = rng.randrange(len(other) + 1)
            end = rng.randint(start, len(other))
            at = rng.randrange(len(new) + 1)
            new[at : rng.choice((at, at, len(new)))] = other[start:end]
        for _ in range(rng.choice((1, 1, 2, 4, 8))):
            rng.choice(self.ways)(new)
        return new

    def _place(self, data: bytearray) -> int:
        return self.rng.randrange(len(data) + 1)

    def _part(self, data: bytearray) -> tuple[int, int]:
        start = self._place(data)
        return start, min(len(data), start + self.rng.choice((1, 2, 4, 8, 40, 300)))

    def _flip(self, data: bytearray) -> None:
        if data:
            data[self.rng.randrange(len(data))] ^= 1 << self.rng.randrange(8)

    def _byte(self, data: bytearray) -> None:
        at = self._place(data)
        data[at : at + self.rng.randrange(2)] = self.rng.randbytes(1)

    def _number(self, data: bytearray) -> None:
        at, size = self._place(data), self.rng.choice((1, 2, 4, 8))
        value = self.rng.choice(NUMBERS) * self.rng.choice((1, 1, -1))
        order: str = self.rng.choice(("big", "little"))
        bits = value & ((1 << 8 * size) - 1)
        data[at : at + size] = bits.to_bytes(size, "big" if order == "big" else "little")

    def _token(self, data: bytearray) -> None:
        at = self._place(data)
        token = self.rng.choice(self.tokens)
        data[at : at + self.rng.choice((0, 0, 1, len(token)))] = token

    def _remove(self, data: bytearray) -> None:
        start, end = self._part(data)
        del data[start:end]

    def _repeat(self, data: bytearray) -> None:
        start, end = self._part(data)
        data[start:start] = data[start:end] * self.rng.choice((1, 2, 5, 30))

    def _move(self, data: bytearray) -> None:
        start, end = self._part(data)
        part = data[start:end]
        del data[start:end]
        at = self._place(data)
        data[at:at] = part

    def _swell(self, data: bytearray) -> None:
        at = self._place(data)
        data[at:at] = self.rng.choice((b"a", b"0", b"\0", b" ")) * self.rng.choice((8, 64, 999))


class Fuzzer:
    """One target, its queue of inputs, and what failed."""

    def __init__(self, target: Target, folder: Path, seed: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.target = target
        self.folder = folder
        self.rng = random.Random(seed)
        self.mutator = Mutator(self.rng, target.tokens)
        self.queue: list[bytes] = []
        self.known: set[bytes] = set()
        self.runs = 0
        self.failures: dict[str, Path] = {}
        self._suspicions = 0
        self.map = Map()
        self._ignored: list[str] = []
        sys.unraisablehook = self._note_ignored
        self._current = os.open(folder / CURRENT, os.O_RDWR | os.O_CREAT | os.O_TRUNC)

    def close(self) -> None:
        os.close(self._current)
        (self.folder / CURRENT).unlink()
        sys.unraisablehook = sys.__unraisablehook__

    def run(self, data: bytes) -> int:
        """Check one input; whether it did something new, as Map.end says it."""
        self.runs += 1
        os.pwrite(self._current, data, 0)
        os.ftruncate(self._current, len(data))
        signal.alarm(HANG_SECONDS)
        self.map.begin()
        try:
            self.target.check(data)
            self._refuse_ignored()
        except Exception as problem:
            self.map.end()
            self._failed(data, problem)
            return 0
        finally:
            signal.alarm(0)
        return self.map.end()

    def _note_ignored(self, found: sys.UnraisableHookArgs) -> None:
        self._ignored.append(f"{found.object}: {found.exc_value!r}")
        if len(self._ignored) == IGNORED_MAX:
            os.abort()  # a loop without an end; the parent tells which input did it

    def _refuse_ignored(self) -> None:
        """What compiled code cannot raise, it prints; here it counts."""
        ignored, self._ignored = self._ignored, []
        assert not ignored, f"{len(ignored)} exceptions ignored: {ignored[0]}"

    def keep(self, data: bytes) -> None:
        """An input to mutate further."""
        self.queue.append(data)
        if self.target.leaks:
            self._look_for_leak(data)

    def _look_for_leak(self, data: bytes) -> None:
        if min(self._growth(data, 1, 3)) <= 0 or self._suspicions == SUSPICIONS_MAX:
            return
        self._suspicions += 1
        levels = self._growth(data, LEAK_RUNS, 3)
        if min(levels) < LEAK_RUNS * LEAK_BYTES or min(levels) < STEADY * max(levels):
            return
        # Python's own caches grow too, but less and less, sometimes for thousands of runs (those of
        # json after an error); what leaks, leaks as much later on
        later = self._growth(data, LEAK_RUNS * LATER, 3)
        if min(later) > STEADY * LATER * max(levels):
            each = min(later) // (LEAK_RUNS * LATER)
            self._failed(data, AssertionError(f"keeps {each} bytes each time"))

    def _growth(self, data: bytes, runs: int, times: int) -> list[int]:
        """How much more memory is in use after so many runs, several times over."""
        levels = array("q", [0] * (times + 1))  # numbers of its own would be counted
        self._check_only(data, runs)
        for i in range(times + 1):
            self._check_only(data, runs)
            gc.collect()
            levels[i] = allocated()
        return [after - before for before, after in pairwise(levels)]

    def _check_only(self, data: bytes, runs: int) -> None:
        self.runs += runs
        for _ in range(runs):
            with suppress(Exception):  # it failed before, and has been kept
                self.target.check(data)
        self._ignored.clear()

    def _failed(self, data: bytes, problem: Exception) -> None:
        where = traceback.extract_tb(problem.__traceback__)
        place = f"{type(problem).__name__} {where[-1].filename}:{where[-1].lineno}" if where else ""
        if not where or where[-1].filename == __file__:
            place = str(problem)  # found here: the words tell one from another
        if place in self.failures:
            return
        kept = save(self.folder, "failed", data)
        self.failures[place] = kept
        text = "".join(traceback.format_exception(problem)[-6:])
        print(f"{self.target.name}: FAILED {kept}\n{text}", flush=True)

    def seed(self, more: Iterable[bytes] = ()) -> None:
        """Begin with what the target knows, what once failed, and `more`."""
        known = [path.read_bytes() for path in corpus(self.target.name)]
        for data in [*known, *self.target.seeds, *more]:
            if len(data) <= self.target.length_max and data not in self.known:
                self.known.add(data)
                if self.run(data) or not self.map.modules:
                    self.queue.append(data)
        if not self.queue:
            self.queue.append(b"")

    def fuzz(self, seconds: float, runs: int) -> None:
        """Mutate until the time is up or so many inputs have been run (0 = any number)."""
        end = time.monotonic() + seconds
        gc.collect()
        gc.freeze()
        gc.disable()
        while len(self.failures) < FAILED_MAX and not 0 < runs <= self.runs:
            if time.monotonic() >= end:
                break
            data = self._next()
            if self.run(data):
                self.keep(data)
            if self.runs % COLLECT_EVERY == 0:
                gc.collect()
        gc.enable()

    def _pick(self) -> bytes:
        recent = self.rng.random() < 0.5
        return self.rng.choice(self.queue[-RECENT:] if recent else self.queue)

    def _next(self) -> bytes:
        new = self.mutator.mutate(self._pick(), self._pick())
        del new[self.target.length_max :]
        if self.target.repair is not None:
            self.target.repair(self.rng, new)
        return bytes(new)


def save(folder: Path, kind: str, data: bytes) -> Path:
    """Keep an input under a name made of its bytes."""
    path = folder / f"{kind}-{hashlib.sha256(data).hexdigest()[:16]}.bin"
    path.write_bytes(data)
    return path
