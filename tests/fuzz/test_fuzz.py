"""The fuzzer itself, and what it found before. Fuzzing proper is `make fuzz`."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fuzz import (
    blocks,
    frames,
    leaf_parser,
    nats_parser,
    nsq_parser,
    planted,
    recovery,
    stan_messages,
)
from fuzz.engine import Fuzzer, Mutator, Target, corpus, cuts_of
from fuzz.watch import SANITIZED, fence_end

TARGETS = {
    "nats": nats_parser.target,
    "leaf": leaf_parser.target,
    "nsq": nsq_parser.target,
    "stan": stan_messages.target,
    "frames": frames.target,
    "blocks": blocks.target,
    "records": recovery.records_target,
    "segment": recovery.segment_target,
    "journal": recovery.journal_target,
}
MUTANTS = 20


@pytest.fixture(params=TARGETS)
def target(request: pytest.FixtureRequest) -> Iterator[Target]:
    made = TARGETS[request.param]()
    yield made
    made.close()


def test_what_failed_once_does_not_fail_again(target: Target) -> None:
    for path in corpus(target.name):
        target.check(path.read_bytes())


def test_seeds_and_some_mutants(target: Target) -> None:
    rng = random.Random(1)
    mutator = Mutator(rng, target.tokens)
    for data in rng.sample(list(target.seeds), min(MUTANTS, len(target.seeds))):
        target.check(data)
        new = mutator.mutate(data, rng.choice(target.seeds))
        del new[target.length_max :]
        if target.repair is not None:
            target.repair(rng, new)
        target.check(bytes(new))


def fuzz(target: Target, folder: Path, runs: int = 3000) -> Fuzzer:
    fuzzer = Fuzzer(target, folder, 1)
    fuzzer.seed()
    fuzzer.fuzz(30, runs)
    fuzzer.close()
    return fuzzer


@pytest.mark.parametrize("made", [planted.wrong_target, planted.ignored_target])
def test_a_wrong_answer_is_found_and_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], made: Callable[[], Target]
) -> None:
    (path,) = fuzz(made(), tmp_path).failures.values()
    assert b"!" in path.read_bytes()
    assert "FAILED" in capsys.readouterr().out


def test_the_same_seed_does_the_same(tmp_path: Path) -> None:
    seen: list[list[bytes]] = [[], []]
    for inputs in seen:
        fuzz(Target("any", inputs.append, planted.SEEDS, [b"!"]), tmp_path, 200)
    assert seen[0] == seen[1]
    assert len(set(seen[0])) > 100


def test_cuts_depend_on_the_input_alone() -> None:
    for size in (0, 1, 50, 5_000):
        data = random.Random(size).randbytes(size)
        assert cuts_of(data) == sorted(cuts_of(data))
        assert all(0 <= cut <= size for cut in cuts_of(data))


def test_a_crash_is_reported_and_its_input_kept(tmp_path: Path) -> None:
    command = [sys.executable, str(Path(__file__).parent), "--target", "planted:crash_target"]
    command += ["--runs", "3000", "--seconds", "30", "--out", str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1
    assert "crashed (SIGABRT) on" in ended.stdout
    (path,) = tmp_path.rglob("crashed-*.bin")
    assert b"!" in path.read_bytes()


@pytest.mark.skipif(not SANITIZED, reason="needs the sanitizer: `make asan`")
def test_what_is_not_given_back_is_found(tmp_path: Path) -> None:
    target = planted.leak_target()
    fuzzer = Fuzzer(target, tmp_path, 1)
    fuzzer.keep(b"plain")
    assert not fuzzer.failures
    fuzzer.keep(b"!")
    fuzzer.close()
    assert len(fuzzer.failures) == 1


@pytest.mark.skipif(not SANITIZED, reason="needs the sanitizer: `make asan`")
def test_reading_behind_bytes_is_found() -> None:
    script = (
        "import ctypes, sys; sys.path.insert(0, sys.argv[1])\n"
        "from fuzz.watch import BYTES_HEAD, fence_end\n"
        "data = bytes(20)\n"
        "with fence_end(data): ctypes.string_at(id(data) + BYTES_HEAD, int(sys.argv[2]))\n"
    )
    tests = str(Path(__file__).parents[1])
    for size, good in ((20, True), (21, False)):
        command = [sys.executable, "-c", script, tests, str(size)]
        ended = subprocess.run(command, capture_output=True, timeout=60, check=False)
        assert (ended.returncode == 0) == good
    with fence_end(b""), fence_end(b"x"):
        pass
